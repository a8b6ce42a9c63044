"""`riverrun fetch`: fill the cache, so that everything else works without a network."""

import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.context import load_settings
from riverrun.cli.output import json_option, print_json, print_rows, room_on_screen, say

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from riverrun.artifacts import FetchProgress, FetchResult
    from riverrun.config import ArtifactSettings


@click.command(
    epilog="""\b
Examples:
  riverrun fetch                       everything, to be offline later
  riverrun fetch kafka --offline       is all there, and unchanged?
  riverrun fetch --list
"""
)
@click.argument("sets", nargs=-1, metavar="[SET]...")
@click.option("--maven-url", metavar="URL", help="Repository to fetch from.")
@click.option("--offline", is_flag=True, default=None, help="Fetch nothing; fail when something is missing.")
@click.option("--repair", is_flag=True, help="Fetch cached files that were changed again, instead of refusing them.")
@click.option("--list", "only_list", is_flag=True, help="Show the sets and what is here of them; fetch nothing.")
@json_option
def fetch(
    *, sets: tuple[str, ...], maven_url: str | None, offline: bool | None, repair: bool, only_list: bool, as_json: bool
) -> None:
    """Download the servers' jars and verify them: all sets, or the ones named.

    Files come from the cache of this user, then from ~/.m2/repository, then from the repository: --maven-url, the mirror
    in Maven's settings.xml, or Maven Central. Each must have the size and SHA-256 of its lock file, wherever it is from.
    """
    from riverrun.artifacts import cache_folder, fetch_set, lock_names, read_lock

    settings = load_settings(artifacts__maven_url=maven_url, artifacts__offline=offline).settings.artifacts
    names = list(dict.fromkeys(sets)) or lock_names()
    for name in names:
        read_lock(name)
    if only_list:
        print_rows([list_row(name, settings) for name in names], as_json=as_json)
        return
    fetched = [fetch_set(name, settings, progress=make_progress(), repair=repair) for name in names]
    if as_json:
        print_json([{**fetch_row(result), "paths": result.paths} for result in fetched])
        return
    print_rows([{k: v for k, v in fetch_row(result).items() if k != "repository"} for result in fetched], as_json=False)
    for repository in dict.fromkeys(result.repository for result in fetched if result.repository):
        say(f"Downloaded from {repository}.")
    say(f"Every file is verified. They are in {cache_folder(settings)}.")


def list_row(name: str, settings: "ArtifactSettings") -> dict[str, Any]:
    """A set and what the cache has of it."""
    from riverrun.artifacts import CacheStatus, check_set

    checked = check_set(name, settings)
    count = {state: sum(check.status is state for check in checked) for state in CacheStatus}
    return {
        "set": name,
        "files": len(checked),
        "mb": round(sum(check.artifact.size for check in checked) / 1e6, 1),
        "good": count[CacheStatus.GOOD],
        "missing": count[CacheStatus.MISSING],
        "corrupt": count[CacheStatus.CORRUPT],
        "missing_mb": round(
            sum(check.artifact.size for check in checked if check.status is CacheStatus.MISSING) / 1e6, 1
        ),
    }


def fetch_row(fetched: "FetchResult") -> dict[str, Any]:
    """The result of a fetch."""
    return {
        "set": fetched.name,
        "files": fetched.files,
        "mb": round(fetched.size / 1e6, 1),
        "cached": fetched.cached,
        "from_m2": fetched.reused,
        "downloaded": fetched.downloaded,
        "downloaded_mb": round(fetched.downloaded_size / 1e6, 1),
        "seconds": round(fetched.seconds, 2),
        "repository": fetched.repository,
    }


def make_progress() -> "FetchProgress":
    """A bar at a terminal, lines elsewhere; both on stderr. `riverrun up` shows the same."""
    return BarProgress() if sys.stderr.isatty() else LineProgress()


class LineProgress:
    """Lines: one at the start, one for each further quarter, notes as they come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._name = ""
        self._size = self._received = self._quarters = 0

    def start(self, name: str, files: int, size: int) -> None:
        # A second set starts from zero again.
        self._name, self._size, self._received, self._quarters = name, size, 0, 0
        say(f"{name}: fetching {files} file{'s' if files != 1 else ''}, {size / 1e6:.1f} MB")

    def advance(self, size: int) -> None:
        with self._lock:
            self._received += size
            quarters = 4 * self._received // self._size if self._size else 0
            if quarters > self._quarters:
                self._quarters = quarters
                say(f"{self._name}: {25 * quarters} %, {self._received / 1e6:.1f} MB")

    def note(self, message: str) -> None:
        say(f"{self._name}: {message}")

    def done(self) -> None:
        pass


class BarProgress:
    """A bar that disappears when it is done."""

    def __init__(self) -> None:
        self._bars: Bars | None = None
        self._task: Any = None
        self._room = ExitStack()

    def start(self, name: str, files: int, size: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bars.add_task(f"{name}: {files} file{'s' if files != 1 else ''}", total=size)
        self._room.enter_context(room_on_screen())
        self._bars.start()

    def advance(self, size: int) -> None:
        if self._bars is not None:
            self._bars.advance(self._task, size)

    def note(self, message: str) -> None:
        if self._bars is not None:
            self._bars.console.print(message, markup=False, highlight=False)

    def done(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._room.close()
