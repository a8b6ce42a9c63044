"""Reads riverrun.toml: of bounded size, each key with its line, and no syntax error that hides the rest."""

import errno
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from riverrun.config.formats import truncated
from riverrun.model.units import format_size

MAX_BYTES = 2**20
MAX_SECRET_BYTES = 2**16
# tomllib descends by recursion, and takes time by the square of a key's parts.
_MAX_DEPTH = 50
_MAX_SYNTAX_ERRORS = 20
# profile.NAME.section.name, and one below.
_LOCATION_DEPTH = 5

_AT = re.compile(r"(.*) \(at line (\d+), column \d+\)")
_NAME = re.compile(r"""\s*(["']?[\w.-]+["']?)\s*([=:])\s*(.*)""")
_TOKEN = re.compile(
    r'''(?P<newline>\n)|(?P<space>[^\S\n]+|\#[^\n]*)'''
    r'''|(?P<string>"{3}(?:[^"\\]++|\\.|"{1,2}(?!"))*+"{3,5}|'{3}(?:[^']++|'{1,2}(?!'))*+'{3,5}'''
    r'''|"(?:[^"\\\n]++|\\.)*+"|'[^'\n]*+')'''
    r'''|(?P<mark>[\[\]{}=,])|(?P<bare>[^\s\[\]{}=,."'#]++)|(?P<other>.)''',
    re.DOTALL,
)  # fmt: skip


class UnreadableFileError(Exception):
    """A file that cannot be read as text; its message is the reason, `line` where it is known."""

    def __init__(self, reason: str, line: int = 0) -> None:
        super().__init__(reason)
        self.line = line


@dataclass(frozen=True)
class TomlFile:
    """The content of a file; where it has syntax errors, the content of the rest.

    `problems` are those errors, each with its location.
    """

    name: str
    content: dict[str, Any] = field(default_factory=dict)
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    problems: Sequence[str] = ()

    def location(self, *keys: str) -> str:
        """`riverrun.toml:7`: the line of a key, else of the table it is in."""
        for length in range(min(len(keys), _LOCATION_DEPTH), 0, -1):
            if line := self.lines.get(keys[:length]):
                return f"{self.name}:{line}"
        return self.name


def read_toml(path: Path) -> TomlFile:
    """Read and parse a file. A missing one is empty; what is wrong with it is in `problems`."""
    try:
        if not os.path.lexists(path):
            return TomlFile(path.name)
        text = read_text(path, MAX_BYTES, "settings have")
    except UnreadableFileError as error:
        location = f"{path.name}:{error.line}" if error.line else path.name
        return TomlFile(path.name, problems=[f"{location}: {error}"])
    return _parse(path.name, text.replace("\r\n", "\n") + "\n")


