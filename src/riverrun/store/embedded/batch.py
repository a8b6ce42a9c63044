"""Records of a topic as one Arrow table, for one table of the store; and those that cannot even be text."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from riverrun.kafka.bulk import Columns
from riverrun.model.table import TableSpec
from riverrun.store.embedded import shaping

_NAMES = [
    each.strip('"')
    for each in (
        shaping.PARTITION, shaping.OFFSET, shaping.TIME, shaping.VALUE, shaping.IDENTITY, shaping.DEAD, shaping.ROW,
    )
]  # fmt: skip


@dataclass(frozen=True)
class Misfit:
    """A record that is no row, and why."""

    partition: int
    offset: int
    reason: str
    bytes: bytes


@dataclass(frozen=True)
class Batch:
    """The records of one table, ready to be shaped."""

    records: pa.Table
    misfits: list[Misfit]
    # Whether any has an identity, or deletes a key.
    identified: bool


def batch_of(table: TableSpec, columns: Columns, positions: Mapping[int, int]) -> Batch:
    """The records that the table does not have yet."""
    columns = _from(columns, positions)
    values, misfits, dead = columns.values, [], None
    if None in values:
        values, misfits, dead = _without_value(table, columns)
    try:
        text = pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        values, more = _only_text(columns, values)
        misfits += more
        text = pa.array(values, pa.binary()).cast(pa.string())
    except OverflowError:
        text = pa.chunked_array([pa.array(values[at : at + 1000], pa.binary()) for at in range(0, len(values), 1000)])
        text = text.cast(pa.string())
    count = len(columns)
    records = pa.table(
        [
            pa.array(columns.partitions, pa.int32()),
            pa.array(columns.offsets, pa.int64()),
            pa.array(columns.times, pa.timestamp("ms", "UTC")),
            text,
            pa.array(columns.identities, pa.binary()),
            pa.array(dead, pa.bool_()) if dead else pa.repeat(pa.scalar(False), count),
            pa.array(range(count), pa.int64()),
        ],
        names=_NAMES,
    )
    if misfits:
        # They are told of below, and are nothing to the SQL.
        records = records.filter(pc.is_valid(records.column(3)))
    return Batch(records, misfits, records.column(4).null_count < records.num_rows)


def _from(columns: Columns, positions: Mapping[int, int]) -> Columns:
    """Only what is not in the table: another table may have had its topic read again."""
    first = {partition: columns.offsets[columns.partitions.index(partition)] for partition in set(columns.partitions)}
    if all(offset >= positions.get(partition, 0) for partition, offset in first.items()):
        return columns
    keep = [
        number
        for number, (partition, offset) in enumerate(zip(columns.partitions, columns.offsets, strict=True))
        if offset >= positions.get(partition, 0)
    ]

    def chosen(values: list[Any]) -> list[Any]:
        return [values[number] for number in keep]

    return Columns(
        chosen(columns.partitions), chosen(columns.offsets), chosen(columns.times),
        chosen(columns.keys), chosen(columns.values), chosen(columns.identities),
    )  # fmt: skip


def _without_value(table: TableSpec, columns: Columns) -> tuple[list[bytes | None], list[Misfit], list[bool]]:
    """A record without a value deletes its key, where the table has one: its key is told as if it were a row's."""
    values, misfits = list(columns.values), list[Misfit]()
    dead = [value is None for value in values]
    for number, is_dead in enumerate(dead):
        if not is_dead:
            continue
        key = columns.keys[number]
        told = _as_row(table, key) if table.upserts else None
        values[number] = told
        if told is None:
            reason = "it has no value, and its key is no key of the table" if table.upserts else "it has no value"
            misfits.append(Misfit(columns.partitions[number], columns.offsets[number], reason, key or b""))
    return values, misfits, dead


def _as_row(table: TableSpec, key: bytes | None) -> bytes | None:
    """A row that has only the columns of a key: the text of one, a compact JSON array of several."""
    try:
        text = None if key is None else key.decode()
        if len(table.key) == 1:
            parts: list[Any] = [text]
        elif not table.key:
            parts = []
        else:
            # As they are written: numbers must not become floats on the way.
            parts = json.loads(text or "", parse_float=str, parse_int=str)
    except ValueError:
        return None
    if not isinstance(parts, list) or len(parts) != len(table.key):
        return None
    row: dict[str, Any] = {}
    for name, part in zip(table.key, parts, strict=True):
        column = table.column(name)
        inside = row
        for step in column.path[:-1] if column else ():
            inside = inside.setdefault(step, {})
        if column and column.path:
            inside[column.path[-1]] = part
    return json.dumps(row).encode()


def _only_text(columns: Columns, values: list[bytes | None]) -> tuple[list[bytes | None], list[Misfit]]:
    kept, misfits = list(values), []
    for number, value in enumerate(values):
        try:
            (value or b"").decode()
        except UnicodeDecodeError as error:
            kept[number] = None
            reason = f"it is not UTF-8 at byte {error.start}"
            misfits.append(Misfit(columns.partitions[number], columns.offsets[number], reason, value or b""))
    return kept, misfits
