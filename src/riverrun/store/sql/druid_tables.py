"""The subquery that replaces a table in Druid: declared names and types, and the rows that count."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from riverrun.model.table import Column, TableSpec
from riverrun.store.sql.ast_nodes import call, column, number, quoted_identifier
from riverrun.store.sql.binder import TableRead
from riverrun.store.sql.druid_functions import TEXT_BYTES, cast, from_millis, raw_sql, to_millis

TIME = "__time"
VERSION = "__version"
IDENTITY = "__id"
_DATE_BYTES = 16
TYPES = {
    "text": exp.DType.VARCHAR, "json": exp.DType.VARCHAR, "boolean": exp.DType.BOOLEAN, "bigint": exp.DType.BIGINT,
    "double": exp.DType.DOUBLE, "timestamp": exp.DType.TIMESTAMP, "date": exp.DType.DATE,
}  # fmt: skip
_STORED_TYPES = {
    "text": exp.DType.VARCHAR, "json": exp.DType.VARCHAR, "date": exp.DType.VARCHAR, "boolean": exp.DType.BIGINT,
    "bigint": exp.DType.BIGINT, "timestamp": exp.DType.BIGINT, "double": exp.DType.DOUBLE,
}  # fmt: skip


@dataclass(frozen=True)
class DruidTable:
    """How Druid holds a table now.

    It does not know a column before a row has it, nor a table before the first row: `known_columns` are the columns it has
    seen (None: all of them, and the table is there). `has_duplicates`: an event may be there twice.
    """

    datasource: str
    known_columns: frozenset[str] | None = None
    has_duplicates: bool = False


def table_subquery(read: TableRead, datasource: str | DruidTable, *, aggregated: bool = False) -> exp.Expr:
    """The subquery in a table's place: the columns that are used there, of the newest version of each key. `aggregated`:
    what is selected of them are sums, counts and the like."""
    spec = read.spec
    druid_table = DruidTable(datasource) if isinstance(datasource, str) else datasource
    used = [column_spec for column_spec in spec.columns if column_spec.name in read.source.used_columns]
    used = used or [column_spec for column_spec in spec.columns if column_spec.name == (spec.key or (spec.time,))[0]]
    if druid_table.known_columns is not None and TIME not in druid_table.known_columns:
        return _empty_subquery(used, spec, aggregated=aggregated)
    select = exp.Select(from_=exp.From(this=exp.Table(this=quoted_identifier(druid_table.datasource))))
    groups: list[exp.Expr] = []
    picked: Callable[[Column], exp.Expr] = lambda spec_column: _stored_column(spec, spec_column, druid_table)  # noqa: E731
    if spec.upserts and not (read.only_newest and all(column_spec.name in spec.key for column_spec in used)):
        version = from_millis(column(VERSION))
        picked = lambda spec_column: _picked_column("LATEST_BY", spec, spec_column, druid_table, version)  # noqa: E731
        groups = [
            _stored_column(spec, column_spec, druid_table)
            for column_spec in spec.columns
            if column_spec.name in spec.key
        ]
        groups = [column_spec for column_spec in groups if isinstance(column_spec, exp.Column)]
        if not spec.key:
            # One row, and none while the table is empty: an aggregate over nothing would be a row of NULL.
            select.set("having", exp.Having(this=exp.GT(this=call("COUNT", exp.Star()), expression=number(0))))
    elif druid_table.has_duplicates and not spec.upserts and not read.only_newest:
        picked = lambda spec_column: _picked_column("ANY_VALUE", spec, spec_column, druid_table)  # noqa: E731
        # A time in the record is the same in its copies, so that a query with a time range skips segments here too.
        groups = [column(TIME), column(IDENTITY)] if _has_own_time(spec) else [column(IDENTITY)]
    select.set("expressions", [_output(column_spec, picked(column_spec), spec) for column_spec in used])
    select.set("group", exp.Group(expressions=groups) if groups else None)
    return select


def _stored_column(spec: TableSpec, column_spec: Column, druid_table: DruidTable) -> exp.Expr:
    """A column as Druid stores it; NULL where it has not seen one yet."""
    if column_spec.name == spec.time:
        return column(TIME)
    if druid_table.known_columns is not None and column_spec.name not in druid_table.known_columns:
        return cast(exp.Null(), _STORED_TYPES.get(column_spec.type, exp.DType.DOUBLE), "")
    return column(column_spec.name)


def _has_own_time(spec: TableSpec) -> bool:
    time = spec.column(spec.time)
    return time is not None and bool(time.path)


def _picked_column(name: str, spec: TableSpec, column_spec: Column, druid_table: DruidTable, *by: exp.Expr) -> exp.Expr:
    """A column of one of the rows in a group; a time as milliseconds, because such an aggregate turns a TIMESTAMP into
    text."""
    stored = _stored_column(spec, column_spec, druid_table)
    in_group = column_spec.name in spec.key if spec.upserts else column_spec.name == spec.time and _has_own_time(spec)
    if in_group or isinstance(stored, exp.Cast):
        return stored
    versions = [expression.copy() for expression in by]
    if column_spec.name == spec.time:
        return from_millis(call(name, to_millis(stored), *versions))
    if column_spec.type in ("text", "json", "date"):
        return call(name, stored, *versions, number(_DATE_BYTES if column_spec.type == "date" else TEXT_BYTES))
    return call(name, stored, *versions)


def _empty_subquery(used: Sequence[Column], spec: TableSpec, *, aggregated: bool) -> exp.Expr:
    """No rows, of the types that rows will have.

    From VALUES, which Druid's planner recognizes as empty, and then plans any order; but it fails on the newest time of
    no rows, which is null. For aggregates it has to scan. Nor may a time itself be null: no such row is ever seen.
    """

    def never_seen(column_spec: Column) -> exp.Expr:
        if column_spec.type == "timestamp":
            return from_millis(column("x", "nothing"))
        return cast(exp.Null(), TYPES.get(column_spec.type, exp.DType.DOUBLE), column_spec.type)

    made = [
        exp.Alias(this=never_seen(column_spec), alias=quoted_identifier(column_spec.name))
        for column_spec in used or spec.columns
    ]
    empty_source = raw_sql(f'{"UNNEST(ARRAY[0])" if aggregated else "(VALUES (0))"} AS "nothing"("x")', "")
    never = exp.Where(this=exp.EQ(this=column("x", "nothing"), expression=number(1)))
    return exp.Select(expressions=made, from_=exp.From(this=empty_source), where=never)


def _output(column_spec: Column, value: exp.Expr, spec: TableSpec) -> exp.Expr:
    """A column as the query sees it."""
    if column_spec.type == "timestamp" and column_spec.name != spec.time:
        value = from_millis(value)
    elif column_spec.type == "boolean":
        value = exp.EQ(this=value, expression=number(1))
    elif column_spec.type == "date":
        value = cast(value, exp.DType.DATE, "date")
    return exp.Alias(this=value, alias=quoted_identifier(column_spec.name))
