# ruff: noqa: S608  -- SQL is made here, of names and values that are quoted
"""A copy of the tables in a file of its own, for DuckDB's own shell and everything else that opens such files."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

import duckdb

from riverrun.errors import StoreError
from riverrun.model.table import TableSpec
from riverrun.store.embedded.schema import duckdb_type, quote_identifier

_ROWS_AT_ONCE = 100_000


def write_snapshot(database: duckdb.DuckDBPyConnection, tables: Mapping[str, TableSpec], path: Path) -> None:
    """Write a consistent copy of all tables into a new file, as plain tables without riverrun's metadata.

    Read in one transaction, through Arrow, so that ingest and queries go on meanwhile.
    """
    if path.exists():
        raise StoreError(f"There is something at {path} already", hint="Name a file that is not there", path=str(path))
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    source = database.cursor()
    try:
        with contextlib.closing(duckdb.connect(str(part))) as target:
            source.execute("BEGIN TRANSACTION READ ONLY")
            for name, spec in tables.items():
                columns = ", ".join(f"{quote_identifier(column.name)} {duckdb_type(column)}" for column in spec.columns)
                target.execute(f"CREATE TABLE {quote_identifier(name)} ({columns})")
                rows = source.sql(f"FROM main.{quote_identifier(name)}").to_arrow_reader(_ROWS_AT_ONCE)
                target.register("rows", rows)
                target.execute(f"INSERT INTO {quote_identifier(name)} SELECT * FROM rows")
                target.unregister("rows")
            target.execute("CHECKPOINT")
        part.rename(path)
    except OSError as error:
        raise StoreError(f"The snapshot {path} cannot be written", found=str(error), path=str(path)) from error
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        raise StoreError(f"The snapshot {path} cannot be written", found=reason, path=str(path)) from error
    finally:
        source.close()
        part.unlink(missing_ok=True)
