"""`riverrun run` for an app without streams: its topics as tables, its connectors, dashboards and alerts. Without
Spark."""

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from riverrun.app import declared_names
from riverrun.cli.output import say
from riverrun.cli.progress import StepProgress
from riverrun.model.progress import PipelineProgress

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.config import LoadedSettings
    from riverrun.kafka.connection import Connection
    from riverrun.streams.compile.compiler import Compilation

POLL_SECONDS = 0.25


def has_other_work(app: "App") -> bool:
    """Whether there is something to run although there are no streams."""
    from riverrun.cli.connect_reconciler import needs_connect
    from riverrun.connectors.process import has_connectors

    return bool(app.table_options or app.dashboards or app.alerts) or has_connectors(app) or needs_connect(app)


def publish_tables(settings: "LoadedSettings", app: "App", connection: "Connection") -> "Compilation":
    """Publish the tables of an app without streams to the stores and the alerts; PipelineError when one is wrong."""
    from riverrun.alerts.kafka_log import publish_watched_tables
    from riverrun.store.catalog import publish_tables
    from riverrun.streams.compile.tables import build_tables, compilation_without_streams, watched_tables

    done = compilation_without_streams(app)
    tables = build_tables(done)
    if settings.settings.store.kind != "none":
        publish_tables(connection, app.name, tables)
    if app.alerts:
        publish_watched_tables(connection, app.name, watched_tables(done))
    return done


def run_without_streams(
    settings: "LoadedSettings",
    app: "App",
    file: str,
    *,
    servers: "Callable[[LoadedSettings, App], Any]",
    with_alerts: bool,
    until_caught_up: bool,
) -> None:
    """Run until Ctrl-C; with `until_caught_up`, until tables, sinks and alerts have caught up."""
    from riverrun.cli.alert_supervisor import check_channels, supervise_alerts
    from riverrun.cli.connect_reconciler import reconcile_connect, sink_configs_of, source_configs_of
    from riverrun.cli.stream_display import StreamDisplay
    from riverrun.cluster.signals import stop_on_signals
    from riverrun.config.stream_state import StreamState
    from riverrun.kafka.admin.admin import Admin
    from riverrun.kafka.admin.topics import apply_topics
    from riverrun.kafka.probe import RESPONSE_TIMEOUT_SECONDS, is_cluster_reachable
    from riverrun.runtime.connector_supervisor import supervise_connectors
    from riverrun.runtime.shutdown import stop_supervisors
    from riverrun.runtime.store_supervisor import supervise_store
    from riverrun.streams.run.progress_server import ProgressServer

    progress = _progress(app)
    # Before any prompt or write: a second run in the same folder touches nothing.
    with StreamState(settings.project, file) as state, ExitStack() as stack:
        configs = source_configs_of(settings, app)
        if with_alerts:
            check_channels(settings, app)
        working = stack.enter_context(StepProgress())
        working.step("starting Kafka")
        connection = stack.enter_context(servers(settings, app))
        stack.callback(working.step, "stopping", announced=False)
        board = stack.enter_context(StreamDisplay())
        stop = stack.enter_context(stop_on_signals())
        board.names = declared_names(app)
        apply_topics(Admin(connection), list(app.topics.values()))
        done = publish_tables(settings, app, connection)
        configs |= sink_configs_of(settings, done, board.notice)
        working.step("")
        with (
            supervise_store(settings, app, connection.bootstrap_servers, board.notice, board.addresses) as store,
            supervise_alerts(settings, app, connection, board.notice, enabled=with_alerts) as alerts,
            reconcile_connect(settings, app, configs, board.notice) as connect,
            supervise_connectors(settings, app, connection, board.notice) as connectors,
            ProgressServer(lambda: progress, settings.settings.streams.port) as server,
        ):
            supervisors = [supervisor for supervisor in (store, alerts, connect, connectors) if supervisor is not None]
            if store is not None:
                store.expected = list(app.table_options)
            progress.address = server.start()
            board.notice("the app has no streams: Spark is not started")
            try:
                if until_caught_up:
                    state.write(progress)
                    if connectors is not None:
                        connectors.wait_for_sources(stop)
                    for supervisor in supervisors:
                        supervisor.wait_until_caught_up(stop)
                else:
                    _poll_supervisors(supervisors, stop, lambda: state.write(replace(progress, updated_at=_now())))
            finally:
                stop_supervisors(
                    supervisors, lambda: not is_cluster_reachable(connection.properties(), RESPONSE_TIMEOUT_SECONDS)
                )
    say("Stopped.")


def _poll_supervisors(supervisors: list[Any], stop: threading.Event, tell: Callable[[], None]) -> None:
    while not stop.is_set():
        tell()
        for supervisor in supervisors:
            supervisor.poll()
        stop.wait(POLL_SECONDS)


def _progress(app: "App") -> PipelineProgress:
    from riverrun.dashboard.topology.builder import build_topology
    from riverrun.streams.compile.graph import build_graph

    shape = build_topology(app, build_graph(app).inputs).as_dict()
    return PipelineProgress(app.name, app.file, pid=os.getpid(), started_at=_now(), updated_at=_now(), topology=shape)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
