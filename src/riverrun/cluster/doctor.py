"""The checks of `riverrun doctor`. Each says ok, or what is wrong and what to do; none of them changes anything."""

import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from riverrun._version import __version__
from riverrun.artifacts import CacheStatus, cache_folder, check_java, check_set, find_java, read_lock
from riverrun.artifacts.java import MIN_JAVA_VERSION
from riverrun.cluster.connect.jars import ALL_SETS as CONNECT_SETS
from riverrun.cluster.connect.probe import is_ready
from riverrun.cluster.druid.jars import ALL_SETS, BASE_SET
from riverrun.cluster.druid.local import FIRST_PORT as FIRST_DRUID_PORT
from riverrun.cluster.druid.plan import DruidPlan
from riverrun.cluster.druid.probe import answers_sql
from riverrun.cluster.home import MIN_FREE_MB
from riverrun.cluster.kafka.local import FIRST_PORT
from riverrun.cluster.ports import holder_of, is_free
from riverrun.cluster.registry.jars import PROGRAM as REGISTRY_PROGRAM
from riverrun.cluster.registry.jars import SET as REGISTRY_SET
from riverrun.config import LoadedSettings
from riverrun.config.run_state import running_state
from riverrun.errors import RiverrunError, not_installed

# What a broker needs besides its heap: measured at 120 to 160 MiB.
JVM_EXTRA_MB = 180
# The same for each of Druid's six servers, which share their classes.
DRUID_EXTRA_MB = 100
DRUID_SERVERS = 6
COMFORTABLE_FREE_MB = 1024
MIN_OPEN_FILES = 4096
# The version that riverrun[spark] in pyproject.toml names; a test compares the two.
PYSPARK = "4.3.0"


@dataclass(frozen=True)
class Finding:
    """One line: `state` is ok, warn or fail; `todo` is empty when there is nothing to do."""

    check: str
    state: str
    found: str
    todo: str = ""


def run_checks(load: Callable[[], LoadedSettings]) -> Iterator[Finding]:
    """All findings, one by one as they are made: some of them take seconds."""
    yield from _versions()
    try:
        loaded = load()
    except RiverrunError as error:
        yield _failed("configuration", error)
        return
    yield _configuration(loaded)
    java = _java(loaded)
    yield java
    yield _spark(java)
    yield from _artifacts(loaded)
    if _runs_druid(loaded):
        yield _druid_jars(loaded)
    if _runs_connect(loaded):
        yield _connect_jars(loaded)
    if _runs_registry(loaded):
        yield _set_jars(loaded, "registry jars", "Apicurio Registry", [REGISTRY_SET], (REGISTRY_SET, REGISTRY_PROGRAM))
    yield _memory(loaded)
    yield _disk("disk", loaded.project.root, "the project")
    yield _disk("cache disk", cache_folder(loaded.settings.artifacts), "the cache")
    yield _open_files()
    if not loaded.attached:
        yield _port(loaded)
    yield _cluster(loaded)
    if _runs_druid(loaded):
        yield _druid_port(loaded)
    if loaded.settings.connect.url or _runs_connect(loaded):
        yield _connect(loaded)
    if loaded.settings.registry.url or _runs_registry(loaded):
        yield _registry(loaded)


def _failed(check: str, error: RiverrunError) -> Finding:
    detail = f" (found {error.found})" if error.found else ""
    return Finding(check, "fail", f"{error.code}: {error.what}{detail}", error.hint)


def _versions() -> Iterator[Finding]:
    supported = sys.version_info >= (3, 11)
    yield Finding(
        "python",
        "ok" if supported else "fail",
        f"{platform.python_version()} in {sys.prefix}",
        "" if supported else "Use Python 3.11 or newer",
    )
    yield Finding("riverrun", "ok", __version__)
    try:
        from riverrun.kafka.probe import client_versions

        client, library = client_versions()
    except ImportError as error:
        yield Finding("kafka client", "fail", f"it cannot be imported: {error}", "Run `pip install confluent-kafka`")
    else:
        yield Finding("kafka client", "ok", f"confluent-kafka {client}, librdkafka {library}")


