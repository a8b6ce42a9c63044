"""Expressions of a question: each is known, its names are found, its type is worked out. All else is refused.

This is an allow-list. A node that has no method here, or a part that its method does not name, does not get through.
"""

import re
from collections.abc import Callable
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlglot import exp

from riverrun.errors import QueryError, QueryRefusedError
from riverrun.model.near import nearest
from riverrun.store.sql import kinds
from riverrun.store.sql.functions import FUNCTIONS, PART_FUNCTIONS, PARTS, TABLE_FUNCTIONS, TRUNCATIONS, Function
from riverrun.store.sql.scope import Scope
from riverrun.store.sql.trees import (
    call,
    is_whole,
    kind_of,
    listed,
    number,
    only,
    paren,
    place_of,
    refused,
    shown,
    text,
    with_kind,
)

Bind = Callable[[exp.Expr, Scope], exp.Expr]
# Binds a subquery in place; gives the types of its columns.
Subquery = Callable[[exp.Expr, Scope], list[str]]
Latest = Callable[[exp.Expr, Scope], None]
Spelt = Callable[[exp.Expr], exp.Expr | None]
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
_MOST_PADDING = 1000
_FRAMES = {"ROWS", "RANGE"}
_EDGES = {"UNBOUNDED", "CURRENT ROW"}
_SIDES = {"PRECEDING", "FOLLOWING"}
_PATH = re.compile(r"\$(\.[A-Za-z_]\w*|\[\d+\])*")


