"""`riverrun dlq`: dead letters, counted by reason, shown, and sent back to the topics they came from."""

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.context import (
    admin_of,
    app_option,
    cluster_option,
    confirm,
    load_declared,
    load_settings,
    open_admin,
)
from riverrun.cli.output import CountProgress, json_option, plural, print_json, print_rows, say
from riverrun.errors import RiverrunError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.kafka.admin.admin import Admin
    from riverrun.kafka.dead_letters.reader import DeadLetterRecord, DeadLetterSelector
    from riverrun.kafka.dead_letters.redrive import Redrive, RedriveOutcome
    from riverrun.kafka.dead_letters.summary import DeadLetterSummary

_MAX_REASONS = 10
_DEFAULT_LIMIT = 20
_VALUE_CHARACTERS = 2000


@click.group(epilog="Example: riverrun dlq list && riverrun dlq redrive readings --fix mend.py:fix --dry-run")
def dlq() -> None:
    """Records that could not be handled: list them by reason, look at them, send them back after a fix.

    They are in the topic `NAME.dead` of each topic, with their bytes, where they were and why they are there.
    """


def _selection_options(command: "Callable[..., Any]") -> "Callable[..., Any]":
    for option in (
        click.option(
            "--offset", type=click.IntRange(min=0), help="Only the letter at this offset of the dead letters."
        ),
        click.option("--partition", type=click.IntRange(min=0), help="Only this partition of the dead letters."),
        click.option(
            "--where",
            "conditions",
            metavar="CONDITION",
            multiple=True,
            help="Only letters whose JSON has it: 'load_kw>2', 'house.street=Main'. Several must all hold.",
        ),
        click.option("--reason", metavar="TEXT", default="", help="Only letters whose error or message has this text."),
    ):
        command = option(command)
    return command


# --- list -------------------------------------------------------------------------------------------------------------


@dlq.command("list", epilog="Example: riverrun dlq list readings")
@click.argument("topic", required=False)
@cluster_option
@json_option
def list_(topic: str | None, bootstrap: str | None, as_json: bool) -> None:
    """Count the dead letters of every topic (of TOPIC only), and why they died, most frequent first.

    WAITING are those that were not re-driven. A reason is the error and its message without places, numbers and values.
    """
    from riverrun.kafka.dead_letters.reader import dead_letter_topics
    from riverrun.kafka.dead_letters.summary import summarize

    _, admin = open_admin(bootstrap)
    if topic is None:
        names = dead_letter_topics(admin)
    else:
        dead_topic = _find_dead_topic(admin, topic)
        names = [dead_topic] if dead_topic else []
    summaries = []
    for name in names:
        with CountProgress(f"{name}: read") as progress:
            summaries.append(summarize(admin, name, progress))
    if as_json:
        print_json([{**summary.row(), "reasons": summary.reason_rows()} for summary in summaries])
    elif topic is None and not any(summary.count.letters or summary.other_records for summary in summaries):
        say("There are no dead letters.")
    elif summaries:
        _print_summaries(summaries)


def _print_summaries(summaries: "list[DeadLetterSummary]") -> None:
    rows = [summary.row() for summary in summaries]
    # Columns that are shown only where they have a value.
    empty = [name for name in ("died_again", "no_letters") if not any(row[name] for row in rows)]
    print_rows([{name: value for name, value in row.items() if name not in empty} for row in rows], as_json=False)
    for summary in summaries:
        reasons = summary.reason_rows()
        if reasons:
            click.echo(f"\n{summary.topic}")
            print_rows(reasons[:_MAX_REASONS], as_json=False)
        if len(reasons) > _MAX_REASONS:
            say(f"… and {plural(len(reasons) - _MAX_REASONS, 'reason')} more: --json has all.")


# --- show -------------------------------------------------------------------------------------------------------------


