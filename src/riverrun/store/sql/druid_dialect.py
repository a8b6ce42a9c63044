"""Translates a bound query to Druid 33.

A table becomes a subquery that returns the declared columns by their names and types, which Druid's planner merges with
the query around it. Where a table is upserted it also picks the newest version of each key: Druid has no updates, so
every version is there. What the native engine cannot do is refused by name, here, before Druid is asked.

How rows are stored (by riverrun.store.druid): the time column is `__time`, other timestamps are milliseconds in a
BIGINT, booleans are 0 and 1 in a BIGINT, decimals are DOUBLE, dates are ISO text, JSON is text, and `__version` orders
the versions of a key. Two copies of one event share `__id`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlglot import exp

from riverrun.errors import QueryError
from riverrun.model.table import TableSpec
from riverrun.store.sql import value_types
from riverrun.store.sql.ast_nodes import (
    call,
    column,
    kind_of,
    number,
    paren,
    quoted_identifier,
    sql_excerpt,
    text,
    with_kind,
)
from riverrun.store.sql.binder import BoundQuery, TableRead, contains_aggregate, contains_window
from riverrun.store.sql.druid_functions import (
    TRANSLATIONS,
    as_double,
    case,
    cast,
    date_part,
    druid_period,
    raw_sql,
    to_millis,
    unsupported_error,
)
from riverrun.store.sql.druid_tables import TYPES, DruidTable, table_subquery
from riverrun.store.sql.functions import DATE_PART_FUNCTIONS, FUNCTIONS
from riverrun.store.sql.intervals import interval_seconds

# Results are exact, in UTC; a newest time is looked up and not searched for.
CONTEXT: dict[str, Any] = {
    "sqlTimeZone": "UTC",
    "useApproximateCountDistinct": False,
    "useApproximateTopN": False,
    "sqlStringifyArrays": False,
    "enableTimeBoundaryPlanning": True,
}
# Names in the subqueries that we wrap around a query.
_ROWS = "__rows"
_AGGREGATES = frozenset(
    {"COUNT", "SUM", "AVG", "MIN", "MAX", "ANY_VALUE", "LATEST_BY", "EARLIEST_BY", "APPROX_QUANTILE_DS", "STRING_AGG",
     "APPROX_COUNT_DISTINCT_DS_HLL", "ARRAY_AGG"}
)  # fmt: skip
_LOCAL = "yyyy-MM-dd''T''HH:mm:ss.SSS"


@dataclass
class DruidTranslation:
    sql: str
    context: dict[str, Any]
    latest: list[tuple[str, str]] = field(default_factory=list)
    with_latest: Callable[[Sequence[Any]], str] | None = None


def translate_to_druid(bound: BoundQuery, datasource: Callable[[TableSpec], str | DruidTable]) -> DruidTranslation:
    from riverrun.store.sql.prepared_query import to_sql

    # Newest values of tables can be queried first. With them filled in, the query has no subquery: Druid skips
    # segments, and does not have to join.
    latest_indexes = [at for at, subquery in enumerate(bound.latest) if subquery.table is not None]
    untranslated = bound.tree.copy() if latest_indexes else bound.tree
    translator = _Translator(bound.reads, datasource)
    tree = translator.translate(bound.tree, bound.outputs)

    def given(values: Sequence[Any]) -> str:
        filled = untranslated.copy()
        for node in list(filled.find_all(exp.Subquery)):
            at = node.meta.get("latest", -1)
            value = values[latest_indexes.index(at)] if at in latest_indexes else None
            if at in latest_indexes and (value is not None or not bound.latest[at].is_explicit):
                node.replace(literal(value, bound.latest[at].kind))
        return to_sql(_Translator(bound.reads, datasource).translate(filled, bound.outputs), "druid")

    newest = [_Translator(bound.reads, datasource).visit(bound.latest[at].node.this.copy()) for at in latest_indexes]
    latest = [
        (to_sql(subquery, "druid"), bound.latest[at].kind) for subquery, at in zip(newest, latest_indexes, strict=True)
    ]
    return DruidTranslation(
        to_sql(tree, "druid"), CONTEXT | translator.context, latest, given if latest_indexes else None
    )


def literal(value: Any, kind: str) -> exp.Expr:
    """A newest value that the store returned, as a literal in a query.

    None: no row has one, so nothing compares with it, and any value will do. A null time will not: Druid's planner
    fails on it.
    """
    if value is None and kind in ("timestamp", "local"):
        return _timestamp(datetime.fromtimestamp(0, UTC))
    if value is None:
        return cast(exp.Null(), TYPES.get(kind, exp.DType.DOUBLE), kind)
    if kind in ("timestamp", "local"):
        time = value if isinstance(value, datetime) else _parse_time(str(value))
        if time is None:
            raise QueryError(f"The newest value {value!r} is not a time")
        return _timestamp(time)
    if kind == "date":
        return raw_sql(f"DATE '{str(value)[:10]}'", "date") if _parse_time(str(value)[:10]) else exp.Null()
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    if isinstance(value, int | float):
        return number(value)
    return text(str(value))


def _timestamp(at: datetime) -> exp.Expr:
    at = at.astimezone(UTC) if at.tzinfo else at
    return raw_sql(f"TIMESTAMP '{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}'", "timestamp")


def _parse_time(written: str) -> datetime | None:
    try:
        return datetime.fromisoformat(written.strip())
    except ValueError:
        return None


class _Translator:
    def __init__(self, reads: Sequence[TableRead], datasource: Callable[[TableSpec], str | DruidTable]) -> None:
        self._reads = reads
        self._datasource = datasource
        self.context: dict[str, Any] = {}
        # CTEs whose rows are groups: Druid sorts those by anything.
        self._grouped_ctes: set[str] = set()
        self._visitors: dict[type[exp.Expr], Callable[[Any], exp.Expr]] = {
            exp.Table: self._table,
            exp.Unnest: lambda _: self._unsupported("unnest"),
            exp.CTE: self._cte,
            exp.Join: self._join,
            exp.Select: self._select,
            exp.Union: self._union,
            exp.Except: lambda _: self._unsupported("EXCEPT", "Use WHERE NOT IN (select …)"),
            exp.Intersect: lambda _: self._unsupported("INTERSECT", "Use WHERE IN (select …)"),
            exp.Ordered: self._ordered,
            **dict.fromkeys((exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE), self._comparison),
            exp.Between: self._between,
            exp.In: self._in,
            exp.Exists: lambda _: self._unsupported("EXISTS", "Use IN (select …)"),
            exp.ILike: self._ilike,
            exp.RegexpLike: lambda node: call("REGEXP_LIKE", node.this, node.expression),
            exp.Add: self._add_or_subtract,
            exp.Sub: self._add_or_subtract,
            exp.Mul: self._product,
            exp.Div: self._division,
            exp.IntDiv: lambda node: call("DIV", node.this, node.expression),
            exp.Mod: lambda node: call("MOD", node.this, node.expression),
            exp.DPipe: self._concat,
            exp.Cast: self._cast,
            exp.TryCast: self._cast,
            exp.AtTimeZone: self._zone,
            exp.Anonymous: self._function,
            exp.Filter: lambda node: _wrap_aggregates(
                node.this, lambda aggregate: exp.Filter(this=aggregate, expression=node.expression.copy())
            ),
            exp.Window: self._window,
        }

    def translate(self, tree: exp.Expr, outputs: Sequence[tuple[str, str]]) -> exp.Expr:
        """A whole query."""
        made = self.visit(tree)
        if made.find(exp.Interval) is not None or any(kind == "interval" for _, kind in outputs):
            raise unsupported_error(
                "length of time as a value", "Use date_diff('second', a, b) or extract(epoch from b - a)"
            )
        return made

    def visit(self, node: exp.Expr) -> exp.Expr:
        """A node with its children, translated. Its type stays the same."""
        kind = kind_of(node)
        for name, value in list(node.args.items()):
            if isinstance(value, exp.Expr):
                node.set(name, self.visit(value))
            elif isinstance(value, list):
                node.set(name, [self.visit(child) if isinstance(child, exp.Expr) else child for child in value])
        known = self._visitors.get(type(node))
        made = known(node) if known is not None else node
        if made is not node and "latest" in node.meta:
            made.meta["latest"] = node.meta["latest"]
        return with_kind(made, kind)

    @staticmethod
    def _unsupported(what: str, hint: str = "") -> exp.Expr:
        raise unsupported_error(what, hint)

    # Tables

    def _table(self, node: exp.Table) -> exp.Expr:
        if not isinstance(node.this, exp.Identifier):
            raise unsupported_error(f"{node.this.name} in FROM")
        if "read" not in node.meta:
            return node
        read = self._reads[node.meta["read"]]
        select = node.find_ancestor(exp.Select)
        aggregated = select is not None and any(contains_aggregate(expression) for expression in select.expressions)
        made = exp.Subquery(
            this=table_subquery(read, self._datasource(read.spec), aggregated=aggregated),
            alias=exp.TableAlias(this=quoted_identifier(node.alias)),
        )
        made.meta["read"] = node.meta["read"]
        return made

    def _cte(self, node: exp.CTE) -> exp.Expr:
        if _is_grouped(node.this):
            self._grouped_ctes.add(node.alias)
        return node

    def _join(self, node: exp.Join) -> exp.Expr:
        side = node.args.get("side")
        if side in ("RIGHT", "FULL"):
            hint = "Turn the tables around and use LEFT JOIN" if side == "RIGHT" else "Use LEFT JOIN and UNION ALL"
            raise unsupported_error(f"{side} JOIN that can be trusted", hint)
        condition = node.args.get("on")
        if side == "LEFT" and condition is not None:
            parts = list(condition.flatten()) if isinstance(condition, exp.And) else [condition]
            odd = next((condition for condition in parts if not isinstance(condition, exp.EQ)), None)
            if odd is not None:
                raise unsupported_error(
                    f"LEFT JOIN on anything but equality: {sql_excerpt(odd)}", "Put it into a subquery's WHERE"
                )
        return node

    # Selects

    def _select(self, node: exp.Select) -> exp.Expr:
        distinct = node.args.get("distinct")
        if distinct is not None and distinct.args.get("on") is not None:
            raise unsupported_error("DISTINCT ON", "Use qualify row_number() over (partition by …) = 1")
        if node.args.get("qualify") is not None:
            return self._rewrite_qualify(node)
        exact = [
            function_call
            for function_call in node.find_all(exp.Anonymous)
            if function_call.name == "COUNT" and isinstance(function_call.expressions[0], exp.Distinct)
        ]
        if len(exact) > 1:
            self.context["useGroupingSetForExactDistinct"] = True
        group = node.args.get("group")
        if group is not None and group.find(exp.GroupingSets, exp.Rollup, exp.Cube) is not None:
            # Pushed down, a limit cuts the rows that the totals are computed from.
            self.context["applyLimitPushDown"] = False
        if node.args.get("order") is not None and self._needs_sorting(node):
            return _wrap_select(node, [], None)
        return node

    def _needs_sorting(self, node: exp.Select) -> bool:
        """Whether Druid would have to sort a plain scan, which it does by time only, or the output of a window."""
        if any(contains_window(expression) for expression in node.expressions):
            return True
        if node.args.get("group") or node.args.get("having") or node.args.get("distinct") or not node.args.get("from_"):
            return False
        if any(contains_aggregate(expression) for expression in node.expressions):
            return False
        outputs = {expression.alias: expression.this for expression in node.expressions}
        read = self._only_read(node)
        if (read is not None and read.spec.upserts) or self._reads_groups(node):
            # Groups are sorted by anything; but a subquery in WHERE or SELECT is a join in Druid: its rows are no
            # groups.
            parts = [node.args.get("where"), *node.expressions]
            return any(part is not None and part.find(exp.Query) is not None for part in parts)
        keys = [expression.this for expression in node.args["order"].expressions]
        first = outputs.get(keys[0].name, keys[0]) if isinstance(keys[0], exp.Column) and not keys[0].table else keys[0]
        by_time = read is not None and isinstance(first, exp.Column) and first.name == read.spec.time
        return not (by_time and len(keys) == 1)

    def _only_read(self, node: exp.Select) -> TableRead | None:
        """The table of a query that reads one table and nothing else."""
        source = node.args["from_"].this
        number_ = source.meta.get("read")
        return self._reads[number_] if number_ is not None and not node.args.get("joins") else None

    def _reads_groups(self, node: exp.Select) -> bool:
        """Whether it reads one subquery or CTE, whose rows are groups."""
        source = node.args["from_"].this
        if node.args.get("joins"):
            return False
        if isinstance(source, exp.Table):
            return source.name in self._grouped_ctes
        return isinstance(source, exp.Subquery) and "read" not in source.meta and _is_grouped(source.this)

    def _rewrite_qualify(self, node: exp.Select) -> exp.Expr:
        """QUALIFY as a WHERE around the query: what it tests becomes columns of the rows inside."""
        where = exp.Where(this=node.args["qualify"].this)
        node.set("qualify", None)
        extra: list[exp.Expr] = []
        inputs = [expression for expression in where.walk(prune=_is_qualify_input) if _is_qualify_input(expression)]
        for input_ in inputs:
            extra.append(input_.copy())
            input_.replace(column(f"__w{len(extra)}", _ROWS))
        return _wrap_select(node, extra, where)

    def _union(self, node: exp.Union) -> exp.Expr:
        """UNION ALL of whole queries, one after the other, is all the native engine has."""
        if node.args.get("distinct"):
            raise unsupported_error("UNION", "Use UNION ALL")
        if node.parent is not None and not isinstance(node.parent, exp.Union):
            raise unsupported_error("UNION ALL inside a question", "It has it between whole questions")
        if node.args.get("order") or node.args.get("limit") or node.args.get("offset"):
            raise unsupported_error(
                "ORDER BY or LIMIT of a UNION ALL", "Leave it out: the rows come question by question"
            )
        return node

    def _ordered(self, node: exp.Ordered) -> exp.Expr:
        smallest_first = bool(node.args.get("desc")) != bool(node.args.get("nulls_first"))
        if not smallest_first:
            word = "NULLS FIRST" if node.args.get("nulls_first") else "NULLS LAST"
            raise unsupported_error(f"{word} here: it sorts NULL as the smallest value", f"Leave {word} out")
        return node

    # Values

    def _comparison(self, node: exp.Binary) -> exp.Expr:
        left, right = node.this, node.expression
        node.set("this", _as_time(_as_millis(left, right), kind_of(right)))
        node.set("expression", _as_time(_as_millis(right, left), kind_of(left)))
        return node

    def _between(self, node: exp.Between) -> exp.Expr:
        for name in ("low", "high"):
            node.set(name, _as_time(node.args[name], kind_of(node.this)))
        return node

    def _in(self, node: exp.In) -> exp.Expr:
        node.set("expressions", [_as_time(expression, kind_of(node.this)) for expression in node.expressions])
        return node

    def _ilike(self, node: exp.ILike) -> exp.Expr:
        return exp.Like(this=call("LOWER", node.this), expression=call("LOWER", node.expression))

    def _add_or_subtract(self, node: exp.Binary) -> exp.Expr:
        left, right = node.this, node.expression
        one, other = kind_of(left), kind_of(right)
        if one == "interval" and other in value_types.TIME_TYPES and isinstance(node, exp.Add):
            left, right, one, other = right, left, other, one
        if one in value_types.TIME_TYPES and other == "interval":
            if not isinstance(right, exp.Interval):
                raise unsupported_error("interval that is computed")
            steps = -1 if isinstance(node, exp.Sub) else 1
            at = cast(left, exp.DType.TIMESTAMP, "timestamp") if one == "date" else left
            return call("TIME_SHIFT", at, text(druid_period(right)), number(steps))
        if one in value_types.TIME_TYPES or other in value_types.TIME_TYPES:
            if (
                isinstance(node, exp.Sub)
                and one in value_types.TIME_TYPES
                and other in value_types.TIME_TYPES
                and "date" not in (one, other)
            ):
                # Only what is computed from it is a result: see extract(epoch from …).
                made = with_kind(exp.Paren(this=exp.Sub(this=to_millis(left), expression=to_millis(right))), "interval")
                made.meta["millis"] = True
                return made
            raise unsupported_error(f"{sql_excerpt(node)}", "Use date_diff('day', a, b), or add an interval")
        return node

    def _product(self, node: exp.Binary) -> exp.Expr:
        if "interval" in (kind_of(node.this), kind_of(node.expression)):
            raise unsupported_error("interval that is computed")
        return node

    def _division(self, node: exp.Div) -> exp.Expr:
        return exp.Div(this=paren(as_double(node.this)), expression=node.expression)

    def _concat(self, node: exp.DPipe) -> exp.Expr:
        sides = [side if kind_of(side) in ("text", "json") else cast(side, exp.DType.VARCHAR, "text")
                 for side in (node.this, node.expression)]  # fmt: skip
        return exp.DPipe(this=sides[0], expression=sides[1])

    def _cast(self, node: exp.Cast) -> exp.Expr:
        value, kind = node.this, kind_of(node)
        given = kind_of(value)
        if isinstance(value, exp.Literal) and value.is_string and kind in ("timestamp", "date"):
            return _as_time(value, kind)
        if isinstance(value, exp.Literal) and value.is_string and kind in ("bigint", "double"):
            return _as_number(node, kind)
        if kind == "boolean" and given not in ("boolean", ""):
            if not value_types.is_number(given):
                raise unsupported_error(f"cast from {given} to boolean")
            return with_kind(exp.NEQ(this=paren(value), expression=number(0)), "boolean")
        if given == "boolean" and (value_types.is_number(kind)):
            return case((value, number(1)), (exp.Not(this=paren(value.copy())), number(0)), kind=kind)
        if kind == "timestamp" and given in ("text", "json"):
            return call("TIME_PARSE", call("REPLACE", value, text(" "), text("T")))
        if kind == "bigint" and (given == "double" or value_types.is_decimal(given)):
            value = call("ROUND", value)
        if value_types.is_decimal(kind):
            scale = (value_types.precision_and_scale(kind) or (0, 0))[1]
            return call("ROUND", as_double(value), number(scale))
        return cast(value, TYPES[kind], kind)

    def _zone(self, node: exp.AtTimeZone) -> exp.Expr:
        zone = node.args["zone"]
        if kind_of(node) == "local":
            there = call("TIME_FORMAT", node.this, text(_LOCAL.replace("''", "'")), zone)
            return call("TIME_PARSE", there, exp.Null(), text("UTC"))
        clock = call("TIME_FORMAT", node.this, text(_LOCAL.replace("''", "'")), text("UTC"))
        return call("TIME_PARSE", clock, exp.Null(), zone)

    def _function(self, node: exp.Anonymous) -> exp.Expr:
        name = node.name
        function = FUNCTIONS.get(name)
        if function is None:
            # It is Druid's already: the output of a translation.
            return node
        if function.druid == "":
            raise unsupported_error(f"function {name}")
        given = node.expressions
        if name in ("date_part", "date_trunc", "date_diff", "datediff", "date_sub"):
            given = [given[0], *(_as_time(argument, "timestamp") for argument in given[1:])]
        if name in ("coalesce", "ifnull"):
            given = [argument for argument in given if not isinstance(argument, exp.Null)] or [exp.Null()]
        if (
            function.use == "scalar"
            and isinstance(given[0] if given else None, exp.Literal)
            and function.result == "text"
        ):
            # A text literal has a fixed length in Druid, and what is computed from it is padded with blanks.
            given = [cast(given[0], exp.DType.VARCHAR, "text"), *given[1:]]
        if name in ("date_part", "epoch") and given[-1].meta.get("millis"):
            return exp.Div(this=given[-1], expression=raw_sql("1000.0", "double"))
        if name in DATE_PART_FUNCTIONS:
            return date_part(DATE_PART_FUNCTIONS[name], given[0])
        if function.druid == "*":
            made = TRANSLATIONS[name](given)
        else:
            made = call(name.upper() if function.druid == "=" else function.druid, *given)
        made.meta["use"] = node.meta.get("use")
        return made

    def _window(self, node: exp.Window) -> exp.Expr:
        spec = node.args.get("spec")
        if spec is not None and spec.args.get("kind") == "RANGE":
            edges = [spec.args.get(edge) for edge in ("start", "end")]
            if any(isinstance(edge, exp.Expr) for edge in edges):
                raise unsupported_error("window over RANGE with a number or an interval", "Use ROWS")
        if any(isinstance(child, exp.Distinct) for child in node.this.find_all(exp.Distinct)):
            raise unsupported_error("DISTINCT in a window")
        parts = {key: value for key, value in node.args.items() if key != "this"}

        def over(aggregate: exp.Expr) -> exp.Expr:
            return exp.Window(this=aggregate, **{key: _copy_value(value) for key, value in parts.items()})

        made = _wrap_aggregates(node.this, over)
        made.meta["use"] = "window"
        return made


def _copy_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_copy_value(item) for item in value]
    return value.copy() if isinstance(value, exp.Expr) else value


def _wrap_aggregates(node: exp.Expr, wrap: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """Put FILTER or OVER around the aggregate in a translation that does more than aggregate."""
    inside = [
        aggregate
        for aggregate in node.find_all(exp.Anonymous)
        if aggregate.name in _AGGREGATES and aggregate is not node
    ]
    if not inside or (isinstance(node, exp.Anonymous) and node.name in _AGGREGATES) or isinstance(node, exp.Filter):
        made = wrap(node)
        made.meta["use"] = node.meta.get("use")
        return made
    for inner in inside:
        inner.replace(wrap(inner.copy()))
    return node


def _is_grouped(node: exp.Expr) -> bool:
    aggregating_parts = [node.args.get(name) for name in ("group", "having", "distinct")]
    return any(aggregating_parts) or any(
        contains_aggregate(expression) for expression in node.args.get("expressions") or []
    )


def _is_qualify_input(node: exp.Expr) -> bool:
    return isinstance(node, exp.Window | exp.Column) or node.meta.get("use") == "aggregate"


def _row_number_keys(node: exp.Select, extra: Sequence[exp.Expr]) -> list[exp.Expr]:
    """What makes the rows of a query distinct. Where it has a window, the row's number in that same window, and the
    window's partition: a second window would have to be sorted again, and that sort kills the broker."""
    given = [*(expression.this for expression in node.expressions), *extra]
    window = next((child for argument in given for child in argument.find_all(exp.Window)), None)
    if window is None:
        return [exp.Window(this=call("ROW_NUMBER"), over="OVER")]
    parts = {key: _copy_value(value) for key, value in window.args.items() if key in ("partition_by", "order", "over")}
    return [
        *(expression.copy() for expression in window.args.get("partition_by") or []),
        exp.Window(this=call("ROW_NUMBER"), **parts),
    ]


