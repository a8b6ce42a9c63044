"""How fast the typed producer is, beside a bare confluent-kafka loop that encodes and sends the same JSON.

    python bench/producer.py [--records 100000] [--repeats 11] [--bootstrap-servers HOST:PORT]

The bare loop is the fastest we could write: the event's own encoder (which is faster than orjson on a dict), produce(),
poll(0), and the same acks, idempotence, linger, compression and partitioner. It checks nothing, sends no header with the
schema, and does not hear of a failed delivery, which is why there is a second one that does. Contenders take turns; a ratio
is made within a turn. Records per second depend on who else uses the machine, the sending thread's processor time hardly
does: both are printed. Then each step is timed on its own, to say where the rest goes.
"""

import argparse
import asyncio
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Producer as BareProducer

import riverrun as rr
from measure import alternate, report
from riverrun.kafka.connection import Connection
from riverrun.kafka.probe import create_topic
from riverrun.kafka.producer.options import ProducerOptions
from riverrun.model.event import schema_of


class Reading(rr.Event):
    """What the design's first example sends."""

    house_id: str = rr.key()
    load_kw: float = rr.field(ge=0)
    at: datetime = rr.event_time(late="2 minutes")


TOPIC = f"bench-readings-{secrets.token_hex(4)}"
READINGS = rr.Topic(TOPIC, Reading, partitions=4)
dump = msgspec.json.Encoder().encode


def make_events(count: int) -> list[Reading]:
    """Readings that compress as real ones do."""
    dice, start = random.Random(1), datetime(2026, 1, 1, tzinfo=UTC)
    return [
        Reading(
            house_id=f"house-{dice.randrange(10_000)}",
            load_kw=round(dice.expovariate(1), 3),
            at=start + timedelta(milliseconds=3 * i + dice.randrange(1000)),
        )
        for i in range(count)
    ]


@contextmanager
def cluster(address: str) -> Iterator[Connection]:
    if address:
        yield rr.connect(address)
        return
    from riverrun.config import KafkaSettings
    from riverrun.testing.pytest_plugin import local_kafka

    with tempfile.TemporaryDirectory() as folder, local_kafka(Path(folder), KafkaSettings()) as kafka:
        yield rr.connect(kafka.bootstrap_servers)


