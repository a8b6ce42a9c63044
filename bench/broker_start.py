"""What makes a broker start quickly: the class archive, one compiler, the serial collector, formatting without a JVM.

    python bench/broker_start.py [repeats]

Each start is from an empty folder to a broker that takes part in its cluster, with the jars and Java of `riverrun up`.
CPU is what Java has used by then: on a busy machine it says more than the clock.
"""

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from measure import alternate, report
from riverrun.cluster.jvm import JavaRuntime
from riverrun.cluster.kafka import storage
from riverrun.cluster.kafka.local import LocalKafka
from riverrun.config import KafkaSettings, Settings


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    runtime = JavaRuntime.prepare(Settings())
    print(f"Java {runtime.java.full_version}, Kafka {runtime.kafka_version}")
    make_archive(runtime)
    cpu: dict[str, list[float]] = {}
    known = dict(storage.FEATURES)

    def contender(name: str, options: str = "", *, archive: bool = True, tool: bool = False) -> Callable[[], float]:
        def run() -> float:
            storage.FEATURES = {} if tool else known  # type: ignore[misc]
            seconds, used = start(runtime, KafkaSettings(jvm_options=options), archive=archive)
            cpu.setdefault(name, []).append(used)
            return seconds

        return run

    figures = alternate(
        {
            "as riverrun up": contender("as riverrun up"),
            "no class archive": contender("no class archive", archive=False),
            "both compilers": contender("both compilers", "-XX:TieredStopAtLevel=4"),
            "both compilers, G1": contender("both compilers, G1", "-XX:TieredStopAtLevel=4 -XX:+UseG1GC"),
            "none of these": contender("none of these", "-XX:TieredStopAtLevel=4 -XX:+UseG1GC", archive=False),
            "formatted by StorageTool": contender("formatted by StorageTool", tool=True),
        },
        repeats,
    )
    report("Start to a broker that takes part", figures, "seconds", against="as riverrun up")
    report("CPU of Java until then", cpu, "seconds", against="as riverrun up")


def make_archive(runtime: JavaRuntime) -> None:
    with tempfile.TemporaryDirectory() as folder, LocalKafka(Path(folder), runtime=runtime, first_port=port()) as kafka:
        if kafka._archive is not None and not kafka._archive.wait(120):  # noqa: SLF001
            print("no class archive could be made", file=sys.stderr)


def start(runtime: JavaRuntime, settings: KafkaSettings, *, archive: bool) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        with LocalKafka(Path(folder), settings, runtime=runtime, first_port=port(), archive=archive) as kafka:
            seconds = time.perf_counter() - begun
            times = psutil.Process(kafka.brokers[0].pid).cpu_times()
            return seconds, times.user + times.system


def port() -> int:
    return random.randrange(12000, 28000, 10)


if __name__ == "__main__":
    main()
