"""A handler a hundred times slower than the feed: memory stays within its bound, and nothing is lost."""

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.consuming import Bench

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

COUNT = 300_000
# What Python and the client take (40 MiB), 16 MiB fetched ahead with 1 KiB for each of 4 x 10,000 records or a few more,
# 1,000 records in flight. Measured: 60 to 110.
BOUND_MB = 160

PROGRAM = """
    import sys, threading, time
    import riverrun as rr

    topic, group, bootstrap = sys.argv[1:]
    count, in_flight, fast = 0, 0, threading.Event()
    lock = threading.Lock()

    def memory():
        status = open("/proc/self/status").read()
        return int(status.split("VmHWM:")[1].split()[0]) // 1024

    def handle(record):
        global count, in_flight
        # The feed waits in the topic and comes at 100,000 a second and more; 8 of these are done in 10 ms.
        fast.wait(0.01)
        with lock:
            count += 1
            in_flight = max(in_flight, consumer.metrics().in_flight) if count % 100 == 0 else in_flight

    options = dict(group=group, connection=rr.connect(bootstrap), follow=False)
    with rr.Consumer(topic, **options) as consumer:
        threading.Timer(8, lambda: (print("slow", count, memory(), flush=True), fast.set())).start()
        consumer.run(handle, workers=8, order="key")
    print("all", count, memory(), in_flight)
"""


def test_memory_is_bounded_however_slow_a_handler_is(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    bench = Bench(kafka.connection, kafka_topic, partitions=4)
    padding = b'"' + b"x" * 130 + b'"'
    bench.send((padding, b"%d" % (number % 1000), number % 4) for number in range(COUNT))
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    arguments = [bench.topic, bench.group, bench.connection.bootstrap_servers]
    done = subprocess.run(
        [sys.executable, program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"slow (\d+) (\d+)\nall (\d+) (\d+) (\d+)\n", done.stdout)
    assert found, done.stdout
    slow, slow_memory, count, memory, in_flight = map(int, found.groups())
    # It was slow, it was given all the same, and it was given once: nothing moved between members.
    assert slow < COUNT // 20
    assert count == COUNT
    assert in_flight <= 1000
    assert slow_memory < BOUND_MB
    assert memory < BOUND_MB
    assert sum(bench.committed().values()) == COUNT
