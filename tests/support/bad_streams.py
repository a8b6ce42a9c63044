"""Mistakes in pipelines of streams, each made for real: what the user did, and what riverrun said.

They stand in docs/reference/errors.md below the others; `tests/integration/test_bad_streams.py` holds the two against each
other. A case that fails before anything starts is checked in the run's own Spark session, without a broker.
"""

import json
import secrets
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from riverrun.app import load_app
from riverrun.config import KafkaSettings, Project, Settings, StreamSettings
from riverrun.kafka.commit_markers import OutputTopic, claim_output
from riverrun.kafka.connection import Connection
from riverrun.kafka.exactly_once import abort_open_transactions
from riverrun.kafka.producer.producer import Producer
from riverrun.streams.compile.compiler import compile_app
from riverrun.streams.compile.sources import KafkaRecordSource
from riverrun.streams.pipeline import Pipeline, build_checked_graph
from riverrun.streams.run.planner import plan_streams
from riverrun.streams.run.sink import ExactlyOnceSink
from support.bad_inputs import Case, World, closed_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How long a pipeline may take to fail.
DEADLINE = 120.0

HEAD = """\
from datetime import datetime
import riverrun as rr
from pyspark.sql import functions as F

app = rr.App("meters")

class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float
    note: str = ""
    at: datetime = rr.event_time(late="2 minutes")

app.topic("readings", Reading)
"""


@dataclass
class StreamWorld(World):
    """A fresh project for one case, the Spark session of the run, and its cluster. `mark` is in no other case's topics."""

    session: "Callable[[], SparkSession]" = lambda: None  # type: ignore[assignment,return-value]
    cluster: Callable[[], str] = lambda: ""
    mark: str = field(default_factory=lambda: secrets.token_hex(4))
    notices: list[str] = field(default_factory=list)
    restarts: int = 0

    def file(self, streams: str, head: str = HEAD) -> Path:
        """A pipeline file with one topic of readings and these streams."""
        return self.write("app.py", f"{head}\n{streams.strip()}\n")

    def refused(self, streams: str, head: str = HEAD) -> str:
        """What `riverrun validate` says of a file with these streams."""
        return self.python(lambda: self._validate(self.file(streams, head)))

    def _validate(self, path: Path) -> None:
        graph = build_checked_graph(load_app(path))
        nowhere = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:9092"))
        done = compile_app(graph, self.session(), KafkaRecordSource(self.session(), nowhere)).require()
        plan_streams(done, Settings(), slots=8, speed=None, every=None)

    def fails(
        self, streams: str, readings: Iterable[object] = (), *, checkpoints: str = "", bootstrap: str = ""
    ) -> str:
        """What ends a pipeline with these streams, after it was given these readings."""
        return self.python(lambda: self.runs(streams, readings, checkpoints=checkpoints, bootstrap=bootstrap))

    def runs(
        self,
        streams: str,
        readings: Iterable[object] = (),
        *,
        checkpoints: str = "",
        bootstrap: str = "",
    ) -> None:
        """Run a pipeline with these streams until it has read all readings."""
        head = HEAD.replace('"meters"', f'"meters_{self.mark}"').replace('"readings"', f'"readings_{self.mark}"')
        app = load_app(self.file(streams.replace("readings", f"readings_{self.mark}"), head))
        settings = Settings(streams=StreamSettings(checkpoints=checkpoints))
        connection = Connection(KafkaSettings(bootstrap_servers=bootstrap or self.cluster()))
        pipeline = Pipeline(
            build_checked_graph(app),
            self.session(),
            settings,
            Project(self.root),
            connection,
            speed="near-real-time",
            notice=self.notices.append,
        )
        pipeline.prepare()
        with Producer(connection) as producer:
            for each in readings:
                producer.send(f"readings_{self.mark}", json.dumps(each).encode())
        stop = threading.Event()
        clock = threading.Timer(DEADLINE, stop.set)
        clock.start()
        try:
            pipeline.run(stop, until_caught_up=True)
        finally:
            clock.cancel()
            self.restarts = sum(stream.progress.restarts for stream in pipeline.streams)
        assert not stop.is_set(), f"neither over nor failed after {DEADLINE:g} s: {self.notices}"

    def plain(self, text: str) -> str:
        return super().plain(text.replace(f"_{self.mark}", ""))


