"""Java's class-data archive for a server: halves the time to ready from the second start on.

The first start of a class path records which classes it loads; when it is ready, a low-priority process builds an
archive of them in the user's cache, shared by all projects. That process may outlive the run that began it by a few
minutes: beside a busy pipeline on two cores it is not done before a short run ends, and each run would begin anew.
Measured: docs/decisions/0003-cluster-runner.md. The archive is an optimization only: Java ignores one that does not fit
its class path or version, `discard` removes one that is suspected, and whatever goes wrong here only means a slower
start.
"""

import contextlib
import hashlib
import os
import re
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

from riverrun.cluster.jvm import JavaRuntime
from riverrun.cluster.process import GuardedProcess

_QUIET = "-Xlog:cds=off"
# Numbers by which lines of one list refer to each other; in a merged list they would collide.
_LINE_NUMBER = re.compile(rb" id: \d+")
# A tenth of what others get when the processors are busy; with less it would not finish while they are.
_NICENESS = 10
# How long a build may go on after the run that began it; on an idle machine it needs half a minute.
_FINISH_SECONDS = 1800.0
# Moves the archive to its final path when it is complete, and cleans up, even when nobody waits for it any more.
_MAKE = """\
classes=$1 unfinished=$2 archive=$3; shift 3
"$@" && mv "$unfinished" "$archive"; code=$?
rm -f "$classes" "$unfinished"; exit $code"""
# Leftovers of a runner that was killed, and archives of jars or a Java unused for this long.
_LEFTOVER_SECONDS = 3600.0
_UNUSED_SECONDS = 30 * 86400.0
# Builds that outlive their archive object: Python warns about a child process that is forgotten while it runs.
_finishing: list[GuardedProcess] = []


@dataclass
class ClassArchive:
    """The archive of one Java and one class path, under the name of the server; built with `flags`.

    `recordings` is the number of servers whose classes are recorded: several kinds of server share one archive.
    """

    runtime: JavaRuntime
    log: Path
    name: str
    flags: tuple[str, ...] = ()
    recordings: int = 1
    _recorded: list[Path] = field(default_factory=list, init=False)
    _builder: GuardedProcess | None = field(default=None, init=False)

    @property
    def path(self) -> Path:
        java = self.runtime.java
        parts = [str(java.home), java.full_version, *self.flags]
        for jar in self.runtime.class_path:
            with contextlib.suppress(OSError):
                stat = jar.stat()
                # Java itself compares sizes and times, and refuses the archive when one differs.
                parts.append(f"{jar} {stat.st_size} {stat.st_mtime_ns}")
        key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
        return self.runtime.cache / "class-archives" / f"{self.name}-java-{java.version}-{key}.jsa"

    def options(self) -> list[str]:
        """Flags for the next server: use the archive, or, a limited number of times per runner, record the classes for
        it."""
        archive = self.path
        if archive.is_file():
            with contextlib.suppress(OSError):
                os.utime(archive)
            # Verified at each start, which takes no measurable time: a damaged one is then refused, not run.
            return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-XX:+VerifySharedSpaces", _QUIET]
        if len(self._recorded) >= self.recordings or self._builder is not None:
            return []
        try:
            archive.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return []
        recording = archive.with_name(f"{archive.stem}.{os.getpid()}.{secrets.token_hex(4)}.classes")
        self._recorded.append(recording)
        return [f"-XX:DumpLoadedClassList={recording}"]

    def start_build(self, class_path: str = "") -> None:
        """Begin to build the archive in the background, if this runner has recorded the classes for it.

        `class_path` is the one the server reports, where that is not the runtime's.
        """
        if not self.has_recordings or not all(recording.is_file() for recording in self._recorded):
            return
        with contextlib.suppress(OSError):
            self._prune()
            if self.path.is_file() or self._is_being_built():
                self.close()
                self._recorded.clear()
                return
            first = self._recorded[0]
            classes = first.with_suffix(".ready")
            classes.write_bytes(b"".join(self._lines()))
            unfinished = first.with_suffix(".jsa")
            options = [*self.flags, "-Xshare:dump", _QUIET]
            files = [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={unfinished}"]
            java = [str(self.runtime.java.executable), *options, *files]
            java += ["-cp", class_path or self.runtime.class_path_text]
            command = ["/bin/sh", "-c", _MAKE, "sh", str(classes), str(unfinished), str(self.path), *java]
            self._builder = GuardedProcess(
                command,
                cwd=self.path.parent,
                output=self.log,
                niceness=_NICENESS,
                orphan_delay_seconds=_FINISH_SECONDS,
            )
            self._builder.start()

    def _is_being_built(self) -> bool:
        """Whether another run builds this archive: one build at a time takes a core and a gigabyte."""
        now = time.time()
        return any(
            now - path.stat().st_mtime < _FINISH_SECONDS for path in self.path.parent.glob(f"{self.path.stem}.*.ready")
        )

    def _lines(self) -> list[bytes]:
        """The classes of all recordings, each once."""
        classes: dict[bytes, None] = {}
        for recording in self._recorded:
            # The server is still writing its list: read it up to the last whole line.
            content = recording.read_bytes()
            for line in content[: content.rfind(b"\n") + 1].splitlines(keepends=True):
                # Java 17 makes classes of these that crash it when a profiler or another agent inspects classes as they
                # load.
                if line.startswith(b"@lambda-form-invoker"):
                    continue
                if len(self._recorded) > 1:
                    if b" source: " in line:
                        continue
                    line = _LINE_NUMBER.sub(b"", line)  # noqa: PLW2901
                classes[line] = None
        return list(classes)

    @property
    def has_recordings(self) -> bool:
        """Whether classes are recorded, and no archive is built from them yet."""
        return bool(self._recorded) and self._builder is None

    def wait(self, seconds: float) -> bool:
        """Wait until the archive is built, for measurements; returns whether it exists then."""
        if self._builder is not None:
            self._builder.wait(seconds)
        return self.path.is_file()

    def discard(self) -> None:
        """Delete an archive that may have kept a server from starting."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Delete the recordings; a build that is running finishes by itself."""
        if self._builder is not None and self._builder.alive:
            _finishing.append(self._builder)
        for recording in self._recorded:
            with contextlib.suppress(OSError):
                recording.unlink(missing_ok=True)

    def _prune(self) -> None:
        for path in self.path.parent.iterdir():
            age = time.time() - path.stat().st_mtime
            whole = path.suffix == ".jsa" and path.stem.count(".") == self.path.stem.count(".")
            if age > (_UNUSED_SECONDS if whole else _LEFTOVER_SECONDS):
                path.unlink()
