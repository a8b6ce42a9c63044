"""Several use cases at once: one Kafka for all of them; each with its own source, streams, tables and dashboard.

Each has a Spark of its own, a process that no other can take down. They share the processors as all processes do.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.cluster.signals import stop_on_signals
from riverrun.config import Project, load
from riverrun.config.processes import DemoState
from riverrun.config.run_state import running_state
from riverrun.demo.parts import TIED, Part, Steps, check_parts, clear
from riverrun.kafka.connection import require_cluster

if TYPE_CHECKING:
    from rich.console import Console

# The folder of their Kafka, beside theirs.
KAFKA = ".kafka"
START_SECONDS = 120.0
STOP_SECONDS = 90.0
# The heap of each Spark: less than one has alone, and enough for a use case.
MEMORY_MB = 768


class Case:
    """`riverrun demo NAME`, a child; what it says is told line by line behind its name."""

    def __init__(self, name: str, arguments: Sequence[str], environ: Mapping[str, str], width: int) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-c", TIED, sys.executable, "-m", "riverrun", "demo", name, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env={**os.environ, **environ, "COLUMNS": "160"}, start_new_session=True,
        )  # fmt: skip
        self._tells = threading.Thread(target=self._tell, args=(width,), daemon=True)
        self._tells.start()

    def _tell(self, width: int) -> None:
        assert self.process.stdout is not None  # noqa: S101
        for line in self.process.stdout:
            print(f"{self.name:<{width}} │ {line.rstrip()}", flush=True)  # noqa: T201

    @property
    def over(self) -> bool:
        return self.process.poll() is not None

    def ask_to_stop(self) -> None:
        if not self.over:
            self.process.terminate()

    def end(self, seconds: float) -> int:
        """Its exit code; one that does not end is killed."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._tells.join(5)
        return code


def run_several(console: "Console", folder: Path, names: Sequence[str], arguments: Sequence[str], brokers: int) -> int:
    """Run the use cases of these names, each in a folder of its name, until they end or somebody stops them. Gives the worst
    of their exit codes."""
    own = folder / KAFKA
    project = Project(own)
    own.mkdir(parents=True, exist_ok=True)
    with stop_on_signals() as stop, ExitStack() as stack:
        stack.enter_context(DemoState(project, ", ".join(names)))
        steps = Steps(console, stop)
        with steps.step("Starting one Kafka for all", "Kafka is ready"):
            clear(project)
            kafka = Part(own, "kafka", "-m", "riverrun", "--project", str(own), "up", "--brokers", str(brokers))
            stack.callback(kafka.stop)

            def ready() -> bool:
                check_parts([kafka])
                state = running_state(project)
                return state is not None and state.state == "ready"

            steps.until(ready, START_SECONDS, "Kafka did not start")
        servers = require_cluster(load(project).settings.kafka, project).bootstrap_servers
        share = {"RIVERRUN_SPARK_DRIVER_MEMORY_MB": str(MEMORY_MB)}
        words, width = [*arguments, "--bootstrap-servers", servers], max(map(len, names))
        cases = [Case(name, [*words, "--folder", str(folder / name)], share, width) for name in names]
        stack.callback(_stop, cases)
        while not stop.is_set() and not all(each.over for each in cases):
            check_parts([kafka])
            stop.wait(0.3)
        codes = _stop(cases) if stop.is_set() else {each.name: each.end(STOP_SECONDS) for each in cases}
    wrong = [name for name, code in codes.items() if code]
    print(f"Something is wrong with {', '.join(wrong)}." if wrong else f"All of {', '.join(names)} ended well.")  # noqa: T201
    return 1 if wrong else 0


def _stop(cases: Sequence[Case]) -> dict[str, int]:
    """All at once: the end takes as long as the slowest of them."""
    for each in cases:
        each.ask_to_stop()
    ends = time.monotonic() + STOP_SECONDS
    return {each.name: each.end(max(1.0, ends - time.monotonic())) for each in cases}
