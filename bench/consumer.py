"""How fast the typed consumer is, beside a bare confluent-kafka `consume()` loop that decodes the same JSON.

    python bench/consumer.py [--records 1000000] [--repeats 5] [--bootstrap-servers HOST:PORT]

The bare loops have the properties of ours (fetch sizes, read committed, no automatic commit); one decodes into the same
typed struct, one into a dict. Ours is a member of a group and commits every five seconds. All read the whole topic; time
runs from the first batch to the last, so that joining a group does not count. Contenders take turns; a ratio is made
within a turn.
"""

import argparse
import secrets
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from confluent_kafka import Consumer as BareConsumer

import riverrun as rr
from measure import alternate, report
from producer import cluster
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.options import ConsumerOptions
from riverrun.kafka.probe import create_topic

BATCH = 10_000


class Reading(rr.Event):
    """About 150 bytes of JSON."""

    house_id: str = rr.key()
    street: str
    meter: str
    load_kw: float = rr.field(ge=0)
    at: datetime = rr.event_time(late="2 minutes")


class Bench:
    """The contenders. Each gives records per second."""

    def __init__(self, connection: Connection, count: int) -> None:
        self.connection = connection
        self.count = count
        self.topic = rr.Topic(f"bench-{secrets.token_hex(4)}", Reading, partitions=4)
        self.cpu: dict[str, list[float]] = {}
        create_topic(connection.properties(), self.topic.name, partitions=4, config={})
        at = datetime(2026, 1, 1, tzinfo=UTC)
        with rr.Producer(connection) as producer:
            events = (
                Reading(
                    house_id=f"house-{n % 10_000:05d}", street=f"{n % 97} Anna Livia Row", meter=f"meter-{n % 10_000:012d}",
                    load_kw=n % 4000 / 1000, at=at,
                )
                for n in range(count)
            )  # fmt: skip
            producer.send_all(self.topic, events)

    def timed(self, name: str, turns: Callable[[], Any]) -> float:
        """`turns` gives the number of records of each batch; the first only starts the clock."""
        seen, first, begun, cpu = 0, 0, 0.0, 0
        for size in turns():
            if not seen:
                first, begun, cpu = size, time.perf_counter(), time.thread_time_ns()
            seen += size
        assert seen == self.count, seen
        self.cpu.setdefault(name, []).append((time.thread_time_ns() - cpu) / (seen - first))
        return (seen - first) / (time.perf_counter() - begun)

    def bare(self, name: str, decode: Callable[[bytes], Any]) -> float:
        group = secrets.token_hex(4)
        options = ConsumerOptions().client_properties(self.connection, group)

        def turns() -> Any:
            client = BareConsumer({**options, "auto.offset.reset": "earliest"})
            client.subscribe([self.topic.name])
            left = self.count
            while left:
                messages = [each for each in client.consume(BATCH, 1.0) if each.error() is None]
                values = [decode(message.value()) for message in messages]  # type: ignore[arg-type]
                left -= len(values)
                if values:
                    yield len(values)
            client.close()

        return self.timed(name, turns)

    def bare_typed(self) -> float:
        return self.bare("bare, typed", msgspec.json.Decoder(Reading).decode)

    def bare_dict(self) -> float:
        return self.bare("bare, dict", msgspec.json.Decoder().decode)

    def batches(self) -> float:
        def turns() -> Any:
            with rr.Consumer(
                self.topic, group=secrets.token_hex(4), connection=self.connection, follow=False
            ) as consumer:
                for batch in consumer.batches(BATCH):
                    yield len(batch.values())

        return self.timed("batches", turns)

    def one_by_one(self) -> float:
        def turns() -> Any:
            with rr.Consumer(
                self.topic, group=secrets.token_hex(4), connection=self.connection, follow=False
            ) as consumer:
                count = 0
                for record in consumer:
                    if record.value is not None:
                        count += 1
                    if count == BATCH:
                        yield count
                        count = 0
                if count:
                    yield count

        return self.timed("for record in consumer", turns)

    def handled(self) -> float:
        done = 0

        def handle(record: rr.Record[Reading]) -> None:
            nonlocal done
            done += record.value is not None

        begun = time.perf_counter()
        with rr.Consumer(self.topic, group=secrets.token_hex(4), connection=self.connection, follow=False) as consumer:
            consumer.run(handle, workers=1)
        assert done == self.count
        return self.count / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--bootstrap-servers", default="")
    options = parser.parse_args()
    with cluster(options.bootstrap_servers) as connection:
        bench = Bench(connection, options.records)
        contenders = {
            "bare, typed": bench.bare_typed,
            "bare, dict": bench.bare_dict,
            "batches": bench.batches,
            "for record in consumer": bench.one_by_one,
            "run(handler, workers=1)": bench.handled,
        }
        figures = alternate(contenders, options.repeats)
    report("Typed consumer", figures, "records/s", against="bare, typed")
    print("\nProcessor time of the reading thread, ns a record (median):")
    for name, values in bench.cpu.items():
        print(f"  {name:<28}{statistics.median(values):>8,.0f}")


if __name__ == "__main__":
    main()
