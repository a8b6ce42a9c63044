"""A folder into which files are put: each is read once, row by row, and never again.

Which files are done is kept as a mark each, in the same transaction as their last rows; inside a file the position is an
offset (of Parquet, a row number). A file is known by its name and its content, a hash of all its bytes: one that is only
touched is not read again, one that is replaced or corrected is. The mark of a file that is missing is kept for
`FORGET_DAYS`, because a folder that is not mounted looks like one from which everything was removed.
"""

import contextlib
import csv
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from riverrun.connectors.contract import Around
from riverrun.connectors.files.chunk import read_lines
from riverrun.connectors.files.lines import key_in, parser_of, row_of, unreadable
from riverrun.errors import ConnectorRefusedError, PositionUnknownError
from riverrun.model.connector import Item, Items, Position, Reader, Source
from riverrun.model.connectors.files import folder

LIST_SECONDS = 1.0
# Rows that one `read` gives.
BITE = 2000
BITE_BYTES = 1 << 20
# How long the mark of a file that is not there any more is kept.
FORGET_DAYS = 30
# Marks that one `read` changes without rows.
MOST_MARKS = 5000
_ENDINGS = {"csv": "*.csv", "json": "*.json*", "parquet": "*.parquet", "text": "*.txt"}
# What programs call a file that they are still writing.
_UNFINISHED = (".tmp", ".part", ".partial", ".crdownload", ".swp", "~")


class Done(msgspec.Struct, frozen=True):
    """A file that was read: its size, last change (mtime in nanoseconds), inode and content. `missing_since`, in seconds
    since 1970, is 0 while the file is there."""

    size: int
    changed: int
    content: str
    rows: int = 0
    inode: int = 0
    missing_since: int = 0

    def looks_like(self, now: os.stat_result) -> bool:
        """Whether this is the file without looking into it."""
        return (self.size, self.changed, self.inode) == (now.st_size, now.st_mtime_ns, now.st_ino)


