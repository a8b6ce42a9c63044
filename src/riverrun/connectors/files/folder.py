"""Read a folder into which files are put: each is read once, row by row, and never again.

Each finished file has a mark, written in the same transaction as its last rows; inside a file the position is an offset (of
Parquet, a row number). A file is identified by its name and its content, a hash of all its bytes: one that is only touched
is not read again, one that is replaced or corrected is. The mark of a missing file is kept for `FORGET_DAYS`, because a
folder that is not mounted looks like one from which everything was removed.
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

from riverrun.connectors.contract import ConnectorContext
from riverrun.connectors.files.line_chunks import read_lines
from riverrun.connectors.files.line_parsers import csv_item, key_from, line_parser_factory, unreadable_item
from riverrun.errors import ConnectorRefusedError, PositionUnknownError
from riverrun.model.connector import Item, Items, Position, Reader, Source
from riverrun.model.connectors.files import folder

SCAN_SECONDS = 1.0
# The most rows that one `read` returns.
MAX_READ_ROWS = 2000
MAX_READ_BYTES = 1 << 20
# How long the mark of a file that does not exist any more is kept.
FORGET_DAYS = 30
# The most marks that one `read` changes without rows.
MAX_MARKS = 5000
_DEFAULT_PATTERNS = {"csv": "*.csv", "json": "*.json*", "parquet": "*.parquet", "text": "*.txt"}
# Suffixes that programs use for a file that they are still writing.
_TEMPORARY_SUFFIXES = (".tmp", ".part", ".partial", ".crdownload", ".swp", "~")


class ProcessedFile(msgspec.Struct, frozen=True):
    """A file that was read: its size, last modification (mtime in nanoseconds), inode and content. `missing_since`, in
    seconds since 1970, is 0 while the file exists."""

    size: int
    mtime_ns: int
    content_hash: str
    rows: int = 0
    inode: int = 0
    missing_since: int = 0

    def matches_stat(self, stat: os.stat_result) -> bool:
        """Whether this is the same file, without reading its content."""
        return (self.size, self.mtime_ns, self.inode) == (stat.st_size, stat.st_mtime_ns, stat.st_ino)


class FolderPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position inside a file. Between two files there is no `name`."""

    name: str = ""
    content_hash: str = ""
    offset: int = 0
    rows: int = 0
    in_long_line: bool = False


class FolderSource(Source):
    """`riverrun.folder`."""

    lag_unit = "files"

    def __init__(self, declared: folder, context: ConnectorContext) -> None:
        self._declared = declared
        self._context = context

    def open_with_marks(self, part: str, position: Position, marks: Mapping[str, Any]) -> Reader:  # noqa: ARG002
        path = self._context.pipeline_folder / self._declared.path
        return FolderReader(self._declared, path, position, marks, notice=self._context.notice)


