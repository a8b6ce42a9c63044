"""`riverrun validate`, `graph`, `plan` and `run`: what a pipeline file says, how it would run, and running it."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import click

from riverrun.app import declared_names
from riverrun.cli.context import load_declared, load_settings, load_settings_to_inspect
from riverrun.cli.output import json_option, print_json, print_rows, say
from riverrun.cli.progress import StepProgress
from riverrun.model.pipeline import SPEEDS

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.config import LoadedSettings, Settings
    from riverrun.kafka.connection import Connection
    from riverrun.model.progress import PipelineProgress
    from riverrun.streams.compile.compiler import Compilation
    from riverrun.streams.evolve.change import CodeChange
    from riverrun.streams.run.planner import PipelinePlan

# How long Ctrl-C waits for Spark to finish starting; then it is killed.
LEFTOVER_SECONDS = 3.0

_file = click.argument("file", required=False, metavar="[FILE]")
_speed = click.option("--speed", type=click.Choice(SPEEDS), help="The speed of all streams, whatever the file says.")


def _validate_every(_ctx: click.Context, _parameter: click.Parameter, every: str | None) -> str | None:
    """Refuse an invalid duration before anything is started."""
    from riverrun.model.pipeline import every_ms

    if every is not None:
        every_ms(every, "--every")
    return every


_every = click.option(
    "--every",
    metavar="DURATION",
    callback=_validate_every,
    help="How often near-real-time streams look for records.",
)


def _require_app(settings: "LoadedSettings", file: str | None) -> "App":
    """The file of the argument, else the project's."""
    from riverrun.errors import UsageError

    app = load_declared(settings, file)
    if app is None:
        raise UsageError("No pipeline file is named", hint="Give its path, or set project.app in riverrun.toml")
    return app


@click.command(epilog="Example: riverrun validate meters.py")
@_file
@json_option
def validate(*, file: str | None, as_json: bool) -> None:
    """Check a pipeline file: names, cycles, columns, keys, event times. Needs no broker; all problems come at once."""
    settings = load_settings_to_inspect()
    from riverrun.streams.run.session import require_pyspark

    require_pyspark()
    from riverrun.cli.run_without_streams import has_other_work
    from riverrun.streams.compile.tables import build_tables, compilation_without_streams

    def checked(done: "Compilation") -> "Compilation":
        build_tables(done)
        return done

    app = _require_app(settings, file)
    if not app.streams and has_other_work(app):
        done = checked(compilation_without_streams(app))
    else:
        done = _compiled(settings, app, None, checked)
    rows = [
        {
            "stream": name,
            "reads": ", ".join(stream.inputs),
            "topic": stream.stream.output_topic,
            "key": ", ".join(stream.key),
            "time": stream.time,
            "columns": stream.columns.simpleString().removeprefix("struct<").removesuffix(">"),
        }
        for name, stream in done.streams.items()
    ]
    print_rows(rows, as_json=as_json, empty="It has no streams.")
    if not as_json:
        for name, stream in done.streams.items():
            if stream.order_note:
                say(f"{name}: {stream.order_note}.")
        say(f"{done.graph.app.name}: nothing wrong.")


@click.command(epilog="Example: riverrun graph meters.py --mermaid > lineage.mmd")
@_file
@click.option("--mermaid", is_flag=True, help="As a Mermaid flow chart, which Markdown pages draw.")
@json_option
def graph(*, file: str | None, mermaid: bool, as_json: bool) -> None:
    """Print which stream reads what. Needs neither Spark nor a broker."""
    from riverrun.errors import PipelineError
    from riverrun.streams.compile.graph import build_graph, graph_text, mermaid_chart

    settings = load_settings_to_inspect()
    stream_graph = build_graph(_require_app(settings, file))
    if as_json:
        print_json({name: list(inputs) for name, inputs in stream_graph.inputs.items()})
    elif stream_graph.order or not stream_graph.problems:
        click.echo(mermaid_chart(stream_graph) if mermaid else graph_text(stream_graph))
    if stream_graph.problems:
        raise PipelineError([str(problem) for problem in stream_graph.problems], file=file or "")