def _wrap_select(node: exp.Select, extra: list[exp.Expr], where: exp.Where | None) -> exp.Select:
    """SELECT … FROM (the query without its order and limit) WHERE … GROUP BY … ORDER BY … LIMIT.

    A group-by sorts by anything and filters by anything. Each row is a group of its own, by its number. Druid's other
    way of sorting takes 200 MB of the broker's heap for any query (LazilyDecoratedRowsAndColumns), and the broker dies
    of it.
    """
    added = [exp.Alias(this=expression, alias=quoted_identifier(f"__w{at}")) for at, expression in enumerate(extra, 1)]
    names = {expression.alias for expression in node.expressions}
    keys = [expression.alias for expression in node.expressions]
    order = node.args.get("order")
    if order is not None:
        for ordered in order.expressions:
            key = ordered.this
            if not (isinstance(key, exp.Column) and not key.table and key.name in names):
                keys.append(f"__o{len(keys)}")
                added.append(exp.Alias(this=key.copy(), alias=quoted_identifier(keys[-1])))
            ordered.set("this", column(keys[-1] if key.name not in names or key.table else key.name, _ROWS))
    for key_expression in _row_number_keys(node, extra):
        keys.append(f"__n{len(keys)}")
        added.append(exp.Alias(this=key_expression, alias=quoted_identifier(keys[-1])))
    outputs = [with_kind(exp.Alias(this=column(expression.alias, _ROWS), alias=quoted_identifier(expression.alias)),
                         kind_of(expression))
               for expression in node.expressions]  # fmt: skip
    outer = exp.Select(expressions=outputs)
    for name in ("with_", "order", "limit", "offset"):
        outer.set(name, node.args.get(name))
        node.set(name, None)
    node.set("expressions", [*node.expressions, *added])
    outer.set("where", where)
    outer.set("group", exp.Group(expressions=[column(name, _ROWS) for name in keys]))
    # Always true. An aggregate that Druid's planner cannot take apart keeps it from seeing that each row is its own
    # group.
    always = exp.GT(this=call("ANY_VALUE", column(keys[-1], _ROWS)), expression=number(0))
    outer.set("having", exp.Having(this=always))
    outer.set("from_", exp.From(this=exp.Subquery(this=node, alias=exp.TableAlias(this=quoted_identifier(_ROWS)))))
    return outer


