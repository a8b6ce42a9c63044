"""riverrun's SQL: one read-only language for users, checked here and then translated for each store."""

from riverrun.store.sql.prepared_query import LatestValueQuery, OutputColumn, PreparedQuery, describe_tables, prepare
from riverrun.store.sql.vocabulary import sql_vocabulary

__all__ = ["LatestValueQuery", "OutputColumn", "PreparedQuery", "describe_tables", "prepare", "sql_vocabulary"]
