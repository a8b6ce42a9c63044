"""The states of Connect's connectors, and the reason of a failed one as text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RUNNING, PAUSED, STOPPED, FAILED = "running", "paused", "stopped", "failed"

_CAUSE = re.compile(r"^(?:Caused by: )?((?:[\w$]+\.)+[\w$]*(?:Exception|Error|Throwable|Failure)[\w$]*)(?:: (.*))?$")
_STACK_FRAME = re.compile(r"^\s+(?:at |\.\.\. \d+ )|^\s*Suppressed: ")
# Messages that only say that a cause below failed.
_WRAPPERS = (
    "Tolerance exceeded in error handler",
    "An exception occurred in the change event producer",
    "Exiting WorkerSinkTask",
)


@dataclass(frozen=True)
class Plugin:
    """A connector plugin of this Connect. `kind` is source or sink."""

    name: str
    kind: str
    version: str


@dataclass(frozen=True)
class TaskState:
    """One task: running, paused, failed, unassigned or restarting; `reason` is why one failed."""

    id: int
    state: str
    worker: str = ""
    reason: str = ""


@dataclass(frozen=True)
class ConnectorState:
    """A connector and its tasks, as Connect last saw them: right after a worker died this may be old."""

    name: str
    kind: str
    state: str
    worker: str = ""
    tasks: tuple[TaskState, ...] = ()
    own_reason: str = ""

    @property
    def overall(self) -> str:
        """failed when any part of it is; else the connector's own state, and starting before its tasks run."""
        if self.state == FAILED or any(task.state == FAILED for task in self.tasks):
            return FAILED
        if self.state == RUNNING and (not self.tasks or any(task.state != RUNNING for task in self.tasks)):
            return "starting"
        return self.state

    @property
    def reason(self) -> str:
        """Why it failed, in one line: its own reason, else that of the first task that failed."""
        failed = [task for task in self.tasks if task.state == FAILED]
        if self.own_reason or not failed:
            return self.own_reason
        others = f" ({len(failed)} of {len(self.tasks)} tasks failed)" if len(self.tasks) > 1 else ""
        return failed[0].reason + others

    @property
    def running(self) -> int:
        return sum(task.state == RUNNING for task in self.tasks)


def parse_state(content: Mapping[str, Any]) -> ConnectorState:
    """Parse Connect's answer about one connector."""
    own = content.get("connector") or {}
    tasks = tuple(
        TaskState(
            int(task.get("id", 0)),
            str(task.get("state", "")).lower(),
            str(task.get("worker_id", "")),
            root_cause(str(task.get("trace") or "")),
        )
        for task in content.get("tasks") or ()
    )
    return ConnectorState(
        str(content.get("name", "")),
        str(content.get("type", "")).lower(),
        str(own.get("state", "")).lower(),
        str(own.get("worker_id", "")),
        tuple(sorted(tasks, key=lambda task: task.id)),
        root_cause(str(own.get("trace") or "")),
    )


def root_cause(trace: str) -> str:
    """The root cause of a Java stack trace, without the stack: the innermost cause that has a message.

    A cause without a message is shown by its class name; messages that only say that a cause below failed are skipped.
    """
    causes = _causes(trace)
    worded = [(kind, text) for kind, text in causes if text and not text.startswith(_WRAPPERS)]
    if worded:
        kind, text = worded[-1]
        return text if len(text.split()) > 2 else f"{_short_class_name(kind)}: {text}"
    if causes:
        kind, text = causes[-1]
        return f"{_short_class_name(kind)}: {text}" if text else _short_class_name(kind)
    first = trace.strip().partition("\n")[0].strip()
    return first[:500]


def _causes(trace: str) -> list[tuple[str, str]]:
    """Each exception of a trace, outermost first, with its message in one line."""
    exceptions: list[tuple[str, list[str]]] = []
    within = False
    for line in trace.splitlines():
        if _STACK_FRAME.match(line):
            within = False
        elif match := _CAUSE.match(line):
            exceptions.append((match[1], [match[2] or ""]))
            within = True
        elif within and exceptions:
            exceptions[-1][1].append(line)
    causes = []
    for kind, lines in exceptions:
        text = " ".join(" ".join(lines).split())
        # A wrapper may repeat a cause with its class name before it.
        while inner := _CAUSE.match(text):
            if not inner[2]:
                break
            text = inner[2]
        causes.append((kind, text[:500]))
    return causes


def _short_class_name(kind: str) -> str:
    return kind.rpartition(".")[2].rpartition("$")[2]
