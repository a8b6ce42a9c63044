"""riverrun's streams beside the same job written by hand in PySpark, on one local Kafka.

    python bench/streams.py backlog [--events 1000000] [--repeats 3] [--speed near-real-time]
    python bench/streams.py latency [--rate 1000] [--seconds 40] [--speed near-real-time] [--repeats 2]
    python bench/streams.py drain [--events 10000000]
    python bench/streams.py verify [--events 5000000] [--repeats 2]

`backlog`: from the start of the process until all is read and written, and until the first record is in the output topic.
`latency`: how old the newest reading in a row is when the row can be read from the output topic (p50, p99).
`drain`: riverrun alone over a large backlog: records a second and memory in each ten seconds, and the bound of the heap.
`verify`: `riverrun verify` of a stream that has read the backlog, beside the batch run of the same stream over it.
"""

import argparse
import bisect
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from load import (
    JOB,
    READINGS,
    ages_of_rows,
    by_hand_command,
    end,
    family,
    fill,
    forget,
    memory_mb,
    places,
    riverrun_command,
    worked,
)
from measure import alternate, machine, report
from riverrun.app import load_app
from riverrun.artifacts.java import find_java
from riverrun.artifacts.sets import fetch
from riverrun.cluster.kafka.local import LocalKafka
from riverrun.config import ArtifactSettings, JavaSettings, KafkaSettings, Project, stream_state
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.streams.run.running_stream import INITIAL_BATCH_SIZE

OUTPUTS = {"riverrun": "by_riverrun", "by hand": "by_hand"}
# `drain` shows a line for each so many seconds.
SPAN_SECONDS = 10


@dataclass
class Drained:
    """What was seen of one run over a backlog. Times are seconds since its process began."""

    # (when, records read so far): one at each end of a batch.
    reads: list[tuple[float, int]] = field(default_factory=list)
    # (when, MB of the Python process, MB of all below it, which is Spark's JVM).
    memory: list[tuple[float, float, float]] = field(default_factory=list)
    # (when, seconds of processor time that all of them have had): what others on the machine left to it.
    work: list[tuple[float, float]] = field(default_factory=list)
    bites: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, INITIAL_BATCH_SIZE)])
    heap: str = ""

    def read_by(self, when: float) -> float:
        """Records read until then: between two batches' ends as if they came evenly."""
        place = bisect.bisect_left(self.reads, (when, 0))
        if place == len(self.reads):
            return self.reads[-1][1]
        (before, low), (after, high) = self.reads[max(0, place - 1)], self.reads[place]
        return high if after == before else low + (high - low) * (when - before) / (after - before)

    def cores(self, start: float, end: float) -> float:
        """How many cores it had on average."""
        inside = [each for each in self.work if start <= each[0] < end]
        if len(inside) < 2:
            return 0.0
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])

    def show(self) -> None:
        first, last = self.reads[0][0], self.reads[-1][0]
        print(f"\n{self.reads[-1][1]:,} readings, near-real-time  ({machine()})")
        print(f"{'seconds':>12}{'records/s':>12}{'read':>14}{'bite':>12}{'cores':>8}{'Python MB':>12}{'JVM MB':>10}")
        start = 0.0
        while start < last:
            end = min(start + SPAN_SECONDS, last)
            inside = [each for each in self.memory if start <= each[0] < end] or [(0.0, 0.0, 0.0)]
            # The first span with records in it counts from the first batch's begin, not from the start of Spark.
            seconds = end - max(start, min(first, end))
            rate = (self.read_by(end) - self.read_by(start)) / seconds if seconds > 0 else 0.0
            bite = next(rows for when, rows in reversed(self.bites) if when <= end)
            python, jvm = max(each[1] for each in inside), max(each[2] for each in inside)
            print(
                f"{start:>5.0f} … {end:>4.0f}{rate:>12,.0f}{self.read_by(end):>14,.0f}{bite:>12,}"
                f"{self.cores(start, end):>8.2f}{python:>12,.0f}{jvm:>10,.0f}"
            )
            start = end
        rate = self.reads[-1][1] / (last - first)
        print(
            f"\nall read {last:.1f} s after the start: {last - first:.1f} s at {rate:,.0f} records/s once Spark was there"
        )
        peaks = max(each[1] for each in self.memory), max(each[2] for each in self.memory)
        print(
            f"most memory: Python {peaks[0]:,.0f} MB, Spark's JVM {peaks[1]:,.0f} MB; the heap is bound by {self.heap}"
        )


