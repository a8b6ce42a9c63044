"""Conditions of alerts: an SQL expression over the columns of one row, as a Python function with SQL's three-valued logic.

Only these are supported: comparisons, AND OR NOT, arithmetic, IN, BETWEEN, LIKE, IS, and a few functions. An operation on
NULL is NULL, a division by zero too; a condition holds when it is true, and NULL is not true.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from riverrun.errors import DeclarationError
from riverrun.model.suggest import nearest
from riverrun.model.table import TableSpec
from riverrun.store.sql.parser import RiverrunDialect

Row = Mapping[str, Any]
RowFunction = Callable[[Row], Any]

MAX_CHARACTERS = 4000
MAX_TOKENS = 400
_KINDS = {"bigint": "number", "double": "number", "timestamp": "time", "json": "text"}
# The arguments a node may have; anything else the parser set there would change its meaning.
_ARGUMENTS = frozenset(
    {"this", "expression", "expressions", "low", "high", "is_string", "negate", "typed", "safe", "table"}
)
_EXPECTED = "comparisons, AND, OR, NOT, + - * / %, IN, BETWEEN, LIKE, IS NULL"


def value_kind(column_type: str) -> str:
    """The kind of a column type: number, text, boolean, time or date."""
    return "number" if column_type.startswith("decimal") else _KINDS.get(column_type, column_type)


@dataclass(frozen=True)
class RuleCondition:
    """A compiled condition. `evaluate(row)` is True, False, or None for NULL. `columns` are those it reads."""

    text: str
    columns: frozenset[str]
    evaluate: Callable[[Row], bool | None]

    def is_true(self, row: Row) -> bool:
        return self.evaluate(row) is True


def parse_condition(text: str, table: TableSpec, what: str) -> RuleCondition:
    """Compile the condition in `text`. DeclarationError, which begins with `what`, when it does not fit the table."""
    compiler = _ConditionCompiler(table, what)
    compiled = compiler.compile_node(_parse(text, what))
    if compiled.kind not in ("boolean", "null"):
        raise DeclarationError(
            f"{what} is a {compiled.kind}, not a condition", expected="such as load_kw > 2.0", found=text
        )
    return RuleCondition(text, frozenset(compiler.used_columns), compiled.value)


def _parse(text: str, what: str) -> exp.Expr:
    if len(text) > MAX_CHARACTERS:
        raise DeclarationError(f"{what} has {len(text)} characters", expected=f"at most {MAX_CHARACTERS}")
    try:
        tokens = list(RiverrunDialect().tokenize(text))
        if len(tokens) > MAX_TOKENS:
            raise DeclarationError(f"{what} has {len(tokens)} words and signs", expected=f"at most {MAX_TOKENS}")
        trees = RiverrunDialect().parser().parse_into(exp.Condition, tokens, text)
    except SqlglotError as error:
        raise _not_understood(text, what, error) from error
    except (AttributeError, TypeError, ValueError, LookupError, RecursionError) as error:
        raise DeclarationError(f"{what} is not understood", expected=_EXPECTED, found=text) from error
    if len(trees) != 1 or trees[0] is None:
        raise DeclarationError(f"{what} is not one condition", expected="such as load_kw > 2.0", found=repr(text))
    return trees[0]


def _not_understood(text: str, what: str, error: SqlglotError) -> DeclarationError:
    # parse_into wraps the parser's own error.
    cause = error.__cause__ if isinstance(error.__cause__, SqlglotError) else error
    details = getattr(cause, "errors", None) or getattr(error, "errors", None) or [{}]
    near = details[0].get("highlight") or ""
    return DeclarationError(
        f"{what} is not understood{f' at {near!r}' if near else ''}", expected=_EXPECTED, found=text
    )


@dataclass(frozen=True)
class _CompiledExpression:
    value: RowFunction
    kind: str
    # Known at compile time: the same for every row.
    constant: bool = False


def _null(_row: Row) -> None:
    return None


class _ConditionCompiler:
    """Compiles an expression tree to a function, node by node."""

    def __init__(self, table: TableSpec, what: str) -> None:
        self._columns = {column.name: value_kind(column.type) for column in table.columns}
        self._table = table.name
        self._what = what
        self.used_columns: set[str] = set()

    def compile_node(self, tree: exp.Expr) -> _CompiledExpression:
        node_compiler = _NODE_COMPILERS.get(type(tree))
        if node_compiler is None:
            raise self._unsupported(_node_name(tree))
        if unknown_argument := next(
            (name for name, value in tree.args.items() if value and name not in _ARGUMENTS), ""
        ):
            raise self._unsupported(f"{tree.key.upper()} {unknown_argument.upper()}")
        return node_compiler(self, tree)

    def _unsupported(self, word: str, hint: str = "") -> DeclarationError:
        known = f"{_EXPECTED}, and {', '.join(sorted(_FUNCTIONS))}"
        return DeclarationError(f"{self._what} uses {word}, which alerts do not have", expected=known, hint=hint)

    def column(self, tree: exp.Column) -> _CompiledExpression:
        name = tree.name
        if len(tree.parts) != 1:
            raise self._unsupported(tree.sql(), hint=f"Write {name}: there is only one table")
        known = (
            name
            if name in self._columns
            else next((column for column in self._columns if column.lower() == name.lower()), "")
        )
        if not known:
            raise unknown_column(self._what, name, self._columns, self._table)
        self.used_columns.add(known)
        return _CompiledExpression(lambda row: row.get(known), self._columns[known])

    def literal(self, tree: exp.Literal) -> _CompiledExpression:
        text = tree.this
        if tree.is_string:
            return _CompiledExpression(lambda _: text, "text", constant=True)
        number: int | float = int(text) if text.isdecimal() else float(text)
        return _CompiledExpression(lambda _: number, "number", constant=True)

    def boolean(self, tree: exp.Boolean) -> _CompiledExpression:
        value = bool(tree.this)
        return _CompiledExpression(lambda _: value, "boolean", constant=True)

    def null(self, _tree: exp.Null) -> _CompiledExpression:
        return _CompiledExpression(_null, "null", constant=True)

    def parenthesized(self, tree: exp.Paren) -> _CompiledExpression:
        return self.compile_node(tree.this)

    def and_or(self, tree: exp.And | exp.Or) -> _CompiledExpression:
        left, right = self._condition(tree.this), self._condition(tree.expression)
        # The value that decides the result, whatever the other side is.
        settles = isinstance(tree, exp.Or)

        def value(row: Row) -> bool | None:
            left_value = left(row)
            if left_value is settles:
                return settles
            right_value = right(row)
            if right_value is settles:
                return settles
            return None if left_value is None or right_value is None else not settles

        return _CompiledExpression(value, "boolean")

    def negation(self, tree: exp.Not) -> _CompiledExpression:
        inner = self._condition(tree.this)

        def value(row: Row) -> bool | None:
            operand = inner(row)
            return None if operand is None else not operand

        return _CompiledExpression(value, "boolean")

    def _condition(self, tree: exp.Expr) -> Callable[[Row], bool | None]:
        part = self.compile_node(tree)
        if part.kind not in ("boolean", "null"):
            raise DeclarationError(f"{self._what}: {tree.sql()} is a {part.kind}, not a condition")
        return part.value

    def comparison(self, tree: exp.Binary) -> _CompiledExpression:
        left, right = self._comparable(tree, self.compile_node(tree.this), self.compile_node(tree.expression))
        return _CompiledExpression(_make_comparison(_COMPARE[type(tree)], left, right), "boolean")

    def _comparable(
        self, tree: exp.Expr, left: _CompiledExpression, right: _CompiledExpression
    ) -> tuple[RowFunction, RowFunction]:
        """Both sides as comparable values: a text literal is read as a time where one is needed."""
        for side, other in ((left, right), (right, left)):
            if side.kind in ("time", "date") and other.kind == "text" and other.constant:
                moment = _parse_time(other.value({}), side.kind)
                if moment is None:
                    raise DeclarationError(
                        f"{self._what}: {other.value({})!r} is not a {side.kind}",
                        expected="ISO 8601, as 2026-07-01T10:00Z",
                    )
                fixed: RowFunction = lambda _, moment=moment: moment  # type: ignore[misc]  # noqa: E731
                return (left.value, fixed) if side is left else (fixed, right.value)
        if "null" not in (left.kind, right.kind) and left.kind != right.kind:
            raise DeclarationError(f"{self._what}: {tree.sql()} compares a {left.kind} with a {right.kind}")
        return left.value, right.value

    def between(self, tree: exp.Between) -> _CompiledExpression:
        this = tree.this
        low, high = tree.args["low"], tree.args["high"]
        return self.and_or(
            exp.And(this=exp.GTE(this=this, expression=low), expression=exp.LTE(this=this, expression=high))
        )

    def in_list(self, tree: exp.In) -> _CompiledExpression:
        tests = [
            self.comparison(exp.EQ(this=tree.this, expression=expression)).value for expression in tree.expressions
        ]

        def value(row: Row) -> bool | None:
            results = [test(row) for test in tests]
            return True if True in results else None if None in results else False

        return _CompiledExpression(value, "boolean")

    def is_test(self, tree: exp.Is) -> _CompiledExpression:
        this = self.compile_node(tree.this).value
        if isinstance(tree.expression, exp.Null):
            return _CompiledExpression(lambda row: this(row) is None, "boolean")
        if isinstance(tree.expression, exp.Boolean):
            wanted = bool(tree.expression.this)
            return _CompiledExpression(lambda row: this(row) is wanted, "boolean")
        raise self._unsupported(tree.sql())

    def like(self, tree: exp.Like | exp.ILike) -> _CompiledExpression:
        this, pattern = self.compile_node(tree.this), tree.expression
        if not (isinstance(pattern, exp.Literal) and pattern.is_string) or this.kind not in ("text", "null"):
            raise self._unsupported(tree.sql(), hint="LIKE takes text and a pattern in quotes")
        matches = _like(pattern.this, ignore_case=isinstance(tree, exp.ILike))
        wanted = not tree.args.get("negate")

        def value(row: Row) -> bool | None:
            text = this.value(row)
            return None if text is None else matches(str(text)) is wanted

        return _CompiledExpression(value, "boolean")

    def arithmetic(self, tree: exp.Binary) -> _CompiledExpression:
        left, right = self._number(tree.this), self._number(tree.expression)
        calculate = _ARITHMETIC[type(tree)]

        def value(row: Row) -> Any:
            left_value, right_value = left(row), right(row)
            if left_value is None or right_value is None:
                return None
            return _apply_arithmetic(calculate, left_value, right_value)

        return _CompiledExpression(value, "number")

    def negative(self, tree: exp.Neg) -> _CompiledExpression:
        inner = self._number(tree.this)

        def value(row: Row) -> Any:
            number = inner(row)
            return None if number is None else -number

        return _CompiledExpression(value, "number")

    def _number(self, tree: exp.Expr) -> RowFunction:
        part = self.compile_node(tree)
        if part.kind not in ("number", "null"):
            raise DeclarationError(f"{self._what}: {tree.sql()} is a {part.kind}, not a number")
        return part.value

    def function_call(self, tree: exp.Anonymous) -> _CompiledExpression:
        name = str(tree.this).lower()
        if name not in _FUNCTIONS:
            near = nearest(name, _FUNCTIONS)
            raise self._unsupported(f"{name}()", hint=f"Did you mean {near}?" if near else "")
        takes, gives, least, most, function = _FUNCTIONS[name]
        parts = [self.compile_node(expression) for expression in tree.expressions]
        if not least <= len(parts) <= most:
            count = f"{least}" if least == most else f"{least} to {most}"
            raise DeclarationError(f"{self._what}: {name} takes {count} arguments", found=str(len(parts)))
        kinds = {part.kind for part in parts} - {"null"}
        if len(kinds) > 1 or (takes and kinds - {takes}):
            raise DeclarationError(
                f"{self._what}: {tree.sql()} does not fit",
                expected=f"{takes}s" if takes else "values of one kind",
                found=", ".join(sorted(kinds)),
            )
        values = [part.value for part in parts]
        kind = gives or (next(iter(kinds)) if kinds else "null")
        return _CompiledExpression(lambda row: function([value(row) for value in values]), kind)


def unknown_column(what: str, name: str, known: Sequence[str] | Mapping[str, Any], table: str) -> DeclarationError:
    near = nearest(name, known)
    return DeclarationError(
        f"{what} names the column {name}, which {table} does not have",
        expected=", ".join(known),
        hint=f"Did you mean {near}?" if near else "",
        column=name,
    )


def _node_name(tree: exp.Expr) -> str:
    return tree.key.upper() if isinstance(tree, exp.Func | exp.Predicate) else tree.sql()[:60]


def _parse_time(text: str, kind: str) -> datetime | date | None:
    try:
        if kind == "date":
            return date.fromisoformat(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _coerce_pair(one: Any, other: Any) -> tuple[Any, Any]:
    """Make two numbers compatible: a decimal beside a double becomes a double."""
    if isinstance(one, Decimal) and isinstance(other, float):
        return float(one), other
    if isinstance(one, float) and isinstance(other, Decimal):
        return one, float(other)
    return one, other


def _make_comparison(
    compare: Callable[[Any, Any], Any], left: RowFunction, right: RowFunction
) -> Callable[[Row], bool | None]:
    def value(row: Row) -> bool | None:
        one, other = _coerce_pair(left(row), right(row))
        if one is None or other is None:
            return None
        try:
            return bool(compare(one, other))
        except TypeError:
            return None  # A row's value may not have its column's type.

    return value


def _apply_arithmetic(calculate: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    try:
        number = calculate(*_coerce_pair(one, other))
    except (ArithmeticError, TypeError, ValueError):
        return None
    return None if number != number else number  # noqa: PLR0124  -- not a number


def _remainder(one: Any, other: Any) -> Any:
    """SQL's remainder: it has the sign of the dividend."""
    return one - other * int(one / other) if isinstance(one, int) and isinstance(other, int) else math.fmod(one, other)


