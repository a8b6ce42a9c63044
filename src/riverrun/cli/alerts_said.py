"""What people say of alerts: that they look after one, and that they do not want to be told for a while."""

import secrets
from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.alerts_open import by_option, find_case, now_ms, open_alerts, shown, unknown, who
from riverrun.cli.context import app_option, cluster_option, confirm
from riverrun.cli.output import json_option, print_json, print_rows, say
from riverrun.errors import UsageError

if TYPE_CHECKING:
    from riverrun.alerts.ledger import Ledger

_LEAST_MS = 60_000
_MOST_MS = 30 * 86_400_000


@click.command(epilog="Example: riverrun alerts ack overload h1")
@click.argument("alert")
@click.argument("key", default="")
@by_option
@app_option
@cluster_option
@json_option
def ack(*, alert: str, key: str, by: str, app_file: str | None, bootstrap: str | None, as_json: bool) -> None:
    """Acknowledge what ALERT fires for KEY, so that nobody else is told."""
    from riverrun.alerts.ledger import Ack, kept
    from riverrun.alerts.words import case_row, clock_text

    opened = open_alerts(app_file, bootstrap)
    ledger = opened.ledger()
    case = find_case(ledger, opened.known(alert, ledger), key)
    name = " ".join(filter(None, (alert, shown(key))))
    if case.state != "firing":
        over = f"it was over at {clock_text(case.ended)}" if case.ended >= 0 else "it is never over"
        raise UsageError(f"{name} does not fire: {over}", hint="`riverrun alerts` lists what does")
    before = ledger.acks.get((case.rule, case.key, case.number))
    if before is None:
        told = Ack(rule=case.rule, key=case.key, number=case.number, at=now_ms(), by=who(by))
        opened.tell([kept(told)])
        ledger.put(told)
        say(f"{name}: acknowledged.")
    else:
        say(f"{name}: acknowledged already, by {shown(before.by) or 'somebody'} at {clock_text(before.at)}.")
    if as_json:
        print_json(case_row(ledger, case, now_ms()))


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
    from riverrun.alerts.ledger import Silence, kept
    from riverrun.alerts.words import clock_text, silence_row
    from riverrun.model.quantity import milliseconds

    length = milliseconds(lasting, what="--for")
    if not _LEAST_MS <= length <= _MOST_MS:
        raise UsageError("--for is too short or too long", expected="1 minute to 30 days", found=repr(lasting))
    opened = open_alerts(app_file, bootstrap)
    if alert:
        opened.known(alert)
    what = " ".join(filter(None, (alert or ("everything" if not key else "every alert"), shown(key))))
    if not alert and not key:
        confirm(
            "Silence everything?",
            f"Nobody would be told of anything for {lasting}",
            list(opened.app.alerts),
            yes=yes,
        )
    ledger = opened.ledger()
    now = now_ms()
    told = Silence(
        id=secrets.token_hex(3), until=now + length, rule=alert, key=key, begun=now, by=who(by), why=why[:200]
    )
    opened.tell([kept(told)])
    say(f"Silenced {what} until {clock_text(told.until)}. To end it: riverrun alerts unsilence {told.id}")
    if key:
        _remark_key(ledger, alert, key)
    if as_json:
        print_json(silence_row(told))


def _remark_key(ledger: "Ledger", alert: str, key: str) -> None:
    """A key that was mistyped silences nobody."""
    from riverrun.model.near import nearest

    known = {own for rule, own in ledger.episodes if alert in ("", rule)}
    if known and key not in known:
        near = nearest(key, known)
        say(f"Nothing was seen of {shown(key)} yet." + (f" Did you mean {shown(near)}?" if near else ""))


@click.command(epilog="Example: riverrun alerts silences")
@click.option("--all", "everything", is_flag=True, help="Those that are over as well.")
@app_option
@cluster_option
@json_option
def silences(*, everything: bool, app_file: str | None, bootstrap: str | None, as_json: bool) -> None:
    """List the silences: of what, until when, by whom and why."""
    from riverrun.alerts.words import silence_row

    ledger = open_alerts(app_file, bootstrap).ledger()
    now = now_ms()
    found = sorted(
        (each for each in ledger.silences.values() if everything or each.until > now), key=lambda each: each.until
    )
    rows = [silence_row(each) for each in found]
    print_rows(rows if as_json else [_short(each) for each in rows], as_json=as_json, empty="Nothing is silenced.")


def _short(row: dict[str, Any]) -> dict[str, Any]:
    until = row["until"][:19].replace("T", " ") + "Z"
    alert, key = row["alert"] or "(all)", shown(row["key"]) if row["key"] else "(all)"
    return {
        "id": row["id"], "alert": alert, "key": key, "until": until, "by": shown(row["by"]), "why": shown(row["why"]),
    }  # fmt: skip


@click.command(epilog="Example: riverrun alerts unsilence 3fa07c")
@click.argument("silence_id", metavar="ID")
@app_option
@cluster_option
def unsilence(*, silence_id: str, app_file: str | None, bootstrap: str | None) -> None:
    """End a silence now. What fired meanwhile is not sent later."""
    from riverrun.alerts.ledger import forgotten

    opened = open_alerts(app_file, bootstrap)
    known = opened.ledger().silences
    if silence_id not in known:
        raise (
            unknown(f"There is no silence {shown(silence_id)!r}", silence_id, known)
            if known
            else UsageError("Nothing is silenced")
        )
    opened.tell([forgotten(known[silence_id])])
    say(f"The silence {shown(silence_id)} is over.")
