"""`riverrun produce`: send lines from stdin or a file as records."""

import os
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

import click

from riverrun.cli.context import admin_of, app_option, cluster_option, load_declared, load_settings
from riverrun.cli.output import json_option, plural, print_json, say
from riverrun.errors import TopicNotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun.config import LoadedSettings
    from riverrun.kafka.admin.admin import Admin
    from riverrun.kafka.producer.line_sender import LineCounts
    from riverrun.model.event import Event, EventSchema
    from riverrun.model.lines import BadLine, LineRecord
    from riverrun.model.topic import Topic

# How many bad lines are shown before they are only counted.
_MAX_SHOWN = 10


@click.command(epilog="Example: riverrun produce readings readings.jsonl --key house_id --create --partitions 4")
@click.argument("topic")
@click.argument("file", required=False, type=click.Path())
@click.option("--csv", "as_csv", is_flag=True, help="The lines are CSV, after a row of names.")
@click.option("--text", "as_text", is_flag=True, help="The lines are any text, not JSON.")
@click.option("--key", metavar="FIELD", default="", help="The field whose value is the key; dots lead inside.")
@click.option("--key-separator", metavar="TEXT", default="", help=r"Lines are key, this, value. \t is a tab.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header for every record.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Send at most this many records a second.")
@click.option("--create", is_flag=True, help="Create the topic if it is not there.")
@click.option(
    "--partitions", type=click.IntRange(min=1), help="Partitions of a topic that --create makes. [default: 1]"
)
@app_option
@click.option("--skip-bad", is_flag=True, help="Go on after lines that are no records, and count them.")
@click.option("--bad-to", metavar="FILE", type=click.Path(), help="Write such lines to this file, and go on.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=60,
    show_default=True,
    help="Seconds after which a record that is not acknowledged has failed.",
)
@cluster_option
@json_option
def produce(
    *,
    topic: str,
    file: str | None,
    as_csv: bool,
    as_text: bool,
    key: str,
    key_separator: str,
    headers: tuple[str, ...],
    rate: float | None,
    create: bool,
    partitions: int | None,
    app_file: str | None,
    skip_bad: bool,
    bad_to: str | None,
    timeout: float,
    bootstrap: str | None,
    as_json: bool,
) -> None:
    """Send records from stdin or FILE: one JSON value a line, sent as it stands.

    A topic that the app declares with a type takes only events of that type; any other takes any JSON. Stops at the first
    line that is no record, and says how many were acknowledged before it.
    """
    from riverrun.cli.stall_watch import StallWatch, server_problem
    from riverrun.kafka.producer.line_sender import LineSender
    from riverrun.model.rate_limit import ThroughputThrottler

    separator = key_separator.replace("\\t", "\t").encode()
    _check_flags(as_csv=as_csv, as_text=as_text, key=key, separator=separator)
    settings = load_settings(kafka__bootstrap_servers=bootstrap)
    declared = _declared(settings, app_file, topic)
    admin = admin_of(settings)
    schema = declared.schema if declared is not None and not as_text else None
    if schema is not None and (key or separator):
        raise UsageError(
            f"The key of {topic} is declared: {schema.key_field or 'none'}", hint="Leave out --key and --key-separator"
        )
    limit, count = _topic(admin, topic, declared, create=create, partitions=partitions)
    bad_lines = _BadLines(_name(file), Path(bad_to) if bad_to else None, skip=skip_bad or bad_to is not None)
    started = time.monotonic()
    with bad_lines, _open(file) as stream:
        feed = LineSender(
            admin.connection,
            topic,
            source=bad_lines.source,
            limit=limit,
            headers=[*([schema.header] if schema else []), *_headers(headers)],
            on_bad=bad_lines.take,
            on_progress=ProgressLine(started) if sys.stderr.isatty() and not sys.stdin.isatty() else None,
            timeout_seconds=timeout,
            pack=_wire_encoder(admin, declared) if schema is not None else None,
        )
        lines = _lines(stream, schema, as_csv=as_csv, as_text=as_text, key=key, separator=separator, limit=limit)
        try:
            with StallWatch(feed.delivery_progress, lambda: server_problem(settings)):
                counts = feed.send(
                    lines, read_ahead=_is_file(stream), rate_limit=ThroughputThrottler(rate) if rate else None
                )
        except KeyboardInterrupt:
            say(f"\nStopped: {feed.counts.acknowledged} of {feed.counts.taken} records acknowledged by {topic}.")
            raise click.exceptions.Exit(130) from None
    seconds = time.monotonic() - started
    bad_lines.summary()
    speed = (
        f" in {seconds:.1f} s ({counts.acknowledged / seconds:,.0f}/s)" if seconds > 1 and counts.taken >= 1000 else ""
    )
    say(f"{plural(counts.acknowledged, 'record')} acknowledged by {topic} ({plural(count, 'partition')}){speed}.")
    if as_json:
        print_json({
            "topic": topic,
            "acknowledged": counts.acknowledged,
            "bad": counts.bad,
            "seconds": round(seconds, 3),
        })  # fmt: skip