@click.command(epilog="Example: riverrun plan meters.py --speed real-time")
@_file
@_speed
@_every
@json_option
def plan(*, file: str | None, speed: Any, every: str | None, as_json: bool) -> None:
    """Print how each stream would run, why not faster, and whether an edited one can go on from where it was.

    Starts Spark, and needs no broker.
    """
    from riverrun.streams.evolve.versions import find_changes
    from riverrun.streams.pipeline import slots_for_streams, streams_folder
    from riverrun.streams.run.planner import plan_streams

    settings = load_settings_to_inspect()
    app = _require_app(settings, file)

    orders: dict[str, str] = {}

    def planned(done: "Compilation") -> "tuple[PipelinePlan, dict[str, CodeChange]]":
        orders.update({name: stream.order_note for name, stream in done.streams.items()})
        slots = slots_for_streams(done.spark, settings.settings)
        plans = plan_streams(done.require(), settings.settings, slots=slots, speed=speed, every=every)
        return plans, find_changes(done, streams_folder(settings.project, app))

    stream_plan, changes = _compiled(settings, app, speed, planned)
    rows = [
        {
            "stream": stream.name,
            "asked": stream.requested,
            "runs": stream.speed,
            "pace": stream.pace,
            "output": stream.output_mode,
            "slots": stream.slots,
            "because": stream.reason,
            "notes": "; ".join(filter(None, (*stream.notes, orders[stream.name]))),
            "change": changes[stream.name].summary,
        }
        for stream in stream_plan.streams
    ]
    print_rows(rows, as_json=as_json)
    if not as_json:
        say(f"Real-time streams hold {stream_plan.held_slots} of Spark's {stream_plan.slots} task slots.")


def _compiled(
    settings: "LoadedSettings", app: "App", speed: Any, use: "Callable[[Compilation], Any]" = lambda done: done
) -> Any:
    """Compile an app in a session of its own, without a broker; returns what `use` makes of it."""
    from riverrun.streams.run.session import require_pyspark, stop_session

    require_pyspark()
    from riverrun.cluster.signals import shield_from_signals
    from riverrun.config import KafkaSettings
    from riverrun.kafka.connection import Connection
    from riverrun.streams.compile.compiler import compile_app
    from riverrun.streams.compile.sources import KafkaRecordSource
    from riverrun.streams.pipeline import build_checked_graph, open_session

    stream_graph = build_checked_graph(app)
    nowhere = Connection(KafkaSettings(bootstrap_servers=settings.settings.kafka.bootstrap_servers or "127.0.0.1:9092"))
    with StepProgress() as progress:
        progress.step("starting Spark")
        spark = open_session(stream_graph, settings.settings, settings.project, speed=speed, inspect_only=True)
        try:
            progress.step("compiling the streams")
            return use(compile_app(stream_graph, spark, KafkaRecordSource(spark, nowhere, topics=app.topics)))
        finally:
            progress.step("stopping Spark", announced=False)
            with shield_from_signals():
                stop_session(spark)


