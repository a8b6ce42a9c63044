"""A DuckDB connection whose results are always read to their end: DuckDB 2 objects when part of one is left unread."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import duckdb
import pyarrow as pa


class ArrowSource:
    """Arrow rows under one SQL name, replaced each time: statements over it stay prepared."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)


class DuckDBSession:
    """Runs statements, one after the other. One thread at a time."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection
        self._sources: dict[str, ArrowSource] = {}
        self._prepared: dict[str, str] = {}

    def run(self, sql: str, values: Sequence[Any] | None = None) -> list[Any]:
        """All rows of a statement's result."""
        return self.connection.execute(sql, values).fetchall()

    def fetch_one(self, sql: str) -> tuple[Any, ...]:
        """The only row of a result."""
        row: tuple[Any, ...] = self.run(sql)[0]
        return row

    def run_count(self, sql: str) -> int:
        """How many rows a statement has changed."""
        return int(self.fetch_one(sql)[0])

    def run_prepared(self, sql: str) -> list[Any]:
        """Run a statement that will be run again: planning a large one takes longer than running it for a few rows."""
        name = self._prepared.get(sql)
        if name is None:
            name = f"statement_{len(self._prepared)}"
            self.run(f"PREPARE {name} AS {sql}")
            self._prepared[sql] = name
        return self.run(f"EXECUTE {name}")

    def register_rows(self, name: str, rows: pa.Table) -> None:
        """Register these rows under a name, replacing the previous ones. They must have the same columns each time."""
        if name in self._sources:
            self._sources[name].rows = rows
        else:
            self._sources[name] = ArrowSource(rows)
            self.connection.register(name, self._sources[name])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction: all that is run inside, or nothing of it."""
        self.run("BEGIN")
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            # The failed statement may have ended it already.
            with suppress(duckdb.Error):
                self.run("ROLLBACK")
            raise

    def close(self) -> None:
        self.connection.close()
