"""`riverrun serve`: the process that owns the project's store."""

from contextlib import closing, nullcontext
from typing import TYPE_CHECKING

import click

from riverrun.app import declared_names
from riverrun.cli.context import cluster_option, load_declared, load_settings
from riverrun.cli.output import say
from riverrun.model.notices import notice_text

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.config import LoadedSettings
    from riverrun.dashboard.alerts.live import AlertsBroadcast
    from riverrun.dashboard.live.hub import DashboardHub
    from riverrun.dashboard.topology.live import TopologyBroadcast
    from riverrun.kafka.connection import Connection
    from riverrun.model.dashboard import Dashboard
    from riverrun.store.contract import Store


@click.command(epilog="Example: riverrun serve meters.py --store embedded")
@click.argument("file", required=False, metavar="[FILE]")
@click.option("--name", help="The app's name, to serve its tables without its pipeline file.")
@click.option(
    "--store", "store_kind", type=click.Choice(("embedded", "druid")), help="Which store. [default: store.kind]"
)
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the HTTP API. [default: store.port]")
@click.option("--host", metavar="ADDRESS", help="Serve others too, at this address; they log in. [default: serve.host]")
@click.option("--insecure", is_flag=True, default=None, help="Serve others without TLS. [default: serve.insecure]")
@cluster_option
def serve(
    *,
    file: str | None,
    name: str | None,
    store_kind: str | None,
    port: int | None,
    host: str | None,
    insecure: bool | None,
    bootstrap: str | None,
) -> None:
    """Open the store of the project, follow its tables, answer questions and show dashboards of them, until Ctrl-C.

    FILE is the pipeline file: it says which app, and what its dashboards show. Its tables are those that `riverrun run`
    has told the app's catalog; of an app without streams, those that the file names. One process at a time serves a
    project; `riverrun query` and `riverrun tables` find it.
    """
    from riverrun.alerts.delivery_reports import delivery_report_route, load_report_signer
    from riverrun.alerts.kafka_log import AlertStatePublisher
    from riverrun.cli.run_without_streams import publish_tables
    from riverrun.cluster.signals import stop_on_signals
    from riverrun.config.serve_state import ServeState
    from riverrun.dashboard.live.hub import DashboardHub
    from riverrun.dashboard.public_access import open_login_gate
    from riverrun.dashboard.routes import dashboard_routes
    from riverrun.errors import UsageError
    from riverrun.kafka.connection import require_cluster
    from riverrun.store.contract import QueryLimits
    from riverrun.store.factory import create_store, not_installed_error

    try:
        from riverrun.store.server import StoreServer
    except ModuleNotFoundError as error:
        raise not_installed_error(error) from error

    settings = load_settings(
        kafka__bootstrap_servers=bootstrap,
        store__kind=store_kind,
        store__port=port,
        serve__host=host,
        serve__insecure=insecure,
    )
    app_name = name
    dashboards: dict[str, Dashboard] = {}
    app: App | None = None
    if app_name is None:
        app = load_declared(settings, file)
        if app is None:
            raise UsageError(
                "No pipeline file is named", hint="Give its path, set project.app in riverrun.toml, or say --name APP"
            )
        app_name, dashboards = app.name, app.dashboards
    connection = require_cluster(settings.settings.kafka, settings.project, settings.settings.registry)
    store = settings.settings.store
    limits = QueryLimits(store.query_rows, float(store.query_seconds))

    def notice(text: str) -> None:
        say(notice_text(text, declared_names(app) if app is not None else ()))

    with (
        ServeState(settings.project, app_name, store.kind) as state,
        nullcontext(open_login_gate(settings.settings.serve, settings.project, notice) or (None, None)) as (
            login_gate,
            public_listener,
        ),
        stop_on_signals() as stop,
        closing(AlertStatePublisher(connection, app_name)) as publisher,
        create_store(settings.settings, settings.project, connection, app_name, notice) as opened,
        StoreServer(
            opened,
            store.port,
            limits=limits,
            routes=[
                *(login_gate.routes() if login_gate else ()),
                delivery_report_route(
                    lambda: load_report_signer(settings.settings.alerts, settings.project), publisher.publish
                ),
                *dashboard_routes(
                    hub := DashboardHub(opened, dashboards, app_name),
                    topology := _topology(settings, app_name, app, connection=connection, store=opened, hub=hub),
                    alerts := _alerts(app_name, app, connection),
                ),
            ],
            public=public_listener,
        ) as server,
    ):
        if app is not None and not app.streams and app.table_options:
            # Its tables are known without Spark, and need no `riverrun run`.
            publish_tables(settings, app, connection)
        address = server.start()
        shown = server.public_address or address
        state.write(address, public_address=server.public_address, token=login_gate.token if login_gate else "")
        if public_listener is not None and public_listener.proxies:
            notice(f"proxies in serve.trusted_proxies find it at {public_listener.host}, port {server.public_port}")
        for page in _pages(app_name, shown, dashboards=bool(dashboards), alerts=alerts is not None):
            notice(page)
        stop.wait()
        hub.request_close()
        topology.request_close()
        if alerts is not None:
            alerts.request_close()
    say("Stopped.")


def _pages(name: str, address: str, *, dashboards: bool, alerts: bool) -> list[str]:
    """The addresses of the pages, in a sentence."""
    return [
        *([f"the dashboard of {name} is at {address}/"] if dashboards else []),
        f"the pipeline of {name} is at {address}/pipeline",
        *([f"the alerts of {name} are at {address}/alerts"] if alerts else []),
        f"the tables of {name} are at {address}/sql; Ctrl-C stops",
    ]


def _topology(
    settings: "LoadedSettings",
    name: str,
    app: "App | None",
    *,
    connection: "Connection",
    store: "Store",
    hub: "DashboardHub",
) -> "TopologyBroadcast":
    """The pipeline picture. The running pipeline publishes its topology; before that it comes from the pipeline file."""
    from riverrun.dashboard.topology.builder import build_topology
    from riverrun.dashboard.topology.details import NodeDetails
    from riverrun.dashboard.topology.live import TopologyBroadcast
    from riverrun.dashboard.topology.reader import TopologyReader
    from riverrun.kafka.admin.disk_usage import topic_sizes
    from riverrun.streams.compile.graph import build_graph

    details = NodeDetails(
        connection,
        store,
        topics=app.topics if app is not None else None,
        groups=lambda stream: f"{name}.{stream}",
        sizes=lambda: topic_sizes(settings),
    )
    return TopologyBroadcast(
        name,
        TopologyReader(settings.project, name, connection, store),
        details,
        declared=build_topology(app, build_graph(app).inputs) if app is not None else None,
        viewers=lambda: hub.viewers,
    )


def _alerts(name: str, app: "App | None", connection: "Connection") -> "AlertsBroadcast | None":
    """The alerts page: of an app that declares alerts, or has had some."""
    from riverrun.alerts.state_topic import alerts_topic_name
    from riverrun.dashboard.alerts.live import AlertsBroadcast
    from riverrun.dashboard.alerts.state_follower import AlertStateFollower
    from riverrun.kafka.admin.admin import Admin

    declared = tuple(app.alerts) if app is not None else ()
    if not declared and alerts_topic_name(name) not in Admin(connection).topics(
        [alerts_topic_name(name)], config=False
    ):
        return None
    return AlertsBroadcast(name, AlertStateFollower(connection, name), declared=declared)
