"""`riverrun up` and `riverrun down`: start and stop the project's servers."""

from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.context import confirm, current_project, load_settings
from riverrun.cli.output import say
from riverrun.cli.progress import StepProgress
from riverrun.config import Settings
from riverrun.errors import ConfigError, UsageError
from riverrun.model.notices import notice_text

# How long a pipeline may take to exit cleanly before its Kafka is stopped; without Kafka it takes ten seconds.
PIPELINE_SECONDS = 30.0

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from riverrun.cluster.connect import ConnectRuntime
    from riverrun.cluster.druid import DruidRuntime
    from riverrun.cluster.jvm import JavaRuntime
    from riverrun.cluster.registry import RegistryRuntime
    from riverrun.config import LoadedSettings
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

    settings = load_settings(**{f"kafka__{name}": value for name, value in flags.items()})
    optional_servers = {
        "druid": wants_druid(settings, asked=druid),
        "connect": wants_connect(settings, asked=connect),
        "registry": wants_registry(settings, asked=registry),
    }
    if settings.attached:
        _attached(settings, optional_servers)
        return
    kafka = settings.settings.kafka
    server_settings: dict[str, Any] = {
        name: getattr(settings.settings, name) for name, requested in optional_servers.items() if requested
    }
    state = find_running(settings.project, kafka, _notice, **server_settings)
    if state is None:
        try:
            if detach:
                _run_detached(settings, {**flags, **optional_servers})
            else:
                _run_foreground(settings, optional_servers, connect_plugin)
            return
        except AlreadyRunningError:
            # Another `up` was quicker: use what it started.
            state = find_running(settings.project, kafka, _notice, **server_settings)
            if state is None:
                raise
    say(f"Kafka runs already (pid {state.pid}).")
    _print_address(state)


def wants_druid(settings: "LoadedSettings", *, asked: bool = False) -> bool:
    """Whether Druid runs here: requested, or the project's store and not attached."""
    if settings.druid_attached:
        if asked:
            say(
                f"Attached to the Druid on {settings.settings.druid.url} ({settings.origins['druid.url']}); none is run."
            )
        return False
    return asked or settings.settings.store.kind == "druid"


def wants_connect(settings: "LoadedSettings", *, asked: bool = False) -> bool:
    """Whether Kafka Connect runs here: requested, and not attached."""
    if asked and settings.connect_attached:
        origin = settings.origins["connect.url"]
        say(f"Attached to the Kafka Connect on {settings.settings.connect.url} ({origin}); none is run.")
    return asked and not settings.connect_attached


def wants_registry(settings: "LoadedSettings", *, asked: bool = False) -> bool:
    """Whether a schema registry runs here: requested, and not attached."""
    if asked and settings.registry_attached:
        origin = settings.origins["registry.url"]
        say(f"Attached to the schema registry on {settings.settings.registry.url} ({origin}); none is run.")
    return asked and not settings.registry_attached


def start_in_background(
    settings: "LoadedSettings", flags: "Mapping[str, int | bool | None]", plugins: "Sequence[str]" = ()
) -> "RunState":
    """Start a runner that outlives this process; returns its state once its servers are ready. Flags are those of `up`;
    only the named `plugins` of Connect are fetched; none: all."""
    from riverrun.cluster.control import start_detached, start_seconds

    with_druid = wants_druid(settings, asked=bool(flags.get("druid")))
    # Here, where there is a terminal to show the download; the runner then finds everything in the cache.
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
    optional_servers = {"druid": with_druid, "connect": with_connect, "registry": with_registry}
    arguments += [f"--{name}" for name, wanted in optional_servers.items() if wanted]
    arguments += [f"--connect-plugin={name}" for name in plugins]
    for name, value in flags.items():
        arguments += (
            [f"--{name.replace('_', '-')}", str(value)] if value is not None and name not in optional_servers else []
        )
    return start_detached(settings.project, arguments, start_seconds(settings.settings, **optional_servers))


def _run_detached(settings: "LoadedSettings", flags: "Mapping[str, int | bool | None]") -> None:
    with StepProgress() as progress:
        progress.step("starting the servers", announced=False)
        state = start_in_background(settings, flags)
    _print_address(state)
    say(f"{_running_text(state)} in the background. `riverrun status` shows it, `riverrun down` stops it.")


def _running_text(state: "RunState") -> str:
    addresses = (
        ("Kafka Connect", state.connect_url),
        ("a schema registry", state.registry_url),
        ("Druid", state.druid_url),
    )
    others = [name for name, url in addresses if url]
    return f"{', '.join(['Kafka', *others[:-1]])} and {others[-1]} run" if others else "Kafka runs"


