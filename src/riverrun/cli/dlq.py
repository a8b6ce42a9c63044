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
    loaded,
    open_admin,
)
from riverrun.cli.output import Progress, json_option, plural, print_json, print_rows, say
from riverrun.errors import RiverrunError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.kafka.admin.admin import Admin
    from riverrun.kafka.dead_letters.letter import Letter, Selection
    from riverrun.kafka.dead_letters.redrive import Outcome, Redrive
    from riverrun.kafka.dead_letters.summary import Summary

_REASONS = 10
_SHOWN = 20
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
    from riverrun.kafka.dead_letters.letter import dead_topics
    from riverrun.kafka.dead_letters.summary import summarize

    _, admin = open_admin(bootstrap)
    if topic is None:
        names = dead_topics(admin)
    else:
        found = _find(admin, topic)
        names = [found] if found else []
    summaries = []
    for name in names:
        with Progress(f"{name}: read") as progress:
            summaries.append(summarize(admin, name, progress))
    if as_json:
        print_json([{**each.row(), "reasons": each.reason_rows()} for each in summaries])
    elif topic is None and not any(each.count.letters or each.other for each in summaries):
        say("There are no dead letters.")
    elif summaries:
        _print_summaries(summaries)


def _print_summaries(summaries: "list[Summary]") -> None:
    rows = [each.row() for each in summaries]
    # Columns that are of interest only where there is something in them.
    empty = [name for name in ("died_again", "no_letters") if not any(row[name] for row in rows)]
    print_rows([{name: value for name, value in row.items() if name not in empty} for row in rows], as_json=False)
    for each in summaries:
        reasons = each.reason_rows()
        if reasons:
            click.echo(f"\n{each.topic}")
            print_rows(reasons[:_REASONS], as_json=False)
        if len(reasons) > _REASONS:
            say(f"… and {plural(len(reasons) - _REASONS, 'reason')} more: --json has all.")


# --- show -------------------------------------------------------------------------------------------------------------


@dlq.command(epilog="Example: riverrun dlq show readings --reason 'expected `float`' --limit 5")
@click.argument("topic")
@click.option("--limit", "-n", type=click.IntRange(min=1), default=_SHOWN, show_default=True, help="At most this many.")
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
    dead = _find(admin, topic)
    if not dead:
        if as_json:
            print_json([])
        return
    found, more = _letters(admin, dead, selection, limit, with_redriven=with_redriven or offset is not None)
    if raw:
        _write_raw(found[0][0] if found else None, dead, offset or 0)
    elif as_json:
        print_json([letter.row(redriven=redriven) for letter, redriven in found])
    else:
        for letter, redriven in found:
            click.echo(_block(letter.row(redriven=redriven)))
        if not found:
            say(f"There are no such letters in {dead}" + ("." if with_redriven else " that were not re-driven."))
        elif more:
            say(f"The first {len(found)}; there are more: --limit N shows N.")


def _letters(
    admin: "Admin", dead: str, selection: "Selection", limit: int, *, with_redriven: bool
) -> "tuple[list[tuple[Letter, bool]], bool]":
    """The letters that are meant, each with whether it was re-driven, and whether there are more than `limit`."""
    from riverrun.kafka.dead_letters.ledger import read_ledger
    from riverrun.kafka.dead_letters.letter import Origins, count_of, read_letters

    ledger, origins, where = read_ledger(admin, dead), Origins(admin), selection.spans(admin, dead)
    total = count_of(where)
    found: list[tuple[Letter, bool]] = []
    with Progress(f"{dead}: read") as progress:
        for number, letter in enumerate(read_letters(admin.connection, where), start=1):
            progress(number, total)
            if letter is None or not selection.takes(letter):
                continue
            redriven = ledger.has(letter, origins.topic_id(letter.told.topic))
            if redriven and not with_redriven:
                continue
            if len(found) == limit:
                return found, True
            found.append((letter, redriven))
    return found, False


def _write_raw(letter: "Letter | None", dead: str, offset: int) -> None:
    value = letter.record.raw if letter is not None else None
    if value is None:
        what = "is no dead letter" if letter is None else "has no value: it is a deletion"
        raise UsageError(f"What is at offset {offset} of {dead} {what}")
    sys.stdout.buffer.write(value)
    sys.stdout.buffer.flush()