def _configuration(loaded: LoadedSettings) -> Finding:
    file = loaded.project.config_file
    return Finding("configuration", "ok", str(file) if file.is_file() else f"none in {loaded.project.root}; defaults")


def _java(loaded: LoadedSettings) -> Finding:
    try:
        java = find_java(loaded.settings.java)
        check_java(java)
    except RiverrunError as error:
        return _failed("java", error)
    found = f"{java.full_version} in {java.home} ({java.source})"
    if java.skipped:
        return Finding("java", "warn", f"{found}; passed over {'; '.join(java.skipped)}", "Correct or remove those")
    return Finding("java", "ok", found)


def _spark(java: Finding) -> Finding:
    """Checks what streams need. Nothing else needs it, so a machine without it is fit; PySpark itself is not imported
    (0.3 s)."""
    try:
        installed = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        missing = not_installed(ImportError(name="pyspark"))
        return Finding("spark", "warn", f"{missing.what}: there are no streams without it", missing.hint)
    if installed != PYSPARK:
        # The Kafka jars beside it and real time's dependencies are of one version; another patch of the same minor one
        # may do.
        state = "warn" if installed.split(".")[:2] == PYSPARK.split(".")[:2] else "fail"
        found = f"PySpark {installed}, and riverrun is made for {PYSPARK}"
        return Finding("spark", state, found, f"Install that one: pip install pyspark=={PYSPARK}")
    if java.state == "fail":
        return Finding(
            "spark", "fail", f"PySpark {installed}, and no Java {MIN_JAVA_VERSION} or newer to run it", "See java above"
        )
    return Finding("spark", "ok", f"PySpark {installed}, on the Java above")


def _artifacts(loaded: LoadedSettings) -> Iterator[Finding]:
    settings = loaded.settings.artifacts
    try:
        lock = read_lock("kafka")
        version = next(artifact.version for artifact in lock.artifacts if artifact.name == "kafka-clients")
        checked = check_set("kafka", settings)
    except RiverrunError as error:
        yield _failed("kafka jars", error)
        return
    counts = {state: sum(artifact.status is state for artifact in checked) for state in CacheStatus}
    missing = counts[CacheStatus.MISSING]
    if counts[CacheStatus.CORRUPT]:
        names = ", ".join(artifact.path.name for artifact in checked if artifact.status is CacheStatus.CORRUPT)
        yield Finding(
            "kafka jars", "fail", f"changed since they were fetched: {names}", "Run `riverrun fetch --repair`"
        )
    elif missing:
        state, todo = ("fail", "Set artifacts.offline to false") if settings.offline else ("warn", "")
        todo = todo or "Nothing: `riverrun up` fetches them. `riverrun fetch kafka` does so now"
        yield Finding("kafka jars", state, f"Kafka {version}: {missing} of {len(checked)} files are missing", todo)
    else:
        yield Finding("kafka jars", "ok", f"Kafka {version}: {len(checked)} files in {cache_folder(settings)}")
    yield _repository(loaded, needed=bool(missing or counts[CacheStatus.CORRUPT]))


def _runs_druid(loaded: LoadedSettings) -> bool:
    """Whether this project runs a Druid here, or would."""
    state = running_state(loaded.project)
    running = state is not None and bool(state.settings.get("druid"))
    return running or (loaded.settings.store.kind == "druid" and not loaded.druid_attached and not loaded.attached)


def _druid_jars(loaded: LoadedSettings) -> Finding:
    return _set_jars(loaded, "druid jars", "Druid", ALL_SETS, (BASE_SET, "druid-services"))


