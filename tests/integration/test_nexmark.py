"""The Nexmark queries of examples/nexmark, near real time and as a batch, against DuckDB over the same events."""

import json
import re
import secrets
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from riverrun.app import load_app
from riverrun.config import Project, Settings
from riverrun.kafka.admin.admin import Admin
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.pipeline import Speed
from riverrun.streams.compile.graph import build_graph
from riverrun.streams.pipeline import Pipeline
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.producing import stream as records_of

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples/nexmark"
EVENTS, SEED = 20_000, 7
# Names of topics and streams, which get a mark so that they are nobody else's on this cluster.
NAMES = ("persons", "auctions", "bids", "in_euros", "local_items", "bid_counts", "hot_items", "highest_bids")
Row = tuple[object, ...]


@dataclass(frozen=True)
class Answer:
    """A stream of a pipeline file, the columns to compare and the same in DuckDB's SQL.

    `keyed`: of the rows of one key the newest counts; otherwise all count. Times are milliseconds since 1970.
    """

    stream: str
    columns: tuple[str, ...]
    sql: str
    keyed: bool = True


_COUNTS = """
    with periods as (select distinct (ms // 60000 - back) * 60000 as start from bids, range(2) t(back))
    select start, auction, count(*) as number from periods, bids
    where ms >= start and ms < start + 120000 group by start, auction
"""
ANSWERS = {
    "q1_currency.py": [
        Answer(
            "in_euros",
            ("auction", "bidder", "euro_cents", "at"),
            "select auction, bidder, (price * 908) / 1000.0, ms from bids",
            keyed=False,
        )
    ],
    "q3_local_items.py": [
        Answer(
            "local_items",
            ("auction", "name", "city", "state", "at"),
            """select auction, name, city, state, auctions.ms from persons, auctions
               where person = seller and category = 10 and state in ('OR', 'ID', 'CA')
               and auctions.ms between persons.ms and persons.ms + 300000""",
        )
    ],
    "q5_hot_items.py": [
        Answer("bid_counts", ("period.start", "auction", "number"), _COUNTS),
        Answer(
            "hot_items",
            ("period.start", "auction", "number"),
            f"{_COUNTS} qualify row_number() over (partition by start order by number desc, auction) = 1",
        ),
    ],
    "q7_highest_bids.py": [
        Answer(
            "highest_bids",
            ("minute.start", "top"),
            """with ranked as (select ms // 60000 * 60000 as minute, price, auction, bidder,
               row_number() over (partition by minute order by price desc, auction desc, bidder desc) as place from bids)
               select minute, list((price, auction, bidder) order by place) from ranked where place <= 3 group by minute""",
        )
    ],
}


UPDATING = "q5_hot_items.py"


@dataclass
class Market:
    """Copies of the pipeline files, with names of their own; the events; a DuckDB that has them; what a stream sent."""

    folder: Path
    mark: str
    kafka: KafkaUnderTest
    database: duckdb.DuckDBPyConnection
    generate: Any
    events: list[Any]

    def send(self, events: list[Any]) -> None:
        assert self.generate.send(events, self.kafka.connection) == len(events)

    def run(self, file: str, spark: SparkSession, speed: Speed) -> None:
        """As `riverrun run FILE --until-caught-up` does it, in the session of the tests."""
        graph = build_graph(load_app(self.folder / file))
        pipeline = Pipeline(graph, spark, Settings(), Project(self.folder), self.kafka.connection, speed=speed)
        pipeline.prepare()
        pipeline.run(threading.Event(), until_caught_up=True)

    def expected(self, answer: Answer) -> list[Row]:
        return sorted(tuple(map(_plain, row)) for row in self.database.execute(answer.sql).fetchall())

    def ends(self, answer: Answer) -> dict[TopicPartition, int]:
        topic = f"{answer.stream}_{self.mark}"
        return Admin(self.kafka.connection).offsets([TopicPartition(topic, part) for part in range(4)], "latest")

    def rows(self, answer: Answer, after: dict[TopicPartition, int]) -> list[Row]:
        """What a stream has sent after some offsets, without what it says of the closing event."""
        topic = f"{answer.stream}_{self.mark}"
        rows: dict[object, Row] = {}
        for record in records_of(self.kafka, topic):
            place, offset = TopicPartition(topic, record.partition() or 0), record.offset() or 0
            if offset >= after.get(place, 0):
                values = json.loads(record.value() or b"")
                key = record.key() if answer.keyed else (place, offset)
                rows[key] = tuple(_column(values, name) for name in answer.columns)
        # Its windows begin up to two minutes before it; no other number is as large as a time.
        end = _milliseconds(self.generate.CLOSING) - 120_000
        return sorted(row for row in rows.values() if not any(isinstance(each, int) and each > end for each in row))


