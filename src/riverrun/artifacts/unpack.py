"""Archives of the cache, unpacked beside it: a folder per archive, complete or absent.

A folder's name holds the archive's digest and what was left out, so another version is another folder. The digests of
its files are kept beside it, and compared at each use: what changed since is unpacked again from the archive.
"""

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from riverrun.errors import ArtifactCorruptError, CacheError

CHECKSUMS_FILE = "SHA256SUMS"
# More than any plugin has; an archive that unpacks to more is not what it says.
MAX_BYTES = 1 << 30


def unpack_archive(archive: Path, parent: Path, *, excluded_prefixes: Iterable[str] = (), flat: bool = False) -> Path:
    """The folder of a `.tar.gz` below `parent`; created when it is missing or changed.

    `excluded_prefixes` are beginnings of file names that are left out. A `flat` archive has its files at the top, others
    have a folder of their own there. The archive has been verified: it is one of a lock file.
    """
    excluded_prefixes = tuple(sorted(excluded_prefixes))
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update("\n".join(excluded_prefixes).encode())
    folder = parent / f"{archive.name.removesuffix('.tar.gz')}-{digest.hexdigest()[:12]}"
    try:
        if not _is_intact(folder):
            _make(folder, archive, excluded_prefixes, flat)
    except OSError as error:
        raise CacheError(
            f"The folder {folder} could not be made: {error.strerror or error}",
            hint="Correct the rights of the cache, or name another folder with artifacts.cache_dir",
            path=folder,
        ) from error
    return folder


def _is_intact(folder: Path) -> bool:
    try:
        sums = (folder / CHECKSUMS_FILE).read_text(encoding="utf-8")
        return all(
            _sha256(folder / name) == digest for digest, name in (line.split("  ", 1) for line in sums.splitlines())
        )
    except (OSError, ValueError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make(folder: Path, archive: Path, excluded_prefixes: tuple[str, ...], flat: bool) -> None:
    """Build it in a temporary folder and rename it; if another process was faster, its folder is the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as temporary:
        new = Path(temporary) / folder.name
        new.mkdir()
        lines = [
            f"{_sha256(path)}  {path.relative_to(new).as_posix()}"
            for path in _extract(archive, new, excluded_prefixes, flat)
        ]
        with (new / CHECKSUMS_FILE).open("w", encoding="utf-8") as sums:
            sums.write("\n".join(sorted(lines)) + "\n")
            sums.flush()
            os.fsync(sums.fileno())
        try:
            new.rename(folder)
        except OSError:
            if not _is_intact(folder):
                # Somebody changed the folder: move it aside, it is deleted with the temporary folder.
                folder.rename(Path(temporary) / "old")
                new.rename(folder)


def _extract(archive: Path, into: Path, excluded_prefixes: tuple[str, ...], flat: bool) -> Iterator[Path]:
    """Extract its plain files ourselves: no link, no device, no owner, no path that leads elsewhere."""
    remaining_bytes = MAX_BYTES
    try:
        with tarfile.open(archive, "r:gz") as members:
            for member in members:
                # The first part is the plugin's own folder; ours has another name.
                parts = PurePosixPath(member.name).parts[0 if flat else 1 :]
                if member.isdir() or not parts or parts[-1].startswith(excluded_prefixes or ("\0",)):
                    continue
                if not member.isfile() or member.name.startswith("/") or ".." in parts or "\n" in member.name:
                    raise _refused(archive, f"it has {member.name!r}, which is no plain file inside of it")
                remaining_bytes -= member.size
                if remaining_bytes < 0:
                    raise _refused(archive, f"it unpacks to more than {MAX_BYTES >> 20} MiB")
                path = into.joinpath(*parts)
                path.parent.mkdir(parents=True, exist_ok=True)
                content = members.extractfile(member)
                if content is not None:
                    with content, path.open("xb") as file:
                        shutil.copyfileobj(content, file, 1 << 20)
                    yield path
    except (tarfile.TarError, EOFError) as error:
        raise _refused(archive, str(error)) from error


def _refused(archive: Path, why: str) -> ArtifactCorruptError:
    return ArtifactCorruptError(f"The archive {archive} cannot be unpacked: {why}", path=archive)
