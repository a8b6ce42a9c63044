"""riverrun beside other stream processors: the same job, broker and two cores, taking turns.

    python bench/peers/run.py [--events 5000000] [--rates 1000,10000] [--seconds 30] [--repeats 3]
                              [--only riverrun,quix,…] [--out docs] [--add results.json]

Writes the tables to <out>/peers.md (between its markers) and <out>/images/peers.svg; after each turn what there is goes to
~/.cache/riverrun-bench/results.json, from which `--render FILE` writes them again. A contender that fails is shown as
failed, one that is missing something says what; the others go on.
"""

import argparse
import contextlib
import functools
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

from contenders import CACHE, Contender, MissingError, all_contenders
from load import JOB, forget
from measure import machine
from report import Result, Results, between_markers, plot, section
from riverrun.app import load_app
from riverrun.artifacts.lock import read_lock
from riverrun.cluster.kafka.local import LocalKafka
from riverrun.config import KafkaSettings
from riverrun.errors import RiverrunError
from riverrun.kafka.connection import Connection
from turns import Arena, FailedError

CORES = 2
# Kafka's own default, not riverrun's: those with two members of a group join once. Without it one reads all until the
# other is there, and Faust counts twice what it read and had not committed.
BROKER = {"group.initial.rebalance.delay.ms": "3000"}
BARE = [(what, processes) for what in ("consume", "parse", "produce") for processes in (1, 2)]
STAGES = ("backlog", "bare", "start", "latency")


def main() -> int:
    # Whoever ends us ends the contender that runs, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    given = arguments()
    if given.render:
        write(Results.of_json(json.loads(given.render.read_text())), given.out)
        return 0
    chosen = [contender for contender in all_contenders() if not given.only or contender.name in given.only]
    # All share two cores, the broker and the load too, also where there are more.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    results = Results(about=about(given), rates=given.rates if "latency" in given.stages else [])
    if given.add:
        results = added(Results.of_json(json.loads(given.add.read_text())), results)
    ready = prepare(chosen, results)
    root = Path(tempfile.mkdtemp(prefix="riverrun-peers-"))
    with LocalKafka(root / "kafka", KafkaSettings(broker=BROKER)) as kafka:
        connection = Connection(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
        load_app(JOB / "meters.py").apply(connection)
        arena = Arena(root, connection)
        arena.make_topics(contender.output for contender in all_contenders())
        Meeting(arena, ready, results, given).run()
    write(results, given.out)
    failed = any(
        contender.failures or contender.missing or any(contender.wrong) for contender in results.contenders.values()
    )
    if failed:
        print(f"Not all went well; logs are in {root}", file=sys.stderr)
    else:
        shutil.rmtree(root, ignore_errors=True)
    return 0


def arguments() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(each) for each in text.split(",") if each]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=5_000_000, help="readings of the backlog")
    parser.add_argument("--rates", type=numbers, default=[1000, 10_000], help="readings a second, for the age of rows")
    parser.add_argument("--seconds", type=float, default=30, help="how long each rate is measured")
    parser.add_argument("--repeats", type=int, default=3)
    names = ", ".join(contender.name for contender in all_contenders())
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help=f"some of: {names}")
    parser.add_argument(
        "--stages", type=lambda text: text.split(","), default=STAGES, help=f"some of: {', '.join(STAGES)}"
    )
    parser.add_argument(
        "--limit", type=float, help="seconds for one turn over the backlog (default: 180 + events / 2,500)"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent.parent / "docs")
    parser.add_argument("--add", type=Path, metavar="FILE", help="go on with the figures of an earlier run")
    parser.add_argument(
        "--render", type=Path, metavar="FILE", help="only write the page and the plot of an earlier run"
    )
    given = parser.parse_args()
    known = {contender.name for contender in all_contenders()}
    if unknown := [name for name in given.only if name not in known]:
        parser.error(f"no such contender: {', '.join(unknown)}; there are: {names}")
    if unknown := [name for name in given.stages if name not in STAGES]:
        parser.error(f"no such stage: {', '.join(unknown)}; there are: {', '.join(STAGES)}")
    given.limit = given.limit or 180 + given.events / 2500
    return given


def about(given: argparse.Namespace) -> dict[str, str]:
    broker = next(artifact for artifact in read_lock("kafka").artifacts if artifact.name == "kafka-clients").version
    return {
        "Machine": f"{machine()}, of which {CORES} are used for all; {memory_gb():.0f} GB",
        "date": datetime.now(UTC).date().isoformat(),
        "broker": f"Kafka {broker}, one node",
        "turns": str(given.repeats),
        "command": f"`{command()}`",
    }


def command() -> str:
    """What was typed, without where files are."""
    words = list(sys.argv[1:])
    for option in ("--out", "--add"):
        if option in words:
            words[words.index(option) + 1] = "FILE"
    return shlex.join(["python", "bench/peers/run.py", *words])


def added(before: Results, now: Results) -> Results:
    """An earlier run that this one goes on with: its figures, and the commands of both."""
    command = f"{before.about['command']} and then {now.about['command']}"
    before.about = {**now.about, "turns": f"{before.about['turns']} + {now.about['turns']}", "command": command}
    before.rates = before.rates or now.rates
    return before


def memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def prepare(chosen: list[Contender], results: Results) -> list[Contender]:
    """Install each; those that can take part."""
    ready = []
    for each in chosen:
        new = Result(each.title, each.emits, each.promise, each.note, latency=each.latency, backlog=each.backlog)
        result = results.contenders.setdefault(each.name, new)
        try:
            result.version = each.prepare()
            ready.append(each)
        except MissingError as error:
            result.missing = str(error)
            print(f"  {each.name}: not run: {error}", file=sys.stderr)
    return ready


class Meeting:
    """All turns of all contenders."""

    def __init__(self, arena: Arena, ready: list[Contender], results: Results, given: argparse.Namespace) -> None:
        self.arena = arena
        self.ready = ready
        self.results = results
        self.given = given

    def run(self) -> None:
        stages = self.given.stages
        self.arena.prepare_start()
        for contender in self.ready:
            if not contender.settled():
                print(f"  {contender.name}: a first run, not measured", file=sys.stderr)
                self.arena.settle(contender)
        forget(self.arena.admin, "readings")
        if "backlog" in stages or "bare" in stages:
            print(f"filling {self.given.events:,} readings", file=sys.stderr)
            self.arena.fill(self.given.events)
            self.results.events = self.arena.events
            for turn in range(self.given.repeats):
                self.over_backlog(turn)
        if "start" in stages:
            self.arena.prepare_start()
            for turn in range(self.given.repeats):
                self.each(turn, "start", self.ready, self.start)
        if "latency" in stages:
            self.results.rates = self.given.rates
            rows = [each for each in self.ready if each.latency]
            for rate in self.given.rates:
                for turn in range(self.given.repeats):
                    self.each(turn, f"{rate:,}/s", rows, functools.partial(self.latency, rate=rate))
        forget(self.arena.admin, "readings")

    def over_backlog(self, turn: int) -> None:
        if "bare" in self.given.stages:
            for what, processes in BARE:
                name = f"{what}, {processes} process{'es' if processes > 1 else ''}"
                with contextlib.suppress(FailedError):
                    rate = self.arena.bare(what, processes, self.given.limit)
                    self.results.bare.setdefault(name, []).append(rate)
                    print(f"  {turn + 1}/{self.given.repeats}  bare {name}: {rate:,.0f}/s", file=sys.stderr)
        if "backlog" in self.given.stages:
            self.each(turn, "backlog", [each for each in self.ready if each.backlog], self.backlog)

    def each(self, turn: int, what: str, contenders: list[Contender], work: Callable[[Contender], str]) -> None:
        """A turn of each, there and back again, so that a noisy minute hits different ones."""
        for contender in contenders if turn % 2 == 0 else reversed(contenders):
            place = f"  {turn + 1}/{self.given.repeats}  {what:<10} {contender.name:<20}"
            begun = time.perf_counter()
            try:
                said = work(contender)
            except (FailedError, MissingError, RiverrunError) as error:
                said = f"FAILED: {error}"
                self.results.contenders[contender.name].failures.append(f"{what}: {error}".rstrip("."))
            print(f"{place} {said}  [{time.perf_counter() - begun:.0f} s]", file=sys.stderr, flush=True)
            save(self.results)

    def backlog(self, contender: Contender) -> str:
        found = self.arena.backlog(contender, self.given.limit)
        result = self.results.contenders[contender.name]
        result.wrong.append(found.wrong)
        result.add("seconds", found.seconds)
        result.add("rate", self.arena.events / found.seconds)
        result.add("memory", found.memory_mb)
        right = f"{found.wrong} of {len(self.arena.expected.rows)} wrong" if found.wrong else "all right"
        return f"{found.seconds:.1f} s, {found.memory_mb:,.0f} MB, {found.rows:,} rows, {right}"

    def start(self, contender: Contender) -> str:
        seconds = self.arena.start_up(contender)
        self.results.contenders[contender.name].add("start_up", seconds)
        return f"{seconds:.1f} s"

    def latency(self, contender: Contender, rate: int) -> str:
        ages = self.arena.latency(contender, rate, self.given.seconds)
        half, tail = (ages[int(len(ages) * quantile)] for quantile in (0.5, 0.99))
        result = self.results.contenders[contender.name]
        result.add(f"p50@{rate}", half)
        result.add(f"p99@{rate}", tail)
        return f"{half:,.0f} / {tail:,.0f} ms of {len(ages):,} rows"


def running_rates(results: Results) -> None:
    """Without the start, which is measured apart: the first row of a backlog comes after a batch of it is done."""
    for contender in results.contenders.values():
        contender.figures.pop("rate_running", None)
        start = contender.summary("start_up")
        for seconds in contender.figures.get("seconds", []):
            if start is not None and seconds > start.median:
                contender.add("rate_running", results.events / (seconds - start.median))


def save(results: Results) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "results.json").write_text(json.dumps(results.as_json(), indent=1))


def write(results: Results, out: Path) -> None:
    """The page and the plot."""
    running_rates(results)
    save(results)
    page = out / "peers.md"
    source = page if page.exists() else Path(__file__).parent.parent.parent / "docs" / "peers.md"
    text = between_markers(source.read_text(encoding="utf-8"), section(results))
    (out / "images").mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    (out / "images" / "peers.svg").write_text(plot(results), encoding="utf-8")
    print(f"{page} and {out / 'images' / 'peers.svg'} written", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