@dataclass(frozen=True)
class StreamCase(Case):
    """One mistake in a pipeline of streams. `kafka` says whether it needs a cluster."""

    make: Callable[[StreamWorld], str]  # type: ignore[assignment]
    kafka: bool = False


CASES: list[StreamCase] = []
Make = Callable[[StreamWorld], str]


def case(title: str, *, kafka: bool = False) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        CASES.append(StreamCase(title, make, kafka))
        return make

    return register


# --- names -------------------------------------------------------------------------------------------------------------


@case("Misspell an input of a stream")
def unknown_input(world: StreamWorld) -> str:
    return world.refused("@app.stream()\ndef high(reading):\n    return reading.where('load_kw > 2')")


@case("Name inputs that are not there, in a function and in SQL: all are told at once")
def two_unknown_inputs(world: StreamWorld) -> str:
    return world.refused(
        "@app.stream()\ndef high(weather):\n    return weather\n\napp.sql('low', 'SELECT * FROM redings WHERE load_kw < 1')"
    )


@case("Let streams feed each other in a circle")
def circle(world: StreamWorld) -> str:
    return world.refused("""
@app.stream()
def a(readings, c):
    return readings.union(c)

@app.stream()
def b(a):
    return a

app.sql("c", "SELECT * FROM b")
""")


@case("Give a stream the name of a topic")
def name_taken(world: StreamWorld) -> str:
    return world.refused("@app.stream(topic='high')\ndef readings(readings):\n    return readings")


@case("Let two streams write the same topic")
def same_topic(world: StreamWorld) -> str:
    return world.refused("""
@app.stream(topic="alerts")
def high(readings):
    return readings

app.sql("low", "SELECT * FROM readings", topic="alerts")
""")


@case("Let a stream write the topic it reads")
def writes_its_input(world: StreamWorld) -> str:
    return world.refused("@app.stream(topic='readings')\ndef again(readings):\n    return readings")


@case("Let a stream in SQL write the topic it reads")
def sql_writes_its_input(world: StreamWorld) -> str:
    return world.refused('app.sql("again", "SELECT * FROM readings", topic="readings")')


@case("Declare a stream without parameters")
def no_parameters(world: StreamWorld) -> str:
    return world.refused("@app.stream()\ndef high():\n    return None")


@case("Declare a stream with `*frames`")
def star_parameters(world: StreamWorld) -> str:
    return world.refused("@app.stream()\ndef high(*frames):\n    return frames[0]")


@case("Read tables only, which do not move")
def only_tables(world: StreamWorld) -> str:
    world.write("houses.csv", "house_id,street\nh1,Elm\n")
    return world.refused("""
app.table("houses", rr.csv("houses.csv"), key="house_id")

@app.stream()
def copied(houses):
    return houses
""")


@case("Let streams feed each other in a circle through declared topics")
def circle_of_topics(world: StreamWorld) -> str:
    return world.refused("""
app.topic("again", Reading)
app.sql("a", "SELECT * FROM readings UNION ALL SELECT * FROM again", topic="copies")
app.topic("copies", Reading)
app.sql("b", "SELECT * FROM copies", topic="again")
""")


# --- options -----------------------------------------------------------------------------------------------------------


@case('Misspell a speed: `speed="realtime"`')
def bad_speed(world: StreamWorld) -> str:
    return world.refused("@app.stream(speed='realtime')\ndef high(readings):\n    return readings")


@case('Write an interval nobody understands: `every="often"`')
def bad_every(world: StreamWorld) -> str:
    return world.refused("@app.stream(every='often')\ndef high(readings):\n    return readings")


@case("Misspell an option of a stream: `emits=`")
def bad_option(world: StreamWorld) -> str:
    return world.refused("@app.stream(emits='final')\ndef high(readings):\n    return readings")


# --- columns -----------------------------------------------------------------------------------------------------------


@case("Use a column that is not there, in the middle of an expression")
def unknown_column(world: StreamWorld) -> str:
    return world.refused("""
@app.stream()
def high(readings):
    return (
        readings
        .where(F.col("load_kw") > 2)
        .select("house_id", F.round("laod_kw", 1).alias("load"))
    )
""")


