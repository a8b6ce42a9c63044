"""Trying alerts: what one would send now, and what all would have sent over history."""

import time
from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.alerts_context import now_ms, one_line, open_alerts, parse_past_ms, require_rules
from riverrun.cli.context import app_option, cluster_option, confirm
from riverrun.cli.output import CountProgress, json_option, plural, print_json, print_rows, say
from riverrun.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from riverrun.alerts.channels.contract import Channel
    from riverrun.alerts.dry_run import DryRunResult
    from riverrun.alerts.engine import PollResult
    from riverrun.alerts.preview import RulePreview
    from riverrun.alerts.rows import WatchedRow
    from riverrun.alerts.rules import Rule
    from riverrun.cli.alerts_context import AlertsContext
    from riverrun.model.positions import OffsetSpec

# Invalid records may lie between.
_SEARCHED_RECORDS = 50


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
    [rule] = require_rules(opened.app, opened.ledger(), [opened.require_alert(alert)])
    from riverrun.alerts.channels.factory import open_channels
    from riverrun.alerts.preview import parse_row, preview_rule
    from riverrun.cli.alerts_run import local_phones

    tried_row = parse_row(rule, row, now_ms()) if row else _newest_row(opened, rule)
    trial = preview_rule(rule, tried_row, to)
    if send and not to and trial.receivers:
        confirm(
            "Send it to them?",
            "A test message would go to whom the row names",
            list(map(one_line, trial.receivers)),
            yes=yes,
        )
    settings = opened.settings
    phones = local_phones(settings, {rule.alert.channel}, seconds=0)
    channels, _ = open_channels(settings.settings.alerts, settings.project.root, local_gateway=phones)
    try:
        messages = [_try_message(trial, receiver, channels, send=send) for receiver in trial.receivers]
    finally:
        for channel in channels.values():
            channel.close()
    problems = [message["problem"] for message in messages if message["problem"]]
    if not messages:
        problems = ["the row names nobody to send it to"]
    result = {
        "alert": alert,
        "key": trial.key,
        "row": dict(tried_row.values),
        "place": "" if row else str(tried_row),
        "holds": trial.holds,
        "text": trial.text,
        "resolved": trial.resolved,
        "messages": messages,
        "problems": problems,
    }
    print_json(result) if as_json else _print_trial(trial, result)
    if problems or any(message["sent"] is False for message in messages):
        click.get_current_context().exit(1)


def _newest_row(opened: "AlertsContext", rule: "Rule") -> "WatchedRow":
    from riverrun.alerts.kafka_log import to_input_record
    from riverrun.alerts.preview import find_newest_row
    from riverrun.kafka.admin.admin import Admin
    from riverrun.kafka.reading.newest_records import read_newest_records

    records = read_newest_records(Admin(opened.connection), rule.table.topic, _SEARCHED_RECORDS).records
    newest = find_newest_row(rule, map(to_input_record, records))
    if newest is None:
        description = f"{plural(len(records), 'record')} that are none" if records else "no records"
        raise UsageError(f"There is no row in {rule.table.topic}", found=description, hint="Give one: --row '{…}'")
    return newest


def _try_message(
    trial: "RulePreview", receiver: str, channels: "Mapping[str, Channel]", *, send: bool
) -> dict[str, Any]:
    from riverrun.alerts.preview import send_test_message
    from riverrun.cli.alerts_run import missing_channel_text

    message = trial.message(receiver, mark_as_test=send, now=now_ms())
    channel = channels.get(message.channel)
    result: dict[str, Any] = {"receiver": receiver, "channel": message.channel, "parts": None, "problem": ""}
    result |= {"sent": None, "answer": ""}
    if channel is None:
        return result | {"problem": missing_channel_text(message.channel)}
    weight = channel.check(message)
    result |= {"parts": weight.parts, "problem": weight.problem}
    if send and not weight.problem:
        result["sent"], result["answer"] = send_test_message(channel, message)
    return result


