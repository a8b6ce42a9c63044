"""Dashboards held against the tables there are: all that is wrong, each with its tile, file and line."""

from collections.abc import Iterable, Mapping

from sqlglot import exp

from riverrun.dash.queries import find_table, parse, question, resolved, tables_read
from riverrun.errors import PipelineError, QueryError
from riverrun.model.dashboard import Dashboard, Tile
from riverrun.model.near import nearest
from riverrun.model.table import TableSpec


def problems(dashboards: Iterable[Dashboard], tables: Mapping[str, TableSpec]) -> list[str]:
    """What is wrong with the dashboards of an app, given the tables its streams will make."""
    found = []
    for board in dashboards:
        for tile in board.tiles:
            if not tile.asks:
                continue
            try:
                _check(tile, tables)
            except QueryError as error:
                found.append(f"{tile.line}: {error}")
    return found


def check(dashboards: Iterable[Dashboard], tables: Mapping[str, TableSpec], file: str = "") -> None:
    """PipelineError with all that is wrong."""
    if wrong := problems(dashboards, tables):
        raise PipelineError(wrong, file=file)


def _check(tile: Tile, tables: Mapping[str, TableSpec]) -> None:
    if not tile.is_sql:
        spec = find_table(tile.source, tables, str(tile))
        resolved(tile, spec)
        question(tile, tables, {})
        return
    query = parse(tile.source, str(tile))
    specs = [find_table(name, tables, str(tile)) for name in tables_read(query)]
    question(tile, tables, {})
    _check_columns(tile, query, specs)


def _check_columns(tile: Tile, query: exp.Expr, specs: list[TableSpec]) -> None:
    """Columns that no table has and that the SQL itself does not name. What a star hides stays unseen until it is asked."""
    known = {each.name.lower(): each.name for spec in specs for each in spec.columns}
    made = {
        each.alias.lower() for each in query.find_all(exp.Alias, exp.TableAlias, exp.CTE, exp.Subquery) if each.alias
    }
    made |= {each.name.lower() for alias in query.find_all(exp.TableAlias) for each in alias.args.get("columns") or ()}
    for column in query.find_all(exp.Column):
        name = column.name.lower()
        if name in known or name in made or name == "latest" or isinstance(column.this, exp.Star):
            continue
        near = nearest(column.name, known.values())
        raise QueryError(
            f"{tile}: its SQL names {column.name}, which {' and '.join(sorted(each.name for each in specs))} does not have",
            expected=", ".join(known.values()),
            hint=f"Did you mean {near!r}?" if near else "",
            column=column.name,
        )