@case("Use a column that is not there, as an attribute: `readings.laod_kw`")
def unknown_attribute(world: StreamWorld) -> str:
    return world.refused("@app.stream()\ndef high(readings):\n    return readings.where(readings.laod_kw > 2)")


@case("Use a column that is not there, in SQL")
def unknown_column_in_sql(world: StreamWorld) -> str:
    return world.refused("""
app.sql("high", '''
    SELECT house_id
    FROM readings
    WHERE laod_kw > 2
''')
""")


@case("Use a function that is not there, in SQL")
def unknown_function_in_sql(world: StreamWorld) -> str:
    return world.refused('app.sql("high", "SELECT house_id, rond(load_kw) AS load FROM readings")')


@case("Compare what cannot be compared")
def wrong_types(world: StreamWorld) -> str:
    return world.refused("@app.stream()\ndef late(readings):\n    return readings.where('at > true')")


@case("Write SQL that does not parse")
def broken_sql(world: StreamWorld) -> str:
    return world.refused('app.sql("high", "SELECT house_id FROM readings WHERE (load_kw > 2")')


@case("Write two statements in one `app.sql`")
def two_statements(world: StreamWorld) -> str:
    return world.refused('app.sql("high", "SELECT * FROM readings; SELECT 1")')


@case("Write an INSERT in `app.sql`")
def insert_statement(world: StreamWorld) -> str:
    return world.refused('app.sql("high", "INSERT INTO alerts SELECT * FROM readings")')


@case("Forget the `return` of a stream")
def returns_nothing(world: StreamWorld) -> str:
    return world.refused("@app.stream()\ndef high(readings):\n    readings.where('load_kw > 2')")


@case("Return rows that are no stream")
def returns_a_table(world: StreamWorld) -> str:
    world.write("houses.csv", "house_id,street\nh1,Elm\n")
    return world.refused("""
app.table("houses", rr.csv("houses.csv"), key="house_id")

@app.stream()
def high(readings, houses):
    return houses
""")


@case("Let the function of a stream raise")
def function_raises(world: StreamWorld) -> str:
    return world.refused("""
@app.stream()
def high(readings):
    limits = {"h1": 2}
    return readings.where(F.col("load_kw") > limits["h2"])
""")


@case("Give two columns the same name")
def same_column_twice(world: StreamWorld) -> str:
    return world.refused(
        "@app.stream()\ndef high(readings):\n    return readings.select('house_id', F.upper('note').alias('House_Id'))"
    )


@case("Give a column a type that no record can carry: an interval")
def interval_column(world: StreamWorld) -> str:
    return world.refused('app.sql("age", "SELECT house_id, current_timestamp() - at AS age FROM readings")')


@case("Give a column a type that no record can carry: NULL and nothing else")
def void_column(world: StreamWorld) -> str:
    return world.refused('app.sql("noted", "SELECT house_id, NULL AS reason FROM readings")')


@case("Give a column a type that no record can carry: a map with numbers for keys, inside a struct")
def odd_map_column(world: StreamWorld) -> str:
    return world.refused('app.sql("mapped", "SELECT house_id, struct(map(1, note) AS notes) AS both FROM readings")')


@case("Give an event a field of a type that streams cannot carry: `int | str`")
def odd_field(world: StreamWorld) -> str:
    head = HEAD.replace('note: str = ""', 'note: int | str = ""')
    return world.refused("@app.stream()\ndef high(readings):\n    return readings.where('load_kw > 2')", head)


# --- keys --------------------------------------------------------------------------------------------------------------


@case("Drop the column that an aggregate groups by, so that its rows have no key")
def missing_key(world: StreamWorld) -> str:
    return world.refused("""
@app.stream()
def totals(readings):
    return readings.groupBy("house_id").agg(F.sum("load_kw").alias("load")).select("load")
""")


@case('Name a key that is no column: `key="house"`')
def unknown_key(world: StreamWorld) -> str:
    return world.refused("@app.stream(key='house')\ndef high(readings):\n    return readings")


@case("Make a key that is another one each time: `uuid()`")
def random_key(world: StreamWorld) -> str:
    return world.refused(
        "@app.stream(key='id')\ndef high(readings):\n    return readings.withColumn('id', F.expr('uuid()'))"
    )


# --- time --------------------------------------------------------------------------------------------------------------


