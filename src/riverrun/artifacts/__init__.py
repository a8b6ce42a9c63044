"""The JVM parts: lock files, the downloader and its cache, and the Java that runs them."""

from riverrun.artifacts.java import Java, find_java
from riverrun.artifacts.lock import Artifact, Lock, lock_names, read_lock
from riverrun.artifacts.progress import Progress
from riverrun.artifacts.sets import cache_folder, fetch

__all__ = [
    "Artifact",
    "Java",
    "Lock",
    "Progress",
    "cache_folder",
    "fetch",
    "find_java",
    "lock_names",
    "read_lock",
]