@click.command(epilog="Example: riverrun run meters.py --speed near-real-time --every '5 seconds'")
@_file
@_speed
@_every
@click.option("--stream", "only", multiple=True, metavar="NAME", help="Run this stream only; may be given again.")
@click.option("--fresh", multiple=True, metavar="NAME", help="Forget where this stream was: read everything again.")
@click.option(
    "--keep-state",
    multiple=True,
    metavar="NAME",
    help="Go on with the state that an earlier version of this stream's code has made, where Spark can use it.",
)
@click.option("--until-caught-up", is_flag=True, help="Stop when all there is has been read.")
@click.option(
    "--bootstrap-servers", "bootstrap", metavar="HOST:PORT", help="Use this cluster instead of the project's."
)
@click.option("--master", metavar="URL", help="Run on this Spark. [default: on this machine]")
@click.option(
    "--store",
    "store_kind",
    type=click.Choice(("embedded", "druid", "none")),
    help="Where results are kept as tables. [default: store.kind]",
)
@click.option("--alerts/--no-alerts", "alerts_wanted", default=True, help="Whether alerts are sent. Never at batch.")
def run(  # noqa: PLR0915  -- what it starts, in order
    *,
    file: str | None,
    speed: Any,
    every: str | None,
    only: tuple[str, ...],
    fresh: tuple[str, ...],
    keep_state: tuple[str, ...],
    until_caught_up: bool,
    bootstrap: str | None,
    master: str | None,
    store_kind: str | None,
    alerts_wanted: bool,
) -> None:
    """Run all streams of a pipeline file until Ctrl-C; at the speed batch, until they are done.

    Starts Kafka if the project has none, and stops it at the end if it was started here; the store too, so that results can
    be asked for with `riverrun query`, what sends the app's alerts, and Kafka Connect where a connector needs it. Makes the
    topics, runs the streams, shows a live table, and starts a stream again when something around it failed.
    """
    from riverrun.streams.run.session import require_pyspark, stop_session

    require_pyspark()
    from riverrun.cli.alert_supervisor import check_channels, supervise_alerts
    from riverrun.cli.connect_reconciler import reconcile_connect, sink_configs_of, source_configs_of
    from riverrun.cli.run_without_streams import has_other_work, run_without_streams
    from riverrun.cluster.signals import shield_from_signals, stop_on_signals
    from riverrun.config.stream_state import StreamState
    from riverrun.runtime.connector_supervisor import supervise_connectors
    from riverrun.runtime.shutdown import stop_supervisors
    from riverrun.runtime.store_supervisor import supervise_store
    from riverrun.streams.pipeline import Pipeline, build_checked_graph, open_session
    from riverrun.streams.run.progress_server import ProgressServer

    settings = load_settings(kafka__bootstrap_servers=bootstrap, spark__master=master, store__kind=store_kind)
    app = _require_app(settings, file)
    if not app.streams and has_other_work(app):
        _refuse_stream_options(app, {"--stream": only, "--fresh": fresh, "--keep-state": keep_state})
        run_without_streams(
            settings,
            app,
            file or settings.settings.project.app,
            servers=_open_servers,
            with_alerts=bool(app.alerts) and alerts_wanted and speed != "batch",
            until_caught_up=until_caught_up or speed == "batch",
        )
        return
    stream_graph = build_checked_graph(app)
    with_alerts = bool(app.alerts) and alerts_wanted and speed != "batch"
    # Before any prompt or write: a second run in the same folder touches nothing.
    with StreamState(settings.project, file or settings.settings.project.app) as state, StepProgress() as working:
        configs = source_configs_of(settings, app)
        if with_alerts:
            check_channels(settings, app)
        starting = _SparkStart(
            lambda wanted: open_session(
                stream_graph, settings.settings, settings.project, speed=speed, check_wanted=wanted
            )
        )
        spark: Any = None
        outdated = False
        try:
            working.step("starting Spark and Kafka")
            with _open_servers(settings, app) as connection, _told_at_end(working, "stopping Kafka"):
                spark = starting.result()
                working.step("preparing the streams")
                with _stream_display(app) as board:
                    pipeline = Pipeline(
                        stream_graph,
                        spark,
                        settings.settings,
                        settings.project,
                        connection,
                        speed=speed,
                        every=every,
                        only=only,
                        fresh=fresh,
                        keep_state=keep_state,
                        notice=board.notice,
                    )
                    _print_plan(pipeline.plan, board.notice)
                    configs |= sink_configs_of(settings, pipeline.compilation, board.notice)
                    pipeline.prepare()
                    working.step("")
                    with (
                        stop_on_signals() as stop,
                        supervise_store(
                            settings, app, connection.bootstrap_servers, board.notice, board.addresses
                        ) as store,
                        supervise_alerts(settings, app, connection, board.notice, enabled=with_alerts) as alerts,
                        reconcile_connect(settings, app, configs, board.notice) as connect,
                        supervise_connectors(settings, app, connection, board.notice) as connectors,
                        ProgressServer(pipeline.snapshot, settings.settings.streams.port) as server,
                    ):
                        supervisors = [
                            supervisor for supervisor in (store, alerts, connect, connectors) if supervisor is not None
                        ]
                        if store is not None:
                            store.expected = [table.name for table in pipeline.tables]
                        pipeline.progress.address = server.start()
                        pipeline.progress.pid = os.getpid()
                        board.notice(f"metrics at {pipeline.progress.address}/metrics")

                        def changed(progress: "PipelineProgress") -> None:
                            state.write(progress)
                            board.show(progress)
                            for supervisor in supervisors:
                                supervisor.poll()

                        if connectors is not None and until_caught_up:
                            connectors.wait_for_sources(stop)
                        try:
                            pipeline.run(stop, changed, until_caught_up=until_caught_up)
                            outdated = pipeline.outdated
                            if not stop.is_set() and not outdated:
                                # Everything is read: the tables must catch up, too, and notifications be sent.
                                for supervisor in supervisors:
                                    supervisor.wait_until_caught_up(stop)
                        finally:
                            stop_supervisors(supervisors, lambda: pipeline.kafka_gone)
        finally:
            working.step("stopping Spark", announced=False)
            with shield_from_signals():
                if spark is None:
                    spark = starting.leftover()
                if spark is not None:
                    stop_session(spark)
    if outdated:
        # A replay with a newer pipeline file has taken over: the same command, with that file.
        os.execv(sys.executable, [sys.executable, *without_fresh(sys.orig_argv[1:])])  # noqa: S606
    say("Stopped.")


def _refuse_stream_options(app: "App", given: dict[str, tuple[str, ...]]) -> None:
    from riverrun.errors import UsageError

    for option, names in given.items():
        if names:
            raise UsageError(f"The app {app.name} has no stream {names[0]}: it has none", hint=f"Leave {option} away")


def without_fresh(arguments: list[str]) -> list[str]:
    """A command line for continuing: what it reset the first time it must not reset again."""
    remaining: list[str] = []
    skip = False
    for argument in arguments:
        if not skip and argument != "--fresh" and not argument.startswith("--fresh="):
            remaining.append(argument)
        skip = argument == "--fresh" and not skip
    return remaining


