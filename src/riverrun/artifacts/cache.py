"""The user's cache of downloaded files, shared by all projects and safe for several processes at once.

It is laid out like a Maven repository below `maven/`. A file gets its final name only after its size and digest were
verified, in one step, after its bytes are on the disk. While a file is fetched it is `NAME.<digest>.part` beside it,
locked by the process that writes it; what an interrupted fetch leaves there is continued by the next one.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from riverrun.artifacts.lock import Artifact
from riverrun.config import ArtifactSettings
from riverrun.errors import ArtifactCorruptError, CacheError, DiskFullError, DownloadError

# Another process that holds a file and adds nothing to it for this long is not waited for.
STALLED_SECONDS = 120.0
LOCK_POLL_SECONDS = 0.05

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class CacheStatus(Enum):
    """The state of a file in the cache."""

    GOOD = "good"
    MISSING = "missing"
    CORRUPT = "corrupt"


@dataclass(frozen=True)
class CacheCheck:
    """One file of a set, looked at. `mismatch` says what is wrong with a corrupt one."""

    artifact: Artifact
    path: Path
    status: CacheStatus
    mismatch: str = ""


def cache_folder(settings: ArtifactSettings, environ: Mapping[str, str] | None = None) -> Path:
    """The user's cache: the setting, else XDG's folder, else ~/.cache/riverrun. It is not created here."""
    environ = os.environ if environ is None else environ
    if settings.cache_dir:
        return Path(settings.cache_dir).expanduser().absolute()
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG standard says that a relative path is to be ignored.
    folder = Path(base) if base.startswith("/") else Path(environ.get("HOME") or Path.home()) / ".cache"
    return folder / "riverrun"


class ArtifactCache:
    """The files below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, artifact: Artifact) -> Path:
        return self.root / "maven" / artifact.path

    def part_path(self, artifact: Artifact) -> Path:
        return self.path(artifact).with_name(f"{artifact.file_name}.{artifact.sha256[:12]}.part")

    def check(self, artifacts: Sequence[Artifact]) -> list[CacheCheck]:
        """Check every file, reading all its bytes. hashlib lets other threads run, so this uses all cores."""
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "riverrun-verify") as pool:
            return list(pool.map(self._check, artifacts))

    def _check(self, artifact: Artifact) -> CacheCheck:
        path = self.path(artifact)
        try:
            mismatch = mismatch_reason(path, artifact)
        except (FileNotFoundError, NotADirectoryError):
            return CacheCheck(artifact, path, CacheStatus.MISSING)
        except OSError as error:
            raise self.error_from(error, path) from error
        return CacheCheck(artifact, path, CacheStatus.CORRUPT if mismatch else CacheStatus.GOOD, mismatch)

    def adopt(self, artifact: Artifact, repository: Path) -> bool:
        """Take a file from another Maven repository on this machine, if it is there and its digest matches.

        A hard link costs no space; where none can be made the bytes are copied. A file that differs is left alone: it
        is not ours, and the download will bring the right one.
        """
        source = repository / artifact.path
        try:
            if source.stat().st_size != artifact.size:
                return False
        except OSError:
            return False
        path = self.path(artifact)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=".adopt-") as folder:
                copy = Path(folder) / path.name
                if not _link_or_copy(source, copy) or mismatch_reason(copy, artifact):
                    return False
                copy.replace(path)
        except PermissionError:
            return False
        except OSError as error:
            raise self.error_from(error, path) from error
        return True

    @contextlib.contextmanager
    def locked_part(self, artifact: Artifact, pause: Callable[[float], None]) -> Iterator[int | None]:
        """Hold the part file of an artifact: its descriptor, or None when another process finished the file meanwhile.

        `pause` waits for so many seconds; it raises to give up.
        """
        path, part = self.path(artifact), self.part_path(artifact)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = self._lock(artifact, part, pause)
        except OSError as error:
            raise self.error_from(error, part) from error
        try:
            yield descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _lock(self, artifact: Artifact, part: Path, pause: Callable[[float], None]) -> int | None:
        deadline, last_size = time.monotonic() + STALLED_SECONDS, -1
        while True:
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                size = os.fstat(descriptor).st_size
                os.close(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            else:
                # The previous holder may have renamed it to its final name: then this lock is on a finished file.
                if _same_file(descriptor, part):
                    return self._unless_done(artifact, part, descriptor)
                os.close(descriptor)
                continue
            if size != last_size:
                deadline, last_size = time.monotonic() + STALLED_SECONDS, size
            if time.monotonic() > deadline:
                raise DownloadError(
                    f"Another process holds {part} and has added nothing to it for {STALLED_SECONDS:.0f} s",
                    hint="End that process, or wait for it, then try again",
                    path=part,
                )
            pause(LOCK_POLL_SECONDS)

    def _unless_done(self, artifact: Artifact, part: Path, descriptor: int) -> int | None:
        if self._check(artifact).status is not CacheStatus.GOOD:
            return descriptor
        part.unlink(missing_ok=True)
        os.close(descriptor)
        return None

    def finish(self, artifact: Artifact, descriptor: int) -> Path:
        """Give a complete and verified part file its final name. Its bytes reach the disk first: a power cut must not
        leave an empty file with a good name."""
        path = self.path(artifact)
        try:
            os.fsync(descriptor)
            self.part_path(artifact).replace(path)
        except OSError as error:
            raise self.error_from(error, path) from error
        return path

    def require_space(self, size: int) -> None:
        """Fail before the first byte when the disk cannot hold this many more."""
        folder = self.root
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        try:
            free = shutil.disk_usage(folder).free
        except OSError as error:
            raise self.error_from(error, folder) from error
        if free < size:
            raise DiskFullError(
                f"The disk of the cache {self.root} is too full",
                expected=f"{size / 1e6:.1f} MB of free space",
                found=f"{free / 1e6:.1f} MB",
                hint="Make room, or put the cache on another disk with artifacts.cache_dir",
                path=self.root,
                needed=size,
                free=free,
            )

    def error_from(self, error: OSError, path: Path) -> CacheError | DiskFullError:
        """A file system error as one of ours."""
        if error.errno in _NO_SPACE:
            return DiskFullError(
                f"The disk is full: {path} could not be written",
                found=error.strerror or "no space left",
                hint="Make room, or put the cache on another disk with artifacts.cache_dir; what arrived is kept",
                path=path,
            )
        return CacheError(
            f"The cache file {path} cannot be used: {error.strerror or error}",
            expected=f"a cache folder that you may write to ({self.root})",
            hint="Correct its rights, or name another folder with artifacts.cache_dir",
            path=path,
        )


def mismatch_reason(path: Path, artifact: Artifact) -> str:
    """How a file differs from its lock, or an empty string."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != artifact.size:
            return f"{size} bytes instead of {artifact.size}"
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return "" if digest == artifact.sha256 else f"SHA-256 {digest}"


def corrupt_error(corrupt: Sequence[CacheCheck]) -> ArtifactCorruptError:
    """The error for cached files that changed: the first in full, the others by name."""
    first = corrupt[0]
    others = "".join(f"\n  also {check.path}: {check.mismatch}" for check in corrupt[1:])
    return ArtifactCorruptError(
        f"The cached file {first.path} is not what the lock file says, and is not used",
        expected=f"SHA-256 {first.artifact.sha256}",
        found=f"{first.mismatch}{others}",
        hint="Run `riverrun fetch --repair` to fetch it again, or delete it; if nobody changed it, check the disk",
        path=first.path,
        artifact=first.artifact,
        expected_sha256=first.artifact.sha256,
        count=len(corrupt),
    )


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _link_or_copy(source: Path, target: Path) -> bool:
    try:
        target.hardlink_to(source.resolve())
    except OSError:
        try:
            content = source.open("rb")
        except OSError:
            return False
        with content, target.open("xb") as copy:
            shutil.copyfileobj(content, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
    return True
