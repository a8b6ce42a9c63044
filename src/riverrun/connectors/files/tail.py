"""Follow a growing file line by line, across rotations and restarts.

A position is a file, an offset and a fingerprint of what was read. After a restart the file is found again by inode and
fingerprint, wherever it was renamed to, or as a copy (copytruncate); it is read to its end, and then the next one in the
chain of rotated files, up to the one that has the name now.

Limits: with copytruncate, what is written between the copy and the truncation is lost before anybody can read it, unless it
was read before; and a compressed file cannot be continued.
"""

import contextlib
import csv
import glob
import itertools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from riverrun.connectors.contract import ConnectorContext
from riverrun.connectors.files.fingerprint import FileFingerprint, fingerprint_of, matches_fingerprint, matches_head
from riverrun.connectors.files.line_chunks import LineChunk, first_line, read_lines
from riverrun.connectors.files.line_parsers import LineParser, line_parser_factory, unreadable_item
from riverrun.connectors.files.rotation import rotated_files
from riverrun.errors import ConnectorFailedError, ConnectorRefusedError, PositionUnknownError
from riverrun.model.connector import Item, Items, Position, Reader, Source
from riverrun.model.connectors.files import tail

# How often the names are checked: whether the file was rotated or replaced.
ROTATION_CHECK_SECONDS = 0.25
# Of several files, one that was read to its end and not written to for so long is closed until it changes.
IDLE_CLOSE_SECONDS = 60.0

# How a change of a file is detected: its inode, size and last modification.
FileState = tuple[int, int, int]


class PreviousFile(msgspec.Struct, frozen=True):
    """The file before the current one: its whole size, and its fingerprint."""

    size: int
    fingerprint: FileFingerprint


class TailPosition(msgspec.Struct, frozen=True):
    """A position. `in_long_line`: inside a line that is too long. `name` is for people. `previous` is for a file that was
    empty when it was begun: nothing else would tell it from one that was filled, copied and truncated since.
    `idle_mtime_ns`: its last change (ns) where it was read to its very end and then left alone; 0 where more may have
    come."""

    inode: int
    offset: int
    fingerprint: FileFingerprint
    name: str = ""
    in_long_line: bool = False
    previous: PreviousFile | None = None
    idle_mtime_ns: int = 0


class TailSource(Source):
    """`riverrun.tail`. A part is a path.

    Of many files, such as `app-*.log` with a date in each name, most are never written to again. Each open one costs a
    thread and a producer, so idle ones are closed, and not listed by `parts` until they change.
    """

    lag_unit = "bytes"
    reopens_finished = True

    def __init__(self, declared: tail, context: ConnectorContext) -> None:
        self._declared = declared
        self._context = context
        # Idle files, with their state when they were closed.
        self._idle_files: dict[str, FileState] = {}

    def parts(self) -> Sequence[str]:
        path = self._declared.path
        if not glob.has_magic(path):
            return (path,)
        states = {
            part: _file_state(self._context.pipeline_folder / part)
            for part in glob.glob(path, root_dir=self._context.pipeline_folder)  # noqa: PTH207  -- an absolute one works, too
        }
        for part, state in list(self._idle_files.items()):
            if states.get(part) != state:
                self._idle_files.pop(part, None)
        # Those that are being written come first: they must not wait behind all the others.
        active = [part for part in states if part not in self._idle_files]
        recently = time.time_ns() - IDLE_CLOSE_SECONDS * 1e9
        return sorted(active, key=lambda part: ((states[part] or (0, 0, 0))[2] < recently, part))

    def open(self, part: str, position: Position) -> Reader:
        closes_idle = glob.has_magic(self._declared.path)
        return TailReader(
            self._declared,
            self._context.pipeline_folder / part,
            position,
            notice=self._context.notice,
            on_idle=(lambda state: self._idle_files.update({part: state})) if closes_idle else None,
        )


