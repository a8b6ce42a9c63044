"""The queries of tiles, in riverrun's SQL.

A query of a table is generated here; one in SQL is the user's own. Both are then restricted the same way, on the parsed
tree: every table they read is restricted to the rows that match the page's filters, that are in the tile's range, and that
existed at a time ("as of"), so that any tile can be queried in the past.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import sqlglot
from sqlglot import exp

from riverrun.errors import QueryError
from riverrun.model.dashboard import Tile
from riverrun.model.suggest import nearest
from riverrun.model.table import TableSpec

DIALECT = "duckdb"
LATEST = "latest"
# How many rows a chart shows at most: the newest.
MAX_POINTS = 20_000
_NUMERIC_TYPES = ("bigint", "double", "decimal")
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between, exp.In)

# A filter's value as the page sends it: text, or None for rows without a value.
Filters = Mapping[str, str | None]


@dataclass(frozen=True)
class TileQuery:
    """SQL, and the tables it reads: while these do not change, neither does the result."""

    sql: str
    tables: frozenset[str]
    # How many groups there are, where `sql` asks for the largest `limit` of them only; empty elsewhere.
    group_count_sql: str = ""


@dataclass(frozen=True)
class QueryTime:
    """The time of a query: `at` is a time in the past; a range counts from `newest`, the newest row's time."""

    at: datetime | None = None
    newest: datetime | None = None


def parse(sql: str, whose: str) -> exp.Query:
    """Parse the user's SQL. QueryError when it is not exactly one query."""
    try:
        statements = sqlglot.parse(sql, dialect=DIALECT)
    except sqlglot.errors.SqlglotError as error:
        syntax_error = error.errors[0] if isinstance(error, sqlglot.errors.ParseError) and error.errors else {}
        location = f"line {syntax_error['line']}, column {syntax_error['col']}: " if syntax_error.get("line") else ""
        raise QueryError(
            f"{whose}: its SQL cannot be understood",
            found=f"{location}{syntax_error.get('description') or str(error).splitlines()[0]}",
        ) from error
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise QueryError(f"{whose}: its SQL is not one question", expected="one select")
    return statements[0]


def tables_read(query: exp.Expr) -> frozenset[str]:
    """The names of the tables a query reads, as written in it."""
    return frozenset(table_node.name for table_node in _table_nodes(query))


def tile_query(
    tile: Tile,
    tables: Mapping[str, TableSpec],
    filters: Filters,
    moment: QueryTime = QueryTime(),  # noqa: B008  -- frozen
) -> TileQuery:
    """The query of a tile. `tables` are the store's. QueryError names the tile and what it cannot query."""
    known = {name.lower(): spec for name, spec in tables.items()}
    if tile.is_sql:
        query = parse(tile.source, str(tile))
        reads = tables_read(query)
        for name in reads:
            find_table(name, tables, str(tile))
        group_count = None
    else:
        spec = find_table(tile.source, tables, str(tile))
        tile = resolve_columns(tile, spec)
        query = parse(_sql_of_table(tile, spec), str(tile))
        group_count = parse(_group_count_sql(tile, spec), str(tile)) if tile.x and tile.by else None
        reads = frozenset({spec.name})
    restriction = _TableRestriction(tile, filters, moment)
    if group_count is not None:
        for node in _table_nodes(group_count):
            restriction.apply(node, known[node.name.lower()])
    if any(restriction.applies_to(known[table_node.name.lower()]) for table_node in _table_nodes(query)):
        # The latest of the restricted rows. For whole tables the store resolves it itself, which is cheaper.
        for column_node in [column for column in query.find_all(exp.Column) if _is_latest(column, known)]:
            _replace_latest(column_node, str(tile))
        for node in _table_nodes(query):
            restriction.apply(node, known[node.name.lower()])
    return TileQuery(
        query.sql(dialect=DIALECT),
        frozenset(known[name.lower()].name for name in reads),
        "" if group_count is None else group_count.sql(dialect=DIALECT),
    )


@lru_cache(maxsize=1024)
def has_own_order(sql: str) -> bool:
    """Whether the user's SQL says in which order its rows come."""
    return parse(sql, "The SQL").args.get("order") is not None


def find_table(name: str, tables: Mapping[str, TableSpec], whose: str) -> TableSpec:
    for known, spec in tables.items():
        if known.lower() == name.lower():
            return spec
    near = nearest(name, tables)
    raise QueryError(
        f"{whose} reads {name}, which is not a table of the store",
        expected=", ".join(sorted(tables)) or "a table; the store has none yet",
        hint=f"Did you mean {near!r}?" if near else "",
        table=name,
    )


