"""Run `riverrun` as a shell would: real processes, pipes and terminals, against the test's cluster."""

import json
import os
import pty
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ended:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@dataclass(frozen=True)
class Shell:
    """A project folder and a cluster to use in it."""

    root: Path
    bootstrap_servers: str

    @property
    def environ(self) -> dict[str, str]:
        ours = {"RIVERRUN_KAFKA_BOOTSTRAP_SERVERS": self.bootstrap_servers, "PYTHONWARNINGS": "error"}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RIVERRUN_")}
        # `riverrun` in a line of shell is the one of this environment.
        return {**kept, **ours, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def riverrun(self, *arguments: str, stdin: str | bytes = b"", timeout: float = 60) -> Ended:
        """Run one command; nothing on stdin is a terminal."""
        return self._run([sys.executable, "-m", "riverrun", *arguments], stdin, timeout)

    def fine(self, *arguments: str, stdin: str | bytes = b"") -> Ended:
        """Run one command that must work."""
        done = self.riverrun(*arguments, stdin=stdin)
        assert done.code == 0, done.err
        return done

    def line(self, text: str, timeout: float = 60) -> Ended:
        """Run a line of shell; its code is that of the first command that failed."""
        return self._run(["/bin/bash", "-o", "pipefail", "-c", text], b"", timeout)

    def _run(self, command: list[str], stdin: str | bytes, timeout: float) -> Ended:
        done = subprocess.run(
            command,
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            cwd=self.root,
            env=self.environ,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        err = done.stderr.decode()
        assert "Traceback" not in err, err
        assert "INTERNAL" not in err, err
        return Ended(done.returncode, done.stdout.decode(errors="backslashreplace"), err)

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start a command with pipes for all it says."""
        return subprocess.Popen(
            [sys.executable, "-m", "riverrun", *arguments],
            cwd=self.root,
            env=self.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def at_terminal(self, *arguments: str, typed: str) -> Ended:
        """Run one command whose stdin is a terminal at which somebody types."""
        ours, theirs = pty.openpty()
        try:
            attributes = termios.tcgetattr(theirs)
            attributes[3] &= ~termios.ECHO
            termios.tcsetattr(theirs, termios.TCSANOW, attributes)
            os.write(ours, typed.encode())
            done = subprocess.run(
                [sys.executable, "-m", "riverrun", *arguments],
                stdin=theirs,
                cwd=self.root,
                env=self.environ,
                capture_output=True,
                timeout=60,
                check=False,
            )
        finally:
            os.close(ours)
            os.close(theirs)
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())
