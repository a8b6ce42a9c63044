"""`riverrun serve`: the process that owns the project's store."""

from contextlib import closing, nullcontext
from typing import TYPE_CHECKING

import click

from riverrun.cli.context import cluster_option, load_declared, loaded, names_of
from riverrun.cli.output import notice_text, say

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.config import Loaded
    from riverrun.dash.alerts.live import Alerts
    from riverrun.dash.live import Hub
    from riverrun.dash.picture.live import Picture
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
    from riverrun.alerts.delivered import delivered_route, marks_of
    from riverrun.alerts.kafka_log import Teller
    from riverrun.cli.without_streams import publish_tables
    from riverrun.cluster.signals import stop_on_signals
    from riverrun.config.serve_state import ServeState
    from riverrun.dash.door.outside import open_door
    from riverrun.dash.live import Hub
    from riverrun.dash.routes import dash_routes
    from riverrun.errors import UsageError
    from riverrun.kafka.connection import require_cluster
    from riverrun.store.contract import Limits
    from riverrun.store.opening import not_installed, open_store

    try:
        from riverrun.store.server import StoreServer
    except ModuleNotFoundError as error:
        raise not_installed(error) from error

    settings = loaded(
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
    limits = Limits(store.query_rows, float(store.query_seconds))

    def notice(text: str) -> None:
        say(notice_text(text, names_of(app) if app is not None else ()))

    with (
        ServeState(settings.project, app_name, store.kind) as state,
        nullcontext(open_door(settings.settings.serve, settings.project, notice) or (None, None)) as (door, outside),
        stop_on_signals() as stop,
        closing(Teller(connection, app_name)) as teller,
        open_store(settings.settings, settings.project, connection, app_name, notice) as opened,
        StoreServer(
            opened,
            store.port,
            limits=limits,
            routes=[
                *(door.routes() if door else ()),
                delivered_route(lambda: marks_of(settings.settings.alerts, settings.project), teller.tell),
                *dash_routes(
                    hub := Hub(opened, dashboards, app_name),
                    picture := _picture(settings, app_name, app, connection=connection, store=opened, hub=hub),
                    alerts := _alerts(app_name, app, connection),
                ),
            ],
            outside=outside,
        ) as server,
    ):
        if app is not None and not app.streams and app.kept:
            # Its tables are known without Spark, and no `riverrun run` is needed for them.
            publish_tables(settings, app, connection)
        address = server.start()
        shown = server.outside_address or address
        state.write(address, outside=server.outside_address, token=door.token if door else "")
        if outside is not None and outside.proxies:
            notice(f"proxies in serve.trusted_proxies find it at {outside.host}, port {server.outside_port}")
        for page in _pages(app_name, shown, dashboards=bool(dashboards), alerts=alerts is not None):
            notice(page)
        stop.wait()
        hub.end()
        picture.end()
        if alerts is not None:
            alerts.end()
    say("Stopped.")


def _pages(name: str, address: str, *, dashboards: bool, alerts: bool) -> list[str]:
    """Where each page is, in a sentence."""
    return [
        *([f"the dashboard of {name} is at {address}/"] if dashboards else []),
        f"the pipeline of {name} is at {address}/pipeline",
        *([f"the alerts of {name} are at {address}/alerts"] if alerts else []),
        f"the tables of {name} are at {address}/sql; Ctrl-C stops",
    ]


def _picture(
    settings: "Loaded", name: str, app: "App | None", *, connection: "Connection", store: "Store", hub: "Hub"
) -> "Picture":
    """The pipeline picture. What runs tells its shape; until something does, the pipeline file does."""
    from riverrun.dash.picture.details import Details
    from riverrun.dash.picture.live import Picture
    from riverrun.dash.picture.shape import shape_of
    from riverrun.dash.picture.source import Source
    from riverrun.kafka.admin.disk import topic_sizes
    from riverrun.streams.graph import graph_of

    details = Details(
        connection,
        store,
        topics=app.topics if app is not None else None,
        groups=lambda stream: f"{name}.{stream}",
        sizes=lambda: topic_sizes(settings),
    )
    return Picture(
        name,
        Source(settings.project, name, connection, store),
        details,
        declared=shape_of(app, graph_of(app).inputs) if app is not None else None,
        viewers=lambda: hub.viewers,
    )


def _alerts(name: str, app: "App | None", connection: "Connection") -> "Alerts | None":
    """The alerts page: of an app that declares alerts, or has had some."""
    from riverrun.alerts.ledger import ledger_of
    from riverrun.dash.alerts.following import Follower
    from riverrun.dash.alerts.live import Alerts
    from riverrun.kafka.admin.admin import Admin

    declared = tuple(app.alerts) if app is not None else ()
    if not declared and ledger_of(name) not in Admin(connection).topics([ledger_of(name)], config=False):
        return None
    return Alerts(name, Follower(connection, name), declared=declared)