def _like(pattern: str, *, ignore_case: bool) -> Callable[[str], bool]:
    """Compile a LIKE pattern: % is any text, _ one character. Matched piece by piece, in time linear in the text."""
    flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
    pieces = ["".join("." if c == "_" else re.escape(c) for c in piece) for piece in pattern.split("%")]
    if len(pieces) == 1:
        whole = re.compile(pieces[0], flags)
        return lambda text: whole.fullmatch(text) is not None
    first, *middle, last = (re.compile(piece, flags) for piece in pieces)
    width = len(pattern.rpartition("%")[2])

    def matches(text: str) -> bool:
        match = first.match(text)
        for piece in middle:
            match = piece.search(text, match.end()) if match else None
        return match is not None and len(text) - width >= match.end() and bool(last.fullmatch(text, len(text) - width))

    return matches


def _null_propagating(function: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """Return NULL when any argument is NULL."""

    def value(arguments: list[Any]) -> Any:
        if any(argument is None for argument in arguments):
            return None
        try:
            return function(*arguments)
        except (ArithmeticError, TypeError, ValueError):
            return None

    return value


def _ignoring_nulls(choose: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Choose among the arguments that are not NULL."""

    def value(arguments: list[Any]) -> Any:
        non_null = [argument for argument in arguments if argument is not None]
        return choose(non_null) if non_null else None

    return value


def _round(number: Any, digits: int = 0) -> float:
    """Round halves away from zero, as SQL does."""
    return float(Decimal(str(number)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


_MAX_ARGUMENTS = 20
# Argument kind, result kind ("": any one kind, and the same), least and most arguments, and the function.
_FUNCTIONS: dict[str, tuple[str, str, int, int, Callable[[list[Any]], Any]]] = {
    "abs": ("number", "number", 1, 1, _null_propagating(abs)),
    "ceil": ("number", "number", 1, 1, _null_propagating(math.ceil)),
    "coalesce": ("", "", 1, _MAX_ARGUMENTS, _ignoring_nulls(lambda arguments: arguments[0])),
    "floor": ("number", "number", 1, 1, _null_propagating(math.floor)),
    "greatest": ("", "", 1, _MAX_ARGUMENTS, _ignoring_nulls(max)),
    "least": ("", "", 1, _MAX_ARGUMENTS, _ignoring_nulls(min)),
    "length": ("text", "number", 1, 1, _null_propagating(len)),
    "lower": ("text", "text", 1, 1, _null_propagating(str.lower)),
    "nullif": ("", "", 2, 2, lambda arguments: None if arguments[0] == arguments[1] else arguments[0]),
    "round": ("number", "number", 1, 2, _null_propagating(_round)),
    "upper": ("text", "text", 1, 1, _null_propagating(str.upper)),
}
_COMPARE: dict[type[exp.Expr], Callable[[Any, Any], Any]] = {
    exp.EQ: operator.eq,
    exp.NEQ: operator.ne,
    exp.GT: operator.gt,
    exp.GTE: operator.ge,
    exp.LT: operator.lt,
    exp.LTE: operator.le,
}
_ARITHMETIC: dict[type[exp.Expr], Callable[[Any, Any], Any]] = {
    exp.Add: operator.add,
    exp.Sub: operator.sub,
    exp.Mul: operator.mul,
    exp.Div: operator.truediv,
    exp.Mod: _remainder,
}
_NODE_COMPILERS: dict[type[exp.Expr], Callable[[_ConditionCompiler, Any], _CompiledExpression]] = {
    exp.Column: _ConditionCompiler.column,
    exp.Literal: _ConditionCompiler.literal,
    exp.Boolean: _ConditionCompiler.boolean,
    exp.Null: _ConditionCompiler.null,
    exp.Paren: _ConditionCompiler.parenthesized,
    exp.And: _ConditionCompiler.and_or,
    exp.Or: _ConditionCompiler.and_or,
    exp.Not: _ConditionCompiler.negation,
    exp.Between: _ConditionCompiler.between,
    exp.In: _ConditionCompiler.in_list,
    exp.Is: _ConditionCompiler.is_test,
    exp.Like: _ConditionCompiler.like,
    exp.ILike: _ConditionCompiler.like,
    exp.Neg: _ConditionCompiler.negative,
    exp.Anonymous: _ConditionCompiler.function_call,
    **dict.fromkeys(_COMPARE, _ConditionCompiler.comparison),
    **dict.fromkeys(_ARITHMETIC, _ConditionCompiler.arithmetic),
}
