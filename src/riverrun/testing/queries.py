"""Questions and tiles over the rows of the test kit, by the store's own SQL."""

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
    """The answer to a question; only the tables that it reads are worked out."""
    from riverrun.dashboard.tiles.queries import parse, tables_read
    from riverrun.store.embedded.in_memory import query_rows

    reads = {each.lower() for each in tables_read(parse(sql, "The question"))}
    specs = {table.name: table for table in tables}
    return query_rows(sql, specs, {name: read_rows(each) for name, each in specs.items() if name.lower() in reads})


def tile_rows(
    tile: "Tile", tables: "Sequence[TableSpec]", read_rows: TableRows, filters: Mapping[str, str | None]
) -> list[Row]:
    """What a tile shows, as its question gives it."""
    from riverrun.dashboard.tiles.queries import QueryTime, tile_query
    from riverrun.store.embedded.in_memory import newest_time, query_rows

    specs = {table.name: table for table in tables}
    reads = tile_query(tile, specs, filters).tables
    rows = {name: read_rows(specs[name]) for name in reads}
    times: list[datetime] = [at for name in reads if (at := newest_time(specs[name], rows[name])) is not None]
    tile_question = tile_query(tile, specs, filters, QueryTime(newest=max(times, default=None)))
    return query_rows(tile_question.sql, specs, rows)


def find_tile(app: "App", title: str) -> "Tile":
    """A tile of the app's dashboards by its title."""
    tiles = [tile for board in app.dashboards.values() for tile in board.tiles if tile.has_query]
    for tile in tiles:
        if tile.title == title:
            return tile
    titles = [tile.title for tile in tiles]
    near = nearest(title, titles)
    raise UsageError(
        f"The app {app.name} has no tile {title!r}",
        expected=", ".join(titles),
        hint=f"Did you mean {near!r}?" if near else "",
    )
