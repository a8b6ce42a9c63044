"""A folder: what is read once, what is read again, and what stops it."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

import riverrun as rr
from riverrun.connectors.files.folder import FORGET_DAYS, FolderReader
from riverrun.errors import ConnectorRefusedError, PositionUnknownError


class Follower:
    def __init__(self, path: Path, format_: Any = "csv", **options: Any) -> None:
        self.declared = rr.folder(str(path), format_, **({"stable_seconds": 0.0} | options))
        self.path = path
        self.position: Any = None
        self.marks: dict[str, Any] = {}
        self.notices: list[str] = []
        self.now = time.time()
        self.reader: FolderReader | None = None
        self.crash()

    def crash(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self.reader = FolderReader(
            self.declared, self.path, self.position, self.marks, notice=self.notices.append, clock=lambda: self.now
        )

    def read(self, *, most: int = 1000) -> list[Any]:
        found: list[Any] = []
        assert self.reader is not None
        self.reader._next_scan_at = 0.0
        while most and (items := self.reader.read()) is not None:
            most -= 1
            self.position = items.position
            for name, value in (items.marks or {}).items():
                self.marks.pop(name, None)
                if value is not None:
                    self.marks[name] = value
            found += [item.problem or item.value for item in items.items]
            self.reader._next_scan_at = 0.0
        return found


def put(path: Path, name: str, text: str, *, at: int = 1000) -> None:
    (path / name).write_text(text)
    os.utime(path / name, (at, at))


def test_a_file_is_read_once_and_its_mark_goes_with_it(tmp_path: Path) -> None:
    put(tmp_path, "b.csv", "n\n1\n", at=1)
    put(tmp_path, "a.csv", "n\n2\n", at=2)
    follower = Follower(tmp_path)
    assert follower.read() == [{"n": "1"}, {"n": "2"}]
    follower.crash()
    assert follower.read() == []
    assert set(follower.marks) == {"a.csv", "b.csv"}


def test_a_touched_file_is_not_read_again_and_a_replaced_one_is(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "n\n1\n")
    follower = Follower(tmp_path)
    assert follower.read() == [{"n": "1"}]
    os.utime(tmp_path / "a.csv", (2000, 2000))
    follower.crash()
    assert follower.read() == []
    put(tmp_path, "a.csv", "n\n2\n", at=3000)
    assert follower.read() == [{"n": "2"}]


def test_a_corrected_file_of_the_same_size_is_read_again(tmp_path: Path) -> None:
    rows = [f"{number:06}" for number in range(40_000)]
    put(tmp_path, "a.csv", "n\n" + "\n".join(rows) + "\n")
    follower = Follower(tmp_path)
    assert len(follower.read()) == 40_000
    rows[20_000] = "999999"
    put(tmp_path, "a.csv", "n\n" + "\n".join(rows) + "\n", at=2000)
    again = follower.read()
    assert len(again) == 40_000
    assert again[20_000] == {"n": "999999"}


def test_a_file_of_the_same_size_and_time_that_took_its_place_is_read(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "n\n1\n")
    follower = Follower(tmp_path)
    assert follower.read() == [{"n": "1"}]
    put(tmp_path, "a.csv.tmp", "n\n2\n")
    (tmp_path / "a.csv.tmp").rename(tmp_path / "a.csv")
    follower.crash()
    assert follower.read() == [{"n": "2"}]


def test_an_empty_or_unmounted_folder_forgets_nothing(tmp_path: Path) -> None:
    drop, away = tmp_path / "drop", tmp_path / "away"
    drop.mkdir()
    put(drop, "a.csv", "n\n1\n")
    put(drop, "b.csv", "n\n2\n")
    follower = Follower(drop)
    assert len(follower.read()) == 2
    # What an unmount leaves behind: a folder of the same name with nothing in it.
    drop.rename(away)
    drop.mkdir()
    assert follower.read() == []
    assert "not mounted" in follower.notices[0]
    follower.crash()
    assert follower.read() == []
    drop.rmdir()
    away.rename(drop)
    assert follower.read() == []
    follower.crash()
    assert follower.read() == []
    assert set(follower.marks) == {"a.csv", "b.csv"}
    assert not any(mark["missing_since"] for mark in follower.marks.values())


def test_a_file_that_is_long_gone_is_forgotten(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "n\n1\n")
    put(tmp_path, "b.csv", "n\n2\n")
    follower = Follower(tmp_path)
    follower.read()
    (tmp_path / "a.csv").unlink()
    assert follower.read() == []
    assert set(follower.marks) == {"a.csv", "b.csv"}
    follower.now += (FORGET_DAYS + 1) * 86_400
    follower.crash()
    assert follower.read() == []
    assert set(follower.marks) == {"b.csv"}
    put(tmp_path, "a.csv", "n\n1\n")
    assert follower.read() == [{"n": "1"}]


def test_a_file_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    follower = Follower(tmp_path, stable_seconds=1000.0)
    assert follower.read() == []
    os.utime(tmp_path / "a.csv", (1, 1))
    assert follower.read() == [{"n": "1"}]


def test_a_file_that_is_changed_when_half_was_read_stops_it(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "n\n" + "".join(f"{n}\n" for n in range(5000)))
    put(tmp_path, "b.csv", "n\nb\n", at=2000)
    follower = Follower(tmp_path)
    assert len(follower.read(most=1)) == 2000
    put(tmp_path, "a.csv", "n\nother\n")
    with pytest.raises(PositionUnknownError, match="after 2000 of its rows"):
        follower.crash()
    follower.declared = rr.folder(str(tmp_path), "csv", stable_seconds=0, lost="continue")
    follower.crash()
    assert follower.read() == [{"n": "other"}, {"n": "b"}]
    assert "going on with the next file" in follower.notices[0]


def test_rows_that_are_none_are_told(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", 'n,m\n1,2\n3\n4,"5\n6"\n')
    assert Follower(tmp_path).read() == [
        {"n": "1", "m": "2"},
        "The row has 1 columns, not 2",
        {"n": "4", "m": "5\n6"},
    ]


def test_a_file_that_is_no_parquet_is_one_letter_and_the_others_go_on(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    put(tmp_path, "a.parquet", "hello")
    pq.write_table(pa.table({"n": [1]}), tmp_path / "b.parquet")
    found = Follower(tmp_path, "parquet").read()
    assert found[0].startswith("The file is not Parquet")
    assert found[1:] == [{"n": 1}]


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "a", "x")
    with pytest.raises(ConnectorRefusedError, match="is not a folder"):
        Follower(tmp_path / "a").read()


def test_below_it_too_where_the_pattern_says_so(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    put(tmp_path / "x", "a.csv", "n\n1\n")
    assert Follower(tmp_path).read() == []
    follower = Follower(tmp_path, pattern="**/*.csv")
    assert follower.read() == [{"n": "1"}]
    assert set(follower.marks) == {"x/a.csv"}
