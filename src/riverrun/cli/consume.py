"""`riverrun consume`: print the records of topics, at a prompt or into a pipe."""

import contextlib
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from riverrun.cli.context import cluster_option, open_admin
from riverrun.cli.output import plural, say
from riverrun.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.cli.records import Printer
    from riverrun.errors import OffsetGoneError
    from riverrun.kafka.admin.admin import Admin
    from riverrun.kafka.consumer.reader import Span
    from riverrun.model.record import RawRecord
    from riverrun.model.state import Place
    from riverrun.model.when import Position
    from riverrun.model.where import Condition


_BATCH = 2000


class _Enough(Exception):  # noqa: N818  -- the normal end of --limit
    """As many records as were asked for are printed."""


@dataclass(frozen=True)
class _Wanted:
    """Which records."""

    topics: tuple[str, ...]
    start: "Position"
    end: "Position | None"
    follow: bool
    partitions: tuple[int, ...]


@dataclass
class _Output:
    """Filters, counts and prints."""

    printer: "Printer"
    conditions: "Sequence[Condition]"
    limit: int | None
    # Shows what is behind a schema registry's header as JSON.
    opened: "Callable[[Sequence[RawRecord]], Sequence[RawRecord]]" = lambda records: records
    read: int = 0
    printed: int = 0

    def take(self, records: "Sequence[RawRecord]") -> None:
        from riverrun.cli.records import check_pipe

        if not records:
            self.printer.flush()
            check_pipe()
            return
        self.read += len(records)
        records = self.opened(records)
        if self.conditions:
            records = self._matching(records)
        if self.limit is not None:
            records = records[: self.limit - self.printed]
        if records:
            # Counted first: whoever presses Ctrl-C as soon as a record is there sees it counted.
            self.printed += len(records)
            self.printer.print(records)
        if self.limit is not None and self.printed >= self.limit:
            raise _Enough

    def room(self) -> int:
        """How many records may be fetched at once, so that none beyond --limit is committed."""
        left = _BATCH if self.limit is None else min(_BATCH, self.limit - self.printed)
        return min(1, left) if self.conditions and self.limit is not None else left

    def _matching(self, records: "Sequence[RawRecord]") -> "list[RawRecord]":
        from riverrun.model.record import json_value

        found = []
        for record in records:
            is_json, value = json_value(record.value())
            if is_json and all(condition.holds(value) for condition in self.conditions):
                found.append(record)
        return found


