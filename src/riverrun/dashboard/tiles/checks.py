"""Checks dashboards against the existing tables: reports all problems, each with its tile, file and line."""

from collections.abc import Iterable, Mapping

from riverrun.dashboard.tiles.data import ColumnType, column_roles
from riverrun.dashboard.tiles.queries import tile_query
from riverrun.errors import PipelineError, QueryError, RiverrunError
from riverrun.model.dashboard import Dashboard, Tile
from riverrun.model.pipeline import SourceLine
from riverrun.model.table import TableSpec
from riverrun.store.sql import prepare

_TYPES: dict[str, ColumnType] = {
    "timestamp": "time",
    "date": "date",
    "boolean": "boolean",
    "bigint": "number",
    "double": "number",
    "text": "text",
    "json": "text",
}


def tile_problems(
    dashboards: Iterable[Dashboard], tables: Mapping[str, TableSpec]
) -> list[tuple[SourceLine, RiverrunError]]:
    """The problems of an app's dashboards, given the tables its streams will make, each with its line."""
    problems: list[tuple[SourceLine, RiverrunError]] = []
    for board in dashboards:
        for tile in board.tiles:
            if not tile.has_query:
                continue
            try:
                _check_tile(tile, tables)
            except RiverrunError as error:
                problems.append((tile.line, error))
    return problems


def check_dashboards(dashboards: Iterable[Dashboard], tables: Mapping[str, TableSpec], file: str = "") -> None:
    """Raise PipelineError with all problems."""
    if problems := tile_problems(dashboards, tables):
        raise PipelineError([f"{line}: {error}" for line, error in problems], file=file)


def _check_tile(tile: Tile, tables: Mapping[str, TableSpec]) -> None:
    """Check what is known before the query runs: tables, columns, functions, and whether the result fits the tile."""
    query = tile_query(tile, tables, {})
    try:
        # The user's own text, so that errors have its line and column.
        prepared = prepare(tile.source if tile.is_sql else query.sql, tables, "duckdb")
    except QueryError as error:
        details = {"expected": error.expected, "found": error.found, "hint": error.hint}
        raise QueryError(f"{tile}: {error.what}", **details) from error
    kinds = [
        (column.name, "number" if column.type.startswith("decimal") else column.type) for column in prepared.columns
    ]
    if all(kind == "number" or kind in _TYPES for _, kind in kinds):
        column_roles(tile, [(name, _TYPES.get(kind, "number")) for name, kind in kinds])
