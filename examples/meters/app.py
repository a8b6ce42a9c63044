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


app.dashboard(
    rr.number("City load", "select sum(load_kw) from street_load where minute = latest", unit="kW", width=3),
    rr.number("Houses", "select count(distinct house_id) from house_load", width=3, compare=None),
    rr.number("Highest house", "select max(load_kw) from house_load where minute = latest", unit="kW", width=3),
    rr.number("Above 2 kW", "select count(*) from high_load where at = latest", width=3),
    rr.line("Load by street", "street_load", x="minute", y="load_kw", by="street", unit="kW", width=8),
    rr.leaderboard("Highest houses", "house_load", by="house_id", y="load_kw", unit="kW", closed=True, width=4),
    rr.heat_map("Load through the hour", "street_load", x="minute", y="load_kw", by="street", unit="kW", width=8),
    rr.rows("Above 2 kW, newest first", "high_load", columns=("at", "house_id", "load_kw"), limit=50, width=4),
    rr.line("Houses of {street}", "house_load", x="minute", y="load_kw", by="house_id", unit="kW", when="street"),
    title="City power",
)
