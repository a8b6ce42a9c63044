"""Kinds of stream that users write, each in one line of code, and the pipeline file that has them all.

docs/reference/speeds.md says which speed each gets; `tests/integration/test_stream_speeds.py` holds that against Spark.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One kind of stream. `code` is what its function returns; `inputs` are its parameters, `options` the decorator's."""

    name: str
    title: str
    code: str
    inputs: str = "readings"
    options: str = ""

    @property
    def shown(self) -> str:
        """The code as the page shows it, with the stream's option where it has one."""
        return f"`{self.code}`" + (f" with `{self.options}`" if self.options else "")


KINDS = [
    Kind("filtered", "filter", 'readings.where("load_kw > 2")'),
    Kind("mapped", "map", 'readings.select("house_id", "at", F.round(F.col("load_kw") * 1000).alias("watts"))'),
    Kind("exploded", "one record to many rows", 'readings.select("house_id", F.explode("tags").alias("tag"))'),
    Kind("looked_up", "join with a table", 'readings.join(houses, "house_id")', "readings, houses"),
    Kind("merged", "union of two topics", 'readings.select("house_id", "at").union(repairs.select("house_id", "at"))',
         "readings, repairs"),
    Kind("doubled", "union of a topic with itself", 'readings.union(readings.where("load_kw > 2"))'),
    Kind("tumbling", "window aggregate, tumbling",
         'readings.groupBy(F.window("at", "1 minute").alias("minute"), "house_id").agg(F.avg("load_kw").alias("load_kw"))'),
    Kind("sliding", "window aggregate, sliding",
         'readings.groupBy(F.window("at", "1 hour", "5 minutes").alias("hour")).agg(F.sum("load_kw").alias("load_kw"))'),
    Kind("session", "session window of a filter",
         'readings.where("load_kw > 2").groupBy(F.session_window("at", "5 minutes").alias("session"), "house_id").count()'),
    Kind("final", "window aggregate, final rows only",
         'readings.groupBy(F.window("at", "1 minute").alias("minute"), "house_id").agg(F.max("load_kw").alias("load_kw"))',
         options='emit="final"'),
    Kind("running", "running aggregate by key", 'readings.groupBy("house_id").agg(F.max("load_kw").alias("load_kw"))'),
    Kind("total", "running aggregate over everything", "readings.groupBy().count()"),
    Kind("distinct", "dropDuplicates", 'readings.dropDuplicates(["house_id", "at"])'),
    Kind("distinct_lately", "dropDuplicatesWithinWatermark", 'readings.dropDuplicatesWithinWatermark(["house_id"])'),
    Kind("then_distinct", "dropDuplicates before an aggregate",
         'readings.dropDuplicates(["house_id", "at"]).groupBy(F.window("at", "1 minute").alias("minute")).count()'),
    Kind("joined", "join of two streams",
         'readings.join(repairs.withColumnRenamed("at", "done"), "house_id")'
         '.where("done between at and at + interval 1 day")',
         "readings, repairs"),
    Kind("top", "top 3 per window",
         'per_house.groupBy("minute").agg(F.max_by("house_id", "load_kw", 3).alias("houses"))',
         "per_house"),
    Kind("busiest", "two aggregates in a row",
         'readings.groupBy(F.window("at", "1 minute").alias("m"), "house_id").count()'
         '.groupBy(F.window("m", "1 hour").alias("hour")).agg(F.max("count").alias("most"))',
         options='emit="final"'),
    Kind("hourly", "window over another stream's window",
         'per_house.groupBy(F.window("minute", "1 hour").alias("hour")).agg(F.max("load_kw").alias("most"))',
         "per_house"),
    Kind("over_updates", "filter of an aggregating stream", 'per_house.where("load_kw > 2")', "per_house"),
    Kind("python_function", "Python UDF", 'readings.select("house_id", watts("load_kw").alias("watts"))'),
    Kind("arrow_function", "Arrow UDF", 'readings.select("house_id", arrow_watts("load_kw").alias("watts"))'),
    Kind("pandas_function", "pandas UDF", 'readings.select("house_id", pandas_watts("load_kw").alias("watts"))'),
    Kind("map_pandas", "mapInPandas", 'readings.mapInPandas(every_frame, "house_id string, load_kw double")'),
    Kind("map_arrow", "mapInArrow",
         'readings.select("house_id", "load_kw").mapInArrow(every_frame, "house_id string, load_kw double")'),
    Kind("stateful", "transformWithState",
         'readings.groupBy("house_id").transformWithState(Counter(), "house_id string, n int", "Update", "None")',
         options='key="house_id"'),
]  # fmt: skip

_FILE = '''\
"""One stream of every kind."""
from collections.abc import Iterator
from datetime import datetime

import pandas as pd
import pyarrow as pa
import riverrun as rr
from pyspark.sql import Row, functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import DoubleType

app = rr.App("{app}")


class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float
    tags: list[str]
    at: datetime = rr.event_time(late="1 minute")


class Repair(rr.Event):
    house_id: str = rr.key()
    at: datetime = rr.event_time(late="1 minute")


app.topic("readings", Reading, partitions=2)
app.topic("repairs", Repair)
app.table("houses", rr.csv("houses.csv"), key="house_id")


@F.udf(DoubleType())
def watts(kw):
    return kw * 1000


@F.arrow_udf(DoubleType())
def arrow_watts(kw: pa.Array) -> pa.Array:
    return pa.compute.multiply(kw, 1000.0)


@F.pandas_udf(DoubleType())
def pandas_watts(kw: pd.Series) -> pd.Series:
    return kw * 1000


def every_frame(frames):
    for frame in frames:
        yield frame if isinstance(frame, pa.RecordBatch) else frame[["house_id", "load_kw"]]


class Counter(StatefulProcessor):
    def init(self, handle):
        self.n = handle.getValueState("n", "n int")

    def handleInputRows(self, key, rows, timerValues):
        seen = (self.n.get()[0] if self.n.exists() else 0) + sum(1 for _ in rows)
        self.n.update((seen,))
        yield Row(house_id=key[0], n=seen)

    def close(self):
        pass


@app.stream()
def per_house(readings):
    return readings.groupBy(F.window("at", "1 minute").alias("minute"), "house_id").agg(F.avg("load_kw").alias("load_kw"))
'''
HOUSES = "house_id,street\nh0,Elm\nh1,Oak\nh2,Oak\n"


def pipeline_file(mark: str) -> str:
    """A pipeline file with a stream for every kind. Its topics end in `mark`: they are nobody else's."""
    streams = "".join(
        f"\n\n@app.stream({each.options})\ndef {each.name}({each.inputs}):\n    return {each.code}\n" for each in KINDS
    )
    text = re.sub(r"\b(readings|repairs)\b", rf"\1_{mark}", _FILE + streams).replace("{app}", f"kinds_{mark}")
    return re.sub(r"@app.stream\((.*)\)\ndef (\w+)", rf'@app.stream(topic="\2_{mark}", \1)\ndef \2', text)
