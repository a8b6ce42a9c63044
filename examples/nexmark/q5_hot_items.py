"""Nexmark 5, hot items: which auction got the most bids in the last two minutes, asked every minute?

Of two auctions with as many bids, the older one wins.
"""

from market import Bid
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import riverrun as rr

app = rr.App("nexmark_q5")
app.topic("bids", Bid, partitions=4)


@app.stream
def bid_counts(bids: DataFrame) -> DataFrame:
    return bids.groupBy(F.window("at", "2 minutes", "1 minute").alias("period"), "auction").agg(
        F.count("*").alias("number")
    )


@app.stream
def hot_items(bid_counts: DataFrame) -> DataFrame:
    best = F.max(F.struct("number", (-F.col("auction")).alias("age"), "auction"))
    return bid_counts.groupBy("period").agg(best.alias("best")).select("period", "best.auction", "best.number")
