"""Edits of streams that have run: what riverrun says before it starts them, and that it comes true."""

import json
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from riverrun.app import load_app
from riverrun.config import Project, Settings, SparkSettings
from riverrun.errors import StreamChangedError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.streams.checkpoint import read_checkpoint_status
from riverrun.streams.compile.compiler import compile_app
from riverrun.streams.compile.fingerprint import HISTORY_FILE, VersionHistory, compute_fingerprint
from riverrun.streams.compile.sources import KafkaRecordSource
from riverrun.streams.evolve.versions import find_changes
from riverrun.streams.pipeline import Pipeline, build_checked_graph
from riverrun.streams.verify.verifier import Verdict, Verifier
from riverrun.testing import KafkaUnderTest
from support.shell import Shell
from support.streaming import read_rows, run_streams

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

# `_X` in a name becomes something that no other test has.
FIRST = '''
from datetime import datetime
import riverrun as rr
from pyspark.sql import functions as F

app = rr.App("edits_X")
FACTOR = 2

class Reading(rr.Event):
    house: str = rr.key()
    number: int = rr.field(ge=0)
    at: datetime = rr.event_time(late="1 hour")

class Tick(rr.Event):
    house: str = rr.key()
    number: int
    at: datetime = rr.event_time(late="1 hour")

app.topic("readings_X", Reading)
app.topic("others_X", Reading)
app.topic("ticks_X", Tick)

def scaled(number):
    """Some text."""
    return number * FACTOR

@F.udf("int")
def worked(number):
    return scaled(number)

@app.stream(key="house")
def plain_X(readings_X):
    kept = readings_X.where("number % 2 = 0")
    return kept.select("house", F.col("number").cast("int").alias("number"), worked("number").alias("made"))

@app.stream
def windowed_X(readings_X):
    return readings_X.groupBy(F.window("at", "1 minute").alias("span")).agg(F.sum("number").alias("total"))

@app.stream
def late_X(ticks_X):
    return ticks_X.groupBy(F.window("at", "1 minute").alias("span")).agg(F.sum("number").alias("total"))

@app.stream
def below_X(readings_X):
    return readings_X.where("number % 2 = 0").groupBy("house").agg(F.sum("number").alias("total"))

app.sql("summed_X", "select house, sum(number) as total from readings_X group by house")
'''
# What is edited, and to what.
EDITS = {
    "add a column": ('worked("number").alias("made"))', 'worked("number").alias("made"), "at")'),
    "remove a column": (', worked("number").alias("made"))', ")"),
    "widen a type": ('.cast("int")', '.cast("bigint")'),
    "change the filter": ('kept = readings_X.where("number % 2 = 0")', 'kept = readings_X.where("number % 3 = 0")'),
    "edit the function": ("FACTOR = 2", "FACTOR = 3"),
    "change the key": ('key="house"', 'key="number"'),
    "change the window": ('readings_X.groupBy(F.window("at", "1 minute")', 'readings_X.groupBy(F.window("at", "5 minutes")'),
    "rename": ("def windowed_X", "def renamed_X"),
    "change the watermark": ('number: int\n    at: datetime = rr.event_time(late="1 hour")',
                             'number: int\n    at: datetime = rr.event_time(late="2 hours")'),
    "swap the topic": ("def late_X(ticks_X):\n    return ticks_X", "def late_X(others_X):\n    return others_X"),
    "change what is below": ('return readings_X.where("number % 2 = 0")', 'return readings_X.where("number % 3 = 0")'),
    "format": ('    return readings_X.where("number % 2 = 0").groupBy("house").agg(F.sum("number").alias("total"))',
               '    # Even ones.\n    even = readings_X.where("number % 2 = 0")\n'
               '    return (even\n            .groupBy("house")\n            .agg(F.sum("number").alias("total")))'),
    "change what is above": ("sum(number) as total from", "sum(number) * 10 as total from"),
    "add an aggregate": ("sum(number) as total from", "sum(number) as total, count(*) as n from"),
}  # fmt: skip
SECOND = ("add a column", "widen a type", "change the filter", "edit the function", "change the window",
          "change the watermark", "change what is below", "change what is above")  # fmt: skip
