"""`riverrun fetch`: what it prints, where, and its exit codes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverrun.artifacts.lock import format_lock
from riverrun.cli.fetch import BarProgress, LineProgress
from riverrun.cli.main import run
from support.maven import Bench, MavenServer


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A user whose riverrun knows one small set, called made."""
    server = MavenServer()
    made = Bench(tmp_path, server)
    locks = tmp_path / "locks"
    locks.mkdir()
    (locks / "made.lock").write_text(format_lock(made.lock), encoding="utf-8")
    monkeypatch.setattr("riverrun.artifacts.lock.lock_folder", lambda: locks)
    monkeypatch.setattr("riverrun.artifacts.maven_settings.SYSTEM_FILES", ())
    monkeypatch.setenv("HOME", str(made.home))
    monkeypatch.setenv("RIVERRUN_ARTIFACTS_CACHE_DIR", str(made.cache_dir))
    monkeypatch.setenv("RIVERRUN_PROJECT", str(tmp_path))
    yield made
    server.close()


def test_fetching_prints_an_account(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fetch", "--maven-url", bench.server.url]) == 0
    out, err = capsys.readouterr()
    header, row = out.splitlines()
    assert header.split() == ["SET", "FILES", "MB", "CACHED", "FROM", "M2", "DOWNLOADED", "DOWNLOADED", "MB", "SECONDS"]
    assert row.split()[:6] == ["made", "3", "1.2", "0", "0", "3"]
    assert err.splitlines()[0] == "made: fetching 3 files, 1.2 MB"
    assert f"Downloaded from {bench.server.url} (artifacts.maven_url)." in err
    assert f"They are in {bench.cache_dir}." in err


def test_json_names_every_file(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fetch", "made", "made", "--json", "--maven-url", bench.server.url]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["paths"] == [str(bench.cached(name)) for name in bench.artifacts]
    assert (row["downloaded"], row["repository"]) == (3, f"{bench.server.url} (artifacts.maven_url)")


def test_the_list_shows_what_is_here_and_fetches_nothing(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.fetch()
    bench.cached("small").write_bytes(b"")
    bench.cached("middle").unlink()
    asked = len(bench.server.requests)
    assert run(["fetch", "--list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {"set": "made", "files": 3, "mb": 1.2, "good": 1, "missing": 1, "corrupt": 1, "missing_mb": 0.1}
    assert len(bench.server.requests) == asked


def test_offline_fails_when_something_is_missing(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fetch", "--offline"]) == 1
    assert capsys.readouterr().err.startswith("ARTIFACT_MISSING  3 of 3 files of the set 'made'")
    bench.fetch()
    assert run(["fetch", "--offline"]) == 0


def test_a_changed_file_is_refused_and_repaired(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.fetch()
    bench.cached("small").write_bytes(b"")
    assert run(["fetch", "--maven-url", bench.server.url]) == 1
    assert f"ARTIFACT_CORRUPT  The cached file {bench.cached('small')} is not" in capsys.readouterr().err
    assert run(["fetch", "--repair", "--maven-url", bench.server.url]) == 0
    assert bench.cached("small").read_bytes() == bench.content("small")


def test_an_unknown_set_is_refused_before_anything_is_fetched(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fetch", "made", "maed", "--maven-url", bench.server.url]) == 2
    assert "There is no set 'maed'" in capsys.readouterr().err
    assert bench.server.requests == []


def test_a_wrong_address_is_a_mistake_in_the_settings(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fetch", "--maven-url", "not an address"]) == 2
    assert "CONFIG_INVALID  1 problem in the configuration:" in capsys.readouterr().err


def test_lines_for_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    progress = LineProgress()
    progress.start("made", 1, 1_000_000)
    for _ in range(10):
        progress.advance(100_000)
    progress.note("x-1.0.jar: the connection was cut; next try in 0.5 s")
    progress.done()
    assert capsys.readouterr().err.splitlines() == [
        "made: fetching 1 file, 1.0 MB",
        "made: 25 %, 0.3 MB",
        "made: 50 %, 0.5 MB",
        "made: 75 %, 0.8 MB",
        "made: 100 %, 1.0 MB",
        "made: x-1.0.jar: the connection was cut; next try in 0.5 s",
    ]


def test_a_bar_for_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    progress = BarProgress()
    progress.start("made", 2, 10)
    progress.advance(12)
    progress.advance(-2)
    progress.note("x-1.0.jar: [not markup]")
    progress.done()
    out, err = capsys.readouterr()
    assert out == ""
    assert "x-1.0.jar: [not markup]" in err
    assert "made: 2 files" in err
    assert "10/10 bytes" in err


def test_the_next_set_begins_at_nothing_again(capsys: pytest.CaptureFixture[str]) -> None:
    """One progress watches all sets of a server."""
    progress = LineProgress()
    for name, size in (("connect", 40_000_000), ("debezium", 8_000_000)):
        progress.start(name, 1, size)
        progress.advance(size // 2)
        progress.advance(size // 2)
        progress.done()
    assert [line for line in capsys.readouterr().err.splitlines() if "%" in line] == [
        "connect: 50 %, 20.0 MB", "connect: 100 %, 40.0 MB", "debezium: 50 %, 4.0 MB", "debezium: 100 %, 8.0 MB",
    ]  # fmt: skip
