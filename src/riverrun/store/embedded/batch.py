"""Records of a topic as one Arrow table, for one table of the store; and those that cannot even be text."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from riverrun.kafka.bulk import Columns
from riverrun.model.table import TableSpec
from riverrun.store.embedded import shaping

_NAMES = [each.strip('"') for each in (shaping.ROW, shaping.TIME, shaping.VALUE, shaping.IDENTITY, shaping.DEAD)]
# Numbers of the records of a batch, made once.
_ROWS = pa.array(range(65_536), pa.int64())
_TIME = pa.timestamp("ms", "UTC")


@dataclass(frozen=True)
class Misfit:
    """A record that is no row, and why."""

    partition: int
    offset: int
    reason: str
    bytes: bytes


@dataclass(frozen=True)
class Batch:
    """The records of one table, ready to be shaped, and those that never will be."""

    columns: Columns
    records: pa.Table
    misfits: list[Misfit]

    @property
    def identified(self) -> bool:
        """Whether any of them has an identity."""
        identities = self.records.column(3)
        return bool(identities.null_count < len(identities))

    def misfit(self, row: int, reason: str) -> Misfit:
        """A record that is none of the table's, by its number."""
        columns = self.columns
        return Misfit(
            columns.partitions[row], columns.offsets[row], reason, columns.values[row] or columns.keys[row] or b""
        )


def batch_of(
    table: TableSpec, columns: Columns, positions: Mapping[int, int], until: Mapping[int, int] | None = None
) -> Batch:
    """The records that the table does not have yet, and none from the offsets `until` on."""
    columns = _from(columns, positions)
    if until:
        columns = _chosen(columns, lambda partition, offset: offset < until.get(partition, offset + 1))
    count = len(columns)
    values, misfits = columns.values, dict[int, str]()
    dead = pa.repeat(pa.scalar(value=False), count)
    raw = _binary(values)
    if raw.null_count:
        values = _without_value(table, columns, misfits)
        dead, raw = raw.is_null(), _binary(values)
    try:
        text = raw.cast(pa.string())
    except pa.ArrowInvalid:
        text = _binary(_only_text(values, misfits)).cast(pa.string())
    identified = any(columns.identities)
    timed = identified or any(not each.path for each in table.columns)
    records = pa.table(
        [
            _ROWS.slice(0, count) if count <= len(_ROWS) else pa.array(range(count), pa.int64()),
            pa.array(columns.times, _TIME) if timed else pa.nulls(count, _TIME),
            text,
            pa.array(columns.identities, pa.binary()) if identified else pa.nulls(count, pa.binary()),
            dead,
        ],
        names=_NAMES,
    )
    if misfits:
        # They are told of already, and are nothing to the SQL.
        records = records.filter(pc.is_valid(text))
    found = Batch(columns, records, [])
    found.misfits.extend(found.misfit(row, reason) for row, reason in sorted(misfits.items()))
    return found


def _binary(values: list[bytes | None]) -> pa.ChunkedArray:
    """In pieces when they are more than one array may hold."""
    made = pa.array(values, pa.binary())
    return made if isinstance(made, pa.ChunkedArray) else pa.chunked_array([made])


def _from(columns: Columns, positions: Mapping[int, int]) -> Columns:
    """Only what is not in the table: another table may have had its topic read again."""
    first = {partition: columns.offsets[columns.partitions.index(partition)] for partition in set(columns.partitions)}
    if all(offset >= positions.get(partition, 0) for partition, offset in first.items()):
        return columns
    return _chosen(columns, lambda partition, offset: offset >= positions.get(partition, 0))


def _chosen(columns: Columns, wanted: Callable[[int, int], bool]) -> Columns:
    """The records whose partition and offset are wanted."""
    keep = [
        number
        for number, (partition, offset) in enumerate(zip(columns.partitions, columns.offsets, strict=True))
        if wanted(partition, offset)
    ]

    def chosen(values: list[Any]) -> list[Any]:
        return [values[number] for number in keep]

    return Columns(
        chosen(columns.partitions), chosen(columns.offsets), chosen(columns.times),
        chosen(columns.keys), chosen(columns.values), chosen(columns.identities),
    )  # fmt: skip


def _without_value(table: TableSpec, columns: Columns, misfits: dict[int, str]) -> list[bytes | None]:
    """A record without a value deletes its key, where the table has one: its key is told as if it were a row's."""
    values = list(columns.values)
    for row, value in enumerate(values):
        if value is None:
            values[row] = _as_row(table, columns.keys[row]) if table.upserts else None
            if values[row] is None:
                also = ", and its key is no key of the table" if table.upserts else ""
                misfits[row] = f"it has no value{also}"
    return values


def _as_row(table: TableSpec, key: bytes | None) -> bytes | None:
    """A row that has only the columns of a key: the text of one, a compact JSON array of several."""
    try:
        text = None if key is None else key.decode()
        if len(table.key) == 1:
            parts: list[Any] = [text]
        elif not table.key:
            parts = []
        else:
            parts = _parts(text or "")
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


def _parts(text: str) -> list[Any]:
    """A JSON array's values as they are written: numbers must not become floats on the way."""
    found = json.loads(text, parse_float=str, parse_int=str)
    return found if isinstance(found, list) else []


def _only_text(values: list[bytes | None], misfits: dict[int, str]) -> list[bytes | None]:
    kept = list(values)
    for row, value in enumerate(values):
        try:
            (value or b"").decode()
        except UnicodeDecodeError as error:
            kept[row] = None
            misfits[row] = f"it is not UTF-8 at byte {error.start}"
    return kept
