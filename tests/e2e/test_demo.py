"""`script/demo` from start to end: every record that was sent is followed through, and nothing is left running."""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from riverrun.config import Project
from riverrun.config.run_state import running_state
from riverrun.config.stream_state import is_running, last
from riverrun.errors import RecordUnreadableError
from riverrun.model.progress import Account

ROOT = Path(__file__).parents[2]
METERS = ROOT / "examples/meters"
HOUSES = 500


@pytest.fixture
def meters(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module of the example; afterwards nobody else sees its `app`."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(METERS)

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(METERS)):
            del sys.modules[name]


def numbers(text: str) -> dict[str, int]:
    """`read 1,200 = out 3 + dead 2` as a dict."""
    return {word: int(number.replace(",", "")) for word, number in re.findall(r"(\w+) ([\d,]*\d)", text)}


def left_behind() -> list[str]:
    """Processes of the demo that still live: they work in the example's folder, or were given a path in it."""
    found = []
    for each in psutil.process_iter(["pid", "cwd", "cmdline"]):
        words = [each.info["cwd"] or "", *(each.info["cmdline"] or [])]
        if each.info["pid"] != os.getpid() and any(str(METERS) in word for word in words):
            found.append(" ".join(words)[:200])
    return found


@pytest.mark.slow
@pytest.mark.timeout(330)
def test_the_demo_follows_every_record_and_loses_none(meters: Any) -> None:
    done = subprocess.run(
        [ROOT / "script/demo", "--seconds", "8", "--houses", str(HOUSES), "--speed", "120"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "Nothing lost."
    told = {line.split()[0]: numbers(line) for line in lines[-7:-1]}
    broken = told["source"]["purpose"]
    minutes, rest = divmod(told["source"]["acknowledged"] - broken, HOUSES)
    assert (rest, broken) == (0, minutes)
    assert minutes >= 20
    assert told["readings"] == {"stored": minutes * HOUSES + broken, "letters": broken}
    # What the streams found is what the same city comes to in plain Python.
    city = list(islice(meters("city").minutes(HOUSES, 1), minutes))
    high = sum(each.load_kw > 2.0 for minute in city for each in minute)
    assert high > 0
    read = minutes * HOUSES + broken
    assert told["high_load"] == {
        "read": read, "out": high, "filtered": minutes * HOUSES - high, "dead": broken, "late": 0,
    }  # fmt: skip
    assert told["watch"]["rows"] == told["watch"]["handled"] == high
    assert 0 < told["watch"]["alerts"] <= high
    for name in ("house_load", "street_load"):
        assert told[name] | {"out": 0} == {"read": read, "out": 0, "dead": broken, "late": 0}
    # Every house has a row for each minute, and each street for the minutes that are over.
    assert told["house_load"]["out"] >= minutes * HOUSES
    assert 0 < told["street_load"]["out"] <= minutes * 6
    nothing_runs()
    check_own_books(told["high_load"])


def nothing_runs() -> None:
    project = Project(METERS)
    assert running_state(project) is None
    assert not is_running(project)
    assert left_behind() == []


def check_own_books(told: dict[str, int]) -> None:
    """What the pipeline has written down is what the demo says."""
    books = json.loads((METERS / ".riverrun/streams/meters/high_load/account.json").read_text())["account"]
    assert {name: books[name] for name in told} == told
    progress = last(Project(METERS))
    assert progress is not None
    assert progress.ended_at


def test_the_demo_says_what_does_not_add_up(meters: Any) -> None:
    def final(**changes: Any) -> list[str]:
        high = Account(read=10, out=3, filtered=5, dead=2, exact=True)
        counts: dict[str, Any] = {
            "acknowledged": 10, "broken": 2, "stored": 10, "letters": 2, "streams": {"high_load": high},
            "rows": {"high_load": 3}, "handled": 3, "alerts": 1,
        }  # fmt: skip
        found: list[str] = meters("account").Final(**(counts | changes)).wrong()
        return found

    assert final() == []
    assert final(acknowledged=11) == ["acknowledged = stored"]
    assert final(letters=1) == ["broken = dead letters"]
    assert final(rows={"high_load": 2}) == ["all that went out is in its topic, once"]
    assert final(handled=2) == ["every row of high_load was handled"]
    lost = Account(read=10, out=2, filtered=5, dead=2, exact=True)
    assert final(streams={"high_load": lost}, rows={"high_load": 2}) == [
        "high_load: read = out + filtered + dead + late"
    ]
    behind = Account(read=9, out=2, filtered=5, dead=2, exact=True)
    assert final(streams={"high_load": behind}, rows={"high_load": 2}) == ["every stream read all that is stored"]


def test_every_broken_record_of_the_city_is_refused(meters: Any) -> None:
    city, readings = meters("city"), meters("app").readings
    reading = next(city.minutes(1, 1, datetime(2026, 1, 1, 17, tzinfo=UTC)))[0]
    for number in range(len(city.FAULTS)):
        with pytest.raises(RecordUnreadableError):
            readings.schema.decode(city.broken(reading, number))
