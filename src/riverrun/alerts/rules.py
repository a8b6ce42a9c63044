"""Rules: alerts checked against the columns of the table they watch, ready to evaluate rows."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, tzinfo
from typing import Any

import msgspec

from riverrun.alerts.condition import RuleCondition, parse_condition, unknown_column, value_kind
from riverrun.alerts.lookup import LookupTable, load_lookup_table
from riverrun.alerts.template import Template, parse_template
from riverrun.app import App
from riverrun.errors import DeclarationError, RiverrunError
from riverrun.model.alert import Alert, ColumnLookup, zone_of
from riverrun.model.pipeline import SourceLine
from riverrun.model.suggest import nearest
from riverrun.model.table import Column, TableSpec

_MAX_KEY = 200


@dataclass(frozen=True)
class Rule:
    """An alert that is ready to evaluate rows. `by` are the columns that make an incident's key."""

    alert: Alert
    table: TableSpec
    by: tuple[str, ...]
    when: RuleCondition | None
    clear: RuleCondition | None
    text: Template
    resolved: Template | None
    lookup: LookupTable | None

    @property
    def name(self) -> str:
        return self.alert.name

    def key_of(self, row: Mapping[str, Any]) -> str:
        """The incident key of a row: the value of the `by` column, or the JSON list of several."""
        values = [_text(row.get(name)) for name in self.by]
        key = values[0] if len(values) == 1 else msgspec.json.encode(values).decode() if values else ""
        if len(key) <= _MAX_KEY:
            return key
        return f"{key[: _MAX_KEY - 17]}~{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}"

    def holds(self, row: Mapping[str, Any]) -> bool:
        return self.when is None or self.when.is_true(row)

    def is_over(self, row: Mapping[str, Any]) -> bool:
        if self.clear is not None:
            return self.clear.is_true(row)
        return self.when is None or self.when.evaluate(row) is False

    def enrich(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row with the lookup columns of its key; where both have a column, the row's wins."""
        looked_up = self.lookup.find(row) if self.lookup is not None else None
        return {**(looked_up or {}), **row}

    def receivers(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Who gets notifications about this row; nobody when the column is empty."""
        to = self.alert.to
        if isinstance(to, tuple):
            return to
        if isinstance(to, ColumnLookup):
            value = (self.lookup.find(row) or {}).get(to.column) if self.lookup is not None else None
        else:
            value = row.get(to)
        text = _text(value).strip()
        return (text,) if text else ()

    def zone(self, enriched: Mapping[str, Any]) -> tzinfo:
        quiet = self.alert.quiet
        if quiet is None:
            return UTC
        name = quiet.zone or str(enriched.get(quiet.zone_column) or "")
        return (zone_of(name) if name else None) or UTC


def _text(value: Any) -> str:
    if isinstance(value, datetime | date):
        return value.isoformat()
    return "" if value is None else str(value)


def build_rule(alert: Alert, table: TableSpec, lookups: Mapping[str, LookupTable]) -> Rule:
    """Build the rule of an alert; DeclarationError when it does not fit the table it watches."""
    lookup = None
    if isinstance(alert.to, ColumnLookup):
        lookup = lookups.get(alert.to.table)
        if lookup is None:
            raise DeclarationError(
                f"{alert} looks into {alert.to.table}, which is no table of the app",
                expected=", ".join(lookups) or "app.table(…), of which there is none",
                hint=_suggestion(alert.to.table, lookups),
            )
        for name in lookup.key:
            if table.column(name) is None:
                raise unknown_column(
                    f"{alert}: the key of {lookup.name}", name, _column_names(table.columns), table.name
                )
        if alert.to.column not in _column_names(lookup.columns):
            raise unknown_column(f"{alert}: to", alert.to.column, _column_names(lookup.columns), lookup.name)
    own = _column_names(table.columns)
    columns = [*table.columns, *(column for column in (lookup.columns if lookup else ()) if column.name not in own)]
    known = _column_names(columns)
    _check_columns(alert, table, known)
    return Rule(
        alert,
        table,
        alert.by or _key_without_time(table),
        parse_condition(alert.when, table, f"{alert}: when") if alert.when else None,
        parse_condition(alert.clear, table, f"{alert}: clear") if alert.clear else None,
        parse_template(alert.text, columns, f"{alert}: text", table.name),
        parse_template(alert.resolved, columns, f"{alert}: resolved", table.name) if alert.resolved else None,
        lookup,
    )


def _check_columns(alert: Alert, table: TableSpec, known: list[str]) -> None:
    for name in alert.by:
        if table.column(name) is None:
            raise unknown_column(f"{alert}: by", name, _column_names(table.columns), table.name)
    if isinstance(alert.to, str):
        column = table.column(alert.to)
        if column is None:
            raise unknown_column(f"{alert}: to", alert.to, _column_names(table.columns), table.name)
        if value_kind(column.type) not in ("text", "number"):
            raise DeclarationError(f"{alert}: to names {alert.to}, a {column.type}", expected="a column of text")
    if alert.quiet is not None and alert.quiet.zone_column and alert.quiet.zone_column not in known:
        raise DeclarationError(
            f"{alert}: {alert.quiet.zone_column!r} is neither a time zone nor a column of {table.name}",
            expected=f'a zone such as "Europe/Dublin", or one of {", ".join(known)}',
            hint=_suggestion(alert.quiet.zone_column, known),
        )


def _key_without_time(table: TableSpec) -> tuple[str, ...]:
    """The table's key without the window's times: an incident continues from one window to the next."""
    times = {table.time, f"{table.time}_end"}
    return tuple(name for name in table.key if name not in times)


def _column_names(columns: Iterable[Column]) -> list[str]:
    return [column.name for column in columns]


def _suggestion(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    return f"Did you mean {near}?" if near else ""


def build_rules(
    alerts: Iterable[Alert], tables: Mapping[str, TableSpec], lookups: Mapping[str, LookupTable]
) -> tuple[list[Rule], list[tuple[SourceLine, RiverrunError]]]:
    """Build the rules of an app's alerts, and the problems of those that are wrong, each with its line. `tables` can be
    watched, by the name of the stream or the topic."""
    rules: list[Rule] = []
    problems: list[tuple[SourceLine, RiverrunError]] = []
    for alert in alerts:
        try:
            table = tables.get(alert.source)
            if table is None:
                raise DeclarationError(
                    f"{alert} watches {alert.source}, which is no stream and no topic of events of the app",
                    expected=", ".join(sorted(tables)) or "a stream, of which there is none",
                    hint=_suggestion(alert.source, tables),
                )
            rules.append(build_rule(alert, table, lookups))
        except RiverrunError as error:
            problems.append((alert.line, error))
    return rules, problems


def build_app_rules(
    app: App, tables: Mapping[str, TableSpec]
) -> tuple[list[Rule], list[tuple[SourceLine, RiverrunError]]]:
    """`build_rules` for an app, with the lookup tables read from their files."""
    lookups: dict[str, LookupTable] = {}
    problems: list[tuple[SourceLine, RiverrunError]] = []
    usable: list[Alert] = []
    for alert in app.alerts.values():
        name = alert.to.table if isinstance(alert.to, ColumnLookup) else ""
        try:
            if name in app.tables and name not in lookups:
                lookups[name] = load_lookup_table(app.tables[name], app.folder)
            topic = app.topics.get(alert.source)
            if topic is not None and topic.registered:
                raise DeclarationError(
                    f"{alert} watches {alert.source}, whose format is {topic.format}: alerts read plain JSON",
                    hint=f"Make a stream of {alert.source}, and watch that",
                )
            usable.append(alert)
        except RiverrunError as error:
            problems.append((alert.line, error))
    rules, more_problems = build_rules(usable, tables, lookups)
    return rules, problems + more_problems
