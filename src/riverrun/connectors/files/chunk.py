"""Whole lines of a file from an offset on, and where the next one begins."""

import os
from typing import NamedTuple

# What is read of a file at a time. A line that is longer is looked at again with more.
CHUNK = 256 << 10


class Line(NamedTuple):
    """A line without its end, and the offset it begins at. `whole` is False for a piece of one that is too long."""

    begin: int
    text: bytes
    whole: bool = True


class Chunk(NamedTuple):
    """Lines, the offset behind the last of them, and whether that is inside a line that is too long."""

    lines: list[Line]
    next: int
    long: bool


def read_lines(fd: int, offset: int, *, most_line: int, long: bool = False, at_end: bool = False) -> Chunk:
    """Lines from `offset` on, empty ones left out. A last line without its newline waits for it, unless the file is
    `at_end`: nobody writes to it any more. `long` says that `offset` is inside a line that is too long."""
    data = os.pread(fd, CHUNK, offset)
    if b"\n" not in data and len(data) == CHUNK and most_line > CHUNK:
        data = os.pread(fd, most_line + 1, offset)
    lines: list[Line] = []
    begin = 0
    while (end := data.find(b"\n", begin)) >= 0:
        _take(lines, data[begin:end], offset + begin, most_line, long=long)
        begin, long = end + 1, False
    rest = data[begin:]
    if len(rest) > most_line or (long and len(rest) >= CHUNK):
        # A piece of it, so that memory stays what it is.
        piece = rest[:most_line]
        lines.append(Line(offset + begin, piece, whole=False))
        return Chunk(lines, offset + begin + len(piece), True)
    if rest and at_end and begin + len(rest) == len(data) and not os.pread(fd, 1, offset + len(data)):
        _take(lines, rest, offset + begin, most_line, long=long)
        return Chunk(lines, offset + len(data), False)
    return Chunk(lines, offset + begin, long)


def _take(lines: list[Line], text: bytes, begin: int, most_line: int, *, long: bool) -> None:
    text = text.removesuffix(b"\r")
    if long or len(text) > most_line:
        lines.append(Line(begin, text[:most_line], whole=False))
    elif text:
        lines.append(Line(begin, text))


def first_line(fd: int, most_line: int) -> tuple[bytes, int] | None:
    """The first line of a file, which has its columns, and the offset behind it; None while it has none."""
    data = os.pread(fd, most_line + 1, 0)
    end = data.find(b"\n")
    if end < 0:
        return None
    return data[:end].removesuffix(b"\r"), end + 1
