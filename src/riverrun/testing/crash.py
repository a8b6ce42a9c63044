"""Crash tests: a pipeline runs, its processes are killed with SIGKILL, and its output must still be right.

    plan = crashes(seed=7, rounds=5)
    with CrashRun(project, "app.py") as run:
        for crash in plan:
            run.strike(crash)          # waits, kills, restarts what does not restart by itself
        run.finish()                   # until all records are read and written
        assert run.verify() == []      # `riverrun verify` finds no difference

The cluster is the project's own (`riverrun up`), so that its brokers can be killed too; it restarts them.
"""

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

import psutil

from riverrun.errors import StreamFailedError, UsageError

# Spark's JVM, the pipeline's process, one of Spark's Python workers, a broker, the pipeline with all its child processes, or
# the process that sends its alerts.
Victim = Literal["spark", "pipeline", "worker", "broker", "tree", "alerts"]
# The processes that every pipeline has.
VICTIMS: tuple[Victim, ...] = tuple(get_arg for get_arg in get_args(Victim) if get_arg != "alerts")
# How long to wait for a process that starts with the first rows, or restarts by itself, before it can be killed.
WORKER_SECONDS = 90.0
# How long a pipeline may take to end after its Spark was killed or it was asked to.
END_SECONDS = 60.0


@dataclass(frozen=True)
class Crash:
    """Kill this process so many seconds after the previous crash is over. If there are several such processes, `pick` says
    which: 0 is the first, just below 1 the last."""

    victim: Victim
    after_seconds: float
    pick: float = 0.0


def crashes(
    seed: int, rounds: int, *, victims: Sequence[Victim] = VICTIMS, seconds: tuple[float, float] = (0.5, 6.0)
) -> list[Crash]:
    """A random plan, the same for the same seed. `seconds` is the shortest and the longest wait before a kill."""
    if unknown := set(victims) - set(get_args(Victim)):
        raise UsageError(f"There is no part {min(unknown)} to kill", expected=", ".join(get_args(Victim)))
    rng = random.Random(seed)  # noqa: S311  -- no secret
    return [Crash(rng.choice(list(victims)), rng.uniform(*seconds), rng.random()) for _ in range(rounds)]


