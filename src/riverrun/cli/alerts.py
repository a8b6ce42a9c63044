"""`riverrun alerts`: what fires and why, who was told, and saying that somebody looks after it."""

import importlib
from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.alerts_open import find_case, now_ms, open_alerts, past_ms, shown
from riverrun.cli.context import app_option, cluster_option
from riverrun.cli.output import cell, json_option, plural, print_json, print_rows, say

if TYPE_CHECKING:
    from riverrun.alerts.ledger import Case, Ledger, Life
    from riverrun.model.alert import Alert

_MOST = 100
# A reason may be long; `show` has all of it.
_WIDEST = 60
# Commands in files of their own: name → (module, attribute).
_ELSEWHERE = {
    "ack": ("riverrun.cli.alerts_said", "ack"),
    "silence": ("riverrun.cli.alerts_said", "silence"),
    "silences": ("riverrun.cli.alerts_said", "silences"),
    "unsilence": ("riverrun.cli.alerts_said", "unsilence"),
    "test": ("riverrun.cli.alerts_tried", "test"),
    "dry-run": ("riverrun.cli.alerts_tried", "dry_run"),
    "run": ("riverrun.cli.alerts_run", "run_alerts"),
}


class _Group(click.Group):
    """Imports what is elsewhere when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *_ELSEWHERE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, attribute = _ELSEWHERE[cmd_name]
        found: click.Command = getattr(importlib.import_module(module), attribute)
        return found


@click.group(
    cls=_Group, invoke_without_command=True, epilog="Example: riverrun alerts && riverrun alerts show overload h1"
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
@click.option("--limit", "-n", type=click.IntRange(min=1), default=_MOST, show_default=True, help="At most this many.")
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
    limit: int = _MOST,
) -> None:
    from riverrun.alerts.words import case_row, troubles

    begin = past_ms(since, "--since") if since else 0
    opened = open_alerts(app_file, bootstrap)
    ledger, now = opened.ledger(), now_ms()
    if alert:
        opened.known(alert, ledger)
    cases = [
        each
        for each in ledger.cases.values()
        if (everything or since or each.state == "firing")
        and alert in ("", each.rule)
        and key in ("", each.key)
        and each.made >= begin
    ]
    cases.sort(key=lambda each: (each.made, each.at, each.rule, each.key, each.number), reverse=True)
    rows = [case_row(ledger, each, now) for each in cases[:limit]]
    for line in troubles(ledger, now, _runs) if opened.app.alerts else ():
        say(shown(line))
    print_rows(rows if as_json else [_short(each) for each in rows], as_json=as_json, empty=_nothing(opened.app.alerts))
    if len(cases) > limit:
        say(f"The newest {limit} of {plural(len(cases), 'case')}: --limit N shows N.")


def _short(row: dict[str, Any]) -> dict[str, Any]:
    since = row["since"][:19].replace("T", " ") + "Z"
    told, text = shown(row["told"]), shown(row["text"])
    return {
        "severity": row["severity"], "alert": row["alert"], "key": shown(row["key"]), "since": since,
        "state": row["state"], "told": told if len(told) <= _WIDEST else f"{told[: _WIDEST - 1]}…", "text": text,
    }  # fmt: skip


def _nothing(declared: "dict[str, Alert]") -> str:
    if declared:
        return "Nothing fires."
    return "The app has no alerts: app.alert(…) declares one (docs/alerts.md)."


def _runs(life: "Life") -> bool:
    """Whether a process is there. Of another machine's, nobody can tell."""
    import socket

    import psutil

    if life.host != socket.gethostname():
        return True
    try:
        # A pid is used again: whoever has it now must not be younger.
        return bool(psutil.Process(life.pid).create_time() * 1000 <= life.begun + 1000)
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
    from riverrun.alerts.words import case_details

    opened = open_alerts(app_file, bootstrap)
    ledger = opened.ledger()
    case = find_case(ledger, opened.known(alert, ledger), key, number)
    found = case_details(ledger, case, now_ms())
    if as_json:
        print_json(found)
        return
    click.echo("\n".join(_block(found, opened.app.alerts.get(alert), case, ledger)))


def _block(found: dict[str, Any], declared: "Alert | None", case: "Case", ledger: "Ledger") -> list[str]:
    others = sum(1 for rule, key, _ in ledger.cases if (rule, key) == (case.rule, case.key)) - 1
    name = " ".join(filter(None, (found["alert"], shown(found["key"]))))
    lines = [f"{name}, episode {found['number']}: {found['state']}, {found['severity']}"]
    facts = [
        ("why", _why(declared)),
        ("since", f"{found['since']} (event time)"),
        ("fired", f"{found['fired']} (event time); written to Kafka {found['recorded']}, judged {found['judged']}"),
        ("ended", found["ended"]),
        ("row at", found["place"]),
        ("escalated", found["escalated"]),
        (
            "acknowledged",
            f"{found['acknowledged']} by {shown(found['acknowledged_by'])}" if found["acknowledged"] else None,
        ),
    ]
    lines += [f"  {what:<13} {text}" for what, text in facts if text]
    lines.append("  row")
    width = max((len(each) for each in found["row"]), default=0)
    lines += [f"    {shown(each):<{width}}  {shown(cell(value))}" for each, value in found["row"].items()]
    lines.append("  messages")
    for each in found["messages"]:
        when = each["at"] or each["made"]
        tries = f", {each['tries']} tries" if each["tries"] > 1 else ""
        to = f"{each['channel']} to {shown(each['receiver']) or 'nobody'}"
        lines += [
            f"    {each['kind']:<9}  {when}  {to}: {shown(each['way'])}{tries}",
            f"               {shown(each['text'])}",
        ]
    if others > 0:
        lines.append(f"  {plural(others, 'other episode')} remembered: --number N, `riverrun alerts list --all`")
    return lines


def _why(alert: "Alert | None") -> str:
    from riverrun.model.quantity import duration_text

    if alert is None:
        return "the alert is not declared any more"
    if alert.silent_ms >= 0:
        return f"no row of {alert.watched} for {duration_text(alert.silent_ms)}"
    lasting = f" for {duration_text(alert.lasting_ms)}" if alert.lasting_ms else ""
    return f"{alert.when}{lasting}, in {alert.watched}" if alert.when else f"every row of {alert.watched}"
