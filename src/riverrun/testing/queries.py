"""Queries and tiles over the rows of a `StreamTest`, by the store's own SQL."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from riverrun.errors import UsageError
from riverrun.model.suggest import nearest

if TYPE_CHECKING:
    from datetime import datetime

    from riverrun.app import App
    from riverrun.model.dashboard import Tile
    from riverrun.model.table import TableSpec

Row = dict[str, Any]
TableRows = Callable[["TableSpec"], Sequence[Mapping[str, Any]]]


def run_query(sql: str, tables: "Sequence[TableSpec]", read_rows: TableRows) -> list[Row]:
    """The result of a query; only the tables that it reads are computed."""
    from riverrun.dashboard.tiles.queries import parse, tables_read
    from riverrun.store.embedded.in_memory import query_rows

    reads = {table.lower() for table in tables_read(parse(sql, "The question"))}
    specs = {table.name: table for table in tables}
    return query_rows(sql, specs, {name: read_rows(spec) for name, spec in specs.items() if name.lower() in reads})


def tile_rows(
    tile: "Tile", tables: "Sequence[TableSpec]", read_rows: TableRows, filters: Mapping[str, str | None]
) -> list[Row]:
    """The rows a tile shows, as its query returns them."""
    from riverrun.dashboard.tiles.queries import QueryTime, tile_query
    from riverrun.store.embedded.in_memory import newest_time, query_rows

    specs = {table.name: table for table in tables}
    reads = tile_query(tile, specs, filters).tables
    rows = {name: read_rows(specs[name]) for name in reads}
    times: list[datetime] = [at for name in reads if (at := newest_time(specs[name], rows[name])) is not None]
    query = tile_query(tile, specs, filters, QueryTime(newest=max(times, default=None)))
    return query_rows(query.sql, specs, rows)


def find_tile(app: "App", title: str) -> "Tile":
    """A tile of the app's dashboards by its title."""
    tiles = [tile for dashboard in app.dashboards.values() for tile in dashboard.tiles if tile.has_query]
    for tile in tiles:
        if tile.title == title:
            return tile
    titles = [tile.title for tile in tiles]
    suggestion = nearest(title, titles)
    raise UsageError(
        f"The app {app.name} has no tile {title!r}",
        expected=", ".join(titles),
        hint=f"Did you mean {suggestion!r}?" if suggestion else "",
    )