def _print_plan(stream_plan: "PipelinePlan", notice: Callable[[str], None]) -> None:
    for stream in stream_plan.streams:
        if stream.reason:
            notice(f"{stream.name} runs {stream.speed} ({stream.pace}), because {stream.reason}")


def _stream_display(app: "App") -> Any:
    from riverrun.cli.stream_display import StreamDisplay

    board = StreamDisplay()
    board.names = declared_names(app)
    return board


class _StartCancelledError(Exception):
    """Spark's session is no longer wanted."""


class _SparkStart:
    """Starts Spark while Kafka starts: both take seconds. `start` gets a callback to call before it starts a JVM: it
    raises when the session is no longer wanted."""

    def __init__(self, start: "Callable[[Callable[[], None]], Any]") -> None:
        self._session: Any = None
        self._error: BaseException | None = None
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(start,), daemon=True)
        self._thread.start()

    def _run(self, start: "Callable[[Callable[[], None]], Any]") -> None:
        try:
            self._session = start(self._raise_if_cancelled)
        except BaseException as error:  # noqa: BLE001  -- carried to the caller
            self._error = error

    def _raise_if_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise _StartCancelledError

    def result(self) -> Any:
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._session is not None  # noqa: S101
        return self._session

    def leftover(self) -> Any:
        """The unused session, because something else failed meanwhile; None when there is none yet: a start that hangs
        in a slow download or at an unreachable master is left as it is, without a JVM."""
        from riverrun.streams.run.session import kill_spark

        self._cancelled.set()
        self._thread.join(LEFTOVER_SECONDS)
        if self._thread.is_alive():
            kill_spark()
            self._thread.join(LEFTOVER_SECONDS)
        return self._session


def _open_servers(settings: "LoadedSettings", app: "App") -> "AbstractContextManager[Connection]":
    from riverrun.cli.connect_reconciler import has_undeclared_connectors, needs_connect, plugins_of
    from riverrun.config.run_state import is_locked, lock_path

    registry = any(topic.registered for topic in app.topics.values())
    # A cluster that runs already stays as it is.
    connect = needs_connect(app) or (
        has_undeclared_connectors(settings, app) and not is_locked(lock_path(settings.project))
    )
    return open_kafka(settings, connect=connect, registry=registry, plugins=plugins_of(app) if connect else ())


@contextmanager
def open_kafka(
    settings: "LoadedSettings", *, connect: bool = False, registry: bool = False, plugins: "Sequence[str]" = ()
) -> "Iterator[Connection]":
    """The project's cluster: the one it names, the running one, or one that runs as long as this block. With Druid,
    where that is the project's store and not attached; with Kafka Connect and with a schema registry, where `connect`
    and `registry` ask for them and they are not attached; Connect with these `plugins`, or all."""
    from riverrun.cli.up import (
        require_own_kafka,
        require_own_kafka_for_connect,
        start_in_background,
        wants_connect,
        wants_druid,
        wants_registry,
    )
    from riverrun.cluster.control import find_running, stop_runner, stop_seconds
    from riverrun.cluster.signals import shield_from_signals
    from riverrun.kafka.connection import require_cluster

    kafka = settings.settings.kafka
    druid = settings.settings.druid if wants_druid(settings) else None
    if settings.attached and druid is not None:
        require_own_kafka(settings)
    connect_settings = settings.settings.connect if connect and not settings.connect_attached else None
    if settings.attached and connect_settings is not None:
        require_own_kafka_for_connect(settings)
    registry_settings = settings.settings.registry if registry and not settings.registry_attached else None
    running = None
    if not settings.attached:
        running = find_running(
            settings.project, kafka, lambda _: None, druid=druid, connect=connect_settings, registry=registry_settings
        )
    if settings.attached or running is not None:
        reloaded = reload_settings(settings)
        yield require_cluster(reloaded.kafka, settings.project, reloaded.registry)
        return
    optional_servers = {
        "connect": wants_connect(settings, asked=connect),
        "registry": wants_registry(settings, asked=registry),
    }
    start_in_background(settings, optional_servers, plugins)
    try:
        reloaded = reload_settings(settings)
        yield require_cluster(reloaded.kafka, settings.project, reloaded.registry)
    finally:
        with shield_from_signals():
            stop_runner(settings.project, stop_seconds(settings.project, settings.settings))


def reload_settings(settings: "LoadedSettings") -> "Settings":
    """The settings with the addresses of the servers that run by now."""
    if settings.attached:
        return settings.settings
    from riverrun.config import load

    return load(settings.project, profile=settings.profile).settings


@contextmanager
def _told_at_end(progress: StepProgress, step: str) -> "Iterator[None]":
    """Announce the step that follows this block, however it ends: leaving the inner blocks takes time."""
    try:
        yield
    finally:
        progress.step(step, announced=False)