@click.command(epilog="Example: riverrun consume readings --from '10 minutes ago' --where 'load_kw>2' --table")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    help="earliest, latest, an offset, -N for the last N records of a topic, or a time such as '10 minutes ago'.",
)
@click.option("--to", "end", help="Stop before this offset or time. [default: what is there now]")
@click.option("--follow", "-f", is_flag=True, help="Go on with new records; Ctrl-C ends it.")
@click.option("--limit", "-n", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this partition.")
@click.option(
    "--where",
    "conditions",
    metavar="CONDITION",
    multiple=True,
    help="Only records whose JSON has it: 'load_kw>2', 'house.street=Main', 'note~fire'. Several must all hold.",
)
@click.option("--group", default="", help="Read as this group, from where it stands, and commit what is printed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: place, time, key, value, headers.")
@click.option("--table", "as_table", is_flag=True, help="A table, with a column for each field.")
@click.option("--keys", "with_key", is_flag=True, help="Print the key and a tab before each value.")
@cluster_option
def consume(
    *,
    topics: tuple[str, ...],
    start: str,
    end: str | None,
    follow: bool,
    limit: int | None,
    partitions: tuple[int, ...],
    conditions: tuple[str, ...],
    group: str,
    as_json: bool,
    as_table: bool,
    with_key: bool,
    bootstrap: str | None,
) -> None:
    """Print the records of topics: by default all there are now, each value on a line as it is.

    Order holds within a partition. Only committed records of transactions are shown. A deleted key prints as null.
    """
    from riverrun.cli.records import printer
    from riverrun.kafka.registry.opening import opened
    from riverrun.model.when import parse_position
    from riverrun.model.where import parse_condition

    if as_json and as_table:
        raise UsageError("--json and --table cannot be had at once")
    if follow and end is not None:
        raise UsageError("--follow has no end, and --to is one", hint="Leave one of them out")
    if group and end is not None:
        raise UsageError("A group reads to the end, and --to is another", hint="Leave --to or --group out")
    wanted = _Wanted(
        topics,
        parse_position(start, what="--from"),
        parse_position(end, what="--to") if end is not None else None,
        follow,
        partitions,
    )
    output = _Output(
        printer(as_json=as_json, as_table=as_table, with_key=with_key, several_topics=len(topics) > 1),
        [parse_condition(each) for each in conditions],
        limit,
    )
    settings, admin = open_admin(bootstrap)
    output.opened = partial(opened, settings.settings.registry)
    try:
        if group:
            _as_group(admin, group, wanted, output)
        else:
            _plainly(admin, wanted, output)
        output.printer.flush()
    except _Enough:
        output.printer.flush()
    except KeyboardInterrupt:
        output.printer.flush()
        say(f"\n{_counted(output)}")
        raise click.exceptions.Exit(0 if follow else 130) from None
    _remark(output, topics)


def _plainly(admin: "Admin", wanted: "_Wanted", output: _Output) -> None:
    from riverrun.kafka.consumer.reader import Reader, newest, spans

    tail = wanted.start.kind == "last"
    todo = spans(
        admin,
        wanted.topics,
        start=wanted.start,
        end=wanted.end,
        follow=wanted.follow and not tail,
        partitions=wanted.partitions,
    )
    if tail:
        with Reader(admin.connection, todo, on_gone=_gone, on_cut=_cut, on_trouble=_trouble) as reader:
            output.take(newest(reader, wanted.start.number))
        todo = {place: _rest(span) for place, span in todo.items()} if wanted.follow else {}
    with Reader(admin.connection, todo, on_gone=_gone, on_cut=_cut, on_trouble=_trouble) as reader:
        for batch in reader:
            output.take(batch)


def _as_group(admin: "Admin", group: str, wanted: "_Wanted", output: _Output) -> None:
    from riverrun.kafka.consumer.reader import read_as_group

    for name in wanted.topics:
        admin.topic(name)
    batches = read_as_group(
        admin.connection,
        group,
        wanted.topics,
        start=wanted.start,
        follow=wanted.follow,
        partitions=wanted.partitions,
        most=output.room,
        on_gone=lambda error: say(str(error)),
    )
    for batch in batches:
        # When --limit is reached, there is no more room, and the iteration ends after it has committed this batch.
        with contextlib.suppress(_Enough):
            output.take(batch)
        output.printer.flush()


def _rest(span: "Span") -> "Span":
    """What comes after a span, without an end."""
    return type(span)(span.end if span.end is not None else span.start, None)


def _gone(place: "Place", first: int, count: int) -> None:
    say(f"{plural(count, 'record')} of {place} from offset {first} on are gone: removed before they could be read.")


def _cut(error: "OffsetGoneError") -> None:
    say(f"{error.what}. Reading goes on with its first record.")


def _trouble(text: str) -> None:
    say(f"{text}; waiting for it." if text else "The brokers answer again.")


def _counted(output: _Output) -> str:
    count = plural(output.read if output.conditions else output.printed, "record")
    return f"{output.printed} of {count}." if output.conditions else f"{count}."


def _remark(output: _Output, topics: tuple[str, ...]) -> None:
    """A word at a prompt, and always when there was nothing: silence looks like a hang."""
    if not output.read:
        say(f"There are no such records in {', '.join(topics)}.")
    elif output.conditions or (sys.stdout.isatty() and sys.stderr.isatty()):
        say(_counted(output))
