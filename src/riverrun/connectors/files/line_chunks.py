"""Read whole lines of a file from an offset on, and where the next one begins."""

import os
from typing import NamedTuple

# How much of a file is read at a time. For a longer line, more is read again.
CHUNK_BYTES = 256 << 10


class FileLine(NamedTuple):
    """A line without its end, and the offset it begins at. `complete` is False for a piece of one that is too long."""

    offset: int
    text: bytes
    complete: bool = True


class LineChunk(NamedTuple):
    """Lines, the offset behind the last of them, and whether that is inside a line that is too long."""

    lines: list[FileLine]
    next_offset: int
    in_long_line: bool


def read_lines(
    fd: int, offset: int, *, max_line_bytes: int, in_long_line: bool = False, file_closed: bool = False
) -> LineChunk:
    """Lines from `offset` on, empty ones left out. A last line without its newline waits for it, unless the file is
    `file_closed`: nobody writes to it any more. `in_long_line` says that `offset` is inside a line that is too long."""
    data = os.pread(fd, CHUNK_BYTES, offset)
    if b"\n" not in data and len(data) == CHUNK_BYTES and max_line_bytes > CHUNK_BYTES:
        data = os.pread(fd, max_line_bytes + 1, offset)
    lines: list[FileLine] = []
    begin = 0
    while (end := data.find(b"\n", begin)) >= 0:
        _add_line(lines, data[begin:end], offset + begin, max_line_bytes, in_long_line=in_long_line)
        begin, in_long_line = end + 1, False
    rest = data[begin:]
    if len(rest) > max_line_bytes or (in_long_line and len(rest) >= CHUNK_BYTES):
        # Only a piece of it, so that memory does not grow.
        piece = rest[:max_line_bytes]
        lines.append(FileLine(offset + begin, piece, complete=False))
        return LineChunk(lines, offset + begin + len(piece), True)
    if rest and file_closed and begin + len(rest) == len(data) and not os.pread(fd, 1, offset + len(data)):
        _add_line(lines, rest, offset + begin, max_line_bytes, in_long_line=in_long_line)
        return LineChunk(lines, offset + len(data), False)
    return LineChunk(lines, offset + begin, in_long_line)


def _add_line(lines: list[FileLine], text: bytes, offset: int, max_line_bytes: int, *, in_long_line: bool) -> None:
    text = text.removesuffix(b"\r")
    if in_long_line or len(text) > max_line_bytes:
        lines.append(FileLine(offset, text[:max_line_bytes], complete=False))
    elif text:
        lines.append(FileLine(offset, text))


def first_line(fd: int, max_line_bytes: int) -> tuple[bytes, int] | None:
    """The first line of a file, which has its columns, and the offset behind it; None while it has none."""
    data = os.pread(fd, max_line_bytes + 1, 0)
    end = data.find(b"\n")
    if end < 0:
        return None
    return data[:end].removesuffix(b"\r"), end + 1
