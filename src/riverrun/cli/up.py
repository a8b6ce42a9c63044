"""`riverrun up` and `riverrun down`: start and stop the project's servers."""

from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.context import confirm, current_project, loaded
from riverrun.cli.output import notice_text, say
from riverrun.cli.progress import StepProgress
from riverrun.config import Settings
from riverrun.errors import ConfigError, UsageError

# How long a pipeline may take to end in order before its Kafka is stopped; without one it takes ten seconds.
PIPELINE_SECONDS = 30.0

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from riverrun.cluster.connect import ConnectRuntime
    from riverrun.cluster.druid import DruidRuntime
    from riverrun.cluster.jvm import Runtime
    from riverrun.cluster.registry import RegistryRuntime
    from riverrun.config import Loaded
    from riverrun.config.run_state import RunState


@click.command(
    epilog="""\b
Examples:
  riverrun up                          one broker, until Ctrl-C
  riverrun up --detach                 in the background; prints its address
  riverrun up --brokers 3              three brokers, three copies of each partition
  riverrun up --druid                  Kafka, and a Druid beside it
  riverrun up --connect                Kafka, and Kafka Connect beside it
  riverrun up --registry               Kafka, and a schema registry beside it
"""
)
@click.option("--detach", is_flag=True, help="Run in the background; return when it is ready.")
@click.option("--druid", is_flag=True, help="Run Druid as well. [default: when store.kind is druid]")
@click.option("--connect", is_flag=True, help="Run Kafka Connect as well.")
@click.option(
    "--connect-plugin", multiple=True, hidden=True, help="Only this of the plugins; `run` knows which it needs."
)
@click.option("--registry", is_flag=True, help="Run a schema registry as well.")
@click.option("--brokers", type=int, help="How many brokers. [default: 1]")
@click.option("--controllers", type=int, help="How many controllers of their own. [default: the first brokers]")
@click.option("--port", type=int, help="Port of the first broker. [default: 9092 or the next free one]")
@click.option("--heap-mb", type=int, help="Java heap of each broker, in MiB. [default: 256]")
@click.option("--replication", type=int, help="Copies of each partition. [default: 3, or as many as brokers]")
@click.option("--min-insync", type=int, help="Copies that must have a record. [default: one less than the copies]")
def up(
    *, detach: bool, druid: bool, connect: bool, connect_plugin: tuple[str, ...], registry: bool, **flags: int | None
) -> None:
    """Start the project's Kafka, and keep it running; with --druid a Druid as well, with --connect Kafka Connect, with
    --registry a schema registry.

    Its data, logs and state are in .riverrun/ of the project: the same data is there after the next `up`. A second `up`
    finds the first one and prints its address. When the settings name a cluster that runs elsewhere, nothing is started.
    """
    from riverrun.cluster.control import find_running
    from riverrun.errors import AlreadyRunningError

    settings = loaded(**{f"kafka__{name}": value for name, value in flags.items()})
    beside = {
        "druid": wants_druid(settings, asked=druid),
        "connect": wants_connect(settings, asked=connect),
        "registry": wants_registry(settings, asked=registry),
    }
    if settings.attached:
        _attached(settings, beside)
        return
    kafka = settings.settings.kafka
    wanted: dict[str, Any] = {name: getattr(settings.settings, name) for name, asked in beside.items() if asked}
    state = find_running(settings.project, kafka, _notice, **wanted)
    if state is None:
        try:
            if detach:
                _run_detached(settings, {**flags, **beside})
            else:
                _run_here(settings, beside, connect_plugin)
            return
        except AlreadyRunningError:
            # Another `up` was quicker: take what it started.
            state = find_running(settings.project, kafka, _notice, **wanted)
            if state is None:
                raise
    say(f"Kafka runs already (pid {state.pid}).")
    _address(state)


def wants_druid(settings: "Loaded", *, asked: bool = False) -> bool:
    """Whether Druid is to be run here: asked for, or the project's store and nowhere else."""
    if settings.druid_attached:
        if asked:
            say(
                f"Attached to the Druid on {settings.settings.druid.url} ({settings.origins['druid.url']}); none is run."
            )
        return False
    return asked or settings.settings.store.kind == "druid"


def wants_connect(settings: "Loaded", *, asked: bool = False) -> bool:
    """Whether Kafka Connect is to be run here: asked for, and nowhere else."""
    if asked and settings.connect_attached:
        origin = settings.origins["connect.url"]
        say(f"Attached to the Kafka Connect on {settings.settings.connect.url} ({origin}); none is run.")
    return asked and not settings.connect_attached


