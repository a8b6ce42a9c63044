"""The planner against Spark itself: what docs/reference/speeds.md says of every kind of stream is what Spark does."""

import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from riverrun.app import App, load_app
from riverrun.config import Settings, SparkSettings
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.topics import apply_topics
from riverrun.kafka.connection import Connection
from riverrun.kafka.java_client import java_properties
from riverrun.kafka.producer.producer import Producer
from riverrun.model.cluster_state import TopicPartition
from riverrun.streams.compile.compiler import Compilation, compile_app, encode_records
from riverrun.streams.compile.graph import build_graph
from riverrun.streams.compile.sources import Counters, KafkaRecordSource
from riverrun.streams.run.planner import PipelinePlan, StreamPlan, plan_streams
from riverrun.streams.run.row_identity import add_identity_header
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.stream_kinds import HOUSES, KINDS, Kind, pipeline_file

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[2] / "docs/reference/speeds.md"
HEADER = """# Which speed a stream gets

Asked for real time, each kind of stream below gets the speed in its row; where that is near real time, the plan
(`riverrun plan FILE`) gives the reason that stands here. `tests/integration/test_stream_speeds.py` starts every one of them
on a real Kafka in real-time mode of Spark 4.3: rows must come out where the table says real-time, Spark must refuse where it
says near-real-time, and there a micro-batch must run in the output mode of the table. `script/docs` writes the page.

A real-time stream holds a task slot for every partition it reads and every part of its state, all the time; `readings`
has 2 partitions here, `repairs` 1, and state is kept in 2 parts. `at` is the event time of both and may be late by a
minute. `per_house` is the tumbling window aggregate below, as another stream.

| kind of stream | code | speed | why not faster | output | slots | what Spark says to real-time mode |
| --- | --- | --- | --- | --- | --- | --- |
"""
SETTINGS = Settings(spark=SparkSettings(shuffle_partitions=2))
START = datetime(2026, 1, 1, tzinfo=UTC)
RECORDS = 9
DEADLINE = 60
# A transformWithState from Python is not refused by name: it does not find its own state.
REFUSED = re.compile(r"STREAMING_REAL_TIME_MODE\.\w+|STREAMING_OUTPUT_MODE\.\w+|STDS_FAILED_TO_READ_OPERATOR_METADATA")


@dataclass
class Stage:
    """All kinds in one app, planned, on a cluster where their topics are and the inputs have records."""

    done: Compilation
    plan: PipelinePlan
    connection: Connection
    root: Path

    @property
    def app(self) -> App:
        return self.done.graph.app

    def start(self, name: str, *, real_time: bool) -> StreamingQuery:
        """Start a stream as its code asks for, or as a micro-batch in the planned output mode."""
        compiled = self.done.streams[name]
        counters = Counters(streaming=True)
        records = KafkaRecordSource(self.done.spark, self.connection)
        rows = self.done.rows(name, records, counters=counters, broadcast=real_time)
        sink = {f"kafka.{option}": value for option, value in java_properties(self.connection).items()}
        folder = self.root / f"{name}-{'real-time' if real_time else 'near-real-time'}"
        sent = encode_records(rows, compiled, counters)
        writer = (
            (add_identity_header(sent) if real_time else sent)
            .writeStream.format("kafka")
            .options(**sink, topic=compiled.stream.output_topic, checkpointLocation=str(folder))
        )
        if not real_time:
            return writer.outputMode(self.plan.for_stream(name).output_mode).trigger(availableNow=True).start()
        final = compiled.fused or compiled.stream.emit == "final"
        writer = writer.outputMode("append" if final else "update")
        return writer.trigger(realTime="5 seconds").start()  # type: ignore[call-overload,no-any-return]

    def written(self, name: str) -> int:
        """How many rows the stream has sent."""
        topic = self.done.output_topic(name)
        places = [TopicPartition(topic.name, each) for each in range(topic.partitions)]
        return sum(Admin(self.connection).offsets(places, "latest").values())

    def produce(self) -> None:
        with Producer(self.connection) as producer:
            for topic in self.app.topics.values():
                assert topic.event is not None
                for number in range(RECORDS):
                    values = {"house_id": f"h{number % 3}", "at": START + timedelta(seconds=number)}
                    if topic.event.__name__ == "Reading":
                        values |= {"load_kw": float(number), "tags": ["new"]}
                    producer.send_soon(topic, topic.event(**values))


