"""Questions and tiles over the rows of the test kit, by the store's own SQL."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from riverrun.errors import UsageError
from riverrun.model.near import nearest

if TYPE_CHECKING:
    from datetime import datetime

    from riverrun.app import App
    from riverrun.model.dashboard import Tile
    from riverrun.model.table import TableSpec

Row = dict[str, Any]
RowsOf = Callable[["TableSpec"], Sequence[Mapping[str, Any]]]


def answer(sql: str, tables: "Sequence[TableSpec]", rows_of: RowsOf) -> list[Row]:
    """The answer to a question; only the tables that it reads are worked out."""
    from riverrun.dash.queries import parse, tables_read
    from riverrun.store.embedded.still import ask_rows

    reads = {each.lower() for each in tables_read(parse(sql, "The question"))}
    known = {each.name: each for each in tables}
    return ask_rows(sql, known, {name: rows_of(each) for name, each in known.items() if name.lower() in reads})


def tile_rows(
    tile: "Tile", tables: "Sequence[TableSpec]", rows_of: RowsOf, filters: Mapping[str, str | None]
) -> list[Row]:
    """What a tile shows, as its question gives it."""
    from riverrun.dash.queries import Moment, question
    from riverrun.store.embedded.still import ask_rows, newest_of

    known = {each.name: each for each in tables}
    reads = question(tile, known, filters).tables
    rows = {name: rows_of(known[name]) for name in reads}
    times: list[datetime] = [at for name in reads if (at := newest_of(known[name], rows[name])) is not None]
    asked = question(tile, known, filters, Moment(newest=max(times, default=None)))
    return ask_rows(asked.sql, known, rows)


def tile_of(app: "App", title: str) -> "Tile":
    """A tile of the app's dashboards by its title."""
    tiles = [each for board in app.dashboards.values() for each in board.tiles if each.asks]
    for each in tiles:
        if each.title == title:
            return each
    titles = [each.title for each in tiles]
    near = nearest(title, titles)
    raise UsageError(
        f"The app {app.name} has no tile {title!r}",
        expected=", ".join(titles),
        hint=f"Did you mean {near!r}?" if near else "",
    )
