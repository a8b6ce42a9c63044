"""An alert held against the columns it watches: what it needs to judge a row, or what is wrong with it."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, tzinfo
from typing import Any

import msgspec

from riverrun.alerts.condition import Condition, condition_of, kind_of, unknown_column
from riverrun.alerts.lookup import Lookup, lookup_of
from riverrun.alerts.template import Template, template_of
from riverrun.app import App
from riverrun.errors import DeclarationError, RiverrunError
from riverrun.model.alert import Alert, ColumnOf, zone_of
from riverrun.model.near import nearest
from riverrun.model.pipeline import Line
from riverrun.model.table import Column, TableSpec

_MOST_KEY = 200


@dataclass(frozen=True)
class Rule:
    """An alert that can be judged. `by` are the columns an episode is by."""

    alert: Alert
    table: TableSpec
    by: tuple[str, ...]
    when: Condition | None
    clear: Condition | None
    text: Template
    resolved: Template | None
    lookup: Lookup | None

    @property
    def name(self) -> str:
        return self.alert.name

    def key_of(self, row: Mapping[str, Any]) -> str:
        """What tells the episodes of this rule apart: the value itself, or the list of them."""
        values = [_text(row.get(name)) for name in self.by]
        key = values[0] if len(values) == 1 else msgspec.json.encode(values).decode() if values else ""
        if len(key) <= _MOST_KEY:
            return key
        return f"{key[: _MOST_KEY - 17]}~{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}"

    def holds(self, row: Mapping[str, Any]) -> bool:
        return self.when is None or self.when.true_of(row)

    def is_over(self, row: Mapping[str, Any]) -> bool:
        if self.clear is not None:
            return self.clear.true_of(row)
        return self.when is None or self.when.holds(row) is False

    def whole(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row with what is known of its key; where both have a column, the row's counts."""
        found = self.lookup.find(row) if self.lookup is not None else None
        return {**(found or {}), **row}

    def receivers(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Who is to be told of this row; nobody, when the column is empty."""
        to = self.alert.to
        if isinstance(to, tuple):
            return to
        if isinstance(to, ColumnOf):
            value = (self.lookup.find(row) or {}).get(to.column) if self.lookup is not None else None
        else:
            value = row.get(to)
        text = _text(value).strip()
        return (text,) if text else ()

    def zone(self, whole: Mapping[str, Any]) -> tzinfo:
        quiet = self.alert.quiet
        if quiet is None:
            return UTC
        name = quiet.zone or str(whole.get(quiet.zone_column) or "")
        return (zone_of(name) if name else None) or UTC


def _text(value: Any) -> str:
    if isinstance(value, datetime | date):
        return value.isoformat()
    return "" if value is None else str(value)


def rule_of(alert: Alert, table: TableSpec, lookups: Mapping[str, Lookup]) -> Rule:
    """The rule of an alert; DeclarationError when it does not fit the table it watches."""
    lookup = None
    if isinstance(alert.to, ColumnOf):
        lookup = lookups.get(alert.to.table)
        if lookup is None:
            raise DeclarationError(
                f"{alert} looks into {alert.to.table}, which is no table of the app",
                expected=", ".join(lookups) or "app.table(…), of which there is none",
                hint=_near(alert.to.table, lookups),
            )
        for name in lookup.key:
            if table.column(name) is None:
                raise unknown_column(f"{alert}: the key of {lookup.name}", name, _names(table.columns), table.name)
        if alert.to.column not in _names(lookup.columns):
            raise unknown_column(f"{alert}: to", alert.to.column, _names(lookup.columns), lookup.name)
    own = _names(table.columns)
    columns = [*table.columns, *(each for each in (lookup.columns if lookup else ()) if each.name not in own)]
    known = _names(columns)
    _check_named(alert, table, known)
    return Rule(
        alert,
        table,
        alert.by or _key_without_time(table),
        condition_of(alert.when, table, f"{alert}: when") if alert.when else None,
        condition_of(alert.clear, table, f"{alert}: clear") if alert.clear else None,
        template_of(alert.text, columns, f"{alert}: text", table.name),
        template_of(alert.resolved, columns, f"{alert}: resolved", table.name) if alert.resolved else None,
        lookup,
    )


def _check_named(alert: Alert, table: TableSpec, known: list[str]) -> None:
    for name in alert.by:
        if table.column(name) is None:
            raise unknown_column(f"{alert}: by", name, _names(table.columns), table.name)
    if isinstance(alert.to, str):
        column = table.column(alert.to)
        if column is None:
            raise unknown_column(f"{alert}: to", alert.to, _names(table.columns), table.name)
        if kind_of(column.type) not in ("text", "number"):
            raise DeclarationError(f"{alert}: to names {alert.to}, a {column.type}", expected="a column of text")
    if alert.quiet is not None and alert.quiet.zone_column and alert.quiet.zone_column not in known:
        raise DeclarationError(
            f"{alert}: {alert.quiet.zone_column!r} is neither a time zone nor a column of {table.name}",
            expected=f'a zone such as "Europe/Dublin", or one of {", ".join(known)}',
            hint=_near(alert.quiet.zone_column, known),
        )


def _key_without_time(table: TableSpec) -> tuple[str, ...]:
    """A window's rows have its time in their key; an episode goes on from one to the next."""
    times = {table.time, f"{table.time}_end"}
    return tuple(name for name in table.key if name not in times)


def _names(columns: Iterable[Column]) -> list[str]:
    return [each.name for each in columns]


def _near(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    return f"Did you mean {near}?" if near else ""


def rules_of(
    alerts: Iterable[Alert], tables: Mapping[str, TableSpec], lookups: Mapping[str, Lookup]
) -> tuple[list[Rule], list[tuple[Line, RiverrunError]]]:
    """All alerts of an app as rules, and what is wrong with the others, each with its line. `tables` are what can be
    watched, by the name of the stream or the topic."""
    rules: list[Rule] = []
    wrong: list[tuple[Line, RiverrunError]] = []
    for alert in alerts:
        try:
            table = tables.get(alert.watched)
            if table is None:
                raise DeclarationError(
                    f"{alert} watches {alert.watched}, which is no stream and no topic of events of the app",
                    expected=", ".join(sorted(tables)) or "a stream, of which there is none",
                    hint=_near(alert.watched, tables),
                )
            rules.append(rule_of(alert, table, lookups))
        except RiverrunError as error:
            wrong.append((alert.line, error))
    return rules, wrong


def rules_of_app(app: App, tables: Mapping[str, TableSpec]) -> tuple[list[Rule], list[tuple[Line, RiverrunError]]]:
    """The same, with the tables that the alerts look into read from their files."""
    lookups: dict[str, Lookup] = {}
    wrong: list[tuple[Line, RiverrunError]] = []
    fit: list[Alert] = []
    for alert in app.alerts.values():
        name = alert.to.table if isinstance(alert.to, ColumnOf) else ""
        try:
            if name in app.tables and name not in lookups:
                lookups[name] = lookup_of(app.tables[name], app.folder)
            topic = app.topics.get(alert.watched)
            if topic is not None and topic.registered:
                raise DeclarationError(
                    f"{alert} watches {alert.watched}, whose format is {topic.format}: alerts read plain JSON",
                    hint=f"Make a stream of {alert.watched}, and watch that",
                )
            fit.append(alert)
        except RiverrunError as error:
            wrong.append((alert.line, error))
    rules, more = rules_of(fit, tables, lookups)
    return rules, wrong + more