def wants_registry(settings: "Loaded", *, asked: bool = False) -> bool:
    """Whether a schema registry is to be run here: asked for, and nowhere else."""
    if asked and settings.registry_attached:
        origin = settings.origins["registry.url"]
        say(f"Attached to the schema registry on {settings.settings.registry.url} ({origin}); none is run.")
    return asked and not settings.registry_attached


def start_in_background(
    settings: "Loaded", flags: "Mapping[str, int | bool | None]", plugins: "Sequence[str]" = ()
) -> "RunState":
    """Start a runner that outlives this process; its state once its servers are ready. Flags are those of `up`, `plugins` of
    Connect are fetched only where they are named; none: all."""
    from riverrun.cluster.control import start_detached, start_seconds

    with_druid = wants_druid(settings, asked=bool(flags.get("druid")))
    # Here, where there is a terminal to show how far a download is; the runner then finds everything in the cache.
    _prepare(settings)
    if with_druid:
        _prepare_druid(settings)
    with_connect = wants_connect(settings, asked=bool(flags.get("connect")))
    if with_connect:
        _prepare_connect(settings, plugins)
    with_registry = wants_registry(settings, asked=bool(flags.get("registry")))
    if with_registry:
        _prepare_registry(settings)
    arguments = ["--project", str(settings.project.root)]
    if settings.profile:
        arguments += ["--profile", settings.profile]
    arguments.append("up")
    beside = {"druid": with_druid, "connect": with_connect, "registry": with_registry}
    arguments += [f"--{name}" for name, wanted in beside.items() if wanted]
    arguments += [f"--connect-plugin={name}" for name in plugins]
    for name, value in flags.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)] if value is not None and name not in beside else []
    return start_detached(settings.project, arguments, start_seconds(settings.settings, **beside))


def _run_detached(settings: "Loaded", flags: "Mapping[str, int | bool | None]") -> None:
    with StepProgress() as progress:
        progress.step("starting the servers", announced=False)
        state = start_in_background(settings, flags)
    _address(state)
    say(f"{_runs(state)} in the background. `riverrun status` shows it, `riverrun down` stops it.")


def _runs(state: "RunState") -> str:
    there = (
        ("Kafka Connect", state.connect_url),
        ("a schema registry", state.registry_url),
        ("Druid", state.druid_url),
    )
    beside = [name for name, url in there if url]
    return f"{', '.join(['Kafka', *beside[:-1]])} and {beside[-1]} run" if beside else "Kafka runs"


def _run_here(settings: "Loaded", beside: "Mapping[str, bool]", plugins: "Sequence[str]" = ()) -> None:
    from riverrun.cli.board import make_board
    from riverrun.cluster.supervisor import Supervisor

    runtime = _prepare(settings)
    druid = _prepare_druid(settings) if beside["druid"] else None
    connect = _prepare_connect(settings, plugins) if beside["connect"] else None
    registry = _prepare_registry(settings) if beside["registry"] else None
    board = make_board()
    printed = False

    def changed(state: "RunState") -> None:
        nonlocal printed
        board.changed(state)
        if state.state == "ready" and not printed:
            printed = True
            _address(state)

    supervisor = Supervisor(
        settings.project,
        settings.settings,
        runtime=runtime,
        druid=druid,
        connect=connect,
        registry=registry,
        notice=board.notice,
        changed=changed,
        looked=board.looked,
    )
    try:
        supervisor.run()
    finally:
        board.close()
    say("Stopped.")


def _prepare(settings: "Loaded") -> "Runtime":
    from riverrun.cli.fetch import shown_progress
    from riverrun.cluster.jvm import Runtime

    return Runtime.prepare(settings.settings, progress=shown_progress())


def _prepare_druid(settings: "Loaded") -> "DruidRuntime":
    from riverrun.cli.fetch import shown_progress
    from riverrun.cluster.druid import DruidRuntime

    return DruidRuntime.prepare(settings.settings, progress=shown_progress())


def _prepare_connect(settings: "Loaded", plugins: "Sequence[str]" = ()) -> "ConnectRuntime":
    from riverrun.cli.fetch import shown_progress
    from riverrun.cluster.connect import PLUGIN_SETS, ConnectRuntime

    return ConnectRuntime.prepare(settings.settings, progress=shown_progress(), plugins=plugins or PLUGIN_SETS)


def _prepare_registry(settings: "Loaded") -> "RegistryRuntime":
    from riverrun.cli.fetch import shown_progress
    from riverrun.cluster.registry import RegistryRuntime

    return RegistryRuntime.prepare(settings.settings, progress=shown_progress())


