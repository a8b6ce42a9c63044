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
import sys
from pathlib import Path

import houses
from account import wrong
from app import app
from page import Results, line, page
from rich.console import Console, RenderableType
from source import above_zero, moment

import riverrun as rr
from riverrun.artifacts import fetch_set
from riverrun.cli.fetch import make_progress
from riverrun.config import Project, load
from riverrun.demo.final_counts import FinalCounts
from riverrun.demo.runner import Demo, DemoOptions, LiveCounts, enter_project, run_demo

HERE = Path(__file__).parent


class City(Demo):
    """The demo of the meters: its own page, and what must hold of its counts besides."""

    phones_of = "The owners' phones"

    def __init__(
        self, console: Console, options: DemoOptions, stack: contextlib.ExitStack, more: argparse.Namespace
    ) -> None:
        super().__init__(console, options, stack, app)
        self._speed: float = more.speed
        self._picture: Path | None = more.picture

    def results(self) -> Results:
        return Results(app.streams)

    def page(self, numbers: LiveCounts, results: Results, width: int) -> RenderableType:
        return page(numbers, results, self._speed, width)

    def line(self, numbers: LiveCounts, results: Results) -> str:
        return line(numbers, results)

    def first_rows(self, rows: dict[str, int]) -> bool:
        return rows["house_load"] > 0

    def shown(self, numbers: LiveCounts, results: Results) -> None:
        if self._picture:
            self._picture.write_text(_picture(numbers, results, self._speed), encoding="utf-8")

    def final(self, final: FinalCounts) -> tuple[list[str], list[str]]:
        return final.lines(), final.violations() + wrong(final)


def _picture(numbers: LiveCounts, results: Results, speed: float) -> str:
    picture = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    picture.print(page(numbers, results, speed, 100))
    # Without the fonts that rich would load from elsewhere: a picture in the docs asks nobody for anything.
    return re.sub(r"@font-face \{.*?\}\s*", "", picture.export_svg(title="script/demo"), flags=re.DOTALL)


def run(options: argparse.Namespace) -> int:
    console = Console(highlight=False)
    artifacts = load(Project(HERE)).settings.artifacts
    for name in ("kafka", "spark-kafka"):
        fetch_set(name, artifacts, progress=make_progress())
    begin = ["--start", options.start.isoformat()] if options.start else []
    city = ["--houses", str(options.houses), "--speed", str(options.speed), *begin]
    chosen = DemoOptions(HERE, city, options.seconds, options.brokers, browser=not options.no_browser)
    return run_demo(console, lambda stack: City(console, chosen, stack, options))


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
    # The page says how fast time runs.
    os.environ["METERS_SPEED"] = str(options.speed)
    enter_project(HERE)
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
