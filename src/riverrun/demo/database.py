"""The database of a use case whose source application writes to one: a Postgres of the demo's own, for as long as it
runs.

Where none can be run, the source sends the same rows straight to the same topics.
"""

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.cluster.postgres import LocalPostgres, data_folder_for, unavailable_reason
from riverrun.config import Project
from riverrun.config.private_files import write_private
from riverrun.connectors.postgres.capture import captured_tables

if TYPE_CHECKING:
    from contextlib import ExitStack

    from riverrun.app import App

LOGIN = "riverrun"
SCHEMA = "schema.sql"
FOLLOW, URL = "RIVERRUN_POSTGRES_FOLLOW", "RIVERRUN_POSTGRES_URL"
PASSWORD_FILE = "RIVERRUN_POSTGRES_PASSWORD_FILE"  # noqa: S105  -- the variable's name


def database_unavailable_reason(app: "App") -> str:
    """Why a use case cannot have its database; empty where it can, or needs none."""
    if not captured_tables(app):
        return ""
    return f"{FOLLOW} is {os.environ[FOLLOW]}" if FOLLOW in os.environ else unavailable_reason()


class SourceDatabase:
    """A server with one database, named like the app, and the tables of the use case's schema.sql. The demo's processes
    get its address from the environment; its password is in a file that only this user can read."""

    def __init__(self, app: "App", project: Project, stack: "ExitStack") -> None:
        self._name = app.name
        # In `stack` before everything that needs it, so that it is stopped after them.
        self._server = stack.enter_context(LocalPostgres(data_folder_for(project.home / "postgres")))
        password = secrets.token_urlsafe(24)
        with self._server.connect() as connection:
            connection.execute(f"create role {LOGIN} login replication password '{password}'".encode())
            connection.execute(f'create database "{app.name}" owner {LOGIN}'.encode())
        with self._server.connect(app.name) as connection:
            connection.execute(f"set role {LOGIN}".encode())
            connection.execute((project.root / SCHEMA).read_bytes())
        password_file = project.home / "postgres-password"
        write_private(password_file, password)
        os.environ |= {FOLLOW: "true", URL: self._server.url(app.name, LOGIN), PASSWORD_FILE: str(password_file)}
        for name in (FOLLOW, URL, PASSWORD_FILE):
            stack.callback(os.environ.pop, name, None)
        stack.callback(Path.unlink, password_file, missing_ok=True)

    @property
    def port(self) -> int:
        return self._server.port

    def has_replication(self) -> bool:
        """Whether its replication has started: from now on writes are captured change by change."""
        with self._server.connect(self._name) as connection:
            rows = connection.execute(b"select 1 from pg_replication_slots where active").fetchall()
        return bool(rows)
