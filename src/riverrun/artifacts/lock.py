"""Lock files: the exact files a server set is made of, one line each, in class-path order.

    # riverrun lock 1
    # anything after a # is for people
    org.apache.kafka:kafka-clients:4.3.1  9923711  0f3a…64 hex digits

Coordinates are `group:name:version`, then `:classifier` if there is one, then `@extension` unless it is a jar. The size is
in bytes, the digest is SHA-256. A lock file is the only thing riverrun believes about a download: whatever a repository
or mirror serves must have this size and this digest. `script/lock` writes them, users never do.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from riverrun.errors import LockFileError, UsageError

FORMAT_LINE = "# riverrun lock 1"
SUFFIX = ".lock"

# One part of a coordinate. It becomes a folder or file name, so it must not be able to leave the cache.
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.+-]*"
_COORDINATES = re.compile(rf"({_PART}):({_PART}):({_PART})(?::({_PART}))?(?:@({_PART}))?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Artifact:
    """One file of a set."""

    group: str
    name: str
    version: str
    size: int
    sha256: str
    classifier: str = ""
    extension: str = "jar"

    @property
    def coordinates(self) -> str:
        """`group:name:version[:classifier][@extension]`, as in the lock file."""
        classifier = f":{self.classifier}" if self.classifier else ""
        extension = f"@{self.extension}" if self.extension != "jar" else ""
        return f"{self.group}:{self.name}:{self.version}{classifier}{extension}"

    @property
    def file_name(self) -> str:
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.version}{classifier}.{self.extension}"

    @property
    def path(self) -> str:
        """Where it is in any Maven repository, with forward slashes."""
        return f"{self.group.replace('.', '/')}/{self.name}/{self.version}/{self.file_name}"

    def __str__(self) -> str:
        return self.coordinates


@dataclass(frozen=True)
class LockFile:
    """All files of a set, in class-path order."""

    name: str
    artifacts: tuple[Artifact, ...]

    @property
    def total_size(self) -> int:
        return sum(artifact.size for artifact in self.artifacts)


def lock_folder() -> Path:
    """The lock files that came with riverrun."""
    return Path(__file__).parent / "locks"


def lock_names() -> list[str]:
    """The sets riverrun knows, sorted."""
    return sorted(path.stem for path in lock_folder().glob(f"*{SUFFIX}"))


def read_lock(name: str) -> LockFile:
    """The set of this name that came with riverrun."""
    path = lock_folder() / f"{name}{SUFFIX}"
    if name not in lock_names():
        known = lock_names()
        close = difflib.get_close_matches(name, known, n=1)
        raise UsageError(
            f"There is no set {name!r}",
            expected=f"one of {', '.join(known)}",
            hint=f"The nearest is {close[0]!r}" if close else "",
            set=name,
        )
    return read_lock_file(path)


def read_lock_file(path: Path) -> LockFile:
    """The set in a lock file; it has the file's name."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise LockFileError(f"The lock file {path} cannot be read: {reason}", path=path) from error
    return parse_lock(path.stem, text, where=str(path))


def parse_lock(name: str, text: str, *, where: str) -> LockFile:
    """Read a lock file's text. Any doubt is an error: a lock file that is half understood verifies nothing."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != FORMAT_LINE:
        raise LockFileError(
            f"{where} is not a lock file this riverrun can read",
            expected=f"{FORMAT_LINE!r} as its first line",
            found=repr(lines[0][:80]) if lines else "an empty file",
            hint="Install riverrun again, or make the file with script/lock",
            path=where,
        )
    artifacts: list[Artifact] = []
    first_lines: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        content = line.partition("#")[0].split()
        if not content:
            continue
        artifact = _parse_line(content, f"{where}:{number}")
        if first := first_lines.get(artifact.path):
            raise LockFileError(
                f"{where}:{number} names {artifact} again; line {first} has it", path=where, line=number
            )
        first_lines[artifact.path] = number
        artifacts.append(artifact)
    if not artifacts:
        raise LockFileError(f"{where} names no files", hint="Make it again with script/lock", path=where)
    return LockFile(name, tuple(artifacts))


def _parse_line(content: Sequence[str], location: str) -> Artifact:
    if len(content) != 3:
        raise LockFileError(
            f"{location} cannot be understood", expected="coordinates, size and SHA-256", found=repr(" ".join(content))
        )
    coordinates, size, sha256 = content
    match = _COORDINATES.fullmatch(coordinates)
    if match is None or ".." in coordinates:
        raise LockFileError(
            f"{location} has coordinates that are none",
            expected="group:name:version[:classifier][@extension]",
            found=repr(coordinates),
        )
    if not size.isascii() or not size.isdigit():
        raise LockFileError(f"{location} has a size that is none", expected="a number of bytes", found=repr(size))
    if not _SHA256.fullmatch(sha256):
        raise LockFileError(f"{location} has a digest that is none", expected="64 hex digits", found=repr(sha256))
    group, name, version, classifier, extension = match.groups()
    return Artifact(group, name, version, int(size), sha256, classifier or "", extension or "jar")


def format_lock(lock: LockFile, *, remarks: Iterable[str] = ()) -> str:
    """The text of a lock file, the same for the same set; remarks go on top.

    Columns have fixed places, so that a new file with a long name does not change the other lines.
    """
    lines = [
        FORMAT_LINE,
        *(f"# {remark}".rstrip() for remark in remarks),
        f"# {len(lock.artifacts)} files, {lock.total_size} bytes",
        *(f"{artifact.coordinates:<72} {artifact.size:>10}  {artifact.sha256}" for artifact in lock.artifacts),
    ]
    return "\n".join(lines) + "\n"
