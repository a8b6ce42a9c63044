"""Translates a bound query to DuckDB."""

from collections.abc import Callable

from sqlglot import exp

from riverrun.model.table import TableSpec
from riverrun.store.sql.ast_nodes import kind_of, quoted_identifier
from riverrun.store.sql.binder import BoundQuery
from riverrun.store.sql.value_types import is_number

# On a decimal these would return a decimal, rounded to its scale; on a bigint one of them would return a bigint.
_DOUBLES = frozenset({"approx_quantile", "median", "quantile_cont"})


def write_duckdb_sql(bound: BoundQuery, name_of: Callable[[TableSpec], str]) -> str:
    from riverrun.store.sql.prepared_query import to_sql

    for node in list(bound.tree.find_all(exp.AtTimeZone, exp.Anonymous, exp.Table)):
        if isinstance(node, exp.Table):
            if "read" in node.meta:
                node.set("this", quoted_identifier(name_of(bound.reads[node.meta["read"]].spec)))
        elif isinstance(node, exp.AtTimeZone):
            # However the store keeps a time, it is an instant before it is converted to a time zone.
            to = exp.DType.TIMESTAMP if kind_of(node.this) == "local" else exp.DType.TIMESTAMPTZ
            node.set("this", exp.Cast(this=node.this.copy(), to=exp.DataType(this=to)))
        elif node.name in _DOUBLES and is_number(kind_of(node.expressions[0])):
            double = exp.DataType(this=exp.DType.DOUBLE)
            node.set("expressions", [exp.Cast(this=node.expressions[0].copy(), to=double), *node.expressions[1:]])
    return to_sql(bound.tree, "duckdb")
