"""How long Druid takes from nothing to its first SQL answer, what that costs, and what it takes when nobody asks.

    python bench/druid_start.py [repeats]

Each start is from an empty folder with the jars and Java of `riverrun up --druid`; Kafka is not part of it. CPU is what all
six JVMs have used by then: on a busy machine it says more than the clock. Memory is resident (a page that several share is
counted by each) and proportional (it is shared out among them).
"""

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from measure import alternate, report
from riverrun.cluster.druid import DruidRuntime, LocalDruid
from riverrun.config import DruidSettings, Settings

IDLE_SECONDS = 30.0


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    runtime = DruidRuntime.prepare(Settings())
    print(f"Java {runtime.runtime.java.full_version}, Druid {runtime.version}")
    make_archive(runtime)
    cpu: dict[str, list[float]] = {}
    stops: dict[str, list[float]] = {}

    def contender(name: str, *, archive: bool) -> Callable[[], float]:
        def run() -> float:
            seconds, used, stopped = start(runtime, archive=archive)
            cpu.setdefault(name, []).append(used)
            stops.setdefault(name, []).append(stopped)
            return seconds

        return run

    names = {"with the class archive": True, "without": False}
    figures = alternate({name: contender(name, archive=archive) for name, archive in names.items()}, repeats)
    first = next(iter(names))
    report("Start to the first SQL answer", figures, "seconds", against=first)
    report("CPU of all six until then", cpu, "seconds", against=first)
    report("Stop", stops, "seconds", against=first)
    idle(runtime)


def make_archive(runtime: DruidRuntime) -> None:
    with tempfile.TemporaryDirectory() as folder, local(folder, runtime) as druid:
        if druid._archive is not None and not druid._archive.wait(300):  # noqa: SLF001
            print("no class archive could be made", file=sys.stderr)


def local(folder: str, runtime: DruidRuntime, *, archive: bool = True) -> LocalDruid:
    port = random.randrange(12000, 28000, 10)
    return LocalDruid(Path(folder), DruidSettings(), runtime=runtime, first_port=port, archive=archive)


def start(runtime: DruidRuntime, *, archive: bool) -> tuple[float, float, float]:
    with tempfile.TemporaryDirectory() as folder:
        druid = local(folder, runtime, archive=archive)
        begun = time.perf_counter()
        with druid:
            seconds = time.perf_counter() - begun
            used = cpu_seconds(druid)
            begun = time.perf_counter()
        return seconds, used, time.perf_counter() - begun


def cpu_seconds(druid: LocalDruid) -> float:
    times = [psutil.Process(node.pid).cpu_times() for node in druid.nodes]
    return sum(each.user + each.system for each in times)


def idle(runtime: DruidRuntime) -> None:
    with tempfile.TemporaryDirectory() as folder, local(folder, runtime) as druid:
        time.sleep(IDLE_SECONDS)
        before, begun = cpu_seconds(druid), time.perf_counter()
        time.sleep(IDLE_SECONDS)
        share = (cpu_seconds(druid) - before) / (time.perf_counter() - begun)
        print(f"\nIdle: {100 * share:.1f} % of one core")
        for node in druid.nodes:
            memory = psutil.Process(node.pid).memory_full_info()
            print(f"  {node.name:<18} {memory.rss >> 20:>5} MiB resident, {memory.pss >> 20:>5} MiB its share")


if __name__ == "__main__":
    main()
