"""Trying alerts: what one would say now, and what all would have sent over history."""

import time
from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.alerts_open import known_rules, now_ms, open_alerts, past_ms, shown
from riverrun.cli.context import app_option, cluster_option, confirm
from riverrun.cli.output import Progress, json_option, plural, print_json, print_rows, say
from riverrun.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from riverrun.alerts.channels.contract import Channel
    from riverrun.alerts.dry_run import DryRun
    from riverrun.alerts.engine import Arrived
    from riverrun.alerts.rows import Seen
    from riverrun.alerts.rules import Rule
    from riverrun.alerts.trial import Trial
    from riverrun.cli.alerts_open import Opened
    from riverrun.model.when import Position

# Records that are no rows may lie between.
_NEWEST = 50


@click.command(epilog="Example: riverrun alerts test overload --to +353861234567 --send")
@click.argument("alert")
@click.option("--to", metavar="RECEIVER", default="", help="This receiver instead of the row's.")
@click.option("--row", metavar="JSON", default="", help="This row instead of the newest one there is.")
@click.option("--send", is_flag=True, help="Send it now, once, marked as a test.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before a receiver of the row's gets it.")
@app_option
@cluster_option
@json_option
def test(
    *,
    alert: str,
    to: str,
    row: str,
    send: bool,
    yes: bool,
    app_file: str | None,
    bootstrap: str | None,
    as_json: bool,
) -> None:
    """Show, or send, the message that ALERT would write for a row.

    For the newest row there is, whether ALERT fires there or not: its text, to whom it goes and how, in how many parts, and
    what is wrong with it. With --send it goes out, with "TEST: " before it. Nothing of it is in the history, and neither
    silences nor quiet hours nor limits hold it. Exit code 1: it cannot be sent, or was not.
    """
    opened = open_alerts(app_file, bootstrap)
    [rule] = known_rules(opened.app, opened.ledger(), [opened.known(alert)])
    from riverrun.alerts.channels.opening import open_channels
    from riverrun.alerts.trial import given_row, trial_of
    from riverrun.cli.alerts_run import local_phones

    seen = given_row(rule, row, now_ms()) if row else _newest(opened, rule)
    trial = trial_of(rule, seen, to)
    if send and not to and trial.receivers:
        confirm(
            "Send it to them?",
            "A test message would go to whom the row names",
            list(map(shown, trial.receivers)),
            yes=yes,
        )
    settings = opened.settings
    phones = local_phones(settings, {rule.alert.channel}, seconds=0)
    channels, _ = open_channels(settings.settings.alerts, settings.project.root, phones=phones)
    try:
        messages = [_tried(trial, receiver, channels, send=send) for receiver in trial.receivers]
    finally:
        for each in channels.values():
            each.close()
    problems = [each["problem"] for each in messages if each["problem"]]
    if not messages:
        problems = ["the row names nobody to send it to"]
    found = {
        "alert": alert,
        "key": trial.key,
        "row": dict(seen.row),
        "place": "" if row else str(seen),
        "holds": trial.holds,
        "text": trial.text,
        "resolved": trial.resolved,
        "messages": messages,
        "problems": problems,
    }
    print_json(found) if as_json else _print_trial(trial, found)
    if problems or any(each["sent"] is False for each in messages):
        click.get_current_context().exit(1)


def _newest(opened: "Opened", rule: "Rule") -> "Seen":
    from riverrun.alerts.kafka_log import incoming
    from riverrun.alerts.trial import newest_row
    from riverrun.kafka.admin.admin import Admin
    from riverrun.kafka.peeking import peek

    records = peek(Admin(opened.connection), rule.table.topic, _NEWEST).records
    seen = newest_row(rule, map(incoming, records))
    if seen is None:
        found = f"{plural(len(records), 'record')} that are none" if records else "no records"
        raise UsageError(f"There is no row in {rule.table.topic}", found=found, hint="Give one: --row '{…}'")
    return seen


def _tried(trial: "Trial", receiver: str, channels: "Mapping[str, Channel]", *, send: bool) -> dict[str, Any]:
    from riverrun.alerts.trial import send_once
    from riverrun.cli.alerts_run import no_channel

    message = trial.message(receiver, marked=send, now=now_ms())
    channel = channels.get(message.channel)
    found: dict[str, Any] = {"receiver": receiver, "channel": message.channel, "parts": None, "problem": ""}
    found |= {"sent": None, "answer": ""}
    if channel is None:
        return found | {"problem": no_channel(message.channel)}
    weight = channel.weigh(message)
    found |= {"parts": weight.parts, "problem": weight.problem}
    if send and not weight.problem:
        found["sent"], found["answer"] = send_once(channel, message)
    return found


