"""A question in riverrun's SQL, checked, and written for a store."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sqlglot import ErrorLevel, exp

from riverrun.model.table import TableSpec
from riverrun.store.sql.binding import bind
from riverrun.store.sql.parsing import parse, too_deep

if TYPE_CHECKING:
    from riverrun.store.sql.druid_tables import Kept

Dialect = Literal["duckdb", "druid"]


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


def prepare(
    sql: str,
    tables: Mapping[str, TableSpec],
    dialect: Dialect,
    *,
    datasource: "Callable[[TableSpec], str | Kept]" = lambda spec: spec.name,
) -> Prepared:
    """Check a question and write it for a store. `datasource` is what the store calls a table; for Druid it may also
    say how far Druid knows it (`Kept`).

    QueryError where it cannot be understood or names what is not there or what this store cannot do; QueryRefusedError
    where it would do more than read these tables.
    """
    try:
        bound = bind(parse(sql), tables)
        names = tuple(sorted({read.spec.name for read in bound.reads}))
        columns = tuple(Output(name, _plain(kind)) for name, kind in bound.outputs)
        if dialect == "druid":
            from riverrun.store.sql.druid import translated

            done = translated(bound, datasource)
            latest = tuple(Latest(text, kind) for text, kind in done.latest)
            return Prepared(done.sql, names, columns, done.context, latest, done.given)
        from riverrun.store.sql.duck import duckdb_text

        return Prepared(duckdb_text(bound, lambda spec: str(datasource(spec))), names, columns)
    except RecursionError:
        raise too_deep() from None


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