def _block(row: dict[str, Any]) -> str:
    attempts = f" after {plural(row['attempts'], 'attempt')}" if row["attempts"] > 1 else ""
    group = f" by {row['group']}" if row["group"] else ""
    lines = [
        f"{row['letter']}  from {row['from']}, {row['at']}{group}{attempts}"
        + ("  RE-DRIVEN" if row["redriven"] else ""),
        f"  {row['error']}: {_safe(row['message'])}",
        f"  key    {_shown(row, 'key')}",
        f"  value  {_shown(row, 'value')}",
    ]
    headers = [f"{each['name']}={_shown(each, 'value')}" for each in row["headers"]]
    if headers:
        lines.append(f"  headers  {', '.join(headers)}")
    return "\n".join(lines)


def _shown(row: dict[str, Any], name: str) -> str:
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
    from riverrun.kafka.dead_letters.redrive import Outcome, Redrive

    selection = _selection(reason, conditions, partition, offset)
    # What the user's files print is a remark: stdout is for the result.
    with contextlib.redirect_stdout(sys.stderr):
        fix = load_fix(fix_text) if fix_text else None
        settings = loaded(kafka__bootstrap_servers=bootstrap)
        app = load_declared(settings, app_file)
        admin = admin_of(settings)
        dead = _find(admin, topic)
        outcome = Outcome()
        if dead:
            work = Redrive(admin, dead, selection=selection, limit=limit, fix=fix, topics=app.topics if app else None)
            with Progress(f"{dead}: checked") as progress:
                outcome = work.plan(progress)
            if outcome.sent_count and not dry_run:
                _ask(dead, work, outcome, yes=yes)
                outcome = _run(dead, work)
    done = outcome.sent_count > 0 and not dry_run
    if as_json:
        print_json({"topic": dead, "dry_run": dry_run, **outcome.as_dict()})
    elif dead:
        print_rows(outcome.rows("sent" if done else "would be sent"), as_json=False, empty=f"{dead} is empty.")
        _remark(outcome, done=done, dry_run=dry_run)


def _ask(dead: str, work: "Redrive", outcome: "Outcome", *, yes: bool) -> None:
    checked = (
        "each value is an event of its topic's type" if work.typed else "values are not checked: no type is declared"
    )
    lines = [f"{plural(count, 'record')} to {topic}" for topic, count in outcome.sent.items()]
    if outcome.left_count:
        lines.append(f"{plural(outcome.left_count, 'letter')} would be left")
    confirm("Send them?", f"{dead} would be re-driven ({checked})", lines, yes=yes)


def _run(dead: str, work: "Redrive") -> "Outcome":
    try:
        with Progress(f"{dead}: sent") as progress:
            return work.run(progress)
    except KeyboardInterrupt:
        say(f"\nStopped: {plural(work.done.sent_count, 'letter')} of {dead} re-driven; the rest waits as before.")
        raise click.exceptions.Exit(130) from None
    except RiverrunError:
        say(f"{plural(work.done.sent_count, 'letter')} of {dead} re-driven before this; the rest waits as before.")
        raise


def _remark(outcome: "Outcome", *, done: bool, dry_run: bool) -> None:
    if outcome.gone:
        say(f"{plural(outcome.gone, 'letter')} were removed by retention before they could be read.")
    if dry_run:
        say("Nothing was sent.")
    elif not done:
        say("There was nothing to send.")
    if outcome.left_count:
        say(f"{plural(outcome.left_count, 'letter')} left: they can be mended and re-driven later.")


# --- all of them ------------------------------------------------------------------------------------------------------


def _find(admin: "Admin", topic: str) -> str:
    """The dead-letter topic that is meant; "", and a word about it, where nothing was ever dead."""
    from riverrun.kafka.dead_letters.letter import find_dead_topic

    found = find_dead_topic(admin, topic)
    if not found:
        say(f"Nothing of {topic} is dead.")
    return found


def _selection(reason: str, conditions: tuple[str, ...], partition: int | None, offset: int | None) -> "Selection":
    from riverrun.kafka.dead_letters.letter import Selection
    from riverrun.model.where import parse_condition

    return Selection(reason, [parse_condition(each) for each in conditions], partition, offset)
