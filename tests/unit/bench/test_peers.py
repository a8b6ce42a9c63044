"""bench/peers without servers: its statistics, tables and plot, and what it takes for a right row."""

import importlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

import psutil
import pytest

ROOT = Path(__file__).parents[3]
MODULES = ("report", "turns", "contenders", "load")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folders of the measurements, which are no packages, on the path for one test."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.syspath_prepend(str(ROOT / "bench" / "peers"))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def report(bench: None) -> ModuleType:
    return importlib.import_module("report")


@pytest.fixture
def turns(bench: None) -> ModuleType:
    return importlib.import_module("turns")


@pytest.fixture
def results(report: ModuleType) -> Any:
    """Three that ran, of which one was wrong, and one that could not."""
    ours = report.Result("riverrun", "each micro-batch", "exactly once", wrong=[0, 0, 0])
    ours.figures = {"rate": [90.0, 100.0, 120.0], "rate_running": [200.0], "memory": [900.0], "p50@1000": [1000.0]}
    ours.figures["p99@1000"] = [2000.0]
    fast = report.Result("Fast <peer>", "on window close", "at least once", latency=False, wrong=[0])
    fast.figures = {"rate": [300.0], "rate_running": [800.0], "memory": [300.0]}
    wrong = report.Result("Wrong peer", wrong=[0, 7])
    wrong.figures = {"rate": [9000.0, 9100.0], "p50@1000": [5.0], "p99@1000": [50.0]}
    absent = report.Result("Absent peer", missing="there is no Java compiler")
    contenders = {"riverrun": ours, "fast": fast, "wrong": wrong, "absent": absent}
    bare = {"parse, 1 process": [400.0, 500.0]}
    return report.Results({"Machine": "2 cores"}, 5_010_000, [1000], contenders, bare)


