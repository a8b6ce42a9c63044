"""Binds queries and what they read from: tables, CTEs, subqueries; resolves `*`, aliases and `latest`.

The tree is changed in place: every column is qualified, every output has a name, and everything implicit is written
out. What is left is a plain SELECT that DuckDB runs as it is and that can be translated for Druid.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from riverrun.errors import QueryError, QueryRefusedError
from riverrun.model.table import TableSpec
from riverrun.store.sql import value_types
from riverrun.store.sql.ast_nodes import (
    call,
    column,
    has_only,
    is_integer_literal,
    join_names,
    kind_of,
    location_text,
    paren,
    quoted_identifier,
    refused_error,
    require_only,
    sql_excerpt,
    with_kind,
)
from riverrun.store.sql.expressions import ExpressionBinder
from riverrun.store.sql.scope import QuerySource, Scope, unknown_table_error
from riverrun.store.sql.series import series_row_count

ColumnTypes = list[tuple[str, str]]
MAX_SERIES_ROWS = 100_000
_JOIN_SIDES = {"", "LEFT", "RIGHT", "FULL"}


@dataclass
class TableRead:
    """A stored table that a query reads. Its nodes in the tree have the read's number in their meta, and so have
    copies."""

    source: QuerySource
    spec: TableSpec
    # Read only for its newest value.
    only_newest: bool = False


@dataclass
class LatestSubquery:
    """One `latest`: the subquery that replaces it, which has its number in its meta. No table: the newest of a CTE."""

    node: exp.Expr
    table: TableSpec | None
    kind: str
    # The user wrote the subquery, anywhere. Where there is no newest value, it stays.
    is_explicit: bool = False


@dataclass
class BoundQuery:
    tree: exp.Expr
    outputs: ColumnTypes
    reads: list[TableRead] = field(default_factory=list)
    latest: list[LatestSubquery] = field(default_factory=list)


def bind(tree: exp.Expr, tables: Mapping[str, TableSpec]) -> BoundQuery:
    """Bind a whole query."""
    binder = _Binder(tables)
    while isinstance(tree, exp.Subquery) and set(_present_args(tree)) == {"this"}:
        tree = tree.this
    outputs = binder.query(tree, None, {})
    return BoundQuery(tree, outputs, binder.reads, binder.latest)


class _Binder:
    def __init__(self, tables: Mapping[str, TableSpec]) -> None:
        self.reads: list[TableRead] = []
        self.latest: list[LatestSubquery] = []
        self._tables = {name.lower(): spec for name, spec in tables.items()}
        self._sources: list[QuerySource] = []
        self._expressions = ExpressionBinder(self._subquery, self._bind_latest, self._bind_explicit_latest)
        # The CTEs visible at the current position.
        self._cte_columns: dict[str, ColumnTypes] = {}

    def query(self, node: exp.Expr, outer: Scope | None, names: dict[str, ColumnTypes]) -> ColumnTypes:
        before, self._cte_columns = self._cte_columns, {**names, **self._with(node, outer, names)}
        try:
            if isinstance(node, exp.Select):
                return self._select(node, outer)
            if isinstance(node, exp.SetOperation):
                return self._set_operation(node, outer)
            if isinstance(node, exp.Subquery):
                require_only(node, "this")
                return self.query(node.this, outer, self._cte_columns)
        finally:
            self._cte_columns = before
        raise refused_error(node)

    def _subquery(self, node: exp.Expr, scope: Scope) -> list[str]:
        return [kind for _, kind in self.query(node, scope, self._cte_columns)]

    def _with(self, node: exp.Expr, outer: Scope | None, names: dict[str, ColumnTypes]) -> dict[str, ColumnTypes]:
        with_clause = node.args.get("with_")
        if with_clause is None:
            return {}
        if with_clause.args.get("recursive"):
            raise QueryRefusedError("WITH RECURSIVE is refused: it may never end", hint="Leave RECURSIVE out")
        require_only(with_clause, "expressions")
        made: dict[str, ColumnTypes] = {}
        for cte in with_clause.expressions:
            require_only(cte, "this", "alias", "materialized")
            cte.set("materialized", None)
            name, columns = _alias(cte)
            if name.lower() in made:
                raise QueryError(f"WITH has two parts called {name}")
            given = self.query(cte.this, outer, {**names, **made})
            made[name.lower()] = _apply_names(given, columns, name)
            # Written out, so that a store that spells names its own way reads them as written here.
            cte.set(
                "alias",
                exp.TableAlias(
                    this=quoted_identifier(name),
                    columns=[quoted_identifier(column_name) for column_name, _ in made[name.lower()]],
                ),
            )
        return made

    # One SELECT

    def _select(self, node: exp.Select, outer: Scope | None) -> ColumnTypes:
        require_only(node, "with_", "expressions", "distinct", "from_", "joins", "where", "group", "having", "qualify",
             "windows", "order", "limit", "offset")  # fmt: skip
        scope = Scope(outer)
        self._from(node, scope)
        for window in node.args.get("windows") or []:
            scope.windows[window.this.name.lower()] = window
        node.set("windows", None)
        outputs = self._outputs(node, scope)
        self._distinct(node, scope)
        where = node.args.get("where")
        if where is not None:
            require_only(where, "this")
            where.set("this", self._expressions.bind(where.this, scope))
        self._group(node, scope)
        for name in ("having", "qualify"):
            part = node.args.get(name)
            if part is not None:
                require_only(part, "this")
                _prefer_aggregates(part, scope)
                part.set("this", self._expressions.bind(part.this, scope))
        self._order(node, scope, outputs)
        return outputs

    def _outputs(self, node: exp.Select, scope: Scope) -> ColumnTypes:
        made: list[exp.Expr] = []
        outputs: ColumnTypes = []
        used_names: set[str] = set()
        for name, value in self._projections(node, scope):
            unique, count = name, 0
            while unique.lower() in used_names:
                count += 1
                unique = f"{name}_{count}"
            used_names.add(unique.lower())
            made.append(with_kind(exp.Alias(this=value, alias=quoted_identifier(unique)), kind_of(value)))
            outputs.append((unique, kind_of(value)))
            scope.aliases.setdefault(name.lower(), value)
        if not made:
            raise QueryError("SELECT names no column", expected="at least one, or *")
        node.set("expressions", made)
        return outputs

    def _projections(self, node: exp.Select, scope: Scope) -> list[tuple[str, exp.Expr]]:
        projections: list[tuple[str, exp.Expr]] = []
        for expression in node.expressions:
            if isinstance(expression, exp.Star):
                projections += self._star(expression, scope, None)
            elif isinstance(expression, exp.Column) and isinstance(expression.this, exp.Star):
                require_only(expression, "this", "table")
                source = scope.sources.get(expression.table.lower())
                if source is None:
                    raise unknown_table_error(
                        expression.table, expression, [source.alias for source in scope.sources.values()]
                    )
                projections += self._star(expression.this, scope, source)
            elif isinstance(expression, exp.Alias):
                require_only(expression, "this", "alias")
                value = self._expressions.bind(expression.this, scope)
                projections.append((expression.alias, value))
                scope.aliases.setdefault(expression.alias.lower(), value)
            else:
                # Words that some dialect reserves are quoted in it; nobody wrote them so.
                name = "" if isinstance(expression, exp.Column) else re.sub(r'"(\w+)"', r"\1", sql_excerpt(expression))
                value = self._expressions.bind(expression, scope)
                projections.append((name or value.name, value))
        return projections

    def _star(self, node: exp.Expr, scope: Scope, of: QuerySource | None) -> list[tuple[str, exp.Expr]]:
        require_only(node, "except_", "replace")
        known = {name for source in ([of] if of else scope.sources.values()) for name in source.columns}
        if not known:
            raise QueryError(f"* without a FROM{location_text(node)}")
        replaced: dict[str, exp.Expr] = {}
        for replacement in node.args.get("replace") or []:
            if not isinstance(replacement, exp.Alias):
                raise refused_error(node)
            replaced[replacement.alias.lower()] = self._expressions.bind(replacement.this, scope)
        left_out = {excluded.name.lower() for excluded in node.args.get("except_") or []}
        if odd := (left_out | set(replaced)) - known:
            raise QueryError(f"* has no column {min(odd)} to leave out or replace", expected=join_names(sorted(known)))
        return [(name, replaced.get(name.lower(), value)) for name, value in scope.expand_star(of, left_out)]

    def _distinct(self, node: exp.Select, scope: Scope) -> None:
        distinct = node.args.get("distinct")
        if distinct is None:
            return
        require_only(distinct, "on")
        on = distinct.args.get("on")
        if on is not None:
            if not isinstance(on, exp.Tuple):
                raise refused_error(node)
            on.set("expressions", [self._expressions.bind(expression, scope) for expression in on.expressions])

    def _group(self, node: exp.Select, scope: Scope) -> None:
        group = node.args.get("group")
        if group is None:
            return
        require_only(group, "expressions", "all")
        if group.args.get("all"):
            group.set("all", None)
            plain = [expression.this for expression in node.expressions if not contains_aggregate(expression.this)]
            group.set(
                "expressions",
                [expression.copy() for expression in plain if not isinstance(expression, exp.Literal | exp.Null)],
            )
            if not group.expressions:
                node.set("group", None)
            return
        if not group.expressions:
            raise QueryError("GROUP BY names nothing", expected="group by street, or group by all")
        group.set("expressions", [self._grouping(expression, node, scope) for expression in group.expressions])

    def _grouping(self, node: exp.Expr, select: exp.Select, scope: Scope) -> exp.Expr:
        if isinstance(node, exp.GroupingSets | exp.Rollup | exp.Cube):
            require_only(node, "expressions")
            if not node.expressions:
                raise QueryError("GROUP BY names nothing", expected="group by rollup (street, house_id)")
            node.set("expressions", [self._grouping(expression, select, scope) for expression in node.expressions])
            return node
        if isinstance(node, exp.Tuple):
            node.set("expressions", [self._grouping(expression, select, scope) for expression in node.expressions])
            return node
        if is_integer_literal(node):
            _check_ordinal(node, len(select.expressions), "GROUP BY")
            chosen: exp.Expr = select.expressions[int(node.name) - 1].this
            return chosen.copy()
        bound = self._expressions.bind(node, scope)
        return bound.this if isinstance(bound, exp.Paren) else bound

    def _order(self, node: exp.Expr, scope: Scope, outputs: ColumnTypes) -> None:
        order = node.args.get("order")
        if order is not None:
            require_only(order, "expressions")
            by_name = {name.lower(): (name, kind) for name, kind in outputs}
            for expression in order.expressions:
                if not isinstance(expression, exp.Ordered) or isinstance(expression.this, exp.Var):
                    raise refused_error(order)
                require_only(expression, "this", "desc", "nulls_first")
                value = expression.this
                if is_integer_literal(value):
                    _check_ordinal(value, len(outputs), "ORDER BY")
                    expression.set("this", column(*_ordinal(outputs, value)))
                elif isinstance(value, exp.Column) and not value.table and value.name.lower() in by_name:
                    name, kind = by_name[value.name.lower()]
                    expression.set("this", column(name, kind=kind))
                else:
                    expression.set("this", self._expressions.bind(value, scope))
        for name in ("limit", "offset"):
            part = node.args.get(name)
            if part is None:
                continue
            require_only(part, "expression")
            if not is_integer_literal(part.expression):
                raise QueryError(
                    f"{name.upper()} is a number: {sql_excerpt(part.expression)}{location_text(part)}",
                    expected="limit 10",
                )

    def _set_operation(self, node: exp.SetOperation, outer: Scope | None) -> ColumnTypes:
        require_only(node, "this", "expression", "distinct", "with_", "order", "limit", "offset")
        left = self.query(node.this, outer, self._cte_columns)
        right = self.query(node.expression, outer, self._cte_columns)
        if len(left) != len(right):
            word = type(node).__name__.upper()
            raise QueryError(
                f"The sides of {word} have {len(left)} and {len(right)} columns", expected="as many on both"
            )
        outputs = [
            (name, value_types.common_type((kind, other[1]))) for (name, kind), other in zip(left, right, strict=True)
        ]
        self._order(node, Scope(), outputs)
        return outputs

    # What it reads from

    def _from(self, node: exp.Select, scope: Scope) -> None:
        from_clause = node.args.get("from_")
        if from_clause is None:
            if node.args.get("joins"):
                raise refused_error(node)
            return
        require_only(from_clause, "this")
        from_clause.set("this", self._relation(from_clause.this, scope))
        for join in node.args.get("joins") or []:
            require_only(join, "this", "side", "kind", "on", "using")
            side, kind = str(join.args.get("side") or "").upper(), str(join.args.get("kind") or "").upper()
            if side not in _JOIN_SIDES or kind not in ("", "INNER", "OUTER", "CROSS"):
                raise refused_error(join, f"{side} {kind}".strip())
            before = list(scope.sources.values())
            join.set("this", self._relation(join.this, scope))
            join.set("side", side or None)
            join.set("kind", "CROSS" if _is_cross(join) else None)
            if join.args.get("using"):
                self._using(join, side, before, scope)
            elif join.args.get("on") is not None:
                join.set("on", self._expressions.bind(join.args["on"], scope))
            elif side:
                raise QueryError(f"A {side} JOIN has no condition", expected="ON a.x = b.x, or USING (x)")

    def _using(self, join: exp.Expr, side: str, before: list[QuerySource], scope: Scope) -> None:
        right = list(scope.sources.values())[-1]
        conditions: list[exp.Expr] = []
        for identifier in join.args["using"]:
            name = identifier.name
            left = scope.merged.get(name.lower())
            if left is None:
                having = [source for source in before if name.lower() in source.columns]
                if len(having) > 1:
                    raise QueryError(
                        f"{name} in USING is ambiguous: {' and '.join(source.alias for source in having)} have it"
                    )
                left = having[0].read_column(name) if having else None
            other = right.read_column(name)
            if left is None or other is None:
                without = right.alias if other is None else "what is joined so far"
                raise QueryError(
                    f"{without} has no column {name}, which USING names{location_text(identifier)}", column=name
                )
            conditions.append(with_kind(exp.EQ(this=left.copy(), expression=other), "boolean"))
            both = call(
                "coalesce", left.copy(), other.copy(), kind=value_types.common_type((kind_of(left), kind_of(other)))
            )
            scope.merged[name.lower()] = both if side == "FULL" else other if side == "RIGHT" else left
        join.set("using", None)
        join.set("on", exp.and_(*conditions, copy=False))

    def _relation(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        if isinstance(node, exp.Table):
            return self._series(node, scope) if not isinstance(node.this, exp.Identifier) else self._table(node, scope)
        if isinstance(node, exp.Subquery):
            require_only(node, "this", "alias")
            if not isinstance(node.this, exp.Query):
                raise refused_error(node)
            given = self.query(node.this, None, self._cte_columns)
            name, columns = _alias(node, f"subquery_{len(scope.sources) + 1}")
            given = _apply_names(given, columns, name)
            node.set(
                "alias",
                exp.TableAlias(
                    this=quoted_identifier(name),
                    columns=[quoted_identifier(column_name) for column_name, _ in given] if columns else None,
                ),
            )
            self._add(scope, _source(name, given), node)
            return node
        if isinstance(node, exp.Values):
            return self._values(node, scope)
        if isinstance(node, exp.Unnest):
            return self._unnest(node, scope)
        raise refused_error(node)

    def _table(self, node: exp.Table, scope: Scope) -> exp.Expr:
        if node.args.get("db") is not None or node.args.get("catalog") is not None:
            raise QueryRefusedError(
                f"{sql_excerpt(node)} names a schema{location_text(node)}",
                expected="the name of a table alone",
                table=node.name,
            )
        require_only(node, "this", "alias")
        alias, columns = _alias(node, node.name)
        lower = node.name.lower()
        if lower in self._cte_columns:
            given = _apply_names(self._cte_columns[lower], columns, alias)
            self._add(scope, _source(alias, given, named=node.name), node)
            return exp.Table(this=quoted_identifier(node.name), alias=_make_alias(alias, columns))
        spec = self._tables.get(lower)
        if spec is None:
            raise unknown_table_error(
                node.name, node, sorted([*(table.name for table in self._tables.values()), *self._cte_columns])
            )
        if columns:
            raise refused_error(node, "columns of its own")
        made, source = self._read(spec, alias)
        self._add(scope, source, node)
        return made

    def _add(self, scope: Scope, source: QuerySource, node: exp.Expr) -> None:
        source.number = len(self._sources)
        self._sources.append(source)
        scope.add(source, node)

    def _read(self, spec: TableSpec, alias: str, *, only_newest: bool = False) -> tuple[exp.Expr, QuerySource]:
        source = _source(alias, [(table_column.name, table_column.type) for table_column in spec.columns], spec)
        made = exp.Table(this=quoted_identifier(spec.name), alias=_make_alias(alias))
        made.meta["read"] = len(self.reads)
        self.reads.append(TableRead(source, spec, only_newest))
        return made, source

    def _series(self, node: exp.Table, scope: Scope) -> exp.Expr:
        """range(…) and generate_series(…), whose bounds must be literal and not too far apart."""
        require_only(node, "this", "alias")
        function = node.this
        name = function.name.lower() if isinstance(function, exp.Anonymous) else ""
        if name not in ("range", "generate_series"):
            raise QueryRefusedError(
                f"{sql_excerpt(function)} cannot be read from{location_text(node)}",
                expected="a table, a name of WITH, a subquery, range(…), generate_series(…) or unnest([…])",
                function=name,
            )
        require_only(function, "this", "expressions")
        bound = [self._expressions.bind(expression, Scope()) for expression in function.expressions]
        rows, kind = series_row_count(bound, inclusive=name == "generate_series")
        if rows > MAX_SERIES_ROWS:
            raise QueryRefusedError(
                f"{sql_excerpt(function)} makes {rows} rows", expected=f"at most {MAX_SERIES_ROWS}", rows=rows
            )
        alias, columns = _alias(node, name)
        given = _apply_names([(name, kind)], columns, alias)
        self._add(scope, _source(alias, given), node)
        return exp.Table(this=exp.Anonymous(this=name, expressions=bound), alias=_make_alias(alias, [given[0][0]]))

    def _unnest(self, node: exp.Unnest, scope: Scope) -> exp.Expr:
        require_only(node, "expressions", "alias")
        lists = node.expressions
        if len(lists) != 1 or not isinstance(lists[0], exp.Array):
            raise QueryRefusedError(
                f"unnest of {sql_excerpt(node)} is refused", expected="a list that is written out: unnest([1, 2, 3])"
            )
        require_only(lists[0], "expressions", "value_constructor", "bracket_notation")
        values = [self._expressions.bind(expression, Scope()) for expression in lists[0].expressions]
        lists[0].set("expressions", values)
        alias, columns = _alias(node, "unnest")
        given = _apply_names([("unnest", value_types.common_type(kind_of(value) for value in values))], columns, alias)
        node.set("alias", _make_alias(alias, [given[0][0]]))
        self._add(scope, _source(alias, given), node)
        return node

    def _values(self, node: exp.Values, scope: Scope) -> exp.Expr:
        require_only(node, "expressions", "alias")
        alias, columns = _alias(node, "")
        rows = [list(expression.expressions) for expression in node.expressions if isinstance(expression, exp.Tuple)]
        if not alias or not rows or len(rows) != len(node.expressions) or any(len(row) != len(columns) for row in rows):
            raise QueryError(
                "VALUES needs a name for itself and for each column", expected="(values (1, 'a')) as t(number, word)"
            )
        for row, values_row in zip(rows, node.expressions, strict=True):
            values_row.set("expressions", [self._expressions.bind(value, Scope()) for value in row])
        types = [
            value_types.common_type(kind_of(expression.expressions[at]) for expression in node.expressions)
            for at in range(len(columns))
        ]
        node.set("alias", _make_alias(alias, columns))
        self._add(scope, _source(alias, list(zip(columns, types, strict=True))), node)
        return node

    # latest

    def _bind_latest(self, node: exp.Expr, scope: Scope) -> None:
        """`column = latest`: replace the word with the newest value of that column, in its own table."""
        inside = [
            reference
            for reference in node.walk(prune=lambda child: isinstance(child, exp.Query))
            if isinstance(reference, exp.Column)
        ]
        words = [
            reference
            for reference in inside
            if reference.name.lower() == "latest" and not reference.table and scope.lookup(reference) is None
        ]
        if not words:
            return
        others = {sql_excerpt(reference).lower(): reference for reference in inside if reference not in words}
        if len(others) != 1:
            raise QueryError(
                f"It is not clear what is latest in {sql_excerpt(node)}{location_text(node)}",
                expected="one column beside it: minute = latest",
                found=f"{len(others)} columns",
            )
        named = next(iter(others.values()))
        lower = named.name.lower()
        if lower in scope.merged and not named.table:
            having = [source.alias for source in scope.sources.values() if lower in source.columns]
            raise QueryError(
                f"latest of {named.name} is ambiguous: {' and '.join(having)} have it",
                hint=f"Say which: {having[0]}.{named.name}",
            )
        column_node = scope.resolve(named)
        number = column_node.meta.get("source", -1)
        source = self._sources[number] if number >= 0 else None
        if source is None or (source.table is None and not source.cte_name):
            raise QueryError(
                f"latest of {sql_excerpt(named)} is not known{location_text(named)}: it is not a column of a table",
                hint="Give the subquery a name: with newest as (select …) select … from newest where minute = latest",
            )
        for word in words:
            word.replace(self._latest_subquery(source, column_node.name, kind_of(column_node)))

    def _bind_explicit_latest(self, node: exp.Expr) -> exp.Expr | None:
        """`(select max(minute) from house_load)`: the newest time of a table, which is `latest` spelt out."""
        select = node.this
        if not isinstance(select, exp.Select) or not has_only(select, "expressions", "from_"):
            return None
        table = select.args["from_"].this if select.args.get("from_") else None
        largest = select.expressions[0].unalias()
        is_max = isinstance(largest, exp.Anonymous) and largest.name.lower() == "max" and len(largest.expressions) == 1
        named = largest.expressions[0] if is_max else None
        if len(select.expressions) > 1 or not isinstance(table, exp.Table) or not isinstance(named, exp.Column):
            return None
        if not has_only(table, "this", "alias") or (named.table or table.alias_or_name) != table.alias_or_name:
            return None
        spec = None if table.name.lower() in self._cte_columns else self._tables.get(table.name.lower())
        if spec is None:
            return None
        kind = {table_column.name.lower(): table_column.type for table_column in spec.columns}.get(
            named.name.lower(), ""
        )
        if kind not in ("timestamp", "date"):
            return None
        made = self._latest_subquery(_source(spec.name, [], spec), named.name, kind)
        self.latest[-1].is_explicit = True
        return made

    def _latest_subquery(self, source: QuerySource, name: str, kind: str) -> exp.Expr:
        if source.table is not None:
            table, read = self._read(source.table, source.table.name, only_newest=True)
            value = read.read_column(name)
        else:
            table, value = exp.Table(this=quoted_identifier(source.cte_name)), column(name, kind=kind)
        assert value is not None  # noqa: S101  -- it was found there
        largest = call("max", value, kind=kind)
        largest.meta["use"] = "aggregate"
        projection = with_kind(exp.Alias(this=largest, alias=quoted_identifier("latest")), kind)
        made = with_kind(exp.Subquery(this=exp.Select(expressions=[projection], from_=exp.From(this=table))), kind)
        made.meta["latest"] = len(self.latest)
        self.latest.append(LatestSubquery(made, source.table, kind))
        return made


def contains_aggregate(node: exp.Expr) -> bool:
    """Whether an expression aggregates rows; not with a window, not in a subquery of its own."""
    stop = exp.Query
    nodes = node.walk(prune=lambda child: isinstance(child, stop) or child.meta.get("use") == "window")
    return any(child.meta.get("use") == "aggregate" for child in nodes)


def _prefer_aggregates(part: exp.Expr, scope: Scope) -> None:
    """In HAVING and QUALIFY a name means SELECT's aggregate of that name, even where a column has that name too."""
    nodes = part.walk(prune=lambda child: isinstance(child, exp.Query | exp.Anonymous))
    for each in [reference for reference in nodes if isinstance(reference, exp.Column) and not reference.table]:
        value = scope.aliases.get(each.name.lower())
        if value is not None and (contains_aggregate(value) or contains_window(value)):
            made = paren(value.copy())
            made.meta["bound"] = True
            each.replace(made)