# Streams of other kinds, and what differs each time Spark compiles it: seeds, the current time, sets, where objects are.
KINDS = """
from datetime import datetime
import riverrun as rr
from pyspark.sql import Row, functions as F
from pyspark.sql.streaming import StatefulProcessor

app = rr.App("kinds")

class Reading(rr.Event):
    house: str = rr.key()
    load: float
    at: datetime = rr.event_time(late="1 hour")

class Price(rr.Event):
    house: str = rr.key()
    price: float

app.topic("readings", Reading)
app.topic("more", Reading)
app.table("prices", app.topic("price_changes", Price, compact=True))

@F.udf("boolean")
def known(house):
    return house in {"a", "b", "c", "d"}

@app.stream
def odd(readings):
    seen = readings.where(known("house")).withColumn("noise", F.rand()).withColumn("raw", F.lit(b"xyz"))
    return seen.withColumn("now", F.current_timestamp())

app.sql("priced", "select house, load * price as cost from readings join prices using (house) where price > 1")

@app.stream
def met(readings, more):
    r, m = readings.alias("r"), more.alias("m")
    near = F.expr("r.house = m.house and r.at between m.at - interval 1 minute and m.at")
    return r.join(m, near).select("r.house", "m.at")

@app.stream
def hourly(readings):
    return readings.groupBy(F.window("at", "1 hour").alias("hour"), "house").agg(F.sum("load").alias("total"))

@app.stream(emit="final")
def top(hourly):
    return hourly.groupBy("hour").agg(F.max("total").alias("most"))

class Counter(StatefulProcessor):
    def init(self, handle):
        self.most = 3

    def handleInputRows(self, key, rows, timers):
        yield Row(house=key[0], n=min(self.most, len(list(rows))))

    def close(self):
        pass

@app.stream
def counted(readings):
    return readings.groupBy("house").transformWithState(
        statefulProcessor=Counter(), outputStructType="house string, n int", outputMode="Append", timeMode="None")
"""
BEGIN = datetime(2026, 3, 1, 18, tzinfo=UTC)
BEFORE, ALL = 60, 100
# Into more parts than any state here is split.
PARTS = 19


@dataclass
class Edits:
    """A project whose pipeline file is edited between two runs."""

    mark: str
    root: Path
    connection: Connection
    spark: SparkSession
    lines: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def name(self, stem: str) -> str:
        return f"{stem}_{self.mark}"

    @property
    def file(self) -> Path:
        return self.root / "app.py"

    @property
    def folder(self) -> Path:
        return self.root / ".riverrun" / "streams" / f"edits_{self.mark}"

    def write(self, *edits: str) -> None:
        text = FIRST
        for edit in edits:
            old, new = EDITS[edit]
            assert text.count(old) == 1, edit
            text = text.replace(old, new)
        self.file.write_text(text.replace("_X", f"_{self.mark}"))

    def send(self, numbers: range) -> None:
        producer = Producer(self.connection.properties())
        for number in numbers:
            at = (BEGIN + timedelta(seconds=10 * number)).isoformat()
            value = json.dumps({"house": house(number), "number": number, "at": at})
            for topic in ("readings", "others", "ticks"):
                producer.produce(self.name(topic), value, house(number))
        producer.flush()

    def verdicts(self, **options: Any) -> dict[str, str]:
        """By the stem of the stream's name, where some cannot go on: `lines` say why not, one for each."""
        graph = build_checked_graph(load_app(self.file))
        self.said.clear()
        settings = Settings(spark=SparkSettings(shuffle_partitions=PARTS))
        pipeline = Pipeline(
            graph, self.spark, settings, Project(self.root), self.connection, notice=self.said.append, **options
        )
        with pytest.raises(StreamChangedError) as caught:
            pipeline.prepare()
        self.lines = list(caught.value.problems)
        return {name.removesuffix(f"_{self.mark}"): change.kind for name, change in pipeline.changes.items()}

    def run(self, **options: Any) -> list[str]:
        """What it said on the way."""
        names: dict[str, Any] = {key: [self.name(stem) for stem in stems] for key, stems in options.items()}
        said: list[str] = []
        run_streams(self.spark, self.file, self.connection, self.root, notice=said.append, **names)
        return said

    def rows(self, stem: str) -> list[dict[str, Any]]:
        return read_rows(self.connection, self.name(stem))

    def newest(self, stem: str, column: str) -> dict[str, Any]:
        """The last row of each key, by house."""
        return {row["house"]: row.get(column) for row in self.rows(stem)}

    def verify(self, stem: str) -> Verdict:
        app = load_app(self.file)
        done = compile_app(
            build_checked_graph(app), self.spark, KafkaRecordSource(self.spark, self.connection)
        ).require()
        name, folder = self.name(stem), self.folder
        verifier = Verifier(done, self.connection, Admin(self.connection))
        stand = read_checkpoint_status(folder / "checkpoints" / name, name)
        return verifier.verify(name, stand, history=VersionHistory.read(folder / name / HISTORY_FILE))