@case("Use a time window over an event that has no event time")
def missing_time(world: StreamWorld) -> str:
    head = HEAD.replace(' = rr.event_time(late="2 minutes")', "")
    return world.refused(
        "@app.stream()\ndef load(readings):\n    return readings.groupBy(F.window('at', '1 minute')).count()", head
    )


@case('Name a time of another type: `time="note"`')
def wrong_time(world: StreamWorld) -> str:
    return world.refused("@app.stream(time='note')\ndef high(readings):\n    return readings")


@case('Name a time that is no column: `time="att"`')
def unknown_time(world: StreamWorld) -> str:
    return world.refused("@app.stream(time='att')\ndef high(readings):\n    return readings")


@case('Ask for final rows, `emit="final"`, of an aggregate that never ends')
def never_final(world: StreamWorld) -> str:
    return world.refused(
        "@app.stream(emit='final')\ndef totals(readings):\n    return readings.groupBy('house_id').count()"
    )


@case("Sort a stream")
def sorted_stream(world: StreamWorld) -> str:
    return world.refused("@app.stream()\ndef ordered(readings):\n    return readings.orderBy('at')")


@case("Keep the event times of both sides of a join, and group by both")
def two_event_times(world: StreamWorld) -> str:
    return world.refused(
        "class Repair(rr.Event):\n    house: str = rr.key()\n    done: datetime = rr.event_time()\n"
        'app.topic("repairs", Repair)\n'
        "@app.stream()\ndef repaired(readings, repairs):\n"
        "    near = F.expr('house_id = house and done between at and at + interval 1 hour')\n"
        "    return readings.join(repairs, near).groupBy(F.window('at', '1 hour').alias('hour'), 'done').count()"
    )


@case("Take the first rows of a stream: `LIMIT` after an aggregate")
def limited_stream(world: StreamWorld) -> str:
    return world.refused(
        'app.sql("top", "SELECT house_id, sum(load_kw) AS load FROM readings GROUP BY house_id ORDER BY load DESC LIMIT 3")'
    )


@case("Collect a stream: `readings.count()` inside its function")
def collected_stream(world: StreamWorld) -> str:
    return world.refused("@app.stream()\ndef high(readings):\n    print(readings.count())\n    return readings")


@case("Rank rows of a stream by a window function")
def window_function(world: StreamWorld) -> str:
    return world.refused(
        'app.sql("ranked", "SELECT house_id, row_number() OVER (PARTITION BY house_id ORDER BY at) AS n FROM readings")'
    )


# --- output topics with a type -----------------------------------------------------------------------------------------

ALERT = """
class Alert(rr.Event):
    house_id: str = rr.key()
    load: int

alerts = app.topic("alerts", Alert)

@app.stream(topic=alerts)
def high(readings):
    return readings.select({columns})
"""


@case("Write a column to a topic whose type has another type for it")
def clash_of_types(world: StreamWorld) -> str:
    return world.refused(ALERT.format(columns="'house_id', F.col('load_kw').alias('load')"))


@case("Leave out a column that the type of the output topic needs")
def column_missing(world: StreamWorld) -> str:
    return world.refused(ALERT.format(columns="'house_id'"))


@case("Write a column that the type of the output topic does not have")
def column_too_many(world: StreamWorld) -> str:
    return world.refused(ALERT.format(columns="'house_id', F.col('load_kw').cast('long').alias('load'), 'note'"))


# --- tables ------------------------------------------------------------------------------------------------------------

LOOKED_UP = """
app.table("houses", rr.csv({source}), key="{key}")

@app.stream()
def looked_up(readings, houses):
    return readings.join(houses, "house_id")
"""


@case("Make a table of a file that is not there")
def table_missing(world: StreamWorld) -> str:
    return world.refused(LOOKED_UP.format(source='"house.csv"', key="house_id"))


@case("Name a key that the table does not have")
def table_key(world: StreamWorld) -> str:
    world.write("houses.csv", "house_id,street\nh1,Elm\n")
    return world.refused(LOOKED_UP.format(source='"houses.csv"', key="house"))


@case("Give the columns of a table in words that Spark does not know")
def table_columns(world: StreamWorld) -> str:
    world.write("houses.csv", "house_id,street\nh1,Elm\n")
    return world.refused(LOOKED_UP.format(source='"houses.csv", "house_id text, street text"', key="house_id"))


