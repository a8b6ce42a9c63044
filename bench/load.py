"""What the measurements of whole jobs share: readings as the meters send them, the memory of a family of processes, and
the age of rows as a reader gets them."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
from confluent_kafka import OFFSET_END, Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.model.cluster_state import TopicPartition

JOB = Path(__file__).parent / "stream_job"
HOUSES = 10_000
READINGS = "readings"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
# What the event times of a backlog span, whatever its size.
SPAN_MS = 600_000


def value(chance: random.Random, at: datetime) -> str:
    return reading(f"house-{chance.randrange(HOUSES):06d}", chance.uniform(0, 3), at)


def reading(house: str, load_kw: float, at: datetime) -> str:
    time_text = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return (
        f'{{"house_id":"{house}","load_kw":{load_kw:.4f},"at":"{time_text}",'
        '"meter":"A1-000000000000","firmware":"v1.2.3-abcdefgh","phase":1}'
    )


def key_of(text: str) -> str:
    """The house of a reading."""
    return text[13:25]


def producer(connection: Connection) -> Producer:
    return Producer(connection.properties({"linger.ms": 5, "queue.buffering.max.messages": 1_000_000}))


def send(sender: Producer, text: str) -> None:
    """A reading, keyed by its house; waits while the queue is full."""
    while True:
        try:
            sender.produce(READINGS, text, key=key_of(text))
            return
        except BufferError:
            sender.poll(0.1)


def fill(connection: Connection, events: int, sent: Callable[[str, int], None] = lambda *_: None) -> None:
    """A backlog over ten minutes of event time. `sent` is told each reading and its time in milliseconds since the begin."""
    chance, sender = random.Random(3), producer(connection)
    begun = time.perf_counter()
    for number in range(events):
        if number and number % 1_000_000 == 0:
            print(f"  {number:,} of {events:,} sent, {time.perf_counter() - begun:.0f} s", file=sys.stderr)
        at = number * SPAN_MS // events
        text = value(chance, BEGIN + timedelta(milliseconds=at))
        send(sender, text)
        sent(text, at)
    sender.flush()


def riverrun_command(folder: Path, address: str, speed: str, *, forever: bool = False) -> list[str]:
    """riverrun's job with its project in a folder; it ends when it has caught up, or goes on."""
    (folder / "riverrun.toml").touch()
    run = [sys.executable, "-m", "riverrun", "--project", str(folder), "run", str(JOB / "meters.py")]
    stop = [] if forever or speed == "batch" else ["--until-caught-up"]
    # Nothing that the same job by hand does not do: no store beside it.
    only = ["--store", "none", "--fresh", "by_riverrun"]
    return [*run, "--speed", speed, "--every", "0 s", "--bootstrap-servers", address, *only, *stop]


def by_hand_command(folder: Path, address: str, speed: str, jars: str, java: str) -> list[str]:
    """The same job in plain PySpark; with BENCH_FOREVER in its environment it goes on."""
    return [sys.executable, str(JOB / "by_hand.py"), address, str(folder / "checkpoint"), speed, jars, java]


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ask it to end, as Ctrl-C does; kill it when it does not."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()


def family(pid: int) -> list[psutil.Process]:
    """A process and all below it. Not the copy that a JVM is for a moment when it starts a program: it is the same memory
    once more, and counting it showed two and four times what there was."""
    process = psutil.Process(pid)
    below = process.children(recursive=True)
    machines = {each.pid for each in below if is_java(each)}
    return [process, *(each for each in below if not (each.pid in machines and each.ppid() in machines))]


def is_java(process: psutil.Process) -> bool:
    """By its program: a process that is about to start one has the name of a thread. A child that ended has none."""
    try:
        return Path(process.exe()).name == "java"
    except psutil.Error:
        return False


def memory_mb(pid: int) -> float:
    """What a process and all below it hold, shared pages counted once for each."""
    try:
        return sum(each.memory_info().rss for each in family(pid)) / 1_000_000
    except psutil.NoSuchProcess:
        return 0.0


def worked(pid: int) -> float:
    """Seconds of processor time that a process and all below it have had."""
    try:
        times = [each.cpu_times() for each in family(pid)]
    except psutil.NoSuchProcess:
        return 0.0
    return sum(each.user + each.system for each in times)


def places(admin: Admin, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, part) for part in range(len(admin.topic(topic).partitions))]


def forget(admin: Admin, topic: str) -> None:
    """Delete what earlier turns sent: all begin at the first record there is, and would have a backlog."""
    admin.delete_records(admin.offsets(places(admin, topic), "latest"))


def last_of(row: bytes) -> float:
    """When the newest reading in a row was made, in seconds since 1970."""
    return datetime.fromisoformat(json.loads(row)["last"]).timestamp()


def ages_of_rows(
    admin: Admin,
    output: str,
    *,
    rate: int,
    seconds: float,
    alive: Callable[[], bool],
    group: str,
    newest: Callable[[bytes], float | None] = last_of,
    patience: float = 600,
) -> list[float]:
    """Send readings at a rate, and give the ages in milliseconds of the rows as a reader gets them, sorted, after a warm-up
    of half the time. The clock starts with the first row; until then a trickle. `newest` may answer None: not a row."""
    connection = admin.connection
    reader = Consumer(connection.properties({"group.id": group, "fetch.queue.backoff.ms": 5}))
    reader.assign([ClientPartition(output, place.partition, OFFSET_END) for place in places(admin, output)])
    sender, chance = producer(connection), random.Random(5)
    ages: list[float] = []
    begun = measured_from = 0.0
    sent = 0
    give_up = time.time() + patience
    try:
        while alive():
            now = time.time()
            if not begun:
                if now > give_up:
                    raise TimeoutError(f"no row came in {patience:.0f} s")
                send(sender, value(chance, datetime.now(UTC)))
                sender.poll(0)
                if reader.poll(0.05) is not None:
                    begun, measured_from = now, now + seconds / 2
                continue
            if now > begun + 1.5 * seconds:
                return sorted(ages)
            while sent < (now - begun) * rate:
                send(sender, value(chance, datetime.now(UTC)))
                sent += 1
            sender.poll(0)
            rows = [row for each in reader.consume(500, 0.002) if each.error() is None and (row := each.value())]
            if now > measured_from:
                ages += [(time.time() - at) * 1000 for row in rows if (at := newest(row)) is not None]
        raise ChildProcessError("it ended while readings were sent")
    finally:
        reader.close()
        sender.flush(10)