def resolve_columns(tile: Tile, spec: TableSpec) -> Tile:
    """The tile with the columns that the file leaves open filled in from the table."""
    for what, name in _named_columns(tile):
        if spec.column(name) is None:
            near = nearest(name, [column.name for column in spec.columns])
            raise QueryError(
                f"{tile}: {what} names {name}, which {spec.name} does not have",
                expected=", ".join(column.name for column in spec.columns),
                hint=f"Did you mean {near!r}?" if near else "",
                column=name,
            )
    return replace(tile, x=_x_of(tile, spec), by=_by_of(tile, spec), y=_y_of(tile, spec))


def _named_columns(tile: Tile) -> list[tuple[str, str]]:
    named = [
        ("x", tile.x),
        ("by", tile.by),
        *(("y", column) for column in tile.y),
        *(("columns", column) for column in tile.columns),
    ]
    return [(what, name) for what, name in named if name]


def _x_of(tile: Tile, spec: TableSpec) -> str:
    return tile.x or (spec.time if tile.kind in {"line", "area", "candle", "heat_map"} else "")


def _by_of(tile: Tile, spec: TableSpec) -> str:
    if tile.by or tile.kind not in {"bar", "leaderboard", "status", "heat_map"} or (tile.kind == "bar" and tile.x):
        return tile.by
    keys = [name for name in spec.key if name not in (spec.time, tile.x)]
    if len(keys) == 1:
        return keys[0]
    raise QueryError(
        f"{tile} does not say which column tells its {'bars' if tile.kind == 'bar' else 'rows'} apart",
        expected=f"by=, one of {', '.join(column.name for column in spec.columns)}",
    )


def _y_of(tile: Tile, spec: TableSpec) -> tuple[str, ...]:
    """The columns shown as values. Columns that are not numbers are refused."""
    if tile.kind == "rows" or tile.aggregate == "count":
        return ()
    types = {column.name: column.type for column in spec.columns}
    for name in tile.y:
        if not types[name].startswith(_NUMERIC_TYPES):
            raise QueryError(
                f"{tile}: y names {name}, which is {types[name]} in {spec.name}", expected="a column of numbers"
            )
    used = {tile.x, tile.by, *spec.key}
    numbers = [name for name, kind in types.items() if kind.startswith(_NUMERIC_TYPES) and name not in used]
    if tile.y or (tile.kind == "number" and not numbers):
        return tile.y
    if len(numbers) == 1:
        return (numbers[0],)
    if types.get(tile.by, "").startswith(_NUMERIC_TYPES):
        other = next((name for name in spec.key if name != spec.time), "house_id")
        raise QueryError(
            f"{tile} is by {tile.by}, a number, and does not say which figure it shows",
            hint=f'by names what is told apart, y its figure: by="{other}", y="{tile.by}"',
        )
    raise QueryError(
        f"{tile} does not say which column it shows",
        expected=f"y=, one of {', '.join(numbers)}"
        if numbers
        else f'aggregate="count": {spec.name} has no column of numbers',
    )


def has_history(spec: TableSpec) -> bool:
    """Whether the table keeps its history: one that is upserted by a key without a time has only its newest rows."""
    return not spec.upserts or spec.time in spec.key


# --- queries of a table ---


def _sql_of_table(tile: Tile, spec: TableSpec) -> str:
    if tile.kind == "rows":
        columns = ", ".join(map(_quoted, tile.columns)) or "*"
        return f"select {columns} from {_quoted(spec.name)} order by {_quoted(spec.time)} desc limit {tile.limit}"  # noqa: S608
    if tile.kind == "candle":
        columns = ", ".join(map(_quoted, (tile.x, *tile.y)))
        return f"select {columns} from {_quoted(spec.name)} order by {_quoted(tile.x)} desc limit {tile.limit}"  # noqa: S608
    if tile.x:
        return _series_sql(tile, spec)
    now = _current_rows(spec) if tile.range_ms < 0 else ""
    if tile.kind == "number":
        return f"select {_value_columns(tile)} from {_quoted(spec.name)}{now and f' where {now}'}"  # noqa: S608
    by, conditions = _quoted(tile.by), [now] if now else []
    conditions += [f"{_quoted(column)} is not null" for column in tile.y]
    lower_is_worse = tile.kind == "status" and tile.thresholds.get("bad", 0) < tile.thresholds.get("warn", 0)
    return (
        f"select {by}, {_value_columns(tile)} from {_quoted(spec.name)}"  # noqa: S608
        f"{' where ' + ' and '.join(conditions) if conditions else ''}"
        f" group by {by} order by 2 {'asc' if lower_is_worse else 'desc'}, 1 limit {tile.limit}"
    )


