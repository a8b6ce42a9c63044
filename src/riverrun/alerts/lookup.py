"""Lookup tables of rules, such as who owns a house and their phone. Read from their files when alerts start."""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from riverrun.alerts.rows import RejectedRowError, convert_value
from riverrun.errors import DeclarationError
from riverrun.model.pipeline import FileSource, Table
from riverrun.model.table import Column

_TYPES = {
    "int": "bigint", "integer": "bigint", "bigint": "bigint", "long": "bigint", "smallint": "bigint",
    "double": "double", "float": "double", "boolean": "boolean", "timestamp": "timestamp", "date": "date",
}  # fmt: skip
_COLUMN = re.compile(r"\s*`?(\w+)`?\s+(\w+)\b.*", re.DOTALL)
_OPTIONS = {"sep", "delimiter", "header", "encoding"}


@dataclass(frozen=True)
class LookupTable:
    """The rows of a table by their key."""

    name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: Mapping[tuple[str, ...], Mapping[str, Any]]

    def find(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The lookup row for the key in this row."""
        return self.rows.get(tuple(str(row.get(name)) for name in self.key))


def load_lookup_table(table: Table, folder: Path) -> LookupTable:
    """Read the table from its file. DeclarationError when that is not possible."""
    source, label = table.source, f"The table {table.name}"
    if not isinstance(source, FileSource) or source.format == "parquet":
        raise DeclarationError(
            f"{label} cannot be looked up by an alert",
            expected="a table of a CSV or JSON file",
            hint="Join it in the stream that the alert watches, and name the column",
        )
    if not table.key:
        raise DeclarationError(f"{label} has no key to look it up by", hint='Declare it with key="…"')
    if unknown_options := sorted(set(source.options) - _OPTIONS):
        raise DeclarationError(
            f"{label} has the option {unknown_options[0]}, which alerts do not know", expected="sep, encoding"
        )
    path = folder / source.path.removeprefix("file://")
    try:
        with path.open(encoding=source.options.get("encoding", "utf-8-sig"), newline="") as lines:
            records = list(_read_csv(lines, source)) if source.format == "csv" else list(_read_json(lines))
    except (OSError, UnicodeError, LookupError, csv.Error, msgspec.MsgspecError) as error:
        raise DeclarationError(f"{label} cannot be read from {path}", found=str(error)) from error
    columns = _columns(source.columns, records)
    for name in table.key:
        if name not in {column.name for column in columns}:
            raise DeclarationError(
                f"{label} has no column {name}", expected=", ".join(column.name for column in columns)
            )
    rows = [_convert_row(label, columns, record, number) for number, record in enumerate(records, 1)]
    return LookupTable(table.name, table.key, columns, {tuple(str(row[n]) for n in table.key): row for row in rows})


def _read_csv(lines: Iterable[str], source: FileSource) -> Iterable[dict[str, Any]]:
    sep = source.options.get("sep") or source.options.get("delimiter") or ","
    for row in csv.DictReader(lines, delimiter=sep):
        yield {name: value or None for name, value in row.items() if name is not None}


def _read_json(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    return (msgspec.json.decode(line, type=dict[str, Any]) for line in lines if line.strip())


def _columns(declared: str, records: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    if declared:
        parts = [_COLUMN.fullmatch(part) for part in re.split(r",(?![^(]*\))", declared)]
        return tuple(
            Column(part[1], _TYPES.get(part[2].lower(), "text"), (part[1],)) for part in parts if part is not None
        )
    names = dict.fromkeys(name for row in records for name in row)
    return tuple(Column(name, "text", (name,)) for name in names)


def _convert_row(label: str, columns: Sequence[Column], record: Mapping[str, Any], number: int) -> dict[str, Any]:
    try:
        return {column.name: convert_value(column, record.get(column.name)) for column in columns}
    except RejectedRowError as error:
        raise DeclarationError(f"{label}: row {number} does not fit", found=str(error)) from error
