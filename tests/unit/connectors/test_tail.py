"""Following a log: rotation by rename and by copy, restarts at any moment, half lines, long lines, lost files."""

import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import riverrun as rr
from riverrun.config import KafkaSettings
from riverrun.connectors.contract import ConnectorContext
from riverrun.connectors.files.tail import IDLE_CLOSE_SECONDS, TailReader, TailSource
from riverrun.errors import PositionUnknownError
from riverrun.kafka.connection import Connection


class Follower:
    """Reads a log as the runtime does; `crash` forgets everything but the last position."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.options = {"settle_seconds": 0.0} | options
        self.position: Any = None
        self.lines: list[Any] = []
        self.items: list[rr.Item] = []
        self.notices: list[str] = []
        self.reader = self._open()

    def _open(self) -> TailReader:
        declared = rr.tail(str(self.path), **self.options)
        return TailReader(declared, self.path, self.position, notice=self.notices.append)

    def read(self, *, most: int = 1000) -> list[Any]:
        """All there is; what is new."""
        before, quiet = len(self.lines), 0
        while quiet < 3 and most:
            self.reader._next_check_at = 0.0
            items = self.reader.read()
            if items is None:
                quiet += 1
                continue
            most -= 1
            quiet = 0
            self.position = items.position
            self.items += items.items
            self.lines += [item.value["line"] if not item.problem else item for item in items.items]
        return self.lines[before:]

    def crash(self) -> None:
        self.reader.close()
        self.reader = self._open()


def write(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


def test_a_half_line_waits_for_its_newline(log: Path) -> None:
    log.write_text("one\ntw")
    follower = Follower(log)
    assert follower.read() == ["one"]
    follower.crash()
    assert follower.read() == []
    write(log, "o")
    assert follower.read() == ["two"]


def test_a_file_that_is_not_there_yet_is_waited_for(log: Path) -> None:
    follower = Follower(log)
    assert follower.read() == []
    write(log, "one")
    assert follower.read() == ["one"]


def test_the_end_of_a_log_can_be_the_beginning(log: Path) -> None:
    log.write_text("old\nhalf")
    follower = Follower(log, begin="end")
    assert follower.read() == []
    write(log, " line", "new")
    assert follower.read() == ["half line", "new"]


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("kind", ["rename", "copytruncate"])
def test_a_rotated_file_is_finished_before_the_new_one(log: Path, kind: str, crash: bool) -> None:
    write(log, "a1", "a2")
    follower = Follower(log)
    assert follower.read() == ["a1", "a2"]
    write(log, "a3")
    if kind == "rename":
        log.rename(f"{log}.1")
    else:
        shutil.copy(log, f"{log}.1")
        os.truncate(log, 0)
    write(log, "b1", "b2")
    if crash:
        follower.crash()
    assert follower.read() == ["a3", "b1", "b2"]
    assert follower.notices == []


def test_several_rotations_while_nobody_looked(log: Path) -> None:
    write(log, "a1")
    follower = Follower(log)
    assert follower.read() == ["a1"]
    write(log, "a2")
    for name in ("b", "c", "d"):
        for number in (3, 2, 1):
            if (rotated := Path(f"{log}.{number}")).exists():
                rotated.rename(f"{log}.{number + 1}")
        log.rename(f"{log}.1")
        write(log, f"{name}1", f"{name}2")
    follower.crash()
    assert follower.read() == ["a2", "b1", "b2", "c1", "c2", "d1", "d2"]


def test_dated_rotations_are_in_order(log: Path) -> None:
    write(log, "a1")
    follower = Follower(log)
    follower.read()
    log.rename(f"{log}-20261116")
    write(log, "b1")
    log.rename(f"{log}-20261117")
    write(log, "c1")
    follower.crash()
    assert follower.read() == ["b1", "c1"]


def test_a_writer_that_has_not_noticed_the_rotation_is_waited_for(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(log, "a1")
    follower = Follower(log, settle_seconds=1000.0)
    assert follower.read() == ["a1"]
    rotated = log.rename(f"{log}.1")
    write(log, "b1")
    write(rotated, "a2")
    assert follower.read() == ["a2"]
    os.utime(rotated, (1, 1))
    assert follower.read() == ["b1"]


def test_the_last_line_of_a_rotated_file_needs_no_newline(log: Path) -> None:
    log.write_text("a1\na2 without end")
    follower = Follower(log)
    assert follower.read() == ["a1"]
    log.rename(f"{log}.1")
    write(log, "b1")
    assert follower.read() == ["a2 without end", "b1"]


def test_a_truncated_file_that_was_read_is_begun_again(log: Path) -> None:
    write(log, "a1", "a2")
    follower = Follower(log)
    follower.read()
    log.write_text("b1\n")
    assert follower.read() == ["b1"]
    assert "was truncated" in follower.notices[0]


def test_a_new_file_with_the_old_inode_is_not_mistaken(log: Path) -> None:
    """Truncated and grown beyond where we were, before anybody looked."""
    write(log, "a1", "a2")
    follower = Follower(log)
    follower.read()
    shutil.copy(log, f"{log}.1")
    os.truncate(log, 0)
    write(log, *(f"b{n}" for n in range(100)))
    follower.crash()
    assert follower.read() == [f"b{n}" for n in range(100)]


def test_a_lost_file_stops_it_unless_told_otherwise(log: Path) -> None:
    write(log, "a1")
    follower = Follower(log)
    follower.read()
    log.unlink()
    write(log, "b1")
    with pytest.raises(PositionUnknownError, match="may not have been read"):
        follower.crash()
    follower.options["lost"] = "continue"
    follower.crash()
    assert follower.read() == ["b1"]
    assert "lines from offset 3 on may be missing" in follower.notices[0]


def test_a_line_that_is_too_long_goes_to_the_dead_letters_in_pieces(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("riverrun.connectors.files.line_chunks.CHUNK_BYTES", 16)
    write(log, "short", "x" * 100, "short again")
    follower = Follower(log, max_line_bytes=30)
    for _ in range(20):
        follower.read(most=1)
        follower.crash()
    whole = [line for line in follower.lines if isinstance(line, str)]
    pieces = [line for line in follower.lines if not isinstance(line, str)]
    assert whole == ["short", "short again"]
    assert b"".join(piece.value for piece in pieces) == b"x" * 100
    assert {piece.problem for piece in pieces} == {"A line is longer than 30 bytes; this is a piece of it"}


def test_csv_has_its_columns_in_the_first_line_of_each_file(log: Path) -> None:
    log.write_text("id,kw\n1,2.5\n")
    declared = rr.tail(str(log), format="csv", settle_seconds=0)
    reader = TailReader(declared, log, None)
    values = []
    for _ in range(10):
        reader._next_check_at = 0
        if (items := reader.read()) is not None:
            position = items.position
            values += [item.value for item in items.items]
            reader = TailReader(declared, log, position)
    log.rename(f"{log}.1")
    log.write_text("kw,id\n3.5,2\n4\n")
    for _ in range(10):
        reader._next_check_at = 0
        if (items := reader.read()) is not None:
            values += [item.value if not item.problem else item.problem for item in items.items]
    assert values == [{"id": "1", "kw": "2.5"}, {"kw": "3.5", "id": "2"}, "The row has 1 columns, not 2"]


@pytest.mark.parametrize("seed", range(12))
def test_no_line_is_missing_and_none_twice_whatever_happens_in_which_order(log: Path, seed: int) -> None:
    """Lines, rotations of one kind, crashes and reads at random."""
    chance = random.Random(seed)
    kind = chance.choice(["rename", "copytruncate"])
    follower = Follower(log, format="text")
    written = 0
    write(log, "the first line of this log")
    follower.read()
    for _ in range(150):
        match chance.choice(["write", "write", "write", "read", "crash", "rotate"]):
            case "write":
                count = chance.randrange(1, 30)
                write(log, *(f"{n} {'z' * chance.randrange(40)}" for n in range(written, written + count)))
                written += count
            case "read":
                follower.read(most=chance.randrange(1, 4))
            case "crash":
                follower.crash()
            case "rotate" if log.stat().st_size > 100:
                for number in range(30, 0, -1):
                    if (rotated := Path(f"{log}.{number}")).exists():
                        rotated.rename(f"{log}.{number + 1}")
                if kind == "rename":
                    log.rename(f"{log}.1")
                    write(log)
                else:
                    shutil.copy(log, f"{log}.1")
                    os.truncate(log, 0)
    follower.read()
    assert [int(line.split()[0]) for line in follower.lines[1:]] == list(range(written))
    assert follower.notices == []


def many(folder: Path) -> TailSource:
    nowhere = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    return TailSource(rr.tail("app-*.log", settle_seconds=0), ConnectorContext(rr.App("a"), nowhere, folder, folder))


def read_to_end(source: TailSource, part: str, position: Any) -> tuple[list[str], Any, bool]:
    """Lines, position, and whether the reader ended."""
    reader, lines, quiet = source.open(part, position), [], 0
    while quiet < 3:
        reader._next_check_at = 0.0  # type: ignore[attr-defined]
        if (items := reader.read()) is None:
            quiet += 1
            continue
        lines += [item.value["line"] for item in items.items]
        position = items.position
        if items.last:
            reader.close()
            return lines, position, True
    reader.close()
    return lines, position, False


def test_of_many_files_those_that_are_left_alone_are_closed_until_they_change(tmp_path: Path) -> None:
    names = [f"app-2026-11-{day:02}.log" for day in range(1, 11)]
    long_ago = time.time() - IDLE_CLOSE_SECONDS - 60
    for number, name in enumerate(names):
        write(tmp_path / name, f"{name} 1")
        if number < 9:
            os.utime(tmp_path / name, (long_ago + number, long_ago + number))
    source = many(tmp_path)
    assert source.parts()[0] == names[-1], "the one that is being written comes first"
    positions: dict[str, Any] = {}
    for name in names:
        lines, positions[name], ended = read_to_end(source, name, None)
        assert lines == [f"{name} 1"]
        assert ended == (name != names[-1])
    assert source.parts() == [names[-1]]
    # Written to once more, it is named again, and goes on where it was.
    write(tmp_path / names[3], "late")
    assert set(source.parts()) == {names[-1], names[3]}
    lines, _, ended = read_to_end(source, names[3], positions[names[3]])
    assert (lines, ended) == (["late"], False)
    (tmp_path / names[0]).unlink()
    assert names[0] not in source.parts()


def rested(folder: Path, text: str) -> tuple[TailSource, Path, Any]:
    """One of many files, read and left alone; and where its reader ended."""
    source, path = many(folder), folder / "app-1.log"
    path.write_text(text)
    long_ago = time.time() - IDLE_CLOSE_SECONDS - 60
    os.utime(path, (long_ago, long_ago))
    lines, position, ended = read_to_end(source, path.name, None)
    assert (lines, ended) == (["a1"], True)
    return source, path, position


def test_a_file_that_rested_and_was_made_again_is_begun_at_its_beginning(tmp_path: Path) -> None:
    source, path, position = rested(tmp_path, "a1\n")
    other = tmp_path / "other"
    write(other, "b1", "b2")
    path.unlink()
    assert source.parts() == []
    other.rename(path)
    assert source.parts() == [path.name]
    lines, position, _ = read_to_end(source, path.name, position)
    assert lines == ["b1", "b2"]
    write(path, "b3")
    assert read_to_end(source, path.name, position)[0] == ["b3"]


def test_behind_a_file_that_rested_comes_what_was_changed_after_it(tmp_path: Path) -> None:
    source, path, position = rested(tmp_path, "a1\n")
    for name, text in ((f"{path.name}.3", "older\n"), (f"{path.name}.1", "b1\n"), ("new", "c1\n")):
        (tmp_path / name).write_text(text)
    os.utime(tmp_path / f"{path.name}.3", (1, 1))
    (tmp_path / "new").replace(path)  # and the one that rested was compressed, say
    assert read_to_end(source, path.name, position)[0] == ["b1", "c1"]


def test_an_empty_file_behind_one_that_rested_does_not_begin_the_older_ones(tmp_path: Path) -> None:
    source, path, position = rested(tmp_path, "a1\n")
    older = tmp_path / f"{path.name}.3"
    older.write_text("older\n")
    os.utime(older, (1, 1))
    (tmp_path / "new").touch()
    (tmp_path / "new").replace(path)
    lines, position, _ = read_to_end(source, path.name, position)
    assert lines == []
    write(path, "b1")
    assert read_to_end(source, path.name, position)[0] == ["b1"]


def test_a_file_that_rested_with_half_a_line_was_not_read_to_its_end(tmp_path: Path) -> None:
    source, path, position = rested(tmp_path, "a1\nhalf")
    path.unlink()
    (tmp_path / "other").write_text("b1\n")
    (tmp_path / "other").rename(path)
    with pytest.raises(PositionUnknownError, match="may not have been read"):
        source.open(path.name, position)


def test_of_many_files_one_that_is_deleted_ends_with_its_last_line(tmp_path: Path) -> None:
    source, path = many(tmp_path), tmp_path / "app-1.log"
    path.write_text("a1\nwithout end")
    reader = source.open(path.name, None)
    lines: list[str] = []

    def read() -> tuple[Any, bool]:
        position, last = None, False
        for _ in range(6):
            reader._next_check_at = 0.0  # type: ignore[attr-defined]
            if not last and (items := reader.read()) is not None:
                lines.extend(item.value["line"] for item in items.items)
                position, last = items.position, items.last
        return position, last

    assert (read()[1], lines) == (False, ["a1"])
    path.unlink()
    assert (read()[1], lines) == (False, ["a1"]), "its writer may still have it open"
    later = time.time() + IDLE_CLOSE_SECONDS + 1
    reader._clock = lambda: later  # type: ignore[attr-defined]
    position, last = read()
    assert (last, lines) == (True, ["a1", "without end"])
    reader.close()
    assert source.parts() == []
    write(path, "b1")
    assert source.parts() == [path.name]
    assert read_to_end(source, path.name, position)[0] == ["b1"]


def test_a_single_log_is_never_at_its_end(log: Path) -> None:
    write(log, "a")
    os.utime(log, (1, 1))
    follower = Follower(log)
    assert follower.read() == ["a"]
    write(log, "b")
    assert follower.read() == ["b"]
    log.unlink()
    follower.reader._clock = lambda: time.time() + 10 * IDLE_CLOSE_SECONDS
    assert follower.read() == []
    write(log, "c")
    assert follower.read() == ["c"]
