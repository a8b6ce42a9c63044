"""Dashboards held against the tables there are: all that is wrong, each with its tile, file and line."""

from collections.abc import Iterable, Mapping

from riverrun.dash.figures import Type, roles
from riverrun.dash.queries import question
from riverrun.errors import PipelineError, QueryError, RiverrunError
from riverrun.model.dashboard import Dashboard, Tile
from riverrun.model.pipeline import Line
from riverrun.model.table import TableSpec
from riverrun.store.sql import prepare

_TYPES: dict[str, Type] = {
    "timestamp": "time",
    "date": "date",
    "boolean": "boolean",
    "bigint": "number",
    "double": "number",
    "text": "text",
    "json": "text",
}


def wrong_tiles(dashboards: Iterable[Dashboard], tables: Mapping[str, TableSpec]) -> list[tuple[Line, RiverrunError]]:
    """What is wrong with the dashboards of an app, given the tables its streams will make, each with its line."""
    found: list[tuple[Line, RiverrunError]] = []
    for board in dashboards:
        for tile in board.tiles:
            if not tile.asks:
                continue
            try:
                _check(tile, tables)
            except RiverrunError as error:
                found.append((tile.line, error))
    return found


def check(dashboards: Iterable[Dashboard], tables: Mapping[str, TableSpec], file: str = "") -> None:
    """PipelineError with all that is wrong."""
    if wrong := wrong_tiles(dashboards, tables):
        raise PipelineError([f"{line}: {error}" for line, error in wrong], file=file)


def _check(tile: Tile, tables: Mapping[str, TableSpec]) -> None:
    """As far as it can be known before it is asked: tables, columns, functions, and whether the answer suits the tile."""
    asked = question(tile, tables, {})
    try:
        # The user's own text: then what is said has its line and column.
        prepared = prepare(tile.source if tile.is_sql else asked.sql, tables, "duckdb")
    except QueryError as error:
        said = {"expected": error.expected, "found": error.found, "hint": error.hint}
        raise QueryError(f"{tile}: {error.what}", **said) from error
    kinds = [(each.name, "number" if each.type.startswith("decimal") else each.type) for each in prepared.columns]
    if all(kind == "number" or kind in _TYPES for _, kind in kinds):
        roles(tile, [(name, _TYPES.get(kind, "number")) for name, kind in kinds])
