"""Nexmark 7 and 19, highest bids: which were the three highest bids of every minute, and whose?"""

from market import Bid
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import riverrun as rr

app = rr.App("nexmark_q7")
app.topic("bids", Bid, partitions=4)


@app.stream(emit="final")
def highest_bids(bids: DataFrame) -> DataFrame:
    made = F.sort_array(F.collect_list(F.struct("price", "auction", "bidder")), asc=False)
    return bids.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.slice(made, 1, 3).alias("top"))
