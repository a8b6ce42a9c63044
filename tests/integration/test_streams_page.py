"""What docs/streams.md shows is run: each section as a pipeline file, its streams with the test kit."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from riverrun.app import load_app
from riverrun.testing import StreamTest

# A busy machine takes its time.
pytestmark = pytest.mark.timeout(600)

PAGE = Path(__file__).parents[2] / "docs" / "streams.md"
BLOCK = re.compile(r"^```(python|csv)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BEGINNING = "The pipeline file"
CHECKS: dict[str, Callable[[StreamTest], None]] = {}


def sections() -> dict[str, list[tuple[str, str]]]:
    """The code of each section: (file name or empty, text)."""
    found = {}
    for part in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        if blocks := [(block[2] or "", block[3]) for block in BLOCK.finditer(text)]:
            found[title] = blocks
    return found


def check(title: str) -> Callable[[Callable[[StreamTest], None]], Callable[[StreamTest], None]]:
    def add(function: Callable[[StreamTest], None]) -> Callable[[StreamTest], None]:
        CHECKS[title] = function
        return function

    return add


def pipeline(title: str, folder: Path) -> Path:
    code = [text for name, text in sections()[BEGINNING] if not name]
    for name, text in sections()[title]:
        if name:
            (folder / name).write_text(text, encoding="utf-8")
        else:
            code.append(text)
    file = folder / f"page_{re.sub('[^a-z]+', '_', title.lower())}.py"
    file.write_text("\n\n".join(code), encoding="utf-8")
    return file


def at(minute: int, second: int = 0) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minute, seconds=second)


def span(first: int, last: int) -> dict[str, datetime]:
    return {"start": at(first), "end": at(last)}


def reading(house: str, load: float, minute: int, second: int = 0) -> dict[str, Any]:
    return {"house_id": house, "load_kw": load, "at": at(minute, second)}


@check("Filter and map")
def _(t: StreamTest) -> None:
    t.send("readings", reading("h1", 2.5, 0), reading("h2", 1.0, 0))
    assert t.rows("high_watts") == [{"house_id": "h1", "at": at(0), "load_w": 2500.0}]


@check("Tumbling windows")
def _(t: StreamTest) -> None:
    t.send("readings", reading("h1", 1.0, 0), reading("h1", 2.0, 0, 59), reading("h1", 9.0, 1))
    assert t.rows("house_load") == [
        {"minute": span(0, 1), "house_id": "h1", "load_kw": 1.5},
        {"minute": span(1, 2), "house_id": "h1", "load_kw": 9.0},
    ]


@check("Sliding windows")
def _(t: StreamTest) -> None:
    t.send("readings", reading("h1", 1.0, 6), reading("h1", 2.0, 12))
    assert t.rows("recent_peak") == [
        {"span": span(0, 10), "house_id": "h1", "peak_kw": 1.0},
        {"span": span(5, 15), "house_id": "h1", "peak_kw": 2.0},
        {"span": span(10, 20), "house_id": "h1", "peak_kw": 2.0},
    ]


@check("Session windows")
def _(t: StreamTest) -> None:
    t.send("readings", reading("h1", 1.0, 0), reading("h1", 1.0, 4), reading("h1", 0.0, 8), reading("h1", 1.0, 10))
    t.advance(at(17))
    assert t.rows("sessions") == [
        {"session": span(0, 9), "house_id": "h1", "readings": 2},
        {"session": span(10, 15), "house_id": "h1", "readings": 1},
    ]


@check("Columns of a CSV file")
def _(t: StreamTest) -> None:
    t.send("readings", reading("h1", 8.5, 0), reading("h1", 7.0, 1), reading("h2", 99.0, 0))
    row = {"house_id": "h1", "at": at(0), "owner": "Ann, Main Street", "load_kw": 8.5, "limit_kw": 8.0}
    assert t.rows("over_limit") == [row]


@check("Watermarks and late data")
def _(t: StreamTest) -> None:
    t.send("readings", reading("h1", 1.0, 0))
    t.advance(at(2))
    t.send("readings", reading("h1", 2.0, 0, 59))
    t.advance(at(3))
    t.send("readings", reading("h1", 4.0, 0, 59))
    assert t.rows("minute_load") == [{"minute": span(0, 1), "load_kw": 3.0}]
    assert t.record_counts("minute_load").late == 1


@check("Join with a table")
def _(t: StreamTest) -> None:
    t.send("tariff_changes", {"house_id": "h1", "price": 10.0}, {"house_id": "h1", "price": 2.0})
    t.send("readings", reading("h1", 1.0, 0), reading("h2", 2.0, 0), reading("h9", 9.0, 0))
    assert t.rows("street_load") == [
        {"minute": span(0, 1), "street": "Main Street", "load_kw": 1.0},
        {"minute": span(0, 1), "street": "Side Street", "load_kw": 2.0},
    ]
    first = {"house_id": "h1", "at": at(0), "cost": 2.0}
    others = [{"house_id": "h2", "at": at(0), "cost": None}, {"house_id": "h9", "at": at(0), "cost": None}]
    assert t.rows("cost") == [first, *others]
    t.send("tariff_changes", {"house_id": "h2", "price": 3.0})
    t.send("tariff_changes", None, key="h1")
    t.send("readings", reading("h1", 1.0, 1), reading("h2", 1.0, 1))
    assert t.rows("cost")[3:] == [
        {"house_id": "h1", "at": at(1), "cost": None},
        {"house_id": "h2", "at": at(1), "cost": 3.0},
    ]


@check("Join of two streams")
def _(t: StreamTest) -> None:
    t.send("readings", reading("h1", 1.0, 0), reading("h1", 2.0, 1, 30), reading("h2", 3.0, 2))
    t.send("outages", {"house_id": "h1", "began": at(2)})
    assert t.rows("load_before_outage") == [{"house_id": "h1", "began": at(2), "at": at(1, 30), "load_kw": 2.0}]


@check("Drop duplicates")
def _(t: StreamTest) -> None:
    t.send("readings", reading("h1", 1.0, 0), reading("h1", 1.0, 0), reading("h1", 1.0, 1))
    t.advance(at(1))
    t.send("readings", reading("h1", 1.0, 0))
    assert t.rows("once") == [reading("h1", 1.0, 0), reading("h1", 1.0, 1)]


@check("Top N of each window")
def _(t: StreamTest) -> None:
    t.send("readings", reading("h1", 1.0, 0), reading("h2", 5.0, 1), reading("h1", 3.0, 2), reading("h3", 2.0, 3))
    t.advance(at(61))
    assert t.rows("top_two") == []
    t.advance(at(62))
    best = [{"load_kw": 5.0, "house_id": "h2"}, {"load_kw": 4.0, "house_id": "h1"}]
    assert t.rows("top_two") == [{"hour": span(0, 60), "best": best}]
    assert t.batch("top_two") == t.rows("top_two")


@check("State of your own")
def _(t: StreamTest) -> None:
    t.send("readings", reading("h1", 3.0, 0), reading("h1", 3.0, 1), reading("h2", 3.0, 0))
    assert t.rows("high_for") == [{"house_id": "h1", "at": at(1), "high_for": 60.0}]
    t.send("readings", reading("h1", 3.0, 2), reading("h2", 1.0, 1), reading("h2", 3.0, 2))
    assert t.rows("high_for")[1:] == [{"house_id": "h1", "at": at(2), "high_for": 120.0}]


@check("Python functions")
def _(t: StreamTest) -> None:
    t.send("readings", reading("north-1", 1.5, 0))
    assert t.rows("districts") == [{"house_id": "north-1", "district": "north", "load_w": 1500.0}]


@check("Union")
def _(t: StreamTest) -> None:
    t.send("readings", reading("h1", 1.0, 0))
    t.send("outages", {"house_id": "h2", "began": at(1)})
    rows = t.rows("seen")
    assert sorted(rows, key=lambda each: each["at"]) == [
        {"house_id": "h1", "at": at(0)},
        {"house_id": "h2", "at": at(1)},
    ]


@check("SQL")
def _(t: StreamTest) -> None:
    t.send("readings", reading("h1", 1.0, 0), reading("h1", 2.0, 59), reading("h1", 9.0, 6 * 60))
    assert t.rows("night_load") == [{"hour": span(0, 60), "house_id": "h1", "load_kw": 3.0}]


@check("Streams that feed streams")
def _(t: StreamTest) -> None:
    t.send("readings", reading("h1", 3.0, 0), reading("h2", 1.0, 0))
    assert t.rows("overload") == [{"minute": span(0, 1), "house_id": "h1", "load_kw": 3.0}]
    t.send("readings", reading("h1", 5.0, 0, 30))
    t.advance(at(3))
    assert t.rows("overload") == [{"minute": span(0, 1), "house_id": "h1", "load_kw": 4.0}]
    assert [row["load_kw"] for row in t.changes("overload")] == [3.0, 4.0]
    assert t.rows("city_minutes") == [{"minute": span(0, 1), "load_kw": 5.0}]
    assert t.rows("hourly_peak") == []
    t.advance(at(63))
    assert t.rows("hourly_peak") == [{"hour": span(0, 60), "peak_kw": 4.0}]


@pytest.mark.parametrize("title", [section for section in sections() if section not in (BEGINNING, "Tests")])
def test_a_section(title: str, tmp_path: Path, stream_test: Callable[..., StreamTest]) -> None:
    CHECKS[title](stream_test(pipeline(title, tmp_path)))


def test_the_section_on_tests(tmp_path: Path, stream_test: Callable[..., StreamTest]) -> None:
    import sys

    file = pipeline("Tests", tmp_path)
    load_app(file)
    sys.modules[f"riverrun_app_{file.stem}"].test_high_watts(stream_test)
