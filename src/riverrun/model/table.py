"""A table of a store: the rows of a topic, of which the newest of each key counts, or all of them once.

A stream's output topic is a table; so is a topic of events that the pipeline file asks to be kept. Exactly what a store
needs to know of it is here, so that a store can run without Spark and without the pipeline file.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from riverrun.errors import DeclarationError

# text, boolean, bigint, double, decimal(P,S), timestamp (UTC), date, json (a list, map or object, as JSON text).
_TYPE = re.compile(r"text|boolean|bigint|double|timestamp|date|json|decimal\((\d{1,2}),(\d{1,2})\)")
# A column whose value is not in the record's value but is the record's Kafka timestamp.
RECORD_TIME = "recorded_at"
# Druid's words for the precision of a time, and for combining rows that are then equal.
GRANULARITIES = (
    "second",
    "minute",
    "five_minute",
    "fifteen_minute",
    "hour",
    "six_hour",
    "day",
    "week",
    "month",
    "year",
)
ROLLUPS = ("sum", "min", "max", "count")


@dataclass(frozen=True)
class Column:
    """A column and the path of its value in the record's JSON value. An empty path is the record's own time."""

    name: str
    type: str
    path: tuple[str, ...]

    def __post_init__(self) -> None:
        if not _TYPE.fullmatch(self.type):
            raise DeclarationError(f"The column {self.name} cannot have the type {self.type}", column=self.name)

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale of a decimal."""
        match = _TYPE.fullmatch(self.type)
        return (int(match[1]), int(match[2])) if match and match[1] else None


@dataclass(frozen=True)
class TableGeneration:
    """The generation of a table's stream that a replay has made: `topic` has its rows up to the cutover, and the
    table's own topic those after it, from the offsets `first` on (0 in a partition that is not named). Rows whose time
    is before `since_ms` are those of the previous generation; 0: it has made all of them."""

    number: int
    topic: str
    first: Mapping[int, int]
    since_ms: int = 0


@dataclass(frozen=True)
class TableSpec:
    """A table as its writer declares it.

    Where it `upserts`, of the records of a `key`, which are all in one partition, the one with the highest offset
    counts; with no key it has one row. Else every record is a row, once: identified by topic, partition and offset, and
    by its `riverrun-id` header where it has one (real time: a record that was sent again has the same). `time` is the
    column with a row's event time; it is never empty, because a table without one has the column `recorded_at`. Rows
    older than `retention_ms` by that column may be deleted; -1 keeps them.
    """

    name: str
    topic: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    upserts: bool = False
    time: str = RECORD_TIME
    retention_ms: int = -1
    # Only for Druid: segment and query granularity (Druid's words), and whether equal rows are rolled up.
    segment_granularity: str = ""
    query_granularity: str = ""
    rollup: Mapping[str, str] = field(default_factory=dict)
    # Oldest first; none before the stream's first replay.
    generations: tuple[TableGeneration, ...] = ()

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    def as_dict(self) -> dict[str, Any]:
        generations = [
            {**asdict(generation), "first": {str(part): offset for part, offset in generation.first.items()}}
            for generation in self.generations
        ]
        return {**asdict(self), "rollup": dict(self.rollup), "generations": generations}


def table_from_dict(content: Mapping[str, Any]) -> TableSpec:
    """The table that `as_dict` returned, also by way of JSON. Names it does not know are ignored."""
    known = {name: value for name, value in content.items() if name in TableSpec.__dataclass_fields__}
    columns = tuple(Column(item["name"], item["type"], tuple(item["path"])) for item in known["columns"])
    generations = tuple(
        TableGeneration(
            int(item["number"]),
            str(item["topic"]),
            {int(partition): int(offset) for partition, offset in item["first"].items()},
            int(item["since_ms"]),
        )
        for item in known.get("generations", ())
    )
    return TableSpec(**{**known, "columns": columns, "key": tuple(known["key"]), "generations": generations})
