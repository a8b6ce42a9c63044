"""`script/demo` as a user runs it: when its first figures are there, how old figures are on the page, what it costs.

    python bench/demo.py                                               this checkout, once, 120 s
    python bench/demo.py before=../before after=. --repeats 2          two checkouts, taking turns

The demo sends a burst of 2,000 readings every two seconds: a city minute. For every figure of the page that has a time, and
every city minute, the age is the time from Kafka's timestamp of the first reading by which that figure can be known to the
moment a client of the page's live stream shows it. That is the minute's own first reading, or, for results that are written
once and never change (WAITS), the one that says that no reading of the minute is waited for any more. Ages are counted by
the second of the demo, from its first line to its last, so the first minute is in the table; the summary is of what came
from second 60 on.
"""

import argparse
import json
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
from confluent_kafka import Consumer

from load import is_java, memory_mb, worked
from measure import machine
from riverrun.config import Project
from riverrun.config.run_state import running_state
from riverrun.config.stream_state import last_progress

HERE = Path(__file__).parents[1]
# What comes before is warm-up, and in the table only.
STEADY_FROM = 60
STEP = 10
TOPIC = "readings"
# City minutes until a row of a table is final: a window of a minute or a gap of 90 seconds, and 2 minutes for late ones.
WAITS = {"street_load": 3, "episodes": 3}
START_SECONDS, END_SECONDS = 900, 300
STEPS = ("Kafka", "streams run", "first figures")


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else sum(values)


class Arrivals(threading.Thread):
    """When the first reading of each city minute arrived in Kafka, by the broker's record timestamps."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer({
            "bootstrap.servers": bootstrap_servers, "group.id": "bench-demo", "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        })  # fmt: skip
        self._consumer.subscribe([TOPIC])
        self.minutes: dict[float, float] = {}
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.is_set():
            for message in self._consumer.consume(2000, 0.2):
                try:
                    at = datetime.fromisoformat(json.loads(message.value() or b"")["at"])
                except (ValueError, KeyError, TypeError):
                    continue  # Some readings are broken on purpose.
                if message.error() is None:
                    minute, arrived = at.timestamp() // 60 * 60, message.timestamp()[1] / 1000
                    self.minutes[minute] = min(arrived, self.minutes.get(minute, arrived))
        self._consumer.close()


class Page(threading.Thread):
    """A viewer of the dashboard without a browser: when each figure first showed a city minute."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._columns: dict[str, tuple[str, int]] = {}
        self.waits: dict[str, int] = {}
        # By tile: the newest minute seen at a time, in order.
        self.shown: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.done = threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self._address, timeout=60, trust_env=False) as client:
            board = client.get("/api/dashboards").json()["dashboards"][0]
            self.waits = {
                tile["name"]: max(WAITS.get(name, 0) for name in tile["tables"] or [""]) for tile in board["tiles"]
            }
            self._follow(client, board["name"])

    def _follow(self, client: httpx.Client, board: str) -> None:
        with client.stream("GET", f"/api/live/{board}") as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if self.done.is_set():
                    return
                if line.startswith("data: "):
                    for tile in json.loads(line[6:]).get("tiles", ()):
                        self._take(tile)

    def _take(self, tile: dict[str, Any]) -> None:
        name = tile["tile"]
        if columns := tile.get("columns"):
            times = [number for number, column in enumerate(columns) if column["type"] == "time"]
            self._columns[name] = (columns[times[0]]["name"], times[0]) if times else ("", -1)
        column, number = self._columns.get(name, ("", -1))
        # Tables of overloads show when one began or ended, which is not when their newest reading was made.
        if column not in {"at", "minute"}:
            return
        rows = tile.get("rows") or [row for _, row in tile.get("put", ())]
        newest = max((row[number] for row in rows if row[number] is not None), default=0) / 1000
        if newest and (not self.shown[name] or newest > self.shown[name][-1][1]):
            self.shown[name].append((time.time(), newest))


