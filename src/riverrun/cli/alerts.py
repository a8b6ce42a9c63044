"""`riverrun alerts`: what fires and why, who was notified, and acknowledging it."""

import importlib
from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.alerts_context import find_incident, now_ms, one_line, open_alerts, parse_past_ms
from riverrun.cli.context import app_option, cluster_option
from riverrun.cli.output import cell, json_option, plural, print_json, print_rows, say

if TYPE_CHECKING:
    from riverrun.alerts.state_topic import AlertProcessLease, AlertState, Incident
    from riverrun.model.alert import Alert

_DEFAULT_LIMIT = 100
# A reason may be long; `show` has all of it.
_MAX_WIDTH = 60
# Commands in files of their own: name → (module, attribute).
_LAZY_COMMANDS = {
    "ack": ("riverrun.cli.alerts_actions", "ack"),
    "silence": ("riverrun.cli.alerts_actions", "silence"),
    "silences": ("riverrun.cli.alerts_actions", "silences"),
    "unsilence": ("riverrun.cli.alerts_actions", "unsilence"),
    "test": ("riverrun.cli.alerts_test", "test"),
    "dry-run": ("riverrun.cli.alerts_test", "dry_run"),
    "run": ("riverrun.cli.alerts_run", "run_alerts"),
}


class _LazyAlertsGroup(click.Group):
    """Imports subcommands of other modules when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *_LAZY_COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _LAZY_COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, attribute = _LAZY_COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(
    cls=_LazyAlertsGroup,
    invoke_without_command=True,
    epilog="Example: riverrun alerts && riverrun alerts show overload h1",
)
@app_option
@cluster_option
@json_option
@click.pass_context
def alerts(ctx: click.Context, app_file: str | None, bootstrap: str | None, as_json: bool) -> None:
    """See and steer alerts: what fires and why, who was told; acknowledge, silence, try. Without a subcommand: list.

    The alerts are those of the pipeline file; what became of them is in the topic APP.alerts.
    """
    if ctx.invoked_subcommand is None:
        _list(app_file, bootstrap, as_json)


@alerts.command("list", epilog="Example: riverrun alerts list --alert overload --since '2 hours'")
@click.option("--all", "everything", is_flag=True, help="What is over as well, newest first.")
@click.option("--alert", "--rule", "alert", metavar="NAME", default="", help="Only of this alert.")
@click.option("--key", default="", help="Only of this key.")
@click.option(
    "--since", metavar="TIME", default="", help="What fired since then, over or not: '2 hours', 'today 08:00'."
)
@click.option(
    "--limit", "-n", type=click.IntRange(min=1), default=_DEFAULT_LIMIT, show_default=True, help="At most this many."
)
@app_option
@cluster_option
@json_option
def list_(
    *,
    everything: bool,
    alert: str,
    key: str,
    since: str,
    limit: int,
    app_file: str | None,
    bootstrap: str | None,
    as_json: bool,
) -> None:
    """List what fires now: since when, how it stands, and who was told."""
    _list(app_file, bootstrap, as_json, everything=everything, alert=alert, key=key, since=since, limit=limit)


def _list(
    app_file: str | None,
    bootstrap: str | None,
    as_json: bool,
    *,
    everything: bool = False,
    alert: str = "",
    key: str = "",
    since: str = "",
    limit: int = _DEFAULT_LIMIT,
) -> None:
    from riverrun.alerts.formatting import describe_problems, incident_row

    begin = parse_past_ms(since, "--since") if since else 0
    opened = open_alerts(app_file, bootstrap)
    state, now = opened.ledger(), now_ms()
    if alert:
        opened.require_alert(alert, state)
    incidents = [
        incident
        for incident in state.incidents.values()
        if (everything or since or incident.state == "firing")
        and alert in ("", incident.rule)
        and key in ("", incident.key)
        and incident.created_at >= begin
    ]
    incidents.sort(
        key=lambda incident: (incident.created_at, incident.fired_at, incident.rule, incident.key, incident.number),
        reverse=True,
    )
    rows = [incident_row(state, incident, now) for incident in incidents[:limit]]
    for line in describe_problems(state, now, _is_running) if opened.app.alerts else ():
        say(one_line(line))
    print_rows(
        rows if as_json else [_display_row(incident) for incident in rows],
        as_json=as_json,
        empty=_empty_message(opened.app.alerts),
    )
    if len(incidents) > limit:
        say(f"The newest {limit} of {plural(len(incidents), 'case')}: --limit N shows N.")


def _display_row(row: dict[str, Any]) -> dict[str, Any]:
    since = row["since"][:19].replace("T", " ") + "Z"
    sent_to, text = one_line(row["told"]), one_line(row["text"])
    return {
        "severity": row["severity"], "alert": row["alert"], "key": one_line(row["key"]), "since": since,
        "state": row["state"], "told": sent_to if len(sent_to) <= _MAX_WIDTH else f"{sent_to[: _MAX_WIDTH - 1]}…",
        "text": text,
    }  # fmt: skip


def _empty_message(declared: "dict[str, Alert]") -> str:
    if declared:
        return "Nothing fires."
    return "The app has no alerts: app.alert(…) declares one (docs/alerts.md)."


def _is_running(lease: "AlertProcessLease") -> bool:
    """Whether a process is alive. On another machine this is unknown."""
    import socket

    import psutil

    if lease.host != socket.gethostname():
        return True
    try:
        # A pid is reused: its current owner must not be younger.
        return bool(psutil.Process(lease.pid).create_time() * 1000 <= lease.begun + 1000)
    except psutil.Error:
        return False


@alerts.command(epilog="Example: riverrun alerts show overload h1")
@click.argument("alert")
@click.argument("key", default="")
@click.option("--number", type=click.IntRange(min=1), help="This episode of the key. [default: the newest]")
@app_option
@cluster_option
@json_option
def show(
    *, alert: str, key: str, number: int | None, app_file: str | None, bootstrap: str | None, as_json: bool
) -> None:
    """Show why ALERT fired for KEY: the row behind it, and all its messages.

    Where the row lies, when it was and when it was judged; of every message, to whom it went and its way. KEY is as
    `riverrun alerts list` shows it; an alert without a key has none.
    """
    from riverrun.alerts.formatting import incident_details

    opened = open_alerts(app_file, bootstrap)
    state = opened.ledger()
    incident = find_incident(state, opened.require_alert(alert, state), key, number)
    details = incident_details(state, incident, now_ms())
    if as_json:
        print_json(details)
        return
    click.echo("\n".join(_details_text(details, opened.app.alerts.get(alert), incident, state)))


def _details_text(
    details: dict[str, Any], declared: "Alert | None", incident: "Incident", state: "AlertState"
) -> list[str]:
    other_count = sum(1 for rule, key, _ in state.incidents if (rule, key) == (incident.rule, incident.key)) - 1
    name = " ".join(filter(None, (details["alert"], one_line(details["key"]))))
    lines = [f"{name}, episode {details['number']}: {details['state']}, {details['severity']}"]
    facts = [
        ("why", _condition_text(declared)),
        ("since", f"{details['since']} (event time)"),
        (
            "fired",
            f"{details['fired']} (event time); written to Kafka {details['recorded']}, judged {details['judged']}",
        ),
        ("ended", details["ended"]),
        ("row at", details["place"]),
        ("escalated", details["escalated"]),
        (
            "acknowledged",
            f"{details['acknowledged']} by {one_line(details['acknowledged_by'])}" if details["acknowledged"] else None,
        ),
    ]
    lines += [f"  {what:<13} {text}" for what, text in facts if text]
    lines.append("  row")
    width = max((len(name) for name in details["row"]), default=0)
    lines += [f"    {one_line(name):<{width}}  {one_line(cell(value))}" for name, value in details["row"].items()]
    lines.append("  messages")
    for message in details["messages"]:
        when = message["at"] or message["made"]
        tries = f", {message['tries']} tries" if message["tries"] > 1 else ""
        to = f"{message['channel']} to {one_line(message['receiver']) or 'nobody'}"
        lines += [
            f"    {message['kind']:<9}  {when}  {to}: {one_line(message['way'])}{tries}",
            f"               {one_line(message['text'])}",
        ]
    if other_count > 0:
        lines.append(f"  {plural(other_count, 'other episode')} remembered: --number N, `riverrun alerts list --all`")
    return lines


def _condition_text(alert: "Alert | None") -> str:
    from riverrun.model.units import format_duration

    if alert is None:
        return "the alert is not declared any more"
    if alert.silent_ms >= 0:
        return f"no row of {alert.source} for {format_duration(alert.silent_ms)}"
    lasting = f" for {format_duration(alert.lasting_ms)}" if alert.lasting_ms else ""
    return f"{alert.when}{lasting}, in {alert.source}" if alert.when else f"every row of {alert.source}"