@pytest.fixture
def market(kafka: KafkaUnderTest, tmp_path: Path) -> Iterator[Market]:
    mark = secrets.token_hex(3)
    for file in EXAMPLE.glob("*.py"):
        marked = re.sub(rf"\b({'|'.join(NAMES)})\b", rf"\1_{mark}", file.read_text(encoding="utf-8"))
        (tmp_path / file.name).write_text(marked, encoding="utf-8")
    sys.path.insert(0, str(tmp_path))
    try:
        generate = import_module("generate")
    finally:
        sys.path.remove(str(tmp_path))
    events = list(generate.events(EVENTS, SEED))
    with duckdb.connect() as database:
        _fill(database, tmp_path, [event for event in events if event.at != generate.CLOSING])
        yield Market(tmp_path, mark, kafka, database, generate, events)
    for name in ("generate", "market"):
        del sys.modules[name]


def _fill(database: duckdb.DuckDBPyConnection, folder: Path, events: list[Any]) -> None:
    database.execute("create table persons (person bigint, name text, city text, state text, ms bigint)")
    database.execute("create table auctions (auction bigint, item text, seller bigint, category bigint, ms bigint)")
    database.execute("create table bids (auction bigint, bidder bigint, price bigint, ms bigint)")
    for table, kind in (("persons", "Person"), ("auctions", "Auction"), ("bids", "Bid")):
        columns = [row[0] for row in database.execute(f"describe {table}").fetchall()]
        file = folder / f"{table}.csv"
        rows = [
            ",".join(str(_plain(getattr(event, "at" if column == "ms" else column))) for column in columns)
            for event in events
            if type(event).__name__ == kind
        ]
        file.write_text("\n".join(rows), encoding="utf-8")
        database.execute(f"copy {table} from '{file}' (header false)")


def _milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _plain(value: object) -> object:
    """Values of Python, of JSON and of DuckDB as the same: times as milliseconds, structs and lists as tuples."""
    if isinstance(value, datetime):
        return _milliseconds(value)
    if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\dT", value):
        return _milliseconds(datetime.fromisoformat(value))
    if isinstance(value, dict):
        return tuple(map(_plain, value.values()))
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return value


def _column(row: dict[str, Any], name: str) -> object:
    outer, _, inner = name.partition(".")
    return _plain(row[outer][inner] if inner else row[outer])


@pytest.mark.slow
@pytest.mark.parametrize("file", ANSWERS)
def test_a_query_gives_what_duckdb_gives(file: str, market: Market, spark: SparkSession) -> None:
    # A stream that sends updates goes on from its checkpoint: windows that were open are sent again with more in them.
    whole, half = market.events, EVENTS // 2
    for part in [whole[:half], whole[half:]] if file == UPDATING else [whole]:
        market.send(part)
        market.run(file, spark, "near-real-time")
    after = {}
    for answer in ANSWERS[file]:
        expected = market.expected(answer)
        assert len(expected) > 10
        assert market.rows(answer, {}) == expected, f"{answer.stream}, near real time"
        after[answer] = market.ends(answer)
    market.run(file, spark, "batch")
    for answer in ANSWERS[file]:
        assert market.rows(answer, after[answer]) == market.expected(answer), f"{answer.stream}, as a batch"