@dataclass
class Usage:
    """What was used at a second of the demo."""

    second: float
    cores: float
    spark_mb: float
    all_mb: float
    batch_ms: dict[str, int]


@dataclass
class Run:
    """One demo, measured."""

    steps: dict[str, float] = field(default_factory=dict)
    first_figures: float = 0.0
    # Seconds of processor time that all of it took until then: what is left to gain where cores are busy.
    processor: float = 0.0
    # Seconds of the demo at which a minute was shown, and its age in seconds then; by tile.
    ages: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    usage: list[Usage] = field(default_factory=list)
    last_words: str = ""

    @property
    def steady(self) -> list[float]:
        return [age for tile in self.ages.values() for second, age in tile if second >= STEADY_FROM]

    def worst(self, begin: float) -> dict[str, float]:
        """The highest age of each tile within a step of the table."""
        return {
            name: max((age for second, age in tile if begin <= second < begin + STEP), default=float("nan"))
            for name, tile in self.ages.items()
        }


def spark_mb(pid: int) -> float:
    """What Spark's JVM holds."""
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if is_java(process) and any("SparkSubmit" in word for word in process.cmdline()):
                return float(process.memory_info().rss / 1_000_000)
        except psutil.Error:
            continue
    return 0.0


def watch(demo: "subprocess.Popen[str]", project: Project, began: float, run: Run, done: threading.Event) -> None:
    """Take a look at processor, memory and batches every few seconds."""
    seen_at, seen = time.time(), worked(demo.pid)
    while not done.wait(STEP / 2):
        now, used = time.time(), worked(demo.pid)
        progress = last_progress(project)
        batches = {stream.name: stream.batch_ms for stream in progress.streams} if progress else {}
        run.usage.append(
            Usage(now - began, (used - seen) / (now - seen_at), spark_mb(demo.pid), memory_mb(demo.pid), batches)
        )
        seen_at, seen = now, used


