"""`riverrun run` for an app without streams: its topics as tables, its connectors, dashboards and alerts. Without Spark."""

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from riverrun.cli.context import names_of
from riverrun.cli.output import say
from riverrun.cli.progress import StepProgress
from riverrun.model.progress import PipelineProgress

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.config import Loaded
    from riverrun.kafka.connection import Connection
    from riverrun.streams.compiler import Compilation

LOOK_SECONDS = 0.25


def has_other_work(app: "App") -> bool:
    """Whether there is something to run although there are no streams."""
    from riverrun.cli.connect_beside import needs_connect
    from riverrun.connectors.process import has_connectors

    return bool(app.kept or app.dashboards or app.alerts) or has_connectors(app) or needs_connect(app)


def publish_tables(settings: "Loaded", app: "App", connection: "Connection") -> "Compilation":
    """Tell the stores and the alerts of an app without streams which tables it has; PipelineError when one is wrong."""
    from riverrun.alerts.kafka_log import tell_tables
    from riverrun.store.catalog import publish
    from riverrun.streams.tables import compilation_without_streams, tables_of, watched_by

    done = compilation_without_streams(app)
    tables = tables_of(done)
    if settings.settings.store.kind != "none":
        publish(connection, app.name, tables)
    if app.alerts:
        tell_tables(connection, app.name, watched_by(done))
    return done


def run_without_streams(
    settings: "Loaded",
    app: "App",
    file: str,
    *,
    servers: "Callable[[Loaded, App], Any]",
    with_alerts: bool,
    until_caught_up: bool,
) -> None:
    """Run until Ctrl-C; with `until_caught_up`, until tables, sinks and alerts have all there is."""
    from riverrun.cli.alerting import alerts_beside, check_channels
    from riverrun.cli.beside_end import stop_beside
    from riverrun.cli.connect_beside import connect_beside, sink_configs_of, source_configs_of
    from riverrun.cli.connecting import connectors_beside
    from riverrun.cli.storing import store_beside
    from riverrun.cli.stream_table import LiveBoard
    from riverrun.cluster.signals import stop_on_signals
    from riverrun.config.stream_state import StreamState
    from riverrun.kafka.admin.admin import Admin
    from riverrun.kafka.admin.topics import apply_topics
    from riverrun.kafka.probe import ANSWER_SECONDS, cluster_answers
    from riverrun.streams.serving import ProgressServer

    progress = _progress(app)
    # Before anything is asked or written: a second run in the same folder touches nothing.
    with StreamState(settings.project, file) as state, ExitStack() as stack:
        configs = source_configs_of(settings, app)
        if with_alerts:
            check_channels(settings, app)
        working = stack.enter_context(StepProgress())
        working.step("starting Kafka")
        connection = stack.enter_context(servers(settings, app))
        stack.callback(working.step, "stopping", announced=False)
        board = stack.enter_context(LiveBoard())
        stop = stack.enter_context(stop_on_signals())
        board.names = names_of(app)
        apply_topics(Admin(connection), list(app.topics.values()))
        done = publish_tables(settings, app, connection)
        configs |= sink_configs_of(settings, done, board.notice)
        working.step("")
        with (
            store_beside(settings, app, connection.bootstrap_servers, board.notice, board.addresses) as store,
            alerts_beside(settings, app, connection, board.notice, wanted=with_alerts) as alerts,
            connect_beside(settings, app, configs, board.notice) as connect,
            connectors_beside(settings, app, connection, board.notice) as connectors,
            ProgressServer(lambda: progress, settings.settings.streams.port) as server,
        ):
            beside = [each for each in (store, alerts, connect, connectors) if each is not None]
            if store is not None:
                store.expected = list(app.kept)
            progress.address = server.start()
            board.notice("the app has no streams: Spark is not started")
            try:
                if until_caught_up:
                    state.write(progress)
                    if connectors is not None:
                        connectors.feed(stop)
                    for each in beside:
                        each.catch_up(stop)
                else:
                    _look_after(beside, stop, lambda: state.write(replace(progress, updated_at=_now())))
            finally:
                stop_beside(beside, lambda: not cluster_answers(connection.properties(), ANSWER_SECONDS))
    say("Stopped.")


def _look_after(beside: list[Any], stop: threading.Event, tell: Callable[[], None]) -> None:
    while not stop.is_set():
        tell()
        for each in beside:
            each.look()
        stop.wait(LOOK_SECONDS)


def _progress(app: "App") -> PipelineProgress:
    from riverrun.dash.picture.shape import shape_of
    from riverrun.streams.graph import graph_of

    shape = shape_of(app, graph_of(app).inputs).as_dict()
    return PipelineProgress(app.name, app.file, pid=os.getpid(), started_at=_now(), updated_at=_now(), shape=shape)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
