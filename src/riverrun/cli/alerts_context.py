"""What every `riverrun alerts` command starts from: the app, its cluster, its alert state; parsed names and times."""

import contextlib
import getpass
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from riverrun.cli.context import load_declared, load_settings
from riverrun.errors import DeclarationError, NotRunningError, PipelineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from riverrun.alerts.rules import Rule
    from riverrun.alerts.state_topic import AlertChange, AlertState, Incident
    from riverrun.app import App
    from riverrun.config import LoadedSettings
    from riverrun.kafka.connection import Connection


@dataclass(frozen=True)
class AlertsContext:
    """The app, cluster and alert state of a command."""

    settings: "LoadedSettings"
    app: "App"
    connection: "Connection"

    def ledger(self) -> "AlertState":
        from riverrun.alerts.kafka_log import read_alert_state

        return read_alert_state(self.connection, self.app.name)

    def publish(self, changes: "Sequence[AlertChange]") -> None:
        """Write to the state topic, which may not exist yet."""
        from riverrun.alerts.kafka_log import publish_changes
        from riverrun.alerts.state_topic import alerts_topic_name
        from riverrun.kafka.admin.admin import Admin
        from riverrun.kafka.compacted_topic import ensure_compacted_topic

        ensure_compacted_topic(Admin(self.connection), alerts_topic_name(self.app.name))
        publish_changes(self.connection, self.app.name, changes)

    def require_alert(self, name: str, ledger: "AlertState | None" = None) -> str:
        """The name of an alert of the app, or of one that the alert state remembers; UsageError when there is none."""
        names = list(self.app.alerts)
        if ledger is not None:
            names += [rule for rule in dict.fromkeys(rule for rule, *_ in ledger.incidents) if rule not in names]
        if name not in names:
            raise unknown_name(f"The app {self.app.name} has no alert {name!r}", name, names)
        return name


def require_rules(app: "App", ledger: "AlertState", names: Sequence[str] = ()) -> "list[Rule]":
    """The app's alerts (these, if any are named) over the tables that the pipeline has published; all problems at once.
    No Spark is needed."""
    from riverrun.alerts.kafka_log import decode_tables
    from riverrun.alerts.rules import build_app_rules

    if not app.alerts:
        raise UsageError(f"The app {app.name} has no alerts", hint="Declare one: app.alert(…); docs/alerts.md")
    hint = "Start the pipeline once: `riverrun run`"
    tables = decode_tables(ledger)
    if not tables:
        raise NotRunningError(f"Nobody knows yet what the alerts of {app.name} watch", hint=hint)
    requested = names or list(app.alerts)
    for name in requested:
        watched = app.alerts[name].source
        if watched not in tables and (watched in app.streams or watched in app.topics):
            what = f"The alert {name} watches {watched}, which was not watched when the pipeline last ran"
            raise NotRunningError(what, hint=hint)
    rules, wrong = build_app_rules(app, tables)
    lines = [app.alerts[name].line for name in requested]
    if mistakes := [f"{line}: {error}" for line, error in wrong if line in lines]:
        raise PipelineError(mistakes, file=app.file)
    return [rule for rule in rules if rule.name in requested]


def open_alerts(app_file: str | None, bootstrap: str | None) -> AlertsContext:
    from riverrun.kafka.connection import require_cluster

    settings = load_settings(kafka__bootstrap_servers=bootstrap)
    # What the user's file prints goes to stderr: stdout is for the result.
    with contextlib.redirect_stdout(sys.stderr):
        app = load_declared(settings, app_file)
    if app is None:
        raise UsageError("No pipeline file is named", hint="Say --app FILE, or set project.app in riverrun.toml")
    return AlertsContext(
        settings, app, require_cluster(settings.settings.kafka, settings.project, settings.settings.registry)
    )


def by_option(command: "Callable[..., Any]") -> "Callable[..., Any]":
    """`--by` on actions of people."""
    return click.option("--by", metavar="NAME", default="", help="Who says so. [default: your login name]")(command)


def user_name(by: str) -> str:
    if by:
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def unknown_name(what: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for an unknown name, with the known ones, as far as they fit on a line."""
    from riverrun.model.suggest import nearest

    known = list(known)
    near = nearest(name, known)
    listed = ", ".join(one_line(known_name) for known_name in known[:10]) + (", …" if len(known) > 10 else "")
    return UsageError(what, expected=listed, hint=f"Did you mean {one_line(near)}?" if near else "")


def find_incident(ledger: "AlertState", alert: str, key: str, number: int | None = None) -> "Incident":
    """The newest incident of a key, or this one; UsageError when there is none. A key may be given as it is shown."""
    incidents = [
        incident
        for (rule, incident_key, _), incident in ledger.incidents.items()
        if rule == alert and key in (incident_key, one_line(incident_key))
    ]
    if not incidents:
        keys = list(dict.fromkeys(incident_key for rule, incident_key, _ in ledger.incidents if rule == alert))
        if not keys:
            raise UsageError(f"{alert} has not fired, as far as is remembered")
        what = f"{alert} has not fired for {one_line(key)!r}" if key else f"{alert} fires by key, and none is named"
        raise unknown_name(what, key, keys)
    numbers = [incident.number for incident in incidents]
    if number is not None and number not in numbers:
        raise UsageError(
            f"{alert} {one_line(key)} has no episode {number}", expected=", ".join(map(str, sorted(numbers)[-10:]))
        )
    return next(incident for incident in incidents if incident.number == (max(numbers) if number is None else number))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def parse_past_ms(text: str, option: str) -> int:
    """A past time as people write it: a time, or how long ago: "7 days"."""
    from riverrun.model.positions import epoch_ms, parse_time
    from riverrun.model.units import parse_duration_ms

    try:
        ago = parse_duration_ms(text, what=option)
    except DeclarationError:
        return epoch_ms(parse_time(text, what=option))
    return now_ms() - ago if ago >= 0 else 0


def one_line(text: object) -> str:
    """Text of an event on one line, harmless for a terminal."""
    from riverrun.model.record import safe_text

    return " ".join(safe_text(str(text).encode(errors="replace")).decode().split())
