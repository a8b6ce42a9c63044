"""How fast `riverrun produce` and `riverrun consume` are, beside a bare confluent-kafka loop that does the least possible.

    python bench/shell.py [--records 1000000] [--repeats 3] [--bootstrap-servers HOST:PORT]

Whole processes are timed, interpreter start included. The bare producer sends lines as they are, without key or check; the
bare consumer writes values as they are. Then the parts of producing are timed on their own, to say where the time goes.
"""

import argparse
import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from measure import alternate, report, timed
from riverrun.kafka.connection import Connection
from riverrun.kafka.probe import create_topic
from riverrun.model.event import Event, field, key, schema_of
from riverrun.model.lines import json_lines

BARE_PRODUCE = """
import sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": sys.argv[1], "enable.idempotence": True, "acks": "all", "linger.ms": 5,
                     "compression.type": "zstd", "queue.buffering.max.messages": 100000})
for number, line in enumerate(open(sys.argv[3], "rb")):
    while True:
        try:
            producer.produce(sys.argv[2], line[:-1])
            break
        except BufferError:
            producer.poll(0.1)
    if number % 64 == 0:
        producer.poll(0)
producer.flush()
"""
BARE_CONSUME = """
import sys
from confluent_kafka import Consumer, TopicPartition
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "bench", "enable.auto.commit": False,
                     "fetch.queue.backoff.ms": 5})
consumer.assign([TopicPartition(sys.argv[2], each, 0) for each in range(4)])
left = int(sys.argv[3])
while left > 0:
    values = [each.value() for each in consumer.consume(2000, 0.1)]
    left -= len(values)
    sys.stdout.buffer.write(b"".join(value + b"\\n" for value in values))
"""


class Reading(Event):
    """The type of the lines."""

    house_id: str = key()
    load_kw: float = field(ge=0)
    at: str


APP = """
import riverrun as rr
app = rr.App("bench")
class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float = rr.field(ge=0)
    at: str
app.topic("TOPIC", Reading, partitions=4)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--bootstrap-servers", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, cluster(options.bootstrap_servers, Path(folder)) as connection:
        measure(Path(folder), connection, options.records, options.repeats)


@contextmanager
def cluster(named: str, folder: Path) -> Iterator[Connection]:
    from riverrun.config import KafkaSettings

    if named:
        yield Connection(KafkaSettings(bootstrap_servers=named))
        return
    from riverrun.testing.pytest_plugin import local_kafka

    with local_kafka(folder / "kafka", KafkaSettings()) as kafka:
        yield Connection(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))


def measure(folder: Path, connection: Connection, records: int, repeats: int) -> None:
    lines = folder / "readings.jsonl"
    with lines.open("w", encoding="utf-8") as out:
        for number in range(records):
            row = {
                "house_id": f"house-{number % 1000:05d}",
                "load_kw": number % 977 / 100,
                "at": "2026-07-01T10:00:00Z",
            }
            out.write(json.dumps(row) + "\n")
    topic = f"bench-shell-{secrets.token_hex(4)}"
    (folder / "app.py").write_text(APP.replace("TOPIC", topic), encoding="utf-8")
    create_topic(connection.properties(), topic, partitions=4, config={})
    where = connection.bootstrap_servers

    def run(*command: str) -> Callable[[], float]:
        def work() -> None:
            with (folder / "output").open("wb") as out:
                subprocess.run([sys.executable, *command], stdout=out, stderr=subprocess.PIPE, check=True, cwd=folder)

        return lambda: records / timed(work)

    ours = ("-m", "riverrun")
    target = ("--bootstrap-servers", where)
    produced = {
        "bare loop, no key, no check": run("-c", BARE_PRODUCE, where, topic, str(lines)),
        "riverrun produce": run(*ours, "produce", topic, str(lines), *target),
        "riverrun produce --key": run(*ours, "produce", topic, str(lines), "--key", "house_id", *target),
        "riverrun produce --app (typed)": run(*ours, "produce", topic, str(lines), "--app", "app.py", *target),
    }
    report("produce from a file", alternate(produced, repeats), "records/s", against="bare loop, no key, no check")
    consumed = {
        "bare loop": run("-c", BARE_CONSUME, where, topic, str(records)),
        "riverrun consume": run(*ours, "consume", topic, "--limit", str(records), *target),
        "riverrun consume --json": run(*ours, "consume", topic, "--json", "--limit", str(records), *target),
        "riverrun consume --where": run(
            *ours, "consume", topic, "--where", "load_kw>=0", "--limit", str(records), *target
        ),
    }
    report("consume to a file", alternate(consumed, repeats), "records/s", against="bare loop")
    parts(lines, records)


def parts(path: Path, records: int) -> None:
    """Seconds of CPU that reading and checking the lines takes, without sending them."""

    def read(**options: object) -> float:
        with path.open("rb") as stream:
            return timed(lambda: sum(1 for _ in json_lines(stream, limit=1_000_000, **options)))  # type: ignore[arg-type]

    print("\nreading the lines alone, µs a record")
    for name, options in {
        "any JSON": {},
        "with a key field": {"key": "house_id"},
        "typed": {"schema": schema_of(Reading)},
    }.items():
        print(f"{name:<30}{read(**options) / records * 1e6:>8.2f}")


if __name__ == "__main__":
    main()