def heap_of(pid: int) -> str:
    """The bound of the heap that the JVM below a process was started with; empty while there is none."""
    try:
        for each in family(pid):
            if found := re.findall(r"-Xmx(\S+)", " ".join(each.cmdline())):
                return str(found[-1])
    except psutil.Error:
        pass
    return ""


class Bench:
    """A cluster, and the two contenders as processes."""

    def __init__(self, root: Path, connection: Connection, speed: str) -> None:
        self.root = root
        self.connection = connection
        self.speed = speed
        self.admin = Admin(connection)
        self.jars = ",".join(map(str, fetch("spark-kafka", ArtifactSettings())))
        self.java = str(find_java(JavaSettings()).home)
        self.turn = 0

    def start(self, who: str, *, forever: bool = False) -> "subprocess.Popen[bytes]":
        self.turn += 1
        folder = self.root / f"turn-{self.turn}"
        folder.mkdir()
        environment = os.environ | ({"BENCH_FOREVER": "1"} if forever else {})
        address = self.connection.bootstrap_servers
        if who == "by hand":
            command = by_hand_command(folder, address, self.speed, self.jars, self.java)
        else:
            command = riverrun_command(folder, address, self.speed, forever=forever)
        log = (folder / "out.log").open("wb")
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)

    def end_of(self, topic: str) -> int:
        return sum(self.admin.offsets(places(self.admin, topic), "latest").values())

    def backlog(self, who: str, firsts: list[float], peaks: list[float]) -> float:
        """Seconds until all is done; notes when the first record came, and the most memory all its processes held."""
        before = self.end_of(OUTPUTS[who])
        begun = time.perf_counter()
        process = self.start(who)
        first = peak = 0.0
        while process.poll() is None:
            peak = max(peak, memory_mb(process.pid))
            if not first and self.end_of(OUTPUTS[who]) > before:
                first = time.perf_counter() - begun
                firsts.append(first)
            time.sleep(0.05)
        seconds = time.perf_counter() - begun
        peaks.append(peak)
        assert process.returncode == 0, f"{who} failed: see {self.root}"
        return seconds

    def read_all(self) -> Path:
        """A project whose stream has read and written everything, near real time."""
        process = self.start("riverrun")
        assert process.wait() == 0, f"riverrun failed: see {self.root}"
        return self.root / f"turn-{self.turn}"

    def batch(self) -> float:
        """Seconds of a batch run over everything, in a project of its own."""
        self.turn += 1
        folder = self.root / f"turn-{self.turn}"
        folder.mkdir()
        return self._run(riverrun_command(folder, self.connection.bootstrap_servers, "batch"), folder)

    def verify(self, project: Path) -> float:
        """Seconds of `riverrun verify` over what a project's stream has read."""
        command = [sys.executable, "-m", "riverrun", "--project", str(project), "verify", str(JOB / "meters.py")]
        return self._run([*command, "--bootstrap-servers", self.connection.bootstrap_servers], project)

    def _run(self, command: list[str], folder: Path) -> float:
        begun = time.perf_counter()
        with (folder / "out.log").open("ab") as log:
            code = subprocess.run(command, stdout=log, stderr=log, cwd=folder, check=False).returncode
        assert code == 0, f"{command} failed: see {folder}"
        return time.perf_counter() - begun

    def drain(self, events: int) -> Drained:
        """riverrun over all there is, looked at several times a second."""
        begun = time.perf_counter()
        process = self.start("riverrun")
        folder = self.root / f"turn-{self.turn}"
        bite = folder / ".riverrun/streams/bench/by_riverrun/batch_size.json"
        seen = Drained()
        while process.poll() is None:
            self._look(seen, process.pid, Project(folder), bite, begun)
            time.sleep(0.25)
        self._look(seen, process.pid, Project(folder), bite, begun)
        assert process.returncode == 0, f"riverrun failed: see {self.root}"
        assert seen.reads[-1][1] == events, f"{seen.reads[-1][1]} of {events} were read"
        return seen

    def _look(self, seen: Drained, pid: int, project: Project, bite: Path, begun: float) -> None:
        now = time.perf_counter() - begun
        whole = memory_mb(pid)
        if whole:
            own = psutil.Process(pid).memory_info().rss / 1_000_000
            seen.memory.append((now, own, whole - own))
            seen.work.append((now, worked(pid)))
            # The last one found: Spark's launcher is a small JVM of its own.
            seen.heap = heap_of(pid) or seen.heap
        progress = stream_state.last_progress(project)
        if progress is None or not progress.streams:
            return
        stream = progress.streams[0]
        if not seen.reads and stream.phase == "running":
            seen.reads.append((now, 0))
        if seen.reads and stream.record_counts.read > seen.reads[-1][1]:
            seen.reads.append((now, stream.record_counts.read))
            shown = (
                f"  {stream.record_counts.read:,} read, {now:.0f} s; the last batch took {stream.batch_ms / 1000:.1f} s"
            )
            print(shown, file=sys.stderr)
        if bite.exists() and (rows := int(bite.read_text() or seen.bites[-1][1])) != seen.bites[-1][1]:
            seen.bites.append((now, rows))

    def latency(self, who: str, rate: int, seconds: float) -> list[float]:
        """Ages in milliseconds of rows as a reader gets them, after a warm-up of half the time."""
        forget(self.admin, READINGS)
        process = self.start(who, forever=True)
        try:
            return ages_of_rows(
                self.admin,
                OUTPUTS[who],
                rate=rate,
                seconds=seconds,
                alive=lambda: process.poll() is None,
                group=f"bench-{self.turn}",
            )
        except (ChildProcessError, TimeoutError) as error:
            raise SystemExit(f"{who}: {error}; see {self.root}") from error
        finally:
            end(process)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["backlog", "latency", "drain", "verify"])
    parser.add_argument("--events", type=int, help="default: 1,000,000; drain 10,000,000; verify 5,000,000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--speed", choices=["batch", "near-real-time", "real-time"], default="near-real-time")
    given = parser.parse_args()
    events = given.events or {"drain": 10_000_000, "verify": 5_000_000}.get(given.what, 1_000_000)
    root = Path(tempfile.mkdtemp(prefix="riverrun-bench-"))
    with LocalKafka(root / "kafka", KafkaSettings()) as kafka:
        connection = Connection(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
        load_app(JOB / "meters.py").apply(connection)
        bench = Bench(root, connection, given.speed)
        for topic in OUTPUTS.values():
            bench.admin.create_topic(topic, partitions=4, replicas=0, config={})
        if given.what == "backlog":
            fill(connection, events)
            firsts: dict[str, list[float]] = {who: [] for who in OUTPUTS}
            peaks: dict[str, list[float]] = {who: [] for who in OUTPUTS}
            runs = {who: lambda who=who: bench.backlog(who, firsts[who], peaks[who]) for who in OUTPUTS}
            totals = alternate(runs, given.repeats)
            report(f"{events:,} readings, {given.speed}: all read and written", totals, "s", against="by hand")
            report("first record in the output topic", firsts, "s", against="by hand")
            report("most memory of all its processes", peaks, "MB", against="by hand")
        elif given.what == "verify":
            fill(connection, events)
            project = bench.read_all()
            runs = {"verify": lambda: bench.verify(project), "the batch run": bench.batch}
            report(f"{events:,} readings, start included", alternate(runs, given.repeats), "s", against="the batch run")
        elif given.what == "drain":
            fill(connection, events)
            bench.drain(events).show()
        else:
            found: dict[str, list[list[float]]] = {who: [] for who in OUTPUTS}
            for _ in range(given.repeats):
                for who in OUTPUTS:
                    found[who].append(bench.latency(who, given.rate, given.seconds))
            for quantile, name in ((0.5, "p50"), (0.99, "p99")):
                figures = {who: [ages[int(len(ages) * quantile)] for ages in runs] for who, runs in found.items()}
                report(
                    f"{given.rate:,} events/s, {given.speed}: age of a row, {name}", figures, "ms", against="by hand"
                )
            print({who: statistics.median(len(run) for run in runs) for who, runs in found.items()}, "rows")
    shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
