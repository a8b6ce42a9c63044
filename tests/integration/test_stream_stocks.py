"""The stocks pipeline at three speeds over the same feed, with everything wrong with it that a feed can have: same figures.

`RIVERRUN_TEST_EVENTS=1000000 script/test tests/integration/test_stream_stocks.py` does it over a million.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import riverrun as rr
from riverrun.app import load_app
from riverrun.config import KafkaSettings
from riverrun.demo.comparison import differences, rows_of
from riverrun.kafka.connection import Connection
from riverrun.model.pipeline import Speed
from riverrun.testing.pytest_plugin import local_kafka
from support.stocks import STOCKS
from support.streaming import run_streams
from support.usecases import Modules, modules_of

EVENTS = int(os.environ.get("RIVERRUN_TEST_EVENTS", "20000"))
BEGIN = datetime(2026, 11, 16, 9, 0, tzinfo=UTC)
LIVE = ("candles", "candles_5m", "movers", "halts", "blocks")
# What reads a million of them takes its time on a small machine.
SECONDS = 170 + EVENTS / 500

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(4 * SECONDS + 900)]


@dataclass
class Market:
    """A cluster with the feed in it, but for what comes too late; and what it comes to by plain Python."""

    connection: Connection
    root: Path
    modules: Modules
    sent: list[Any]
    too_late: list[Any]

    @property
    def file(self) -> Path:
        return self.root / "app.py"

    def send(self, several: list[Any]) -> None:
        with rr.Producer(self.connection) as producer:
            for topic in ("trades", "correction_log"):
                producer.send_all(topic, (each.value for each in several if each.topic == topic))

    def rows(self, stream: str) -> Mapping[Any, Any]:
        found: Mapping[Any, Any] = self.modules.figures.keyed(stream, rows_of(stream, self.connection))
        return found

    def wrong(self, expected: Mapping[str, Any], *streams: str) -> list[str]:
        return [
            f"{stream}: {difference}"
            for stream in streams
            for difference in differences(expected[stream], self.rows(stream))
        ]


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    with local_kafka(tmp_path_factory.mktemp("kafka"), KafkaSettings()) as running, modules_of("stocks") as modules:
        connection = Connection(KafkaSettings(bootstrap_servers=running.bootstrap_servers))
        root = tmp_path_factory.mktemp("project")
        for name in ("app.py", "listings.csv"):
            shutil.copy(STOCKS / name, root / name)
        load_app(root / "app.py").apply(connection)
        # A quarter of an hour, however many trades it has, with much news: a backlog is read in uneven bites, and over hours
        # trades would be late by that alone.
        modules.exchange.NEWS = 1 / 2000
        often = modules.source.Faults(late=0.005, too_late=0.001, twice=0.005, broken=0.002, corrected=0.002)
        feed = list(islice(modules.source.events(seed=4, start=BEGIN, rate=EVENTS / 900, faults=often), EVENTS))
        late = [each for each in feed if each.odd == "too_late"]
        found = Market(connection, root, modules, [each for each in feed if each.odd != "too_late"], late)
        found.send(found.sent)
        yield found


# In real time streams hold slots for good, in the order of the file: the first two have room. Near real time is last: the
# next test goes on from there, with a watermark that real time has only when one of its long batches is over.
@pytest.mark.parametrize(
    ("speed", "names"), [("real-time", ("candles", "candles_5m")), ("batch", LIVE), ("near-real-time", LIVE)]
)
def test_every_speed_comes_to_the_same_figures(
    market: Market, spark: SparkSession, speed: Speed, names: tuple[str, ...]
) -> None:
    streams = run_streams(
        spark, market.file, market.connection, market.root, speed=speed, only=names, fresh=names, seconds=SECONDS
    )
    expected = market.modules.figures.figures(market.sent)
    assert all(expected[name] for name in names)
    assert market.wrong(expected, *names) == []
    broken = sum(each.odd == "broken" for each in market.sent)
    trades = sum(each.topic == "trades" for each in market.sent)
    for stream in streams.values():
        assert (stream.record_counts.read, stream.record_counts.dead_letters, stream.record_counts.late) == (
            trades,
            broken,
            0,
        ), stream
        assert (stream.speed, stream.lag) == (speed, 0)
    assert "blocks" not in streams or streams["blocks"].record_counts.balanced


def test_what_comes_too_late_is_counted_and_left_to_the_books(market: Market, spark: SparkSession) -> None:
    """At a moving speed it changes nothing that was told; the official days have it, and every correction."""
    market.send(market.too_late)
    streams = run_streams(
        spark, market.file, market.connection, market.root, speed="near-real-time", only=LIVE[:1], seconds=SECONDS
    )
    assert streams["candles"].record_counts.late == len(market.too_late) > 0
    expected = market.modules.figures.figures(market.sent)
    assert market.wrong(expected, "candles") == []
    run_streams(spark, market.file, market.connection, market.root, speed="batch", only=["official"], seconds=SECONDS)
    everything = market.modules.figures.figures([*market.sent, *market.too_late])
    assert market.wrong(everything, "official") == []
    assert everything["official"] != everything["movers"]
