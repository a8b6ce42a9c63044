"""The demo: a city of smart meters, live. Started by script/demo.

Brings a real Kafka up, starts the source application, runs the streams of app.py on Spark with their tables and dashboard,
tells the owners of overloads by SMS, on phones of this machine, and shows what flows. At the end it stops the source, lets
all be read, and counts: what was acknowledged was stored and read, each record came out, was filtered, or is dead with a
letter, and each overload is on one phone, once.
"""

import argparse
import contextlib
import io
import os
import re
import shutil
import sys
import threading
import time
import webbrowser
from pathlib import Path

import houses
from account import Alerts, Final
from app import app
from page import Numbers, Results, line, page
from parts import HERE, Part, Steps, riverrun, stopping
from rich.console import Console
from rich.live import Live
from source import above_zero, moment

import riverrun as rr
from riverrun.alerts.gateway.book import Book, Taken
from riverrun.alerts.kafka_log import read_ledger
from riverrun.alerts.unfinished import unfinished
from riverrun.artifacts import fetch_set
from riverrun.cli.fetch import shown_progress
from riverrun.config import Project, load
from riverrun.config.phone_state import find_phones, folder_of
from riverrun.config.run_state import running_state
from riverrun.config.serve_state import find_serving
from riverrun.config.stream_state import last
from riverrun.kafka.admin.admin import Admin
from riverrun.model.progress import PipelineProgress, StreamProgress

PLAIN_SECONDS = 5.0
# After Ctrl-C, for what the streams have still to read: everything is over within ten seconds.
PATIENCE_SECONDS = 4.0


