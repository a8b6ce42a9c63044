"""The SQL behind `table_statuses` in Druid: how many rows a table has, and how many keys are ambiguous.

Users' queries are written by store/sql; how a table's rows are picked there is in store/sql/druid_tables.py.
"""

from riverrun.model.table import TableSpec
from riverrun.store.druid.supervisor_spec import IDENTITY, VERSION


def row_count_sql(table: TableSpec, datasource: str, *, has_duplicates: bool) -> str:
    """How many rows a table has. `has_duplicates`: a record may be there twice."""
    source = quote_identifier(datasource)
    if table.upserts and not table.key:
        return f"SELECT CASE WHEN COUNT(*) > 0 THEN 1 ELSE 0 END FROM {source}"  # noqa: S608
    if table.upserts:
        key = ", ".join(_druid_column(table, name) for name in table.key)
        return f"SELECT COUNT(*) FROM (SELECT {key} FROM {source} GROUP BY {key})"  # noqa: S608
    return f"SELECT COUNT({f'DISTINCT {quote_identifier(IDENTITY)}' if has_duplicates else '*'}) FROM {source}"  # noqa: S608


def newest_time_sql(datasource: str) -> str:
    """The newest row's own time, in milliseconds."""
    return f"SELECT TIMESTAMP_TO_MILLIS(MAX(__time)) FROM {quote_identifier(datasource)}"  # noqa: S608


def has_identities_sql(datasource: str) -> str:
    """1 when a row has an identity from its writer, which a copy of it would share."""
    return f'SELECT 1 FROM {quote_identifier(datasource)} WHERE "{IDENTITY}" >= 0 LIMIT 1'  # noqa: S608


def tied_keys_sql(table: TableSpec, datasource: str) -> str:
    """How many keys have two newest records of the same version: which of them is shown is undefined."""
    key = [_druid_column(table, name) for name in table.key]
    inner = ", ".join(
        [*(f"{name} AS k{index}" for index, name in enumerate(key)), f'"{VERSION}" AS v', "COUNT(*) AS n"]
    )
    groups = ", ".join([*key, f'"{VERSION}"'])
    outer = f"GROUP BY {', '.join(f'k{index}' for index in range(len(key)))}" if key else ""
    return (
        "SELECT COUNT(*) FROM (SELECT LATEST_BY(n, MILLIS_TO_TIMESTAMP(v)) AS n FROM "  # noqa: S608
        f"(SELECT {inner} FROM {quote_identifier(datasource)} GROUP BY {groups}) {outer}) WHERE n > 1"
    )


def quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _druid_column(table: TableSpec, name: str) -> str:
    return '"__time"' if name == table.time else quote_identifier(name)
