"""Actions of people on alerts: acknowledging an incident, and silencing notifications for a while."""

import secrets
from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.alerts_context import by_option, find_incident, now_ms, one_line, open_alerts, unknown_name, user_name
from riverrun.cli.context import app_option, cluster_option, confirm
from riverrun.cli.output import json_option, print_json, print_rows, say
from riverrun.errors import UsageError

if TYPE_CHECKING:
    from riverrun.alerts.state_topic import AlertState

_MIN_MS = 60_000
_MAX_MS = 30 * 86_400_000


@click.command(epilog="Example: riverrun alerts ack overload h1")
@click.argument("alert")
@click.argument("key", default="")
@by_option
@app_option
@cluster_option
@json_option
def ack(*, alert: str, key: str, by: str, app_file: str | None, bootstrap: str | None, as_json: bool) -> None:
    """Acknowledge what ALERT fires for KEY, so that nobody else is told."""
    from riverrun.alerts.formatting import format_time, incident_row
    from riverrun.alerts.state_topic import Ack, encode_upsert

    opened = open_alerts(app_file, bootstrap)
    state = opened.ledger()
    incident = find_incident(state, opened.require_alert(alert, state), key)
    name = " ".join(filter(None, (alert, one_line(key))))
    if incident.state != "firing":
        over = f"it was over at {format_time(incident.ended)}" if incident.ended >= 0 else "it is never over"
        raise UsageError(f"{name} does not fire: {over}", hint="`riverrun alerts` lists what does")
    earlier_ack = state.acks.get((incident.rule, incident.key, incident.number))
    if earlier_ack is None:
        new_ack = Ack(rule=incident.rule, key=incident.key, number=incident.number, at=now_ms(), by=user_name(by))
        opened.publish([encode_upsert(new_ack)])
        state.put(new_ack)
        say(f"{name}: acknowledged.")
    else:
        say(
            f"{name}: acknowledged already, by {one_line(earlier_ack.by) or 'somebody'} at {format_time(earlier_ack.at)}."
        )
    if as_json:
        print_json(incident_row(state, incident, now_ms()))


@click.command(
    epilog="Example: riverrun alerts silence --alert overload --key h1 --for '2 hours' --why 'being rewired'"
)
@click.option("--alert", metavar="NAME", default="", help="Only this alert.")
@click.option("--key", default="", help="Only this key.")
@click.option(
    "--for", "lasting", metavar="DURATION", required=True, help="How long, such as '2 hours'; 30 days at most."
)
@click.option("--why", metavar="TEXT", default="", help="The reason, for others to see.")
@by_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask before everything is silenced.")
@app_option
@cluster_option
@json_option
def silence(
    *,
    alert: str,
    key: str,
    lasting: str,
    why: str,
    by: str,
    yes: bool,
    app_file: str | None,
    bootstrap: str | None,
    as_json: bool,
) -> None:
    """Send nothing for a while: of an alert, of a key, or of all.

    With --alert and --key, only that alert of that key; with neither, everything. What fires meanwhile is seen and
    kept, and is not sent later. What was sent already is not taken back.
    """
    from riverrun.alerts.formatting import format_time, silence_row
    from riverrun.alerts.state_topic import Silence, encode_upsert
    from riverrun.model.units import parse_duration_ms

    length = parse_duration_ms(lasting, what="--for")
    if not _MIN_MS <= length <= _MAX_MS:
        raise UsageError("--for is too short or too long", expected="1 minute to 30 days", found=repr(lasting))
    opened = open_alerts(app_file, bootstrap)
    if alert:
        opened.require_alert(alert)
    what = " ".join(filter(None, (alert or ("everything" if not key else "every alert"), one_line(key))))
    if not alert and not key:
        confirm(
            "Silence everything?",
            f"Nobody would be told of anything for {lasting}",
            list(opened.app.alerts),
            yes=yes,
        )
    state = opened.ledger()
    now = now_ms()
    new_silence = Silence(
        id=secrets.token_hex(3), until=now + length, rule=alert, key=key, begun=now, by=user_name(by), why=why[:200]
    )
    opened.publish([encode_upsert(new_silence)])
    say(
        f"Silenced {what} until {format_time(new_silence.until)}. To end it: riverrun alerts unsilence {new_silence.id}"
    )
    if key:
        _warn_unknown_key(state, alert, key)
    if as_json:
        print_json(silence_row(new_silence))


def _warn_unknown_key(state: "AlertState", alert: str, key: str) -> None:
    """A mistyped key silences nobody."""
    from riverrun.model.suggest import nearest

    known = {rule_key for rule, rule_key in state.episodes if alert in ("", rule)}
    if known and key not in known:
        near = nearest(key, known)
        say(f"Nothing was seen of {one_line(key)} yet." + (f" Did you mean {one_line(near)}?" if near else ""))


@click.command(epilog="Example: riverrun alerts silences")
@click.option("--all", "everything", is_flag=True, help="Those that are over as well.")
@app_option
@cluster_option
@json_option
def silences(*, everything: bool, app_file: str | None, bootstrap: str | None, as_json: bool) -> None:
    """List the silences: of what, until when, by whom and why."""
    from riverrun.alerts.formatting import silence_row

    state = open_alerts(app_file, bootstrap).ledger()
    now = now_ms()
    active = sorted(
        (listed for listed in state.silences.values() if everything or listed.until > now),
        key=lambda listed: listed.until,
    )
    rows = [silence_row(listed) for listed in active]
    print_rows(
        rows if as_json else [_display_row(listed) for listed in rows], as_json=as_json, empty="Nothing is silenced."
    )


def _display_row(row: dict[str, Any]) -> dict[str, Any]:
    until = row["until"][:19].replace("T", " ") + "Z"
    alert, key = row["alert"] or "(all)", one_line(row["key"]) if row["key"] else "(all)"
    return {
        "id": row["id"], "alert": alert, "key": key, "until": until, "by": one_line(row["by"]), "why": one_line(row["why"]),
    }  # fmt: skip


@click.command(epilog="Example: riverrun alerts unsilence 3fa07c")
@click.argument("silence_id", metavar="ID")
@app_option
@cluster_option
def unsilence(*, silence_id: str, app_file: str | None, bootstrap: str | None) -> None:
    """End a silence now. What fired meanwhile is not sent later."""
    from riverrun.alerts.state_topic import encode_tombstone

    opened = open_alerts(app_file, bootstrap)
    known = opened.ledger().silences
    if silence_id not in known:
        raise (
            unknown_name(f"There is no silence {one_line(silence_id)!r}", silence_id, known)
            if known
            else UsageError("Nothing is silenced")
        )
    opened.publish([encode_tombstone(known[silence_id])])
    say(f"The silence {one_line(silence_id)} is over.")
