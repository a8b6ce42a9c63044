"""A real Postgres of the test's own: the machine's server on a free port of 127.0.0.1, in a folder that goes with it."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from riverrun.cluster.postgres import LocalPostgres
from riverrun.cluster.server import Deadline

if TYPE_CHECKING:
    from typing import Self


class TestPostgres(LocalPostgres):
    """One server, in a `with`. Its superuser is `postgres`; everybody on this machine may log in with a password."""

    __test__ = False

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        # Made anew with the rights it needs, below a folder that everybody may enter.
        folder = Path(tempfile.mkdtemp(prefix="riverrun-postgres-"))
        super().__init__(folder, {"timezone": "Europe/Dublin"} | dict(settings or {}), password="postgres")

    def __enter__(self) -> "Self":
        super().__enter__()
        return self

    def restart(self, settings: Mapping[str, str] | None = None) -> None:
        self.shut_down()
        self._settings |= dict(settings or {})
        self.start()
        self.ready(Deadline(self.start_timeout_seconds))

    def forget_settings(self, *names: str) -> None:
        """Start it without these from now on: what ALTER SYSTEM has set then holds."""
        self._settings = {name: value for name, value in self._settings.items() if name not in names}

    def close(self) -> None:
        self.stop()

    def url(self, database: str = "postgres", user: str = "postgres", password: str = "postgres") -> str:  # noqa: S107
        return super().url(database, user, password)

    @contextlib.contextmanager
    def login(self, database: str = "postgres", **login: str) -> Iterator["psycopg.Connection[Any]"]:
        with psycopg.connect(self.url(database, **login), autocommit=True, connect_timeout=10) as connection:
            yield connection

    def run(self, *statements: str, database: str = "postgres", **login: str) -> list[Any]:
        """The rows of the last statement, if it gives any."""
        with self.login(database, **login) as connection:
            rows: list[Any] = []
            for statement in statements:
                cursor = connection.execute(statement)
                rows = cursor.fetchall() if cursor.description else []
            return rows

    def shop(self, name: str, *statements: str, user: str = "cdc") -> str:
        """A new database with a login that may replicate, and its URL without the password, which is the user's name."""
        self.run(f"create database {name}")
        exists = self.run(f"select 1 from pg_roles where rolname = '{user}'")  # noqa: S608
        if not exists:
            self.run(f"create role {user} login replication password '{user}'")
        self.run(f"grant create on database {name} to {user}")
        if statements:
            self.run(*statements, database=name)
        return self.url(name, user, "")
