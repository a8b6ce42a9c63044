"""Binds expressions of a query: each is known, its names are resolved, its type is inferred. All else is refused.

This is an allow-list. A node that has no method here, or a part that its method does not name, does not get through.
"""

import re
from collections.abc import Callable
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlglot import exp

from riverrun.errors import QueryError, QueryRefusedError
from riverrun.model.suggest import nearest
from riverrun.store.sql import value_types
from riverrun.store.sql.ast_nodes import (
    call,
    is_integer_literal,
    join_names,
    kind_of,
    location_text,
    number,
    paren,
    refused_error,
    require_only,
    sql_excerpt,
    text,
    with_kind,
)
from riverrun.store.sql.functions import (
    DATE_PART_FUNCTIONS,
    DATE_PARTS,
    FUNCTIONS,
    TABLE_FUNCTIONS,
    TRUNCATIONS,
    SqlFunction,
)
from riverrun.store.sql.scope import Scope

BindExpression = Callable[[exp.Expr, Scope], exp.Expr]
# Binds a subquery in place; returns the types of its columns.
BindSubquery = Callable[[exp.Expr, Scope], list[str]]
BindLatest = Callable[[exp.Expr, Scope], None]
BindExplicitLatest = Callable[[exp.Expr], exp.Expr | None]
_TYPES = {
    exp.DType.TEXT: "text", exp.DType.VARCHAR: "text", exp.DType.CHAR: "text",
    exp.DType.BOOLEAN: "boolean",
    exp.DType.BIGINT: "bigint", exp.DType.INT: "bigint", exp.DType.SMALLINT: "bigint", exp.DType.TINYINT: "bigint",
    exp.DType.DOUBLE: "double", exp.DType.FLOAT: "double",
    exp.DType.TIMESTAMP: "timestamp", exp.DType.TIMESTAMPTZ: "timestamp", exp.DType.TIMESTAMPNTZ: "timestamp",
    exp.DType.DATE: "date", exp.DType.JSON: "json",
}  # fmt: skip
_UNITS = ("microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year")
_SPAN = re.compile(
    rf"\s*-?\d+(\.\d+)?\s*({'|'.join(_UNITS)})s?(\s+-?\d+(\.\d+)?\s*({'|'.join(_UNITS)})s?)*\s*", re.IGNORECASE
)
_MAX_PADDING = 1000
_FRAMES = {"ROWS", "RANGE"}
_EDGES = {"UNBOUNDED", "CURRENT ROW"}
_SIDES = {"PRECEDING", "FOLLOWING"}
_PATH = re.compile(r"\$(\.[A-Za-z_]\w*|\[\d+\])*")