def _series_sql(tile: Tile, spec: TableSpec) -> str:
    """The query of a series, newest first: a limit cuts off the oldest rows."""
    x = f"date_trunc('{tile.step}', {_quoted(tile.x)})" if tile.step else _quoted(tile.x)
    table, by, top = _quoted(spec.name), _quoted(tile.by), ""
    if tile.by:
        # The largest groups only: a chart with a line for each of a thousand houses is unreadable.
        top = (
            f" where {by} in (select {by} from {table} group by {by}"  # noqa: S608
            f" order by {_value_column(tile, tile.y[0] if tile.y else '')} desc limit {tile.limit})"
        )
    return (
        f"select {x} as {_quoted(tile.x)}, {by + ', ' if tile.by else ''}{_value_columns(tile)} from {table}{top}"  # noqa: S608
        f" group by 1{', 2' if tile.by else ''} order by 1 desc{', 2' if tile.by else ''} limit {MAX_POINTS}"
    )


def _group_count_sql(tile: Tile, spec: TableSpec) -> str:
    """How many groups a chart of a table could draw. Not count(distinct …), which a store may only estimate."""
    by = _quoted(tile.by)
    return f"select count(*) as n from (select {by} from {_quoted(spec.name)} group by {by}) as g"  # noqa: S608


def _value_columns(tile: Tile) -> str:
    return ", ".join(f"{_value_column(tile, column)} as {_quoted(column)}" for column in tile.y) or "count(*) as count"


def _value_column(tile: Tile, column: str) -> str:
    return f"{tile.aggregate}({_quoted(column)})" if column else "count(*)"


def _current_rows(spec: TableSpec) -> str:
    """The condition for current rows: the newest window for windows, otherwise every row."""
    return f"{_quoted(spec.time)} = {LATEST}" if spec.upserts and spec.time in spec.key else ""


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# --- on the parsed tree ---


def _table_nodes(query: exp.Expr) -> list[exp.Table]:
    """The nodes of the store's tables that are read, without the names that a `with` defines."""
    return [node for node in query.find_all(exp.Table) if node.name and not _is_cte_name(node)]


def _is_cte_name(node: exp.Table) -> bool:
    within: exp.Expr | None = node
    while within is not None:
        clause = within.args.get("with_") or within.args.get("with")
        for cte in clause.expressions if clause is not None else ():
            # Inside the `with` that defines this name, it is the table.
            if cte.alias.lower() == node.name.lower() and not any(
                table_node is node for table_node in cte.find_all(exp.Table)
            ):
                return True
        within = within.parent
    return False


def _is_latest(node: exp.Column, tables: Mapping[str, TableSpec]) -> bool:
    """Whether `latest` means the newest value, and is not a column of a table that is read."""
    if node.name.lower() != LATEST or node.table or node.this.args.get("quoted"):
        return False
    select = node.find_ancestor(exp.Select)
    read = [table.name.lower() for table in select.find_all(exp.Table)] if select is not None else []
    return not any(name in tables and tables[name].column(LATEST) for name in read)


def _replace_latest(node: exp.Column, whose: str) -> None:
    """Turn `minute = latest` into `minute = (select max(minute) from …)`, over the sources of its own select."""
    comparison = node.find_ancestor(*_COMPARISONS)
    select = node.find_ancestor(exp.Select)
    column = next(
        (candidate for candidate in comparison.find_all(exp.Column) if candidate.name.lower() != LATEST)
        if comparison is not None
        else iter(()),
        None,
    )
    if select is None or column is None:
        raise QueryError(
            f"{whose}: latest stands alone", expected="a comparison with a column, such as minute = latest"
        )
    sources = [
        candidate.this for candidate in (_from_of(select), *(select.args.get("joins") or ())) if candidate is not None
    ]
    named = [
        candidate
        for candidate in sources
        if not column.table or candidate.alias_or_name.lower() == column.table.lower()
    ]
    if not named:
        raise QueryError(f"{whose}: latest is compared with {column.sql()}, which is of no table that is read there")
    newest = exp.select(exp.func("max", exp.column(column.this.copy()))).from_(named[0].copy())
    node.replace(newest.subquery())


def _from_of(select: exp.Select) -> exp.From | None:
    clause = select.args.get("from_") or select.args.get("from")
    return clause if isinstance(clause, exp.From) else None