class FolderReader(Reader):
    """Reads one file after the other, in the order of their last modification."""

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
            self._processed = {name: msgspec.convert(mark, ProcessedFile) for name, mark in marks.items()}
            start = msgspec.convert(position, FolderPosition) if position is not None else FolderPosition()
        except msgspec.ValidationError as error:
            raise PositionUnknownError("This is no position in a folder", found=f"{position!r}: {error}") from error
        self._pending_files: list[str] = []
        # Marks that are not written yet; None deletes one.
        self._pending_marks: dict[str, ProcessedFile | None] = {}
        self._warned_missing = False
        self._next_scan_at = 0.0
        self._file: _FolderFile | None = None
        if start.name:
            self._resume(start)

    # --- the contract -------------------------------------------------------------------------------------------------

    def read(self) -> Items | None:
        if self._file is None:
            self._scan()
            if self._pending_marks:
                return Items((), msgspec.to_builtins(FolderPosition()), marks=self._take_pending_marks())
            if not self._open_next():
                return None
        file = self._file
        assert file is not None  # noqa: S101
        try:
            items, finished = file.read()
        except FileNotFoundError as error:
            raise self._changed_file_error(file) from error
        if not finished:
            return Items(items, msgspec.to_builtins(file.position()))
        if not file.is_unchanged():
            raise self._changed_file_error(file)
        processed = file.processed()
        self._processed[file.name] = processed
        self._close_file()
        return Items(items, msgspec.to_builtins(FolderPosition()), marks={file.name: msgspec.to_builtins(processed)})

    def lag(self) -> int | None:
        return len(self._pending_files) + (self._file is not None)

    def close(self) -> None:
        self._close_file()

    # --- files --------------------------------------------------------------------------------------------------------

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _scan(self) -> None:
        """Find the files to read now, and which of the finished ones are missing."""
        now = time.monotonic()
        if self._pending_files or self._pending_marks or now < self._next_scan_at:
            return
        self._next_scan_at = now + SCAN_SECONDS
        if not self._path.is_dir():
            if self._path.exists():
                raise ConnectorRefusedError(f"{self._path} is not a folder", file=str(self._path))
            return
        files = self._files()
        latest = self._clock() - self._declared.stable_seconds
        unread = [
            name for name, stat in files.items() if stat.st_mtime <= latest and not self._is_processed(name, stat)
        ]
        self._pending_files = sorted(unread, key=lambda name: (files[name].st_mtime_ns, name), reverse=True)
        self._track_missing(files)

    def _files(self) -> dict[str, os.stat_result]:
        """The files of the folder by name, except those that are hidden or being written."""
        files: dict[str, os.stat_result] = {}
        for path in self._path.glob(self._declared.pattern or _DEFAULT_PATTERNS[self._declared.format]):
            if path.name.startswith(".") or path.name.endswith(_TEMPORARY_SUFFIXES):
                continue
            with contextlib.suppress(OSError):
                if path.is_file():
                    files[path.relative_to(self._path).as_posix()] = path.stat()
        return files

    def _track_missing(self, files: Mapping[str, os.stat_result]) -> None:
        """Record since when files are missing, and forget those that have been for long enough."""
        now = int(self._clock())
        for name, processed in list(self._processed.items()):
            if name in files:
                if processed.missing_since:
                    self._mark(name, msgspec.structs.replace(processed, missing_since=0))
            elif not processed.missing_since:
                self._mark(name, msgspec.structs.replace(processed, missing_since=now))
            elif now - processed.missing_since > FORGET_DAYS * 86_400:
                self._mark(name, None)
        if self._processed and not files:
            if not self._warned_missing:
                self._notice(
                    f"{self._path} has none of the {len(self._processed)} files that were read from it. If it is not "
                    f"mounted, nothing is lost: they are remembered for {FORGET_DAYS} days"
                )
            self._warned_missing = True
        else:
            self._warned_missing = False

    def _mark(self, name: str, processed: ProcessedFile | None) -> None:
        self._pending_marks[name] = processed
        if processed is None:
            del self._processed[name]
        else:
            self._processed[name] = processed

    def _take_pending_marks(self) -> dict[str, Any]:
        """Some of the changed marks, as they are written."""
        names = list(self._pending_marks)[:MAX_MARKS]
        return {name: msgspec.to_builtins(self._pending_marks.pop(name)) for name in names}

    def _is_processed(self, name: str, stat: os.stat_result) -> bool:
        known = self._processed.get(name)
        if known is None or known.size != stat.st_size:
            return False
        if known.matches_stat(stat):
            return True
        try:
            same = hash_file(self._path / name) == known.content_hash
        except FileNotFoundError:
            return True  # it was removed again; the next scan sees that
        if same:
            # Marked, so that the next start need not hash it again.
            self._mark(name, ProcessedFile(known.size, stat.st_mtime_ns, known.content_hash, known.rows, stat.st_ino))
        return same

    def _open_next(self) -> bool:
        while self._pending_files:
            name = self._pending_files.pop()
            with contextlib.suppress(FileNotFoundError):
                self._file = _open_file(self._declared, self._path, name, FolderPosition(name))
                return True
        return False

    def _resume(self, position: FolderPosition) -> None:
        """Continue inside a file, if it is unchanged."""
        with contextlib.suppress(FileNotFoundError):
            if hash_file(self._path / position.name) == position.content_hash:
                self._file = _open_file(self._declared, self._path, position.name, position)
                return
        problem = PositionUnknownError(
            f"{position.name} was changed or removed after {position.rows} of its rows were read",
            hint='Put it back as it was; or say lost="continue" to go on with the next file',
            file=str(self._path / position.name),
        )
        if self._declared.lost == "stop":
            raise problem
        self._notice(f"{problem.what}; going on with the next file")

    def _changed_file_error(self, file: "_FolderFile") -> PositionUnknownError:
        return PositionUnknownError(
            f"{file.name} was changed or removed while it was read",
            hint="Write files elsewhere and rename them into the folder; or raise stable_seconds",
            file=str(self._path / file.name),
        )


