"""The same job written by hand: `by_hand.py BOOTSTRAP CHECKPOINT SPEED JARS JAVA_HOME`; ends when it has caught up."""

import os
import sys

bootstrap, checkpoint, speed, jars, java_home = sys.argv[1:]
os.environ["JAVA_HOME"] = java_home

from pyspark.sql import SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402

spark = (
    SparkSession.builder.master("local[8]" if speed == "real-time" else "local[2]")
    .config("spark.jars", jars)
    .config("spark.driver.memory", "5g")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .config(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
source = {"kafka.bootstrap.servers": bootstrap, "subscribe": "readings", "startingOffsets": "earliest"}
reader = spark.read if speed == "batch" else spark.readStream
if speed == "near-real-time":
    source["maxOffsetsPerTrigger"] = "400000"
rows = (
    reader.format("kafka")
    .options(**source)
    .load()
    .select(F.from_json(F.col("value").cast("string"), "house_id string, load_kw double, at timestamp").alias("r"))
    .select("r.*")
)
if speed != "batch":
    rows = rows.withWatermark("at", "2 minutes")
out = (
    rows.groupBy(F.window("at", "1 minute").alias("minute"), "house_id")
    .agg(F.avg("load_kw").alias("load_kw"), F.max("at").alias("last"))
    .select(F.col("house_id").alias("key"), F.to_json(F.struct("*")).alias("value"))
)
sink = {"kafka.bootstrap.servers": bootstrap, "topic": "by_hand"}
if speed == "batch":
    out.write.format("kafka").options(**sink).save()
else:
    trigger = {"realTime": "30 seconds"} if speed == "real-time" else {"processingTime": "0 seconds"}
    query = (
        out.writeStream.format("kafka")
        .options(**sink)
        .option("checkpointLocation", checkpoint)
        .outputMode("update")
        .trigger(**trigger)
        .start()
    )
    if os.environ.get("BENCH_FOREVER"):
        query.awaitTermination()
    query.processAllAvailable()
    query.stop()
spark.stop()