class Demo:
    """Everything that runs; `stack` ends it, in the opposite order of its start."""

    def __init__(self, console: Console, options: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self._console = console
        self._options = options
        self._stack = stack
        self._parts: list[Part] = []

    def start(self, steps: Steps) -> None:
        options = self._options
        with steps.step("Starting Kafka", "Kafka is ready"):
            # Each demo starts from nothing, so that its counts are its own.
            riverrun("down", "--delete-data", "--yes")
            shutil.rmtree(folder_of(Project(HERE)), ignore_errors=True)
            self._part("kafka", "-m", "riverrun", "up", "--brokers", str(options.brokers))
            steps.until(self._kafka_runs, 120, "Kafka did not start")
            self._admin = Admin(rr.connect())
            app.apply()
        fresh = [word for name in app.streams for word in ("--fresh", name)]
        self._pipeline = self._part("pipeline", "-m", "riverrun", "run", "app.py", *fresh)
        # What is sent while Spark starts waits in Kafka: the first batch has something to show.
        begin = ["--start", options.start.isoformat()] if options.start else []
        city = ("--houses", str(options.houses), "--speed", str(options.speed), *begin)
        self._source = self._part("source", "source.py", *city)
        with steps.step("Starting Spark and the store", "The streams run, their tables and dashboard are served"):
            steps.until(lambda: self._all_running(read=0) and self._served(), 300, "the streams did not start")
        self._results = self._stack.enter_context(Results(app.streams))
        with steps.step("Waiting for the first figures", "The first figures are there"):
            steps.until(self._figures, 300, "the streams gave no figures")
        self._console.print(f"[bold]The dashboard is at {self._address}/[/bold]  (Ctrl-C ends the demo)")
        self._console.print(f"[bold]The owners' phones are at {self._phones}/[/bold]")
        self._console.print(f"What fires, and why, is at {self._address}/alerts")
        if not options.no_browser:
            show_in_browser(f"{self._address}/")

    def _part(self, name: str, *arguments: str) -> Part:
        part = Part(name, *arguments)
        self._stack.callback(part.stop)
        self._parts.append(part)
        return part

    def _kafka_runs(self) -> bool:
        self._check()
        state = running_state(Project(HERE))
        return state is not None and state.state == "ready"

    def _served(self) -> bool:
        self._check()
        serving, phones = find_serving(Project(HERE)), find_phones(Project(HERE))
        self._address = serving.address if serving is not None else ""
        self._phones = phones.address if phones is not None else ""
        return serving is not None and phones is not None

    def _all_running(self, *, read: int) -> bool:
        """Whether all streams run and have read so many records."""
        self._check()
        found = self._progress()
        return found is not None and all(
            each.phase == "running" and each.account.read >= read for each in found.streams
        )

    def _figures(self) -> bool:
        """Whether the first loads have come out."""
        self._check()
        self._progress()
        return self._results.rows()["house_load"] > 0

    def _check(self) -> None:
        for part in self._parts:
            part.check()

    def _progress(self) -> PipelineProgress | None:
        """What the pipeline last wrote; None before it has."""
        found = last(Project(HERE))
        if found is None or found.pid != self._pipeline.pid:
            return None
        for each in found.streams:
            if each.phase == "failed":
                raise SystemExit(f"The stream {each.name} failed: {each.error}")
        return found

    def _streams(self) -> list[StreamProgress]:
        found = self._progress()
        return found.streams if found is not None else []

    def _count(self, topic: str) -> int:
        """How many records a topic holds: nothing is deleted in the time of a demo."""
        found = self._admin.topics([topic], config=False).get(topic)
        return sum(self._admin.offsets(found.places, "latest", committed_only=True).values()) if found else 0

    def _messages(self) -> list[Taken]:
        """What is on the phones, by the gateway's own book."""
        with contextlib.closing(Book(folder_of(Project(HERE)) / "messages.sqlite")) as book:
            return book.newest(1_000_000)

    def _alerts(self) -> Alerts:
        ledger = read_ledger(rr.connect(), app.name)
        sent = {
            each.delivery.provider_id for each in ledger.sent.values() if each.delivery.state in ("sent", "delivered")
        }
        shown = [(each.receiver, each.text) for each in self._messages()]
        return Alerts(len(ledger.cases), len(sent), len(shown), len(shown) - len(set(shown)))

    def show(self, stop: threading.Event) -> None:
        """The live view, until the time is over or somebody stops it."""
        console, options = self._console, self._options
        ends = time.monotonic() + options.seconds if options.seconds else float("inf")
        due = time.monotonic() + PLAIN_SECONDS
        progress = self._progress()
        assert progress is not None  # noqa: S101  -- `start` has waited for it
        numbers, results = Numbers(progress), self._results
        with Live(console=console, auto_refresh=False, screen=False) as live:
            while True:
                self._check()
                results.check()
                numbers.progress = self._progress() or numbers.progress
                numbers.update(self._count("readings"), self._count("readings.dead"), len(self._messages()))
                over = time.monotonic() >= ends or stop.is_set()
                if console.is_terminal:
                    live.update(page(numbers, results, options.speed, console.width), refresh=True)
                elif time.monotonic() >= due:
                    due = time.monotonic() + PLAIN_SECONDS
                    console.print(line(numbers, results), soft_wrap=True)
                if over:
                    break
                stop.wait(0.5)
            if not console.is_terminal:
                console.print(page(numbers, results, options.speed, console.width))
            if options.picture:
                options.picture.write_text(_picture(numbers, results, options.speed), encoding="utf-8")

    def account(self, steps: Steps, *, asked: bool) -> int:
        """Stop the source, let everything be read, and compare the counts. Gives the exit code.

        Somebody who asked for the end gets it in seconds: on a machine that is too busy, without the counts.
        """
        sent = self._source.stop()
        self._parts.remove(self._source)
        stored = self._count("readings")
        ends = time.monotonic() + (PATIENCE_SECONDS if asked else 120)
        with steps.step("The streams read what is left", "The streams have read what they could"):
            while not self._all_running(read=stored) and time.monotonic() < ends:
                time.sleep(0.1)
        if not self._all_running(read=stored):
            behind = max(stored - each.account.read for each in self._streams())
            print(f"The streams are {behind:,} records behind: not counted. With --seconds the demo waits for them.")
            self._pipeline.ask_to_stop()
            return 0 if asked else 1
        with steps.step("The owners are told of what is left", "The owners have been told"):
            while (left := unfinished(rr.connect(), app.name)) and time.monotonic() < ends:
                time.sleep(0.2)
        with steps.step("Stopping Spark", "Spark has stopped"):
            self._pipeline.stop()
            self._results.finish()
        if left:
            print(f"The owners were not all told: {left}. Not counted. With --seconds the demo waits for them.")
            return 0 if asked else 1
        progress = self._progress()
        assert progress is not None  # noqa: S101
        final = Final(
            sent=sent,
            stored=stored,
            letters=self._count("readings.dead"),
            streams={each.name: each.account for each in progress.streams},
            rows=self._results.rows(progress),
            alerts=self._alerts(),
        )
        for each in final.lines():
            print(each)
        wrong = final.wrong()
        print(f"Something is wrong. This does not hold: {'; '.join(wrong)}." if wrong else "Nothing lost.")
        return 1 if wrong else 0


def _picture(numbers: Numbers, results: Results, speed: float) -> str:
    picture = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    picture.print(page(numbers, results, speed, 100))
    # Without the fonts that rich would load from elsewhere: a picture in the docs asks nobody for anything.
    return re.sub(r"@font-face \{.*?\}\s*", "", picture.export_svg(title="script/demo"), flags=re.DOTALL)


def show_in_browser(address: str) -> threading.Thread | None:
    """Open the page, where there is somewhere to open it. In a thread: some browsers are waited for until they close."""
    if not any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")):
        return None
    opening = threading.Thread(target=webbrowser.open, args=(address,), daemon=True)
    opening.start()
    return opening


def run(options: argparse.Namespace) -> int:
    console = Console(highlight=False)
    artifacts = load(Project(HERE)).settings.artifacts
    for name in ("kafka", "spark-kafka"):
        fetch_set(name, artifacts, progress=shown_progress())
    with stopping() as stop, contextlib.ExitStack() as stack:
        demo = Demo(console, options, stack)
        try:
            demo.start(Steps(console, stop))
        except KeyboardInterrupt:
            console.print("Stopping …")
            raise
        demo.show(stop)
        asked = stop.is_set()
        # From here on the next Ctrl-C is the second one, and does without the counts.
        stop.set()
        return demo.account(Steps(console, threading.Event()), asked=asked)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="script/demo",
        description="A city of smart meters, live: source, Kafka, streams on Spark, store, dashboard.",
    )
    parser.add_argument("--houses", type=int, default=2000, help="how many houses report (default: %(default)s)")
    parser.add_argument("--speed", type=above_zero, default=30, help="city time against ours (default: %(default)s)")
    parser.add_argument(
        "--start", type=moment, help="when the city's time begins, such as 2026-07-18T06:00 (default: 17:00)"
    )
    parser.add_argument(
        "--seconds", type=float, default=0, help="stop so long after the streams are at work (default: Ctrl-C)"
    )
    parser.add_argument("--brokers", type=int, default=1, help="brokers in the cluster (default: %(default)s)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address of the dashboard")
    parser.add_argument("--picture", type=Path, help="write the last frame to this SVG file")
    options = parser.parse_args()
    if options.picture:
        options.picture = options.picture.resolve()
    # What cannot be is said before anything is started.
    houses.read(options.houses)
    # For the demo and all it starts, wherever it is called from. The page says how fast time runs.
    os.environ |= {"RIVERRUN_PROJECT": str(HERE), "METERS_SPEED": str(options.speed)}
    os.chdir(HERE)
    try:
        return run(options)
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except rr.RiverrunError as error:
        print(f"{error.code}  {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
