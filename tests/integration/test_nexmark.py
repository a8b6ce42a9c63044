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
from riverrun.model.pipeline import Speed
from riverrun.model.state import Place
from riverrun.streams.graph import graph_of
from riverrun.streams.pipeline import Pipeline
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.producing import stream as records_of

pytestmark = pytest.mark.kafka

EXAMPLE = Path(__file__).parents[2] / "examples/nexmark"
EVENTS, SEED = 20_000, 7
# Names of topics and streams, which get a mark so that they are nobody else's on this cluster.
NAMES = ("persons", "auctions", "bids", "in_euros", "local_items", "bid_counts", "hot_items", "highest_bids")
Row = tuple[object, ...]


@dataclass(frozen=True)
class Query:
    """A pipeline file, the stream that answers its question, the columns to compare and the same in DuckDB's SQL.

    `keyed`: of the rows of one key the newest counts; otherwise all count. Times are milliseconds since 1970.
    """

    file: str
    stream: str
    columns: tuple[str, ...]
    sql: str
    keyed: bool = True


QUERIES = [
    Query(
        "q1_currency.py",
        "in_euros",
        ("auction", "bidder", "euro_cents", "at"),
        "select auction, bidder, (price * 908) / 1000.0, ms from bids",
        keyed=False,
    ),
    Query(
        "q3_local_items.py",
        "local_items",
        ("auction", "name", "city", "state", "at"),
        """select auction, name, city, state, auctions.ms from persons, auctions
           where person = seller and category = 10 and state in ('OR', 'ID', 'CA')
           and auctions.ms between persons.ms and persons.ms + 300000""",
    ),
    Query(
        "q5_hot_items.py",
        "hot_items",
        ("period.start", "auction", "number"),
        """with periods as (select distinct (ms // 60000 - back) * 60000 as start from bids, range(2) t(back)),
           counts as (select start, auction, count(*) as number from periods, bids
                      where ms >= start and ms < start + 120000 group by all)
           select start, auction, number from counts
           qualify row_number() over (partition by start order by number desc, auction) = 1""",
    ),
    Query(
        "q7_highest_bids.py",
        "highest_bids",
        ("minute.start", "top"),
        """with ranked as (select ms // 60000 * 60000 as minute, price, auction, bidder,
                           row_number() over (partition by minute order by price desc, auction desc, bidder desc) as place
                           from bids)
           select minute, list((price, auction, bidder) order by place) from ranked where place <= 3 group by minute""",
    ),
]


@dataclass
class Market:
    """Copies of the pipeline files, with names of their own; the events, sent; a DuckDB that has them too."""

    folder: Path
    mark: str
    database: duckdb.DuckDBPyConnection
    closing: int

    def expected(self, query: Query) -> list[Row]:
        return sorted(tuple(map(_plain, row)) for row in self.database.execute(query.sql).fetchall())


@pytest.fixture(scope="module")
def market(kafka: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    folder, mark = tmp_path_factory.mktemp("nexmark"), secrets.token_hex(3)
    for file in EXAMPLE.glob("*.py"):
        marked = re.sub(rf"\b({'|'.join(NAMES)})\b", rf"\1_{mark}", file.read_text(encoding="utf-8"))
        (folder / file.name).write_text(marked, encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        generate = import_module("generate")
    finally:
        sys.path.remove(str(folder))
    assert generate.send(EVENTS, SEED, kafka.connection) == EVENTS + 3
    closing = _milliseconds(generate.CLOSING)
    database = duckdb.connect()
    database.execute("create table persons (person bigint, name text, city text, state text, ms bigint)")
    database.execute("create table auctions (auction bigint, item text, seller bigint, category bigint, ms bigint)")
    database.execute("create table bids (auction bigint, bidder bigint, price bigint, ms bigint)")
    _fill(database, folder, [each for each in generate.events(EVENTS, SEED) if each.at != generate.CLOSING])
    yield Market(folder, mark, database, closing)
    database.close()
    for name in ("generate", "market"):
        del sys.modules[name]


def _fill(database: duckdb.DuckDBPyConnection, folder: Path, events: list[Any]) -> None:
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


def _rows(kafka: KafkaUnderTest, topic: str, query: Query, after: dict[Place, int], closing: int) -> list[Row]:
    """What a stream has sent after some offsets, without what it says of the closing event."""
    rows: dict[object, Row] = {}
    for record in records_of(kafka, topic):
        place, offset = Place(topic, record.partition() or 0), record.offset() or 0
        if offset < after.get(place, 0):
            continue
        values = json.loads(record.value() or b"")
        row = tuple(_column(values, name) for name in query.columns)
        key = record.key() if query.keyed else (place, offset)
        rows[key] = row
    # Its windows begin up to two minutes before it; no other number is as large as a time.
    return sorted(
        row for row in rows.values() if not any(isinstance(each, int) and each > closing - 120_000 for each in row)
    )


def _run(file: Path, spark: SparkSession, kafka: KafkaUnderTest, home: Path, speed: Speed) -> None:
    """As `riverrun run FILE --until-caught-up` does it, in the session of the tests."""
    pipeline = Pipeline(graph_of(load_app(file)), spark, Settings(), Project(home), kafka.connection, speed=speed)
    pipeline.prepare()
    pipeline.run(threading.Event(), until_caught_up=True)


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.file)
def test_a_query_gives_what_duckdb_gives(
    query: Query, market: Market, spark: SparkSession, kafka: KafkaUnderTest, tmp_path: Path
) -> None:
    expected = market.expected(query)
    assert len(expected) > 10
    topic = f"{query.stream}_{market.mark}"
    after: dict[Place, int] = {}
    for speed in ("near-real-time", "batch"):
        _run(market.folder / query.file, spark, kafka, tmp_path, speed)
        rows = _rows(kafka, topic, query, after, market.closing)
        assert rows == expected, f"{speed}: {len(rows)} rows, expected {len(expected)}"
        after = Admin(kafka.connection).offsets([Place(topic, part) for part in range(4)], "latest")
