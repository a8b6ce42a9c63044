"""`riverrun connectors`: an app's own sources and sinks, run and seen. Kafka Connect's are with `riverrun connect`."""

import time
from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.context import cluster_option, load_declared, loaded, names_of
from riverrun.cli.output import cell, json_option, notice_text, print_json, print_rows, say

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.config import Loaded
    from riverrun.connectors.ledger import Ledger, Life
    from riverrun.connectors.standing import Standing
    from riverrun.kafka.connection import Connection

_file = click.argument("file", required=False, metavar="[FILE]")
# A process that has said nothing for this long does not run any more.
SILENT_MS = 15_000
_WIDEST = 60


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
    from riverrun.connectors.contract import Around
    from riverrun.connectors.process import ConnectorProcess, has_connectors, make_topics
    from riverrun.errors import UsageError

    settings, app, connection = _opened(file, bootstrap)
    if not has_connectors(app):
        raise UsageError(
            f"{app.name} has no sources or sinks of its own", hint="Declare one: app.source(topic, riverrun.tail(…))"
        )

    def notice(text: str) -> None:
        say(notice_text(text, names_of(app)))

    with stop_on_signals() as stop:
        around = Around(
            app, connection, app.folder, settings.project.root, notice, stop=stop, settings=settings.settings
        )
        process = ConnectorProcess(around)
        make_topics(around)
        notice(f"the connectors of {app.name}: {', '.join(process.names)}; Ctrl-C stops")
        process.run(stop)
    say("Stopped.")


@connectors.command("list", epilog="Example: riverrun connectors list meters.py --json")
@_file
@cluster_option
@json_option
def list_(*, file: str | None, bootstrap: str | None, as_json: bool) -> None:
    """List sources and sinks: state, records, rate, lag, position, and the last error."""
    from riverrun.connectors.ledger import read_ledger

    _, app, connection = _opened(file, bootstrap)
    ledger = read_ledger(connection, app.name, settled=False)
    alive = _alive(ledger.life)
    found = [_row(each, alive=alive) for _, each in sorted(ledger.standings.items())]
    found += _never_run(app, ledger)
    if as_json:
        print_json(found)
        return
    shown = [
        {name: cell(value)[:_WIDEST] if name == "error" else value for name, value in row.items()} for row in found
    ]
    for row in shown:
        row.pop("position")
        row.pop("kind")
    print_rows(shown, as_json=False)
    say(_life_words(ledger.life, alive=alive))


@connectors.command(epilog="Example: riverrun connectors forget access --part /var/log/nginx/access.log meters.py")
@click.argument("name")
@_file
@click.option("--part", default="", help="Only this part of it. [default: all]")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_option
def forget(*, name: str, file: str | None, part: str, yes: bool, bootstrap: str | None) -> None:
    """Forget the position of a source, so that it begins anew: what it has read before comes again, and is there twice."""
    from riverrun.cli.context import confirm
    from riverrun.connectors.ledger import forget as forget_in
    from riverrun.connectors.ledger import read_ledger
    from riverrun.errors import GroupLiveError, UsageError

    _, app, connection = _opened(file, bootstrap)
    ledger = read_ledger(connection, app.name)
    places = [
        each for each in sorted(set(ledger.positions) | set(ledger.marks)) if each[0] == name and part in ("", each[1])
    ]
    if not places:
        known = sorted({each for each, _ in ledger.positions})
        raise UsageError(
            f"No source {name} has a position in {app.name}", expected=", ".join(known) or "one that was run"
        )
    if _alive(ledger.life):
        raise GroupLiveError(f"The connectors of {app.name} run", hint="Stop them first")
    confirm("Forget it?", "What was read from there comes again", [f"{each[0]}: {each[1]}" for each in places], yes=yes)
    forget_in(connection, app.name, places, ledger)
    say(f"{name} begins anew.")


def _opened(file: str | None, bootstrap: str | None) -> "tuple[Loaded, App, Connection]":
    from riverrun.errors import UsageError
    from riverrun.kafka.connection import require_cluster

    settings = loaded(kafka__bootstrap_servers=bootstrap)
    app = load_declared(settings, file)
    if app is None:
        raise UsageError("No pipeline file is named", hint="Give its path, or set project.app in riverrun.toml")
    return settings, app, require_cluster(settings.settings.kafka, settings.project, settings.settings.registry)


def _alive(life: "Life | None") -> bool:
    return life is not None and not life.ended and time.time_ns() // 1_000_000 - life.at < SILENT_MS


def _life_words(life: "Life | None", *, alive: bool) -> str:
    if life is None:
        return "They have never run. `riverrun run` or `riverrun connectors run` runs them."
    if alive:
        return f"Process {life.pid} on {life.host} runs them."
    return "No process runs them now: these are the last figures."


def _row(standing: "Standing", *, alive: bool) -> dict[str, Any]:
    lag = standing.lag
    return {
        "connector": standing.name,
        "kind": standing.kind,
        "part": standing.part,
        "topic": standing.topic,
        "state": standing.state if alive or standing.state in ("failed", "finished") else "stopped",
        "records": standing.records,
        "dead": standing.dead,
        "rate": standing.rate if alive else 0.0,
        "lag": None if lag is None else f"{lag} {standing.lag_unit}",
        "position": standing.position,
        "error": standing.error,
    }


def _never_run(app: "App", ledger: "Ledger") -> list[dict[str, Any]]:
    """Those that are declared and of which nothing is known yet."""
    from riverrun.connectors.standing import Standing

    known = {(kind, name) for kind, name, _ in ledger.standings}
    declared = [Standing("source", each.name, "", each.topic, "stopped") for each in app.sources.values()
                if each.source.runs_as != "connect"]  # fmt: skip
    declared += [Standing("sink", each.name, "", each.of, "stopped") for each in app.sinks.values()
                 if each.sink.runs_as != "connect"]  # fmt: skip
    return [_row(each, alive=False) for each in declared if (each.kind, each.name) not in known]
