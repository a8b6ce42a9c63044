"""What `standing` asks of Druid: how many rows a table has, and what cannot be told apart in it.

The text of users' questions is written by store/sql; how a table's rows are picked there is in store/sql/druid_tables.py.
"""

from riverrun.model.table import TableSpec
from riverrun.store.druid.spec import IDENTITY, VERSION


def count(table: TableSpec, datasource: str, *, twins: bool) -> str:
    """How many rows a table has. `twins`: a record may be there twice."""
    source = quoted(datasource)
    if table.upserts and not table.key:
        return f"SELECT CASE WHEN COUNT(*) > 0 THEN 1 ELSE 0 END FROM {source}"  # noqa: S608
    if table.upserts:
        key = ", ".join(_place(table, each) for each in table.key)
        return f"SELECT COUNT(*) FROM (SELECT {key} FROM {source} GROUP BY {key})"  # noqa: S608
    return f"SELECT COUNT({f'DISTINCT {quoted(IDENTITY)}' if twins else '*'}) FROM {source}"  # noqa: S608


def newest(datasource: str) -> str:
    """The newest row's own time, in milliseconds."""
    return f"SELECT TIMESTAMP_TO_MILLIS(MAX(__time)) FROM {quoted(datasource)}"  # noqa: S608


def identified(datasource: str) -> str:
    """1 when a row has an identity of its writer's, which a copy of it would share."""
    return f'SELECT 1 FROM {quoted(datasource)} WHERE "{IDENTITY}" >= 0 LIMIT 1'  # noqa: S608


def ties(table: TableSpec, datasource: str) -> str:
    """How many keys have two newest records of the same version: which of them is shown is not known."""
    key = [_place(table, each) for each in table.key]
    inner = ", ".join([*(f"{each} AS k{at}" for at, each in enumerate(key)), f'"{VERSION}" AS v', "COUNT(*) AS n"])
    groups = ", ".join([*key, f'"{VERSION}"'])
    outer = f"GROUP BY {', '.join(f'k{at}' for at in range(len(key)))}" if key else ""
    return (
        "SELECT COUNT(*) FROM (SELECT LATEST_BY(n, MILLIS_TO_TIMESTAMP(v)) AS n FROM "  # noqa: S608
        f"(SELECT {inner} FROM {quoted(datasource)} GROUP BY {groups}) {outer}) WHERE n > 1"
    )


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _place(table: TableSpec, name: str) -> str:
    return '"__time"' if name == table.time else quoted(name)
