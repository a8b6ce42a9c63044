"""Fetch a set: every file of its lock, verified, from the cache, the local Maven repository or a remote one.

Every call reads every byte of the set: a jar that changed since yesterday is refused today. Hashing 45 MB takes about as
long as a JVM takes to print its version (docs/decisions/0001-artifacts.md has the numbers).
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from riverrun.artifacts.cache import ArtifactCache, CacheCheck, CacheStatus, cache_folder, corrupt_error
from riverrun.artifacts.lock import Artifact, LockFile, read_lock
from riverrun.artifacts.maven_settings import MavenSettings, read_maven_settings
from riverrun.artifacts.progress import FetchProgress, NoFetchProgress
from riverrun.artifacts.repository import Repository, choose_proxy, choose_repository
from riverrun.artifacts.timing import DownloadTiming
from riverrun.config import ArtifactSettings
from riverrun.errors import ArtifactMissingError

SHOWN_FILES = 5


@dataclass(frozen=True)
class FetchResult:
    """A complete set, and where its files came from. Counts are of files."""

    name: str
    paths: tuple[Path, ...]
    size: int
    cached: int
    reused: int
    downloaded: int
    downloaded_size: int
    seconds: float
    # The repository that was asked, without its login; empty when nothing had to be downloaded.
    repository: str = ""

    @property
    def files(self) -> int:
        return len(self.paths)


def fetch(name: str, settings: ArtifactSettings, *, progress: FetchProgress | None = None) -> list[Path]:
    """Verified local paths of all files of a set, in lock order (the class path's); what is missing is downloaded."""
    return list(fetch_set(name, settings, progress=progress).paths)


def fetch_set(
    name: str,
    settings: ArtifactSettings,
    *,
    progress: FetchProgress | None = None,
    repair: bool = False,
    environ: Mapping[str, str] | None = None,
) -> FetchResult:
    """Like `fetch`, but returns what was done. `repair` fetches corrupt cached files again instead of refusing them."""
    return fetch_lock(read_lock(name), settings, progress=progress, repair=repair, environ=environ)


def check_set(name: str, settings: ArtifactSettings, environ: Mapping[str, str] | None = None) -> list[CacheCheck]:
    """What the cache has of a set. Reads every byte; changes and fetches nothing."""
    return ArtifactCache(cache_folder(settings, environ)).check(read_lock(name).artifacts)


def fetch_lock(
    lock: LockFile,
    settings: ArtifactSettings,
    *,
    progress: FetchProgress | None = None,
    repair: bool = False,
    environ: Mapping[str, str] | None = None,
    timing: DownloadTiming | None = None,
) -> FetchResult:
    """Fetch the files of any lock."""
    environ = os.environ if environ is None else environ
    return _Fetch(lock, settings, progress or NoFetchProgress(), environ, timing or DownloadTiming()).run(repair=repair)


class _Fetch:
    """One fetch of one lock."""

    def __init__(
        self,
        lock: LockFile,
        settings: ArtifactSettings,
        progress: FetchProgress,
        environ: Mapping[str, str],
        timing: DownloadTiming,
    ) -> None:
        self.lock = lock
        self.settings = settings
        self.progress = progress
        self.environ = environ
        self.timing = timing
        self.cache = ArtifactCache(cache_folder(settings, environ))

    def run(self, *, repair: bool) -> FetchResult:
        began = time.monotonic()
        checked = self.cache.check(self.lock.artifacts)
        corrupt = [check for check in checked if check.status is CacheStatus.CORRUPT]
        if corrupt and not repair:
            raise corrupt_error(corrupt)
        uncached = [check.artifact for check in checked if check.status is not CacheStatus.GOOD]
        missing, repository = self._obtain(uncached) if uncached else ([], "")
        return FetchResult(
            name=self.lock.name,
            paths=tuple(check.path for check in checked),
            size=self.lock.total_size,
            cached=len(checked) - len(uncached),
            reused=len(uncached) - len(missing),
            downloaded=len(missing),
            downloaded_size=_size(missing),
            seconds=time.monotonic() - began,
            repository=repository,
        )

    def _obtain(self, uncached: Sequence[Artifact]) -> tuple[list[Artifact], str]:
        """Get missing files from elsewhere; returns those this machine did not have, and the repository they came from."""
        maven = read_maven_settings(self.environ, Path(self.environ.get("HOME") or Path.home()))
        missing = self._reuse(uncached, maven.local_repository())
        if not missing:
            return [], ""
        if self.settings.offline:
            raise self._offline(missing)
        repository = choose_repository(self.settings, maven)
        self.cache.require_space(_size(missing))
        self.progress.start(self.lock.name, len(missing), _size(missing))
        try:
            if repository.folder is not None:
                self._copy(missing, repository, repository.folder)
            else:
                self._download(missing, repository, maven)
        finally:
            self.progress.done()
        return missing, str(repository)

    def _reuse(self, artifacts: Sequence[Artifact], folder: Path) -> list[Artifact]:
        """Take what a Maven repository on this machine has; returns what it does not have."""
        return [artifact for artifact in artifacts if not self.cache.adopt(artifact, folder)]

    def _copy(self, missing: Sequence[Artifact], repository: Repository, folder: Path) -> None:
        absent = self._reuse(missing, folder)
        self.progress.advance(_size(missing) - _size(absent))
        if absent:
            raise ArtifactMissingError(
                f"The repository {repository} lacks files, or has others of that name",
                found=f"no {_listed(absent)} with the right digest",
                hint="Fill it, or use another with --maven-url",
                count=len(absent),
            )

    def _download(self, missing: Sequence[Artifact], repository: Repository, maven: MavenSettings) -> None:
        # Imported here, because httpx takes longer to import than a warm fetch takes.
        from riverrun.artifacts.download import Downloader
        from riverrun.artifacts.http import HttpSource
        from riverrun.artifacts.tls import tls_context

        parallel = self.settings.parallel
        proxy = choose_proxy(repository.url, maven, self.environ)
        with HttpSource(repository, proxy, tls_context(self.environ), self.timing, parallel) as source:
            Downloader(source, self.cache, self.progress, timing=self.timing, parallel=parallel).run(missing)

    def _offline(self, missing: Sequence[Artifact]) -> ArtifactMissingError:
        return ArtifactMissingError(
            f"{len(missing)} of {len(self.lock.artifacts)} files of the set {self.lock.name!r} are not in the cache "
            f"{self.cache.root}, and riverrun is told to stay offline",
            found=f"no {_listed(missing)}",
            hint=f"Run `riverrun fetch {self.lock.name}` once where there is a network",
            set=self.lock.name,
            count=len(missing),
        )


def _size(artifacts: Sequence[Artifact]) -> int:
    return sum(artifact.size for artifact in artifacts)


def _listed(artifacts: Sequence[Artifact]) -> str:
    names = ", ".join(artifact.file_name for artifact in artifacts[:SHOWN_FILES])
    more = len(artifacts) - SHOWN_FILES
    return f"{names} and {more} more" if more > 0 else names
