"""A Postgres of one's own on this machine: for a demo whose source application writes to a database, and for tests.

with LocalPostgres(Path("/tmp/bank")) as postgres:
    postgres.url("postgres")         # "postgresql://postgres@127.0.0.1:12040/postgres"
    postgres.password                # of its superuser `postgres`; everybody on this machine needs one

The programs are those of the machine; riverrun brings none. Postgres refuses to run as root, so root starts it as the user
that Debian's package makes, or as `nobody`.
"""

import contextlib
import hashlib
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.cluster.ports import HOST, PortClaims
from riverrun.cluster.process import GuardedProcess
from riverrun.cluster.server import Deadline, ManagedServer
from riverrun.config.private_files import write_private
from riverrun.config.secret import Secret
from riverrun.errors import ClusterError, ServerDiedError, ServerNotReadyError

if TYPE_CHECKING:
    import psycopg

SUPERUSER = "postgres"
STOP_SECONDS = 60.0
# Any port from here on: the machine may well have a Postgres on the default one.
FIRST_PORT = 12_000
# Changes can be followed. The data does not outlive its server, so it need not reach the disk.
SETTINGS = {
    "wal_level": "logical",
    "fsync": "off",
    "synchronous_commit": "on",
    "max_wal_senders": "32",
    "max_replication_slots": "32",
    "shared_buffers": "32MB",
    "listen_addresses": HOST,
}
# Where Debian, its kin and Red Hat's put the server's programs, which are not on the PATH there.
BINARY_PATTERNS = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin")
TAIL_LINES = 12


def binaries(root: Path = Path("/")) -> Path | None:
    """The folder with the programs of the machine's newest Postgres; None where there is none."""
    folders = [folder for pattern in BINARY_PATTERNS for folder in root.glob(pattern) if (folder / "initdb").is_file()]
    if folders:
        return max(folders, key=lambda folder: float("".join(c for c in folder.parent.name if c in "0123456789.") or 0))
    path = shutil.which("initdb") if root == Path("/") else None
    return Path(path).resolve().parent if path else None


def unavailable_reason(root: Path = Path("/")) -> str:
    """Why no Postgres can be run here; empty where one can."""
    if binaries(root) is None:
        return "No Postgres is installed on this machine (Debian: apt-get install postgresql)"
    if find_spec("psycopg") is None:
        return "Python cannot talk to Postgres here (pip install 'riverrun[connectors]')"
    return ""


def data_folder_for(wanted: Path) -> Path:
    """Where a server's files can be. Root's own folders are closed to the user that it runs as: then in the machine's
    temporary folder, always the same for the same `wanted`."""
    if os.geteuid() != 0:
        return wanted
    return Path(tempfile.gettempdir()) / f"riverrun-postgres-{hashlib.sha256(str(wanted).encode()).hexdigest()[:12]}"


