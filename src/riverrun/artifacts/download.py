"""Download missing files into the cache: several at once, each continued where it stopped, verified while it arrives."""

import contextlib
import hashlib
import os
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from riverrun.artifacts.cache import ArtifactCache
from riverrun.artifacts.http import HttpSource, RetryableDownloadError, corrupt_download_error
from riverrun.artifacts.lock import Artifact
from riverrun.artifacts.progress import FetchProgress
from riverrun.artifacts.timing import DownloadTiming

# An attempt that brought this many bytes counts as progress and is not counted: a large file over a connection that is
# cut again and again still arrives, and a connection that brings nothing ends soon.
MIN_PROGRESS_BYTES = 64 * 1024


class _StoppedError(Exception):
    """Another file failed, or the user wants to stop."""


class Downloader:
    """Fetches files from one repository into one cache."""

    def __init__(
        self,
        source: HttpSource,
        cache: ArtifactCache,
        progress: FetchProgress,
        *,
        timing: DownloadTiming,
        parallel: int,
    ) -> None:
        self._source = source
        self._cache = cache
        self._progress = progress
        self._timing = timing
        self._parallel = parallel
        self._stop = threading.Event()

    def run(self, artifacts: Sequence[Artifact]) -> None:
        """Fetch all, or raise the first error; then nothing goes on in the background, and partial files are kept.

        Large files first, so that none of them is left to be waited for alone at the end.
        """
        ordered = sorted(artifacts, key=lambda artifact: -artifact.size)
        with ThreadPoolExecutor(min(self._parallel, len(ordered)), "riverrun-download") as pool:
            futures = [pool.submit(self._download_one, artifact) for artifact in ordered]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                self._cancel_unfinished(futures)
        for future in futures:
            if not future.cancelled() and (error := future.exception()) and not isinstance(error, _StoppedError):
                raise error

    def _cancel_unfinished(self, futures: Sequence[Future[None]]) -> None:
        if all(future.done() and not future.cancelled() and future.exception() is None for future in futures):
            return
        self._stop.set()
        for future in futures:
            future.cancel()
        self._source.abort()

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise _StoppedError

    def _download_one(self, artifact: Artifact) -> None:
        try:
            with self._cache.locked_part(artifact, self._pause) as descriptor:
                if descriptor is None:
                    self._progress.advance(artifact.size)
                    return
                with self._map_disk_errors(artifact):
                    part = _PartialFile(artifact, descriptor)
                self._progress.advance(part.position)
                self._fill(part)
                self._cache.finish(artifact, descriptor)
        except Exception:
            # We cut the connection ourselves once `_stop` is set.
            if self._stop.is_set():
                raise _StoppedError from None
            self._stop.set()
            raise

    def _fill(self, part: "_PartialFile") -> None:
        """Retry until the partial file is complete, or attempts are used up."""
        attempts = 0
        while not part.complete():
            before = part.position
            try:
                self._attempt(part)
            except RetryableDownloadError as again:
                part.without_range |= again.without_range
                attempts = 1 if part.position - before >= MIN_PROGRESS_BYTES else attempts + 1
                if attempts >= again.max_attempts:
                    raise again.final_error from again
                delay = self._delay(attempts, again.retry_after)
                self._progress.note(f"{part.artifact.file_name}: {again.reason}; next try in {delay:.1f} s")
                self._pause(delay)

    def _delay(self, attempts: int, retry_after: float) -> float:
        backoff = self._timing.backoff * 2 ** (attempts - 1) * random.uniform(0.75, 1.25)  # noqa: S311
        return float(min(max(backoff, retry_after), self._timing.max_backoff))

    def _attempt(self, part: "_PartialFile") -> None:
        """One request; afterwards the partial file is complete, or an error was raised."""
        artifact = part.artifact
        continued = part.position > 0 and not part.without_range
        with self._source.request(artifact, part.position if continued else 0) as response:
            if response.start < part.position:
                self._restart(part)
            for chunk in response.chunks:
                self._pause(0)
                self._add(part, chunk)
        url = self._source.repository.address(artifact.path)
        if part.position < artifact.size:
            raise self._source.truncated_error(url, part.position, artifact.size)
        if not part.matches():
            found = f"SHA-256 {part.hexdigest()}"
            self._restart(part)
            if not continued:
                raise corrupt_download_error(
                    artifact, self._source.repository, url, found, f"SHA-256 {artifact.sha256}"
                )
            part.without_range = True

    def _add(self, part: "_PartialFile", chunk: bytes) -> None:
        artifact = part.artifact
        if part.position + len(chunk) > artifact.size:
            self._restart(part)
            url = self._source.repository.address(artifact.path)
            raise corrupt_download_error(
                artifact, self._source.repository, url, "more bytes than that", f"{artifact.size} bytes"
            )
        with self._map_disk_errors(artifact):
            part.add(chunk)
        self._progress.advance(len(chunk))

    def _restart(self, part: "_PartialFile") -> None:
        self._progress.advance(-part.position)
        with self._map_disk_errors(part.artifact):
            part.restart()

    @contextlib.contextmanager
    def _map_disk_errors(self, artifact: Artifact) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._cache.error_from(error, self._cache.part_path(artifact)) from error


class _PartialFile:
    """The bytes of a file received so far, and their digest."""

    def __init__(self, artifact: Artifact, descriptor: int) -> None:
        self.artifact = artifact
        self.position = 0
        # After bytes from two requests did not fit together, the whole file is requested.
        self.without_range = False
        self._descriptor = descriptor
        self._digest = hashlib.sha256()
        self._resume()

    def _resume(self) -> None:
        """Continue after what an earlier fetch left, if that can be the beginning of the file."""
        size = os.fstat(self._descriptor).st_size
        if size > self.artifact.size:
            self.restart()
            return
        while self.position < size and (chunk := os.read(self._descriptor, min(1 << 20, size - self.position))):
            self._digest.update(chunk)
            self.position += len(chunk)
        if self.position == self.artifact.size and not self.matches():
            self.restart()

    def add(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self._digest.update(chunk)
        self.position += len(chunk)

    def restart(self) -> None:
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        self._digest = hashlib.sha256()
        self.position = 0

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def matches(self) -> bool:
        return self.hexdigest() == self.artifact.sha256

    def complete(self) -> bool:
        return self.position == self.artifact.size and self.matches()
