"""Nexmark 3, local items: who in Oregon, Idaho or California sells something of category 10 within five minutes of
registering, and which auctions are they?"""

from market import Auction, Person
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import riverrun as rr

app = rr.App("nexmark_q3")
app.topic("persons", Person, partitions=4)
app.topic("auctions", Auction, partitions=4)


@app.stream(key="auction")
def local_items(persons: DataFrame, auctions: DataFrame) -> DataFrame:
    local = persons.where(F.col("state").isin("OR", "ID", "CA")).withColumnRenamed("at", "registered")
    offered = auctions.where("category = 10")
    same = (F.col("seller") == F.col("person")) & F.expr("at between registered and registered + interval 5 minutes")
    return local.join(offered, same).select("auction", "name", "city", "state", "at")