class _TableRestriction:
    """Restricts the rows of a table, wherever a query reads it."""

    def __init__(self, tile: Tile, filters: Filters, moment: QueryTime) -> None:
        self._tile = tile
        self._filters = filters
        self._until = moment.at
        since = moment.at or moment.newest
        within = tile.range_ms >= 0 and since is not None
        self._after = since - timedelta(milliseconds=tile.range_ms) if since is not None and within else None

    def applies_to(self, spec: TableSpec) -> bool:
        return bool(self._conditions(spec, spec.name))

    def apply(self, node: exp.Table, spec: TableSpec) -> None:
        select = node.parent.parent if isinstance(node.parent, exp.From) else None
        kinds = [join.side for join in select.args.get("joins") or ()] if isinstance(select, exp.Select) else []
        name = node.alias_or_name
        if isinstance(select, exp.Select) and not {"RIGHT", "FULL"} & set(kinds):
            for condition in self._conditions(spec, name):
                select.where(condition, append=True, copy=False)
            return
        conditions = self._conditions(spec, spec.name)
        if not conditions:
            return
        inner = exp.select("*").from_(exp.to_table(spec.name)).where(*conditions)
        node.replace(inner.subquery(name))

    def _conditions(self, spec: TableSpec, alias: str) -> list[exp.Expr]:
        time = exp.column(spec.time, table=alias, quoted=True)
        conditions: list[exp.Expr] = []
        if self._after is not None:
            conditions.append(exp.GT(this=time.copy(), expression=_timestamp_literal(self._after)))
        if self._until is not None:
            conditions.append(exp.LTE(this=time.copy(), expression=_timestamp_literal(self._until)))
        for name, value in self._filters.items():
            column = spec.column(name)
            if column is not None and _is_filtered(self._tile, name):
                conditions.append(_equals(exp.column(name, table=alias, quoted=True), value, column.type))
        if self._tile.closed and not self._tile.is_sql:
            newest = exp.select(exp.func("max", exp.column(spec.time, quoted=True))).from_(exp.to_table(spec.name))
            newest = newest.where(*self._conditions_without_closed(spec))
            conditions.append(exp.LT(this=time.copy(), expression=newest.subquery()))
        return conditions

    def _conditions_without_closed(self, spec: TableSpec) -> list[exp.Expr]:
        """The same conditions for the subquery of `closed`, without `closed` itself."""
        other = _TableRestriction(replace(self._tile, closed=False), self._filters, QueryTime(at=self._until))
        return other._conditions(spec, spec.name)


def filter_applies(tile: Tile, spec: TableSpec, column: str) -> bool:
    """Whether a page's filter on that column changes the tile's query of this table."""
    return spec.column(column) is not None and _is_filtered(tile, column)


def _is_filtered(tile: Tile, column: str) -> bool:
    """Whether a filter on this column restricts the tile. A chart by that column keeps all groups, and marks the chosen one.
    Rows and leaderboards have a limit that may cut the chosen one off: they show it alone."""
    return column != tile.by or tile.kind in {"rows", "leaderboard"}


def _equals(column: exp.Column, value: str | None, kind: str) -> exp.Expr:
    if value is None:
        return exp.Is(this=column, expression=exp.Null())
    return exp.EQ(this=column, expression=_literal(column.name, value, kind))


def _literal(name: str, value: str, kind: str) -> exp.Expr:
    """A filter value from a page as a literal of its column's type; never as SQL."""
    try:
        if kind == "bigint":
            return (
                exp.Literal.number(str(int(value)))
                if int(value) >= 0
                else exp.Neg(this=exp.Literal.number(str(-int(value))))
            )
        if kind == "double" or kind.startswith("decimal"):
            return exp.cast(exp.Literal.string(repr(float(value))), "double")
        if kind == "boolean":
            return exp.Boolean(this={"true": True, "false": False}[value.lower()])
        if kind == "timestamp":
            moment = float(value) / 1000 if value.lstrip("-").isdigit() else datetime.fromisoformat(value).timestamp()
            return _timestamp_literal(datetime.fromtimestamp(moment, UTC))
        if kind == "date":
            return exp.cast(exp.Literal.string(datetime.fromisoformat(value).date().isoformat()), "date")
    except (ValueError, KeyError, OverflowError, OSError) as error:
        raise QueryError(
            f"The filter {name} cannot be {value[:80]!r}", expected=f"a value of type {kind}", column=name
        ) from error
    return exp.Literal.string(value)


def _timestamp_literal(moment: datetime) -> exp.Expr:
    text = moment.astimezone(UTC).isoformat(sep=" ", timespec="microseconds").replace("+00:00", "Z")
    return exp.cast(exp.Literal.string(text), "timestamptz")