class Bench:
    """The contenders. Each gives records per second."""

    def __init__(self, connection: Connection, count: int, compression: Any) -> None:
        self.connection = connection
        self.events = make_events(count)
        self.cpu: dict[str, list[float]] = {}
        self.compression = compression
        options = ProducerOptions(compression=compression)
        self.bare_client = BareProducer(options.client_properties(connection))
        self.bare_client.produce(TOPIC, b"{}")
        self.bare_client.flush()
        self.producer = rr.Producer(connection, compression=compression)
        self.producer.send_all(READINGS, self.events[:1000])
        self.producer.send(READINGS, self.events[0])

    def rate(self, work: Callable[[], object], count: int = 0) -> float:
        count = count or len(self.events)
        name = sys._getframe(1).f_code.co_name  # noqa: SLF001
        begun, cpu = time.perf_counter(), time.thread_time_ns()
        work()
        self.cpu.setdefault(name, []).append((time.thread_time_ns() - cpu) / count)
        return count / (time.perf_counter() - begun)

    def bare(self) -> float:
        return self.rate(lambda: self._bare(None))

    def bare_reported(self) -> float:
        failed: list[Any] = []

        def report(error: Any, message: Any) -> None:
            if error is not None:
                failed.append((error, message))

        rate = self.rate(lambda: self._bare(report))
        assert not failed
        return rate

    def _bare(self, callback: Any) -> None:
        produce, poll = self.bare_client.produce, self.bare_client.poll
        for event in self.events:
            while True:
                try:
                    produce(TOPIC, dump(event), event.house_id, on_delivery=callback)
                    break
                except BufferError:
                    poll(0.05)
            poll(0)
        self.bare_client.flush()

    def send_all(self) -> float:
        def work() -> None:
            assert self.producer.send_all(READINGS, self.events) == len(self.events)

        return self.rate(work)

    def send_soon(self) -> float:
        def work() -> None:
            send_soon = self.producer.send_soon
            for event in self.events:
                send_soon(READINGS, event)
            self.producer.flush()

        return self.rate(work)

    def send_soon_called_back(self) -> float:
        done = 0

        def on_delivery(_: rr.Delivery) -> None:
            nonlocal done
            done += 1

        def work() -> None:
            send_soon = self.producer.send_soon
            for event in self.events:
                send_soon(READINGS, event, on_delivery=on_delivery)
            self.producer.flush()

        rate = self.rate(work)
        assert done == len(self.events)
        return rate

    def send(self) -> float:
        some = self.events[:2000]

        def work() -> None:
            for event in some:
                self.producer.send(READINGS, event)

        return self.rate(work, len(some))

    def transactions(self) -> float:
        with rr.Producer(self.connection, compression=self.compression, transactional_id="bench") as producer:

            def work() -> None:
                for start in range(0, len(self.events), 10_000):
                    with producer.transaction() as tx:
                        tx.send_all(READINGS, self.events[start : start + 10_000])

            return self.rate(work)

    def asynchronous(self) -> float:
        rate = 0.0

        async def work() -> None:
            async with rr.AsyncProducer(self.connection, compression=self.compression) as producer:
                await producer.send(READINGS, self.events[0])
                begun, cpu = time.perf_counter(), time.thread_time_ns()
                for event in self.events:
                    await producer.send_soon(READINGS, event)
                await producer.flush()
                nonlocal rate
                rate = len(self.events) / (time.perf_counter() - begun)
                self.cpu.setdefault("asynchronous", []).append((time.thread_time_ns() - cpu) / len(self.events))

        asyncio.run(work())
        return rate

    def steps(self) -> None:
        """Nanoseconds of the sending thread per record, the best of several: where the time goes."""
        schema, some = schema_of(Reading), self.events[:50_000]
        header = [schema.header]
        values, keys = [dump(event) for event in some], [event.house_id for event in some]

        def each(work: Callable[[Any], object]) -> Callable[[], float]:
            def run() -> float:
                begun = time.thread_time_ns()
                for event in some:
                    work(event)
                return (time.thread_time_ns() - begun) / len(some)

            return run

        def produce(callback: Any, headers: Any, *, errors_only: bool, served: bool) -> Callable[[], float]:
            def run() -> float:
                extra = {"delivery.report.only.error": errors_only, "linger.ms": 200}
                client = BareProducer(
                    ProducerOptions(compression=self.compression).client_properties(self.connection) | extra
                )
                client.produce(TOPIC, b"{}")
                client.flush()
                begun = time.thread_time_ns()
                for value, key in zip(values, keys, strict=True):
                    client.produce(TOPIC, value, key, -1, callback, None, 0, headers)
                made = time.thread_time_ns() - begun
                begun = time.thread_time_ns()
                client.flush()
                return (time.thread_time_ns() - begun if served else made) / len(some)

            return run

        def report_(error: Any, message: Any) -> None: ...

        rows: dict[str, Callable[[], float]] = {
            "an empty loop": each(lambda _: None),
            "encode": each(dump),
            "encode and check": each(schema.encode),
            "encode and read back": each(schema._encode_and_read_back),  # noqa: SLF001
            "key": each(schema.key_of),
            "produce()": produce(None, None, errors_only=False, served=False),
            "produce() with the header": produce(report_, header, errors_only=True, served=False),
            "report: none": produce(None, None, errors_only=False, served=True),
            "report: failures only, header": produce(report_, header, errors_only=True, served=True),
            "report: each, header": produce(report_, header, errors_only=False, served=True),
            "poll(0)": each(lambda _: self.bare_client.poll(0)),
        }
        print(f"\n{'one record, sending thread':<34}{'best':>8}{'median':>8}  ns")
        figures: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(7):
            for name, work in rows.items():
                figures[name].append(work())
        for name, found in figures.items():
            print(f"{name:<34}{min(found):>8.0f}{statistics.median(found):>8.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--compression", default="zstd")
    parser.add_argument("--bootstrap-servers", default="", help="use this cluster instead of starting one")
    given = parser.parse_args()
    with cluster(given.bootstrap_servers) as connection:
        create_topic(connection.properties(), TOPIC, partitions=4, config={"retention.bytes": "200000000"})
        bench = Bench(connection, given.records, given.compression)
        contenders = {
            "bare": bench.bare,
            "send_all": bench.send_all,
            "bare, hears of failures": bench.bare_reported,
            "send_soon": bench.send_soon,
            "send_soon, on_delivery": bench.send_soon_called_back,
            "transactions of 10,000": bench.transactions,
            "asyncio send_soon": bench.asynchronous,
            "send (one at a time)": bench.send,
        }
        figures = alternate(contenders, given.repeats)
        report("Producing", figures, "records/s", against="bare")
        names = dict(zip(contenders, (work.__name__ for work in contenders.values()), strict=True))
        per_second = {name: [1e9 / each for each in bench.cpu[method]] for name, method in names.items()}
        report("Sending thread", per_second, "records per second of its processor time", against="bare")
        report("Sending thread", per_second, "the same", against="bare, hears of failures")
        bench.steps()
        bench.producer.close()


if __name__ == "__main__":
    main()
