"""A question in riverrun's SQL, checked, and written for a store."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from sqlglot import ErrorLevel, exp

from riverrun.model.table import TableSpec
from riverrun.store.sql.binding import Bound, bind
from riverrun.store.sql.parsing import parse, too_deep

if TYPE_CHECKING:
    from riverrun.store.sql.druid_tables import Kept

Dialect = Literal["duckdb", "druid"]
_REMEMBERED = 128


@dataclass(frozen=True)
class Output:
    """A column of the answer. `type` is a word of `Column.type`, or empty where it is not known before it is asked."""

    name: str
    type: str


@dataclass(frozen=True)
class Latest:
    """A newest value that the question asks for on the way: `sql` gives it, as one row of one column of this type."""

    sql: str
    type: str


@dataclass(frozen=True)
class Prepared:
    """A question as a store runs it.

    `sql` is ready to run. `context` is for Druid: what makes it answer exactly and as this text expects. `latest` and
    `given` are for a store that gains from knowing newest values beforehand (Druid skips segments by them): ask each
    of
    `latest`, then run what `given` makes of the values instead of `sql`.
    """

    sql: str
    tables: tuple[str, ...]
    columns: tuple[Output, ...]
    context: Mapping[str, Any] = field(default_factory=dict)
    latest: tuple[Latest, ...] = ()
    _given: Callable[[Sequence[Any]], str] | None = field(default=None, repr=False, compare=False)

    def given(self, values: Sequence[Any]) -> str:
        """The text with these newest values written into it, in the order of `latest`; None for a table without rows."""
        return self._given(values) if self._given is not None and values else self.sql


def _own_name(spec: TableSpec) -> str:
    return spec.name


def prepare(
    sql: str,
    tables: Mapping[str, TableSpec],
    dialect: Dialect,
    *,
    datasource: "Callable[[TableSpec], str | Kept]" = _own_name,
) -> Prepared:
    """Check a question and write it for a store. `datasource` is what the store calls a table; for Druid it may also
    say how far Druid knows it (`Kept`).

    QueryError where it cannot be understood or names what is not there or what this store cannot do; QueryRefusedError
    where it would do more than read these tables.
    """
    try:
        if dialect == "druid":
            return _for_druid(sql, tables, datasource)
        if datasource is _own_name:
            return _remembered(sql, _Known(tables))
        return _for_duckdb(sql, tables, lambda spec: str(datasource(spec)))
    except RecursionError:
        raise too_deep() from None


class _Known:
    """Tables as far as a question depends on them, to be told apart from others."""

    def __init__(self, tables: Mapping[str, TableSpec]) -> None:
        self.tables = dict(tables)
        self._key = tuple((name, each.name, each.columns) for name, each in self.tables.items())

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and other._key == self._key


@lru_cache(maxsize=_REMEMBERED)
def _remembered(sql: str, known: _Known) -> Prepared:
    """Dashboards ask the same questions again and again."""
    return _for_duckdb(sql, known.tables, _own_name)


def _for_duckdb(sql: str, tables: Mapping[str, TableSpec], name_of: Callable[[TableSpec], str]) -> Prepared:
    from riverrun.store.sql.duck import duckdb_text

    bound = bind(parse(sql), tables)
    return Prepared(duckdb_text(bound, name_of), _names(bound), _columns(bound))


def _for_druid(sql: str, tables: Mapping[str, TableSpec], datasource: "Callable[[TableSpec], str | Kept]") -> Prepared:
    from riverrun.store.sql.druid import translated

    bound = bind(parse(sql), tables)
    names, columns = _names(bound), _columns(bound)
    done = translated(bound, datasource)
    latest = tuple(Latest(text, kind) for text, kind in done.latest)
    return Prepared(done.sql, names, columns, done.context, latest, done.given)


def _names(bound: Bound) -> tuple[str, ...]:
    return tuple(sorted({read.spec.name for read in bound.reads}))


def _columns(bound: Bound) -> tuple[Output, ...]:
    return tuple(Output(name, _plain(kind)) for name, kind in bound.outputs)


def _plain(kind: str) -> str:
    """The type of an output in the words of `Column.type`."""
    return "timestamp" if kind == "local" else kind


def describe(tables: Mapping[str, TableSpec]) -> list[dict[str, Any]]:
    """Tables and columns for completion and for people: types, the key, the time."""
    return [
        {
            "name": spec.name,
            "topic": spec.topic,
            "time": spec.time,
            "key": list(spec.key),
            "upserts": spec.upserts,
            "columns": [{"name": each.name, "type": each.type} for each in spec.columns],
        }
        for spec in sorted(tables.values(), key=lambda each: each.name)
    ]


def written(tree: exp.Expr, dialect: str) -> str:
    """A tree as text: every name in quotation marks, no comment."""
    return tree.sql(
        dialect=dialect,
        identify=True,
        comments=False,
        normalize_functions="upper",
        # What a dialect cannot say we have refused or translated; a test runs each text.
        unsupported_level=ErrorLevel.IGNORE,
    )