def measured(checkout: Path, seconds: float) -> Run:
    """Run the demo of a checkout for so many seconds after its first figures."""
    folder, run = checkout / "examples" / "meters", Run()
    subprocess.run([checkout / "script" / "setup"], check=True)
    began = time.time()
    command = [str(checkout / "script" / "demo"), "--seconds", f"{seconds:g}", "--no-browser"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    done, watcher = threading.Event(), None
    page: Page | None = None
    arrivals: Arrivals | None = None
    said: list[str] = []
    try:
        assert demo.stdout is not None
        for line in demo.stdout:
            said.append(line.rstrip())
            print(f"  {time.time() - began:6.1f}  {line.rstrip()}", file=sys.stderr)
            if step := re.search(r"(.*) \((\d+\.\d) s\)", line):
                run.steps |= {name: float(step[2]) for name in STEPS if name in step[1]}
            if page is None and "dashboard is at" in line and (address := re.search(r"http://[^/\s]+", line)):
                run.first_figures, run.processor = time.time() - began, worked(demo.pid)
                state = running_state(Project(folder))
                assert state is not None
                page, arrivals = Page(address[0]), Arrivals(state.bootstrap_servers)
                watcher = threading.Thread(target=watch, args=(demo, Project(folder), began, run, done), daemon=True)
                for thread in (page, arrivals, watcher):
                    thread.start()
            if page is not None and arrivals is not None and "read what is left" in line:
                # From here on it ends, and the page with it.
                for event in (page.done, arrivals.done, done):
                    event.set()
        demo.wait(END_SECONDS)
    finally:
        if demo.poll() is None:
            demo.send_signal(signal.SIGINT)
            demo.wait(END_SECONDS)
    run.last_words = said[-1] if said else ""
    if page is None or arrivals is None or demo.returncode:
        raise SystemExit(f"The demo of {checkout} failed with exit code {demo.returncode}: {run.last_words}")
    run.ages = ages(page, arrivals, began)
    if not any(run.ages.values()):
        raise SystemExit(
            f"No figure of the page was seen to change: nothing was measured (tiles: {sorted(page.shown)})."
        )
    return run


def ages(page: Page, arrivals: Arrivals, began: float) -> dict[str, list[tuple[float, float]]]:
    """How old each minute was when a figure first showed it, or a later one."""
    first_seen = min((shown[0][0] for shown in page.shown.values() if shown), default=0.0)
    found: dict[str, list[tuple[float, float]]] = {}
    for name, shown in page.shown.items():
        changes = list(shown)
        for minute in sorted(arrivals.minutes):
            arrived = arrivals.minutes.get(minute + page.waits[name] * 60)
            # Not final when the demo ended, or there before anybody looked.
            if arrived is None or arrived < first_seen:
                continue
            while changes and changes[0][1] < minute:
                changes.pop(0)
            if not changes:
                break
            found.setdefault(name, []).append((changes[0][0] - began, changes[0][0] - arrived))
    return found


def show(title: str, run: Run) -> None:
    names = sorted(run.ages)
    print(f"\n{title}: worst age in seconds of each figure, by seconds of the demo  ({machine()})")
    print(
        f"{'second':>8}"
        + "".join(f"{name[:16]:>18}" for name in names)
        + f"{'cores':>7}{'Spark MB':>10}{'all MB':>8}  batch ms"
    )
    end = max((second for tile in run.ages.values() for second, _ in tile), default=0)
    for begin in range(int(run.first_figures // STEP * STEP), int(end) + 1, STEP):
        worst = run.worst(begin)
        used = [usage for usage in run.usage if begin <= usage.second < begin + STEP]
        row = "".join(f"{worst[name]:>18.1f}" for name in names)
        if used:
            row += (
                f"{statistics.mean(usage.cores for usage in used):>7.2f}{max(usage.spark_mb for usage in used):>10,.0f}"
            )
            row += f"{max(usage.all_mb for usage in used):>8,.0f}  "
            row += " ".join(f"{name} {milliseconds}" for name, milliseconds in used[-1].batch_ms.items())
        print(f"{begin:>8}{row}")


def summary(name: str, runs: list[Run]) -> None:
    steady = [age for run in runs for age in run.steady]
    firsts = [run.first_figures for run in runs]
    parts = " + ".join(f"{statistics.median(run.steps.get(step, 0.0) for run in runs):.1f}" for step in STEPS)
    spark = max(usage.spark_mb for run in runs for usage in run.usage)
    everything = max(usage.all_mb for run in runs for usage in run.usage)
    cores = statistics.mean(usage.cores for run in runs for usage in run.usage if usage.second >= STEADY_FROM)
    print(
        f"{name:<10} first figures {statistics.median(firsts):.1f} s ({min(firsts):.1f}…{max(firsts):.1f}; {parts}; "
        f"{statistics.median(run.processor for run in runs):.0f} s of processor time); age from "
        f"second {STEADY_FROM} on p50 {percentile(steady, 50):.2f} s, p95 {percentile(steady, 95):.2f} s, "
        f"worst {max(steady, default=0.0):.2f} s ({len(steady)} changes); "
        f"Spark {spark:,.0f} MB, all {everything:,.0f} MB; {cores:.2f} cores"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "checkout", nargs="*", default=[f"here={HERE}"], help="NAME=FOLDER of a checkout (default: this one)"
    )
    parser.add_argument("--seconds", type=float, default=120, help="after the first figures (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args()
    checkouts = {name: Path(folder).resolve() for name, _, folder in (each.partition("=") for each in given.checkout)}
    runs: dict[str, list[Run]] = {name: [] for name in checkouts}
    for turn in range(given.repeats):
        for name in checkouts if turn % 2 == 0 else reversed(checkouts):
            print(f"{datetime.now(UTC):%H:%M:%S}  {name}, {turn + 1} of {given.repeats}", file=sys.stderr)
            runs[name].append(measured(checkouts[name], given.seconds))
            show(f"{name}, {turn + 1} of {given.repeats}", runs[name][-1])
    print(f"\n{given.repeats} x {given.seconds:g} s, {machine()}")
    for name in checkouts:
        summary(name, runs[name])


if __name__ == "__main__":
    main()
