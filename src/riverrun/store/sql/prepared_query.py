"""A query in riverrun's SQL, checked, and translated for a store."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from sqlglot import ErrorLevel, exp

from riverrun.model.table import TableSpec
from riverrun.store.sql.binder import BoundQuery, bind
from riverrun.store.sql.parser import parse, too_deep_error

if TYPE_CHECKING:
    from riverrun.store.sql.druid_tables import DruidTable

Dialect = Literal["duckdb", "druid"]
_CACHE_SIZE = 128


@dataclass(frozen=True)
class OutputColumn:
    """A column of the result. `type` is one of `Column.type`, or empty where it is unknown before the query runs."""

    name: str
    type: str


@dataclass(frozen=True)
class LatestValueQuery:
    """A newest value that the query needs first: `sql` returns it, as one row of one column of this type."""

    sql: str
    type: str


@dataclass(frozen=True)
class PreparedQuery:
    """A query as a store runs it.

    `sql` is ready to run. `context` is for Druid: what makes it answer exactly and as this text expects. `latest` and
    `with_latest` are for a store that gains from knowing newest values beforehand (Druid skips segments by them): ask each
    of
    `latest`, then run what `with_latest` makes of the values instead of `sql`.
    """

    sql: str
    tables: tuple[str, ...]
    columns: tuple[OutputColumn, ...]
    context: Mapping[str, Any] = field(default_factory=dict)
    latest: tuple[LatestValueQuery, ...] = ()
    _with_latest: Callable[[Sequence[Any]], str] | None = field(default=None, repr=False, compare=False)

    def with_latest(self, values: Sequence[Any]) -> str:
        """The text with these newest values written into it, in the order of `latest`; None for a table without rows."""
        return self._with_latest(values) if self._with_latest is not None and values else self.sql


def _own_name(spec: TableSpec) -> str:
    return spec.name


def prepare(
    sql: str,
    tables: Mapping[str, TableSpec],
    dialect: Dialect,
    *,
    datasource: "Callable[[TableSpec], str | DruidTable]" = _own_name,
) -> PreparedQuery:
    """Check a query and translate it for a store. `datasource` is the store's name of a table; for Druid it may also
    say how far Druid knows it (`DruidTable`).

    QueryError where it cannot be understood or names what is not there or what this store cannot do; QueryRefusedError
    where it would do more than read these tables.
    """
    try:
        if dialect == "druid":
            return _for_druid(sql, tables, datasource)
        if datasource is _own_name:
            return _prepare_cached(sql, _TableSignature(tables))
        return _for_duckdb(sql, tables, lambda spec: str(datasource(spec)))
    except RecursionError:
        raise too_deep_error() from None


class _TableSignature:
    """Tables as far as a query depends on them: the cache key."""

    def __init__(self, tables: Mapping[str, TableSpec]) -> None:
        self.tables = dict(tables)
        self._key = tuple((name, spec.name, spec.columns) for name, spec in self.tables.items())

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TableSignature) and other._key == self._key


@lru_cache(maxsize=_CACHE_SIZE)
def _prepare_cached(sql: str, known: _TableSignature) -> PreparedQuery:
    """Cached, because dashboards run the same queries again and again."""
    return _for_duckdb(sql, known.tables, _own_name)


def _for_duckdb(sql: str, tables: Mapping[str, TableSpec], name_of: Callable[[TableSpec], str]) -> PreparedQuery:
    from riverrun.store.sql.duckdb_dialect import write_duckdb_sql

    bound = bind(parse(sql), tables)
    return PreparedQuery(write_duckdb_sql(bound, name_of), _table_names(bound), _output_columns(bound))


def _for_druid(
    sql: str, tables: Mapping[str, TableSpec], datasource: "Callable[[TableSpec], str | DruidTable]"
) -> PreparedQuery:
    from riverrun.store.sql.druid_dialect import translate_to_druid

    bound = bind(parse(sql), tables)
    names, columns = _table_names(bound), _output_columns(bound)
    translation = translate_to_druid(bound, datasource)
    latest = tuple(LatestValueQuery(text, kind) for text, kind in translation.latest)
    return PreparedQuery(translation.sql, names, columns, translation.context, latest, translation.with_latest)


def _table_names(bound: BoundQuery) -> tuple[str, ...]:
    return tuple(sorted({read.spec.name for read in bound.reads}))


def _output_columns(bound: BoundQuery) -> tuple[OutputColumn, ...]:
    return tuple(OutputColumn(name, _output_type(kind)) for name, kind in bound.outputs)


def _output_type(kind: str) -> str:
    """The type of an output as in `Column.type`."""
    return "timestamp" if kind == "local" else kind


def describe_tables(tables: Mapping[str, TableSpec]) -> list[dict[str, Any]]:
    """Tables and columns for completion and for people: types, the key, the time."""
    return [
        {
            "name": spec.name,
            "topic": spec.topic,
            "time": spec.time,
            "key": list(spec.key),
            "upserts": spec.upserts,
            "columns": [{"name": column.name, "type": column.type} for column in spec.columns],
        }
        for spec in sorted(tables.values(), key=lambda table: table.name)
    ]


def to_sql(tree: exp.Expr, dialect: str) -> str:
    """A tree as text: every name in quotation marks, no comment."""
    return tree.sql(
        dialect=dialect,
        identify=True,
        comments=False,
        normalize_functions="upper",
        # Whatever a dialect cannot express was refused or translated; a test runs each text.
        unsupported_level=ErrorLevel.IGNORE,
    )
