"""The servers' logs: their names, their last lines, and following them."""

import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from riverrun.config import Project
from riverrun.errors import UsageError

BLOCK = 64 * 1024
# Between two polls of a log that is followed.
POLL_SECONDS = 0.2


def log_names(project: Project) -> list[str]:
    """The servers that have a log, and the runner."""
    return sorted(path.stem for path in project.logs.glob("*.log"))


def log_path(project: Project, name: str) -> Path:
    """A server's log; UsageError when it has none."""
    names = log_names(project)
    if name not in names:
        raise UsageError(
            f"There is no log of {name!r}",
            expected=f"one of {', '.join(names)}" if names else "a project whose servers have run (`riverrun up`)",
            hint=f"Logs are in {project.logs}",
            server=name,
        )
    return project.logs / f"{name}.log"


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a file, read from its end."""
    with path.open("rb") as file:
        return _last_lines(file, count)


def _last_lines(file: BinaryIO, count: int) -> list[str]:
    position = file.seek(0, os.SEEK_END)
    content = b""
    while position > 0 and content.count(b"\n") <= count:
        step = min(BLOCK, position)
        position -= step
        file.seek(position)
        content = file.read(step) + content
    file.seek(0, os.SEEK_END)
    lines = content.decode("utf-8", errors="replace").splitlines()
    return lines[-count:] if count else []


def follow(path: Path, count: int) -> Iterator[str]:
    """The last lines, then every line that is added, without end; switches to the new file when the log is rolled."""
    file = path.open("rb")
    try:
        yield from _last_lines(file, count)
        rest = b""
        while True:
            rest += file.read()
            *complete, rest = rest.split(b"\n")
            yield from (line.decode("utf-8", errors="replace") for line in complete)
            if complete:
                continue
            if _was_rotated(file, path):
                file.close()
                file = path.open("rb")
                continue
            select.select([], [], [], POLL_SECONDS)
    finally:
        file.close()


def _was_rotated(file: BinaryIO, path: Path) -> bool:
    try:
        now, old = path.stat(), os.fstat(file.fileno())
    except FileNotFoundError:
        return False
    return now.st_ino != old.st_ino or now.st_size < file.tell()
