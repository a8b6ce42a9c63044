"""`riverrun query`: ask the project's store."""

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from riverrun.cli.context import loaded, store_of
from riverrun.cli.output import plural, print_rows, say

if TYPE_CHECKING:
    from riverrun.store.client import StoreClient
    from riverrun.store.contract import Answer, Limits, Store

_FORMATS = ("table", "json", "ndjson", "csv", "arrow", "parquet")


@click.command(
    epilog="""\b
Examples:
  riverrun query "select house_id, load_kw from house_load where minute = latest order by load_kw desc limit 5"
  riverrun query "select count(*) from house_load" --watch
  riverrun query "select * from house_load" --format parquet --output loads.parquet
  cat question.sql | riverrun query -
"""
)
@click.argument("sql", metavar="SQL")
@click.option(
    "--format", "kind", type=click.Choice(_FORMATS), default="table", show_default=True, help="How rows are shown."
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file instead of stdout.")
@click.option("--limit", type=click.IntRange(min=1), help="How many rows at most. [default: store.query_rows]")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
              help="How long it may take. [default: store.query_seconds]")  # fmt: skip
@click.option("--watch", is_flag=False, flag_value=1.0, type=click.FloatRange(min=0.1), metavar="[SECONDS]",
              help="Ask again every SECONDS (1 without a number) and show what changed, until Ctrl-C.")  # fmt: skip
def query(
    *, sql: str, kind: str, output: Path | None, limit: int | None, timeout: float | None, watch: float | None
) -> None:
    """Ask the store a question in SQL; `-` reads it from stdin. See docs/query.md for the language.

    The store belongs to the process that serves it, `riverrun serve` or `riverrun run`; this command asks that process. When
    none runs, the tables of the embedded store are read as they were left.
    """
    from riverrun.errors import UsageError
    from riverrun.store.contract import Limits
    from riverrun.store.formats import BINARY

    if kind in BINARY and output is None and sys.stdout.isatty():
        raise UsageError(f"{kind} is nothing for a terminal", hint="Say --output FILE, or pipe it into a program")
    if watch is not None and (output is not None or kind in BINARY):
        raise UsageError("--watch shows rows on the screen", hint="Leave --output or the format out")
    settings = loaded()
    store = settings.settings.store
    question = sys.stdin.read() if sql == "-" else sql
    limits = Limits(limit or store.query_rows, timeout or float(store.query_seconds))
    with store_of(settings) as client:
        if watch is not None:
            _watch(client, question, limits, kind, watch)
        else:
            _write(_ask(client, question, limits), kind, output)
            _tell_failing(client, question)


def _tell_failing(client: "StoreClient | Store", question: str) -> None:
    """A table that takes no more rows answers all the same, with old ones."""
    words = set(re.findall(r"\w+", question.lower()))
    for each in client.standing():
        if each.state == "failing" and each.table.lower() in words:
            say(f"The table {each.table} takes no more rows, and this is old: {each.detail}")


def _ask(client: "StoreClient | Store", question: str, limits: "Limits") -> "Answer":
    """Ask by a name of our own, so that Ctrl-C ends the question too."""
    import uuid

    name = f"cli-{uuid.uuid4().hex}"
    try:
        return client.ask(question, limits, name=name)
    except KeyboardInterrupt:
        client.cancel(name)
        raise


def _write(answer: "Answer", kind: str, output: Path | None) -> None:
    from riverrun.store.formats import encoded

    if kind == "table" and output is None:
        _show(answer)
        return
    body = _table_text(answer).encode() if kind == "table" else encoded(answer, kind)
    if output is None:
        click.echo(body, nl=False)
    else:
        _to_file(output, body)
        say(f"{plural(answer.rows.num_rows, 'row')} in {output}")
    _tell_more(answer)


def _to_file(output: Path, body: bytes) -> None:
    from riverrun.errors import UsageError

    try:
        output.write_bytes(body)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}") from error


def _show(answer: "Answer") -> None:
    from riverrun.store.formats import shown

    print_rows(shown(answer.rows), as_json=False, empty="No rows.")
    _tell_more(answer)


def _table_text(answer: "Answer") -> str:
    import contextlib
    import io

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        from riverrun.store.formats import shown

        print_rows(shown(answer.rows), as_json=False, empty="No rows.")
    return text.getvalue()


def _tell_more(answer: "Answer") -> None:
    if answer.more:
        say(f"There are more rows: these are the first {answer.rows.num_rows}. Say --limit for more.")


def _watch(client: "StoreClient | Store", question: str, limits: "Limits", kind: str, seconds: float) -> None:
    before = None
    while True:
        answer = _ask(client, question, limits)
        if before is None or not answer.rows.equals(before):
            before = answer.rows
            if kind == "table" and sys.stdout.isatty():
                click.clear()
            elif kind == "table":
                click.echo(f"-- {time.strftime('%H:%M:%S')}")
            _write(answer, kind, None)
            sys.stdout.flush()
        time.sleep(seconds)
