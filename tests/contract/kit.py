"""A store under test, whichever it is: make tables, send records, wait until they are there, ask."""

import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb

import riverrun as rr
from contract.rows import Sent
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.model.table import TableSpec
from riverrun.store.contract import QueryLimits, Store

# A Druid that was just killed takes a minute to come back.
MOST_SECONDS = 150.0
ALL = QueryLimits(rows=1_000_000, seconds=60)


class Kit(ABC):
    """One store of one app, with topics of its own."""

    name: str
    # Whether it keeps decimals as they are.
    exact_decimals = True

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.app = f"contract{secrets.token_hex(4)}"
        self.sent: dict[str, list[Sent]] = {}
        self.specs: dict[str, TableSpec] = {}
        self.store = self.make()
        self.store.open()

    @abstractmethod
    def make(self) -> Store:
        """The store, not opened; called again after a restart."""

    @abstractmethod
    def crash(self) -> None:
        """End what does the ingest, as kill -9 would, and let it come back."""

    def reopen(self) -> None:
        self.store.close()
        self.store = self.make()
        self.store.open()

    def close(self) -> None:
        for name in list(self.store.tables):
            self.store.remove(name)
        self.store.close()

    def table(self, spec: TableSpec, partitions: int = 2) -> TableSpec:
        """Make the topic and the table; the topic has a name of its own."""
        topic = f"{self.app}-{spec.topic}"
        Admin(self.connection).create_topic(topic, partitions=partitions, replicas=0, config={"retention.ms": "-1"})
        return self.apply(replace(spec, topic=topic))

    def apply(self, *specs: TableSpec) -> TableSpec:
        self.store.apply(specs)
        for spec in specs:
            self.specs[spec.name] = spec
        return specs[-1]

    def send(self, table: str, records: Iterable[Sent]) -> None:
        listed = list(records)
        with rr.Producer(self.connection) as producer:
            for each in listed:
                producer.send_soon(self.specs[table].topic, each.value, key=each.key)
        self.sent.setdefault(table, []).extend(listed)

    def settle(self, *names: str) -> None:
        """Wait until the tables have all that was sent."""
        deadline = time.monotonic() + MOST_SECONDS
        for name in names or tuple(self.specs):
            wanted = len(self.expected(name))
            last = ""
            while True:
                standing = next((each for each in self.store.table_statuses() if each.table == name), None)
                try:
                    rows = self.ask(f"select count(*) as n from {name}")[0]["n"] if standing else -1  # noqa: S608
                except rr.RiverrunError as error:
                    rows, last = -1, str(error)
                if rows == wanted and standing is not None and standing.lag == 0:
                    break
                assert time.monotonic() < deadline, f"{name}: {rows} of {wanted} rows, {standing}, {last}"
                time.sleep(0.2)

    def ask(self, sql: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.store.query(sql, ALL).rows.to_pylist()
        return rows

    # --- what is right ---

    def expected(self, table: str) -> list[dict[str, Any]]:
        """The rows a table must have, by plain Python."""
        spec = self.specs[table]
        rows = [_flat(spec, each.row) for each in self.sent.get(table, [])]
        if not spec.upserts:
            return rows
        return list({tuple(row[name] for name in spec.key): row for row in rows}.values())

    def answer(self, sql: str) -> list[dict[str, Any]]:
        """What a plain DuckDB answers over those rows."""
        with duckdb.connect() as plain:
            plain.execute("set timezone = 'UTC'")
            # riverrun's SQL: NULL is the smallest value, and `at` is a name like any other.
            plain.execute("set default_null_order = 'nulls_first_on_asc_last_on_desc'")
            sql = re.sub(r"\bat\b", '"at"', sql)
            for name, spec in self.specs.items():
                columns = ", ".join(f'"{column.name}" {_type(column.type)}' for column in spec.columns)
                plain.execute(f'create table "{name}" ({columns})')
                rows = [[row[column.name] for column in spec.columns] for row in self.expected(name)]
                if rows:
                    marks = ", ".join("?" * len(spec.columns))
                    plain.executemany(f'insert into "{name}" values ({marks})', rows)  # noqa: S608
            if "latest" in sql and (table := re.search(r"from (\w+)", sql)):
                sql = re.sub(r"(\w+) ([=>]) latest\b", rf"\1 \2 (select max(\1) from {table[1]})", sql)  # noqa: S608
            found: list[dict[str, Any]] = plain.sql(sql).to_arrow_table().to_pylist()
            return found


def _type(kind: str) -> str:
    return {"text": "varchar", "timestamp": "timestamptz", "json": "varchar"}.get(kind, kind)


def _flat(spec: TableSpec, row: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for column in spec.columns:
        value: Any = row
        for step in column.path:
            value = None if value is None else value.get(step)
        if column.type == "json" and value is not None:
            value = _json(value)
        found[column.name] = value
    return found


def _json(value: object) -> str:
    import json

    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def same(left: Sequence[dict[str, Any]], right: Sequence[dict[str, Any]], *, ordered: bool) -> str:
    """Empty when both are the same rows, else the first difference."""
    ours, theirs = [_comparable(each) for each in left], [_comparable(each) for each in right]
    if not ordered:
        ours, theirs = sorted(ours, key=repr), sorted(theirs, key=repr)
    if len(ours) != len(theirs):
        return f"{len(ours)} rows, expected {len(theirs)}"
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if one.keys() != other.keys():
            return f"columns {list(one)}, expected {list(other)}"
        for name, value in one.items():
            if not _equal(value, other[name]):
                return f"row {number}, {name}: {value!r}, expected {other[name]!r}"
    return ""


def _equal(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 1e-9 * max(1.0, abs(one), abs(other))
    return type(one) is type(other) and one == other


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _value(value) for name, value in row.items()}


def _value(value: Any) -> Any:
    """Numbers that are not whole as floats: a store may have them as decimals; times in UTC."""
    if isinstance(value, Decimal):
        return float(value) if value != value.to_integral_value() or value.as_tuple().exponent else int(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, date):
        return value.isoformat()
    return value