@dlq.command(epilog="Example: riverrun dlq show readings --reason 'expected `float`' --limit 5")
@click.argument("topic")
@click.option(
    "--limit", "-n", type=click.IntRange(min=1), default=_DEFAULT_LIMIT, show_default=True, help="At most this many."
)
@click.option("--all", "with_redriven", is_flag=True, help="Show those that were re-driven as well.")
@_selection_options
@click.option(
    "--raw", is_flag=True, help="Write the bytes of one letter's value to stdout as they are; needs --offset."
)
@cluster_option
@json_option
def show(
    *,
    topic: str,
    limit: int,
    with_redriven: bool,
    reason: str,
    conditions: tuple[str, ...],
    partition: int | None,
    offset: int | None,
    raw: bool,
    bootstrap: str | None,
    as_json: bool,
) -> None:
    """Show dead letters of TOPIC, oldest first: where each came from, when and why it died, its key and value.

    What is not UTF-8 is shown in hexadecimal. A letter that --offset names is shown even when it was re-driven.
    """
    if raw and (offset is None or as_json):
        raise UsageError("--raw writes the bytes of one letter", hint="Name it with --offset, and leave out --json")
    selection = _selection(reason, conditions, partition, offset)
    _, admin = open_admin(bootstrap)
    dead_topic = _find_dead_topic(admin, topic)
    if not dead_topic:
        if as_json:
            print_json([])
        return
    dead_letters, more = _letters(
        admin, dead_topic, selection, limit, with_redriven=with_redriven or offset is not None
    )
    if raw:
        _write_raw(dead_letters[0][0] if dead_letters else None, dead_topic, offset or 0)
    elif as_json:
        print_json([dead_letter.row(redriven=redriven) for dead_letter, redriven in dead_letters])
    else:
        for dead_letter, redriven in dead_letters:
            click.echo(_letter_text(dead_letter.row(redriven=redriven)))
        if not dead_letters:
            say(f"There are no such letters in {dead_topic}" + ("." if with_redriven else " that were not re-driven."))
        elif more:
            say(f"The first {len(dead_letters)}; there are more: --limit N shows N.")


def _letters(
    admin: "Admin", dead: str, selection: "DeadLetterSelector", limit: int, *, with_redriven: bool
) -> "tuple[list[tuple[DeadLetterRecord, bool]], bool]":
    """The selected dead letters, each with whether it was re-driven, and whether there are more than `limit`."""
    from riverrun.kafka.dead_letters.reader import OriginTopics, count_offsets, read_dead_letters
    from riverrun.kafka.dead_letters.redrive_log import read_redrive_log

    redrive_log, origins, partition_spans = (
        read_redrive_log(admin, dead),
        OriginTopics(admin),
        selection.offset_ranges(admin, dead),
    )
    total = count_offsets(partition_spans)
    dead_letters: list[tuple[DeadLetterRecord, bool]] = []
    with CountProgress(f"{dead}: read") as progress:
        for number, dead_letter in enumerate(read_dead_letters(admin.connection, partition_spans), start=1):
            progress(number, total)
            if dead_letter is None or not selection.matches(dead_letter):
                continue
            redriven = redrive_log.has(dead_letter, origins.topic_id(dead_letter.details.topic))
            if redriven and not with_redriven:
                continue
            if len(dead_letters) == limit:
                return dead_letters, True
            dead_letters.append((dead_letter, redriven))
    return dead_letters, False


def _write_raw(dead_letter: "DeadLetterRecord | None", dead: str, offset: int) -> None:
    value = dead_letter.record.raw if dead_letter is not None else None
    if value is None:
        what = "is no dead letter" if dead_letter is None else "has no value: it is a deletion"
        raise UsageError(f"What is at offset {offset} of {dead} {what}")
    sys.stdout.buffer.write(value)
    sys.stdout.buffer.flush()


def _letter_text(row: dict[str, Any]) -> str:
    attempts = f" after {plural(row['attempts'], 'attempt')}" if row["attempts"] > 1 else ""
    group = f" by {row['group']}" if row["group"] else ""
    lines = [
        f"{row['letter']}  from {row['from']}, {row['at']}{group}{attempts}"
        + ("  RE-DRIVEN" if row["redriven"] else ""),
        f"  {row['error']}: {_safe(row['message'])}",
        f"  key    {_value_text(row, 'key')}",
        f"  value  {_value_text(row, 'value')}",
    ]
    headers = [f"{header['name']}={_value_text(header, 'value')}" for header in row["headers"]]
    if headers:
        lines.append(f"  headers  {', '.join(headers)}")
    return "\n".join(lines)


def _value_text(row: dict[str, Any], name: str) -> str:
    text = f"hex {row[f'{name}_hex']}" if f"{name}_hex" in row else "-" if row[name] is None else _safe(row[name])
    return text if len(text) <= _VALUE_CHARACTERS else f"{text[:_VALUE_CHARACTERS]}… (--raw or --json has all)"


def _safe(text: str) -> str:
    from riverrun.model.record import safe_text

    return safe_text(text.encode(errors="replace")).decode()


# --- redrive ----------------------------------------------------------------------------------------------------------


