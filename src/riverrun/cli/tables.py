"""`riverrun tables`: the tables of the project's store, their status, a copy of them, and removing one."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.context import confirm, current_project, load_settings, store_of
from riverrun.cli.output import json_option, print_json, print_rows, say
from riverrun.cli.progress import StepProgress

if TYPE_CHECKING:
    from riverrun.store.client import StoreClient


def _client() -> "StoreClient":
    from riverrun.config.serve_state import require_store_endpoint
    from riverrun.store.client import StoreClient

    return StoreClient.for_serving(require_store_endpoint(current_project()))


@click.group(invoke_without_command=True, epilog="Example: riverrun tables --json")
@json_option
@click.pass_context
def tables(ctx: click.Context, as_json: bool) -> None:
    """List the tables of the store: rows, how fresh, how far behind, state. Without a subcommand: list."""
    if ctx.invoked_subcommand is None:
        _list(as_json)


@tables.command("list", epilog="Example: riverrun tables list")
@json_option
def list_(as_json: bool) -> None:
    """List the tables of the store: rows, how fresh, how far behind, state."""
    _list(as_json)


def _list(as_json: bool) -> None:
    with _client() as client:
        statuses = client.table_statuses()
    now = time.time()
    rows = [
        {
            "table": status.table,
            "rows": status.rows,
            "newest": _age_text(status.newest, now),
            "updated": _age_text(status.updated, now),
            "lag": status.lag if status.lag >= 0 else None,
            "size": _size(status.bytes),
            "state": status.state,
        }
        for status in statuses
    ]
    if as_json:
        from dataclasses import asdict

        print_json([asdict(status) for status in statuses])
        return
    nothing = (
        "The store has no tables yet. `riverrun run` makes them: of every stream, and of topics that app.store names."
    )
    print_rows(rows, as_json=False, empty=nothing)
    for status in statuses:
        if status.detail:
            say(f"{status.table}: {status.detail}")


@tables.command(epilog="Example: riverrun tables show house_load")
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show a table: its columns and types, its key and time, its status."""
    with _client() as client:
        description = client.describe(name)
    if as_json:
        print_json(description)
        return
    print_rows([_column(column, description) for column in description["columns"]], as_json=False)
    positions = ", ".join(
        f"{partition}@{offset}" for partition, offset in sorted(description.get("positions", {}).items())
    )
    say(
        f"{description['name']} follows the topic {description['topic']}; "
        f"{description.get('rows', 0)} rows; {description.get('state', '')}"
        + (f"; next offsets {positions}" if positions else "")
        + (f"; {description['detail']}" if description.get("detail") else "")
    )


def _column(column: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    role = ["key"] if column["name"] in table["key"] else []
    role += ["time"] if column["name"] == table["time"] else []
    return {"column": column["name"], "type": column["type"], "role": ", ".join(role)}


@tables.command(epilog="Example: riverrun tables snapshot meters.duckdb && duckdb meters.duckdb")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def snapshot(file: Path, force: bool) -> None:
    """Copy all tables, as they are at one moment, into a DuckDB file: for DuckDB's own shell and whatever opens such files.

    The store and questions go on meanwhile. Only the embedded store has this; when no process serves it, its tables are
    copied as they were left.
    """
    from riverrun.errors import UsageError
    from riverrun.store.client import StoreClient

    if file.exists() and not force:
        raise UsageError(f"{file} is there already", hint="Name another file, or say --force to write over it")
    if not file.parent.is_dir():
        raise UsageError(f"There is no folder {file.parent}", hint="Make it first")
    with StepProgress() as progress, store_of(load_settings()) as store:
        progress.step("copying the tables", announced=False)
        if isinstance(store, StoreClient):
            store.snapshot(file, lambda done, whole: progress.update(f"{_size(done)} of {_size(whole)}"))
        else:
            # An existing file stays until the copy is complete.
            whole = file.with_name(f"{file.name}.new")
            whole.unlink(missing_ok=True)
            store.snapshot(whole)
            whole.replace(file)
        names = sorted(store.tables)
    say(f"{file}: {', '.join(names) or 'no tables'}; {_size(file.stat().st_size)}. Open it with: duckdb {file}")


@tables.command(epilog="Example: riverrun tables remove house_load --yes")
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def remove(name: str, yes: bool) -> None:
    """Drop a table with its rows. While the pipeline declares it, it is read again, from the beginning of its topic."""
    with _client() as client:
        description = client.describe(name)
        losses = [f"{description['name']}: {description.get('rows', 0)} rows"]
        confirm("Remove it?", "This table and its rows go from the store; its topic stays", losses, yes=yes)
        client.remove(description["name"])
    say(f"{description['name']} is removed.")


def _age_text(at: float, now: float) -> str:
    """How long ago: `4 s`, `12 min`, `3 h`, `2 d`; empty for never."""
    if at <= 0:
        return ""
    seconds = max(0.0, now - at)
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name} ago"
    return f"{seconds / 86400:.0f} d ago"


def _size(count: int) -> str:
    if count < 0:
        return ""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
