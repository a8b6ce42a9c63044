"""What still runs when everything should be over."""

import os
from pathlib import Path

import psutil


def left_behind(folder: Path) -> list[str]:
    """Processes other than this one that work in a folder, or were given a path in it."""
    found = []
    for each in psutil.process_iter(["pid", "cwd", "cmdline"]):
        words = [each.info["cwd"] or "", *(each.info["cmdline"] or [])]
        if each.info["pid"] != os.getpid() and any(str(folder) in word for word in words):
            found.append(" ".join(words)[:200])
    return found
