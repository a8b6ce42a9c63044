"""Output of commands: results to stdout (a table for people, JSON for programs), everything else to stderr."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, Self, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
# Columns are not padded beyond this.
_MAX_COLUMN_WIDTH = 200


def json_option(command: F) -> F:
    """`--json` on every command that prints rows or a state."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(command)


class LiveLine(Protocol):
    """A line of the terminal that is redrawn, and makes room for other output."""

    def hide(self) -> None: ...
    def show(self) -> None: ...


# The lines drawn now; one at a time in practice.
_live_lines: list[LiveLine] = []


def add_live_line(line: LiveLine) -> None:
    _live_lines.append(line)


def remove_live_line(line: LiveLine) -> None:
    _live_lines.remove(line)


@contextmanager
def room_on_screen() -> Iterator[None]:
    """Write to the terminal inside this block: a live line is hidden meanwhile."""
    hidden = list(_live_lines)
    for line in hidden:
        line.hide()
    try:
        yield
    finally:
        for line in hidden:
            line.show()


def say(message: str) -> None:
    """Print progress and remarks, to stderr: a pipe never sees them."""
    with room_on_screen():
        click.echo(message, err=True)


def plural(number: int, noun: str) -> str:
    """`1 record`, `12,345 records`."""
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, default=str, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool, empty: str = "Nothing to show.") -> None:
    """Print rows of the same keys: JSON, or a table whose columns fit their values.

    Numbers are right-aligned. Nothing is truncated: a row that is wider than the screen wraps, as text does.
    """
    if as_json:
        print_json(list(rows))
        return
    if not rows:
        say(empty)
        return
    names = list(rows[0])
    cells = [[cell(row.get(name)) for name in names] for row in rows]
    # One long value does not push all the others off the screen.
    widths = [min(_MAX_COLUMN_WIDTH, max(len(name), *(len(line[i]) for line in cells))) for i, name in enumerate(names)]
    right = [all(isinstance(row.get(name), int | float | None) for row in rows) for name in names]
    click.echo(_line((name.upper().replace("_", " ") for name in names), widths, right), color=None)
    for line in cells:
        click.echo(_line(line, widths, right))


def cell(value: Any) -> str:
    """A value as printed in a table."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}" if abs(value) >= 10_000 else str(value)
        case float():
            return f"{value:.1f}"
        case Mapping() | list() | tuple():
            return json.dumps(value, default=str, ensure_ascii=False)
        case _:
            return str(value)


def _line(values: Iterable[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = (
        value.rjust(width) if to_right else value.ljust(width)
        for value, width, to_right in zip(values, widths, right, strict=True)
    )
    return "  ".join(parts).rstrip()


class CountProgress:
    """Progress as a count: on a terminal one line, redrawn; elsewhere a line now and then, and none for what is quick."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._terminal = sys.stderr.isatty()
        self._every = 0.2 if self._terminal else 10.0
        self._next = time.monotonic() + self._every
        self._written = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every
        text = f"{self._what} {done:,} of {total:,}"
        click.echo(f"\r{text}\x1b[K" if self._terminal else text, err=True, nl=not self._terminal)
        self._written = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._written and self._terminal:
            click.echo("\r\x1b[K", err=True, nl=False)
