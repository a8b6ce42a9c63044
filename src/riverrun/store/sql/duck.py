"""A bound question as DuckDB runs it."""

from collections.abc import Callable

from sqlglot import exp

from riverrun.model.table import TableSpec
from riverrun.store.sql.binding import Bound
from riverrun.store.sql.trees import kind_of, quoted


def duckdb_text(bound: Bound, name_of: Callable[[TableSpec], str]) -> str:
    from riverrun.store.sql.prepare import written

    for node in list(bound.tree.find_all(exp.AtTimeZone, exp.Anonymous, exp.Table)):
        if isinstance(node, exp.Table):
            if "read" in node.meta:
                node.set("this", quoted(name_of(bound.reads[node.meta["read"]].spec)))
        elif isinstance(node, exp.AtTimeZone):
            # Whichever way the store keeps a time, it is a moment before it is the clock of a place.
            to = exp.DType.TIMESTAMP if kind_of(node.this) == "local" else exp.DType.TIMESTAMPTZ
            node.set("this", exp.Cast(this=node.this.copy(), to=exp.DataType(this=to)))
        elif node.name == "approx_quantile":
            double = exp.DataType(this=exp.DType.DOUBLE)
            node.set("expressions", [exp.Cast(this=node.expressions[0].copy(), to=double), node.expressions[1]])
    return written(bound.tree, "duckdb")