def read_text(path: Path, max_bytes: int, what: str) -> str:
    """The text of a regular file of at most `max_bytes`. Waits for nothing: a pipe or a device is refused."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        target = f"it is a link to {path.readlink()}, which is not there" if path.is_symlink() else error.strerror
        raise UnreadableFileError(f"cannot be read: {target}") from error
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise UnreadableFileError("this is a socket, not a file") from error
        raise UnreadableFileError(f"cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableFileError(f"this is a {_kind(status.st_mode)}, not a file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise UnreadableFileError(f"cannot be read: {error.strerror}") from error
    finally:
        os.close(handle)
    if len(data) > max_bytes:
        size = max(status.st_size, len(data))
        raise UnreadableFileError(f"it has {format_size(size)}, and {what} at most {format_size(max_bytes)}")
    return _decoded(data)


def _kind(mode: int) -> str:
    return "folder" if stat.S_ISDIR(mode) else "pipe" if stat.S_ISFIFO(mode) else "device"


def _decoded(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UnreadableFileError("this is UTF-16 text: save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        reason = f"this is not UTF-8 text: byte 0x{data[error.start]:02x}"
        raise UnreadableFileError(reason, line) from error


def _parse(name: str, text: str) -> TomlFile:
    problems: list[str] = []
    for _ in range(_MAX_SYNTAX_ERRORS):
        lines, depth = _scan(text)
        if depth > _MAX_DEPTH:
            return TomlFile(name, problems=[f"{name}: its values are nested too deeply to be read"])
        try:
            return TomlFile(name, tomllib.loads(text), lines, problems)
        except tomllib.TOMLDecodeError as error:
            match = _AT.fullmatch(str(error))
            if match is None:
                problems.append(f"{name}: this is not TOML: {truncated(str(error))}")
                break
            number = int(match[2])
            reason = _reason(match[1], text.split("\n")[number - 1])
            problems.append(f"{name}:{number}: this is not TOML: {reason}")
            text = _without(text, number)
        except ValueError:
            problems.append(f"{name}: this is not TOML: a number has too many digits")
            break
    # Nothing more is certain: later errors may follow from the first.
    return TomlFile(name, problems=problems[:1])


def _reason(message: str, line: str) -> str:
    """What is wrong with a line, for people. Its value is not shown: it may be a password."""
    named = _NAME.match(line)
    if named is None or message not in {"Invalid value", "Expected '=' after a key in a key/value pair"}:
        return truncated(message)
    name, sign, value = truncated(named[1]), named[2], named[3].partition("#")[0].strip()
    if sign == ":":
        return f"write {name} = …, with an equals sign"
    if value.lower() in {"true", "false"}:
        return f"write {name} = {value.lower()}, in lower case"
    if value and value[0] not in "\"'[{+-" and not value[0].isdigit():
        return f'text needs quotes: {name} = "…"'
    return f"the value of {name} is missing or not understood"


def _without(text: str, number: int) -> str:
    """The text without the statement in a line: for a table's header, without all of the table."""
    lines = text.split("\n")
    last = number
    if lines[number - 1].lstrip().startswith("["):
        while last < len(lines) and not lines[last].lstrip().startswith("["):
            last += 1
    lines[number - 1 : last] = [""] * (last - number + 1)
    return "\n".join(lines)


def _scan(text: str) -> tuple[dict[tuple[str, ...], int], int]:
    """The line of each key, which tomllib does not report, and how deep values and keys are nested."""
    scan = _KeyScanner()
    for kind, token in _tokens(text):
        scan.feed(kind, token)
    return scan.lines, scan.depth


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    return ((match.lastgroup or "", match[0]) for match in _TOKEN.finditer(text))


class _KeyScanner:
    """Follows TOML's statements: a header in brackets, or a key, an equals sign and a value."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, ...], int] = {}
        self.depth = 0
        self._line = 1
        self._table: tuple[str, ...] = ()
        self._key: list[str] = []
        self._path: tuple[str, ...] = ()
        self._header = False
        self._in_value = False
        # What is open around the current position: None for an array, the key for an inline table.
        self._open: list[tuple[str, ...] | None] = []

    def feed(self, kind: str, token: str) -> None:
        if kind == "newline":
            self._end_of_line()
        elif kind == "mark":
            self._mark(token)
        elif kind in {"bare", "string"} and not self._in_value:
            self._key.append(token.strip("\"'") if kind == "string" else token)
            self.depth = max(self.depth, len(self._key))
        self._line += token.count("\n")

    def _end_of_line(self) -> None:
        if self._open:
            return
        if self._header:
            self._table = self._record(())
        self._header = self._in_value = False
        self._key = []

    def _record(self, prefix: tuple[str, ...]) -> tuple[str, ...]:
        path = (*prefix, *self._key)[:_LOCATION_DEPTH]
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], self._line)
        return path

    def _mark(self, mark: str) -> None:
        inside = self._open[-1] if self._open else self._table
        if mark in "[{" and self._in_value:
            self._open.append(self._path if mark == "{" else None)
            self.depth = max(self.depth, len(self._open))
            self._in_value = mark == "["
            self._key = []
        elif mark == "[":
            self._header = True
        elif mark == "=" and not self._in_value:
            self._path = self._record(inside or ())
            self._in_value = True
        elif mark == "," and inside is not None and self._open:
            self._in_value = False
            self._key = []
        elif mark in "]}" and self._open:
            self._open.pop()
            self._in_value = True