@pytest.fixture(scope="module")
def stage(spark: SparkSession, kafka: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    root = tmp_path_factory.mktemp("kinds")
    (root / "houses.csv").write_text(HOUSES, encoding="utf-8")
    file = root / "kinds.py"
    file.write_text(pipeline_file(secrets.token_hex(4)), encoding="utf-8")
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    app = load_app(file)
    done = compile_app(build_graph(app), spark, KafkaRecordSource(spark, kafka.connection)).require()
    # What one stream would get if it were the only one: more slots than all of them hold.
    stage = Stage(done, plan_streams(done, SETTINGS, slots=1000, speed="real-time"), kafka.connection, root)
    apply_topics(Admin(kafka.connection), [*app.topics.values(), *[done.output_topic(name) for name in done.streams]])
    stage.produce()
    yield stage
    spark.conf.set("spark.sql.shuffle.partitions", str(before))


def row(kind: Kind, plan: StreamPlan, said: str) -> str:
    cells = [
        kind.title,
        kind.shown,
        plan.speed,
        plan.reason,
        plan.output_mode,
        str(plan.slots) if plan.slots else "",
        f"`{said}`" if said else "",
    ]
    return "| " + " | ".join(cells) + " |"


def rows_of_page() -> dict[str, str]:
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    return {found[1]: line for line in text.splitlines() if (found := re.match(r"\| (.+?) \| `", line))}


def try_real_time(stage: Stage, name: str) -> str:
    """Run a stream in real-time mode until rows have come out; or the condition by which Spark refused."""
    before = stage.written(name)
    try:
        query = stage.start(name, real_time=True)
        try:
            deadline = time.monotonic() + DEADLINE
            while stage.written(name) == before:
                assert time.monotonic() < deadline, f"{name} runs in real-time mode and sends nothing"
                if query.awaitTermination(1):
                    raise AssertionError(f"{name} ended by itself")
        finally:
            query.stop()
    except PySparkException as error:
        found = REFUSED.search(str(error))
        if found is None:
            raise
        return found[0]
    return ""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_stream_gets_the_speed_the_table_says(kind: Kind, stage: Stage, request: pytest.FixtureRequest) -> None:
    plan = stage.plan.for_stream(kind.name)
    if "per_house" in kind.inputs and not stage.written("per_house"):
        assert stage.start("per_house", real_time=False).awaitTermination(DEADLINE)
    said = try_real_time(stage, kind.name)
    assert (plan.speed == "real-time") == (said == ""), f"planned: {plan.speed}, {plan.reason}; Spark: {said or 'runs'}"
    if said:
        query = stage.start(kind.name, real_time=False)
        assert query.awaitTermination(DEADLINE), f"{kind.name} has not finished its micro-batches"
        assert sum(each.numInputRows for each in query.recentProgress) >= RECORDS
    made = row(kind, plan, said)
    if request.config.getoption("--write-docs"):
        rows = rows_of_page() | {kind.title: made}
        lines = [rows[each.title] for each in KINDS if each.title in rows]
        PAGE.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    else:
        assert made == rows_of_page().get(kind.title), "see script/docs"


def test_the_page_has_every_kind_and_no_other() -> None:
    assert list(rows_of_page()) == [kind.title for kind in KINDS]
    assert PAGE.read_text(encoding="utf-8").startswith(HEADER)
    assert len(KINDS) >= 12


def test_a_row_that_a_filter_leaves_out_tells_the_time_all_the_same(stage: Stage) -> None:
    stage.produce()
    query = stage.start("session", real_time=False)
    assert query.awaitTermination(DEADLINE)
    told = str(query._jsq.explainInternal(True))
    plan = told.partition("== Optimized Logical Plan ==")[2].partition("== Physical Plan ==")[0].splitlines()
    filters = [number for number, line in enumerate(plan) if "Filter" in line and "> 2.0" in line]
    [clock] = [number for number, line in enumerate(plan) if "EventTimeWatermark" in line]
    # What is done first stands below.
    assert filters
    assert max(filters) < clock, told