def _print_trial(trial: "Trial", found: dict[str, Any]) -> None:
    alert = trial.rule.alert
    where = f"the row {found['place']}" if found["place"] else "the given row"
    holds = {None: "silence is not told by one row", True: f"{alert.when or 'every row'}: holds there"}
    said = holds.get(trial.holds, f"{alert.when}: does not hold there")
    click.echo(f"{alert.name} {shown(trial.key)}, by {where} ({said})")
    click.echo(f"  text      {shown(trial.text)}")
    if trial.resolved:
        click.echo(f"  resolved  {shown(trial.resolved)}")
    for each in found["messages"]:
        parts = f", {plural(each['parts'], 'part')}" if each["parts"] and not each["problem"] else ""
        click.echo(f"  to        {shown(each['receiver'])} by {each['channel']}{parts}")
        if each["answer"]:
            click.echo(f"  {'sent' if each['sent'] else 'NOT SENT':<9} {shown(each['answer'])}")
    for problem in found["problems"]:
        click.echo(f"  problem   {shown(problem)}")
    if not found["problems"] and all(each["sent"] is None for each in found["messages"]):
        say("Nothing was sent: --send does.")


@click.command("dry-run", epilog="Example: riverrun alerts dry-run --alert overload --since '7 days'")
@click.option("--alert", metavar="NAME", default="", help="Only this alert.")
@click.option(
    "--since", metavar="TIME", default="", help="From then on: '7 days', '2026-07-01'. [default: all there is]"
)
@click.option("--until", metavar="TIME", default="", help="Up to then. [default: now]")
@app_option
@cluster_option
@json_option
def dry_run(*, alert: str, since: str, until: str, app_file: str | None, bootstrap: str | None, as_json: bool) -> None:
    """Tell what the alerts would have sent over history.

    The alerts are as the pipeline file has them now, the history is in the topics that they watch. Nothing is sent and
    nothing kept; neither Spark nor the alert process is needed. A record's own Kafka time is the clock. Nobody
    silences and nobody acknowledges; what was firing when the history begins fires anew.
    """
    from riverrun.alerts.dry_run import dry_run as judge
    from riverrun.model.when import EARLIEST, Position

    begin = Position("time", past_ms(since, "--since")) if since else EARLIEST
    end = past_ms(until, "--until") if until else None
    if end is not None and since and end <= begin.number:
        raise UsageError("--until is not after --since", expected="a time after it", found=repr(until))
    opened = open_alerts(app_file, bootstrap)
    names = [opened.known(alert)] if alert else []
    rules = known_rules(opened.app, opened.ledger(), names)
    began = time.monotonic()
    found = judge(rules, _history(opened, rules, begin, end), until=min(now_ms(), end or now_ms()))
    if as_json:
        print_json(_as_dict(found))
        return
    _print_found(found, [each.name for each in rules], time.monotonic() - began)


def _history(opened: "Opened", rules: "Iterable[Rule]", begin: "Position", end: int | None) -> "Iterator[Arrived]":
    from riverrun.alerts.history import history
    from riverrun.kafka.admin.admin import Admin
    from riverrun.kafka.consumer.reader import spans
    from riverrun.model.when import Position

    topics = sorted({each.table.topic for each in rules})
    stop = Position("time", end) if end is not None else None
    where = spans(Admin(opened.connection), topics, start=begin, end=stop)
    total, done = sum((each.end or 0) - each.start for each in where.values()), 0
    with Progress("Judged") as progress:
        for arrived in history(opened.connection, topics, start=begin, end=stop):
            done += len(arrived.records)
            progress(done, total)
            yield arrived


def _unsent_rows(found: "DryRun") -> list[dict[str, Any]]:
    from riverrun.alerts.words import UNSENT

    return [
        {"alert": rule, "not_sent_because": UNSENT.get(stage, stage), "messages": count}
        for (rule, stage), count in sorted(found.unsent.items())
    ]


def _as_dict(found: "DryRun") -> dict[str, Any]:
    from riverrun.model.record import moment

    return {
        "messages": found.messages,
        "sent": found.rows(),
        "unsent": _unsent_rows(found),
        "waiting": found.waiting,
        "records": found.records,
        "misfits": found.misfits,
        "first": moment(found.first) if found.first >= 0 else None,
        "last": moment(found.last) if found.first >= 0 else None,
    }


def _print_found(found: "DryRun", names: list[str], seconds: float) -> None:
    from riverrun.alerts.words import clock_text

    if found.first < 0:
        say("There is no history: what is watched has no records in that time.")
        return
    print_rows(found.rows(), as_json=False, empty="Nothing would have been sent.")
    if unsent := _unsent_rows(found):
        click.echo()
        print_rows(unsent, as_json=False)
    span = f"between {clock_text(found.first)} and {clock_text(found.last)}"
    for name in names:
        count = sum(number for (rule, *_), number in found.sent.items() if rule == name)
        say(f"{name} would have sent {plural(count, 'message') if count else 'nothing'} {span}.")
    if found.waiting:
        say(f"{plural(found.waiting, 'message')} would still wait for the end of quiet hours or for a digest.")
    misfits = f", of which {found.misfits} are no rows" if found.misfits else ""
    say(f"{plural(found.records, 'record')} judged in {seconds:.1f} s{misfits}. Nothing was sent.")
