"""`riverrun query`: query the project's store."""

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from riverrun.cli.context import load_settings, store_of
from riverrun.cli.output import plural, print_rows, say

if TYPE_CHECKING:
    from riverrun.store.client import StoreClient
    from riverrun.store.contract import QueryLimits, QueryResult, Store

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
    from riverrun.store.contract import QueryLimits
    from riverrun.store.formats import BINARY_FORMATS

    if kind in BINARY_FORMATS and output is None and sys.stdout.isatty():
        raise UsageError(f"{kind} is nothing for a terminal", hint="Say --output FILE, or pipe it into a program")
    if watch is not None and (output is not None or kind in BINARY_FORMATS):
        raise UsageError("--watch shows rows on the screen", hint="Leave --output or the format out")
    settings = load_settings()
    store = settings.settings.store
    sql_text = sys.stdin.read() if sql == "-" else sql
    limits = QueryLimits(limit or store.query_rows, timeout or float(store.query_seconds))
    with store_of(settings) as client:
        if watch is not None:
            _watch(client, sql_text, limits, kind, watch)
        else:
            _write(_ask(client, sql_text, limits), kind, output)
            _warn_failing_tables(client, sql_text)


def _warn_failing_tables(client: "StoreClient | Store", question: str) -> None:
    """A table that takes no more rows still answers, with old ones."""
    words = set(re.findall(r"\w+", question.lower()))
    for status in client.table_statuses():
        if status.state == "failing" and status.table.lower() in words:
            say(f"The table {status.table} takes no more rows, and this is old: {status.detail}")


def _ask(client: "StoreClient | Store", question: str, limits: "QueryLimits") -> "QueryResult":
    """Query under a name of our own, so that Ctrl-C cancels the query too."""
    import uuid

    name = f"cli-{uuid.uuid4().hex}"
    try:
        return client.query(question, limits, name=name)
    except KeyboardInterrupt:
        client.cancel(name)
        raise


def _write(result: "QueryResult", kind: str, output: Path | None) -> None:
    from riverrun.store.formats import encode_rows

    if kind == "table" and output is None:
        _show(result)
        return
    body = _table_text(result).encode() if kind == "table" else encode_rows(result, kind)
    if output is None:
        click.echo(body, nl=False)
    else:
        _to_file(output, body)
        say(f"{plural(result.rows.num_rows, 'row')} in {output}")
    _warn_truncated(result)


def _to_file(output: Path, body: bytes) -> None:
    from riverrun.errors import UsageError

    try:
        output.write_bytes(body)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}") from error


def _show(result: "QueryResult") -> None:
    from riverrun.store.formats import display_rows

    print_rows(display_rows(result.rows), as_json=False, empty="No rows.")
    _warn_truncated(result)


def _table_text(result: "QueryResult") -> str:
    import contextlib
    import io

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        from riverrun.store.formats import display_rows

        print_rows(display_rows(result.rows), as_json=False, empty="No rows.")
    return text.getvalue()


def _warn_truncated(result: "QueryResult") -> None:
    if result.more:
        say(f"There are more rows: these are the first {result.rows.num_rows}. Say --limit for more.")


def _watch(client: "StoreClient | Store", question: str, limits: "QueryLimits", kind: str, seconds: float) -> None:
    before = None
    while True:
        result = _ask(client, question, limits)
        if before is None or not result.rows.equals(before):
            before = result.rows
            if kind == "table" and sys.stdout.isatty():
                click.clear()
            elif kind == "table":
                click.echo(f"-- {time.strftime('%H:%M:%S')}")
            _write(result, kind, None)
            sys.stdout.flush()
        time.sleep(seconds)
