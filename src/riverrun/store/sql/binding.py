"""Questions and what they read from: tables, names of WITH, subqueries; what `*`, aliases and `latest` mean.

The tree is changed in place: every column says whose it is, every output has a name, and what the text left to be guessed is
written out. What is left is a plain SELECT that DuckDB runs as it is and that can be translated for Druid.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from riverrun.errors import QueryError, QueryRefusedError
from riverrun.model.table import TableSpec
from riverrun.store.sql import kinds
from riverrun.store.sql.expressions import Expressions
from riverrun.store.sql.scope import Scope, Source, unknown_table
from riverrun.store.sql.series import row_count
from riverrun.store.sql.trees import (
    call,
    column,
    has_only,
    is_whole,
    kind_of,
    listed,
    only,
    paren,
    place_of,
    quoted,
    refused,
    shown,
    with_kind,
)

Columns = list[tuple[str, str]]
MOST_MADE_ROWS = 100_000
_JOINS = {"", "LEFT", "RIGHT", "FULL"}


@dataclass
class Read:
    """A stored table that a question reads. Its nodes in the tree have the read's number in their meta, as copies
    have too."""

    source: Source
    spec: TableSpec
    # Only for its newest value.
    newest: bool = False


@dataclass
class Newest:
    """One `latest`: the subquery in its place, which has its number in its meta. No table: the newest of a name of WITH."""

    node: exp.Expr
    table: TableSpec | None
    kind: str
    # The question has the subquery itself, anywhere. Where there is no newest value, it stays.
    spelt: bool = False


@dataclass
class Bound:
    tree: exp.Expr
    outputs: Columns
    reads: list[Read] = field(default_factory=list)
    latest: list[Newest] = field(default_factory=list)


def bind(tree: exp.Expr, tables: Mapping[str, TableSpec]) -> Bound:
    """Bind a whole question."""
    binder = _Binder(tables)
    while isinstance(tree, exp.Subquery) and set(_given(tree)) == {"this"}:
        tree = tree.this
    outputs = binder.query(tree, None, {})
    return Bound(tree, outputs, binder.reads, binder.latest)


class _Binder:
    def __init__(self, tables: Mapping[str, TableSpec]) -> None:
        self.reads: list[Read] = []
        self.latest: list[Newest] = []
        self._tables = {name.lower(): spec for name, spec in tables.items()}
        self._sources: list[Source] = []
        self._expressions = Expressions(self._subquery, self._newest, self._spelt)
        # The names of WITH around the place that is bound now.
        self._names: dict[str, Columns] = {}

    def query(self, node: exp.Expr, outer: Scope | None, names: dict[str, Columns]) -> Columns:
        before, self._names = self._names, {**names, **self._with(node, outer, names)}
        try:
            if isinstance(node, exp.Select):
                return self._select(node, outer)
            if isinstance(node, exp.SetOperation):
                return self._set_operation(node, outer)
            if isinstance(node, exp.Subquery):
                only(node, "this")
                return self.query(node.this, outer, self._names)
        finally:
            self._names = before
        raise refused(node)

    def _subquery(self, node: exp.Expr, scope: Scope) -> list[str]:
        return [kind for _, kind in self.query(node, scope, self._names)]

    def _with(self, node: exp.Expr, outer: Scope | None, names: dict[str, Columns]) -> dict[str, Columns]:
        found = node.args.get("with_")
        if found is None:
            return {}
        if found.args.get("recursive"):
            raise QueryRefusedError("WITH RECURSIVE is refused: it may never end", hint="Leave RECURSIVE out")
        only(found, "expressions")
        made: dict[str, Columns] = {}
        for each in found.expressions:
            only(each, "this", "alias", "materialized")
            each.set("materialized", None)
            name, columns = _alias(each)
            if name.lower() in made:
                raise QueryError(f"WITH has two parts called {name}")
            given = self.query(each.this, outer, {**names, **made})
            made[name.lower()] = _renamed(given, columns, name)
            # Written out, so that a store that spells names its own way reads them as they are said here.
            each.set("alias", exp.TableAlias(this=quoted(name), columns=[quoted(one) for one, _ in made[name.lower()]]))
        return made

    # One SELECT

    def _select(self, node: exp.Select, outer: Scope | None) -> Columns:
        only(node, "with_", "expressions", "distinct", "from_", "joins", "where", "group", "having", "qualify",
             "windows", "order", "limit", "offset")  # fmt: skip
        scope = Scope(outer)
        self._from(node, scope)
        for each in node.args.get("windows") or []:
            scope.windows[each.this.name.lower()] = each
        node.set("windows", None)
        outputs = self._outputs(node, scope)
        self._distinct(node, scope)
        where = node.args.get("where")
        if where is not None:
            only(where, "this")
            where.set("this", self._expressions.bind(where.this, scope))
        self._group(node, scope)
        for name in ("having", "qualify"):
            part = node.args.get(name)
            if part is not None:
                only(part, "this")
                _use_aggregates(part, scope)
                part.set("this", self._expressions.bind(part.this, scope))
        self._order(node, scope, outputs)
        return outputs

    def _outputs(self, node: exp.Select, scope: Scope) -> Columns:
        made: list[exp.Expr] = []
        outputs: Columns = []
        taken: set[str] = set()
        for name, value in self._projections(node, scope):
            unique, count = name, 0
            while unique.lower() in taken:
                count += 1
                unique = f"{name}_{count}"
            taken.add(unique.lower())
            made.append(with_kind(exp.Alias(this=value, alias=quoted(unique)), kind_of(value)))
            outputs.append((unique, kind_of(value)))
            scope.aliases.setdefault(name.lower(), value)
        if not made:
            raise QueryError("SELECT names no column", expected="at least one, or *")
        node.set("expressions", made)
        return outputs

    def _projections(self, node: exp.Select, scope: Scope) -> list[tuple[str, exp.Expr]]:
        found: list[tuple[str, exp.Expr]] = []
        for each in node.expressions:
            if isinstance(each, exp.Star):
                found += self._star(each, scope, None)
            elif isinstance(each, exp.Column) and isinstance(each.this, exp.Star):
                only(each, "this", "table")
                source = scope.sources.get(each.table.lower())
                if source is None:
                    raise unknown_table(each.table, each, [one.alias for one in scope.sources.values()])
                found += self._star(each.this, scope, source)
            elif isinstance(each, exp.Alias):
                only(each, "this", "alias")
                value = self._expressions.bind(each.this, scope)
                found.append((each.alias, value))
                scope.aliases.setdefault(each.alias.lower(), value)
            else:
                # Words that some dialect reserves are quoted in it; nobody wrote them so.
                name = "" if isinstance(each, exp.Column) else re.sub(r'"(\w+)"', r"\1", shown(each))
                value = self._expressions.bind(each, scope)
                found.append((name or value.name, value))
        return found

    def _star(self, node: exp.Expr, scope: Scope, of: Source | None) -> list[tuple[str, exp.Expr]]:
        only(node, "except_", "replace")
        known = {name for source in ([of] if of else scope.sources.values()) for name in source.columns}
        if not known:
            raise QueryError(f"* without a FROM{place_of(node)}")
        replaced: dict[str, exp.Expr] = {}
        for each in node.args.get("replace") or []:
            if not isinstance(each, exp.Alias):
                raise refused(node)
            replaced[each.alias.lower()] = self._expressions.bind(each.this, scope)
        left_out = {each.name.lower() for each in node.args.get("except_") or []}
        if odd := (left_out | set(replaced)) - known:
            raise QueryError(f"* has no column {min(odd)} to leave out or replace", expected=listed(sorted(known)))
        return [(name, replaced.get(name.lower(), one)) for name, one in scope.everything(of, left_out)]

    def _distinct(self, node: exp.Select, scope: Scope) -> None:
        distinct = node.args.get("distinct")
        if distinct is None:
            return
        only(distinct, "on")
        on = distinct.args.get("on")
        if on is not None:
            if not isinstance(on, exp.Tuple):
                raise refused(node)
            on.set("expressions", [self._expressions.bind(each, scope) for each in on.expressions])

    def _group(self, node: exp.Select, scope: Scope) -> None:
        group = node.args.get("group")
        if group is None:
            return
        only(group, "expressions", "all")
        if group.args.get("all"):
            group.set("all", None)
            plain = [each.this for each in node.expressions if not aggregates(each.this)]
            group.set("expressions", [each.copy() for each in plain if not isinstance(each, exp.Literal | exp.Null)])
            if not group.expressions:
                node.set("group", None)
            return
        if not group.expressions:
            raise QueryError("GROUP BY names nothing", expected="group by street, or group by all")
        group.set("expressions", [self._grouping(each, node, scope) for each in group.expressions])

    def _grouping(self, node: exp.Expr, select: exp.Select, scope: Scope) -> exp.Expr:
        if isinstance(node, exp.GroupingSets | exp.Rollup | exp.Cube):
            only(node, "expressions")
            if not node.expressions:
                raise QueryError("GROUP BY names nothing", expected="group by rollup (street, house_id)")
            node.set("expressions", [self._grouping(each, select, scope) for each in node.expressions])
            return node
        if isinstance(node, exp.Tuple):
            node.set("expressions", [self._grouping(each, select, scope) for each in node.expressions])
            return node
        if is_whole(node):
            _check_ordinal(node, len(select.expressions), "GROUP BY")
            chosen: exp.Expr = select.expressions[int(node.name) - 1].this
            return chosen.copy()
        bound = self._expressions.bind(node, scope)
        return bound.this if isinstance(bound, exp.Paren) else bound

    def _order(self, node: exp.Expr, scope: Scope, outputs: Columns) -> None:
        order = node.args.get("order")
        if order is not None:
            only(order, "expressions")
            by_name = {name.lower(): (name, kind) for name, kind in outputs}
            for each in order.expressions:
                if not isinstance(each, exp.Ordered) or isinstance(each.this, exp.Var):
                    raise refused(order)
                only(each, "this", "desc", "nulls_first")
                value = each.this
                if is_whole(value):
                    _check_ordinal(value, len(outputs), "ORDER BY")
                    each.set("this", column(*_ordinal(outputs, value)))
                elif isinstance(value, exp.Column) and not value.table and value.name.lower() in by_name:
                    name, kind = by_name[value.name.lower()]
                    each.set("this", column(name, kind=kind))
                else:
                    each.set("this", self._expressions.bind(value, scope))
        for name in ("limit", "offset"):
            part = node.args.get(name)
            if part is None:
                continue
            only(part, "expression")
            if not is_whole(part.expression):
                raise QueryError(
                    f"{name.upper()} is a number: {shown(part.expression)}{place_of(part)}", expected="limit 10"
                )

    def _set_operation(self, node: exp.SetOperation, outer: Scope | None) -> Columns:
        only(node, "this", "expression", "distinct", "with_", "order", "limit", "offset")
        left = self.query(node.this, outer, self._names)
        right = self.query(node.expression, outer, self._names)
        if len(left) != len(right):
            word = type(node).__name__.upper()
            raise QueryError(
                f"The sides of {word} have {len(left)} and {len(right)} columns", expected="as many on both"
            )
        outputs = [(name, kinds.wider((kind, other[1]))) for (name, kind), other in zip(left, right, strict=True)]
        self._order(node, Scope(), outputs)
        return outputs

    # What it reads from

    def _from(self, node: exp.Select, scope: Scope) -> None:
        found = node.args.get("from_")
        if found is None:
            if node.args.get("joins"):
                raise refused(node)
            return
        only(found, "this")
        found.set("this", self._relation(found.this, scope))
        for join in node.args.get("joins") or []:
            only(join, "this", "side", "kind", "on", "using")
            side, kind = str(join.args.get("side") or "").upper(), str(join.args.get("kind") or "").upper()
            if side not in _JOINS or kind not in ("", "INNER", "OUTER", "CROSS"):
                raise refused(join, f"{side} {kind}".strip())
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

    def _using(self, join: exp.Expr, side: str, before: list[Source], scope: Scope) -> None:
        right = list(scope.sources.values())[-1]
        conditions: list[exp.Expr] = []
        for each in join.args["using"]:
            name = each.name
            left = scope.merged.get(name.lower())
            if left is None:
                having = [one for one in before if name.lower() in one.columns]
                if len(having) > 1:
                    raise QueryError(
                        f"{name} in USING is ambiguous: {' and '.join(one.alias for one in having)} have it"
                    )
                left = having[0].read(name) if having else None
            other = right.read(name)
            if left is None or other is None:
                without = right.alias if other is None else "what is joined so far"
                raise QueryError(f"{without} has no column {name}, which USING names{place_of(each)}", column=name)
            conditions.append(with_kind(exp.EQ(this=left.copy(), expression=other), "boolean"))
            both = call("coalesce", left.copy(), other.copy(), kind=kinds.wider((kind_of(left), kind_of(other))))
            scope.merged[name.lower()] = both if side == "FULL" else other if side == "RIGHT" else left
        join.set("using", None)
        join.set("on", exp.and_(*conditions, copy=False))

    def _relation(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        if isinstance(node, exp.Table):
            return self._made(node, scope) if not isinstance(node.this, exp.Identifier) else self._table(node, scope)
        if isinstance(node, exp.Subquery):
            only(node, "this", "alias")
            if not isinstance(node.this, exp.Query):
                raise refused(node)
            given = self.query(node.this, None, self._names)
            name, columns = _alias(node, f"subquery_{len(scope.sources) + 1}")
            given = _renamed(given, columns, name)
            node.set(
                "alias",
                exp.TableAlias(this=quoted(name), columns=[quoted(one) for one, _ in given] if columns else None),
            )
            self._add(scope, _source(name, given), node)
            return node
        if isinstance(node, exp.Values):
            return self._values(node, scope)
        if isinstance(node, exp.Unnest):
            return self._unnest(node, scope)
        raise refused(node)

    def _table(self, node: exp.Table, scope: Scope) -> exp.Expr:
        if node.args.get("db") is not None or node.args.get("catalog") is not None:
            raise QueryRefusedError(
                f"{shown(node)} names a schema{place_of(node)}", expected="the name of a table alone", table=node.name
            )
        only(node, "this", "alias")
        alias, columns = _alias(node, node.name)
        lower = node.name.lower()
        if lower in self._names:
            given = _renamed(self._names[lower], columns, alias)
            self._add(scope, _source(alias, given, named=node.name), node)
            return exp.Table(this=quoted(node.name), alias=_alias_of(alias, columns))
        spec = self._tables.get(lower)
        if spec is None:
            raise unknown_table(node.name, node, sorted([*(each.name for each in self._tables.values()), *self._names]))
        if columns:
            raise refused(node, "columns of its own")
        made, source = self._read(spec, alias)
        self._add(scope, source, node)
        return made

    def _add(self, scope: Scope, source: Source, node: exp.Expr) -> None:
        source.number = len(self._sources)
        self._sources.append(source)
        scope.add(source, node)

    def _read(self, spec: TableSpec, alias: str, *, newest: bool = False) -> tuple[exp.Expr, Source]:
        source = _source(alias, [(each.name, each.type) for each in spec.columns], spec)
        made = exp.Table(this=quoted(spec.name), alias=_alias_of(alias))
        made.meta["read"] = len(self.reads)
        self.reads.append(Read(source, spec, newest))
        return made, source

    def _made(self, node: exp.Table, scope: Scope) -> exp.Expr:
        """range(…) and generate_series(…), whose bounds are written out and not too far apart."""
        only(node, "this", "alias")
        function = node.this
        name = function.name.lower() if isinstance(function, exp.Anonymous) else ""
        if name not in ("range", "generate_series"):
            raise QueryRefusedError(
                f"{shown(function)} cannot be read from{place_of(node)}",
                expected="a table, a name of WITH, a subquery, range(…), generate_series(…) or unnest([…])",
                function=name,
            )
        only(function, "this", "expressions")
        bound = [self._expressions.bind(each, Scope()) for each in function.expressions]
        rows, kind = row_count(bound, inclusive=name == "generate_series")
        if rows > MOST_MADE_ROWS:
            raise QueryRefusedError(
                f"{shown(function)} makes {rows} rows", expected=f"at most {MOST_MADE_ROWS}", rows=rows
            )
        alias, columns = _alias(node, name)
        given = _renamed([(name, kind)], columns, alias)
        self._add(scope, _source(alias, given), node)
        return exp.Table(this=exp.Anonymous(this=name, expressions=bound), alias=_alias_of(alias, [given[0][0]]))

    def _unnest(self, node: exp.Unnest, scope: Scope) -> exp.Expr:
        only(node, "expressions", "alias")
        lists = node.expressions
        if len(lists) != 1 or not isinstance(lists[0], exp.Array):
            raise QueryRefusedError(
                f"unnest of {shown(node)} is refused", expected="a list that is written out: unnest([1, 2, 3])"
            )
        only(lists[0], "expressions", "value_constructor", "bracket_notation")
        values = [self._expressions.bind(each, Scope()) for each in lists[0].expressions]
        lists[0].set("expressions", values)
        alias, columns = _alias(node, "unnest")
        given = _renamed([("unnest", kinds.wider(kind_of(each) for each in values))], columns, alias)
        node.set("alias", _alias_of(alias, [given[0][0]]))
        self._add(scope, _source(alias, given), node)
        return node

    def _values(self, node: exp.Values, scope: Scope) -> exp.Expr:
        only(node, "expressions", "alias")
        alias, columns = _alias(node, "")
        rows = [list(each.expressions) for each in node.expressions if isinstance(each, exp.Tuple)]
        if not alias or not rows or len(rows) != len(node.expressions) or any(len(row) != len(columns) for row in rows):
            raise QueryError(
                "VALUES needs a name for itself and for each column", expected="(values (1, 'a')) as t(number, word)"
            )
        for row, each in zip(rows, node.expressions, strict=True):
            each.set("expressions", [self._expressions.bind(one, Scope()) for one in row])
        found = [kinds.wider(kind_of(each.expressions[at]) for each in node.expressions) for at in range(len(columns))]
        node.set("alias", _alias_of(alias, columns))
        self._add(scope, _source(alias, list(zip(columns, found, strict=True))), node)
        return node

    # latest

    def _newest(self, node: exp.Expr, scope: Scope) -> None:
        """`column = latest`: put the newest value of that column, in its own table, in the place of the word."""
        inside = [
            each for each in node.walk(prune=lambda one: isinstance(one, exp.Query)) if isinstance(each, exp.Column)
        ]
        words = [
            each for each in inside if each.name.lower() == "latest" and not each.table and scope.look(each) is None
        ]
        if not words:
            return
        others = {shown(each).lower(): each for each in inside if each not in words}
        if len(others) != 1:
            raise QueryError(
                f"It is not clear what is latest in {shown(node)}{place_of(node)}",
                expected="one column beside it: minute = latest",
                found=f"{len(others)} columns",
            )
        named = next(iter(others.values()))
        lower = named.name.lower()
        if lower in scope.merged and not named.table:
            having = [each.alias for each in scope.sources.values() if lower in each.columns]
            raise QueryError(
                f"latest of {named.name} is ambiguous: {' and '.join(having)} have it",
                hint=f"Say which: {having[0]}.{named.name}",
            )
        found = scope.find(named)
        number = found.meta.get("source", -1)
        source = self._sources[number] if number >= 0 else None
        if source is None or (source.table is None and not source.named):
            raise QueryError(
                f"latest of {shown(named)} is not known{place_of(named)}: it is not a column of a table",
                hint="Give the subquery a name: with newest as (select …) select … from newest where minute = latest",
            )
        for word in words:
            word.replace(self._newest_of(source, found.name, kind_of(found)))

    def _spelt(self, node: exp.Expr) -> exp.Expr | None:
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
        spec = None if table.name.lower() in self._names else self._tables.get(table.name.lower())
        if spec is None:
            return None
        kind = {each.name.lower(): each.type for each in spec.columns}.get(named.name.lower(), "")
        if kind not in ("timestamp", "date"):
            return None
        made = self._newest_of(_source(spec.name, [], spec), named.name, kind)
        self.latest[-1].spelt = True
        return made

    def _newest_of(self, source: Source, name: str, kind: str) -> exp.Expr:
        if source.table is not None:
            table, read = self._read(source.table, source.table.name, newest=True)
            value = read.read(name)
        else:
            table, value = exp.Table(this=quoted(source.named)), column(name, kind=kind)
        assert value is not None  # noqa: S101  -- it was found there
        largest = call("max", value, kind=kind)
        largest.meta["use"] = "aggregate"
        projection = with_kind(exp.Alias(this=largest, alias=quoted("latest")), kind)
        made = with_kind(exp.Subquery(this=exp.Select(expressions=[projection], from_=exp.From(this=table))), kind)
        made.meta["latest"] = len(self.latest)
        self.latest.append(Newest(made, source.table, kind))
        return made


def aggregates(node: exp.Expr) -> bool:
    """Whether an expression counts, adds up or the like over rows; not by a window, not in a subquery of its own."""
    stop = exp.Query
    found = node.walk(prune=lambda each: isinstance(each, stop) or each.meta.get("use") == "window")
    return any(each.meta.get("use") == "aggregate" for each in found)


def _use_aggregates(part: exp.Expr, scope: Scope) -> None:
    """In HAVING and QUALIFY a name means what SELECT has added up under it, even where a column has that name too."""
    found = part.walk(prune=lambda each: isinstance(each, exp.Query | exp.Anonymous))
    for each in [each for each in found if isinstance(each, exp.Column) and not each.table]:
        value = scope.aliases.get(each.name.lower())
        if value is not None and (aggregates(value) or windows(value)):
            made = paren(value.copy())
            made.meta["bound"] = True
            each.replace(made)


def windows(node: exp.Expr) -> bool:
    return any(isinstance(each, exp.Window) for each in node.walk(prune=lambda each: isinstance(each, exp.Query)))


def _given(node: exp.Expr) -> list[str]:
    return [name for name, value in node.args.items() if value not in (None, False, [], "")]


def _is_cross(join: exp.Expr) -> bool:
    return join.args.get("on") is None and not join.args.get("using") and not join.args.get("side")


def _source(alias: str, given: Columns, table: TableSpec | None = None, named: str = "") -> Source:
    return Source(alias, {name.lower(): (name, kind) for name, kind in given}, table, named)


def _alias(node: exp.Expr, default: str = "") -> tuple[str, list[str]]:
    alias = node.args.get("alias")
    if alias is None:
        return default, []
    if not isinstance(alias, exp.TableAlias):
        raise refused(node)
    only(alias, "this", "columns")
    columns = [each.name for each in alias.args.get("columns") or []]
    return (alias.name or default), columns


def _alias_of(name: str, columns: list[str] | None = None) -> exp.TableAlias:
    return exp.TableAlias(this=quoted(name), columns=[quoted(each) for each in columns or []])


def _renamed(given: Columns, names: list[str], of: str) -> Columns:
    if not names:
        return given
    if len(names) != len(given):
        raise QueryError(f"{of} has {len(given)} columns and {len(names)} names for them", expected="one for each")
    return [(name, kind) for name, (_, kind) in zip(names, given, strict=True)]


def _check_ordinal(node: exp.Expr, most: int, where: str) -> None:
    if not 1 <= int(node.name) <= most:
        raise QueryError(f"{where} {node.name} is out of range{place_of(node)}", expected=f"1 to {most}")


def _ordinal(outputs: Columns, node: exp.Expr) -> tuple[str, str, str]:
    name, kind = outputs[int(node.name) - 1]
    return name, "", kind
