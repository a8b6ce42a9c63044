"""The job as a pipeline file: readings of 10,000 houses → each house's average by the minute, and its newest time."""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import riverrun as rr

app = rr.App("bench")


class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float = rr.field(ge=0)
    at: datetime = rr.event_time(late="2 minutes")


readings = app.topic("readings", Reading, partitions=4)


@app.stream
def by_riverrun(readings: DataFrame) -> DataFrame:
    average = F.avg("load_kw").alias("load_kw"), F.max("at").alias("last")
    return readings.groupBy(F.window("at", "1 minute").alias("minute"), "house_id").agg(*average)
