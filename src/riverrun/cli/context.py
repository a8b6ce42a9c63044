"""What every command starts from: the project and its settings, after the global flags."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from riverrun.config import Loaded, Project, find_project, load
from riverrun.errors import UsageError

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.kafka.admin.admin import Admin
    from riverrun.store.client import StoreClient
    from riverrun.store.contract import Store

F = TypeVar("F", bound=Callable[..., Any])


def current_project() -> Project:
    """The project this command was called for, whatever its settings say."""
    chosen: dict[str, Any] = click.get_current_context().obj or {}
    folder = chosen.get("project_dir")
    return find_project(Path(folder)) if folder else find_project()


def loaded(**flags: Any) -> Loaded:
    """Settings of the project this command was called for. Keywords are flags: `kafka__port=9092`; None is not given."""
    return _loaded(flags, secrets=True)


def loaded_to_look() -> Loaded:
    """The same for a command that logs in nowhere: a secret that is not there is a problem only where it is needed."""
    return _loaded({}, secrets=False)


def _loaded(flags: dict[str, Any], *, secrets: bool) -> Loaded:
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


def open_admin(bootstrap: str | None) -> "tuple[Loaded, Admin]":
    """The settings, and a client for the administration of their cluster."""
    settings = loaded(kafka__bootstrap_servers=bootstrap)
    return settings, admin_of(settings)


def admin_of(settings: Loaded) -> "Admin":
    """A client for the administration of the settings' cluster; NotRunningError when there is none."""
    from riverrun.kafka.admin.admin import Admin
    from riverrun.kafka.connection import require_cluster

    return Admin(require_cluster(settings.settings.kafka, settings.project, settings.settings.registry))


def names_of(app: "App") -> frozenset[str]:
    """What its file gives a name to: such a word is written as it is, also where a sentence begins with it."""
    return frozenset(
        {app.name, *app.topics, *app.streams, *app.tables, *app.kept, *app.alerts, *app.sources, *app.sinks}
    )


def load_declared(settings: Loaded, app_file: str | None) -> "App | None":
    """The app of a path (from here) or of project.app (from the project's folder); None when neither is given."""
    from riverrun.streams.loading import load_pipeline

    named = settings.settings.project.app
    path = Path(app_file) if app_file else settings.project.root / named if named else None
    return load_pipeline(path, settings.settings, settings.project) if path else None


def store_of(settings: Loaded) -> "StoreClient | Store":
    """The store that is served; else the embedded one as it was left. Used in a `with`."""
    from riverrun.config.run_state import is_locked
    from riverrun.config.serve_state import find_serving, lock_path, require_serving
    from riverrun.store.client import StoreClient
    from riverrun.store.opening import store_at_rest

    if find_serving(settings.project) is None and not is_locked(lock_path(settings.project)):
        at_rest = store_at_rest(settings.settings, settings.project)
        if at_rest is not None:
            return at_rest
    return StoreClient.of(require_serving(settings.project))


def confirm(question: str, warning: str, losses: Sequence[str], *, yes: bool) -> None:
    """Ask before something is lost. Without a terminal there is nobody to ask: then only `--yes` will do."""
    if yes:
        return
    listed = "".join(f"\n  {loss}" for loss in losses)
    if not sys.stdin.isatty():
        raise UsageError(f"{warning}:{listed}\nNothing was done", hint="Say --yes to do it without being asked")
    click.echo(f"{warning}:{listed}", err=True)
    if not click.confirm(question, err=True):
        click.echo("Nothing was done.", err=True)
        click.get_current_context().exit(1)
