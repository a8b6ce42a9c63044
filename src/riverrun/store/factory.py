"""The store that the settings name, for an app: not open yet. Stores are imported when they are used."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from riverrun.config import Project, Settings
from riverrun.config.run_state import running_state
from riverrun.errors import StoreUnavailableError
from riverrun.kafka.connection import Connection
from riverrun.store.contract import Store


def create_store(
    settings: Settings, project: Project, connection: Connection, app_name: str, notice: Callable[[str], None]
) -> Store:
    """The store of `store.kind`, to be used in a `with`. It follows the app's catalog by itself; `notice` gets
    sentences for people."""
    from riverrun.store.catalog import Catalog

    kind = settings.store.kind
    try:
        if kind == "embedded":
            from riverrun.store.embedded.store import EmbeddedStore

            folder = store_folder(project) / app_name
            catalog = Catalog(connection, app_name)
            embedded: Store = EmbeddedStore(folder, connection, settings.store, catalog=catalog, notice=notice)
            return embedded
        if kind == "druid":
            from riverrun.store.druid.store import DruidStore

            url = settings.druid.url or _running_druid_url(project)
            catalog = Catalog(connection, app_name)
            druid: Store = DruidStore(app_name, settings.druid, connection, url=url, catalog=catalog, notice=notice)
            return druid
    except ModuleNotFoundError as error:
        raise not_installed_error(error) from error
    raise StoreUnavailableError(
        "This project has no store: store.kind is none", hint="Set store.kind to embedded or druid", kind=kind
    )


def offline_store(settings: Settings, project: Project) -> Store | None:
    """The embedded store of a project whose serving process is not running, as it was left; None when there is none.

    StoreUnavailableError when there are stores of several apps, and nothing says which.
    """
    if settings.store.kind != "embedded" or find_spec("duckdb") is None:
        return None
    folders = sorted(folder.parent for folder in store_folder(project).glob("*/tables.duckdb"))
    if not folders:
        return None
    if len(folders) > 1:
        raise StoreUnavailableError(
            f"No process serves the store of the project {project.root}, and it has those of several apps",
            found=", ".join(folder.name for folder in folders),
            hint="Start one with `riverrun serve --name APP`",
            project=str(project.root),
        )
    from riverrun.store.embedded.store import EmbeddedStore

    return EmbeddedStore(folders[0], Connection(settings.kafka), settings.store, follow=False)


def store_folder(project: Project) -> Path:
    """Where the embedded stores of a project are, one folder an app."""
    return project.data / "store"


def not_installed_error(error: ModuleNotFoundError) -> StoreUnavailableError:
    """The error for a package that stores need and that cannot be imported."""
    return StoreUnavailableError(
        f"{error.name or 'A package'} is not installed", hint='Install it: pip install "riverrun[store]"'
    )


def _running_druid_url(project: Project) -> str:
    """The router of the Druid that runs for the project."""
    state = running_state(project)
    if state is None or not state.druid_url:
        raise StoreUnavailableError(
            f"No Druid runs for the project {project.root}",
            hint="Start one with `riverrun up --druid`, or name one in druid.url",
            project=str(project.root),
        )
    return state.druid_url
