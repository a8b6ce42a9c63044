"""Which names are visible at a position in a query, and the errors when it uses others."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from sqlglot import exp

from riverrun.errors import QueryError
from riverrun.model.suggest import nearest
from riverrun.model.table import TableSpec
from riverrun.store.sql.ast_nodes import column, join_names, location_text, paren


@dataclass
class QuerySource:
    """A table, a CTE or a subquery in FROM. `columns`: lower-case name → name and type."""

    alias: str
    columns: dict[str, tuple[str, str]]
    table: TableSpec | None = None
    # A CTE can be read again for `latest`; a subquery cannot be named.
    cte_name: str = ""
    # Its index in the binder's list: trees are copied, together with their meta.
    number: int = -1
    used_columns: set[str] = field(default_factory=set)

    def read_column(self, name: str) -> exp.Expr | None:
        """The column, as this source returns it."""
        entry = self.columns.get(name.lower())
        if entry is None:
            return None
        self.used_columns.add(entry[0])
        node = column(entry[0], self.alias, entry[1])
        node.meta["source"] = self.number
        return node


@dataclass
class Scope:
    """The sources of one SELECT, inside the scope of the outer query."""

    outer: "Scope | None" = None
    sources: dict[str, QuerySource] = field(default_factory=dict)
    # Columns of USING are one, whichever side they are read from.
    merged: dict[str, exp.Expr] = field(default_factory=dict)
    # SELECT's aliases so far: usable where no column has that name.
    aliases: dict[str, exp.Expr] = field(default_factory=dict)
    windows: dict[str, exp.Expr] = field(default_factory=dict)

    def add(self, source: QuerySource, node: exp.Expr) -> None:
        if source.alias.lower() in self.sources:
            raise QueryError(
                f"Two tables in one FROM are called {source.alias}{location_text(node)}",
                hint=f"Give one another name: {source.alias} AS other",
            )
        self.sources[source.alias.lower()] = source

    def resolve(self, node: exp.Column) -> exp.Expr:
        """The column that a name refers to; QueryError when there is none, or more than one."""
        made = self.lookup(node)
        if made is None:
            raise self._unknown_column_error(node)
        return made

    def lookup(self, node: exp.Column) -> exp.Expr | None:
        name = node.name
        if node.table:
            scope: Scope | None = self
            while scope is not None:
                source = scope.sources.get(node.table.lower())
                if source is not None:
                    return source.read_column(name)
                scope = scope.outer
            return None
        if name.lower() in self.merged:
            return self.merged[name.lower()].copy()
        matches = [candidate for candidate in self.sources.values() if name.lower() in candidate.columns]
        if len(matches) > 1:
            raise QueryError(
                f"{name} is ambiguous{location_text(node)}: "
                f"{' and '.join(candidate.alias for candidate in matches)} have it",
                hint=f"Say which: {matches[0].alias}.{name}",
                column=name,
            )
        if matches:
            return matches[0].read_column(name)
        if name.lower() in self.aliases:
            return paren(self.aliases[name.lower()].copy())
        return self.outer.lookup(node) if self.outer is not None else None

    def expand_star(
        self, source_only: QuerySource | None = None, excluded: Collection[str] = ()
    ) -> Iterable[tuple[str, exp.Expr]]:
        """The expansion of `*`: all columns in order, those of USING once; or those of one source."""
        given: set[str] = set()
        for source in self.sources.values() if source_only is None else [source_only]:
            for lower, (name, _) in source.columns.items():
                if lower in excluded:
                    continue
                if lower in self.merged and source_only is None:
                    if lower not in given:
                        given.add(lower)
                        yield name, self.merged[lower].copy()
                    continue
                made = source.read_column(name)
                if made is not None:
                    yield name, made

    def _unknown_column_error(self, node: exp.Column) -> QueryError:
        if node.table and node.table.lower() not in self.sources:
            known = [source.alias for source in self.sources.values()]
            near = nearest(node.table, known)
            return QueryError(
                f"There is no {node.table} in this FROM{location_text(node)}",
                expected=join_names(known) or "a FROM",
                hint=f"Did you mean {near}.{node.name}?" if near else "",
                table=node.table,
            )
        chosen = [self.sources[node.table.lower()]] if node.table else list(self.sources.values())
        known = [name for source in chosen for name, _ in source.columns.values()]
        near = nearest(node.name, [*known, *self.aliases])
        of = f" in {', '.join(source.alias for source in chosen)}" if chosen else ""
        if not known:
            return QueryError(f"There is no column {node.name} without a FROM{location_text(node)}", column=node.name)
        return QueryError(
            f"There is no column {node.name}{of}{location_text(node)}",
            expected=join_names(known),
            hint=f"Did you mean {near}?" if near else "",
            column=node.name,
        )


def unknown_table_error(name: str, node: exp.Expr, known: list[str]) -> QueryError:
    near = nearest(name, known)
    return QueryError(
        f"There is no table {name}{location_text(node)}",
        expected=join_names(known) if known else "a table, and the store has none yet",
        hint=f"Did you mean {near}?" if near else "",
        table=name,
    )
