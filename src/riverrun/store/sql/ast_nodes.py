"""Small helpers for query trees: creating nodes, their types, which parts they may have."""

from collections.abc import Collection, Iterator, Sequence

from sqlglot import ErrorLevel, exp

from riverrun.errors import QueryRefusedError

_MAX_EXCERPT = 80


def kind_of(node: exp.Expr) -> str:
    """The type of a bound expression."""
    kind = node.meta.get("kind", "")
    return kind if isinstance(kind, str) else ""


def with_kind(node: exp.Expr, kind: str) -> exp.Expr:
    node.meta["kind"] = kind
    return node


def quoted_identifier(name: str) -> exp.Identifier:
    return exp.Identifier(this=name, quoted=True)


def column(name: str, table: str = "", kind: str = "") -> exp.Expr:
    made = (
        exp.Column(this=quoted_identifier(name), table=quoted_identifier(table))
        if table
        else exp.Column(this=quoted_identifier(name))
    )
    return with_kind(made, kind)


def call(name: str, *arguments: exp.Expr, kind: str = "") -> exp.Expr:
    return with_kind(exp.Anonymous(this=name, expressions=list(arguments)), kind)


def text(value: str) -> exp.Expr:
    return with_kind(exp.Literal.string(value), "text")


def number(value: float) -> exp.Expr:
    made: exp.Expr = exp.Literal.number(str(abs(value)))
    kind = "bigint" if str(value).lstrip("-").isdigit() else "double"
    return with_kind(exp.Neg(this=made) if value < 0 else made, kind)


def paren(node: exp.Expr) -> exp.Expr:
    """The expression as one operand, in parentheses where needed."""
    if isinstance(node, exp.Binary | exp.Not | exp.Neg | exp.Between | exp.In | exp.Is | exp.Case):
        return with_kind(exp.Paren(this=node), kind_of(node))
    return node


def sql_excerpt(node: exp.Expr) -> str:
    """An expression roughly as its user wrote it."""
    written = node.sql(
        dialect="duckdb", comments=False, normalize_functions="lower", unsupported_level=ErrorLevel.IGNORE
    )
    return written if len(written) <= _MAX_EXCERPT else f"{written[:_MAX_EXCERPT]}…"


def location_text(node: exp.Expr) -> str:
    """` (line 2, column 8)`, where the parser knows it."""
    located = next((part for part in node.walk() if "line" in part.meta), None)
    if located is None:
        return ""
    # The parser knows the end of a word, and how long it is.
    begin = located.meta["col"] - (located.meta.get("end", 0) - located.meta.get("start", 0))
    return f" (line {located.meta['line']}, column {begin})"


def require_only(node: exp.Expr, *names: str) -> None:
    """Refuse a node that has more than these parts: what is not known is not allowed."""
    for name in _other_args(node, names):
        raise refused_error(node, name.strip("_"))


def has_only(node: exp.Expr, *names: str) -> bool:
    """Whether a node has no more than these parts."""
    return not any(_other_args(node, names))


def _other_args(node: exp.Expr, names: Collection[str]) -> Iterator[str]:
    return (name for name, value in node.args.items() if name not in names and value not in (None, False, [], ""))


def refused_error(node: exp.Expr, what: str = "") -> QueryRefusedError:
    named = f"{type(node).__name__.upper()}{f' with {what.upper()}' if what else ''}"
    return QueryRefusedError(
        f"This is no part of riverrun's SQL: {sql_excerpt(node)}{location_text(node)}",
        hint=f"{named} is not known here; see docs/query.md for what is",
        part=named,
    )


def is_integer_literal(node: exp.Expr) -> bool:
    return isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdigit()


def join_names(names: Sequence[str], limit: int = 30) -> str:
    """Names for a message, not too many."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
