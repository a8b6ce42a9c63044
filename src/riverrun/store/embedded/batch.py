"""Converts records of a topic to one Arrow table, for one table of the store, and sets aside those that are not text."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from riverrun.kafka.reading.bulk_reader import RecordColumns
from riverrun.model.table import TableSpec
from riverrun.store.embedded import projection

_BATCH_COLUMNS = [
    quoted.strip('"')
    for quoted in (projection.ROW, projection.TIME, projection.VALUE, projection.IDENTITY, projection.TOMBSTONE)
]
# Row numbers of a batch, computed once.
_ROW_NUMBERS = pa.array(range(65_536), pa.int64())
_TIME = pa.timestamp("ms", "UTC")


@dataclass(frozen=True)
class RejectedRow:
    """A record that is not a valid row, and why."""

    partition: int
    offset: int
    reason: str
    bytes: bytes


@dataclass(frozen=True)
class TableBatch:
    """The records of one table, ready for the projection, and the rejected ones."""

    columns: RecordColumns
    records: pa.Table
    rejected: list[RejectedRow]

    @property
    def has_identities(self) -> bool:
        """Whether any of them has an identity."""
        identities = self.records.column(3)
        return bool(identities.null_count < len(identities))

    def reject(self, row: int, reason: str) -> RejectedRow:
        """Set a record aside, by its row number."""
        columns = self.columns
        return RejectedRow(
            columns.partitions[row], columns.offsets[row], reason, columns.values[row] or columns.keys[row] or b""
        )


def build_batch(
    table: TableSpec, columns: RecordColumns, positions: Mapping[int, int], until: Mapping[int, int] | None = None
) -> TableBatch:
    """The records that the table does not have yet, and none from the offsets `until` on."""
    columns = _skip_written(columns, positions)
    if until:
        columns = _filter_records(columns, lambda partition, offset: offset < until.get(partition, offset + 1))
    count = len(columns)
    values, reasons = columns.values, dict[int, str]()
    tombstones = pa.repeat(pa.scalar(value=False), count)
    raw = _binary(values)
    if raw.null_count:
        values = _fill_tombstones(table, columns, reasons)
        tombstones, raw = raw.is_null(), _binary(values)
    try:
        text = raw.cast(pa.string())
    except pa.ArrowInvalid:
        text = _binary(_blank_invalid_utf8(values, reasons)).cast(pa.string())
    has_identities = any(columns.record_ids)
    needs_times = has_identities or any(not column.path for column in table.columns)
    records = pa.table(
        [
            _ROW_NUMBERS.slice(0, count) if count <= len(_ROW_NUMBERS) else pa.array(range(count), pa.int64()),
            pa.array(columns.times, _TIME) if needs_times else pa.nulls(count, _TIME),
            text,
            pa.array(columns.record_ids, pa.binary()) if has_identities else pa.nulls(count, pa.binary()),
            tombstones,
        ],
        names=_BATCH_COLUMNS,
    )
    if reasons:
        # They are rejected already; the SQL needs no value.
        records = records.filter(pc.is_valid(text))
    batch = TableBatch(columns, records, [])
    batch.rejected.extend(batch.reject(row, reason) for row, reason in sorted(reasons.items()))
    return batch


def _binary(values: list[bytes | None]) -> pa.ChunkedArray:
    """In chunks when the values exceed what one array may hold."""
    made = pa.array(values, pa.binary())
    return made if isinstance(made, pa.ChunkedArray) else pa.chunked_array([made])


def _skip_written(columns: RecordColumns, positions: Mapping[int, int]) -> RecordColumns:
    """Only records that are not in the table yet: another table may have had its topic read again."""
    first = {partition: columns.offsets[columns.partitions.index(partition)] for partition in set(columns.partitions)}
    if all(offset >= positions.get(partition, 0) for partition, offset in first.items()):
        return columns
    return _filter_records(columns, lambda partition, offset: offset >= positions.get(partition, 0))


def _filter_records(columns: RecordColumns, accept: Callable[[int, int], bool]) -> RecordColumns:
    """The records whose partition and offset pass the filter."""
    keep = [
        number
        for number, (partition, offset) in enumerate(zip(columns.partitions, columns.offsets, strict=True))
        if accept(partition, offset)
    ]

    def chosen(values: list[Any]) -> list[Any]:
        return [values[number] for number in keep]

    return RecordColumns(
        chosen(columns.partitions), chosen(columns.offsets), chosen(columns.times),
        chosen(columns.keys), chosen(columns.values), chosen(columns.record_ids),
    )  # fmt: skip


def _fill_tombstones(table: TableSpec, columns: RecordColumns, reasons: dict[int, str]) -> list[bytes | None]:
    """A record without a value deletes its key, where the table has one: its key is encoded as if it were a row."""
    values = list(columns.values)
    for row, value in enumerate(values):
        if value is None:
            values[row] = _key_as_row(table, columns.keys[row]) if table.upserts else None
            if values[row] is None:
                also = ", and its key is no key of the table" if table.upserts else ""
                reasons[row] = f"it has no value{also}"
    return values


def _key_as_row(table: TableSpec, key: bytes | None) -> bytes | None:
    """A row that has only the key columns: the text of one, a compact JSON array of several."""
    try:
        text = None if key is None else key.decode()
        if len(table.key) == 1:
            parts: list[Any] = [text]
        elif not table.key:
            parts = []
        else:
            parts = _key_parts(text or "")
    except ValueError:
        return None
    if len(parts) != len(table.key):
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


def _key_parts(text: str) -> list[Any]:
    """A JSON array's values as they are written: numbers must not become floats on the way."""
    values = json.loads(text, parse_float=str, parse_int=str)
    return values if isinstance(values, list) else []


def _blank_invalid_utf8(values: list[bytes | None], reasons: dict[int, str]) -> list[bytes | None]:
    cleaned = list(values)
    for row, value in enumerate(values):
        try:
            (value or b"").decode()
        except UnicodeDecodeError as error:
            cleaned[row] = None
            reasons[row] = f"it is not UTF-8 at byte {error.start}"
    return cleaned
