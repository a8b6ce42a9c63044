"""A slow sink slows the source: a stream reads what its output topic can take, a bite at a time, and loses nothing."""

import json
import secrets
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import riverrun as rr
from riverrun.app import App
from riverrun.config import KafkaSettings
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.producer import Producer
from riverrun.model.progress import RecordCounts, StreamProgress
from riverrun.streams.run import running_stream
from riverrun.streams.run.progress import ProgressTracker
from riverrun.testing.pytest_plugin import local_kafka
from support.kafka_tools import producer_quota
from support.streaming import run_streams

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

BITE = 2_000
BITES = 4
RECORDS = BITE * BITES
# Bytes a second. A bite comes to some 270 kB of output, so it takes five seconds; without a quota, less than one.
QUOTA = 50_000
DEAD = [number for number in range(RECORDS) if number % 1000 == 999]
KEPT = {number for number in range(RECORDS) if number % 10 and number not in DEAD}


class Reading(rr.Event):
    house_id: str = rr.key()
    number: int
    note: str


@dataclass
class Backlog:
    """A topic with several bites in it, and a stream that copies most of them."""

    spark: SparkSession
    connection: Connection
    root: Path
    app: App
    source: str
    target: str

    def run(self) -> "Run":
        """Run the stream from the first record to the last."""
        run = Run(self.root / ".riverrun/streams" / self.app.name / "checkpoints/kept", self.source)
        booked = ProgressTracker.record_batch

        def batch(books: ProgressTracker, report: Mapping[str, Any], progress: StreamProgress) -> None:
            run.reports.append(report)
            booked(books, report, progress)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ProgressTracker, "record_batch", batch)
            streams = run_streams(
                self.spark,
                self.app,
                self.connection,
                self.root,
                speed="near-real-time",
                fresh=["kept"],
                look=run.look,
            )
        run.account = streams["kept"].record_counts
        return run

    def written(self) -> Counter[int]:
        """How often each record is in the output topic."""
        with rr.Consumer(self.target, connection=self.connection, follow=False) as consumer:
            return Counter(json.loads(record.raw or b"")["number"] for record in consumer)


@dataclass
class Run:
    """What was seen of one run: Spark's reports of its batches, and how far ahead it had read at each look."""

    checkpoint: Path
    source: str
    reports: list[Mapping[str, Any]] = field(default_factory=list)
    ahead: list[int] = field(default_factory=list)
    account: RecordCounts = field(default_factory=RecordCounts)

    def look(self) -> None:
        """Records that Spark has set out to read beyond those whose rows are all in the output topic."""
        begun = _last(self.checkpoint / "offsets")
        done = _last(self.checkpoint / "commits")
        self.ahead.append(self._through(begun) - self._through(done))

    def _through(self, batch: int) -> int:
        """How many records there are up to the end of a batch."""
        if batch < 0:
            return 0
        offsets = json.loads((self.checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()[-1])
        parts: dict[str, int] = offsets[self.source]
        return sum(parts.values())

    @property
    def batches(self) -> list[tuple[int, int]]:
        """Records and milliseconds of each batch that read something."""
        return [(report["numInputRows"], report["batchDuration"]) for report in self.reports if report["numInputRows"]]

    @property
    def full(self) -> list[tuple[int, int]]:
        """Of all batches those of a whole bite, without the first, which pays for the start."""
        return [(rows, millis) for rows, millis in self.batches[1:] if rows > 0.9 * BITE]

    @property
    def records_per_second(self) -> float:
        return 1000 * sum(rows for rows, _ in self.full) / sum(millis for _, millis in self.full)

    @property
    def typical_ms(self) -> float:
        return statistics.median(millis for _, millis in self.full)


def _last(folder: Path) -> int:
    """The newest batch in one of the checkpoint's logs; -1 when there is none."""
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)


@pytest.fixture(scope="module")
def strict_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A broker that averages over one second, so that a quota is felt at once and nothing has been saved up before."""
    settings = KafkaSettings(broker={"quota.window.num": "2"})
    with local_kafka(tmp_path_factory.mktemp("kafka"), settings) as kafka:
        yield Connection(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))


@pytest.fixture
def backlog(spark: SparkSession, strict_kafka: Connection, tmp_path: Path) -> Iterator[Backlog]:
    mark = secrets.token_hex(4)
    app = rr.App(f"press_{mark}")
    readings = app.topic(f"readings_{mark}", Reading, partitions=2)
    target = f"kept_{mark}"
    app.sql("kept", f"SELECT * FROM readings_{mark} WHERE number % 10 > 0", topic=target)  # noqa: S608
    app.apply(strict_kafka)
    with Producer(strict_kafka) as producer:
        for number in range(RECORDS):
            # Not to be compressed to nothing on its way out.
            good = Reading(house_id=f"h{number % 50}", number=number, note=secrets.token_hex(100))
            if number in DEAD:
                producer.send_soon(readings.name, b"not JSON")
            else:
                producer.send_soon(readings, good)
    # The name that the quota is for: nobody else has it.
    settings = KafkaSettings(bootstrap_servers=strict_kafka.bootstrap_servers, client={"client.id": f"press-{mark}"})
    with pytest.MonkeyPatch.context() as patch:
        for bound in ("INITIAL_BATCH_SIZE", "MIN_BATCH_SIZE", "MAX_BATCH_SIZE"):
            patch.setattr(running_stream, bound, BITE)
        yield Backlog(spark, Connection(settings), tmp_path, app, readings.name, target)


def check(run: Run) -> None:
    account = run.account
    assert account.exact
    assert account.balanced
    assert (account.read, account.out, account.dead_letters, account.late) == (RECORDS, len(KEPT), len(DEAD), 0)
    assert account.filtered == RECORDS - len(KEPT) - len(DEAD)
    assert sum(rows for rows, _ in run.batches) == RECORDS
    assert len(run.full) >= BITES - 2
    # Of all that lies there, it has taken one bite and not another before that was written.
    assert max(rows for rows, _ in run.batches) <= BITE
    assert 0 < max(run.ahead) <= BITE
    assert run.ahead[-1] == 0


def test_a_slow_sink_slows_the_source(backlog: Backlog) -> None:
    free = backlog.run()
    check(free)
    assert backlog.written() == dict.fromkeys(KEPT, 1)
    connection = backlog.connection
    with producer_quota(connection.bootstrap_servers, connection.settings.client["client.id"], QUOTA):
        slowed = backlog.run()
    check(slowed)
    assert backlog.written() == dict.fromkeys(KEPT, 2)
    assert slowed.typical_ms > 2 * free.typical_ms
    assert 2 * slowed.records_per_second < free.records_per_second
