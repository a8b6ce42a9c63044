"""How `riverrun consume` prints records: as they are, as lines of JSON, or as a table that grows."""

import json
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from riverrun.cli.output import cell
from riverrun.model.record import RawRecord, column_names, json_line, plain_line, table_row

# How many records determine the columns and widths of a table.
_SAMPLE = 200


class Printer(Protocol):
    """Prints records as they come. `flush` is called when a moment passes without any, and at the end."""

    def print(self, records: Sequence[RawRecord]) -> None: ...
    def flush(self) -> None: ...


class LinePrinter:
    """One line a record."""

    def __init__(self, line: Callable[[RawRecord], bytes]) -> None:
        self._line = line
        self._out = sys.stdout.buffer

    def print(self, records: Sequence[RawRecord]) -> None:
        lines = [self._line(record) for record in records]
        lines.append(b"")
        self._out.write(b"\n".join(lines))
        self._out.flush()

    def flush(self) -> None:
        self._out.flush()


class TablePrinter:
    """A row per record. The first records determine the columns; fields that appear later go into the last one."""

    def __init__(self, with_topic: bool) -> None:
        self._with_topic = with_topic
        self._waiting: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._widths: list[int] = []
        self._right: list[bool] = []

    def print(self, records: Sequence[RawRecord]) -> None:
        for record in records:
            row = table_row(record)
            self._waiting.append({"topic": record.topic(), **row} if self._with_topic else row)
            if not self._names and len(self._waiting) >= _SAMPLE:
                self.flush()
        if self._names:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            if not self._names:
                self._measure()
            lines = [self._row(row) for row in self._waiting]
            self._waiting = []
            sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()

    def _measure(self) -> None:
        self._names = column_names(self._waiting)
        cells = [[cell(row.get(name)) for name in self._names] for row in self._waiting]
        self._widths = [max(len(name), *(len(row[i]) for row in cells)) for i, name in enumerate(self._names)]
        self._right = [
            all(isinstance(row.get(name), int | float | None) for row in self._waiting) for name in self._names
        ]
        sys.stdout.write(self._line([name.upper().replace("_", " ") for name in self._names]) + "\n")

    def _row(self, row: Mapping[str, Any]) -> str:
        late = {name: value for name, value in row.items() if name not in self._names}
        extra = f"  {json.dumps(late, ensure_ascii=False, default=str)}" if late else ""
        return self._line([cell(row.get(name)) for name in self._names]) + extra

    def _line(self, values: Sequence[str]) -> str:
        aligned = (
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, self._widths, self._right, strict=True)
        )
        return "  ".join(aligned).rstrip()


def make_printer(*, as_json: bool, as_table: bool, with_key: bool, several_topics: bool) -> Printer:
    if as_json:
        return LinePrinter(json_line)
    if as_table:
        return TablePrinter(several_topics)
    terminal = sys.stdout.isatty()
    return LinePrinter(lambda record: plain_line(record, with_key=with_key, on_terminal=terminal))


def check_pipe() -> None:
    """BrokenPipeError when nobody reads our output any more: `consume --follow | head` must end before the next record."""
    try:
        watch = select.poll()
        watch.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return
    if any(events & select.POLLERR for _, events in watch.poll(0)):
        raise BrokenPipeError(os.strerror(32))
