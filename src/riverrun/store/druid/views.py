"""A table as Druid must be asked for it: the rows that count, with the columns and types of the table.

Druid keeps every record as a row. Where the table upserts, the newest version of each key is found by the question itself:
grouped by the key, every column's value is the one with the highest `__version`. The planner leaves out columns that the
question does not use, and takes conditions on the key's columns, such as a time, down to the segments.
"""

from collections.abc import Container

from riverrun.model.table import Column, TableSpec
from riverrun.store.druid.spec import IDENTITY, VERSION, druid_type

# How many bytes of a text survive LATEST_BY. Each group has this much room for it, whether it is used or not.
TEXT_BYTES = 1024
_SQL_TYPES = {"string": "VARCHAR", "long": "BIGINT", "double": "DOUBLE"}
_NEWEST = f'MILLIS_TO_TIMESTAMP("{VERSION}")'


def relation(
    table: TableSpec, datasource: str, known: Container[str] | None = None, *, twins: bool = False, raw: bool = False
) -> str:
    """The rows of a table, as SQL to stand in a FROM. `known` are the columns Druid has seen so far (None: all of them): it
    does not know a column, or a table, before the first row has it. `twins`: a record may be there twice. `raw`: columns
    as Druid stores them, for a question that is written for that; the row's time is `__time` then."""

    def show(column: Column, value: str) -> str:
        return _as_stored(table, column, value) if raw else _shown(table, column, value)

    if known is not None and "__time" not in known:
        nothing = ", ".join(show(each, f"CAST(NULL AS {_kind(table, each)})") for each in table.columns)
        return f"SELECT {nothing} FROM (VALUES (0)) AS nothing(x) WHERE x = 1"  # noqa: S608
    source = quoted(datasource)
    if table.upserts:
        columns = _newest_of(table, table.key, f"LATEST_BY({{}}, {_NEWEST}{{}})", known)
        groups = [_place(table, each) for each in table.key if known is None or each == table.time or each in known]
    elif twins:
        columns, groups = _newest_of(table, (), "ANY_VALUE({}{})", known), [quoted(IDENTITY)]
    else:
        columns, groups = [_stored(table, each, known) for each in table.columns], []
    listed = ", ".join(show(each, value) for each, value in zip(table.columns, columns, strict=True))
    # Upserted without a key there is one row, or none while there are no records.
    tail = f" GROUP BY {', '.join(groups)}" if groups else " HAVING COUNT(*) > 0" if table.upserts else ""
    return f"SELECT {listed} FROM {source}{tail}"  # noqa: S608


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


def count_of_keys(table: TableSpec, datasource: str) -> str:
    """How many rows an upserted table has."""
    if not table.key:
        return f"SELECT CASE WHEN COUNT(*) > 0 THEN 1 ELSE 0 END FROM {quoted(datasource)}"  # noqa: S608
    key = ", ".join(_place(table, each) for each in table.key)
    return f"SELECT COUNT(*) FROM (SELECT {key} FROM {quoted(datasource)} GROUP BY {key})"  # noqa: S608


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _newest_of(table: TableSpec, key: tuple[str, ...], pick: str, known: Container[str] | None) -> list[str]:
    """Each column's value of a group's rows. One that Druid has not seen yet is a constant, and needs no picking."""
    found = []
    for each in table.columns:
        stored = _stored(table, each, known)
        size = f", {TEXT_BYTES}" if _kind(table, each) == "VARCHAR" else ""
        if each.name in key or stored.startswith("CAST(NULL"):
            found.append(stored)
        elif each.name == table.time:
            # Druid makes text of a newest TIMESTAMP.
            found.append(f"MILLIS_TO_TIMESTAMP({pick.format(f'TIMESTAMP_TO_MILLIS({stored})', '')})")
        else:
            found.append(pick.format(stored, size))
    return found


def _place(table: TableSpec, name: str) -> str:
    return '"__time"' if name == table.time else quoted(name)


def _kind(table: TableSpec, column: Column) -> str:
    return "TIMESTAMP" if column.name == table.time else _SQL_TYPES[druid_type(column)]


def _stored(table: TableSpec, column: Column, known: Container[str] | None) -> str:
    if column.name != table.time and known is not None and column.name not in known:
        return f"CAST(NULL AS {_kind(table, column)})"
    return _place(table, column.name)


def _shown(table: TableSpec, column: Column, value: str) -> str:
    """The value with the column's own type and name."""
    if column.type == "timestamp" and column.name != table.time:
        value = f"MILLIS_TO_TIMESTAMP({value})"
    elif column.type == "boolean":
        value = f"({value} = 1)"
    elif column.type == "date":
        value = f"CAST({value} AS DATE)"
    return f"{value} AS {quoted(column.name)}"


def _as_stored(table: TableSpec, column: Column, value: str) -> str:
    return f"{value} AS {_place(table, column.name)}"
