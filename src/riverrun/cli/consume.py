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

    from riverrun.cli.record_printers import Printer
    from riverrun.errors import OffsetOutOfRangeError
    from riverrun.kafka.admin.admin import Admin
    from riverrun.kafka.reading.partition_reader import OffsetRange
    from riverrun.model.cluster_state import TopicPartition
    from riverrun.model.filters import FieldFilter
    from riverrun.model.positions import OffsetSpec
    from riverrun.model.record import RawRecord


_BATCH = 2000


class _LimitReached(Exception):  # noqa: N818  -- the normal end of --limit
    """As many records as requested are printed."""


@dataclass(frozen=True)
class _ReadRequest:
    """Which records to read."""

    topics: tuple[str, ...]
    start: "OffsetSpec"
    end: "OffsetSpec | None"
    follow: bool
    partitions: tuple[int, ...]


@dataclass
class _Output:
    """Filters, counts and prints."""

    printer: "Printer"
    conditions: "Sequence[FieldFilter]"
    limit: int | None
    # Decodes values with a schema registry's header to JSON.
    decode: "Callable[[Sequence[RawRecord]], Sequence[RawRecord]]" = lambda records: records
    read: int = 0
    printed: int = 0

    def take(self, records: "Sequence[RawRecord]") -> None:
        from riverrun.cli.record_printers import check_pipe

        if not records:
            self.printer.flush()
            check_pipe()
            return
        self.read += len(records)
        records = self.decode(records)
        if self.conditions:
            records = self._matching(records)
        if self.limit is not None:
            records = records[: self.limit - self.printed]
        if records:
            # Counted first: whoever presses Ctrl-C as soon as a record is printed sees it counted.
            self.printed += len(records)
            self.printer.print(records)
        if self.limit is not None and self.printed >= self.limit:
            raise _LimitReached

    def fetch_size(self) -> int:
        """How many records may be fetched at once, so that none beyond --limit is committed."""
        left = _BATCH if self.limit is None else min(_BATCH, self.limit - self.printed)
        return min(1, left) if self.conditions and self.limit is not None else left

    def _matching(self, records: "Sequence[RawRecord]") -> "list[RawRecord]":
        from riverrun.model.record import decode_json

        matching = []
        for record in records:
            is_json, value = decode_json(record.value())
            if is_json and all(condition.matches(value) for condition in self.conditions):
                matching.append(record)
        return matching


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
    from riverrun.cli.record_printers import make_printer
    from riverrun.kafka.registry.json_view import records_to_json
    from riverrun.model.filters import parse_filter
    from riverrun.model.positions import parse_offset_spec

    if as_json and as_table:
        raise UsageError("--json and --table cannot be had at once")
    if follow and end is not None:
        raise UsageError("--follow has no end, and --to is one", hint="Leave one of them out")
    if group and end is not None:
        raise UsageError("A group reads to the end, and --to is another", hint="Leave --to or --group out")
    request = _ReadRequest(
        topics,
        parse_offset_spec(start, what="--from"),
        parse_offset_spec(end, what="--to") if end is not None else None,
        follow,
        partitions,
    )
    output = _Output(
        make_printer(as_json=as_json, as_table=as_table, with_key=with_key, several_topics=len(topics) > 1),
        [parse_filter(condition) for condition in conditions],
        limit,
    )
    settings, admin = open_admin(bootstrap)
    output.decode = partial(records_to_json, settings.settings.registry)
    try:
        if group:
            _read_as_member(admin, group, request, output)
        else:
            _read_partitions(admin, request, output)
        output.printer.flush()
    except _LimitReached:
        output.printer.flush()
    except KeyboardInterrupt:
        output.printer.flush()
        say(f"\n{_count_text(output)}")
        raise click.exceptions.Exit(0 if follow else 130) from None
    _print_summary(output, topics)


def _read_partitions(admin: "Admin", request: "_ReadRequest", output: _Output) -> None:
    from riverrun.kafka.reading.partition_reader import PartitionReader, newest_per_topic, resolve_offset_ranges

    tail = request.start.kind == "last"
    partition_spans = resolve_offset_ranges(
        admin,
        request.topics,
        start=request.start,
        end=request.end,
        follow=request.follow and not tail,
        partitions=request.partitions,
    )
    if tail:
        with PartitionReader(
            admin.connection,
            partition_spans,
            on_gone=_report_expired,
            on_truncated=_report_truncated,
            on_unreachable=_report_trouble,
        ) as reader:
            output.take(newest_per_topic(reader, request.start.number))
        partition_spans = (
            {partition: _following_span(span) for partition, span in partition_spans.items()} if request.follow else {}
        )
    with PartitionReader(
        admin.connection,
        partition_spans,
        on_gone=_report_expired,
        on_truncated=_report_truncated,
        on_unreachable=_report_trouble,
    ) as reader:
        for batch in reader:
            output.take(batch)


def _read_as_member(admin: "Admin", group: str, request: "_ReadRequest", output: _Output) -> None:
    from riverrun.kafka.reading.partition_reader import read_as_group

    for name in request.topics:
        admin.topic(name)
    batches = read_as_group(
        admin.connection,
        group,
        request.topics,
        start=request.start,
        follow=request.follow,
        partitions=request.partitions,
        max_records=output.fetch_size,
        on_gone=lambda error: say(str(error)),
    )
    for batch in batches:
        # When --limit is reached, fetch_size is 0, and the iteration ends after it has committed this batch.
        with contextlib.suppress(_LimitReached):
            output.take(batch)
        output.printer.flush()


def _following_span(span: "OffsetRange") -> "OffsetRange":
    """The span after this one, without an end."""
    return type(span)(span.end if span.end is not None else span.start, None)


def _report_expired(partition: "TopicPartition", first: int, count: int) -> None:
    say(f"{plural(count, 'record')} of {partition} from offset {first} on are gone: removed before they could be read.")


def _report_truncated(error: "OffsetOutOfRangeError") -> None:
    say(f"{error.what}. Reading goes on with its first record.")


def _report_trouble(text: str) -> None:
    say(f"{text}; waiting for it." if text else "The brokers answer again.")


def _count_text(output: _Output) -> str:
    count = plural(output.read if output.conditions else output.printed, "record")
    return f"{output.printed} of {count}." if output.conditions else f"{count}."


def _print_summary(output: _Output, topics: tuple[str, ...]) -> None:
    """Print a summary at a prompt, and always when there was nothing: silence looks like a hang."""
    if not output.read:
        say(f"There are no such records in {', '.join(topics)}.")
    elif output.conditions or (sys.stdout.isatty() and sys.stderr.isatty()):
        say(_count_text(output))