def _attached(settings: "Loaded", beside: "Mapping[str, bool]") -> None:
    from riverrun.kafka.connection import require_cluster
    from riverrun.kafka.probe import Probe

    kafka = settings.settings.kafka
    if beside["druid"]:
        require_own_kafka(settings)
    if beside["connect"]:
        require_own_kafka_for_connect(settings)
    if beside["registry"]:
        raise UsageError(
            "riverrun runs a schema registry beside its own Kafka only, and this project is attached to one "
            f"({settings.origins['kafka.bootstrap_servers']})",
            hint="Name a registry that runs elsewhere with registry.url",
        )
    connection = require_cluster(kafka, settings.project)
    seen = Probe(connection.properties()).look(kafka.request_timeout_seconds)
    say(
        f"Attached to a cluster with {len(seen.brokers)} broker{'s' if len(seen.brokers) != 1 else ''} "
        f"({settings.origins['kafka.bootstrap_servers']}); nothing to start."
    )
    click.echo(kafka.bootstrap_servers)


def require_own_kafka(settings: "Loaded") -> None:
    """Refuse to run Druid for a project that is attached to somebody else's Kafka."""
    raise UsageError(
        "riverrun runs Druid beside its own Kafka only, and this project is attached to one "
        f"({settings.origins['kafka.bootstrap_servers']})",
        hint="Name a Druid that runs elsewhere with druid.url, or use the embedded store (store.kind)",
    )


def require_own_kafka_for_connect(settings: "Loaded") -> None:
    """Refuse to run Kafka Connect for a project that is attached to somebody else's Kafka."""
    raise UsageError(
        "riverrun runs Kafka Connect beside its own Kafka only, and this project is attached to one "
        f"({settings.origins['kafka.bootstrap_servers']})",
        hint="Name a Connect that runs elsewhere with connect.url",
    )


def _address(state: "RunState") -> None:
    """The one result of `up`, for `address=$(riverrun up --detach)`; where Druid is, is said beside it."""
    click.echo(state.bootstrap_servers)
    if state.druid_url:
        say(f"Druid answers on {state.druid_url}.")
    if state.connect_url:
        say(f"Kafka Connect answers on {state.connect_url}; `riverrun connect` logs in.")
    if state.registry_url:
        say(f"The schema registry answers on {state.registry_url}; `riverrun registry` logs in.")


def _notice(text: str) -> None:
    say(notice_text(text))


@click.command(
    epilog="""\b
Examples:
  riverrun down
  riverrun down --delete-data --dry-run     what would be lost
"""
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    help="Seconds before the runner is killed.  [default: 40; 30 more with Druid, with Connect, with a registry]",
)
@click.option("--delete-data", is_flag=True, help="Delete all topics, records and tables afterwards.")
@click.option("--dry-run", is_flag=True, help="With --delete-data: say what would be deleted; do nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def down(*, timeout: float | None, delete_data: bool, dry_run: bool, yes: bool) -> None:
    """Stop the project's servers, and before them the pipeline or demo that uses them. Their data stays, unless
    --delete-data says otherwise.

    They are asked to stop and given time; what does not stop is killed. When nothing runs, nothing happens.
    """
    from riverrun.cluster import control
    from riverrun.config.processes import pipelines

    # A running cluster can be stopped however broken riverrun.toml is by now.
    project = current_project()
    losses = control.data_losses(project) if delete_data else []
    if dry_run:
        for loss in losses:
            click.echo(loss)
        say("Nothing was done." if losses else "There is no data to delete.")
        return
    if losses:
        confirm("Delete it?", "This deletes", losses, yes=yes)
    if timeout is None:
        try:
            timeout = control.stop_seconds(project, loaded().settings)
        except ConfigError as error:
            say(f"Ignoring {error}")
            timeout = control.stop_seconds(project, Settings())
    with StepProgress() as progress:
        users = pipelines(project)
        for each in users:
            # A demo has ended its pipeline by then.
            if each.alive:
                progress.step(f"stopping {each}, which uses this Kafka")
                control.stop_pipeline(each, PIPELINE_SECONDS, progress.notice)
        progress.step("stopping the servers" if users else "")
        stopped = control.stop_runner(project, timeout, progress.notice)
    if stopped.pid or stopped.leftovers or users:
        say("Killed." if stopped.killed else "Stopped.")
    else:
        say(f"Nothing runs in {project.root}.")
    if delete_data:
        control.delete_data(project)
        say("The data is deleted." if losses else "There was no data to delete.")
