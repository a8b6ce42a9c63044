"""Which files a rotated log has, oldest first: `app.log.2`, `app.log.1`, `app.log`, or `app.log-20261116`, `app.log`."""

import contextlib
import os
import re
from pathlib import Path

_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")
_NUMBER = re.compile(r"[.-](\d{1,5})$")


def rotated_files(path: Path) -> list[Path]:
    """The rotated files of a log and, last, the log itself where it is there. Compressed ones cannot be gone on with."""
    rotated: list[tuple[tuple[int, float, str], Path]] = []
    with contextlib.suppress(FileNotFoundError), os.scandir(path.parent) as entries:
        for each in entries:
            ending = each.name.removeprefix(path.name)
            if ending == each.name or not ending.startswith((".", "-")) or ending.endswith(_COMPRESSED):
                continue
            with contextlib.suppress(OSError):
                if each.is_file():
                    rotated.append((_sort_key(ending, each.stat().st_mtime), path.parent / each.name))
    files = [each for _, each in sorted(rotated)]
    return [*files, path] if path.exists() else files


def _sort_key(ending: str, changed: float) -> tuple[int, float, str]:
    """What sorts rotated files from old to new: numbers fall, dates rise, and anything else goes by its last change."""
    number = _NUMBER.fullmatch(ending)
    if number is not None:
        return (1, -float(number[1]), ending)
    digits = re.sub(r"\D", "", ending)
    return (0, float(digits) if len(digits) >= 8 else changed, ending)
