"""`riverrun connectors`: run and list an app's own sources and sinks. Kafka Connect's are with `riverrun connect`."""

import time
from typing import TYPE_CHECKING, Any

import click

from riverrun.app import declared_names
from riverrun.cli.context import cluster_option, load_declared, load_settings
from riverrun.cli.output import cell, json_option, print_json, print_rows, say
from riverrun.model.notices import notice_text

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.config import LoadedSettings
    from riverrun.connectors.state_topic import ConnectorLease, ConnectorStateSnapshot
    from riverrun.connectors.status import ConnectorStatus
    from riverrun.kafka.connection import Connection

_file = click.argument("file", required=False, metavar="[FILE]")
# A process that has not reported for this long no longer runs.
STALE_MS = 15_000
_MAX_WIDTH = 60


@click.group(invoke_without_command=True, epilog="Example: riverrun connectors list meters.py")
@click.pass_context
def connectors(ctx: click.Context) -> None:
    """Run and see an app's own sources and sinks: files, MQTT, HTTP, webhooks, and what you wrote yourself.

    `riverrun run` runs them beside the streams. Without a subcommand: list.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_, file=None, bootstrap=None, as_json=False)


@connectors.command("run", epilog="Example: riverrun connectors run meters.py")
@_file
@cluster_option
def run_connectors(*, file: str | None, bootstrap: str | None) -> None:
    """Run the sources and sinks of a pipeline file until Ctrl-C. `riverrun run` does it by itself.

    One process does so at a time: a second one takes over from the first. It needs no Spark.
    """
    from riverrun.cluster.signals import stop_on_signals
    from riverrun.connectors.contract import ConnectorContext
    from riverrun.connectors.process import ConnectorProcess, create_source_topics, has_connectors
    from riverrun.errors import UsageError

    settings, app, connection = _open(file, bootstrap)
    if not has_connectors(app):
        raise UsageError(
            f"{app.name} has no sources or sinks of its own", hint="Declare one: app.source(topic, riverrun.tail(…))"
        )

    def notice(text: str) -> None:
        say(notice_text(text, declared_names(app)))

    with stop_on_signals() as stop:
        context = ConnectorContext(
            app, connection, app.folder, settings.project.root, notice, stop=stop, settings=settings.settings
        )
        process = ConnectorProcess(context)
        create_source_topics(context)
        notice(f"the connectors of {app.name}: {', '.join(process.names)}; Ctrl-C stops")
        process.run(stop)
    say("Stopped.")


@connectors.command("list", epilog="Example: riverrun connectors list meters.py --json")
@_file
@cluster_option
@json_option
def list_(*, file: str | None, bootstrap: str | None, as_json: bool) -> None:
    """List sources and sinks: state, records, rate, lag, position, and the last error."""
    from riverrun.connectors.state_topic import read_connector_state

    _, app, connection = _open(file, bootstrap)
    state = read_connector_state(connection, app.name, wait_for_transactions=False)
    alive = _alive(state.lease)
    rows = [_row(status, alive=alive) for _, status in sorted(state.statuses.items())]
    rows += _not_started_rows(app, state)
    if as_json:
        print_json(rows)
        return
    shown = [
        {name: cell(value)[:_MAX_WIDTH] if name == "error" else value for name, value in row.items()} for row in rows
    ]
    for row in shown:
        row.pop("position")
        row.pop("kind")
    print_rows(shown, as_json=False)
    say(_process_state(state.lease, alive=alive))


@connectors.command(epilog="Example: riverrun connectors forget access --part /var/log/nginx/access.log meters.py")
@click.argument("name")
@_file
@click.option("--part", default="", help="Only this part of it. [default: all]")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_option
def forget(*, name: str, file: str | None, part: str, yes: bool, bootstrap: str | None) -> None:
    """Forget the position of a source, so that it begins anew: what it has read before comes again, and is there twice."""
    from riverrun.cli.context import confirm
    from riverrun.connectors.state_topic import forget_positions as forget_in
    from riverrun.connectors.state_topic import read_connector_state
    from riverrun.errors import GroupNotEmptyError, UsageError

    _, app, connection = _open(file, bootstrap)
    state = read_connector_state(connection, app.name)
    positions = [
        position
        for position in sorted(set(state.positions) | set(state.marks))
        if position[0] == name and part in ("", position[1])
    ]
    if not positions:
        known = sorted({source for source, _ in state.positions})
        raise UsageError(
            f"No source {name} has a position in {app.name}", expected=", ".join(known) or "one that was run"
        )
    if _alive(state.lease):
        raise GroupNotEmptyError(f"The connectors of {app.name} run", hint="Stop them first")
    confirm(
        "Forget it?",
        "What was read from there comes again",
        [f"{position[0]}: {position[1]}" for position in positions],
        yes=yes,
    )
    forget_in(connection, app.name, positions, state)
    say(f"{name} begins anew.")


def _open(file: str | None, bootstrap: str | None) -> "tuple[LoadedSettings, App, Connection]":
    from riverrun.errors import UsageError
    from riverrun.kafka.connection import require_cluster

    settings = load_settings(kafka__bootstrap_servers=bootstrap)
    app = load_declared(settings, file)
    if app is None:
        raise UsageError("No pipeline file is named", hint="Give its path, or set project.app in riverrun.toml")
    return settings, app, require_cluster(settings.settings.kafka, settings.project, settings.settings.registry)


def _alive(lease: "ConnectorLease | None") -> bool:
    return lease is not None and not lease.ended_ms and time.time_ns() // 1_000_000 - lease.renewed_ms < STALE_MS


def _process_state(lease: "ConnectorLease | None", *, alive: bool) -> str:
    if lease is None:
        return "They have never run. `riverrun run` or `riverrun connectors run` runs them."
    if alive:
        return f"Process {lease.pid} on {lease.host} runs them."
    return "No process runs them now: these are the last figures."


def _row(status: "ConnectorStatus", *, alive: bool) -> dict[str, Any]:
    lag = status.lag
    return {
        "connector": status.name,
        "kind": status.kind,
        "part": status.part,
        "topic": status.topic,
        "state": status.state if alive or status.state in ("failed", "finished") else "stopped",
        "records": status.records,
        "dead": status.dead_letters,
        "rate": status.rate if alive else 0.0,
        "lag": None if lag is None else f"{lag} {status.lag_unit}",
        "position": status.position,
        "error": status.error,
    }


def _not_started_rows(app: "App", state: "ConnectorStateSnapshot") -> list[dict[str, Any]]:
    """Rows for declared connectors that have not reported yet."""
    from riverrun.connectors.status import ConnectorStatus

    known = {(kind, name) for kind, name, _ in state.statuses}
    declared = [ConnectorStatus("source", binding.name, "", binding.topic, "stopped") for binding in app.sources.values()
                if binding.source.runs_as != "connect"]  # fmt: skip
    declared += [ConnectorStatus("sink", binding.name, "", binding.upstream, "stopped") for binding in app.sinks.values()
                 if binding.sink.runs_as != "connect"]  # fmt: skip
    return [_row(binding, alive=False) for binding in declared if (binding.kind, binding.name) not in known]
