"""Rows written once beside Spark's own sink, which writes them at least once: the same stream and settings, on one Kafka.

    python bench/sink.py [--events 2000000] [--rate 1000] [--seconds 30] [--repeats 2] [--only throughput,latency] [--here]

Two streams: each house's average by the minute (few rows out), and every reading as it is (as many out as in).
Throughput: readings by the time of their batches, but for the first, which pays for compiling. Latency: the age of a row as
a reader gets it (p50, p99), over `seconds` after half as long to warm up. «workers» is how rows are written on a cluster: by
the workers that compute them; `--here` leaves it out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from load import JOB, READINGS, ages_of_rows, end, fill, forget, last_of
from measure import alternate, report
from riverrun.app import App, load_app
from riverrun.cluster.kafka.local import LocalKafka
from riverrun.config import KafkaSettings, Settings
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.java_client import java_properties
from riverrun.streams.compile.compiler import compile_app, encode_records
from riverrun.streams.compile.sources import Counters, KafkaRecordSource
from riverrun.streams.pipeline import build_checked_graph
from riverrun.streams.run.session import start_session, stop_session
from riverrun.streams.run.sink import ExactlyOnceSink

SINKS = ("Spark's", "once", "once, workers")
STREAMS = ("by_riverrun", "every_reading")
BITE = 400_000


def pipeline() -> App:
    app = load_app(JOB / "meters.py")
    app.sql("every_reading", f"SELECT * FROM {READINGS}")  # noqa: S608
    return app


def newest(stream: str, row: bytes) -> float:
    """When the newest reading in a row was made."""
    return last_of(row) if stream == STREAMS[0] else datetime.fromisoformat(json.loads(row)["at"]).timestamp()


def topic_of(stream: str, sink: str) -> str:
    return f"{stream}-{SINKS.index(sink)}"


def child(stream: str, sink: str, address: str, folder: Path, *, forever: bool) -> None:
    """One turn: runs the stream into a topic, and prints readings and milliseconds of its batches."""
    connection = Connection(KafkaSettings(bootstrap_servers=address))
    spark = start_session(Settings(), folder, name="bench", slots=2)
    try:
        done = compile_app(build_checked_graph(pipeline()), spark, KafkaRecordSource(spark, connection)).require()
        compiled, counters = done.streams[stream], Counters(streaming=True)
        source = KafkaRecordSource(spark, connection, options={"maxOffsetsPerTrigger": str(BITE)})
        writer = encode_records(done.rows(stream, source, counters=counters), compiled, counters).writeStream
        topic = topic_of(stream, sink)
        if sink == SINKS[0]:
            options = {f"kafka.{name}": value for name, value in java_properties(connection).items()}
            writer = writer.format("kafka").options(**options, topic=topic)
        else:
            once = ExactlyOnceSink.create(
                done.spark,
                connection,
                Admin(connection),
                name=topic,
                topic=topic,
                transaction_seconds=300,
                in_driver=sink == SINKS[1],
            )
            writer = writer.foreachBatch(once.write)
        query = (
            writer.option("checkpointLocation", str(folder / "checkpoint"))
            .outputMode(compiled.mode)
            .trigger(processingTime="0 seconds")
            .start()
        )
        if forever:
            query.awaitTermination()
        query.processAllAvailable()
        batches = [json.loads(each.json) for each in query.recentProgress]
        full = [batch for batch in batches if batch["numInputRows"] and batch["batchId"] > 0]
        readings = sum(each["numInputRows"] for each in full)
        print(json.dumps({"readings": readings, "ms": sum(each["durationMs"]["triggerExecution"] for each in full)}))
        query.stop()
    finally:
        stop_session(spark)


class Turns:
    """Runs children one after the other."""

    def __init__(self, root: Path, admin: Admin) -> None:
        self.root = root
        self.admin = admin
        self.number = 0

    def start(self, stream: str, sink: str, *, forever: bool = False) -> "subprocess.Popen[bytes]":
        self.number += 1
        folder = self.root / f"turn-{self.number}"
        folder.mkdir()
        command = [
            sys.executable,
            __file__,
            "--child",
            stream,
            sink,
            self.admin.connection.bootstrap_servers,
            str(folder),
        ]
        log = (folder / "out.log").open("wb")
        environment = os.environ | ({"BENCH_FOREVER": "1"} if forever else {})
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment)

    def throughput(self, stream: str, sink: str) -> float:
        """Thousand readings a second."""
        process = self.start(stream, sink)
        said, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"{sink} failed: see {self.root}")
        found = json.loads(said.splitlines()[-1])
        return float(found["readings"] / found["ms"])

    def latency(self, stream: str, sink: str, rate: int, seconds: float) -> list[float]:
        forget(self.admin, READINGS)
        process = self.start(stream, sink, forever=True)
        try:
            return ages_of_rows(
                self.admin,
                topic_of(stream, sink),
                rate=rate,
                seconds=seconds,
                alive=lambda: process.poll() is None,
                group=f"bench-{self.number}",
                newest=lambda row: newest(stream, row),
            )
        finally:
            end(process)


def measure_throughput(turns: Turns, sinks: Sequence[str], repeats: int) -> None:
    for stream in STREAMS:
        runs = {sink: lambda stream=stream, sink=sink: turns.throughput(stream, sink) for sink in sinks}
        report(f"{stream}: readings", alternate(runs, repeats), "thousand/s", against=SINKS[0])


def measure_latency(turns: Turns, sinks: Sequence[str], given: argparse.Namespace) -> None:
    for stream in STREAMS:
        ages: dict[str, list[list[float]]] = {sink: [] for sink in sinks}
        for _ in range(given.repeats):
            for sink in sinks:
                ages[sink].append(turns.latency(stream, sink, given.rate, given.seconds))
        for quantile, name in ((0.5, "p50"), (0.99, "p99")):
            figures = {sink: [run[int(len(run) * quantile)] for run in runs] for sink, runs in ages.items()}
            report(f"{stream}, {given.rate:,} a second: age of a row, {name}", figures, "ms", against=SINKS[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--only", default="throughput,latency")
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        stream, sink, address, folder = given.child
        child(stream, sink, address, Path(folder), forever="BENCH_FOREVER" in os.environ)
        return
    sinks = SINKS[:2] if given.here else SINKS
    root = Path(tempfile.mkdtemp(prefix="riverrun-bench-"))
    with LocalKafka(root / "kafka", KafkaSettings()) as kafka:
        connection = Connection(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
        pipeline().apply(connection)
        turns = Turns(root, Admin(connection))
        for stream in STREAMS:
            for sink in sinks:
                turns.admin.create_topic(topic_of(stream, sink), partitions=4, replicas=0, config={})
        if "throughput" in given.only:
            fill(connection, given.events)
            measure_throughput(turns, sinks, given.repeats)
        if "latency" in given.only:
            measure_latency(turns, sinks, given)


if __name__ == "__main__":
    main()