def _run_foreground(
    settings: "LoadedSettings", optional_servers: "Mapping[str, bool]", plugins: "Sequence[str]" = ()
) -> None:
    from riverrun.cli.server_display import make_display
    from riverrun.cluster.supervisor import ServerSupervisor

    runtime = _prepare(settings)
    druid = _prepare_druid(settings) if optional_servers["druid"] else None
    connect = _prepare_connect(settings, plugins) if optional_servers["connect"] else None
    registry = _prepare_registry(settings) if optional_servers["registry"] else None
    display = make_display()
    printed = False

    def changed(state: "RunState") -> None:
        nonlocal printed
        display.on_change(state)
        if state.state == "ready" and not printed:
            printed = True
            _print_address(state)

    supervisor = ServerSupervisor(
        settings.project,
        settings.settings,
        runtime=runtime,
        druid=druid,
        connect=connect,
        registry=registry,
        notice=display.notice,
        on_change=changed,
        on_poll=display.on_poll,
    )
    try:
        supervisor.run()
    finally:
        display.close()
    say("Stopped.")


def _prepare(settings: "LoadedSettings") -> "JavaRuntime":
    from riverrun.cli.fetch import make_progress
    from riverrun.cluster.jvm import JavaRuntime

    return JavaRuntime.prepare(settings.settings, progress=make_progress())


def _prepare_druid(settings: "LoadedSettings") -> "DruidRuntime":
    from riverrun.cli.fetch import make_progress
    from riverrun.cluster.druid import DruidRuntime

    return DruidRuntime.prepare(settings.settings, progress=make_progress())


def _prepare_connect(settings: "LoadedSettings", plugins: "Sequence[str]" = ()) -> "ConnectRuntime":
    from riverrun.cli.fetch import make_progress
    from riverrun.cluster.connect import PLUGIN_SETS, ConnectRuntime

    return ConnectRuntime.prepare(settings.settings, progress=make_progress(), plugins=plugins or PLUGIN_SETS)


def _prepare_registry(settings: "LoadedSettings") -> "RegistryRuntime":
    from riverrun.cli.fetch import make_progress
    from riverrun.cluster.registry import RegistryRuntime

    return RegistryRuntime.prepare(settings.settings, progress=make_progress())


def _attached(settings: "LoadedSettings", optional_servers: "Mapping[str, bool]") -> None:
    from riverrun.kafka.connection import require_cluster
    from riverrun.kafka.probe import ClusterProbe

    kafka = settings.settings.kafka
    if optional_servers["druid"]:
        require_own_kafka(settings)
    if optional_servers["connect"]:
        require_own_kafka_for_connect(settings)
    if optional_servers["registry"]:
        raise UsageError(
            "riverrun runs a schema registry beside its own Kafka only, and this project is attached to one "
            f"({settings.origins['kafka.bootstrap_servers']})",
            hint="Name a registry that runs elsewhere with registry.url",
        )
    connection = require_cluster(kafka, settings.project)
    cluster = ClusterProbe(connection.properties()).fetch_metadata(kafka.request_timeout_seconds)
    say(
        f"Attached to a cluster with {len(cluster.brokers)} broker{'s' if len(cluster.brokers) != 1 else ''} "
        f"({settings.origins['kafka.bootstrap_servers']}); nothing to start."
    )
    click.echo(kafka.bootstrap_servers)


def require_own_kafka(settings: "LoadedSettings") -> None:
    """Refuse to run Druid for a project that is attached to somebody else's Kafka."""
    raise UsageError(
        "riverrun runs Druid beside its own Kafka only, and this project is attached to one "
        f"({settings.origins['kafka.bootstrap_servers']})",
        hint="Name a Druid that runs elsewhere with druid.url, or use the embedded store (store.kind)",
    )


def require_own_kafka_for_connect(settings: "LoadedSettings") -> None:
    """Refuse to run Kafka Connect for a project that is attached to somebody else's Kafka."""
    raise UsageError(
        "riverrun runs Kafka Connect beside its own Kafka only, and this project is attached to one "
        f"({settings.origins['kafka.bootstrap_servers']})",
        hint="Name a Connect that runs elsewhere with connect.url",
    )


def _print_address(state: "RunState") -> None:
    """Print the result of `up`, for `address=$(riverrun up --detach)`; Druid's address goes to stderr."""
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
    from riverrun.config.processes import live_pipelines

    # A running cluster can be stopped however broken riverrun.toml is by now.
    project = current_project()
    losses = control.describe_data_losses(project) if delete_data else []
    if dry_run:
        for loss in losses:
            click.echo(loss)
        say("Nothing was done." if losses else "There is no data to delete.")
        return
    if losses:
        confirm("Delete it?", "This deletes", losses, yes=yes)
    if timeout is None:
        try:
            timeout = control.stop_seconds(project, load_settings().settings)
        except ConfigError as error:
            say(f"Ignoring {error}")
            timeout = control.stop_seconds(project, Settings())
    with StepProgress() as progress:
        processes = live_pipelines(project)
        for process in processes:
            # A demo has ended its pipeline by then.
            if process.alive:
                progress.step(f"stopping {process}, which uses this Kafka")
                control.stop_pipeline(process, PIPELINE_SECONDS, progress.notice)
        progress.step("stopping the servers" if processes else "")
        stopped = control.stop_runner(project, timeout, progress.notice)
    if stopped.pid or stopped.leftovers or processes:
        say("Killed." if stopped.killed else "Stopped.")
    else:
        say(f"Nothing runs in {project.root}.")
    if delete_data:
        control.delete_data(project)
        say("The data is deleted." if losses else "There was no data to delete.")
