"""Crashes as the input of a test: a pipeline runs, parts of it are killed with -9, and it must come out right.

    plan = crashes(seed=7, rounds=5)
    with CrashRun(project, "app.py") as run:
        for crash in plan:
            run.strike(crash)          # waits, kills, starts again what does not start by itself
        run.finish()                   # all there is, read and written
        assert run.verify() == []      # `riverrun verify`: what is wrong, nothing

The cluster is the project's own (`riverrun up`), so that its brokers can be killed too; they are started again by it.
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

# Spark's JVM, the process of the pipeline, one of Spark's Python workers, a broker, the pipeline and all below it, or the
# process that sends its alerts.
Victim = Literal["spark", "pipeline", "worker", "broker", "tree", "alerts"]
# What every pipeline has.
VICTIMS: tuple[Victim, ...] = tuple(get_arg for get_arg in get_args(Victim) if get_arg != "alerts")
# How long a part that comes with the first rows, or comes again by itself, may be waited for, to be killed.
WORKER_SECONDS = 90.0
# How long a pipeline whose Spark was killed, or that was asked to end, may take for it.
END_SECONDS = 60.0


@dataclass(frozen=True)
class Crash:
    """Kill this part so many seconds after the one before it is over. Where there are several such parts, `pick` says which:
    0 is the first, just below 1 the last."""

    victim: Victim
    after_seconds: float
    pick: float = 0.0


def crashes(
    seed: int, rounds: int, *, victims: Sequence[Victim] = VICTIMS, seconds: tuple[float, float] = (0.5, 6.0)
) -> list[Crash]:
    """A plan that is the same for the same seed. `seconds` is the shortest and the longest wait before a kill."""
    if unknown := set(victims) - set(get_args(Victim)):
        raise UsageError(f"There is no part {min(unknown)} to kill", expected=", ".join(get_args(Victim)))
    chance = random.Random(seed)  # noqa: S311  -- no secret
    return [Crash(chance.choice(list(victims)), chance.uniform(*seconds), chance.random()) for _ in range(rounds)]


@dataclass
class CrashRun:
    """`riverrun run FILE` as a child in a project's folder, and what it is to survive."""

    project: Path
    file: str
    options: Sequence[str] = ()
    start_seconds: float = 240.0
    # What was killed, in order; a worker only where one came to be killed.
    killed: list[str] = field(default_factory=list)
    # How often it was asked to end, did not within a minute, and was killed for that.
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
        """Wait until all streams are at work, then for the time of the crash, kill, and see that it goes on."""
        self.await_work()
        deadline = time.monotonic() + crash.after_seconds
        while time.monotonic() < deadline and self._alive():
            time.sleep(min(0.05, max(0.0, deadline - time.monotonic())))
        self.kill(crash.victim, crash.pick)

    def kill(self, victim: Victim, pick: float = 0.0) -> None:
        """Kill one part now, with -9."""
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
        """Until the pipeline has noticed: it ends when Spark does, and the next crash is not for what is dying."""
        if self._process is not None and victim in ("spark", "pipeline", "tree"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)

    def await_work(self) -> None:
        """Until every stream runs; a pipeline that has ended is started again, as a service manager would."""
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
        """Until all records are read and written: once more from its stop, with `--until-caught-up`."""
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
        """Streams whose output is not what their code makes of their input, as `riverrun verify --json` tells it."""
        result = self._riverrun("verify", self.file, "--json", check=False)
        verdicts: list[dict[str, Any]] = json.loads(result.stdout)
        return [verdict for verdict in verdicts if verdict["state"] != "equal"]

    def stop(self) -> None:
        """Ask the pipeline to end; kill it and what is below it if it does not."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.cut_off += 1
            _kill_all(self._find("tree", 0.0))

    # --- what there is ------------------------------------------------------------------------------------------------

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
            top = psutil.Process(self._process.pid)
            below = top.children(recursive=True)
            java = [each for each in below if each.name() == "java"]
            if victim == "tree":
                return [top, *below]
            if victim == "pipeline":
                return [top]
            if victim == "spark":
                return java
            if victim == "alerts":
                return [each for each in below if _is_alerts(each)]
            # The daemon that all workers are forked from is the first; a worker below it does the work.
            daemons = [child for one in java for child in one.children() if "python" in child.name()]
            workers = [child for one in daemons for child in one.children()]
            return _pick_one(workers, pick)
        return []

    def _brokers(self) -> list[psutil.Process]:
        status = json.loads(self._riverrun("status", "--json").stdout)
        pids = [each.get("pid") for each in status.get("servers", [])]
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
    """Whether it sends alerts. What guards it has the same words, and a child."""
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