class At(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Inside a file. Between two files there is no `name`."""

    name: str = ""
    content: str = ""
    offset: int = 0
    rows: int = 0
    long: bool = False


class FolderSource(Source):
    """`riverrun.folder`."""

    lag_unit = "files"

    def __init__(self, declared: folder, around: Around) -> None:
        self._declared = declared
        self._around = around

    def open_with(self, part: str, position: Position, marks: Mapping[str, Any]) -> Reader:  # noqa: ARG002
        path = self._around.folder / self._declared.path
        return FolderReader(self._declared, path, position, marks, notice=self._around.notice)


class FolderReader(Reader):
    """Reads one file after the other, in the order of their last change."""

    def __init__(
        self,
        declared: folder,
        path: Path,
        position: Position,
        marks: Mapping[str, Any],
        *,
        notice: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._declared = declared
        self._path = path
        self._notice = notice
        self._clock = clock
        try:
            self._done = {name: msgspec.convert(each, Done) for name, each in marks.items()}
            at = msgspec.convert(position, At) if position is not None else At()
        except msgspec.ValidationError as error:
            raise PositionUnknownError("This is no position in a folder", found=f"{position!r}: {error}") from error
        self._waiting: list[str] = []
        # Marks that are not written yet; None forgets one.
        self._changed: dict[str, Done | None] = {}
        self._warned = False
        self._list_at = 0.0
        self._file: _File | None = None
        if at.name:
            self._resume(at)

    # --- the contract -------------------------------------------------------------------------------------------------

    def read(self) -> Items | None:
        if self._file is None:
            self._look()
            if self._changed:
                return Items((), msgspec.to_builtins(At()), marks=self._changed_marks())
            if not self._begin_next():
                return None
        file = self._file
        assert file is not None  # noqa: S101
        try:
            items, over = file.read()
        except FileNotFoundError as error:
            raise self._gone(file) from error
        if not over:
            return Items(items, msgspec.to_builtins(file.at()))
        if not file.same():
            raise self._gone(file)
        done = file.done()
        self._done[file.name] = done
        self._close_file()
        return Items(items, msgspec.to_builtins(At()), marks={file.name: msgspec.to_builtins(done)})

    def lag(self) -> int | None:
        return len(self._waiting) + (self._file is not None)

    def close(self) -> None:
        self._close_file()

    # --- files --------------------------------------------------------------------------------------------------------

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _look(self) -> None:
        """See what there is to read now, and what became of the files that were read."""
        now = time.monotonic()
        if self._waiting or self._changed or now < self._list_at:
            return
        self._list_at = now + LIST_SECONDS
        if not self._path.is_dir():
            if self._path.exists():
                raise ConnectorRefusedError(f"{self._path} is not a folder", file=str(self._path))
            return
        files = self._files()
        latest = self._clock() - self._declared.stable_seconds
        fresh = [name for name, stat in files.items() if stat.st_mtime <= latest and not self._is_done(name, stat)]
        self._waiting = sorted(fresh, key=lambda name: (files[name].st_mtime_ns, name), reverse=True)
        self._note_missing(files)

    def _files(self) -> dict[str, os.stat_result]:
        """The files of the folder by name, but those that are hidden or being written."""
        files: dict[str, os.stat_result] = {}
        for path in self._path.glob(self._declared.pattern or _ENDINGS[self._declared.format]):
            if path.name.startswith(".") or path.name.endswith(_UNFINISHED):
                continue
            with contextlib.suppress(OSError):
                if path.is_file():
                    files[path.relative_to(self._path).as_posix()] = path.stat()
        return files

    def _note_missing(self, files: Mapping[str, os.stat_result]) -> None:
        """Note since when files are missing, and forget those that have been for long enough."""
        now = int(self._clock())
        for name, done in list(self._done.items()):
            if name in files:
                if done.missing_since:
                    self._mark(name, msgspec.structs.replace(done, missing_since=0))
            elif not done.missing_since:
                self._mark(name, msgspec.structs.replace(done, missing_since=now))
            elif now - done.missing_since > FORGET_DAYS * 86_400:
                self._mark(name, None)
        if self._done and not files:
            if not self._warned:
                self._notice(
                    f"{self._path} has none of the {len(self._done)} files that were read from it. If it is not mounted, "
                    f"nothing is lost: they are remembered for {FORGET_DAYS} days"
                )
            self._warned = True
        else:
            self._warned = False

    def _mark(self, name: str, done: Done | None) -> None:
        self._changed[name] = done
        if done is None:
            del self._done[name]
        else:
            self._done[name] = done

    def _changed_marks(self) -> dict[str, Any]:
        """Some of the changed marks, as they are written."""
        names = list(self._changed)[:MOST_MARKS]
        return {name: msgspec.to_builtins(self._changed.pop(name)) for name in names}

    def _is_done(self, name: str, now: os.stat_result) -> bool:
        known = self._done.get(name)
        if known is None or known.size != now.st_size:
            return False
        if known.looks_like(now):
            return True
        try:
            same = content_of(self._path / name) == known.content
        except FileNotFoundError:
            return True  # it is gone again; the next look sees that
        if same:
            # Written down, so that the next start need not read it through again.
            self._mark(name, Done(known.size, now.st_mtime_ns, known.content, known.rows, now.st_ino))
        return same

    def _begin_next(self) -> bool:
        while self._waiting:
            name = self._waiting.pop()
            with contextlib.suppress(FileNotFoundError):
                self._file = _open(self._declared, self._path, name, At(name))
                return True
        return False

    def _resume(self, at: At) -> None:
        """Go on inside a file, if it is still what it was."""
        with contextlib.suppress(FileNotFoundError):
            if content_of(self._path / at.name) == at.content:
                self._file = _open(self._declared, self._path, at.name, at)
                return
        problem = PositionUnknownError(
            f"{at.name} was changed or removed after {at.rows} of its rows were read",
            hint='Put it back as it was; or say lost="continue" to go on with the next file',
            file=str(self._path / at.name),
        )
        if self._declared.lost == "stop":
            raise problem
        self._notice(f"{problem.what}; going on with the next file")

    def _gone(self, file: "_File") -> PositionUnknownError:
        return PositionUnknownError(
            f"{file.name} was changed or removed while it was read",
            hint="Write files elsewhere and rename them into the folder; or raise stable_seconds",
            file=str(self._path / file.name),
        )


def content_of(path: Path) -> str:
    """What tells a file's content from another's: a hash of all of it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def _open(declared: folder, root: Path, name: str, at: At) -> "_File":
    kinds: dict[str, type[_File]] = {"csv": _CsvFile, "parquet": _ParquetFile}
    try:
        return kinds.get(declared.format, _LinesFile)(declared, root, name, at)
    except _UnreadableError as error:
        return _BadFile(declared, root, name, at, str(error))


class _UnreadableError(Exception):
    """A file that is not what it is said to be."""


class _File:
    """One file while it is read."""

    def __init__(self, declared: folder, root: Path, name: str, at: At) -> None:
        self.declared = declared
        self.name = name
        self.path = root / name
        # Before the content is looked at, so that a change meanwhile is noticed in the end.
        self._stat = self.path.stat()
        self.content = at.content or content_of(self.path)
        self.offset = at.offset
        self.rows = at.rows
        self.long = at.long

    def read(self) -> tuple[list[Item], bool]:
        """Some rows, and whether they were the last."""
        raise NotImplementedError

    def at(self) -> At:
        return At(self.name, self.content, self.offset, self.rows, self.long)

    def same(self) -> bool:
        """Whether it is still the file that was begun."""
        try:
            return self.done().looks_like(self.path.stat()) or content_of(self.path) == self.content
        except FileNotFoundError:
            return False

    def done(self) -> Done:
        return Done(self._stat.st_size, self._stat.st_mtime_ns, self.content, self.rows, self._stat.st_ino)

    def close(self) -> None:
        """Let go of it."""


class _LinesFile(_File):
    """JSON or text, a line each."""

    def __init__(self, declared: folder, root: Path, name: str, at: At) -> None:
        super().__init__(declared, root, name, at)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self._parse = parser_of(declared.format, field=declared.field, key=declared.key, delimiter="")(())

    def read(self) -> tuple[list[Item], bool]:
        limit = self.declared.most_line_bytes
        chunk = read_lines(self._fd, self.offset, most_line=limit, long=self.long, at_end=True)
        items = [
            self._parse(line.text, f"{self.name}@{line.begin}")
            if line.whole
            else unreadable(
                line.text, f"{self.name}@{line.begin}", f"A line is longer than {limit} bytes; this is a piece of it"
            )
            for line in chunk.lines
        ]
        self.rows += len(items)
        over = chunk.next == self.offset
        self.offset, self.long = chunk.next, chunk.long
        return items, over

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _CsvFile(_File):
    """CSV as programs write it: a quoted cell may have line breaks."""

    def __init__(self, declared: folder, root: Path, name: str, at: At) -> None:
        super().__init__(declared, root, name, at)
        self._file = self.path.open("rb")
        self._columns: Sequence[str] = declared.columns
        self._behind = 0
        self._raw: list[bytes] = []
        if not self._columns:
            header = next(self._cells(), None)
            self._columns = header if isinstance(header, list) else ()
            self._behind = max(self._behind, 0)
        self.offset = max(self.offset, self._behind)
        self._file.seek(self.offset)
        self._behind = self.offset
        self._records = self._cells()

    def _lines(self) -> Iterator[str]:
        for line in self._file:
            self._behind += len(line)
            self._raw.append(line)
            yield line.decode("utf-8-sig" if self._behind == len(line) else "utf-8")

    def _cells(self) -> Iterator[list[str] | Exception]:
        """Rows; an exception for one that is none. The offset behind it is `_behind`, its bytes are `_raw`."""
        while True:
            self._raw = []
            reader = csv.reader(self._lines(), delimiter=self.declared.delimiter, strict=True)
            try:
                row = next(reader)
            except StopIteration:
                return
            except (csv.Error, UnicodeDecodeError) as error:
                yield error
            else:
                yield row

    def read(self) -> tuple[list[Item], bool]:
        items: list[Item] = []
        begun = self.offset
        while len(items) < BITE and self.offset - begun < BITE_BYTES:
            place = f"{self.name}@{self.offset}"
            row = next(self._records, None)
            if row is None:
                return items, True
            raw = b"".join(self._raw).rstrip(b"\r\n")
            if isinstance(row, Exception):
                items.append(unreadable(raw, place, f"The row is not CSV: {row}"))
            elif row:
                items.append(row_of(self._columns, row, raw, self.declared.key, place))
            self.offset = self._behind
            self.rows += bool(row)
        return items, False

    def close(self) -> None:
        self._file.close()


class _ParquetFile(_File):
    """Parquet; the offset is a row number. Times without a zone are taken as UTC."""

    def __init__(self, declared: folder, root: Path, name: str, at: At) -> None:
        super().__init__(declared, root, name, at)
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise ConnectorRefusedError(
                "pyarrow is not installed", hint='Install it to read Parquet: pip install "riverrun[spark]"'
            ) from error
        try:
            self._file = parquet.ParquetFile(self.path)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            raise _UnreadableError(f"The file is not Parquet: {error}") from error
        self._batches = self._from(at.offset)

    def _from(self, first: int) -> Iterator[list[dict[str, Any]]]:
        """Rows from a number on; whole row groups before it are not read."""
        skipped = 0
        for group in range(self._file.metadata.num_row_groups):
            count = self._file.metadata.row_group(group).num_rows
            if skipped + count <= first:
                skipped += count
                continue
            left = first - skipped
            for batch in self._file.iter_batches(batch_size=BITE, row_groups=[group]):
                if left >= batch.num_rows:
                    left -= batch.num_rows
                    continue
                yield batch.slice(left).to_pylist()
                left = 0
            skipped += count
            first = max(first, skipped)

    def read(self) -> tuple[list[Item], bool]:
        try:
            rows = next(self._batches, None)
        except (OSError, ValueError) as error:
            return [self._broken(error)], True
        if rows is None:
            return [], True
        items = []
        for number, row in enumerate(rows, self.offset):
            value = {name: _zoned(each) for name, each in row.items()}
            items.append(Item(value, key=key_in(value, self.declared.key), place=f"{self.name}@{number}"))
        self.offset += len(rows)
        self.rows += len(rows)
        return items, False

    def _broken(self, error: Exception) -> Item:
        problem = f"The file cannot be read from row {self.offset} on: {error}"
        return unreadable(self.name.encode(), f"{self.name}@{self.offset}", problem)

    def close(self) -> None:
        self._file.close()


class _BadFile(_File):
    """A file that cannot be read at all: its name is a dead letter, and it is done."""

    def __init__(self, declared: folder, root: Path, name: str, at: At, problem: str) -> None:
        super().__init__(declared, root, name, at)
        self._problem = problem

    def read(self) -> tuple[list[Item], bool]:
        return [unreadable(self.name.encode(), self.name, self._problem)], True


def _zoned(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value
