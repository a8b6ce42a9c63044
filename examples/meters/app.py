"""Smart meters: every house reports its load; the load of each house and street by the minute, and houses above 2 kW."""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import riverrun as rr

app = rr.App("meters")


class Reading(rr.Event):
    house_id: str = rr.key()
    street: str
    load_kw: float = rr.field(ge=0)
    at: datetime = rr.event_time(late="2 minutes")


class Overload(rr.Event):
    house_id: str = rr.key()
    load_kw: float
    at: datetime = rr.event_time()


readings = app.topic("readings", Reading, partitions=4, retention="7 days")
overloads = app.topic("overloads", Overload, partitions=4, retention="30 days")


@app.stream
def house_load(readings: DataFrame) -> DataFrame:
    minute = F.window("at", "1 minute").alias("minute")
    return readings.groupBy(minute, "house_id", "street").agg(F.avg("load_kw").alias("load_kw"))


app.sql("street_load", "select minute, street, sum(load_kw) as load_kw from house_load group by minute, street")


@app.stream
def high_load(readings: DataFrame) -> DataFrame:
    return readings.where("load_kw > 2.0")