def _print_trial(trial: "RulePreview", result: dict[str, Any]) -> None:
    alert = trial.rule.alert
    where = f"the row {result['place']}" if result["place"] else "the given row"
    holds = {None: "silence is not told by one row", True: f"{alert.when or 'every row'}: holds there"}
    condition_text = holds.get(trial.holds, f"{alert.when}: does not hold there")
    click.echo(f"{alert.name} {one_line(trial.key)}, by {where} ({condition_text})")
    click.echo(f"  text      {one_line(trial.text)}")
    if trial.resolved:
        click.echo(f"  resolved  {one_line(trial.resolved)}")
    for message in result["messages"]:
        parts = f", {plural(message['parts'], 'part')}" if message["parts"] and not message["problem"] else ""
        click.echo(f"  to        {one_line(message['receiver'])} by {message['channel']}{parts}")
        if message["answer"]:
            click.echo(f"  {'sent' if message['sent'] else 'NOT SENT':<9} {one_line(message['answer'])}")
    for problem in result["problems"]:
        click.echo(f"  problem   {one_line(problem)}")
    if not result["problems"] and all(message["sent"] is None for message in result["messages"]):
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
    from riverrun.model.positions import EARLIEST, OffsetSpec

    begin = OffsetSpec("time", parse_past_ms(since, "--since")) if since else EARLIEST
    end = parse_past_ms(until, "--until") if until else None
    if end is not None and since and end <= begin.number:
        raise UsageError("--until is not after --since", expected="a time after it", found=repr(until))
    opened = open_alerts(app_file, bootstrap)
    names = [opened.require_alert(alert)] if alert else []
    rules = require_rules(opened.app, opened.ledger(), names)
    began = time.monotonic()
    result = judge(rules, _history(opened, rules, begin, end), until=min(now_ms(), end or now_ms()))
    if as_json:
        print_json(_as_dict(result))
        return
    _print_dry_run(result, [rule.name for rule in rules], time.monotonic() - began)


def _history(
    opened: "AlertsContext", rules: "Iterable[Rule]", begin: "OffsetSpec", end: int | None
) -> "Iterator[PollResult]":
    from riverrun.alerts.history import read_history
    from riverrun.kafka.admin.admin import Admin
    from riverrun.kafka.reading.partition_reader import resolve_offset_ranges
    from riverrun.model.positions import OffsetSpec

    topics = sorted({rule.table.topic for rule in rules})
    stop = OffsetSpec("time", end) if end is not None else None
    partition_spans = resolve_offset_ranges(Admin(opened.connection), topics, start=begin, end=stop)
    total, done = sum((span.end or 0) - span.start for span in partition_spans.values()), 0
    with CountProgress("Judged") as progress:
        for arrived in read_history(opened.connection, topics, start=begin, end=stop):
            done += len(arrived.records)
            progress(done, total)
            yield arrived


def _unsent_rows(result: "DryRunResult") -> list[dict[str, Any]]:
    from riverrun.alerts.formatting import UNSENT_REASONS

    return [
        {"alert": rule, "not_sent_because": UNSENT_REASONS.get(stage, stage), "messages": count}
        for (rule, stage), count in sorted(result.unsent.items())
    ]


def _as_dict(result: "DryRunResult") -> dict[str, Any]:
    from riverrun.model.record import format_timestamp

    return {
        "messages": result.messages,
        "sent": result.rows(),
        "unsent": _unsent_rows(result),
        "waiting": result.waiting,
        "records": result.records,
        "misfits": result.rejected_rows,
        "first": format_timestamp(result.first) if result.first >= 0 else None,
        "last": format_timestamp(result.last) if result.first >= 0 else None,
    }


def _print_dry_run(result: "DryRunResult", names: list[str], seconds: float) -> None:
    from riverrun.alerts.formatting import format_time

    if result.first < 0:
        say("There is no history: what is watched has no records in that time.")
        return
    print_rows(result.rows(), as_json=False, empty="Nothing would have been sent.")
    if unsent := _unsent_rows(result):
        click.echo()
        print_rows(unsent, as_json=False)
    span = f"between {format_time(result.first)} and {format_time(result.last)}"
    for name in names:
        count = sum(number for (rule, *_), number in result.sent.items() if rule == name)
        say(f"{name} would have sent {plural(count, 'message') if count else 'nothing'} {span}.")
    if result.waiting:
        say(f"{plural(result.waiting, 'message')} would still wait for the end of quiet hours or for a digest.")
    misfits = f", of which {result.rejected_rows} are no rows" if result.rejected_rows else ""
    say(f"{plural(result.records, 'record')} judged in {seconds:.1f} s{misfits}. Nothing was sent.")