def contains_window(node: exp.Expr) -> bool:
    return any(isinstance(child, exp.Window) for child in node.walk(prune=lambda child: isinstance(child, exp.Query)))


def _present_args(node: exp.Expr) -> list[str]:
    return [name for name, value in node.args.items() if value not in (None, False, [], "")]


def _is_cross(join: exp.Expr) -> bool:
    return join.args.get("on") is None and not join.args.get("using") and not join.args.get("side")


def _source(alias: str, given: ColumnTypes, table: TableSpec | None = None, named: str = "") -> QuerySource:
    return QuerySource(alias, {name.lower(): (name, kind) for name, kind in given}, table, named)


def _alias(node: exp.Expr, default: str = "") -> tuple[str, list[str]]:
    alias = node.args.get("alias")
    if alias is None:
        return default, []
    if not isinstance(alias, exp.TableAlias):
        raise refused_error(node)
    require_only(alias, "this", "columns")
    columns = [identifier.name for identifier in alias.args.get("columns") or []]
    return (alias.name or default), columns


def _make_alias(name: str, columns: list[str] | None = None) -> exp.TableAlias:
    return exp.TableAlias(
        this=quoted_identifier(name), columns=[quoted_identifier(column_name) for column_name in columns or []]
    )


def _apply_names(given: ColumnTypes, names: list[str], owner: str) -> ColumnTypes:
    if not names:
        return given
    if len(names) != len(given):
        raise QueryError(f"{owner} has {len(given)} columns and {len(names)} names for them", expected="one for each")
    return [(name, kind) for name, (_, kind) in zip(names, given, strict=True)]


def _check_ordinal(node: exp.Expr, most: int, where: str) -> None:
    if not 1 <= int(node.name) <= most:
        raise QueryError(f"{where} {node.name} is out of range{location_text(node)}", expected=f"1 to {most}")


def _ordinal(outputs: ColumnTypes, node: exp.Expr) -> tuple[str, str, str]:
    name, kind = outputs[int(node.name) - 1]
    return name, "", kind
