"""Files that no other user of the machine reads: what is written for servers, and states with keys in them."""

import os
from pathlib import Path


def write_private(path: Path, content: str | bytes) -> None:
    """Make a file that only this user may read, from its first byte on. One that is there is replaced by a new one:
    somebody may have opened it while others could still read it."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def make_private_folder(folder: Path) -> None:
    """Make a folder that only this user may enter; one that is there is closed to others."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
