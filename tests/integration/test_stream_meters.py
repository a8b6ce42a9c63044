"""The meters pipeline at three speeds over the same events, with poison among them: same figures, all accounted for.

`RIVERRUN_TEST_EVENTS=1000000 script/test tests/integration/test_stream_meters.py` does it over a million.
"""

import json
import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

import riverrun as rr
from riverrun.app import load_app
from riverrun.config import KafkaSettings
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.dead_letters.fix import FixFunction
from riverrun.kafka.dead_letters.redrive import Redrive
from riverrun.model.pipeline import Speed
from riverrun.model.progress import StreamProgress
from riverrun.testing.pytest_plugin import local_kafka
from support.kafka_tools import described_group
from support.streaming import newest, run_streams

EXAMPLE = Path(__file__).parents[2] / "examples/meters/app.py"
EVENTS = int(os.environ.get("RIVERRUN_TEST_EVENTS", "40000"))
HOUSES = 500
BEGIN = datetime(2026, 3, 1, 18, tzinfo=UTC)
# Closes all windows before it; its own stays open at the moving speeds.
CLOSING = {"house_id": "closing", "load_kw": 0.0, "at": "2026-03-09T00:00:00Z"}
GAP = timedelta(seconds=90)

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

# kind → the bytes of a good reading made bad, and what the reason says.
POISON: dict[str, tuple[Callable[[dict[str, Any]], bytes | None], str]] = {
    "not JSON": (lambda _: b"load=1.5", "malformed"),
    "cut off": (lambda good: json.dumps(good).encode()[:-4], "truncated"),
    "empty": (lambda _: b"", "truncated"),
    "no value": (lambda _: None, "no value"),
    "a list": (lambda good: json.dumps([good]).encode(), "expected `object`, got `array`"),
    "text for a number": (
        lambda good: json.dumps(good | {"load_kw": "much"}).encode(),
        "$.load_kw: expected `float`, got `str`",
    ),
    "negative": (lambda good: json.dumps(good | {"load_kw": -1}).encode(), "$.load_kw: expected `float` >= 0.0"),
    "no load": (
        lambda good: json.dumps({"house_id": "x", "at": good["at"]}).encode(),
        "missing required field",
    ),
    "no zone": (
        lambda good: json.dumps(good | {"at": "2026-03-01T18:00:00"}).encode(),
        "$.at: expected `datetime` with",
    ),
    "a number for text": (
        lambda good: json.dumps(good | {"house_id": 5}).encode(),
        "$.house_id: expected `str`, got `int`",
    ),
}


@dataclass
class City:
    """A cluster with the readings in it, and what they come to by plain Python."""

    connection: Connection
    root: Path
    file: Path
    house_load: dict[tuple[str, ...], float] = field(default_factory=dict)
    street_load: dict[tuple[str, ...], float] = field(default_factory=dict)
    # House and begin → end and peak.
    episodes: dict[tuple[str, datetime], tuple[datetime, float]] = field(default_factory=dict)
    high: int = 0
    poison: Counter[str] = field(default_factory=Counter)
    good: int = 0


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> Iterator[City]:
    with local_kafka(tmp_path_factory.mktemp("kafka"), KafkaSettings()) as running:
        connection = Connection(KafkaSettings(bootstrap_servers=running.bootstrap_servers))
        root = tmp_path_factory.mktemp("project")
        file = Path(shutil.copy(EXAMPLE, root / "app.py"))
        lines = [f"house-{house},street-{house % 7},Owner {house},+353 20 910 0000,flat,4.6" for house in range(HOUSES)]
        header = "house_id,street,owner,phone,tariff,contract_kw"
        (root / "houses.csv").write_text("\n".join([header, *lines, "closing,closing,Nobody,,flat,4.6"]))
        load_app(file).apply(connection)
        found = City(connection, root, file)
        fill(found)
        yield found


