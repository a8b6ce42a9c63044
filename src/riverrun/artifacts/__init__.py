"""The JVM parts: lock files, the downloader and its cache, and the Java that runs them."""

from riverrun.artifacts.cache import Checked, State, cache_folder
from riverrun.artifacts.java import Java, check_java, find_java
from riverrun.artifacts.lock import Artifact, Lock, lock_names, read_lock
from riverrun.artifacts.progress import Progress
from riverrun.artifacts.sets import Fetched, check_set, fetch, fetch_set
from riverrun.artifacts.spark_java import spark_java_home

__all__ = [
    "Artifact",
    "Checked",
    "Fetched",
    "Java",
    "Lock",
    "Progress",
    "State",
    "cache_folder",
    "check_java",
    "check_set",
    "fetch",
    "fetch_set",
    "find_java",
    "lock_names",
    "read_lock",
    "spark_java_home",
]
