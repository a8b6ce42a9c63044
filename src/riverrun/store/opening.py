"""The store that the settings name, for an app: not open yet. Stores are imported when they are used."""

from collections.abc import Callable

from riverrun.config import Project, Settings
from riverrun.config.run_state import running_state
from riverrun.errors import StoreUnavailableError
from riverrun.kafka.connection import Connection
from riverrun.store.contract import Store

ROUTER = "druid-router"


def open_store(
    settings: Settings, project: Project, connection: Connection, app_name: str, notice: Callable[[str], None]
) -> Store:
    """The store of `store.kind`, to be used in a `with`. It follows the app's catalog by itself; `notice` takes sentences
    for people."""
    from riverrun.store.catalog import Catalog

    kind = settings.store.kind
    try:
        if kind == "embedded":
            from riverrun.store.embedded.store import EmbeddedStore

            folder = project.data / "store" / app_name
            catalog = Catalog(connection, app_name)
            embedded: Store = EmbeddedStore(folder, connection, settings.store, catalog=catalog, notice=notice)
            return embedded
        if kind == "druid":
            from riverrun.store.druid.store import DruidStore

            url = settings.druid.url or _running_druid(project)
            catalog = Catalog(connection, app_name)
            druid: Store = DruidStore(app_name, settings.druid, connection, url=url, catalog=catalog, notice=notice)
            return druid
    except ModuleNotFoundError as error:
        raise not_installed(error) from error
    raise StoreUnavailableError(
        "This project has no store: store.kind is none", hint="Set store.kind to embedded or druid", kind=kind
    )


def not_installed(error: ModuleNotFoundError) -> StoreUnavailableError:
    """What to say where a package that stores need cannot be imported."""
    return StoreUnavailableError(
        f"{error.name or 'A package'} is not installed", hint='Install it: pip install "riverrun[store]"'
    )


def _running_druid(project: Project) -> str:
    """The router of the Druid that runs for the project."""
    state = running_state(project)
    found = next((each for each in state.servers if each.name == ROUTER), None) if state is not None else None
    if found is None or not found.address:
        raise StoreUnavailableError(
            f"No Druid runs for the project {project.root}",
            hint="Start one with `riverrun up --druid`, or name one in druid.url",
            project=str(project.root),
        )
    return found.address if "://" in found.address else f"http://{found.address}"