def _set_jars(loaded: LoadedSettings, check: str, called: str, sets: Sequence[str], named: tuple[str, str]) -> Finding:
    """The files of several sets; `named` is the set and its file whose name has the version."""
    settings = loaded.settings.artifacts
    try:
        version = next(artifact.version for artifact in read_lock(named[0]).artifacts if artifact.name == named[1])
        checked = [artifact for name in sets for artifact in check_set(name, settings)]
    except RiverrunError as error:
        return _failed(check, error)
    corrupt = [artifact.path.name for artifact in checked if artifact.status is CacheStatus.CORRUPT]
    missing = sum(artifact.status is CacheStatus.MISSING for artifact in checked)
    if corrupt:
        found = f"changed since they were fetched: {', '.join(corrupt)}"
        return Finding(check, "fail", found, "Run `riverrun fetch --repair`")
    if missing:
        state, todo = ("fail", "Set artifacts.offline to false") if settings.offline else ("warn", "")
        todo = todo or f"Nothing: `riverrun up` fetches them. `riverrun fetch {' '.join(sets)}` does so now"
        return Finding(check, state, f"{called} {version}: {missing} of {len(checked)} files are missing", todo)
    return Finding(check, "ok", f"{called} {version}: {len(checked)} files in {cache_folder(settings)}")


def _runs_connect(loaded: LoadedSettings) -> bool:
    """Whether this project runs a Kafka Connect here."""
    state = running_state(loaded.project)
    return state is not None and bool(state.settings.get("connect"))


def _connect_jars(loaded: LoadedSettings) -> Finding:
    return _set_jars(loaded, "connect jars", "Kafka Connect", CONNECT_SETS, ("connect", "connect-runtime"))


def _connect(loaded: LoadedSettings) -> Finding:
    """Whether it answers. The state of its connectors is in `riverrun connect status`."""
    connect = loaded.settings.connect
    if not connect.url:
        return Finding("connect", "warn", "it is starting", "Wait, or see `riverrun logs connect`")
    if is_ready(
        connect.url, connect.username, connect.password.reveal(), loaded.settings.kafka.request_timeout_seconds
    ):
        return Finding("connect", "ok", f"{connect.url} answers")
    todo = (
        "See connect.url and its login"
        if loaded.connect_attached
        else "See `riverrun status` and `riverrun logs connect`"
    )
    return Finding("connect", "fail", f"{connect.url} does not answer as one that is ready", todo)


def _runs_registry(loaded: LoadedSettings) -> bool:
    """Whether this project runs a schema registry here."""
    state = running_state(loaded.project)
    return state is not None and bool(state.settings.get("registry"))


def _registry(loaded: LoadedSettings) -> Finding:
    """Whether it answers with our login. Its content is in `riverrun registry list`."""
    registry = loaded.settings.registry
    if not registry.url:
        return Finding("registry", "warn", "it is starting", "Wait, or see `riverrun logs registry`")
    from riverrun.kafka.registry.client import registry_of

    try:
        count = len(registry_of(registry).subjects())
    except RiverrunError as error:
        return _failed("registry", error)
    return Finding("registry", "ok", f"{registry.url} answers; it has {count} subject{'s' if count != 1 else ''}")


def _druid_port(loaded: LoadedSettings) -> Finding:
    state = running_state(loaded.project)
    if state is not None and state.druid_url:
        answers = answers_sql(int(state.druid_url.rpartition(":")[2]), loaded.settings.kafka.request_timeout_seconds)
        if answers:
            return Finding("druid", "ok", f"{state.druid_url} answers SQL")
        return Finding("druid", "fail", f"{state.druid_url} does not answer SQL", "See `riverrun status` and its logs")
    if state is not None:
        return Finding("druid", "warn", "it is starting", "Wait, or see `riverrun logs druid-router`")
    port = loaded.settings.druid.port or FIRST_DRUID_PORT
    if is_free(port):
        return Finding("druid", "ok", f"it does not run; its port {port} is free")
    holder = holder_of(port) or "a process that we may not see"
    if loaded.settings.druid.port:
        return Finding("druid", "fail", f"its port {port} is taken by {holder}", "Stop that, or set druid.port to 0")
    return Finding("druid", "ok", f"its port {port} is taken by {holder}; `riverrun up` takes the next free one")


def _repository(loaded: LoadedSettings, *, needed: bool) -> Finding:
    from riverrun.artifacts.repository_check import check_repository

    if loaded.settings.artifacts.offline:
        return Finding("repository", "ok", "not asked: artifacts.offline is set")
    try:
        repository = check_repository("kafka", loaded.settings.artifacts)
    except RiverrunError as error:
        failed = _failed("repository", error)
        # Only a remark if nothing needs it: everything is cached.
        return failed if needed else Finding("repository", "warn", failed.found, failed.todo)
    return Finding("repository", "ok", f"{repository} answers")


