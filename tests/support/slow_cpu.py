"""A part of the machine that is slow: a control group in which processes get a small share of one core."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
PERIOD_US = 100_000


@contextmanager
def slow_cpu(share: float) -> Iterator[Path]:
    """A file that makes a process slow when its id is written there: it gets `share` of a core from then on."""
    group, limits = _group(f"riverrun-test-{os.getpid()}", round(share * PERIOD_US))
    group.mkdir()
    try:
        for name, text in limits.items():
            (group / name).write_text(text)
        yield group / "cgroup.procs"
    finally:
        # Processes that are left go back to where they were, or the group cannot be removed.
        for process in (group / "cgroup.procs").read_text().split():
            (group.parent / "cgroup.procs").write_text(process)
        group.rmdir()


def _group(name: str, quota_us: int) -> tuple[Path, dict[str, str]]:
    """The folder of a new group, and what to write there: of version 2 where that has the CPU, else of version 1."""
    for root in ROOTS:
        control = root / "cgroup.subtree_control"
        if control.exists() and "cpu" in (root / "cgroup.controllers").read_text().split():
            control.write_text("+cpu")
            return root / name, {"cpu.max": f"{quota_us} {PERIOD_US}"}
    limits = {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota_us)}
    return ROOTS[0] / "cpu" / name, limits