@dataclass
class CrashRun:
    """`riverrun run FILE` as a child process in a project's folder, and the crashes it must survive."""

    project: Path
    file: str
    options: Sequence[str] = ()
    start_seconds: float = 240.0
    # What was killed, in order; a worker only if there was one to kill.
    killed: list[str] = field(default_factory=list)
    # How often it was killed because it did not end within a minute of being asked.
    cut_off: int = 0
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    def __enter__(self) -> Self:
        self._riverrun("up", "--detach")
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._riverrun("down")

    @property
    def log(self) -> Path:
        return self.project / ".riverrun" / "crash-run.log"

    def start(self, *more: str) -> None:
        """Start the pipeline if it does not run."""
        if self._process is not None and self._process.poll() is None:
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "riverrun", "run", self.file, *self.options, *more]
            self._process = subprocess.Popen(
                command, cwd=self.project, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def strike(self, crash: Crash) -> None:
        """Wait until all streams run, then for the delay of the crash, and kill."""
        self.await_work()
        deadline = time.monotonic() + crash.after_seconds
        while time.monotonic() < deadline and self._alive():
            time.sleep(min(0.05, max(0.0, deadline - time.monotonic())))
        self.kill(crash.victim, crash.pick)

    def kill(self, victim: Victim, pick: float = 0.0) -> None:
        """Kill one process, or the whole tree, now with SIGKILL."""
        processes = self._find(victim, pick)
        deadline = time.monotonic() + WORKER_SECONDS
        while not processes and victim in ("worker", "alerts") and self._alive() and time.monotonic() < deadline:
            time.sleep(0.05)
            processes = self._find(victim, pick)
        _kill_all(processes)
        if processes:
            self.killed.append(victim)
            self._await_end(victim)

    def _await_end(self, victim: Victim) -> None:
        """Wait until the pipeline has ended: it ends with Spark, and the next crash must not hit a process that is dying."""
        if self._process is not None and victim in ("spark", "pipeline", "tree"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)

    def await_work(self) -> None:
        """Wait until every stream runs; a pipeline that has ended is restarted, as a service manager would."""
        deadline = time.monotonic() + self.start_seconds
        while True:
            if not self._alive():
                self.start()
            if self._at_work():
                return
            if time.monotonic() > deadline:
                raise StreamFailedError(
                    f"The streams of {self.file} did not start within {self.start_seconds:g} s",
                    lines=self._last_lines(),
                )
            time.sleep(0.1)

    def finish(self, seconds: float = 300.0) -> None:
        """Stop the pipeline and run it again with `--until-caught-up`, until all records are read and written."""
        self.stop()
        deadline = time.monotonic() + seconds
        while True:
            self.start("--until-caught-up")
            assert self._process is not None  # noqa: S101
            try:
                code = self._process.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = -1
            if code == 0:
                return
            if time.monotonic() > deadline:
                raise StreamFailedError(f"{self.file} did not catch up within {seconds:g} s", lines=self._last_lines())

    def verify(self) -> list[dict[str, Any]]:
        """Streams whose output is not what their code makes of their input, as `riverrun verify --json` reports them."""
        result = self._riverrun("verify", self.file, "--json", check=False)
        verdicts: list[dict[str, Any]] = json.loads(result.stdout)
        return [verdict for verdict in verdicts if verdict["state"] != "equal"]

    def stop(self) -> None:
        """Ask the pipeline to end; kill it and its child processes if it does not."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.cut_off += 1
            _kill_all(self._find("tree", 0.0))

    # --- its processes ------------------------------------------------------------------------------------------------

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _at_work(self) -> bool:
        state = self.project / ".riverrun" / "run" / "streams.json"
        try:
            content = json.loads(state.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        own = self._process is not None and content.get("pid") == self._process.pid
        streams = content.get("streams") or []
        return own and bool(streams) and all(stream["phase"] in ("running", "finished") for stream in streams)

    def _find(self, victim: Victim, pick: float) -> list[psutil.Process]:
        if victim == "broker":
            return _pick_one(self._brokers(), pick)
        if self._process is None or self._process.poll() is not None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            pipeline = psutil.Process(self._process.pid)
            descendants = pipeline.children(recursive=True)
            java = [process for process in descendants if process.name() == "java"]
            if victim == "tree":
                return [pipeline, *descendants]
            if victim == "pipeline":
                return [pipeline]
            if victim == "spark":
                return java
            if victim == "alerts":
                return [process for process in descendants if _is_alerts(process)]
            # Spark's JVM starts a Python daemon, and the workers are forked from it.
            daemons = [child for process in java for child in process.children() if "python" in child.name()]
            workers = [child for daemon in daemons for child in daemon.children()]
            return _pick_one(workers, pick)
        return []

    def _brokers(self) -> list[psutil.Process]:
        status = json.loads(self._riverrun("status", "--json").stdout)
        pids = [server.get("pid") for server in status.get("servers", [])]
        return [psutil.Process(pid) for pid in pids if pid and psutil.pid_exists(pid)]

    def _riverrun(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "riverrun", *arguments]
        result = subprocess.run(
            command, cwd=self.project, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            timeout=600,
        )  # fmt: skip
        if check and result.returncode:
            raise StreamFailedError(f"riverrun {' '.join(arguments)} failed", lines=result.stderr.splitlines()[-5:])
        return result

    def _last_lines(self) -> list[str]:
        with contextlib.suppress(OSError):
            return self.log.read_text(errors="replace").splitlines()[-10:]
        return []


def _is_alerts(process: psutil.Process) -> bool:
    """Whether it is the process that sends alerts. Its supervisor has the same command line, but also a child."""
    try:
        words = process.cmdline()
        return "riverrun" in words and words[words.index("riverrun") :].count("alerts") > 0 and not process.children()
    except psutil.NoSuchProcess:
        return False


def _kill_all(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=30)


def _pick_one(candidates: list[psutil.Process], pick: float) -> list[psutil.Process]:
    return [candidates[min(len(candidates) - 1, int(pick * len(candidates)))]] if candidates else []