def _memory(loaded: LoadedSettings) -> Finding:
    import psutil

    kafka = loaded.settings.kafka
    memory = psutil.virtual_memory()
    available, total = int(memory.available) >> 20, int(memory.total) >> 20
    found = f"{available} of {total} MiB available"
    if loaded.attached or running_state(loaded.project) is not None:
        return Finding("memory", "ok", found)
    nodes = kafka.brokers + kafka.controllers
    needed = nodes * (kafka.heap_mb + JVM_EXTRA_MB)
    found += f"; {nodes} server{'s' if nodes > 1 else ''} of {kafka.heap_mb} MiB heap need about {needed}"
    if _runs_druid(loaded):
        try:
            druid = DruidPlan.of(loaded.settings.druid).memory_mb + DRUID_SERVERS * DRUID_EXTRA_MB
        except RiverrunError as error:
            return _failed("memory", error)
        needed += druid
        found += f", Druid about {druid}"
    if needed > total:
        return Finding("memory", "fail", found, "Run fewer brokers (kafka.brokers) or smaller ones (kafka.heap_mb)")
    if needed > available:
        return Finding("memory", "warn", found, "End other programs, or run fewer or smaller brokers")
    return Finding("memory", "ok", found)


def _disk(check: str, folder: Path, whose: str) -> Finding:
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free >> 20
    found = f"{free} MiB free for {whose} in {folder}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding(check, "fail", f"{folder} may not be written by this user", "Change its rights or owner")
    if free < MIN_FREE_MB:
        return Finding(check, "fail", found, "Free some space")
    if free < COMFORTABLE_FREE_MB:
        return Finding(check, "warn", found, "Free some space, or keep records for a shorter time")
    return Finding(check, "ok", found)


def _open_files() -> Finding:
    # Java raises its own limit to the hard one.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < MIN_OPEN_FILES:
        return Finding(
            "open files",
            "warn",
            f"a process may open {hard}",
            f"Raise it (ulimit -Hn {MIN_OPEN_FILES}) for many partitions",
        )
    return Finding("open files", "ok", f"a process may open {'any number' if hard == resource.RLIM_INFINITY else hard}")


def _port(loaded: LoadedSettings) -> Finding:
    state = running_state(loaded.project)
    if state is not None and state.bootstrap_servers:
        return Finding("port", "ok", f"our Kafka listens on {state.bootstrap_servers}")
    configured_port = loaded.settings.kafka.port
    port = configured_port or FIRST_PORT
    if is_free(port):
        return Finding("port", "ok", f"{port} is free")
    holder = holder_of(port) or "a process that we may not see"
    if configured_port:
        return Finding("port", "fail", f"{port} is taken by {holder}", "Stop that process, or set kafka.port to 0")
    return Finding("port", "ok", f"{port} is taken by {holder}; `riverrun up` takes the next free one")


def _cluster(loaded: LoadedSettings) -> Finding:
    from riverrun.kafka.connection import Connection
    from riverrun.kafka.probe import ClusterProbe

    kafka = loaded.settings.kafka
    if not kafka.bootstrap_servers:
        return Finding("cluster", "ok", "none runs for this project")
    try:
        cluster = ClusterProbe(Connection(kafka).properties()).fetch_metadata(kafka.request_timeout_seconds)
    except RiverrunError as error:
        return _failed("cluster", error)
    count = len(cluster.brokers)
    found = f"{kafka.bootstrap_servers} answers: {count} broker{'s' if count != 1 else ''}"
    state = running_state(loaded.project)
    if not loaded.attached and state is not None and state.state == "degraded":
        down = ", ".join(f"{server.name} ({server.detail})" for server in state.servers if server.state != "ready")
        return Finding("cluster", "warn", f"{found}; down: {down}", "See `riverrun logs`")
    return Finding("cluster", "ok", found)
