"""The files of a rotated log, oldest first: `app.log.2`, `app.log.1`, `app.log`, or `app.log-20261116`, `app.log`."""

import contextlib
import os
import re
from pathlib import Path

_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")
_NUMBER = re.compile(r"[.-](\d{1,5})$")


def rotated_files(path: Path) -> list[Path]:
    """The rotated files of a log and, last, the log itself if it exists. Compressed ones cannot be continued."""
    rotated: list[tuple[tuple[int, float, str], Path]] = []
    with contextlib.suppress(FileNotFoundError), os.scandir(path.parent) as entries:
        for entry in entries:
            ending = entry.name.removeprefix(path.name)
            if ending == entry.name or not ending.startswith((".", "-")) or ending.endswith(_COMPRESSED):
                continue
            with contextlib.suppress(OSError):
                if entry.is_file():
                    rotated.append((_sort_key(ending, entry.stat().st_mtime), path.parent / entry.name))
    files = [entry for _, entry in sorted(rotated)]
    return [*files, path] if path.exists() else files


def _sort_key(ending: str, changed: float) -> tuple[int, float, str]:
    """Sorts rotated files from old to new: numbers fall, dates rise, and anything else goes by its last modification."""
    number = _NUMBER.fullmatch(ending)
    if number is not None:
        return (1, -float(number[1]), ending)
    digits = re.sub(r"\D", "", ending)
    return (0, float(digits) if len(digits) >= 8 else changed, ending)
