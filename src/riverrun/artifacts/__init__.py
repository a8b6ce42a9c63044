"""The JVM jars: lock files, the downloader and its cache, and the Java that runs them."""

from riverrun.artifacts.cache import CacheCheck, CacheStatus, cache_folder
from riverrun.artifacts.java import Java, check_java, find_java
from riverrun.artifacts.lock import Artifact, LockFile, lock_names, read_lock
from riverrun.artifacts.progress import FetchProgress
from riverrun.artifacts.sets import FetchResult, check_set, fetch, fetch_set
from riverrun.artifacts.spark_java import spark_java_home

__all__ = [
    "Artifact",
    "CacheCheck",
    "CacheStatus",
    "FetchProgress",
    "FetchResult",
    "Java",
    "LockFile",
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
