"""A connection of our own to the database, of which every result is taken to its end: DuckDB 2 minds what is left of one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import duckdb


class Session:
    """Runs statements, one after the other. One thread at a time."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection

    def run(self, sql: str, values: Sequence[Any] | None = None) -> list[Any]:
        """All rows of a statement's result."""
        return self.connection.execute(sql, values).fetchall()

    def row(self, sql: str) -> tuple[Any, ...]:
        """The only row of a result."""
        found: tuple[Any, ...] = self.run(sql)[0]
        return found

    def count(self, sql: str) -> int:
        """How many rows a statement has changed."""
        return int(self.row(sql)[0])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is run inside, or nothing of it."""
        self.run("BEGIN")
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            # What failed may have ended it already.
            with suppress(duckdb.Error):
                self.run("ROLLBACK")
            raise

    @contextmanager
    def table(self, name: str, rows: Any) -> Iterator[None]:
        """Arrow rows as a table of this connection."""
        self.connection.register(name, rows)
        try:
            yield
        finally:
            self.connection.unregister(name)

    def close(self) -> None:
        self.connection.close()