class Expressions:
    """Binds expressions in place: `bind` gives the node to put where the old one was, with its type."""

    def __init__(self, subquery: Subquery, latest: Latest, spelt: Spelt) -> None:
        self._subquery = subquery
        self._latest = latest
        self._spelt = spelt
        self._known: dict[type[exp.Expr], Bind] = {
            exp.Literal: self._literal,
            exp.Boolean: lambda node, _: with_kind(node, "boolean"),
            exp.Null: lambda node, _: node,
            exp.Column: self._column,
            exp.Paren: self._same,
            exp.Neg: self._same,
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
            exp.DPipe: self._joined,
            exp.Case: self._case,
            exp.Cast: self._cast,
            exp.TryCast: self._cast,
            exp.Extract: self._extract,
            exp.Interval: self._interval,
            exp.AtTimeZone: self._zone,
            exp.CurrentTimestamp: lambda node, scope: self._plain("now", node, scope),
            exp.CurrentDate: lambda node, scope: self._plain("current_date", node, scope),
            exp.Trim: self._trim,
            exp.Substring: self._substring,
            exp.StrPosition: self._position,
            exp.JSONExtractScalar: self._json,
            exp.JSONExtract: self._json,
            exp.Anonymous: self._function,
            exp.Filter: self._filter,
            exp.WithinGroup: self._within,
            exp.Window: self._window,
            exp.Subquery: self._scalar,
            exp.Exists: self._exists,
        }

    def bind(self, node: exp.Expr | None, scope: Scope) -> exp.Expr:
        if not isinstance(node, exp.Expr):
            # A part that the text leaves out, as in `string_agg(x, order by y)`.
            raise QueryError("The question is not understood: something is missing in it")
        if node.meta.get("bound"):
            return node
        known = self._known.get(type(node))
        if known is None:
            raise refused(node)
        return known(node, scope)

    def _parts(self, node: exp.Expr, scope: Scope, *names: str) -> None:
        """Bind these parts of a node, where it has them."""
        for name in names:
            value = node.args.get(name)
            if isinstance(value, list):
                node.set(name, [self.bind(each, scope) for each in value])
            elif value is not None:
                node.set(name, self.bind(value, scope))

    def _operands(self, node: exp.Expr, scope: Scope, *names: str) -> None:
        """Bind operands of a comparison. A comparison among them is put in parentheses: databases read that differently."""
        self._parts(node, scope, *names)
        for name in names:
            if isinstance(node.args[name], exp.Predicate | exp.Connector | exp.Not):
                node.set(name, paren(node.args[name]))

    # Values

    def _literal(self, node: exp.Expr, scope: Scope) -> exp.Expr:  # noqa: ARG002
        if node.args.get("is_string"):
            return with_kind(node, "text")
        written = str(node.this)
        if not re.fullmatch(r"(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", written, re.IGNORECASE):
            raise refused(node)
        return with_kind(node, kinds.literal_number(written))

    def _column(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            raise refused(node)
        only(node, "this", "table")
        found = scope.look(node)
        if found is None and node.name.lower() == "latest" and not node.table:
            raise QueryError(
                f"latest stands alone{place_of(node)}",
                expected="it beside the column whose newest value it is: minute = latest",
            )
        return found if found is not None else scope.find(node)

    def _same(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this")
        self._parts(node, scope, "this")
        return with_kind(node, kind_of(node.this))

    def _not(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        return with_kind(self._same(node, scope), "boolean")

    def _logic(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "expression")
        self._parts(node, scope, "this", "expression")
        return with_kind(node, "boolean")

    def _comparison(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "expression")
        self._latest(node, scope)
        self._operands(node, scope, "this", "expression")
        return with_kind(node, "boolean")

    def _negated(self, node: exp.Expr) -> exp.Expr:
        """`x NOT LIKE y` as NOT (x LIKE y), which is written the same everywhere."""
        with_kind(node, "boolean")
        if node.args.get("negate"):
            node.set("negate", None)
            return with_kind(exp.Not(this=paren(node)), "boolean")
        return node

    def _match(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "expression", "negate")
        self._operands(node, scope, "this", "expression")
        return self._negated(node)

    def _between(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "low", "high", "negate")
        self._latest(node, scope)
        self._operands(node, scope, "this", "low", "high")
        return self._negated(node)

    def _in(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "expressions", "query", "negate")
        self._parts(node, scope, "this", "expressions")
        query = node.args.get("query")
        if query is not None:
            if not isinstance(query, exp.Subquery):
                raise refused(node)
            only(query, "this")
            if len(self._subquery(query.this, scope)) != 1:
                raise QueryError(
                    f"The subquery after IN has more than one column{place_of(query)}", expected="one column"
                )
        return self._negated(node)

    def _is(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "expression", "negate")
        if not isinstance(node.expression, exp.Null | exp.Boolean):
            raise refused(node)
        self._parts(node, scope, "this")
        return self._negated(node)

    # Arithmetic

    def _sum(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "expression")
        self._parts(node, scope, "this", "expression")
        minus = isinstance(node, exp.Sub)
        return with_kind(node, kinds.added(kind_of(node.this), kind_of(node.expression), minus=minus))

    def _product(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "expression")
        self._parts(node, scope, "this", "expression")
        return with_kind(node, kinds.multiplied(kind_of(node.this), kind_of(node.expression)))

    def _division(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        """By zero it is NULL, on every store: one would raise, another gives infinity."""
        only(node, "this", "expression", "typed", "safe")
        self._parts(node, scope, "this", "expression")
        right = node.expression
        if not (isinstance(right, exp.Literal) and not right.is_string and float(right.this) != 0):
            node.set("expression", call("nullif", right, number(0), kind=kind_of(right)))
        given = kinds.wider((kind_of(node.this), kind_of(right)))
        return with_kind(node, "double" if isinstance(node, exp.Div) else given)

    def _power(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "expression")
        return self._plain("power", node, scope, node.this, node.expression)

    def _joined(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "expression", "safe")
        self._parts(node, scope, "this", "expression")
        return with_kind(node, "text")

    # Choices and casts

    def _case(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "ifs", "default")
        self._parts(node, scope, "this", "default")
        for each in node.args["ifs"]:
            only(each, "this", "true")
            self._parts(each, scope, "this", "true")
        default = node.args.get("default")
        results = [kind_of(each.args["true"]) for each in node.args["ifs"]]
        return with_kind(node, kinds.wider([*results, kind_of(default) if default is not None else ""]))

    def _cast(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "to", "safe")
        self._parts(node, scope, "this")
        return with_kind(node, type_of(node))

    def _extract(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "expression")
        return self._function(call("date_part", text(node.this.name.lower()), node.expression), scope)

    def _interval(self, node: exp.Expr, scope: Scope) -> exp.Expr:  # noqa: ARG002
        only(node, "this", "unit")
        if not isinstance(node.this, exp.Literal):
            raise QueryError(
                f"An interval is written with a number: {shown(node)}{place_of(node)}", expected="interval '5 minutes'"
            )
        unit = node.args.get("unit")
        if unit is not None and not isinstance(unit, exp.Var):
            raise refused(node)
        span = f"{node.this.name} {unit.name if unit is not None else ''}".strip()
        if not _SPAN.fullmatch(span):
            raise QueryError(
                f"The interval {span!r} is not understood",
                expected=f"a number and one of {', '.join(_UNITS)}: interval '5 minutes'",
            )
        made = exp.Interval(this=exp.Literal.string(span.lower()))
        return with_kind(made, "interval")

    def _zone(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        """The clock of a place: of a time, the time there; of such a time, the time itself."""
        only(node, "this", "zone")
        zone = node.args["zone"]
        if not isinstance(zone, exp.Literal) or not zone.is_string:
            raise QueryError(f"A time zone is written as text{place_of(node)}", expected="at time zone 'Europe/Berlin'")
        try:
            ZoneInfo(zone.name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise QueryError(
                f"There is no time zone {zone.name!r}", expected="a name such as 'Europe/Berlin' or 'UTC'"
            ) from None
        inner = paren(self.bind(node.this, scope))
        return with_kind(exp.AtTimeZone(this=inner, zone=zone), "timestamp" if kind_of(inner) == "local" else "local")

    # Functions

    def _plain(self, name: str, node: exp.Expr, scope: Scope, *arguments: exp.Expr) -> exp.Expr:
        made = call(name, *arguments)
        made.meta.update({key: value for key, value in node.meta.items() if key in ("line", "col")})
        return self._function(made, scope)

    def _trim(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "expression", "position")
        name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or "").upper(), "trim")
        given = [each for each in (node.this, node.args.get("expression")) if each is not None]
        return self._plain(name, node, scope, *given)

    def _substring(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "start", "length")
        given = (node.this, node.args.get("start") or number(1), node.args.get("length"))
        return self._plain("substring", node, scope, *(each for each in given if each is not None))

    def _position(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "substr")
        return self._plain("strpos", node, scope, node.this, node.args["substr"])

    def _json(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "expression", "only_json_types", "scalar_only", "emits")
        name = "json_extract_string" if isinstance(node, exp.JSONExtractScalar) else "json_extract"
        return self._plain(name, node, scope, node.this, text(_path(node.expression)))

    def _function(self, node: exp.Expr, scope: Scope, *, over: bool = False) -> exp.Expr:
        only(node, "this", "expressions")
        name = (node.this if isinstance(node.this, str) else node.this.name).lower()
        function = FUNCTIONS.get(name)
        if function is None:
            raise _unknown_function(name, node)
        if function.use == "window" and not over:
            raise QueryError(f"{name} needs a window{place_of(node)}", expected=f"{name}(…) over (order by …)")
        arguments = self._arguments(name, function, node, scope)
        made = exp.Anonymous(this=name, expressions=arguments)
        given = [kind_of(each) for each in arguments]
        made.meta["use"] = "window" if over else function.use
        kind = "double" if name == "date_part" and arguments[0].name == "epoch" else function.kind(given)
        return with_kind(_checked(name, made), kind)

    def _arguments(self, name: str, function: Function, node: exp.Expr, scope: Scope) -> list[exp.Expr]:
        given: list[exp.Expr] = node.expressions
        if name == "count" and len(given) == 1 and type(given[0]) is exp.Star:
            only(given[0])
            return [given[0]]
        distinct = next((each for each in given if isinstance(each, exp.Distinct)), None)
        if distinct is not None:
            if function.use != "aggregate" or len(given) != 1:
                raise refused(node, "distinct")
            only(distinct, "expressions")
            given = distinct.expressions
        bound = [self._argument(each, scope, function) for each in given]
        if not function.least <= len(bound) <= function.most:
            wanted = str(function.least) if function.least == function.most else f"{function.least} to {function.most}"
            raise QueryError(
                f"{name} has {len(bound)} arguments{place_of(node)}",
                expected=wanted if function.most < 100 else f"{function.least} or more",
            )
        if distinct is not None:
            bound[0] = with_kind(exp.Distinct(expressions=[bound[0]]), kind_of(bound[0]))
        return bound

    def _argument(self, node: exp.Expr, scope: Scope, function: Function) -> exp.Expr:
        if isinstance(node, exp.Order) and function.use == "aggregate":
            # string_agg(x, ',' order by y)
            only(node, "this", "expressions")
            inner = self.bind(node.this, scope)
            return with_kind(exp.Order(this=inner, expressions=self.ordered(node, scope)), kind_of(inner))
        return self.bind(node, scope)

    def ordered(self, node: exp.Expr, scope: Scope) -> list[exp.Expr]:
        """The expressions of an ORDER BY, bound."""
        found: list[exp.Expr] = []
        for each in node.expressions:
            if not isinstance(each, exp.Ordered) or isinstance(each.this, exp.Var):
                raise refused(node)
            only(each, "this", "desc", "nulls_first")
            each.set("this", self.bind(each.this, scope))
            found.append(each)
        return found

    def _filter(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "expression")
        if not isinstance(node.this, exp.Anonymous | exp.WithinGroup) or not isinstance(node.expression, exp.Where):
            raise refused(node)
        inner = self.bind(node.this, scope)
        if inner.meta.get("use") != "aggregate":
            raise QueryError(
                f"FILTER stands after an aggregate only{place_of(node)}", expected="sum(x) filter (where …)"
            )
        only(node.expression, "this")
        condition = exp.Where(this=self.bind(node.expression.this, scope))
        made = with_kind(exp.Filter(this=inner, expression=condition), kind_of(inner))
        made.meta["use"] = "aggregate"
        return made

    def _within(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        """percentile_cont(q) within group (order by x) is quantile_cont(x, q)."""
        only(node, "this", "expression")
        inner, order = node.this, node.expression
        if (
            not isinstance(inner, exp.Anonymous)
            or inner.name.lower() != "percentile_cont"
            or len(order.expressions) != 1
        ):
            raise refused(node)
        by = order.expressions[0]
        only(by, "this", "desc", "nulls_first")
        quantile = inner.expressions[0]
        if by.args.get("desc"):
            quantile = exp.Sub(this=number(1), expression=quantile)
        return self._plain("quantile_cont", node, scope, by.this, quantile)

    def _window(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this", "partition_by", "order", "spec", "alias", "over")
        parts = node
        if node.args.get("alias") is not None:
            named = scope.windows.get(node.args["alias"].name.lower())
            if named is None:
                raise QueryError(
                    f"There is no window {node.args['alias'].name}{place_of(node)}", expected="one of WINDOW … AS (…)"
                )
            only(node, "this", "alias", "over")
            parts = named.copy()
            only(parts, "this", "partition_by", "order", "spec", "over")
        inner = node.this
        if isinstance(inner, exp.Anonymous):
            function = self._function(inner, scope, over=True)
        elif isinstance(inner, exp.Filter):
            function = self._filter(inner, scope)
        else:
            raise refused(node)
        name = function.name if isinstance(function, exp.Anonymous) else function.this.name
        if FUNCTIONS[name].use == "scalar":
            raise QueryError(
                f"{name} cannot be asked over a window{place_of(node)}",
                expected="an aggregate, or row_number, rank, lag, …",
            )
        made = exp.Window(
            this=function,
            partition_by=[self.bind(each, scope) for each in parts.args.get("partition_by") or []],
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
        only(order, "expressions")
        return exp.Order(expressions=self.ordered(order, scope))

    def _frame(self, spec: exp.Expr | None, scope: Scope) -> exp.Expr | None:
        if spec is None:
            return None
        only(spec, "kind", "start", "start_side", "end", "end_side")
        made: dict[str, object] = {"kind": str(spec.args.get("kind")).upper()}
        if made["kind"] not in _FRAMES:
            raise refused(spec)
        for edge in ("start", "end"):
            at, side = spec.args.get(edge), spec.args.get(f"{edge}_side")
            if at is None:
                continue
            if isinstance(at, str):
                made[edge] = at.upper()
                if made[edge] not in _EDGES:
                    raise refused(spec)
            elif is_whole(at) or isinstance(at, exp.Interval):
                made[edge] = self.bind(at, scope)
            else:
                raise QueryError(f"A window's frame has bounds that are written as numbers: {shown(spec)}")
            if side is not None:
                made[f"{edge}_side"] = str(side).upper()
                if made[f"{edge}_side"] not in _SIDES:
                    raise refused(spec)
        return exp.WindowSpec(**made)

    # Subqueries

    def _scalar(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this")
        if "latest" in node.meta:
            # We made it, and it is bound.
            return node
        if (newest := self._spelt(node)) is not None:
            return newest
        given = self._subquery(node.this, scope)
        if len(given) != 1:
            raise QueryError(
                f"A subquery in an expression has {len(given)} columns{place_of(node)}", expected="one column"
            )
        return with_kind(node, given[0])

    def _exists(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        only(node, "this")
        self._subquery(node.this.this if isinstance(node.this, exp.Subquery) else node.this, scope)
        return with_kind(node, "boolean")


def type_of(node: exp.Expr) -> str:
    """The type that a cast is to."""
    to = node.args["to"]
    if not isinstance(to, exp.DataType):
        raise refused(node)
    if to.this == exp.DType.DECIMAL:
        given = [int(each.name) for each in to.expressions if each.name.isdigit()]
        precision, scale = (given + [18, 3][len(given) :])[:2] if given else (18, 3)
        return kinds.decimal(precision, scale if len(given) != 1 else 0)
    kind = _TYPES.get(to.this)
    if kind is None or to.expressions or to.args.get("nested"):
        known = "text, boolean, bigint, double, decimal(10,2), timestamp, date, json"
        raise QueryError(f"There is no type {to.sql(dialect='duckdb')}{place_of(node)}", expected=known)
    return kind


def _path(node: exp.Expr) -> str:
    """A path into JSON, as both stores understand it: `$.a.b[0]`."""
    if isinstance(node, exp.Literal):
        found = node.name
    elif isinstance(node, exp.JSONPath):
        parts = []
        for each in node.expressions[1:]:
            if isinstance(each, exp.JSONPathKey) and isinstance(each.this, str):
                parts.append(f".{each.this}")
            elif isinstance(each, exp.JSONPathSubscript) and isinstance(each.this, int):
                parts.append(f"[{each.this}]")
            else:
                raise refused(node)
        found = "$" + "".join(parts)
    else:
        raise QueryError("A path into JSON is written as text", expected="value ->> '$.name'")
    if not _PATH.fullmatch(found):
        raise QueryError(
            f"The path {found!r} into JSON is not understood", expected="names and numbers: '$.lines[0].price'"
        )
    return found


def _unknown_function(name: str, node: exp.Expr) -> QueryError:
    if name in TABLE_FUNCTIONS:
        return QueryError(f"{name} stands in FROM only{place_of(node)}", expected=f"from {name}(…) as t(x)")
    near = nearest(name, FUNCTIONS)
    return QueryRefusedError(
        f"There is no function {name} in riverrun's SQL{place_of(node)}",
        hint=f"Did you mean {near}?" if near else f"There are: {listed(sorted(FUNCTIONS), 200)}",
        function=name,
    )


def _checked(name: str, node: exp.Expr) -> exp.Expr:
    """What must be written out, because a store wants it so or because it could be huge."""
    given = node.expressions
    if name in ("date_trunc", "date_part", "date_diff", "datediff", "date_sub"):
        known = PARTS if name == "date_part" else TRUNCATIONS
        unit = given[0].name.lower().removesuffix("s") if isinstance(given[0], exp.Literal) else ""
        unit = PART_FUNCTIONS.get(unit, unit)
        if unit not in known:
            raise QueryError(
                f"{name} of {shown(given[0])} is not understood", expected=f"one of {', '.join(known)}, in quotes"
            )
        node.set("expressions", [text(unit), *given[1:]])
    if name == "time_bucket" and not isinstance(given[0], exp.Interval):
        raise QueryError("time_bucket needs an interval first", expected="time_bucket(interval '5 minutes', at)")
    if name in ("lpad", "rpad") and not (is_whole(given[1]) and int(given[1].name) <= _MOST_PADDING):
        raise QueryRefusedError(f"{name} to {shown(given[1])} characters", expected=f"a number up to {_MOST_PADDING}")
    if name in ("quantile_cont", "quantile_disc", "approx_quantile") and not _is_share(given[1]):
        raise QueryError(f"{name} of {shown(given[1])} is not understood", expected="a number from 0 to 1")
    if name.startswith("json_extract"):
        node.set("expressions", [given[0], text(_path(given[1]))])
    return node


def _is_share(node: exp.Expr) -> bool:
    if isinstance(node, exp.Sub):
        return _is_share(node.this) and _is_share(node.expression)
    return isinstance(node, exp.Literal) and not node.is_string and 0 <= float(node.this) <= 1
