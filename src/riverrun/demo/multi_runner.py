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
from riverrun.demo.processes import DIE_WITH_PARENT, DemoProcess, StepReporter, check_processes, clear_project
from riverrun.kafka.connection import require_cluster

if TYPE_CHECKING:
    from rich.console import Console

# The folder of their shared Kafka, beside theirs.
KAFKA_FOLDER = ".kafka"
START_SECONDS = 120.0
STOP_SECONDS = 90.0
# The heap of each Spark: less than a single demo has, and enough for a use case.
SPARK_MEMORY_MB = 768


class CaseProcess:
    """`riverrun demo NAME` as a child process; its output is printed line by line with its name as prefix."""

    def __init__(self, name: str, arguments: Sequence[str], environ: Mapping[str, str], width: int) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-c", DIE_WITH_PARENT, sys.executable, "-m", "riverrun", "demo", name, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env={**os.environ, **environ, "COLUMNS": "160"}, start_new_session=True,
        )  # fmt: skip
        self._output_thread = threading.Thread(target=self._print_output, args=(width,), daemon=True)
        self._output_thread.start()

    def _print_output(self, width: int) -> None:
        assert self.process.stdout is not None  # noqa: S101
        for line in self.process.stdout:
            print(f"{self.name:<{width}} │ {line.rstrip()}", flush=True)  # noqa: T201

    @property
    def has_exited(self) -> bool:
        return self.process.poll() is not None

    def ask_to_stop(self) -> None:
        if not self.has_exited:
            self.process.terminate()

    def end(self, seconds: float) -> int:
        """Its exit code; a process that does not end is killed."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._output_thread.join(5)
        return code


def run_multiple(console: "Console", folder: Path, names: Sequence[str], arguments: Sequence[str], brokers: int) -> int:
    """Run the use cases of these names, each in a folder of its name, until they end or somebody stops them. Returns
    the worst of their exit codes."""
    kafka_folder = folder / KAFKA_FOLDER
    project = Project(kafka_folder)
    kafka_folder.mkdir(parents=True, exist_ok=True)
    with stop_on_signals() as stop, ExitStack() as stack:
        stack.enter_context(DemoState(project, ", ".join(names)))
        steps = StepReporter(console, stop)
        with steps.step("Starting one Kafka for all", "Kafka is ready"):
            clear_project(project)
            kafka = DemoProcess(
                kafka_folder, "kafka", "-m", "riverrun", "--project", str(kafka_folder), "up", "--brokers", str(brokers)
            )
            stack.callback(kafka.stop)

            def ready() -> bool:
                check_processes([kafka])
                state = running_state(project)
                return state is not None and state.state == "ready"

            steps.until(ready, START_SECONDS, "Kafka did not start")
        servers = require_cluster(load(project).settings.kafka, project).bootstrap_servers
        share = {"RIVERRUN_SPARK_DRIVER_MEMORY_MB": str(SPARK_MEMORY_MB)}
        words, width = [*arguments, "--bootstrap-servers", servers], max(map(len, names))
        children = [CaseProcess(name, [*words, "--folder", str(folder / name)], share, width) for name in names]
        stack.callback(_stop_all, children)
        while not stop.is_set() and not all(case_process.has_exited for case_process in children):
            check_processes([kafka])
            stop.wait(0.3)
        codes = (
            _stop_all(children)
            if stop.is_set()
            else {case_process.name: case_process.end(STOP_SECONDS) for case_process in children}
        )
    failed = [name for name, code in codes.items() if code]
    print(f"Something is wrong with {', '.join(failed)}." if failed else f"All of {', '.join(names)} ended well.")  # noqa: T201
    return 1 if failed else 0


def _stop_all(children: Sequence[CaseProcess]) -> dict[str, int]:
    """All at once: that takes as long as the slowest of them."""
    for case_process in children:
        case_process.ask_to_stop()
    ends = time.monotonic() + STOP_SECONDS
    return {case_process.name: case_process.end(max(1.0, ends - time.monotonic())) for case_process in children}