def cells(table: str, title: str) -> list[str]:
    line = next(line for line in table.splitlines() if line.startswith(f"| {title} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_summary_is_the_median_with_its_spread(report: ModuleType) -> None:
    assert report.Summary.of([]) is None
    assert report.Summary.of([7.0]).show() == "7"
    assert report.Summary.of([3.0, 1.0, 2.0, 9.0]) == report.Summary(2.5, 1.0, 9.0, 4)
    assert report.Summary.of([1500.0, 1000.0, 4000.0]).show(1) == "1,500.0 (1,000.0…4,000.0)"


def test_throughput_is_shown_beside_riverrun_and_the_bare_loop(report: ModuleType, results: Any) -> None:
    table = report.throughput_table(results)
    assert cells(table, "riverrun") == ["riverrun", "100 (90…120)", "1.00", "200", "0.44", "-", "900", "yes"]
    assert cells(table, "Fast <peer>") == ["Fast <peer>", "300", "3.00", "800", "1.78", "-", "300", "yes"]
    assert cells(table, "Wrong peer")[-1] == "**wrong** (7 rows)"
    assert cells(table, "Absent peer")[-1] == "not run"


def test_who_writes_on_close_has_no_latency(report: ModuleType, results: Any) -> None:
    table = report.latency_table(results)
    assert cells(table, "riverrun") == ["riverrun", "1,000", "1.00", "2,000", "1.00"]
    assert cells(table, "Fast <peer>") == ["Fast <peer>", "on close", "-", "on close", "-"]


def test_what_went_wrong_is_told(report: ModuleType, results: Any) -> None:
    results.contenders["fast"].failures.append("start: it ended: no | licence")
    table = report.about_table(results)
    assert "Not run: there is no Java compiler." in table
    assert "Failed: start: it ended: no \\| licence." in table


def test_losses_name_who_is_better_and_right(report: ModuleType, results: Any) -> None:
    results.contenders["riverrun-real-time"] = report.Result("riverrun, real time", figures={"p50@1000": [1.0]})
    lines = report.losses(results)
    assert lines == [
        "- **throughput with the start**, ours 100 records/s: Fast <peer> 300 (3.0 times better).",
        "- **throughput once started**, ours 200 records/s: Fast <peer> 800 (4.0 times better).",
        "- **most memory**, ours 900 MB: Fast <peer> 300 (3.0 times better).",
    ]
    del results.contenders["fast"]
    assert report.losses(results) == []
    assert "- In no figure that was measured." in report.section(results)


def test_riverrun_alone_loses_to_nobody_and_says_nothing(report: ModuleType, results: Any) -> None:
    results.contenders = {"riverrun": results.contenders["riverrun"]}
    assert "Where we lose" not in report.section(results)


def test_the_page_keeps_what_is_around_the_figures(report: ModuleType, results: Any) -> None:
    page = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    once = report.between_markers(page, "old")
    twice = report.between_markers(once, report.section(results))
    assert twice.startswith(page.partition(report.BEGIN_MARK)[0])
    assert twice.endswith(page.partition(report.END_MARK)[2])
    assert "\n\nold\n\n" not in twice
    assert "| riverrun | 100 (90…120) |" in twice
    with pytest.raises(ValueError, match="has no"):
        report.between_markers("a page without markers", "text")


def test_the_plot_shows_all_that_were_right(report: ModuleType, results: Any) -> None:
    space = {"svg": "http://www.w3.org/2000/svg"}
    drawn = ET.fromstring(report.plot(results))  # noqa: S314  our own text
    texts = [each.text for each in drawn.findall("svg:text", space)]
    assert [each.get("class") for each in drawn.findall("svg:rect", space)] == ["ours", "bar", "limit"]
    wide = [float(each.get("width", "")) for each in drawn.findall("svg:rect", space)]
    assert wide[1] == pytest.approx(4 * wide[0], rel=0.01)
    assert "Fast <peer>" in texts
    # The wrong one has no dots either.
    assert len(drawn.findall("svg:circle", space)) == 2


def test_a_plot_of_nothing_is_a_plot(report: ModuleType) -> None:
    empty = report.plot(report.Results(rates=[1000]))
    assert ET.fromstring(empty).tag.endswith("svg")  # noqa: S314


def test_results_come_back_from_their_file(report: ModuleType, results: Any) -> None:
    again = report.Results.of_json(json.loads(json.dumps(results.as_json())))
    assert again == results


@pytest.mark.parametrize(
    ("minute", "last"),
    [
        ({"start": "2026-01-01T00:01:00.000Z", "end": "2026-01-01T00:02:00.000Z"}, "2026-01-01T00:01:07.250Z"),
        (1_767_225_660_000, 1_767_225_667_250),
        ("2026-01-01T00:01:00+00:00", "2026-01-01T00:01:07.250000"),
        ("2026-01-01T00:01:00.000000000", "2026-01-01T00:01:07.250000000"),
    ],
)
def test_a_row_is_read_in_the_form_of_each_contender(turns: ModuleType, minute: Any, last: Any) -> None:
    row = {"house_id": "house-000001", "minute": minute, "load_kw": 1.5, "last": last}
    expected = turns.Row("house-000001", 1_767_225_660_000, 1.5, 1_767_225_667_250)
    assert turns.row_of(json.dumps(row).encode()) == expected
    assert turns.row_of(json.dumps(row | {"diff": 1}).encode()) == expected
    assert turns.row_of(json.dumps(row | {"diff": -1}).encode()) is None


def test_rows_that_are_missing_or_not_right_are_counted(turns: ModuleType) -> None:
    load = importlib.import_module("load")
    expected = turns.Expected()
    for house, load_kw, at in (("house-000001", 1.0, 0), ("house-000001", 2.0, 59_999), ("house-000002", 0.5, 60_000)):
        expected.add(load.reading(house, load_kw, load.BEGIN), at)
    begin = round(load.BEGIN.timestamp() * 1000)
    first = turns.Row("house-000001", begin, 1.5, begin + 59_999)
    second = turns.Row("house-000002", begin + 60_000, 0.5, begin + 60_000)
    found = {(each.house, each.minute): each for each in (first, second)}
    assert expected.wrong(found) == 0
    second.load_kw = 0.51
    assert expected.wrong(found) == 1
    first.last -= 1
    assert expected.wrong(found) == 2
    assert expected.wrong({}) == 2


def test_a_contender_is_ended_with_all_it_started(
    turns: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contenders = importlib.import_module("contenders")
    monkeypatch.setattr(turns, "STOP_SECONDS", 0.2)
    # Deaf to the polite signal, with a child that is too.
    deaf = (
        "import os, signal, time; signal.signal(2, signal.SIG_IGN); child = os.fork(); "
        "child and print(child, 'born', flush=True); time.sleep(600)"
    )
    turn = contenders.Turn(tmp_path, "127.0.0.1:1", "out", "one")
    running = turns.Running([contenders.Command([sys.executable, "-c", deaf])], turn)
    log = tmp_path / "out-1.log"
    while "born" not in log.read_text():
        assert running.alive()
    child = psutil.Process(int(log.read_text().split()[0]))
    running.stop()
    assert not running.alive()
    # It is told to end, and ends a moment later; nobody may be there to bury it.
    deadline = time.monotonic() + 60
    while not gone(child):
        assert time.monotonic() < deadline, "the child lives on"


def gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_contender_that_fails_says_its_last_line(turns: ModuleType, tmp_path: Path) -> None:
    contenders = importlib.import_module("contenders")
    fails = "import os; print(os.environ['BENCH_OUTPUT']); print('no licence'); raise SystemExit(3)"
    turn = contenders.Turn(tmp_path, "127.0.0.1:1", "out", "one")
    words = [[sys.executable, "-c", "print('all is well')"], [sys.executable, "-c", fails]]
    running = turns.Running([contenders.Command(word) for word in words], turn)
    for process in running.processes:
        process.wait()
    assert running.failed()
    assert running.last_line() == "no licence"
    assert (tmp_path / "out-2.log").read_text() == "out\nno licence\n"


def test_what_is_missing_is_said(bench: None, monkeypatch: pytest.MonkeyPatch) -> None:
    contenders = importlib.import_module("contenders")
    with pytest.raises(contenders.MissingError, match="pip could not: no such package"):
        contenders.call([sys.executable, "-c", "raise SystemExit('no such package')"], "pip could not")
    monkeypatch.setattr(contenders.shutil, "which", lambda _: None)
    java = next(all_contender for all_contender in contenders.all_contenders() if all_contender.name == "kafka-streams")
    with pytest.raises(contenders.MissingError, match="no Java compiler"):
        java.prepare()
