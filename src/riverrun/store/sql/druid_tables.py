"""A table as Druid has it, as the subquery that stands in its place: declared names and types, and the rows that count."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from riverrun.model.table import Column, TableSpec
from riverrun.store.sql.binding import Read
from riverrun.store.sql.druid_functions import TEXT_BYTES, cast, millis, moment, raw
from riverrun.store.sql.trees import call, column, number, quoted

TIME = "__time"
VERSION = "__version"
IDENTITY = "__id"
_DATE_BYTES = 16
TYPES = {
    "text": exp.DType.VARCHAR, "json": exp.DType.VARCHAR, "boolean": exp.DType.BOOLEAN, "bigint": exp.DType.BIGINT,
    "double": exp.DType.DOUBLE, "timestamp": exp.DType.TIMESTAMP, "date": exp.DType.DATE,
}  # fmt: skip
_KEPT_AS = {
    "text": exp.DType.VARCHAR, "json": exp.DType.VARCHAR, "date": exp.DType.VARCHAR, "boolean": exp.DType.BIGINT,
    "bigint": exp.DType.BIGINT, "timestamp": exp.DType.BIGINT, "double": exp.DType.DOUBLE,
}  # fmt: skip


@dataclass(frozen=True)
class Kept:
    """How Druid has a table now.

    It does not know a column before a row has it, nor a table before the first row: `known` are the columns it has
    seen (None: all of them, and the table is there). `twins`: an event may be there twice.
    """

    datasource: str
    known: frozenset[str] | None = None
    twins: bool = False


def rows_of(read: Read, found: str | Kept, *, added_up: bool = False) -> exp.Expr:
    """The subquery in a table's place: the columns that are used there, of the newest version of each key. `added_up`: what
    is selected of them are sums, counts and the like."""
    spec = read.spec
    kept = Kept(found) if isinstance(found, str) else found
    used = [each for each in spec.columns if each.name in read.source.used]
    used = used or [each for each in spec.columns if each.name == (spec.key or (spec.time,))[0]]
    if kept.known is not None and TIME not in kept.known:
        return _nothing(used, spec, added_up=added_up)
    made = exp.Select(from_=exp.From(this=exp.Table(this=quoted(kept.datasource))))
    groups: list[exp.Expr] = []
    picked: Callable[[Column], exp.Expr] = lambda each: _stored(spec, each, kept)  # noqa: E731
    if spec.upserts and not (read.newest and all(each.name in spec.key for each in used)):
        version = moment(column(VERSION))
        picked = lambda each: _picked("LATEST_BY", spec, each, kept, version)  # noqa: E731
        groups = [_stored(spec, each, kept) for each in spec.columns if each.name in spec.key]
        groups = [each for each in groups if isinstance(each, exp.Column)]
        if not spec.key:
            # One row, and none before there is any: an aggregate over nothing would be a row of NULL.
            made.set("having", exp.Having(this=exp.GT(this=call("COUNT", exp.Star()), expression=number(0))))
    elif kept.twins and not spec.upserts and not read.newest:
        picked = lambda each: _picked("ANY_VALUE", spec, each, kept)  # noqa: E731
        # A time in the record is the same in its copies, so that a question about a time skips segments here too.
        groups = [column(TIME), column(IDENTITY)] if _has_own_time(spec) else [column(IDENTITY)]
    made.set("expressions", [_output(each, picked(each), spec) for each in used])
    made.set("group", exp.Group(expressions=groups) if groups else None)
    return made


def _stored(spec: TableSpec, each: Column, kept: Kept) -> exp.Expr:
    """A column as Druid keeps it; NULL where it has not seen one yet."""
    if each.name == spec.time:
        return column(TIME)
    if kept.known is not None and each.name not in kept.known:
        return cast(exp.Null(), _KEPT_AS.get(each.type, exp.DType.DOUBLE), "")
    return column(each.name)


def _has_own_time(spec: TableSpec) -> bool:
    time = spec.column(spec.time)
    return time is not None and bool(time.path)


def _picked(name: str, spec: TableSpec, each: Column, kept: Kept, *by: exp.Expr) -> exp.Expr:
    """A column of one of the rows in a group; a time as milliseconds, because such an aggregate makes text of a
    TIMESTAMP."""
    stored = _stored(spec, each, kept)
    in_group = each.name in spec.key if spec.upserts else each.name == spec.time and _has_own_time(spec)
    if in_group or isinstance(stored, exp.Cast):
        return stored
    versions = [one.copy() for one in by]
    if each.name == spec.time:
        return moment(call(name, millis(stored), *versions))
    if each.type in ("text", "json", "date"):
        return call(name, stored, *versions, number(_DATE_BYTES if each.type == "date" else TEXT_BYTES))
    return call(name, stored, *versions)


def _nothing(used: Sequence[Column], spec: TableSpec, *, added_up: bool) -> exp.Expr:
    """No rows, of the types that rows will have.

    Of VALUES, which Druid's planner sees to be none, and then plans any order of them; but it fails of the newest time among
    them, which is null. What is added up it has to look for. Nor may a time be null itself: none is ever seen.
    """

    def never_seen(each: Column) -> exp.Expr:
        if each.type == "timestamp":
            return moment(column("x", "nothing"))
        return cast(exp.Null(), TYPES.get(each.type, exp.DType.DOUBLE), each.type)

    made = [exp.Alias(this=never_seen(each), alias=quoted(each.name)) for each in used or spec.columns]
    one = raw(f'{"UNNEST(ARRAY[0])" if added_up else "(VALUES (0))"} AS "nothing"("x")', "")
    never = exp.Where(this=exp.EQ(this=column("x", "nothing"), expression=number(1)))
    return exp.Select(expressions=made, from_=exp.From(this=one), where=never)


def _output(each: Column, value: exp.Expr, spec: TableSpec) -> exp.Expr:
    """A column as the question sees it."""
    if each.type == "timestamp" and each.name != spec.time:
        value = moment(value)
    elif each.type == "boolean":
        value = exp.EQ(this=value, expression=number(1))
    elif each.type == "date":
        value = cast(value, exp.DType.DATE, "date")
    return exp.Alias(this=value, alias=quoted(each.name))