def _check_flags(*, as_csv: bool, as_text: bool, key: str, separator: bytes) -> None:
    if as_csv and as_text:
        raise UsageError("--csv and --text cannot be had at once")
    if key and separator:
        raise UsageError("--key and --key-separator cannot be had at once")
    if key and as_text:
        raise UsageError("Text has no fields, and --key names one", hint="Use --key-separator")
    if separator and as_csv:
        raise UsageError("--key-separator is not for CSV", hint="Use --key COLUMN")


def _declared(settings: "LoadedSettings", app_file: str | None, name: str) -> "Topic[Event] | None":
    app = load_declared(settings, app_file)
    return app.topics.get(name) if app is not None else None


def _topic(
    admin: "Admin", name: str, declared: "Topic[Event] | None", *, create: bool, partitions: int | None
) -> tuple[int, int]:
    """The topic's maximum record size and its partitions, after creating it if it is missing and that was requested."""
    from riverrun.kafka.admin.topics import create_topic
    from riverrun.model.topic import Topic

    state = admin.topics([name]).get(name)
    if state is None:
        if not create:
            error = admin.topic_not_found(name)
            near = error.hint if error.hint.endswith("?") else ""
            hint = f"{near} If not, say --create to make it" if near else "Say --create to make it"
            raise TopicNotFoundError(error.what, hint=hint, **error.fields)
        create_topic(admin, declared if declared is not None else Topic(name, None, partitions or 1))
        state = admin.topic(name)
        say(f"Created {name} with {plural(len(state.partitions), 'partition')}.")
    return int(state.config["max.message.bytes"].value), len(state.partitions)


def _wire_encoder(admin: "Admin", declared: "Topic[Event] | None") -> "Callable[[bytes], bytes] | None":
    """The record encoder for a topic whose schema a registry keeps."""
    from riverrun.kafka.registry.wire_format import wire_format_of

    if declared is None or not declared.registered:
        return None
    wire = wire_format_of(declared, admin.connection.registry)
    wire.prepare()
    return wire.pack


def _name(file: str | None) -> str:
    return "stdin" if file in (None, "-") else str(file)


def _open(file: str | None) -> BinaryIO:
    if file is None or file == "-":
        if sys.stdin.isatty():
            say("Type one record a line; Ctrl-D ends.")
        return open(sys.stdin.fileno(), "rb", closefd=False)
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error


def _is_file(stream: BinaryIO) -> bool:
    return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)


def _headers(pairs: tuple[str, ...]) -> list[tuple[str, str | bytes | None]]:
    parsed: list[tuple[str, str | bytes | None]] = []
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise UsageError("--header cannot be understood", expected="NAME=VALUE", found=repr(pair))
        parsed.append((name, value.encode()))
    return parsed


def _lines(
    stream: BinaryIO,
    schema: "EventSchema[Event] | None",
    *,
    as_csv: bool,
    as_text: bool,
    key: str,
    separator: bytes,
    limit: int,
) -> "Iterator[LineRecord | BadLine]":
    from riverrun.model.lines import csv_lines, json_lines, text_lines

    if as_csv:
        return csv_lines(stream, schema=schema, key=key, limit=limit)
    if as_text:
        return text_lines(stream, separator=separator, limit=limit)
    return json_lines(stream, schema=schema, key=key, separator=separator, limit=limit)


class ProgressLine:
    """One line on a terminal, redrawn."""

    def __init__(self, started: float) -> None:
        self._started = started

    def __call__(self, counts: "LineCounts") -> None:
        seconds = max(time.monotonic() - self._started, 0.001)
        text = f"\r{counts.taken:,} records, {counts.taken / seconds:,.0f}/s"
        click.echo(f"{text}\x1b[K\r", err=True, nl=False)


class _BadLines:
    """What to do with lines that are no records: stop, or show the first ones, write them to a file, and count."""

    def __init__(self, source: str, path: Path | None, *, skip: bool) -> None:
        self.source = source
        self._path = path
        self._skip = skip
        self._count = 0
        self._out: BinaryIO | None = None

    def __enter__(self) -> Self:
        if self._path is not None:
            try:
                self._out = self._path.open("wb")
            except OSError as error:
                raise UsageError(f"{self._path} cannot be written: {error.strerror}") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._out is not None:
            self._out.close()

    def take(self, line: "BadLine") -> bool:
        if not self._skip:
            return False
        self._count += 1
        if self._out is not None:
            self._out.write(line.data + b"\n")
        if self._count <= _MAX_SHOWN:
            say(f"{self.source}:{line.number}: {line.reason}")
        return True

    def summary(self) -> None:
        if self._count:
            saved_note = f"; they are in {self._path}" if self._path else ""
            say(f"{plural(self._count, 'line')} of {self.source} skipped{saved_note}.")