@case("Have a row in a CSV file that is not what its columns say")
def table_row(world: StreamWorld) -> str:
    world.write("houses.csv", "house_id,floors\nh1,2\nh2,two\n")
    return world.refused(LOOKED_UP.format(source='"houses.csv", "house_id string, floors int"', key="house_id"))


@case("Make a table of an empty CSV file")
def table_empty(world: StreamWorld) -> str:
    world.write("houses.csv", "")
    return world.refused(LOOKED_UP.format(source='"houses.csv"', key="house_id"))


# --- the command line --------------------------------------------------------------------------------------------------


@case("Run a pipeline file that has no streams: `riverrun validate app.py`")
def no_streams(world: StreamWorld) -> str:
    world.file("")
    return world.riverrun("validate", "app.py")


@case("Run a pipeline file that declares nothing: `riverrun validate app.py`")
def nothing_declared(world: StreamWorld) -> str:
    world.write("app.py", 'import riverrun\n\napp = riverrun.App("meters")\n')
    return world.riverrun("validate", "app.py")


@case("Run an empty pipeline file: `riverrun run app.py`")
def empty_file(world: StreamWorld) -> str:
    world.write("app.py", "")
    return world.riverrun("run", "app.py")


@case("Make no `riverrun.App` in the pipeline file: `riverrun graph app.py`")
def no_app(world: StreamWorld) -> str:
    world.write("app.py", "import riverrun\n")
    return world.riverrun("graph", "app.py")


@case("Make two `riverrun.App` in one pipeline file: `riverrun graph app.py`")
def two_apps(world: StreamWorld) -> str:
    world.write("app.py", 'import riverrun\n\none = riverrun.App("one")\ntwo = riverrun.App("two")\n')
    return world.riverrun("graph", "app.py")


@case("Name no pipeline file, and have none in riverrun.toml: `riverrun run`")
def no_file(world: StreamWorld) -> str:
    return world.riverrun("run")


def without_pyspark(world: StreamWorld) -> None:
    """Hide the package from the program, as if it were not there."""
    finder = """
        import sys
        from importlib.machinery import PathFinder

        class Without(PathFinder):
            @classmethod
            def find_spec(cls, name, path=None, target=None):
                found = PathFinder.find_spec(name, path, target)
                return None if name.partition(".")[0] == "pyspark" else found

        sys.meta_path[sys.meta_path.index(PathFinder)] = Without
        """
    world.write("sitecustomize.py", finder)
    world.environ["PYTHONPATH"] = str(world.root)


@case("Use streams without PySpark: `riverrun validate app.py`")
def no_pyspark(world: StreamWorld) -> str:
    without_pyspark(world)
    world.file(
        'app.sql("high", "SELECT * FROM readings")', HEAD.replace("from pyspark.sql import functions as F\n", "")
    )
    return world.riverrun("validate", "app.py")


@case("Use streams without PySpark, in a file that imports it: `riverrun graph app.py`")
def no_pyspark_in_file(world: StreamWorld) -> str:
    without_pyspark(world)
    world.file('app.sql("high", "SELECT * FROM readings")')
    return world.riverrun("graph", "app.py")


# --- while it runs -----------------------------------------------------------------------------------------------------


def reading(number: int, **changes: object) -> dict[str, object]:
    minute, second = divmod(number % 3600, 60)
    at = f"2026-01-01T00:{minute:02}:{second:02}Z"
    return {"house_id": f"h{number % 10}", "load_kw": 1.5, "note": "1", "at": at} | changes


def readings(count: int, odd: int = -1, **changes: object) -> list[dict[str, object]]:
    return [reading(each, **(changes if each == odd else {})) for each in range(count)]


@case("Have a Python function that raises on one record in a thousand", kafka=True)
def udf_raises(world: StreamWorld) -> str:
    said = world.fails(
        """
@F.udf("double")
def per_person(load, people):
    return load / int(people)

@app.stream()
def shares(readings):
    return readings.select("house_id", per_person("load_kw", "note").alias("share"))
""",
        readings(1000, 700, note="0"),
    )
    assert world.restarts == 0
    return said