class TailReader(Reader):
    """Follows one log file and its rotations."""

    def __init__(
        self,
        declared: tail,
        path: Path,
        position: Position,
        *,
        notice: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        on_idle: Callable[[FileState], None] | None = None,
    ) -> None:
        """`on_idle` is told the file's state when it was read and is left alone: then the reader is at its end."""
        self._declared = declared
        self._path = path
        self._on_idle = on_idle
        self._notice = notice
        self._clock = clock
        self._parser_factory = line_parser_factory(
            declared.format, field=declared.field, key=declared.key, delimiter=declared.delimiter
        )
        self._parse: LineParser | None = None
        self._fd = -1
        self._name = ""
        self._offset = 0
        self._in_long_line = False
        self._fingerprint = FileFingerprint("", 0, "", 0)
        self._previous: PreviousFile | None = None
        self._next_check_at = 0.0
        self._started = position is not None
        if position is not None:
            self._resume(_parse_position(position))

    # --- the contract -------------------------------------------------------------------------------------------------

    def read(self) -> Items | None:
        if self._fd < 0 and not self._open_first():
            return None
        if not self._started:
            # Committed before the first line: else a rotation before the first commit would leave this file behind.
            self._started = True
            return Items((), self._position())
        # Taken before reading: whatever is written from now on changes it.
        state = _file_state(self._path) if self._on_idle is not None else None
        chunk = self._read_chunk(file_closed=False)
        if chunk is not None and chunk.next_offset > self._offset:
            # Checked after reading: if it is still the same file, it was so before.
            if not matches_fingerprint(self._fd, self._offset, self._fingerprint):
                self._on_truncated()
                return None
            if self._was_empty and self._switch_to_skipped():
                return None
            return self._to_items(chunk)
        now = time.monotonic()
        if now < self._next_check_at:
            return None
        self._next_check_at = now + ROTATION_CHECK_SECONDS
        if not matches_fingerprint(self._fd, self._offset, self._fingerprint):
            self._on_truncated()
            return None
        if self._was_empty and self._switch_to_skipped():
            return None
        if self._is_rotated_away():
            return self._next_file()
        return self._close_if_idle(state)

    def _close_if_idle(self, state: FileState | None) -> Items | None:
        """Finish if this is the file that has the name, or none has, and nobody has written to it for a while."""
        if self._on_idle is None:
            return None
        here = os.fstat(self._fd)
        if state is None:
            if self._path.exists():
                return None
            state = here.st_ino, here.st_size, here.st_mtime_ns
        if state[0] != here.st_ino:
            return None
        if self._clock() - state[2] / 1e9 < max(IDLE_CLOSE_SECONDS, self._declared.settle_seconds):
            return None
        if self._path.exists():
            self._on_idle(state)
        elif (chunk := self._read_chunk(file_closed=True)) is not None and chunk.next_offset > self._offset:
            # It was removed: its last line will never get a newline.
            return self._to_items(chunk)
        return Items((), self._position(idle_mtime_ns=state[2] if self._offset == state[1] else 0), last=True)

    def lag(self) -> int | None:
        return max(0, os.fstat(self._fd).st_size - self._offset) if self._fd >= 0 else 0

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # --- lines --------------------------------------------------------------------------------------------------------

    def _read_chunk(self, *, file_closed: bool) -> LineChunk | None:
        if self._parse is None:
            columns = self._columns()
            if columns is None:
                return None
            self._parse = self._parser_factory(columns)
        return read_lines(
            self._fd,
            self._offset,
            max_line_bytes=self._declared.max_line_bytes,
            in_long_line=self._in_long_line,
            file_closed=file_closed,
        )

    def _columns(self) -> Sequence[str] | None:
        """The columns of this file; None while its first line is not complete. Moves behind that line at the beginning."""
        if self._declared.format != "csv" or self._declared.columns:
            return self._declared.columns
        header = first_line(self._fd, self._declared.max_line_bytes)
        if header is None:
            return None
        line, next_offset = header
        self._offset = max(self._offset, next_offset)
        return next(csv.reader([line.decode("utf-8-sig", errors="replace")], delimiter=self._declared.delimiter))

    def _to_items(self, chunk: LineChunk) -> Items:
        parse = self._parse
        assert parse is not None  # noqa: S101  -- there are no lines without
        items = [
            parse(line.text, f"{self._name}@{line.offset}") if line.complete else self._too_long(line.text, line.offset)
            for line in chunk.lines
        ]
        self._offset, self._in_long_line = chunk.next_offset, chunk.in_long_line
        return Items(items, self._position())

    def _too_long(self, text: bytes, begin: int) -> Item:
        limit = self._declared.max_line_bytes
        return unreadable_item(
            text, f"{self._name}@{begin}", f"A line is longer than {limit} bytes; this is a piece of it"
        )

    def _position(self, *, idle_mtime_ns: int = 0) -> Position:
        self._fingerprint = fingerprint_of(self._fd, self._offset)
        position = TailPosition(
            os.fstat(self._fd).st_ino,
            self._offset,
            self._fingerprint,
            self._name,
            self._in_long_line,
            self._previous,
            idle_mtime_ns,
        )
        return msgspec.to_builtins(position)

    # --- files --------------------------------------------------------------------------------------------------------

    def _open_first(self) -> bool:
        """Open the log for the first time; False while it does not exist."""
        if self._path.exists() and not os.access(self._path, os.R_OK):
            raise ConnectorRefusedError(
                f"{self._path} cannot be read", hint="Give this user the right to", file=str(self._path)
            )
        fd = _open_file(self._path)
        if fd is None:
            return False
        self._switch_to(fd, self._path, 0, previous=self._newest_rotated())
        if self._declared.begin == "end" and not self._started:
            self._offset = _last_line_end(fd)
        return True

    def _switch_to(
        self, fd: int, path: Path, offset: int, *, in_long_line: bool = False, previous: PreviousFile | None = None
    ) -> None:
        self.close()
        self._fd, self._name, self._offset, self._in_long_line, self._previous = (
            fd,
            path.name,
            offset,
            in_long_line,
            previous,
        )
        self._fingerprint = fingerprint_of(fd, offset)
        self._parse = None

    def _resume(self, position: TailPosition) -> None:
        """Find the file of a position again."""
        for same_inode in (True, False):
            for path in rotated_files(self._path):
                fd = _open_file(path)
                if fd is None:
                    continue
                known = os.fstat(fd).st_ino == position.inode if same_inode else position.fingerprint.head_bytes > 0
                if known and matches_fingerprint(fd, position.offset, position.fingerprint):
                    self._switch_to(
                        fd, path, position.offset, in_long_line=position.in_long_line, previous=position.previous
                    )
                    # Not its current fingerprint: a file that was empty may have been filled, copied and truncated since.
                    self._fingerprint = position.fingerprint
                    return
                os.close(fd)
        # Maybe nothing of it is left to read: a copy that has less than was already read.
        if (after := self._file_after_copy(position.offset, position.fingerprint)) is not None:
            fd, path, previous = after
            self._switch_to(fd, path, 0, previous=previous)
            return
        if position.idle_mtime_ns:
            self._start_after(position)
            return
        if self._declared.lost == "stop":
            raise PositionUnknownError(
                f"{position.name} is not there any more, and its lines from offset {position.offset} on "
                "may not have been read",
                expected=f"it, or its copy, beside {self._path}",
                hint='Bring it back uncompressed; or say lost="continue" to go on with the oldest file there is',
                file=str(self._path),
                offset=position.offset,
            )
        oldest = next(iter(rotated_files(self._path)), None)
        self._notice(
            f"{position.name} is gone: lines from offset {position.offset} on may be missing; "
            f"going on with {oldest or 'none'}"
        )
        if oldest is not None and (fd := _open_file(oldest)) is not None:
            self._switch_to(fd, oldest, 0)

    def _start_after(self, position: TailPosition) -> None:
        """The file was read to its end and removed: continue with files changed after it, or the one that has its name."""
        previous: PreviousFile | None = None
        for path in rotated_files(self._path):
            fd = _open_file(path)
            if fd is None:
                continue
            if path == self._path or os.fstat(fd).st_mtime_ns > position.idle_mtime_ns:
                self._switch_to(fd, path, 0, previous=previous)
                return
            size = os.fstat(fd).st_size
            previous = PreviousFile(size, fingerprint_of(fd, size))
            os.close(fd)

    def _file_after_copy(self, offset: int, fingerprint: FileFingerprint) -> tuple[int, Path, PreviousFile] | None:
        """The file after a copy that had been read completely before it was made."""
        chain = rotated_files(self._path)
        for copy, after in itertools.pairwise(chain):
            fd = _open_file(copy)
            if fd is None:
                continue
            size = os.fstat(fd).st_size
            whole = (
                fingerprint.head_bytes
                and size <= offset
                and size >= fingerprint.head_bytes
                and matches_head(fd, fingerprint)
            )
            previous = PreviousFile(size, fingerprint_of(fd, size))
            os.close(fd)
            if whole and (next_fd := _open_file(after)) is not None:
                return next_fd, after, previous
        return None

    @property
    def _was_empty(self) -> bool:
        """Whether the file was empty when it was opened, and nothing was read of it."""
        return self._offset == 0 and self._fingerprint.head_bytes == 0

    def _newest_rotated(self) -> PreviousFile | None:
        for path in reversed(rotated_files(self._path)[:-1]):
            if (fd := _open_file(path)) is not None:
                size = os.fstat(fd).st_size
                previous = PreviousFile(size, fingerprint_of(fd, size))
                os.close(fd)
                return previous
        return None

    def _switch_to_skipped(self) -> bool:
        """Switch to a file between the previous one and this one, if there is one: it was this one, and has been copied."""
        chain = [(path, fd) for path in rotated_files(self._path) if (fd := _open_file(path)) is not None]
        indexes = [0] if self._previous is None else [
            number + 1 for number, (_, fd) in enumerate(chain)
            if os.fstat(fd).st_size == self._previous.size
            and matches_fingerprint(fd, self._previous.size, self._previous.fingerprint)
        ]  # fmt: skip
        here = os.fstat(self._fd).st_ino
        keep = chain[indexes[-1]] if indexes and indexes[-1] < len(chain) else None
        if keep is not None and os.fstat(keep[1]).st_ino == here:
            keep = None
        for entry in chain:
            if entry is not keep:
                os.close(entry[1])
        if keep is None:
            return False
        self._switch_to(keep[1], keep[0], 0, previous=self._previous)
        return True

    def _on_truncated(self) -> None:
        """Handle the same inode with other content: it was truncated, maybe after it was copied."""
        for path in rotated_files(self._path)[:-1]:
            fd = _open_file(path)
            if fd is None:
                continue
            if self._fingerprint.head_bytes and matches_fingerprint(fd, self._offset, self._fingerprint):
                self._switch_to(fd, path, self._offset, in_long_line=self._in_long_line, previous=self._previous)
                return
            os.close(fd)
        after = self._file_after_copy(self._offset, self._fingerprint)
        if after is not None:
            self._switch_to(after[0], after[1], 0, previous=after[2])
            return
        self._notice(f"{self._name} was truncated at offset {self._offset}; reading it from its beginning")
        reopened_fd = _open_file(self._path)
        if reopened_fd is None:
            raise ConnectorFailedError(f"{self._path} was truncated and is gone")
        self._switch_to(reopened_fd, self._path, 0, previous=self._newest_rotated())

    def _is_rotated_away(self) -> bool:
        """Whether this file is complete: another one has the name, and it was not written to for long enough."""
        here = os.fstat(self._fd)
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        if (here.st_ino, here.st_dev) == (there.st_ino, there.st_dev):
            return False
        return self._clock() - here.st_mtime >= self._declared.settle_seconds

    def _next_file(self) -> Items | None:
        """Return the rest of this file, if it ends without a newline; else open the one after it."""
        chunk = self._read_chunk(file_closed=True)
        if chunk is not None and chunk.next_offset > self._offset:
            return self._to_items(chunk)
        here = os.fstat(self._fd)
        chain = [(path, fd) for path in rotated_files(self._path) if (fd := _open_file(path)) is not None]
        inodes = [os.fstat(fd).st_ino for _, fd in chain]
        if here.st_ino in inodes:
            following = chain[inodes.index(here.st_ino) + 1 :]
        else:
            # It was removed: files modified after it come after it.
            following = [entry for entry in chain if os.fstat(entry[1]).st_mtime >= here.st_mtime]
        keep = following[0] if following else None
        for entry in chain:
            if entry is not keep:
                os.close(entry[1])
        if keep is None:
            return None
        self._switch_to(
            keep[1], keep[0], 0, previous=PreviousFile(here.st_size, fingerprint_of(self._fd, here.st_size))
        )
        return Items((), self._position())


def _parse_position(position: Position) -> TailPosition:
    try:
        return msgspec.convert(position, TailPosition)
    except msgspec.ValidationError as error:
        raise PositionUnknownError("This is no position in a file", found=f"{position!r}: {error}") from error


def _file_state(path: Path) -> FileState | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _open_file(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        return None


def _last_line_end(fd: int) -> int:
    """The offset behind the last newline."""
    size = os.fstat(fd).st_size
    step = 64 << 10
    end = size
    while end > 0:
        begin = max(0, end - step)
        with contextlib.suppress(ValueError):
            return begin + os.pread(fd, end - begin, begin).rindex(b"\n") + 1
        end = begin
    return 0
