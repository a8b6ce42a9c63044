"""The folders of servers, and the checks that they can be used: `.riverrun/` of a project, or any folder a test passes."""

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from riverrun.config.private_files import make_private_folder
from riverrun.errors import ClusterError, DataDirectoryError, DiskFullError

# A broker that starts with less fails soon after, in worse ways.
MIN_FREE_MB = 64


@dataclass(frozen=True)
class ClusterHome:
    """Where a cluster's files are; nothing is created until `make`."""

    root: Path

    @property
    def data(self) -> Path:
        """What must survive a restart."""
        return self.root / "data"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def run(self) -> Path:
        """What is true only while servers run."""
        return self.root / "run"

    def make(self) -> None:
        """Create the folders; refuse those that cannot be written and a full disk."""
        for folder in (self.root, self.data, self.logs, self.run):
            make_folder(folder)
        # The user's properties may be secrets.
        make_private_folder(self.run)
        check_space(self.data)


def make_folder(folder: Path) -> None:
    """Create a folder and write to it once, so that wrong permissions or a full disk are reported now and by name."""
    probe = folder / f".write-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with probe.open("wb") as file:
            file.write(b"riverrun")
            file.flush()
            os.fsync(file.fileno())
        probe.unlink()
    except OSError as error:
        raise folder_error(error, folder) from error


def check_space(folder: Path, min_mb: int = MIN_FREE_MB) -> None:
    free_mb = shutil.disk_usage(folder).free // (1 << 20)
    if free_mb < min_mb:
        raise DiskFullError(
            f"The disk of {folder} has too little room for a broker",
            expected=f"at least {min_mb} MiB free",
            found=f"{free_mb} MiB",
            hint="Free some space, or put the project on another disk",
            path=folder,
            free_mb=free_mb,
        )


def folder_error(error: OSError, folder: Path) -> ClusterError:
    """Our error for an OSError about a folder."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"The disk of {folder} is full",
            found=error.strerror or str(error),
            hint="Free some space, or put the project on another disk",
            path=folder,
        )
    reasons = {
        errno.EACCES: ("this user may not write there", "Change its owner or rights, or use another project folder"),
        errno.EPERM: ("this user may not write there", "Change its owner or rights, or use another project folder"),
        errno.EROFS: ("its file system is read-only", "Use a project folder on a disk that can be written"),
        errno.EEXIST: ("a file with that name is in the way", "Move that file away"),
        errno.ENOTDIR: ("a file is where a folder should be", "Move that file away"),
    }
    reason, hint = reasons.get(error.errno or 0, (error.strerror or str(error), "Check the folder"))
    return DataDirectoryError(f"The folder {folder} cannot be used: {reason}", hint=hint, path=folder)