@case("Have a pandas function that raises an exception of the file's own", kafka=True)
def pandas_raises(world: StreamWorld) -> str:
    said = world.fails(
        """
import pandas as pd

class NoNumber(Exception):
    pass

def number(text):
    if not text.isdigit():
        raise NoNumber(text)
    return float(text)

@F.pandas_udf("double")
def people(note: pd.Series) -> pd.Series:
    return note.map(number)

@app.stream()
def counted(readings):
    return readings.select("house_id", people("note").alias("people"))
""",
        readings(1000, 700, note="many"),
    )
    assert world.restarts == 0
    return said


@case("Divide by zero in SQL", kafka=True)
def divide_by_zero(world: StreamWorld) -> str:
    said = world.fails(
        'app.sql("shares", "SELECT house_id, 1 / load_kw AS share FROM readings")', readings(10, 7, load_kw=0)
    )
    assert world.restarts == 0
    return said


@case("Cast a text that is no number", kafka=True)
def bad_cast(world: StreamWorld) -> str:
    said = world.fails(
        "@app.stream()\ndef people(readings):\n    return readings.select('house_id', F.col('note').cast('int').alias('n'))",
        readings(10, 7, note="many"),
    )
    assert world.restarts == 0
    return said


HIGH = "@app.stream()\ndef high(readings):\n    return readings.where('load_kw > 1')"
TOTALS = """
@app.stream()
def totals(readings):
    return readings.groupBy("house_id", "note").agg(F.sum("load_kw").alias("load"))
"""


@case("Delete the checkpoint of a stream", kafka=True)
def checkpoint_deleted(world: StreamWorld) -> str:
    world.runs(HIGH, readings(10))
    shutil.rmtree(world.root / ".riverrun/streams" / f"meters_{world.mark}" / "checkpoints/high")
    return world.fails(HIGH)


@case("Damage the checkpoint of a stream", kafka=True)
def checkpoint_damaged(world: StreamWorld) -> str:
    world.runs(HIGH, readings(10))
    offsets = world.root / ".riverrun/streams" / f"meters_{world.mark}" / "checkpoints/high/offsets"
    for each in offsets.iterdir():
        each.write_bytes(b"garbage\n")
    return world.fails(HIGH, readings(10))


@case("Take a batch that was written out of the checkpoint of a stream", kafka=True)
def batch_planned_anew(world: StreamWorld) -> str:
    world.runs(HIGH, readings(10))
    checkpoint = world.root / ".riverrun/streams" / f"meters_{world.mark}" / "checkpoints/high"
    for log in ("offsets", "commits"):
        shutil.rmtree(checkpoint / log)
    return world.fails(HIGH, readings(10))


@case("Run a stream a second time with the same checkpoint, elsewhere", kafka=True)
def two_runs(world: StreamWorld) -> str:
    begin = ExactlyOnceSink._claim_output

    def replaced(sink: ExactlyOnceSink, target: OutputTopic, parts: int) -> OutputTopic:
        found = begin(sink, target, parts)
        # What the other run does when it begins.
        other = replace(target, claim_offset=claim_output(target))
        abort_open_transactions(other, range(parts))
        return found

    with mock.patch.object(ExactlyOnceSink, "_claim_output", replaced):
        return world.fails(HIGH, readings(10))


@case("Change what a stream keeps in its state", kafka=True)
def state_changed(world: StreamWorld) -> str:
    world.runs(TOTALS, readings(10))
    return world.fails(TOTALS.replace("F.sum", "F.max"))


@case("Take a column out of the rows that a stream has written", kafka=True)
def column_removed(world: StreamWorld) -> str:
    world.runs(HIGH, readings(10))
    return world.fails(HIGH.replace("1')", "1').drop('note')"))


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@case("Have no space on the disk for state and checkpoints", kafka=True)
def no_space(world: StreamWorld) -> str:
    notes = [reading(each, note=secrets.token_hex(500)) for each in range(3000)]
    with small_disk(world.root / "small", "256k"):
        return world.fails(TOTALS, notes, checkpoints=str(world.root / "small"))


@case("Run where no broker is: `riverrun run app.py --bootstrap-servers …`")
def no_broker(world: StreamWorld) -> str:
    return world.fails(HIGH, bootstrap=f"127.0.0.1:{closed_port()}")
