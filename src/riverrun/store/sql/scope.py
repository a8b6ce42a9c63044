"""Which names a place in a question can use, and the errors when it uses others."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from sqlglot import exp

from riverrun.errors import QueryError
from riverrun.model.near import nearest
from riverrun.model.table import TableSpec
from riverrun.store.sql.trees import column, listed, paren, place_of


@dataclass
class Source:
    """A table, a name of WITH or a subquery in FROM. `columns`: name in small letters → name and type."""

    alias: str
    columns: dict[str, tuple[str, str]]
    table: TableSpec | None = None
    # A name of WITH can be read again for `latest`; a subquery cannot be named.
    named: str = ""
    # Its place in the binder's list: trees are copied, and what hangs on them with them.
    number: int = -1
    used: set[str] = field(default_factory=set)

    def read(self, name: str) -> exp.Expr | None:
        """The column, as this source gives it."""
        found = self.columns.get(name.lower())
        if found is None:
            return None
        self.used.add(found[0])
        made = column(found[0], self.alias, found[1])
        made.meta["source"] = self.number
        return made


@dataclass
class Scope:
    """The sources of one SELECT, inside the scope of the question around it."""

    outer: "Scope | None" = None
    sources: dict[str, Source] = field(default_factory=dict)
    # Columns of USING are one, whichever side they are read from.
    merged: dict[str, exp.Expr] = field(default_factory=dict)
    # What SELECT has named so far: usable where no column has that name.
    aliases: dict[str, exp.Expr] = field(default_factory=dict)
    windows: dict[str, exp.Expr] = field(default_factory=dict)

    def add(self, source: Source, node: exp.Expr) -> None:
        if source.alias.lower() in self.sources:
            raise QueryError(
                f"Two tables in one FROM are called {source.alias}{place_of(node)}",
                hint=f"Give one another name: {source.alias} AS other",
            )
        self.sources[source.alias.lower()] = source

    def find(self, node: exp.Column) -> exp.Expr:
        """The column that a name means; QueryError when there is none, or more than one."""
        made = self.look(node)
        if made is None:
            raise self._unknown(node)
        return made

    def look(self, node: exp.Column) -> exp.Expr | None:
        name = node.name
        if node.table:
            scope: Scope | None = self
            while scope is not None:
                source = scope.sources.get(node.table.lower())
                if source is not None:
                    return source.read(name)
                scope = scope.outer
            return None
        if name.lower() in self.merged:
            return self.merged[name.lower()].copy()
        having = [each for each in self.sources.values() if name.lower() in each.columns]
        if len(having) > 1:
            raise QueryError(
                f"{name} is ambiguous{place_of(node)}: {' and '.join(each.alias for each in having)} have it",
                hint=f"Say which: {having[0].alias}.{name}",
                column=name,
            )
        if having:
            return having[0].read(name)
        if name.lower() in self.aliases:
            return paren(self.aliases[name.lower()].copy())
        return self.outer.look(node) if self.outer is not None else None

    def everything(self, of: Source | None = None, without: Collection[str] = ()) -> Iterable[tuple[str, exp.Expr]]:
        """What `*` means: all columns in order, those of USING once; or those of one source."""
        given: set[str] = set()
        for source in self.sources.values() if of is None else [of]:
            for lower, (name, _) in source.columns.items():
                if lower in without:
                    continue
                if lower in self.merged and of is None:
                    if lower not in given:
                        given.add(lower)
                        yield name, self.merged[lower].copy()
                    continue
                made = source.read(name)
                if made is not None:
                    yield name, made

    def _unknown(self, node: exp.Column) -> QueryError:
        if node.table and node.table.lower() not in self.sources:
            known = [each.alias for each in self.sources.values()]
            near = nearest(node.table, known)
            return QueryError(
                f"There is no {node.table} in this FROM{place_of(node)}",
                expected=listed(known) or "a FROM",
                hint=f"Did you mean {near}.{node.name}?" if near else "",
                table=node.table,
            )
        chosen = [self.sources[node.table.lower()]] if node.table else list(self.sources.values())
        known = [name for source in chosen for name, _ in source.columns.values()]
        near = nearest(node.name, [*known, *self.aliases])
        of = f" in {', '.join(each.alias for each in chosen)}" if chosen else ""
        if not known:
            return QueryError(f"There is no column {node.name} without a FROM{place_of(node)}", column=node.name)
        return QueryError(
            f"There is no column {node.name}{of}{place_of(node)}",
            expected=listed(known),
            hint=f"Did you mean {near}?" if near else "",
            column=node.name,
        )


def unknown_table(name: str, node: exp.Expr, known: list[str]) -> QueryError:
    near = nearest(name, known)
    return QueryError(
        f"There is no table {name}{place_of(node)}",
        expected=listed(known) if known else "a table, and the store has none yet",
        hint=f"Did you mean {near}?" if near else "",
        table=name,
    )
