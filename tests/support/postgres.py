"""A real Postgres of the test's own: Debian's server on a free port of 127.0.0.1, in a folder that goes with it.

Postgres refuses to run as root, so root starts it as the user `postgres` that Debian's package makes. Anybody else runs it
as themselves.
"""

import contextlib
import os
import pwd
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import psycopg

from riverrun.cluster.ports import HOST, Claims
from riverrun.cluster.process import GuardedProcess
from riverrun.cluster.server import Deadline

START_SECONDS = 120.0
STOP_SECONDS = 60.0
# What a test needs of it. Nothing here outlives the machine, so it need not reach the disk.
SETTINGS = {
    "wal_level": "logical",
    "fsync": "off",
    "synchronous_commit": "on",
    "max_wal_senders": "10",
    "max_replication_slots": "10",
    "shared_buffers": "32MB",
    "listen_addresses": HOST,
    "timezone": "Europe/Dublin",
}


def binaries() -> Path:
    """Where the newest Postgres of the machine has its programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: float(each.parent.name))
    if not found:
        raise FileNotFoundError("no Postgres is installed: apt-get install postgresql (script/setup --system)")
    return found[-1]


class TestPostgres:
    """One server, in a `with`. Its superuser is `postgres`; everybody on this machine may log in with a password."""

    __test__ = False

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="riverrun-postgres-"))
        self._settings = SETTINGS | dict(settings or {})
        self._claims = Claims()
        self.port = self._claims.claim_first(random.randrange(12000, 28000, 10))
        self._process: GuardedProcess | None = None

    def __enter__(self) -> Self:
        try:
            self._make()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _as_postgres(self) -> list[str]:
        if os.geteuid() != 0:
            return []
        return [
            shutil.which("setpriv") or "/usr/bin/setpriv",
            "--reuid=postgres",
            "--regid=postgres",
            "--init-groups",
            "--",
        ]

    def _make(self) -> None:
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        password = self.folder / "password"
        password.write_text("postgres\n", encoding="utf-8")
        password.chmod(0o644)
        subprocess.run(
            [
                *self._as_postgres(), str(binaries() / "initdb"), "-D", str(self.folder / "data"), "-U", "postgres",
                "--auth=scram-sha-256", f"--pwfile={password}", "--encoding=UTF8", "--locale=C", "--no-sync",
            ],
            check=True, capture_output=True, timeout=START_SECONDS, cwd="/",
        )  # fmt: skip

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = self._settings | {"port": str(self.port), "unix_socket_directories": str(self.folder)}
        command = [str(binaries() / "postgres"), "-D", str(self.folder / "data")]
        command += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        log = self.folder / "postgres.log"
        self._process = GuardedProcess([*self._as_postgres(), *command], Path("/"), log)
        self._process.start()
        deadline = Deadline(START_SECONDS)
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
            except psycopg.OperationalError:
                if not self._process.alive or deadline.left <= 0:
                    raise AssertionError(f"Postgres did not start:\n{log.read_text()[-3000:]}") from None
                time.sleep(0.1)
            else:
                return

    def stop(self) -> None:
        """Stop it in order: those who are connected are sent away."""
        if self._process is not None:
            # SIGINT is Postgres's fast shutdown; SIGTERM would wait for all who are connected.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, 2)
            if not self._process.wait(STOP_SECONDS):
                self._process.kill()
            self._process = None

    def kill(self) -> None:
        """End it as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self, settings: Mapping[str, str] | None = None) -> None:
        self.stop()
        self._settings |= dict(settings or {})
        self.start()

    def forget_settings(self, *names: str) -> None:
        """Start it without these from now on: what ALTER SYSTEM has set then holds."""
        self._settings = {name: value for name, value in self._settings.items() if name not in names}

    def close(self) -> None:
        self.stop()
        self._claims.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres", user: str = "postgres", password: str = "postgres") -> str:  # noqa: S107
        login = f"{user}:{password}" if password else user
        return f"postgresql://{login}@{HOST}:{self.port}/{database}"

    @contextlib.contextmanager
    def connect(self, database: str = "postgres", **login: str) -> Iterator["psycopg.Connection[Any]"]:
        with psycopg.connect(self.url(database, **login), autocommit=True, connect_timeout=10) as connection:
            yield connection

    def run(self, *statements: str, database: str = "postgres", **login: str) -> list[Any]:
        """The rows of the last statement, if it gives any."""
        with self.connect(database, **login) as connection:
            rows: list[Any] = []
            for each in statements:
                cursor = connection.execute(each)
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