def hash_file(path: Path) -> str:
    """Identifies a file's content: a hash of all of it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def _open_file(declared: folder, root: Path, name: str, position: FolderPosition) -> "_FolderFile":
    kinds: dict[str, type[_FolderFile]] = {"csv": _CsvFile, "parquet": _ParquetFile}
    try:
        return kinds.get(declared.format, _LineFile)(declared, root, name, position)
    except _UnreadableError as error:
        return _UnreadableFile(declared, root, name, position, str(error))


class _UnreadableError(Exception):
    """A file that is not of the declared format."""


class _FolderFile:
    """One file while it is read."""

    def __init__(self, declared: folder, root: Path, name: str, position: FolderPosition) -> None:
        self.declared = declared
        self.name = name
        self.path = root / name
        # Before the content is read, so that a change meanwhile is noticed in the end.
        self._stat = self.path.stat()
        self.content_hash = position.content_hash or hash_file(self.path)
        self.offset = position.offset
        self.rows = position.rows
        self.in_long_line = position.in_long_line

    def read(self) -> tuple[list[Item], bool]:
        """Some rows, and whether they were the last."""
        raise NotImplementedError

    def position(self) -> FolderPosition:
        return FolderPosition(self.name, self.content_hash, self.offset, self.rows, self.in_long_line)

    def is_unchanged(self) -> bool:
        """Whether it is still the file that was opened."""
        try:
            return self.processed().matches_stat(self.path.stat()) or hash_file(self.path) == self.content_hash
        except FileNotFoundError:
            return False

    def processed(self) -> ProcessedFile:
        return ProcessedFile(
            self._stat.st_size, self._stat.st_mtime_ns, self.content_hash, self.rows, self._stat.st_ino
        )

    def close(self) -> None:
        """Release its resources."""


class _LineFile(_FolderFile):
    """JSON or text, one record per line."""

    def __init__(self, declared: folder, root: Path, name: str, position: FolderPosition) -> None:
        super().__init__(declared, root, name, position)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self._parse = line_parser_factory(declared.format, field=declared.field, key=declared.key, delimiter="")(())

    def read(self) -> tuple[list[Item], bool]:
        limit = self.declared.max_line_bytes
        chunk = read_lines(
            self._fd, self.offset, max_line_bytes=limit, in_long_line=self.in_long_line, file_closed=True
        )
        items = [
            self._parse(line.text, f"{self.name}@{line.offset}")
            if line.complete
            else unreadable_item(
                line.text, f"{self.name}@{line.offset}", f"A line is longer than {limit} bytes; this is a piece of it"
            )
            for line in chunk.lines
        ]
        self.rows += len(items)
        finished = chunk.next_offset == self.offset
        self.offset, self.in_long_line = chunk.next_offset, chunk.in_long_line
        return items, finished

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _CsvFile(_FolderFile):
    """CSV as programs write it: a quoted cell may have line breaks."""

    def __init__(self, declared: folder, root: Path, name: str, position: FolderPosition) -> None:
        super().__init__(declared, root, name, position)
        self._file = self.path.open("rb")
        self._columns: Sequence[str] = declared.columns
        self._next_offset = 0
        self._raw_lines: list[bytes] = []
        if not self._columns:
            header = next(self._parse_rows(), None)
            self._columns = header if isinstance(header, list) else ()
            self._next_offset = max(self._next_offset, 0)
        self.offset = max(self.offset, self._next_offset)
        self._file.seek(self.offset)
        self._next_offset = self.offset
        self._rows = self._parse_rows()

    def _lines(self) -> Iterator[str]:
        for line in self._file:
            self._next_offset += len(line)
            self._raw_lines.append(line)
            yield line.decode("utf-8-sig" if self._next_offset == len(line) else "utf-8")

    def _parse_rows(self) -> Iterator[list[str] | Exception]:
        """Rows; an exception for one that is none. The offset behind it is `_next_offset`, its bytes are `_raw_lines`."""
        while True:
            self._raw_lines = []
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
        first_offset = self.offset
        while len(items) < MAX_READ_ROWS and self.offset - first_offset < MAX_READ_BYTES:
            location = f"{self.name}@{self.offset}"
            row = next(self._rows, None)
            if row is None:
                return items, True
            raw = b"".join(self._raw_lines).rstrip(b"\r\n")
            if isinstance(row, Exception):
                items.append(unreadable_item(raw, location, f"The row is not CSV: {row}"))
            elif row:
                items.append(csv_item(self._columns, row, raw, self.declared.key, location))
            self.offset = self._next_offset
            self.rows += bool(row)
        return items, False

    def close(self) -> None:
        self._file.close()


class _ParquetFile(_FolderFile):
    """Parquet; the offset is a row number. Times without a zone are taken as UTC."""

    def __init__(self, declared: folder, root: Path, name: str, position: FolderPosition) -> None:
        super().__init__(declared, root, name, position)
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
        self._batches = self._batches_from(position.offset)

    def _batches_from(self, first: int) -> Iterator[list[dict[str, Any]]]:
        """Rows from this number on; whole row groups before it are not read."""
        skipped = 0
        for group in range(self._file.metadata.num_row_groups):
            count = self._file.metadata.row_group(group).num_rows
            if skipped + count <= first:
                skipped += count
                continue
            left = first - skipped
            for batch in self._file.iter_batches(batch_size=MAX_READ_ROWS, row_groups=[group]):
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
            return [self._unreadable_rest(error)], True
        if rows is None:
            return [], True
        items = []
        for number, row in enumerate(rows, self.offset):
            value = {name: _with_utc(cell) for name, cell in row.items()}
            items.append(Item(value, key=key_from(value, self.declared.key), location=f"{self.name}@{number}"))
        self.offset += len(rows)
        self.rows += len(rows)
        return items, False

    def _unreadable_rest(self, error: Exception) -> Item:
        problem = f"The file cannot be read from row {self.offset} on: {error}"
        return unreadable_item(self.name.encode(), f"{self.name}@{self.offset}", problem)

    def close(self) -> None:
        self._file.close()


class _UnreadableFile(_FolderFile):
    """A file that cannot be read at all: its name becomes a dead letter, and it is finished."""

    def __init__(self, declared: folder, root: Path, name: str, position: FolderPosition, problem: str) -> None:
        super().__init__(declared, root, name, position)
        self._problem = problem

    def read(self) -> tuple[list[Item], bool]:
        return [unreadable_item(self.name.encode(), self.name, self._problem)], True


def _with_utc(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value
