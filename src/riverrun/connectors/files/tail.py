"""A file that grows, line by line, across rotations and restarts.

Where it stands is a file, an offset and a print of what was read. After a restart the file is found again by inode and
print, wherever it was renamed to, or as a copy (copytruncate); it is finished, and then the next one in the chain of rotated
files is begun, up to the one that has the name now.

What cannot be seen: with copytruncate, what is written between the copy and the truncation is lost before anybody can read
it, unless it was read before; and a compressed file cannot be gone on with.
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

from riverrun.connectors.contract import Around
from riverrun.connectors.files.chunk import Chunk, first_line, read_lines
from riverrun.connectors.files.lines import Parse, parser_of, unreadable
from riverrun.connectors.files.print import Print, begins_as, fits, print_of
from riverrun.connectors.files.rotation import chain_of
from riverrun.errors import ConnectorFailedError, ConnectorRefusedError, PositionUnknownError
from riverrun.model.connector import Item, Items, Position, Reader, Source
from riverrun.model.connectors.files import tail

# How often the names are looked at: whether the file was rotated or replaced.
LOOK_SECONDS = 0.25
# Of several files, one that was read to its end and left alone for so long is closed until it changes.
REST_SECONDS = 60.0

# What tells that a file has changed: its inode, size and last change.
State = tuple[int, int, int]


class Before(msgspec.Struct, frozen=True):
    """The file before the one that is read: whole, with its size."""

    size: int
    print: Print


class At(msgspec.Struct, frozen=True):
    """A position. `long`: inside a line that is too long. `name` is for people. `before` is for a file that was empty when
    it was begun: nothing else would tell it from one that was filled, copied and truncated since. `rested`: its last change
    (ns) where it was read to its very end and then left alone; 0 where more may have come."""

    inode: int
    offset: int
    print: Print
    name: str = ""
    long: bool = False
    before: Before | None = None
    rested: int = 0


class TailSource(Source):
    """`riverrun.tail`. A part is a path.

    Of many files, such as `app-*.log` with a date in each name, most are never written to again. Each open one costs a
    thread and a producer, so those that rest are closed, and not named by `parts` until they change.
    """

    lag_unit = "bytes"
    begins_again = True

    def __init__(self, declared: tail, around: Around) -> None:
        self._declared = declared
        self._around = around
        # Files that rest, as they were then.
        self._resting: dict[str, State] = {}

    def parts(self) -> Sequence[str]:
        path = self._declared.path
        if not glob.has_magic(path):
            return (path,)
        found = {part: _state(self._around.folder / part) for part in glob.glob(path, root_dir=self._around.folder)}  # noqa: PTH207  -- an absolute one works, too
        for part, state in list(self._resting.items()):
            if found.get(part) != state:
                self._resting.pop(part, None)
        # Those that are being written first: they must not wait behind all the others.
        awake = [part for part in found if part not in self._resting]
        recently = time.time_ns() - REST_SECONDS * 1e9
        return sorted(awake, key=lambda part: ((found[part] or (0, 0, 0))[2] < recently, part))

    def open(self, part: str, position: Position) -> Reader:
        rests = glob.has_magic(self._declared.path)
        return TailReader(
            self._declared,
            self._around.folder / part,
            position,
            notice=self._around.notice,
            on_rest=(lambda state: self._resting.update({part: state})) if rests else None,
        )


class TailReader(Reader):
    """Follows one log."""

    def __init__(
        self,
        declared: tail,
        path: Path,
        position: Position,
        *,
        notice: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        on_rest: Callable[[State], None] | None = None,
    ) -> None:
        """`on_rest` is told the file's state when it was read and is left alone: then the reader is at its end."""
        self._declared = declared
        self._path = path
        self._on_rest = on_rest
        self._notice = notice
        self._clock = clock
        self._parsing = parser_of(declared.format, field=declared.field, key=declared.key, delimiter=declared.delimiter)
        self._parse: Parse | None = None
        self._fd = -1
        self._name = ""
        self._offset = 0
        self._long = False
        self._print = Print("", 0, "", 0)
        self._before: Before | None = None
        self._look_at = 0.0
        self._begun = position is not None
        if position is not None:
            self._resume(_at(position))

    # --- the contract -------------------------------------------------------------------------------------------------

    def read(self) -> Items | None:
        if self._fd < 0 and not self._begin():
            return None
        if not self._begun:
            # Kept before the first line is: else a rotation before the first commit would leave this file behind.
            self._begun = True
            return Items((), self._position())
        # Before it is read: what is written from now on makes it another.
        state = _state(self._path) if self._on_rest is not None else None
        chunk = self._chunk(at_end=False)
        if chunk is not None and chunk.next > self._offset:
            # After it was read: if it is still the file that it was, then so it was before.
            if not fits(self._fd, self._offset, self._print):
                self._replaced()
                return None
            if self._is_blank and self._skipped_one():
                return None
            return self._given(chunk)
        now = time.monotonic()
        if now < self._look_at:
            return None
        self._look_at = now + LOOK_SECONDS
        if not fits(self._fd, self._offset, self._print):
            self._replaced()
            return None
        if self._is_blank and self._skipped_one():
            return None
        if self._is_over():
            return self._next_file()
        return self._rest(state)

    def _rest(self, state: State | None) -> Items | None:
        """End, where this is the file that has the name, or none has, and nobody has written to it for a while."""
        if self._on_rest is None:
            return None
        here = os.fstat(self._fd)
        if state is None:
            if self._path.exists():
                return None
            state = here.st_ino, here.st_size, here.st_mtime_ns
        if state[0] != here.st_ino:
            return None
        if self._clock() - state[2] / 1e9 < max(REST_SECONDS, self._declared.settle_seconds):
            return None
        if self._path.exists():
            self._on_rest(state)
        elif (chunk := self._chunk(at_end=True)) is not None and chunk.next > self._offset:
            # It was removed: its last line gets no newline any more.
            return self._given(chunk)
        return Items((), self._position(rested=state[2] if self._offset == state[1] else 0), last=True)

    def lag(self) -> int | None:
        return max(0, os.fstat(self._fd).st_size - self._offset) if self._fd >= 0 else 0

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # --- lines --------------------------------------------------------------------------------------------------------

    def _chunk(self, *, at_end: bool) -> Chunk | None:
        if self._parse is None:
            columns = self._columns()
            if columns is None:
                return None
            self._parse = self._parsing(columns)
        return read_lines(
            self._fd, self._offset, most_line=self._declared.most_line_bytes, long=self._long, at_end=at_end
        )

    def _columns(self) -> Sequence[str] | None:
        """The columns of this file; None while its first line is not whole. Moves behind that line at the beginning."""
        if self._declared.format != "csv" or self._declared.columns:
            return self._declared.columns
        found = first_line(self._fd, self._declared.most_line_bytes)
        if found is None:
            return None
        line, behind = found
        self._offset = max(self._offset, behind)
        return next(csv.reader([line.decode("utf-8-sig", errors="replace")], delimiter=self._declared.delimiter))

    def _given(self, chunk: Chunk) -> Items:
        parse = self._parse
        assert parse is not None  # noqa: S101  -- there are no lines without
        items = [
            parse(line.text, f"{self._name}@{line.begin}") if line.whole else self._too_long(line.text, line.begin)
            for line in chunk.lines
        ]
        self._offset, self._long = chunk.next, chunk.long
        return Items(items, self._position())

    def _too_long(self, text: bytes, begin: int) -> Item:
        limit = self._declared.most_line_bytes
        return unreadable(text, f"{self._name}@{begin}", f"A line is longer than {limit} bytes; this is a piece of it")

    def _position(self, *, rested: int = 0) -> Position:
        self._print = print_of(self._fd, self._offset)
        at = At(os.fstat(self._fd).st_ino, self._offset, self._print, self._name, self._long, self._before, rested)
        return msgspec.to_builtins(at)

    # --- files --------------------------------------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Open the log for the first time; False while it is not there."""
        if self._path.exists() and not os.access(self._path, os.R_OK):
            raise ConnectorRefusedError(
                f"{self._path} cannot be read", hint="Give this user the right to", file=str(self._path)
            )
        fd = _open(self._path)
        if fd is None:
            return False
        self._take(fd, self._path, 0, before=self._newest_rotated())
        if self._declared.begin == "end" and not self._begun:
            self._offset = _end_of_lines(fd)
        return True

    def _take(self, fd: int, path: Path, offset: int, *, long: bool = False, before: Before | None = None) -> None:
        self.close()
        self._fd, self._name, self._offset, self._long, self._before = fd, path.name, offset, long, before
        self._print = print_of(fd, offset)
        self._parse = None

    def _resume(self, at: At) -> None:
        """Find the file again."""
        for same_inode in (True, False):
            for path in chain_of(self._path):
                fd = _open(path)
                if fd is None:
                    continue
                known = os.fstat(fd).st_ino == at.inode if same_inode else at.print.head_bytes > 0
                if known and fits(fd, at.offset, at.print):
                    self._take(fd, path, at.offset, long=at.long, before=at.before)
                    # Not as it is now: a file that was empty may have been filled, copied and truncated since.
                    self._print = at.print
                    return
                os.close(fd)
        # Nothing of it may be left to read: a copy that has less than was read of it already.
        if (after := self._behind_copy(at.offset, at.print)) is not None:
            fd, path, before = after
            self._take(fd, path, 0, before=before)
            return
        if at.rested:
            self._begin_after(at)
            return
        if self._declared.lost == "stop":
            raise PositionUnknownError(
                f"{at.name} is not there any more, and its lines from offset {at.offset} on may not have been read",
                expected=f"it, or its copy, beside {self._path}",
                hint='Bring it back uncompressed; or say lost="continue" to go on with the oldest file there is',
                file=str(self._path),
                offset=at.offset,
            )
        oldest = next(iter(chain_of(self._path)), None)
        self._notice(
            f"{at.name} is gone: lines from offset {at.offset} on may be missing; going on with {oldest or 'none'}"
        )
        if oldest is not None and (fd := _open(oldest)) is not None:
            self._take(fd, oldest, 0)

    def _begin_after(self, at: At) -> None:
        """The file was read to its end, and is gone: what was changed after it comes after it, and what has its name now."""
        before: Before | None = None
        for path in chain_of(self._path):
            fd = _open(path)
            if fd is None:
                continue
            if path == self._path or os.fstat(fd).st_mtime_ns > at.rested:
                self._take(fd, path, 0, before=before)
                return
            size = os.fstat(fd).st_size
            before = Before(size, print_of(fd, size))
            os.close(fd)

    def _behind_copy(self, offset: int, known: Print) -> tuple[int, Path, Before] | None:
        """The file after a copy of which everything was read before it was made."""
        chain = chain_of(self._path)
        for copy, after in itertools.pairwise(chain):
            fd = _open(copy)
            if fd is None:
                continue
            size = os.fstat(fd).st_size
            whole = known.head_bytes and size <= offset and size >= known.head_bytes and begins_as(fd, known)
            before = Before(size, print_of(fd, size))
            os.close(fd)
            if whole and (next_fd := _open(after)) is not None:
                return next_fd, after, before
        return None

    @property
    def _is_blank(self) -> bool:
        """Whether the file was empty when it was begun, and nothing was read of it."""
        return self._offset == 0 and self._print.head_bytes == 0

    def _newest_rotated(self) -> Before | None:
        for path in reversed(chain_of(self._path)[:-1]):
            if (fd := _open(path)) is not None:
                size = os.fstat(fd).st_size
                found = Before(size, print_of(fd, size))
                os.close(fd)
                return found
        return None

    def _skipped_one(self) -> bool:
        """Whether there is a file between the one before and this one: it was this one, and has been copied. Begin that."""
        chain = [(path, fd) for path in chain_of(self._path) if (fd := _open(path)) is not None]
        places = [0] if self._before is None else [
            number + 1 for number, (_, fd) in enumerate(chain)
            if os.fstat(fd).st_size == self._before.size and fits(fd, self._before.size, self._before.print)
        ]  # fmt: skip
        here = os.fstat(self._fd).st_ino
        keep = chain[places[-1]] if places and places[-1] < len(chain) else None
        if keep is not None and os.fstat(keep[1]).st_ino == here:
            keep = None
        for each in chain:
            if each is not keep:
                os.close(each[1])
        if keep is None:
            return False
        self._take(keep[1], keep[0], 0, before=self._before)
        return True

    def _replaced(self) -> None:
        """The same inode with other content: it was truncated, maybe after it was copied."""
        for path in chain_of(self._path)[:-1]:
            fd = _open(path)
            if fd is None:
                continue
            if self._print.head_bytes and fits(fd, self._offset, self._print):
                self._take(fd, path, self._offset, long=self._long, before=self._before)
                return
            os.close(fd)
        after = self._behind_copy(self._offset, self._print)
        if after is not None:
            self._take(after[0], after[1], 0, before=after[2])
            return
        self._notice(f"{self._name} was truncated at offset {self._offset}; reading it from its beginning")
        found = _open(self._path)
        if found is None:
            raise ConnectorFailedError(f"{self._path} was truncated and is gone")
        self._take(found, self._path, 0, before=self._newest_rotated())

    def _is_over(self) -> bool:
        """Whether nothing more comes of this file: another one has the name, and it was left alone for long enough."""
        here = os.fstat(self._fd)
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        if (here.st_ino, here.st_dev) == (there.st_ino, there.st_dev):
            return False
        return self._clock() - here.st_mtime >= self._declared.settle_seconds

    def _next_file(self) -> Items | None:
        """Give the end of this file, if it has one without a newline; else begin the one after it."""
        chunk = self._chunk(at_end=True)
        if chunk is not None and chunk.next > self._offset:
            return self._given(chunk)
        here = os.fstat(self._fd)
        chain = [(path, fd) for path in chain_of(self._path) if (fd := _open(path)) is not None]
        inodes = [os.fstat(fd).st_ino for _, fd in chain]
        if here.st_ino in inodes:
            following = chain[inodes.index(here.st_ino) + 1 :]
        else:
            # It was removed: what was changed after it comes after it.
            following = [each for each in chain if os.fstat(each[1]).st_mtime >= here.st_mtime]
        keep = following[0] if following else None
        for each in chain:
            if each is not keep:
                os.close(each[1])
        if keep is None:
            return None
        self._take(keep[1], keep[0], 0, before=Before(here.st_size, print_of(self._fd, here.st_size)))
        return Items((), self._position())


def _at(position: Position) -> At:
    try:
        return msgspec.convert(position, At)
    except msgspec.ValidationError as error:
        raise PositionUnknownError("This is no position in a file", found=f"{position!r}: {error}") from error


def _state(path: Path) -> State | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        return None


def _end_of_lines(fd: int) -> int:
    """Behind the last newline."""
    size = os.fstat(fd).st_size
    step = 64 << 10
    end = size
    while end > 0:
        begin = max(0, end - step)
        with contextlib.suppress(ValueError):
            return begin + os.pread(fd, end - begin, begin).rindex(b"\n") + 1
        end = begin
    return 0
