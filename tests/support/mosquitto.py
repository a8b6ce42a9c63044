"""A real mosquitto for tests: Debian's own, on a free port of 127.0.0.1, with a folder that keeps its sessions."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import trustme

from riverrun.cluster.ports import HOST, PortClaims

USER, PASSWORD = "meters", "open-sesame"


def program() -> str:
    """Where mosquitto is; Debian keeps it where only root's PATH looks."""
    found = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
    assert found, "mosquitto is missing: script/setup installs it"
    return found


@dataclass
class Mosquitto:
    """`login`: only USER comes in. `tls`: its certificate is signed by `ca_file`; `client_certificates`: it asks for ours.

    It saves what it has (sessions, queued messages) when it is told to (`save`), when it stops in order, and after
    `save_after` changes. What it acknowledged after the last save is gone with a kill -9: that is mosquitto's own promise.
    """

    folder: Path
    login: bool = False
    tls: bool = False
    client_certificates: bool = False
    save_after: int = 1_000_000
    extra: str = ""
    port: int = 0
    _claims: PortClaims = field(default_factory=PortClaims)
    _process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = self.port or self._claims.claim_first(20_000 + os.getpid() % 8000)
        if self.tls:
            self._certificates()
        if self.login:
            passwords = self.folder / "passwords"
            passwords.touch(mode=0o600)
            subprocess.run(["mosquitto_passwd", "-b", str(passwords), USER, PASSWORD], check=True, timeout=60)
        self.config.write_text(self._config(), encoding="utf-8")

    @property
    def url(self) -> str:
        return f"{'mqtts' if self.tls else 'mqtt'}://{HOST}:{self.port}"

    @property
    def config(self) -> Path:
        return self.folder / "mosquitto.conf"

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def saved(self) -> Path:
        return self.folder / "mosquitto.db"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _config(self) -> str:
        lines = [
            f"listener {self.port} {HOST}",
            f"user {os.environ.get('USER') or 'root'}",
            f"allow_anonymous {'false' if self.login or self.client_certificates else 'true'}",
            "persistence true",
            f"persistence_location {self.folder}/",
            "autosave_on_changes true",
            f"autosave_interval {self.save_after}",
            # Without these, mosquitto drops what is more than 1,000 messages behind.
            "max_queued_messages 0",
            "max_inflight_messages 0",
            f"log_dest file {self.folder}/mosquitto.log",
            "log_type error",
            "log_type warning",
            "log_type notice",
            "log_type subscribe",
        ]
        if self.login:
            lines.append(f"password_file {self.folder}/passwords")
        if self.tls:
            lines += [
                f"cafile {self.ca_file}",
                f"certfile {self.folder}/server.pem",
                f"keyfile {self.folder}/server.key",
            ]
        if self.client_certificates:
            lines += ["require_certificate true", "use_identity_as_username true"]
        return "\n".join([*lines, self.extra, ""])

    def _certificates(self) -> None:
        ca = trustme.CA()
        ca.cert_pem.write_to_path(str(self.ca_file))
        server, client = ca.issue_cert(HOST, "localhost"), ca.issue_cert("bridge@meters.example", common_name="bridge")
        for name, issued in (("server", server), ("client", client)):
            issued.private_key_pem.write_to_path(str(self.folder / f"{name}.key"))
            for place, each in enumerate(issued.cert_chain_pems):
                each.write_to_path(str(self.folder / f"{name}.pem"), append=place > 0)

    def start(self, seconds: float = 30) -> None:
        """Start, and wait until it answers."""
        assert self._process is None, "it runs already"
        with (self.folder / "mosquitto.out").open("ab") as out:
            self._process = subprocess.Popen([program(), "-c", str(self.config)], stdout=out, stderr=out)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self._process.poll() is None, f"mosquitto ended: {(self.folder / 'mosquitto.out').read_text()}"
            with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
                return
            time.sleep(0.02)
        raise AssertionError("mosquitto does not listen")

    def save(self, seconds: float = 60) -> None:
        """Have it save all it has, and wait until that is done."""
        before = self._saves()
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + seconds
        while self._saves() == before:
            assert time.monotonic() < deadline, "mosquitto did not save"
            time.sleep(0.005)

    def _saves(self) -> tuple[int, int]:
        # A save is a new file that takes the old one's place.
        with contextlib.suppress(FileNotFoundError):
            found = self.saved.stat()
            return found.st_ino, found.st_mtime_ns
        return 0, 0

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """In order: it saves before it ends."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(60)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGKILL)
        self._claims.close()
