"""The contract of a store: tables that follow topics, and queries over them. The embedded store and Druid both keep it.

- A row is in the table once (`TableSpec`), whatever is killed, however often a record was sent.
- A table is created and changed by `apply`: a new column appears, a changed type is refused and nothing is changed.
- Queries are read-only, bounded in time and rows, and can be cancelled.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from riverrun.errors import StoreError
from riverrun.model.table import TableSpec

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_ROWS = 10_000
DEFAULT_SECONDS = 30.0
# following: up to date. behind: reading, not caught up. settling: after a failure, figures may go back for a while.
TableHealth = Literal["following", "behind", "settling", "failing"]


@dataclass(frozen=True)
class QueryLimits:
    """How much one query may take. Of more rows than `rows`, that many are returned and `QueryResult.more` is set."""

    rows: int = DEFAULT_ROWS
    seconds: float = DEFAULT_SECONDS


@dataclass(frozen=True)
class QueryResult:
    """Rows as Arrow: text as string, bigint as int64, double as float64, timestamp as timestamp[us, UTC], json as string."""

    rows: "pa.Table"
    more: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class TableStatus:
    """The status of a table. `positions` is the next offset of each partition, `lag` the number of offsets up to the
    last committed record that it has not read."""

    table: str
    rows: int
    state: TableHealth = "following"
    detail: str = ""
    positions: Mapping[int, int] = field(default_factory=dict)
    lag: int = -1
    # Unix seconds: the newest row's own time, and when a row last came in; 0 when there is none.
    newest: float = 0.0
    updated: float = 0.0
    bytes: int = -1


class Store(ABC):
    """One store of one app. Used in a `with`: entering opens it, leaving closes it in order."""

    @abstractmethod
    def open(self) -> None:
        """Get ready for queries. Raises an error that names what is in the way."""

    @abstractmethod
    def close(self) -> None:
        """Stop in order. May be called at any time, and twice."""

    @abstractmethod
    def apply(self, tables: Sequence[TableSpec]) -> list[str]:
        """Make the store's tables what these say; returns a sentence for each that changed. Tables not named stay as
        they are.

        StoreTableError when one cannot be made so (a changed type, key or time); then nothing is changed.
        """

    @abstractmethod
    def remove(self, table: str) -> None:
        """Drop a table with its rows and positions. Applied again, it reads its topic from the beginning."""

    @property
    @abstractmethod
    def tables(self) -> dict[str, TableSpec]:
        """The tables as they are in the store."""

    @abstractmethod
    def table_statuses(self) -> list[TableStatus]:
        """The status of every table."""

    @abstractmethod
    def query(self, sql: str, limits: QueryLimits = QueryLimits(), *, name: str = "") -> QueryResult:  # noqa: B008  -- frozen
        """Run a query in riverrun's SQL. `name` is the handle for `cancel`. Thread-safe."""

    @abstractmethod
    def cancel(self, name: str) -> bool:
        """End a question that runs: its `query` raises. False when none of that name runs."""

    def snapshot(self, path: Path) -> None:  # noqa: ARG002
        """Write a consistent copy of all tables as a DuckDB file."""
        raise StoreError(
            "Only the embedded store gives a copy of its tables as a file",
            hint="Ask for rows with `riverrun query --format parquet`, or ask Druid itself through its SQL API",
        )

    @property
    def folder(self) -> Path | None:
        """Where the store keeps files on this machine, if it does."""
        return None

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