class LocalPostgres(ManagedServer):
    """One server with an empty database, its files in `folder`, which is created anew and deleted with it.

    The folder belongs to who starts the server, and only `data` in it to the user that root starts it as: neither that
    user nor others of the machine can put a link in the place of the log, which root opens.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None, *, password: str = "") -> None:
        self.folder = folder
        self.password = Secret(password or secrets.token_urlsafe(24))
        self._settings = SETTINGS | dict(settings or {})
        self._claims = PortClaims()
        self.port = 0
        self._initialized = False
        self._process: GuardedProcess | None = None

    @property
    def name(self) -> str:
        return "postgres"

    @property
    def start_timeout_seconds(self) -> float:
        return 120.0

    @property
    def log(self) -> Path:
        return self.folder / "postgres.log"

    def url(self, database: str, user: str = SUPERUSER, password: str = "") -> str:
        login = f"{user}:{password}" if password else user
        return f"postgresql://{login}@{HOST}:{self.port}/{database}"

    def start(self) -> None:
        """Create the data at the first start, and launch the server."""
        if not self._initialized:
            self._initialize()
        if not self.port:
            self.port = self._claims.claim_first(FIRST_PORT + secrets.randbelow(16_000))
        options = self._settings | {"port": str(self.port), "unix_socket_directories": ""}
        command = [*_run_as_unprivileged(), str(_require_binaries() / "postgres"), "-D", str(self.folder / "data")]
        command += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        self._process = GuardedProcess(command, Path("/"), self.log)
        self._process.start()

    def ready(self, deadline: Deadline) -> None:
        import psycopg

        while True:
            try:
                self.connect().close()
            except psycopg.OperationalError as error:
                if self._process is None or not self._process.alive:
                    raise ServerDiedError("Postgres did not start", lines=self._last_lines()) from error
                if deadline.passed:
                    what = f"Postgres did not answer in {deadline.seconds:g} s"
                    raise ServerNotReadyError(what, found=str(error).strip(), lines=self._last_lines()) from error
                time.sleep(0.1)
            else:
                return

    def connect(self, database: str = "postgres") -> "psycopg.Connection[tuple[object, ...]]":
        """As the superuser; each statement is committed."""
        import psycopg

        url = self.url(database, password=self.password.reveal())
        return psycopg.connect(url, autocommit=True, connect_timeout=5)

    def shut_down(self) -> None:
        """Stop the server in order: clients are disconnected. Its data stays, and `start` continues with it."""
        if self._process is not None:
            # SIGINT is Postgres's fast shutdown; SIGTERM would wait for all who are connected.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGINT)
            if not self._process.wait(STOP_SECONDS):
                self._process.kill()
            self._process = None

    def kill(self) -> None:
        """Kill it, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def stop(self) -> None:
        self.shut_down()
        self._claims.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _initialize(self) -> None:
        make_private_folder(self.folder)
        data, password = self.folder / "data", self.folder / "password"
        data.mkdir(mode=0o700)
        write_private(password, f"{self.password.reveal()}\n")
        if os.geteuid() == 0:
            # The other user goes through the folder, and sees nothing of it but its own.
            self.folder.chmod(0o711)
            owner = _unprivileged_user()
            for path in (data, password):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        done = subprocess.run(
            [
                *_run_as_unprivileged(), str(_require_binaries() / "initdb"), "-D", str(data), "-U", SUPERUSER,
                "--auth=scram-sha-256", f"--pwfile={password}", "--encoding=UTF8", "--locale=C", "--no-sync",
            ],
            check=False, capture_output=True, text=True, timeout=self.start_timeout_seconds, cwd="/",
        )  # fmt: skip
        password.unlink()
        if done.returncode:
            lines = (done.stdout + done.stderr).splitlines()[-TAIL_LINES:]
            raise ClusterError("initdb could not make the files of a Postgres", lines=lines)
        self._initialized = True

    def _last_lines(self) -> list[str]:
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.is_file() else ""
        return text.splitlines()[-TAIL_LINES:]


def make_private_folder(folder: Path) -> None:
    """An empty folder that only this user writes to. One that an earlier server has left is emptied; ClusterError for
    anything else of that name: in a temporary folder, anybody may have put it there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        return
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        kind = "a link" if stat.S_ISLNK(status.st_mode) else f"of the user {status.st_uid}, or others may write to it"
        raise ClusterError(
            f"The files of a Postgres cannot be in {folder}: it is there already, and not ours alone",
            found=f"it is {kind}",
            hint=f"Look at what it is, and remove it: rm -r {folder}",
            path=folder,
        )
    folder.chmod(0o700)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _require_binaries() -> Path:
    folder = binaries()
    if folder is None:
        raise ClusterError(unavailable_reason())
    return folder


def _unprivileged_user() -> pwd.struct_passwd:
    """The user that root starts it as."""
    try:
        return pwd.getpwnam(SUPERUSER)
    except KeyError:
        return pwd.getpwnam("nobody")


def _run_as_unprivileged() -> list[str]:
    if os.geteuid() != 0:
        return []
    user = _unprivileged_user()
    # The kernel clears the parent-death signal when the user changes, so it is set again (should the guard be killed).
    return [
        shutil.which("setpriv") or "/usr/bin/setpriv",
        f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--pdeathsig=KILL", "--",
    ]  # fmt: skip
