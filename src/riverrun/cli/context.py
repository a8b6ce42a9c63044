"""What every command starts from: the project and its settings, after the global flags."""

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from riverrun.cli.output import say
from riverrun.config import LoadedSettings, Project, find_project, load
from riverrun.errors import UsageError

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.kafka.admin.admin import Admin
    from riverrun.store.client import StoreClient
    from riverrun.store.contract import Store

# A command that hears nothing from Kafka for so long says what it waits for.
SILENT_SECONDS = 3.0

F = TypeVar("F", bound=Callable[..., Any])


def current_project() -> Project:
    """The project this command was called for, whatever its settings say."""
    chosen: dict[str, Any] = click.get_current_context().obj or {}
    folder = chosen.get("project_dir")
    return find_project(Path(folder)) if folder else find_project()


def load_settings(**flags: Any) -> LoadedSettings:
    """Settings of the project this command was called for. Keywords are flags: `kafka__port=9092`; None is not given."""
    return _load(flags, secrets=True)


def load_settings_to_inspect() -> LoadedSettings:
    """The same for a command that logs in nowhere: a missing secret is a problem only where it is needed."""
    return _load({}, secrets=False)


def _load(flags: dict[str, Any], *, secrets: bool) -> LoadedSettings:
    chosen: dict[str, Any] = click.get_current_context().obj or {}
    folder = chosen.get("project_dir")
    project = find_project(Path(folder)) if folder else find_project()
    return load(
        project,
        flags={name.replace("__", "."): value for name, value in flags.items()},
        profile=chosen.get("profile", ""),
        secrets=secrets,
    )


def cluster_option(command: F) -> F:
    """`--bootstrap-servers` on every command that talks to a cluster."""
    return click.option(
        "--bootstrap-servers", "bootstrap", metavar="HOST:PORT", help="Use this cluster instead of the project's."
    )(command)


def app_option(command: F) -> F:
    """`--app` on every command that knows declared topics."""
    return click.option(
        "--app", "app_file", metavar="FILE", help="The pipeline file. [default: the setting project.app]"
    )(command)


def open_admin(bootstrap: str | None) -> "tuple[LoadedSettings, Admin]":
    """The settings, and an admin client of their cluster."""
    settings = load_settings(kafka__bootstrap_servers=bootstrap)
    return settings, admin_of(settings)


def admin_of(settings: LoadedSettings) -> "Admin":
    """An admin client of the settings' cluster; NotRunningError when there is none."""
    from riverrun.kafka.admin.admin import Admin
    from riverrun.kafka.connection import require_cluster

    admin = Admin(require_cluster(settings.settings.kafka, settings.project, settings.settings.registry))
    _say_if_silent(admin)
    return admin


def _say_if_silent(admin: "Admin") -> None:
    """Say what is waited for when the cluster has not answered after a moment; a dead address takes ten seconds."""

    def say_waiting() -> None:
        if not admin.answered:
            say(f"Waiting for Kafka at {admin.connection.bootstrap_servers}, for at most {admin.timeout:g} s.")

    timer = threading.Timer(SILENT_SECONDS, say_waiting)
    timer.daemon = True
    timer.start()
    click.get_current_context().call_on_close(timer.cancel)


def load_declared(settings: LoadedSettings, app_file: str | None) -> "App | None":
    """The app at a path (from here) or of project.app (from the project's folder); None when neither is given."""
    from riverrun.streams.pipeline_file import load_pipeline

    named = settings.settings.project.app
    path = Path(app_file) if app_file else settings.project.root / named if named else None
    return load_pipeline(path, settings.settings, settings.project) if path else None


def store_of(settings: LoadedSettings) -> "StoreClient | Store":
    """The store that is served; else the embedded one as it was left. Used in a `with`."""
    from riverrun.config.run_state import is_locked
    from riverrun.config.serve_state import find_store_endpoint, lock_path, require_store_endpoint
    from riverrun.store.client import StoreClient
    from riverrun.store.factory import offline_store

    if find_store_endpoint(settings.project) is None and not is_locked(lock_path(settings.project)):
        closed_store = offline_store(settings.settings, settings.project)
        if closed_store is not None:
            return closed_store
    return StoreClient.for_serving(require_store_endpoint(settings.project))


def confirm(question: str, warning: str, losses: Sequence[str], *, yes: bool) -> None:
    """Ask before something is deleted. Without a terminal there is nobody to ask: then only `--yes` will do."""
    if yes:
        return
    listed = "".join(f"\n  {loss}" for loss in losses)
    if not sys.stdin.isatty():
        raise UsageError(f"{warning}:{listed}\nNothing was done", hint="Say --yes to do it without being asked")
    click.echo(f"{warning}:{listed}", err=True)
    if not click.confirm(question, err=True):
        click.echo("Nothing was done.", err=True)
        click.get_current_context().exit(1)