@dlq.command(epilog="Example: riverrun dlq redrive readings --reason 'expected `float`' --fix mend.py:fix --dry-run")
@click.argument("topic")
@_selection_options
@click.option("--limit", "-n", type=click.IntRange(min=1), help="Send at most this many.")
@click.option(
    "--fix",
    "fix_text",
    metavar="SCRIPT.py:FUNCTION",
    help="Mend each first: FUNCTION(value: bytes, letter: riverrun.DeadLetter) gives the new bytes, or None to leave it.",
)
@click.option("--dry-run", is_flag=True, help="Try the fix and check everything, and send nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before sending.")
@app_option
@cluster_option
@json_option
def redrive(
    *,
    topic: str,
    reason: str,
    conditions: tuple[str, ...],
    partition: int | None,
    offset: int | None,
    limit: int | None,
    fix_text: str | None,
    dry_run: bool,
    yes: bool,
    app_file: str | None,
    bootstrap: str | None,
    as_json: bool,
) -> None:
    """Send dead letters back to the topics they came from, each once, also after a crash in the middle.

    A record has its own key and headers again, and the header riverrun.redriven with its letter's topic/partition/offset.
    Where the app declares the topic's type, what is still no such event stays where it is, counted with its reason.

    All readers of the topic get the records, not only the one that gave them up. What was sent is noted in
    NAME.dead.redriven; the letters themselves stay until their retention ends.
    """
    from riverrun.kafka.dead_letters.fix import load_fix
    from riverrun.kafka.dead_letters.redrive import Redrive, RedriveOutcome

    selection = _selection(reason, conditions, partition, offset)
    # What the user's files print goes to stderr: stdout is for the result.
    with contextlib.redirect_stdout(sys.stderr):
        fix = load_fix(fix_text) if fix_text else None
        settings = load_settings(kafka__bootstrap_servers=bootstrap)
        app = load_declared(settings, app_file)
        admin = admin_of(settings)
        dead_topic = _find_dead_topic(admin, topic)
        outcome = RedriveOutcome()
        if dead_topic:
            job = Redrive(
                admin, dead_topic, selector=selection, limit=limit, fix=fix, topics=app.topics if app else None
            )
            with CountProgress(f"{dead_topic}: checked") as progress:
                outcome = job.plan(progress)
            if outcome.sent_count and not dry_run:
                _ask(dead_topic, job, outcome, yes=yes)
                outcome = _run(dead_topic, job)
    done = outcome.sent_count > 0 and not dry_run
    if as_json:
        print_json({"topic": dead_topic, "dry_run": dry_run, **outcome.as_dict()})
    elif dead_topic:
        print_rows(outcome.rows("sent" if done else "would be sent"), as_json=False, empty=f"{dead_topic} is empty.")
        _print_summary(outcome, done=done, dry_run=dry_run)


def _ask(dead: str, work: "Redrive", outcome: "RedriveOutcome", *, yes: bool) -> None:
    checked = (
        "each value is an event of its topic's type"
        if work.checks_types
        else "values are not checked: no type is declared"
    )
    lines = [f"{plural(count, 'record')} to {topic}" for topic, count in outcome.sent.items()]
    if outcome.left_count:
        lines.append(f"{plural(outcome.left_count, 'letter')} would be left")
    confirm("Send them?", f"{dead} would be re-driven ({checked})", lines, yes=yes)


def _run(dead: str, work: "Redrive") -> "RedriveOutcome":
    try:
        with CountProgress(f"{dead}: sent") as progress:
            return work.run(progress)
    except KeyboardInterrupt:
        say(f"\nStopped: {plural(work.done.sent_count, 'letter')} of {dead} re-driven; the rest waits as before.")
        raise click.exceptions.Exit(130) from None
    except RiverrunError:
        say(f"{plural(work.done.sent_count, 'letter')} of {dead} re-driven before this; the rest waits as before.")
        raise


def _print_summary(outcome: "RedriveOutcome", *, done: bool, dry_run: bool) -> None:
    if outcome.gone:
        say(f"{plural(outcome.gone, 'letter')} were removed by retention before they could be read.")
    if dry_run:
        say("Nothing was sent.")
    elif not done:
        say("There was nothing to send.")
    if outcome.left_count:
        say(f"{plural(outcome.left_count, 'letter')} left: they can be mended and re-driven later.")


# --- shared by all subcommands ----------------------------------------------------------------------------------------


def _find_dead_topic(admin: "Admin", topic: str) -> str:
    """The selected dead-letter topic; "", and a message, where there never was a dead letter."""
    from riverrun.kafka.dead_letters.reader import find_dead_letter_topic

    dead_topic = find_dead_letter_topic(admin, topic)
    if not dead_topic:
        say(f"Nothing of {topic} is dead.")
    return dead_topic


def _selection(
    reason: str, conditions: tuple[str, ...], partition: int | None, offset: int | None
) -> "DeadLetterSelector":
    from riverrun.kafka.dead_letters.reader import DeadLetterSelector
    from riverrun.model.filters import parse_filter

    return DeadLetterSelector(reason, [parse_filter(condition) for condition in conditions], partition, offset)
