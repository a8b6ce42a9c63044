"""`script/demo` from start to end: every record that was sent is followed through, and nothing is left running."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from riverrun.config import Project
from riverrun.config.run_state import running_state
from riverrun.config.stream_state import is_running, last_progress
from riverrun.demo.final_counts import AlertCounts, FinalCounts
from riverrun.model.progress import RecordCounts
from support.meters import METERS, Example, example
from support.processes import left_behind

ROOT = Path(__file__).parents[2]
HOUSES = 500
BEGIN = datetime(2026, 11, 16, 17, 0, tzinfo=UTC)
# From Ctrl-C to the last process. Ten are promised, and kept on a machine with nothing else to do; here another test runs
# beside this one, and the demo's own streams are in the middle of their first batches.
MOST_SECONDS_TO_END = 25.0


@pytest.fixture
def meters() -> Iterator[Example]:
    with example() as found:
        yield found


def numbers(text: str) -> dict[str, int]:
    """`read 1,200 = out 3 + dead 2` as a dict."""
    return {word: int(number.replace(",", "")) for word, number in re.findall(r"(\w+) ([\d,]*\d)", text)}


@contextmanager
def running_demo(*options: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    command = [str(ROOT / "script/demo"), "--start", BEGIN.isoformat(), *options]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=os.environ | environment,
        start_new_session=True,
    ) as demo:
        try:
            yield demo
        finally:
            if demo.poll() is None:
                demo.send_signal(signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.timeout(330)
def test_the_demo_follows_every_record_and_loses_none(meters: Example, tmp_path: Path) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    options = ("--houses", str(HOUSES), "--speed", "120", "--seconds", "8")
    with running_demo(*options, BROWSER=f"{browser} %s") as demo:
        address = dashboard_of(demo)
        moving(address, city_loads(meters))
        rest, errors = demo.communicate(timeout=200)
    assert demo.returncode == 0, rest + errors
    assert "Traceback" not in errors
    nothing_runs()
    assert opened.read_text().strip() == f"{address}/"
    lines = rest.splitlines()
    assert lines[-1] == "Nothing lost."
    told = {line.split()[0]: numbers(line) for line in lines[-8:-1]}
    check_counts(meters, told)
    check_own_books(told["high_load"])


@pytest.mark.slow
@pytest.mark.timeout(330)
def test_ctrl_c_ends_everything_within_seconds() -> None:
    with running_demo("--houses", "200", "--no-browser") as demo:
        dashboard_of(demo)
        a_second_demo_is_refused(demo.pid)
        began = time.monotonic()
        demo.send_signal(signal.SIGINT)
        rest, errors = demo.communicate(timeout=120)
    assert time.monotonic() - began < MOST_SECONDS_TO_END, rest
    assert demo.returncode == 0, rest + errors
    assert "Traceback" not in errors
    # On a machine that is too busy it ends without its counts, and says so.
    assert re.search(r"^Nothing lost\.$|offsets behind: not counted|were not all told", rest, re.MULTILINE)
    nothing_runs()


def a_second_demo_is_refused(first: int) -> None:
    """In the same folder it deleted the first one's topics, and left its processes behind."""
    before = running_state(Project(METERS))
    command = [sys.executable, str(METERS / "demo.py"), "--no-browser"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert second.returncode == 1
    assert second.stderr.startswith("ALREADY_RUNNING")
    assert f"the demo of meters (pid {first}, since 20" in second.stderr
    assert f"`kill {first}`" in second.stderr
    assert running_state(Project(METERS)) == before


def dashboard_of(demo: "subprocess.Popen[str]") -> str:
    """The address, once the demo has said it."""
    assert demo.stdout is not None
    for line in demo.stdout:
        if found := re.match(r"The dashboard is at (\S+)/ ", line):
            return found[1]
    raise AssertionError(demo.communicate(timeout=60)[1])


def city_loads(meters: Example) -> list[float]:
    """The city's load in each minute of its first hours, in plain Python."""
    readings = islice(meters.city.minutes(meters.houses.read(HOUSES), BEGIN), 240)
    return [sum(each.load_kw for each in minute) for minute in readings]


def moving(address: str, loads: list[float]) -> None:
    """Figures that move, as a page gets them: until the city's load was that of three of its minutes, but for readings that
    came late."""
    right: set[float] = set()
    seen: list[float] = []
    with (
        httpx.Client(timeout=60, trust_env=False) as client,
        client.stream("GET", f"{address}/api/live/main") as frames,
    ):
        for line in frames.iter_lines():
            content = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
            for each in content.get("tiles", []):
                figures = each.get("rows") or [row for _, row in each.get("put", [])]
                if each["tile"] == "city-load" and figures and figures[-1][1] is not None:
                    seen.append(figures[-1][1])
            right |= {load for load in loads if seen and abs(load - seen[-1]) < load * 0.005}
            if len(right) > 2:
                return
    raise AssertionError(f"the page's stream ended after {seen}")


def check_counts(meters: Example, told: dict[str, dict[str, int]]) -> None:
    """What the streams found is what the same city comes to in plain Python."""
    source, minutes = told["source"], told["source"]["minutes"]
    houses, radio = meters.houses.read(HOUSES), meters.city.Radio()
    sent = [radio.send(each) for each in islice(meters.city.minutes(houses, BEGIN), minutes)]
    readings = sum(len(each.readings) for each in sent)
    assert source["broken"] == sum(len(each.broken) for each in sent) > 0
    assert source["twice"] == sum(each.twice for each in sent) > 0
    assert source["late"] == sum(each.late for each in sent)
    read = readings + source["broken"]
    assert source["acknowledged"] == read
    assert told["readings"] == {"stored": read, "letters": source["broken"]}
    high = sum(reading.load_kw > 2.0 for minute in sent for reading in minute.readings)
    assert told["high_load"] == {
        "read": read, "out": high, "filtered": readings - high, "dead": source["broken"], "late": 0,
    }  # fmt: skip
    assert told["alerts"]["fired"] == told["alerts"]["sent"] == told["alerts"]["phones"]
    assert 0 < told["alerts"]["fired"] <= high
    for name in ("house_load", "street_load", "episodes"):
        assert (told[name]["read"], told[name]["dead"]) == (read, source["broken"])
        assert told[name]["late"] <= source["late"]
        assert told[name]["out"] > 0


def nothing_runs() -> None:
    project = Project(METERS)
    assert running_state(project) is None
    assert not is_running(project)
    assert left_behind(METERS) == []


def check_own_books(told: dict[str, int]) -> None:
    """What the pipeline has written down is what the demo says."""
    books = json.loads((METERS / ".riverrun/streams/meters/high_load/record_counts.json").read_text())["record_counts"]
    books["dead"] = books.pop("dead_letters")
    assert {name: books[name] for name in told} == told
    progress = last_progress(Project(METERS))
    assert progress is not None
    assert progress.ended_at


def test_the_demo_says_what_does_not_add_up(meters: Example) -> None:
    sent = {"acknowledged": 10, "broken": 2, "twice": 0, "late": 1, "above": 3, "minutes": 1}

    def final(**changes: Any) -> list[str]:
        high = RecordCounts(read=10, out=3, filtered=5, dead_letters=2, exact=True)
        counts: dict[str, Any] = {
            "sent": sent, "stored": {"readings": 10}, "letters": {"readings": 2}, "streams": {"high_load": high},
            "needed": {"high_load": 10}, "rows": {"high_load": 3}, "alerts": AlertCounts(2, 2, 2, 0),
        }  # fmt: skip
        counted = FinalCounts(**(counts | changes))
        return counted.violations() + list(meters.account.wrong(counted))

    assert final() == []
    assert final(sent=sent | {"above": 4}) == ["every reading above 2 kW is a row of high_load"]
    high = RecordCounts(read=10, out=3, filtered=3, dead_letters=2, late=2, exact=True)
    assert final(streams={"high_load": high}) == ["no stream left out more as late than was sent late"]
    assert final(alerts=AlertCounts(3, 2, 2, 0)) == ["every overload that fired was sent"]
    assert final(alerts=AlertCounts(2, 2, 1, 0)) == ["every SMS is on a phone, once"]
    assert final(alerts=AlertCounts(2, 2, 2, 1)) == ["no owner is told twice"]
