"""Drive `riverrun` in a project of its own, and see which Java processes it leaves."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

# Take from root the right to ignore file rights: PR_CAPBSET_DROP, CAP_DAC_OVERRIDE.
OBEY_FILE_RIGHTS = "import ctypes\nif os.geteuid() == 0: ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)"
# Make standard input the terminal that Ctrl-C comes from, as a shell does.
TAKE_TERMINAL = "import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)"


@dataclass
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str


@dataclass
class ProjectDriver:
    """One project folder and the commands run in it."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.root / ".riverrun"

    def configure(self, text: str) -> None:
        (self.root / "riverrun.toml").write_text(text, encoding="utf-8")

    def run(self, *arguments: str, timeout: float = 90, like_a_user: bool = False) -> Done:
        """Run `riverrun ARGUMENTS`. `like_a_user`: file rights count, even when the tests run as root."""
        done = subprocess.run(
            after(OBEY_FILE_RIGHTS if like_a_user else "", self._command(*arguments)),
            cwd=self.root,
            env=self._environ(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> "subprocess.Popen[str]":
        """Start `riverrun ARGUMENTS` in the foreground."""
        return subprocess.Popen(
            self._command(*arguments),
            cwd=self.root,
            env=self._environ(),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", "--json").out)
        return found

    def java(self) -> list[int]:
        """Pids of all Java processes that work in this project, but for one that makes a class archive: it comes when there
        is none, and ends by itself."""
        found = []
        for process in psutil.process_iter(["name"]):
            try:
                ours = process.info["name"] == "java" and Path(process.cwd()).is_relative_to(self.root)
                if ours and "-Xshare:dump" not in process.cmdline():
                    found.append(process.pid)
            except (psutil.Error, OSError):
                continue
        return found

    def clean_up(self) -> None:
        """Stop what runs; fail when something is left."""
        for pid in self.java():
            # A test may have stopped it on purpose.
            resume(pid)
        self.run("down")
        wait_for(lambda: not self.java(), 20, "Java processes are left")

    @staticmethod
    def _command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "riverrun", *arguments]

    def _environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RIVERRUN_")}
        return kept | self.environ


def after(code: str, command: list[str]) -> list[str]:
    """A command that runs `code` before it becomes the given one. A hook between fork and exec would not be safe: the
    tests' own process has threads."""
    if not code:
        return command
    return [sys.executable, "-I", "-S", "-c", f"import os, sys\n{code}\nos.execv(sys.argv[1], sys.argv[1:])", *command]


def wait_for(condition: Callable[[], object], seconds: float, complaint: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{complaint} after {seconds} s"
        time.sleep(0.05)


def lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def resume(pid: int) -> None:
    if lives(pid):
        os.kill(pid, signal.SIGCONT)


def guard_of(pid: int) -> int:
    """The guard of a server."""
    return int(psutil.Process(pid).ppid())