def fill(city: City) -> None:
    chance = random.Random(11)
    producer = Producer(city.connection.properties({"linger.ms": 20, "queue.buffering.max.messages": 1_000_000}))
    sums: dict[tuple[str, str, str], tuple[float, int]] = {}
    kinds = list(POISON)
    for number in range(EVENTS):
        house = chance.randrange(HOUSES)
        at = BEGIN + timedelta(milliseconds=number * 600_000 / EVENTS)
        good: dict[str, Any] = {
            "house_id": f"house-{house}",
            "load_kw": round(chance.uniform(0, 3), 3),
            "at": at.isoformat().replace("+00:00", "Z"),
        }
        value: bytes | None = json.dumps(good).encode()
        if number % 100 == 50:
            kind = kinds[number // 100 % len(kinds)]
            city.poison[kind] += 1
            value = POISON[kind][0](good)
        else:
            city.good += 1
            city.high += good["load_kw"] > 2.0
            if good["load_kw"] > 2.0:
                overload(city, str(good["house_id"]), at, float(good["load_kw"]))
            key = (at.replace(second=0, microsecond=0).isoformat(), str(good["house_id"]), f"street-{house % 7}")
            total, count = sums.get(key, (0.0, 0))
            sums[key] = (total + float(good["load_kw"]), count + 1)
        while True:
            try:
                producer.produce("readings", value, key=str(good["house_id"]))
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush(60)
    producer.produce("readings", json.dumps(CLOSING), key="closing")
    assert producer.flush(60) == 0
    for (minute, house_id, street), (total, count) in sums.items():
        city.house_load[(minute, house_id)] = total / count
        by_street = (minute, street)
        city.street_load[by_street] = city.street_load.get(by_street, 0.0) + total / count


def overload(city: City, house: str, at: datetime, load: float) -> None:
    """A reading above the limit, the next of its house: the episode goes on, or another begins."""
    began = max((begin for name, begin in city.episodes if name == house), default=at)
    end, peak = city.episodes.get((house, began), (at, load))
    if at - (end - timedelta(minutes=1)) > GAP:
        began, peak = at, load
    city.episodes[house, began] = (at + timedelta(minutes=1), max(peak, load))


def figures(city: City, topic: str, second: str) -> dict[tuple[str, ...], float]:
    rows = newest(city.connection, topic, ("minute", second)).values()
    return {(minute(row["minute"]["start"]), row[second]): row["load_kw"] for row in rows if row[second] != "closing"}


def found_episodes(city: City) -> dict[tuple[str, datetime], tuple[datetime, float]]:
    rows = newest(city.connection, "episodes", ("house_id", "began")).values()
    for row in rows:
        assert row["owner"] == f"Owner {row['house_id'].removeprefix('house-')}"
    return {
        (row["house_id"], datetime.fromisoformat(row["began"])): (datetime.fromisoformat(row["ended"]), row["peak_kw"])
        for row in rows
    }


def minute(text: str) -> str:
    return datetime.fromisoformat(text).astimezone(UTC).isoformat()


def check(city: City, streams: dict[str, StreamProgress], *, read: int, dead: int) -> None:
    for stream in streams.values():
        assert (stream.record_counts.read, stream.record_counts.dead_letters, stream.record_counts.late) == (
            read,
            dead,
            0,
        ), stream
        assert stream.lag == 0
    high = streams["high_load"].record_counts
    assert high.exact
    assert high.balanced
    assert high.out == city.high
    assert high.filtered == read - dead - city.high


@pytest.mark.parametrize("speed", ["near-real-time", "batch", "real-time"])
def test_every_speed_comes_to_the_same_figures(city: City, spark: SparkSession, speed: Speed) -> None:
    names = ("house_load", "street_load", "high_load", "episodes")
    streams = run_streams(spark, city.file, city.connection, city.root, speed=speed, fresh=names)
    assert streams["house_load"].speed == streams["high_load"].speed == speed
    poison = sum(city.poison.values())
    check(city, streams, read=EVENTS + 1, dead=poison)
    assert figures(city, "house_load", "house_id") == pytest.approx(city.house_load)
    assert figures(city, "street_load", "street") == pytest.approx(city.street_load)
    assert found_episodes(city) == city.episodes
    # Whatever is run again: a dead letter is there once.
    letters = list(dead_letters(city))
    assert Counter(letter.topic for letter, _ in letters) == {"readings": poison}
    assert len({(letter.partition, letter.offset) for letter, _ in letters}) == poison


def test_real_time_records_say_which_they_are(city: City) -> None:
    """The third run was at real time: a record that is sent again can be told by its header."""
    identities: dict[tuple[bytes | None, bytes | None], set[bytes | None]] = {}
    with rr.Consumer("high_load", connection=city.connection, follow=False) as consumer:
        for record in consumer:
            own = [value for name, value in record.headers if name == "riverrun-id"]
            if own:
                identities.setdefault((record.key, record.raw), set()).update(own)
    assert len(identities) == city.high
    assert all(len(identity) == 1 for identity in identities.values())
    assert len(set().union(*identities.values())) == city.high


def dead_letters(city: City) -> Iterator[tuple[rr.DeadLetter, bytes | None]]:
    with rr.Consumer("readings.dead", connection=city.connection, follow=False) as consumer:
        for record in consumer:
            letter = rr.DeadLetter.from_record(record)
            assert letter is not None
            yield letter, record.raw


def test_every_poison_is_in_the_dead_letter_topic_with_its_reason(city: City) -> None:
    seen: Counter[str] = Counter()
    for letter, raw in dead_letters(city):
        kind = next(kind for kind, (_, reason) in POISON.items() if reason in letter.message and (kind != "cut off" or raw)
                    and (kind != "empty" or raw == b""))  # fmt: skip
        seen[kind] += 1
        assert letter.error == "RecordUnreadableError"
        assert letter.group == "meters.dead-letters"
    assert seen == city.poison


def test_kafkas_own_tools_show_that_the_streams_have_no_lag(city: City) -> None:
    for group in ("meters.house_load", "meters.street_load", "meters.high_load", "meters.episodes"):
        described = described_group(city.connection.bootstrap_servers, group)
        assert len(described) == 4
        assert sum(end for _, end, _ in described.values()) == EVENTS + 1
        assert [lag for _, _, lag in described.values()] == [0, 0, 0, 0]
    asked = [
        "kcat",
        "-b",
        city.connection.bootstrap_servers,
        "-G",
        "meters.high_load",
        "-e",
        "-q",
        "-X",
        "auto.offset.reset=error",
    ]
    kcat = subprocess.run([*asked, "-f", "%o\n", "readings"], capture_output=True, text=True, timeout=60, check=True)
    assert kcat.stdout == ""


def test_what_is_redriven_after_a_fix_is_counted(city: City, spark: SparkSession) -> None:
    """Of all kinds, negative loads are the ones that the fix can mend."""
    app = load_app(city.file)

    def fix(value: bytes, letter: rr.DeadLetter) -> bytes | None:
        return json.dumps(json.loads(value) | {"load_kw": 2.5}).encode() if ">= 0.0" in letter.message else None

    redrive = Redrive(Admin(city.connection), "readings.dead", fix=FixFunction(fix, Path(__file__)), topics=app.topics)
    outcome = redrive.run()
    mended = city.poison["negative"]
    assert outcome.sent_count == mended
    streams = run_streams(spark, city.file, city.connection, city.root, speed="near-real-time", only=["high_load"])
    # It stood behind the real-time run: only what was sent back is new.
    account = streams["high_load"].record_counts
    assert account.read == EVENTS + 1 + mended
    assert account.out == city.high + mended
    assert account.balanced