def house(number: int) -> str:
    return f"h{number % 3}"


def totals(numbers: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for number in numbers:
        found[house(number)] = found.get(house(number), 0) + number
    return found


@pytest.fixture(scope="module")
def edits(spark: SparkSession, kafka: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Edits:
    """Everything has run as it is at first, over the first records; more have come since. Tests go on in their order."""
    found = Edits(secrets.token_hex(3), tmp_path_factory.mktemp("change"), kafka.connection, spark)
    found.write()
    load_app(found.file).apply(kafka.connection)
    found.send(range(BEFORE))
    found.run()
    found.send(range(BEFORE, ALL))
    return found


def test_verdicts_come_before_anything_starts(edits: Edits) -> None:
    edits.write(*SECOND)
    assert edits.verdicts() == {
        "plain": "compatible", "windowed": "fresh", "late": "kept", "below": "fresh", "summed": "kept"
    }  # fmt: skip
    windowed, below = edits.lines
    assert "windows of 300 s every 300 s instead of windows of 60 s every 60 s" in windowed
    assert f"It reads up to {ALL} records again" in windowed
    assert f"app.py --fresh {edits.name('windowed')}`" in windowed
    assert "--keep-state" not in windowed
    assert "before its state, the condition (number % 2) = 0 is (number % 3) = 0 now" in below
    assert f"--keep-state {edits.name('below')}`" in below
    edits.write("remove a column", "rename", "swap the topic", "format", "add an aggregate")
    assert edits.verdicts() == {
        "plain": "refused", "renamed": "new", "late": "fresh", "below": "unchanged", "summed": "fresh"
    }  # fmt: skip
    plain, late, summed = edits.lines
    assert "the column made is gone" in plain
    assert f"riverrun topics delete {edits.name('plain')}" in plain
    assert f"it reads {edits.name('others')} instead of {edits.name('ticks')}" in late
    assert "count(1), of which its state has nothing" in summed
    # Spark goes on with the parts that a state has, whatever the setting says.
    (parts,) = [each for each in edits.said if each.startswith(edits.name("below"))]
    assert f"spark.shuffle_partitions={PARTS} counts for it after `--fresh {edits.name('below')}`" in parts
    # Nothing was done: no topic was made for the new stream.
    assert not Admin(edits.connection).topics([edits.name("renamed")])


def test_beginning_again_does_not_give_readers_what_they_cannot_take(edits: Edits) -> None:
    edits.write("change the key")
    only = [edits.name("plain")]
    assert edits.verdicts(only=only) == {"plain": "refused"}
    assert edits.verdicts(only=only, fresh=only) == {"plain": "refused"}
    assert "its key is number, it was house" in edits.lines[0]


def test_verdicts_come_true(edits: Edits) -> None:
    edits.write(*SECOND)
    said = edits.run(fresh=["windowed"], keep_state=["below"])
    before, after = range(BEFORE), range(BEFORE, ALL)
    # Compatible: from the next record on.
    rows = {row["number"]: row for row in edits.rows("plain")}
    assert list(rows) == [n for n in before if n % 2 == 0] + [n for n in after if n % 3 == 0]
    assert {n: row["made"] for n, row in rows.items()} == {n: n * (2 if n < BEFORE else 3) for n in rows}
    assert {n: "at" in row for n, row in rows.items()} == {n: n >= BEFORE for n in rows}
    (told,) = [each for each in said if each.startswith(edits.name("plain"))]
    assert "the condition (number % 2) = 0 is (number % 3) = 0 now" in told
    assert "the Python function worked() has changed" in told
    assert "the column at is new" in told
    assert "number is long now, it was integer" in told
    # State kept: what the first records have added is in it.
    assert edits.newest("summed", "total") == {key: 10 * value for key, value in totals(range(ALL)).items()}
    assert windows(edits.rows("late"), 60) == windows_of(range(ALL), 60)
    # Insisted on: old and new code together.
    mixed = [n for n in before if n % 2 == 0] + [n for n in after if n % 3 == 0]
    assert edits.newest("below", "total") == totals(mixed)
    # Fresh: as if there had never been anything else.
    assert windows(edits.rows("windowed"), 300) == windows_of(range(ALL), 300)


def test_only_what_this_code_has_made_is_verified(edits: Edits) -> None:
    found = {stem: edits.verify(stem) for stem in ("plain", "summed")}
    assert {stem: each.state for stem, each in found.items()} == {"plain": "equal", "summed": "unproved"}
    assert found["plain"].records == ALL - BEFORE
    assert found["summed"].unproved.endswith("were made by version 1 of its code")
    edits.write("change the window")
    assert "its code has changed since it ran as version 2" in edits.verify("plain").unproved


def test_back_again_and_on(edits: Edits) -> None:
    edits.write()
    assert edits.verdicts() == {
        "plain": "compatible", "windowed": "fresh", "late": "kept", "below": "fresh", "summed": "kept"
    }  # fmt: skip
    windowed, below = edits.lines
    assert "it is version 1 again" in windowed
    assert "it is version 1 again" in below
    # A file without the edits of `plain`, and with more of the others.
    edits.write("swap the topic", "change what is below", "add an aggregate", "rename", "change the window")
    edits.send(range(ALL, ALL + 20))
    said = edits.run(fresh=["late", "summed"])
    now = range(ALL + 20)
    assert [n for n in (row["number"] for row in edits.rows("plain")) if n >= ALL] == list(range(ALL, ALL + 20, 2))
    assert [each for each in said if "is version 1 again" in each and each.startswith(edits.name("plain"))]
    assert edits.newest("summed", "total") == totals(now)
    assert sum(edits.newest("summed", "n").values()) == len(now)
    assert windows(edits.rows("late"), 60) == windows_of(now, 60)
    assert windows(edits.rows("renamed"), 300) == windows_of(now, 300)
    (told,) = [each for each in said if edits.name("renamed") in each]
    assert f"{edits.name('renamed')} does what {edits.name('windowed')} did" in told
    history = VersionHistory.read(edits.folder / edits.name("plain") / HISTORY_FILE)
    assert [version.number for version in history.versions] == [1, 2, 3]
    assert history.versions[0].digest == history.versions[2].digest != history.versions[1].digest


def test_the_same_file_is_the_same_in_another_process(
    spark: SparkSession, kafka: KafkaUnderTest, tmp_path: Path
) -> None:
    file = tmp_path / "app.py"
    file.write_text(KINDS)
    done = compile_app(build_checked_graph(load_app(file)), spark, KafkaRecordSource(spark, kafka.connection)).require()
    for name in done.streams:
        compute_fingerprint(done, name).write(tmp_path / ".riverrun" / "streams" / "kinds" / name / HISTORY_FILE)
    rows = Shell(tmp_path, kafka.bootstrap_servers).fine("plan", "app.py", "--json").json
    assert {row["stream"]: row["change"] for row in rows} == dict.fromkeys(done.streams, "unchanged")
    edited = KINDS.replace("self.most = 3", "self.most = 4").replace("price > 1", "price > 2")
    file.write_text(edited.replace('F.sum("load")', '(F.sum("load") * 2)'))
    done = compile_app(build_checked_graph(load_app(file)), spark, KafkaRecordSource(spark, kafka.connection)).require()
    kinds = {name: each.kind for name, each in find_changes(done, tmp_path / ".riverrun" / "streams" / "kinds").items()}
    # What is made of the sums is above the state of one stream, and below that of another that runs it inside its query.
    assert kinds == {
        "odd": "unchanged", "priced": "compatible", "met": "unchanged", "counted": "fresh", "hourly": "kept", "top": "fresh"
    }  # fmt: skip


def windows(rows: list[dict[str, Any]], seconds: int) -> dict[str, int]:
    """The last row of each window of a length, by its beginning."""
    found = {}
    for row in rows:
        start, end = (datetime.fromisoformat(row["span"][each]) for each in ("start", "end"))
        if (end - start).total_seconds() == seconds:
            found[start.isoformat()] = row["total"]
    return found


def windows_of(numbers: range, seconds: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for number in numbers:
        at = BEGIN + timedelta(seconds=10 * number)
        start = datetime.fromtimestamp(at.timestamp() // seconds * seconds, UTC).isoformat()
        found[start] = found.get(start, 0) + number
    return found