class ExpressionBinder:
    """Binds expressions in place: `bind` returns the node to put where the old one was, with its type."""

    def __init__(self, subquery: BindSubquery, latest: BindLatest, explicit_latest: BindExplicitLatest) -> None:
        self._subquery = subquery
        self._latest = latest
        self._explicit_latest = explicit_latest
        self._binders: dict[type[exp.Expr], BindExpression] = {
            exp.Literal: self._literal,
            exp.Boolean: lambda node, _: with_kind(node, "boolean"),
            exp.Null: lambda node, _: node,
            exp.Column: self._column,
            exp.Paren: self._same_type,
            exp.Neg: self._same_type,
            exp.Not: self._not,
            exp.And: self._logic,
            exp.Or: self._logic,
            **dict.fromkeys((exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE), self._comparison),
            **dict.fromkeys((exp.NullSafeEQ, exp.NullSafeNEQ), self._comparison),
            **dict.fromkeys((exp.Like, exp.ILike, exp.RegexpLike), self._match),
            exp.Between: self._between,
            exp.In: self._in,
            exp.Is: self._is,
            exp.Add: self._sum,
            exp.Sub: self._sum,
            exp.Mul: self._product,
            exp.Div: self._division,
            exp.IntDiv: self._division,
            exp.Mod: self._division,
            exp.Pow: self._power,
            exp.DPipe: self._concat,
            exp.Case: self._case,
            exp.Cast: self._cast,
            exp.TryCast: self._cast,
            exp.Extract: self._extract,
            exp.Interval: self._interval,
            exp.AtTimeZone: self._zone,
            exp.CurrentTimestamp: lambda node, scope: self._call("now", node, scope),
            exp.CurrentDate: lambda node, scope: self._call("current_date", node, scope),
            exp.Trim: self._trim,
            exp.Substring: self._substring,
            exp.StrPosition: self._position,
            exp.JSONExtractScalar: self._json,
            exp.JSONExtract: self._json,
            exp.Anonymous: self._function,
            exp.Filter: self._filter,
            exp.WithinGroup: self._within_group,
            exp.Window: self._window,
            exp.Subquery: self._scalar,
            exp.Exists: self._exists,
        }

    def bind(self, node: exp.Expr | None, scope: Scope) -> exp.Expr:
        if not isinstance(node, exp.Expr):
            # A part that the text omits, as in `string_agg(x, order by y)`.
            raise QueryError("The question is not understood: something is missing in it")
        if node.meta.get("bound"):
            return node
        known = self._binders.get(type(node))
        if known is None:
            raise refused_error(node)
        return known(node, scope)

    def _bind_parts(self, node: exp.Expr, scope: Scope, *names: str) -> None:
        """Bind these parts of a node, where it has them."""
        for name in names:
            value = node.args.get(name)
            if isinstance(value, list):
                node.set(name, [self.bind(child, scope) for child in value])
            elif value is not None:
                node.set(name, self.bind(value, scope))

    def _bind_operands(self, node: exp.Expr, scope: Scope, *names: str) -> None:
        """Bind operands of a comparison. A comparison among them is put in parentheses: databases parse that
        differently."""
        self._bind_parts(node, scope, *names)
        for name in names:
            if isinstance(node.args[name], exp.Predicate | exp.Connector | exp.Not):
                node.set(name, paren(node.args[name]))

    # Values

    def _literal(self, node: exp.Expr, scope: Scope) -> exp.Expr:  # noqa: ARG002
        if node.args.get("is_string"):
            return with_kind(node, "text")
        written = str(node.this)
        if not re.fullmatch(r"(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", written, re.IGNORECASE):
            raise refused_error(node)
        return with_kind(node, value_types.number_literal_type(written))

    def _column(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            raise refused_error(node)
        require_only(node, "this", "table")
        bound = scope.lookup(node)
        if bound is None and node.name.lower() == "latest" and not node.table:
            raise QueryError(
                f"latest stands alone{location_text(node)}",
                expected="it beside the column whose newest value it is: minute = latest",
            )
        return bound if bound is not None else scope.resolve(node)

    def _same_type(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this")
        self._bind_parts(node, scope, "this")
        return with_kind(node, kind_of(node.this))

    def _not(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        return with_kind(self._same_type(node, scope), "boolean")

    def _logic(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "expression")
        self._bind_parts(node, scope, "this", "expression")
        return with_kind(node, "boolean")

    def _comparison(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "expression")
        self._latest(node, scope)
        self._bind_operands(node, scope, "this", "expression")
        return with_kind(node, "boolean")

    def _negated(self, node: exp.Expr) -> exp.Expr:
        """`x NOT LIKE y` as NOT (x LIKE y), which is the same in every dialect."""
        with_kind(node, "boolean")
        if node.args.get("negate"):
            node.set("negate", None)
            return with_kind(exp.Not(this=paren(node)), "boolean")
        return node

    def _match(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "expression", "negate")
        self._bind_operands(node, scope, "this", "expression")
        return self._negated(node)

    def _between(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "low", "high", "negate")
        self._latest(node, scope)
        self._bind_operands(node, scope, "this", "low", "high")
        return self._negated(node)

    def _in(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "expressions", "query", "negate")
        self._bind_parts(node, scope, "this", "expressions")
        query = node.args.get("query")
        if query is not None:
            if not isinstance(query, exp.Subquery):
                raise refused_error(node)
            require_only(query, "this")
            if len(self._subquery(query.this, scope)) != 1:
                raise QueryError(
                    f"The subquery after IN has more than one column{location_text(query)}", expected="one column"
                )
        return self._negated(node)

    def _is(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "expression", "negate")
        if not isinstance(node.expression, exp.Null | exp.Boolean):
            raise refused_error(node)
        self._bind_parts(node, scope, "this")
        return self._negated(node)

    # Arithmetic

    def _sum(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "expression")
        self._bind_parts(node, scope, "this", "expression")
        minus = isinstance(node, exp.Sub)
        return with_kind(node, value_types.sum_type(kind_of(node.this), kind_of(node.expression), minus=minus))

    def _product(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "expression")
        self._bind_parts(node, scope, "this", "expression")
        return with_kind(node, value_types.product_type(kind_of(node.this), kind_of(node.expression)))

    def _division(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        """Division by zero is NULL, on every store: one would raise, another returns infinity."""
        require_only(node, "this", "expression", "typed", "safe")
        self._bind_parts(node, scope, "this", "expression")
        right = node.expression
        if not (isinstance(right, exp.Literal) and not right.is_string and float(right.this) != 0):
            node.set("expression", call("nullif", right, number(0), kind=kind_of(right)))
        given = value_types.common_type((kind_of(node.this), kind_of(right)))
        return with_kind(node, "double" if isinstance(node, exp.Div) else given)

    def _power(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "expression")
        return self._call("power", node, scope, node.this, node.expression)

    def _concat(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "expression", "safe")
        self._bind_parts(node, scope, "this", "expression")
        return with_kind(node, "text")

    # Conditionals and casts

    def _case(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "ifs", "default")
        self._bind_parts(node, scope, "this", "default")
        for branch in node.args["ifs"]:
            require_only(branch, "this", "true")
            self._bind_parts(branch, scope, "this", "true")
        default = node.args.get("default")
        results = [kind_of(branch.args["true"]) for branch in node.args["ifs"]]
        return with_kind(node, value_types.common_type([*results, kind_of(default) if default is not None else ""]))

    def _cast(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "to", "safe")
        self._bind_parts(node, scope, "this")
        return with_kind(node, cast_type(node))

    def _extract(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "expression")
        return self._function(call("date_part", text(node.this.name.lower()), node.expression), scope)

    def _interval(self, node: exp.Expr, scope: Scope) -> exp.Expr:  # noqa: ARG002
        require_only(node, "this", "unit")
        if not isinstance(node.this, exp.Literal):
            raise QueryError(
                f"An interval is written with a number: {sql_excerpt(node)}{location_text(node)}",
                expected="interval '5 minutes'",
            )
        unit = node.args.get("unit")
        if unit is not None and not isinstance(unit, exp.Var):
            raise refused_error(node)
        span = f"{node.this.name} {unit.name if unit is not None else ''}".strip()
        if not _SPAN.fullmatch(span):
            raise QueryError(
                f"The interval {span!r} is not understood",
                expected=f"a number and one of {', '.join(_UNITS)}: interval '5 minutes'",
            )
        made = exp.Interval(this=exp.Literal.string(span.lower()))
        return with_kind(made, "interval")

    def _zone(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        """AT TIME ZONE: of an instant, the local time there; of a local time, the instant."""
        require_only(node, "this", "zone")
        zone = node.args["zone"]
        if not isinstance(zone, exp.Literal) or not zone.is_string:
            raise QueryError(
                f"A time zone is written as text{location_text(node)}", expected="at time zone 'Europe/Berlin'"
            )
        try:
            ZoneInfo(zone.name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise QueryError(
                f"There is no time zone {zone.name!r}", expected="a name such as 'Europe/Berlin' or 'UTC'"
            ) from None
        inner = paren(self.bind(node.this, scope))
        return with_kind(exp.AtTimeZone(this=inner, zone=zone), "timestamp" if kind_of(inner) == "local" else "local")

    # Functions

    def _call(self, name: str, node: exp.Expr, scope: Scope, *arguments: exp.Expr) -> exp.Expr:
        made = call(name, *arguments)
        made.meta.update({key: value for key, value in node.meta.items() if key in ("line", "col")})
        return self._function(made, scope)

    def _trim(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "expression", "position")
        name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or "").upper(), "trim")
        given = [argument for argument in (node.this, node.args.get("expression")) if argument is not None]
        return self._call(name, node, scope, *given)

    def _substring(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "start", "length")
        given = (node.this, node.args.get("start") or number(1), node.args.get("length"))
        return self._call("substring", node, scope, *(argument for argument in given if argument is not None))

    def _position(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "substr")
        return self._call("strpos", node, scope, node.this, node.args["substr"])

    def _json(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "expression", "only_json_types", "scalar_only", "emits")
        name = "json_extract_string" if isinstance(node, exp.JSONExtractScalar) else "json_extract"
        return self._call(name, node, scope, node.this, text(_json_path(node.expression)))

    def _function(self, node: exp.Expr, scope: Scope, *, over: bool = False) -> exp.Expr:
        require_only(node, "this", "expressions")
        name = (node.this if isinstance(node.this, str) else node.this.name).lower()
        function = FUNCTIONS.get(name)
        if function is None:
            raise _unknown_function_error(name, node)
        if function.use == "window" and not over:
            raise QueryError(f"{name} needs a window{location_text(node)}", expected=f"{name}(…) over (order by …)")
        arguments = self._arguments(name, function, node, scope)
        made = exp.Anonymous(this=name, expressions=arguments)
        given = [kind_of(argument) for argument in arguments]
        made.meta["use"] = "window" if over else function.use
        kind = "double" if name == "date_part" and arguments[0].name == "epoch" else function.result_type(given)
        return with_kind(_check_arguments(name, made), kind)

    def _arguments(self, name: str, function: SqlFunction, node: exp.Expr, scope: Scope) -> list[exp.Expr]:
        given: list[exp.Expr] = node.expressions
        if name == "count" and len(given) == 1 and type(given[0]) is exp.Star:
            require_only(given[0])
            return [given[0]]
        distinct = next((argument for argument in given if isinstance(argument, exp.Distinct)), None)
        if distinct is not None:
            if function.use != "aggregate" or len(given) != 1:
                raise refused_error(node, "distinct")
            require_only(distinct, "expressions")
            given = distinct.expressions
        bound = [self._argument(argument, scope, function) for argument in given]
        if not function.min_args <= len(bound) <= function.max_args:
            expected = (
                str(function.min_args)
                if function.min_args == function.max_args
                else f"{function.min_args} to {function.max_args}"
            )
            raise QueryError(
                f"{name} has {len(bound)} arguments{location_text(node)}",
                expected=expected if function.max_args < 100 else f"{function.min_args} or more",
            )
        if distinct is not None:
            bound[0] = with_kind(exp.Distinct(expressions=[bound[0]]), kind_of(bound[0]))
        return bound

    def _argument(self, node: exp.Expr, scope: Scope, function: SqlFunction) -> exp.Expr:
        if isinstance(node, exp.Order) and function.use == "aggregate":
            # string_agg(x, ',' order by y)
            require_only(node, "this", "expressions")
            inner = self.bind(node.this, scope)
            return with_kind(exp.Order(this=inner, expressions=self.bind_order(node, scope)), kind_of(inner))
        return self.bind(node, scope)

    def bind_order(self, node: exp.Expr, scope: Scope) -> list[exp.Expr]:
        """The expressions of an ORDER BY, bound."""
        bound: list[exp.Expr] = []
        for expression in node.expressions:
            if not isinstance(expression, exp.Ordered) or isinstance(expression.this, exp.Var):
                raise refused_error(node)
            require_only(expression, "this", "desc", "nulls_first")
            expression.set("this", self.bind(expression.this, scope))
            bound.append(expression)
        return bound

    def _filter(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "expression")
        if not isinstance(node.this, exp.Anonymous | exp.WithinGroup) or not isinstance(node.expression, exp.Where):
            raise refused_error(node)
        inner = self.bind(node.this, scope)
        if inner.meta.get("use") != "aggregate":
            raise QueryError(
                f"FILTER stands after an aggregate only{location_text(node)}", expected="sum(x) filter (where …)"
            )
        require_only(node.expression, "this")
        condition = exp.Where(this=self.bind(node.expression.this, scope))
        made = with_kind(exp.Filter(this=inner, expression=condition), kind_of(inner))
        made.meta["use"] = "aggregate"
        return made

    def _within_group(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        """percentile_cont(q) within group (order by x) is quantile_cont(x, q)."""
        require_only(node, "this", "expression")
        inner, order = node.this, node.expression
        if (
            not isinstance(inner, exp.Anonymous)
            or inner.name.lower() != "percentile_cont"
            or len(order.expressions) != 1
        ):
            raise refused_error(node)
        by = order.expressions[0]
        require_only(by, "this", "desc", "nulls_first")
        quantile = inner.expressions[0]
        if by.args.get("desc"):
            quantile = exp.Sub(this=number(1), expression=quantile)
        return self._call("quantile_cont", node, scope, by.this, quantile)

    def _window(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this", "partition_by", "order", "spec", "alias", "over")
        parts = node
        if node.args.get("alias") is not None:
            named = scope.windows.get(node.args["alias"].name.lower())
            if named is None:
                raise QueryError(
                    f"There is no window {node.args['alias'].name}{location_text(node)}",
                    expected="one of WINDOW … AS (…)",
                )
            require_only(node, "this", "alias", "over")
            parts = named.copy()
            require_only(parts, "this", "partition_by", "order", "spec", "over")
        inner = node.this
        if isinstance(inner, exp.Anonymous):
            function = self._function(inner, scope, over=True)
        elif isinstance(inner, exp.Filter):
            function = self._filter(inner, scope)
        else:
            raise refused_error(node)
        name = function.name if isinstance(function, exp.Anonymous) else function.this.name
        if FUNCTIONS[name].use == "scalar":
            raise QueryError(
                f"{name} cannot be asked over a window{location_text(node)}",
                expected="an aggregate, or row_number, rank, lag, …",
            )
        made = exp.Window(
            this=function,
            partition_by=[self.bind(expression, scope) for expression in parts.args.get("partition_by") or []],
            order=self._window_order(parts, scope),
            spec=self._frame(parts.args.get("spec"), scope),
            over="OVER",
        )
        made.meta["use"] = "window"
        return with_kind(made, kind_of(function))

    def _window_order(self, parts: exp.Expr, scope: Scope) -> exp.Expr | None:
        order = parts.args.get("order")
        if order is None:
            return None
        require_only(order, "expressions")
        return exp.Order(expressions=self.bind_order(order, scope))

    def _frame(self, spec: exp.Expr | None, scope: Scope) -> exp.Expr | None:
        if spec is None:
            return None
        require_only(spec, "kind", "start", "start_side", "end", "end_side")
        made: dict[str, object] = {"kind": str(spec.args.get("kind")).upper()}
        if made["kind"] not in _FRAMES:
            raise refused_error(spec)
        for edge in ("start", "end"):
            bound, side = spec.args.get(edge), spec.args.get(f"{edge}_side")
            if bound is None:
                continue
            if isinstance(bound, str):
                made[edge] = bound.upper()
                if made[edge] not in _EDGES:
                    raise refused_error(spec)
            elif is_integer_literal(bound) or isinstance(bound, exp.Interval):
                made[edge] = self.bind(bound, scope)
            else:
                raise QueryError(f"A window's frame has bounds that are written as numbers: {sql_excerpt(spec)}")
            if side is not None:
                made[f"{edge}_side"] = str(side).upper()
                if made[f"{edge}_side"] not in _SIDES:
                    raise refused_error(spec)
        return exp.WindowSpec(**made)

    # Subqueries

    def _scalar(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this")
        if "latest" in node.meta:
            # We created it, and it is bound.
            return node
        if (newest := self._explicit_latest(node)) is not None:
            return newest
        given = self._subquery(node.this, scope)
        if len(given) != 1:
            raise QueryError(
                f"A subquery in an expression has {len(given)} columns{location_text(node)}", expected="one column"
            )
        return with_kind(node, given[0])

    def _exists(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        require_only(node, "this")
        self._subquery(node.this.this if isinstance(node.this, exp.Subquery) else node.this, scope)
        return with_kind(node, "boolean")


def cast_type(node: exp.Expr) -> str:
    """The target type of a cast."""
    to = node.args["to"]
    if not isinstance(to, exp.DataType):
        raise refused_error(node)
    if to.this == exp.DType.DECIMAL:
        given = [int(expression.name) for expression in to.expressions if expression.name.isdigit()]
        precision, scale = (given + [18, 3][len(given) :])[:2] if given else (18, 3)
        return value_types.decimal_type(precision, scale if len(given) != 1 else 0)
    kind = _TYPES.get(to.this)
    if kind is None or to.expressions or to.args.get("nested"):
        known = "text, boolean, bigint, double, decimal(10,2), timestamp, date, json"
        raise QueryError(f"There is no type {to.sql(dialect='duckdb')}{location_text(node)}", expected=known)
    return kind


def _json_path(node: exp.Expr) -> str:
    """A path into JSON, as both stores understand it: `$.a.b[0]`."""
    if isinstance(node, exp.Literal):
        path = node.name
    elif isinstance(node, exp.JSONPath):
        parts = []
        for expression in node.expressions[1:]:
            if isinstance(expression, exp.JSONPathKey) and isinstance(expression.this, str):
                parts.append(f".{expression.this}")
            elif isinstance(expression, exp.JSONPathSubscript) and isinstance(expression.this, int):
                parts.append(f"[{expression.this}]")
            else:
                raise refused_error(node)
        path = "$" + "".join(parts)
    else:
        raise QueryError("A path into JSON is written as text", expected="value ->> '$.name'")
    if not _PATH.fullmatch(path):
        raise QueryError(
            f"The path {path!r} into JSON is not understood", expected="names and numbers: '$.lines[0].price'"
        )
    return path


def _unknown_function_error(name: str, node: exp.Expr) -> QueryError:
    if name in TABLE_FUNCTIONS:
        return QueryError(f"{name} stands in FROM only{location_text(node)}", expected=f"from {name}(…) as t(x)")
    near = nearest(name, FUNCTIONS)
    return QueryRefusedError(
        f"There is no function {name} in riverrun's SQL{location_text(node)}",
        hint=f"Did you mean {near}?" if near else f"There are: {join_names(sorted(FUNCTIONS), 200)}",
        function=name,
    )


def _check_arguments(name: str, node: exp.Expr) -> exp.Expr:
    """Which arguments must be literals, because a store requires it or because the result could be huge."""
    given = node.expressions
    if name in ("date_trunc", "date_part", "date_diff", "datediff", "date_sub"):
        known = DATE_PARTS if name == "date_part" else TRUNCATIONS
        unit = given[0].name.lower().removesuffix("s") if isinstance(given[0], exp.Literal) else ""
        unit = DATE_PART_FUNCTIONS.get(unit, unit)
        if unit not in known:
            raise QueryError(
                f"{name} of {sql_excerpt(given[0])} is not understood", expected=f"one of {', '.join(known)}, in quotes"
            )
        node.set("expressions", [text(unit), *given[1:]])
    if name == "time_bucket" and not isinstance(given[0], exp.Interval):
        raise QueryError("time_bucket needs an interval first", expected="time_bucket(interval '5 minutes', at)")
    if name in ("lpad", "rpad") and not (is_integer_literal(given[1]) and int(given[1].name) <= _MAX_PADDING):
        raise QueryRefusedError(
            f"{name} to {sql_excerpt(given[1])} characters", expected=f"a number up to {_MAX_PADDING}"
        )
    if name in ("quantile_cont", "quantile_disc", "approx_quantile") and not _is_fraction(given[1]):
        raise QueryError(f"{name} of {sql_excerpt(given[1])} is not understood", expected="a number from 0 to 1")
    if name.startswith("json_extract"):
        node.set("expressions", [given[0], text(_json_path(given[1]))])
    return node


def _is_fraction(node: exp.Expr) -> bool:
    if isinstance(node, exp.Sub):
        return _is_fraction(node.this) and _is_fraction(node.expression)
    return isinstance(node, exp.Literal) and not node.is_string and 0 <= float(node.this) <= 1
