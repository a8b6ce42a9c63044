"""`riverrun validate`, `graph`, `plan` and `run`: what a pipeline file says, how it would run, and running it."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.context import load_declared, loaded, loaded_to_look, names_of
from riverrun.cli.output import json_option, print_json, print_rows, say
from riverrun.cli.progress import StepProgress
from riverrun.model.pipeline import SPEEDS

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.config import Loaded, Settings
    from riverrun.kafka.connection import Connection
    from riverrun.model.progress import PipelineProgress
    from riverrun.streams.change import Change
    from riverrun.streams.compiler import Compilation
    from riverrun.streams.planner import Plan

# Who leaves while Spark starts waits so long for it; then it is killed.
START_LEFT_SECONDS = 3.0

_file = click.argument("file", required=False, metavar="[FILE]")
_speed = click.option("--speed", type=click.Choice(SPEEDS), help="The speed of all streams, whatever the file says.")


def _checked_every(_ctx: click.Context, _parameter: click.Parameter, every: str | None) -> str | None:
    """Refuse what is no duration before anything is started."""
    from riverrun.model.pipeline import every_ms

    if every is not None:
        every_ms(every, "--every")
    return every


_every = click.option(
    "--every",
    metavar="DURATION",
    callback=_checked_every,
    help="How often near-real-time streams look for records.",
)


def _app(settings: "Loaded", file: str | None) -> "App":
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
    settings = loaded_to_look()
    from riverrun.streams.session import require_pyspark

    require_pyspark()
    from riverrun.cli.without_streams import has_other_work
    from riverrun.streams.tables import compilation_without_streams, tables_of

    def checked(done: "Compilation") -> "Compilation":
        tables_of(done)
        return done

    app = _app(settings, file)
    if not app.streams and has_other_work(app):
        done = checked(compilation_without_streams(app))
    else:
        done = _compiled(settings, app, None, checked)
    rows = [
        {
            "stream": name,
            "reads": ", ".join(each.inputs),
            "topic": each.stream.target,
            "key": ", ".join(each.key),
            "time": each.time,
            "columns": each.columns.simpleString().removeprefix("struct<").removesuffix(">"),
        }
        for name, each in done.streams.items()
    ]
    print_rows(rows, as_json=as_json, empty="It has no streams.")
    if not as_json:
        say(f"{done.graph.app.name}: nothing wrong.")


@click.command(epilog="Example: riverrun graph meters.py --mermaid > lineage.mmd")
@_file
@click.option("--mermaid", is_flag=True, help="As a Mermaid flow chart, which Markdown pages draw.")
@json_option
def graph(*, file: str | None, mermaid: bool, as_json: bool) -> None:
    """Print which stream reads what. Needs neither Spark nor a broker."""
    from riverrun.errors import PipelineError
    from riverrun.streams.graph import graph_of, mermaid_of, text_of

    settings = loaded_to_look()
    found = graph_of(_app(settings, file))
    if as_json:
        print_json({name: list(inputs) for name, inputs in found.inputs.items()})
    elif found.order or not found.problems:
        click.echo(mermaid_of(found) if mermaid else text_of(found))
    if found.problems:
        raise PipelineError([str(each) for each in found.problems], file=file or "")


@click.command(epilog="Example: riverrun plan meters.py --speed real-time")
@_file
@_speed
@_every
@json_option
def plan(*, file: str | None, speed: Any, every: str | None, as_json: bool) -> None:
    """Print how each stream would run, why not faster, and whether an edited one can go on from where it was.

    Starts Spark, and needs no broker.
    """
    from riverrun.streams.pipeline import slots_for_streams, streams_folder
    from riverrun.streams.planner import plan_streams
    from riverrun.streams.versions import changes_of

    settings = loaded_to_look()
    app = _app(settings, file)

    def planned(done: "Compilation") -> "tuple[Plan, dict[str, Change]]":
        slots = slots_for_streams(done.spark, settings.settings)
        plans = plan_streams(done.require(), settings.settings, slots=slots, speed=speed, every=every)
        return plans, changes_of(done, streams_folder(settings.project, app))

    found, changes = _compiled(settings, app, speed, planned)
    rows = [
        {
            "stream": each.name,
            "asked": each.asked,
            "runs": each.speed,
            "pace": each.pace,
            "output": each.output_mode,
            "slots": each.slots,
            "because": each.because,
            "notes": "; ".join(each.notes),
            "change": changes[each.name].words,
        }
        for each in found.streams
    ]
    print_rows(rows, as_json=as_json)
    if not as_json:
        say(f"Real-time streams hold {found.needed} of Spark's {found.slots} task slots.")


def _compiled(
    settings: "Loaded", app: "App", speed: Any, use: "Callable[[Compilation], Any]" = lambda done: done
) -> Any:
    """Compile an app in a session of its own, without a broker; what `use` makes of it."""
    from riverrun.streams.session import require_pyspark, stop_session

    require_pyspark()
    from riverrun.cluster.signals import shielded
    from riverrun.config import KafkaSettings
    from riverrun.kafka.connection import Connection
    from riverrun.streams.compiler import compile_app
    from riverrun.streams.pipeline import checked_graph, open_session
    from riverrun.streams.sources import KafkaRecords

    found = checked_graph(app)
    nowhere = Connection(KafkaSettings(bootstrap_servers=settings.settings.kafka.bootstrap_servers or "127.0.0.1:9092"))
    with StepProgress() as progress:
        progress.step("starting Spark")
        spark = open_session(found, settings.settings, settings.project, speed=speed, only_look=True)
        try:
            progress.step("compiling the streams")
            return use(compile_app(found, spark, KafkaRecords(spark, nowhere, topics=app.topics)))
        finally:
            progress.step("stopping Spark", announced=False)
            with shielded():
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
    from riverrun.streams.session import require_pyspark, stop_session

    require_pyspark()
    from riverrun.cli.alerting import alerts_beside, check_channels
    from riverrun.cli.beside_end import stop_beside
    from riverrun.cli.connect_beside import connect_beside, sink_configs_of, source_configs_of
    from riverrun.cli.connecting import connectors_beside
    from riverrun.cli.storing import store_beside
    from riverrun.cli.without_streams import has_other_work, run_without_streams
    from riverrun.cluster.signals import shielded, stop_on_signals
    from riverrun.config.stream_state import StreamState
    from riverrun.streams.pipeline import Pipeline, checked_graph, open_session
    from riverrun.streams.serving import ProgressServer

    settings = loaded(kafka__bootstrap_servers=bootstrap, spark__master=master, store__kind=store_kind)
    app = _app(settings, file)
    if not app.streams and has_other_work(app):
        _refuse_stream_options(app, {"--stream": only, "--fresh": fresh, "--keep-state": keep_state})
        run_without_streams(
            settings,
            app,
            file or settings.settings.project.app,
            servers=_servers_of,
            with_alerts=bool(app.alerts) and alerts_wanted and speed != "batch",
            until_caught_up=until_caught_up or speed == "batch",
        )
        return
    found = checked_graph(app)
    with_alerts = bool(app.alerts) and alerts_wanted and speed != "batch"
    # Before anything is asked or written: a second run in the same folder touches nothing.
    with StreamState(settings.project, file or settings.settings.project.app) as state, StepProgress() as working:
        configs = source_configs_of(settings, app)
        if with_alerts:
            check_channels(settings, app)
        starting = _Starting(
            lambda wanted: open_session(found, settings.settings, settings.project, speed=speed, wanted=wanted)
        )
        spark: Any = None
        outdated = False
        try:
            working.step("starting Spark and Kafka")
            with _servers_of(settings, app) as connection, _told_at_end(working, "stopping Kafka"):
                spark = starting.result()
                working.step("preparing the streams")
                with _board(app) as board:
                    pipeline = Pipeline(
                        found,
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
                    _tell_plan(pipeline.plan, board.notice)
                    configs |= sink_configs_of(settings, pipeline.done, board.notice)
                    pipeline.prepare()
                    working.step("")
                    with (
                        stop_on_signals() as stop,
                        store_beside(
                            settings, app, connection.bootstrap_servers, board.notice, board.addresses
                        ) as store,
                        alerts_beside(settings, app, connection, board.notice, wanted=with_alerts) as alerts,
                        connect_beside(settings, app, configs, board.notice) as connect,
                        connectors_beside(settings, app, connection, board.notice) as connectors,
                        ProgressServer(pipeline.snapshot, settings.settings.streams.port) as server,
                    ):
                        beside = [each for each in (store, alerts, connect, connectors) if each is not None]
                        if store is not None:
                            store.expected = [table.name for table in pipeline.tables]
                        pipeline.progress.address = server.start()
                        pipeline.progress.pid = os.getpid()
                        board.notice(f"metrics at {pipeline.progress.address}/metrics")

                        def changed(progress: "PipelineProgress") -> None:
                            state.write(progress)
                            board.show(progress)
                            for each in beside:
                                each.look()

                        if connectors is not None and until_caught_up:
                            connectors.feed(stop)
                        try:
                            pipeline.run(stop, changed, until_caught_up=until_caught_up)
                            outdated = pipeline.outdated
                            if not stop.is_set() and not outdated:
                                # All is read: the tables are to have it, too, and people to be told.
                                for each in beside:
                                    each.catch_up(stop)
                        finally:
                            stop_beside(beside, lambda: pipeline.kafka_gone)
        finally:
            working.step("stopping Spark", announced=False)
            with shielded():
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
    """A command line for going on: what it forgot the first time it must not forget again."""
    kept: list[str] = []
    skip = False
    for each in arguments:
        if not skip and each != "--fresh" and not each.startswith("--fresh="):
            kept.append(each)
        skip = each == "--fresh" and not skip
    return kept


def _tell_plan(found: "Plan", notice: Callable[[str], None]) -> None:
    for each in found.streams:
        if each.because:
            notice(f"{each.name} runs {each.speed} ({each.pace}), because {each.because}")


def _board(app: "App") -> Any:
    from riverrun.cli.stream_table import LiveBoard

    board = LiveBoard()
    board.names = names_of(app)
    return board


class _NotWantedError(Exception):
    """Nobody waits for Spark any more."""


class _Starting:
    """Spark takes seconds to start, and so does Kafka: at the same time. `start` is given what to ask before a JVM is
    started: it raises when that is not wanted any more."""

    def __init__(self, start: "Callable[[Callable[[], None]], Any]") -> None:
        self._found: Any = None
        self._error: BaseException | None = None
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(start,), daemon=True)
        self._thread.start()

    def _run(self, start: "Callable[[Callable[[], None]], Any]") -> None:
        try:
            self._found = start(self._wanted)
        except BaseException as error:  # noqa: BLE001  -- carried to the caller
            self._error = error

    def _wanted(self) -> None:
        if self._left.is_set():
            raise _NotWantedError

    def result(self) -> Any:
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._found is not None  # noqa: S101
        return self._found

    def leftover(self) -> Any:
        """The session that nobody took, because something else failed meanwhile; None when there is none yet: what a slow
        download or a master out of reach holds up is left as it is, without a JVM."""
        from riverrun.streams.session import kill_spark

        self._left.set()
        self._thread.join(START_LEFT_SECONDS)
        if self._thread.is_alive():
            kill_spark()
            self._thread.join(START_LEFT_SECONDS)
        return self._found


def _servers_of(settings: "Loaded", app: "App") -> "AbstractContextManager[Connection]":
    from riverrun.cli.connect_beside import left_behind, needs_connect, plugins_of
    from riverrun.config.run_state import is_locked, lock_path

    registry = any(topic.registered for topic in app.topics.values())
    # A cluster that runs already goes on as it is.
    connect = needs_connect(app) or (left_behind(settings, app) and not is_locked(lock_path(settings.project)))
    return kafka_of(settings, connect=connect, registry=registry, plugins=plugins_of(app) if connect else ())


@contextmanager
def kafka_of(
    settings: "Loaded", *, connect: bool = False, registry: bool = False, plugins: "Sequence[str]" = ()
) -> "Iterator[Connection]":
    """The project's cluster: the one it names, the one that runs, or one that runs as long as this block. With Druid, where
    that is the project's store and not attached; with Kafka Connect and with a schema registry, where `connect` and
    `registry` ask for them and they are not attached; Connect with these `plugins`, or all."""
    from riverrun.cli.up import (
        require_own_kafka,
        require_own_kafka_for_connect,
        start_in_background,
        wants_connect,
        wants_druid,
        wants_registry,
    )
    from riverrun.cluster.control import find_running, stop_runner, stop_seconds
    from riverrun.cluster.signals import shielded
    from riverrun.kafka.connection import require_cluster

    kafka = settings.settings.kafka
    druid = settings.settings.druid if wants_druid(settings) else None
    if settings.attached and druid is not None:
        require_own_kafka(settings)
    beside = settings.settings.connect if connect and not settings.connect_attached else None
    if settings.attached and beside is not None:
        require_own_kafka_for_connect(settings)
    schemas = settings.settings.registry if registry and not settings.registry_attached else None
    running = None
    if not settings.attached:
        running = find_running(settings.project, kafka, lambda _: None, druid=druid, connect=beside, registry=schemas)
    if settings.attached or running is not None:
        again = loaded_again(settings)
        yield require_cluster(again.kafka, settings.project, again.registry)
        return
    wanted = {"connect": wants_connect(settings, asked=connect), "registry": wants_registry(settings, asked=registry)}
    start_in_background(settings, wanted, plugins)
    try:
        again = loaded_again(settings)
        yield require_cluster(again.kafka, settings.project, again.registry)
    finally:
        with shielded():
            stop_runner(settings.project, stop_seconds(settings.project, settings.settings))


def loaded_again(settings: "Loaded") -> "Settings":
    """The settings with the addresses of the servers that run by now."""
    if settings.attached:
        return settings.settings
    from riverrun.config import load

    return load(settings.project, profile=settings.profile).settings


@contextmanager
def _told_at_end(progress: StepProgress, step: str) -> "Iterator[None]":
    """Name the step that follows this block, however it ends: what was entered before takes its time to leave."""
    try:
        yield
    finally:
        progress.step(step, announced=False)