def _as_millis(node: exp.Expr, other: exp.Expr) -> exp.Expr:
    """An interval next to the difference of two times, which is in milliseconds here."""
    seconds = interval_seconds(node.name) if isinstance(node, exp.Interval) and other.meta.get("millis") else None
    return node if seconds is None else number(round(seconds * 1000))


def _as_number(node: exp.Expr, kind: str) -> exp.Expr:
    """A number that is written as text; Druid's planner fails on invalid ones."""
    try:
        return number(int(node.this.name) if kind == "bigint" else float(node.this.name))
    except ValueError:
        if isinstance(node, exp.TryCast):
            return cast(exp.Null(), TYPES[kind], kind)
        raise QueryError(f"{node.this.name!r} is not a {kind}") from None


def _as_time(node: exp.Expr, other: str) -> exp.Expr:
    """A text next to a time, or in a cast to one, as a time."""
    if other not in value_types.TIME_TYPES or not isinstance(node, exp.Literal) or not node.is_string:
        return node
    parsed = _parse_time(node.name)
    if parsed is None:
        raise QueryError(f"{node.name!r} is not a time", expected="one such as '2026-01-31 12:00:00'")
    if other == "date":
        return raw_sql(f"DATE '{parsed:%Y-%m-%d}'", "date")
    return _timestamp(parsed)
