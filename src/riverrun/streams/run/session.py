"""One Spark session for all streams of a process: the right Java and jars, a log file, and all settings.

Settings are passed to Spark's launcher in a file that only the user can read: everybody can see a command line.
"""

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.artifacts import cache_folder
from riverrun.artifacts.java import find_java
from riverrun.artifacts.sets import fetch
from riverrun.artifacts.spark_java import spark_java_home
from riverrun.config import Settings
from riverrun.errors import SparkUnavailableError, not_installed
from riverrun.streams.checkpoint_files import local_folder
from riverrun.streams.run.class_archive import archive_options, close_archive, drop_archive
from riverrun.streams.run.spark_cluster import check_spark_settings, is_local_master, master_of, worker_python
from riverrun.streams.run.worker_launcher import driver_path, write_worker_launcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How long Spark may take to stop, and its JVM to exit after that.
STOP_SECONDS = 30.0
EXIT_SECONDS = 30.0
# Times that a Python class keeps in state come back in the time zone of the JVM and the worker (state_timezones.py): UTC has
# no hour twice.
_UTC = "-Duser.timezone=UTC"
# Settings that are lists, and their separators.
_LIST_SEPARATORS = {
    "spark.driver.extraJavaOptions": " ",
    "spark.executor.extraJavaOptions": " ",
    "spark.driver.extraClassPath": os.pathsep,
    "spark.jars": ",",
}
# Hadoop's own local file system starts a process for every permission that it sets, many times a batch; this one calls the
# kernel. It needs Spark's second checkpoint manager: the first uses classes of Hadoop's that no setting changes.
LOCAL_FILES = {
    "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
}
# Java's second compiler makes code twice as fast and takes a core for the first minute: too much for short runs.
_ONE_JIT_COMPILER = "-XX:TieredStopAtLevel=1"
_FEW_CORES = 4
# A task is slow until Java has compiled its code, and real-time mode has more tasks than there are cores: the two compilers
# would get a tenth of the machine. With these flags Linux gives threads of Java priority 4 less time than the compilers; all
# of Spark's threads get it (`_prioritize_jit`). Without root a thread's priority can only be lowered.
_JIT_PRIORITY = "-XX:ThreadPriorityPolicy=1 -XX:JavaPriority4_To_OSPriority=5 -XX:CompilerThreadPriority=0"
_BELOW_JIT_PRIORITY = 4
# With few cores this collector costs less than one with threads of its own.
_SERIAL_GC = "-XX:+UseSerialGC"
# A JVM with a full heap gets slow and then unreliable. It exits with this code, and `check_spark_alive` says why.
_EXIT_ON_OUT_OF_MEMORY = "-XX:+ExitOnOutOfMemoryError"
_OUT_OF_MEMORY_EXIT_CODE = 3
STATE_MEMORY_MB = "256"
# The most shuffle partitions that are chosen automatically: each stateful operator has a RocksDB for each of them.
MOST_PARTITIONS = 64
IDLE_POLL = "100ms"
# JVMs that have not reported their port yet.
_launching: list["subprocess.Popen[bytes]"] = []
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {path}
appender.file.filePattern = {path}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} %-5p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 32MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""


def require_pyspark() -> None:
    """Raise an error that says how to install PySpark, before modules that need it are imported."""
    if find_spec("pyspark") is None:
        raise not_installed(ImportError(name="pyspark"))


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shuffle_partitions(settings: Settings, slots: int = 0) -> int:
    """The number of shuffle partitions. Without a setting: on this machine as measured in docs/decisions/0007-streams.md;
    on a cluster half of the executors' `slots`, so that readers and other streams have some as well, or 8 while these are
    not known."""
    if settings.spark.shuffle_partitions:
        return settings.spark.shuffle_partitions
    if not is_local_master(master_of(settings)):
        return min(MOST_PARTITIONS, max(2, slots // 2)) if slots else 8
    return min(8, max(2, cores()))


def start_session(
    settings: Settings,
    folder: Path,
    *,
    name: str,
    slots: int = 0,
    brief: bool = False,
    extra: Mapping[str, str] | None = None,
    check_wanted: Callable[[], None] = lambda: None,
) -> "SparkSession":
    """Start Spark, with its files below `folder`. `slots` is how many tasks run at once when Spark is on this machine.

    `brief` is for sessions that last less than a minute: with few cores Java then compiles less. `check_wanted` is called
    before a JVM is started, which may be minutes later, after a download: it raises if the session is no longer wanted.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark import SparkContext
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise not_installed(error) from error
    _silence_pyspark_logs()
    check_spark_settings(settings)
    if SparkContext._active_spark_context is not None:  # noqa: SLF001
        # One session per process: reading the pipeline file may have started it already.
        return SparkSession.builder.getOrCreate()
    java = find_java(settings.java)
    cache = cache_folder(settings.artifacts)
    home = spark_java_home(java, cache)
    jars = fetch("spark-kafka", settings.artifacts)
    check_wanted()
    for needed in (folder, folder / "tmp"):
        needed.mkdir(parents=True, exist_ok=True)
    defaults = _properties(settings, folder, name, slots or cores(), jars)
    if brief:
        defaults = _merge_properties(defaults, fast_start_options(defaults["spark.master"]))
    archive_flags = archive_options(java, jars, cache, folder) if is_local_master(defaults["spark.master"]) else []
    properties = _merge_properties(
        defaults, {"spark.driver.extraJavaOptions": " ".join(archive_flags)}, settings.spark.config, extra or {}
    )
    try:
        return _start(SparkContext, SparkSession, properties, home, folder)
    except (PySparkException, OSError, RuntimeError, Py4JError) as error:
        check_wanted()
        if not drop_archive():
            raise _start_error(error, folder) from error
    try:
        return _start(
            SparkContext, SparkSession, _merge_properties(defaults, settings.spark.config, extra or {}), home, folder
        )
    except (PySparkException, OSError, RuntimeError, Py4JError) as error:
        raise _start_error(error, folder) from error


def _start(
    context: Any, session: "type[SparkSession]", properties: Mapping[str, str], home: Path, folder: Path
) -> "SparkSession":
    with tempfile.TemporaryDirectory(prefix="riverrun-spark-") as private:
        file = Path(private) / "spark.properties"
        file.touch(mode=0o600)
        file.write_text(_format(properties), encoding="utf-8")
        # PySpark takes the workers' Python from the environment, not from the setting.
        environment = {"PYSPARK_PYTHON": properties["spark.pyspark.python"]}
        if is_local_master(properties["spark.master"]):
            environment["PYSPARK_PYTHON"] = str(write_worker_launcher(folder / "python", environment["PYSPARK_PYTHON"]))
        else:
            environment["PYTHONPATH"] = driver_path(folder / "driver-python")
        arguments = f"--properties-file {file} pyspark-shell"
        # By default glibc keeps an arena for each of many threads, which RocksDB and Java's compilers fill and free.
        arenas = os.environ.get("MALLOC_ARENA_MAX", "2")
        with _environment(JAVA_HOME=str(home), PYSPARK_SUBMIT_ARGS=arguments, MALLOC_ARENA_MAX=arenas, **environment):
            _launch(context, folder / "spark.out")
            _prioritize_jit(context)
            return session.builder.getOrCreate()


def _merge_properties(*sources: Mapping[str, str]) -> dict[str, str]:
    """Merge settings: the later wins, except for lists, where the values are joined."""
    merged: dict[str, str] = {}
    for source in sources:
        for name, value in source.items():
            separator = _LIST_SEPARATORS.get(name)
            merged[name] = (
                f"{merged[name]}{separator}{value}"
                if separator and merged.get(name) and value
                else value or merged.get(name, "")
            )
    return merged


def fast_start_options(master: str) -> dict[str, str]:
    """Settings for sessions that last less than a minute; none if there are cores for both compilers."""
    few = is_local_master(master) and cores() <= _FEW_CORES
    return {"spark.driver.extraJavaOptions": _ONE_JIT_COMPILER} if few else {}


def is_local(session: "SparkSession") -> bool:
    """Whether Spark runs in a single JVM of ours on this machine."""
    return is_local_master(session.sparkContext.master or "")


def kill_spark() -> None:
    """Kill Spark's JVM, so that no call waits for it any more; also one that is still starting. `stop_session` must
    still be called if there is a session."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
    if process is not None:
        process.kill()
    for launching in _launching:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launching.pid, signal.SIGKILL)


def stop_session(session: "SparkSession") -> None:
    """Stop Spark and its JVM: ask, wait, then kill. A JVM that is gone already is no problem."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001

    def end() -> None:
        with contextlib.suppress(Py4JError, OSError):
            session.stop()
        if gateway is not None:
            with contextlib.suppress(Py4JError, OSError):
                gateway.shutdown()

    # A thread has its own connection to the JVM. The caller's is unusable if a signal interrupted a call: the next call
    # would wait for an answer that never comes.
    stopper = threading.Thread(target=end, name="stop-spark", daemon=True)
    stopper.start()
    stopper.join(STOP_SECONDS)
    if gateway is not None:
        process = getattr(gateway, "proc", None)
        if process is not None:
            # It exits when its stdin is closed.
            process.stdin.close()
            try:
                process.wait(EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    close_archive()


def is_spark_alive() -> bool:
    """Whether Spark's process runs."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
    return process is None or process.poll() is None


class SparkJobProgress:
    """How far the Spark jobs of a session are, as text; empty when none runs. It may be called at any time."""

    def __init__(self, spark: "SparkSession") -> None:
        self._tracker: Any = spark.sparkContext.statusTracker()

    def __call__(self) -> str:
        try:
            stages = [self._tracker.getStageInfo(stage_id) for stage_id in self._tracker.getActiveStageIds()]
        except Exception:  # noqa: BLE001  -- Spark is about to end, or has
            return ""
        known = [stage for stage in stages if stage is not None]
        if not known:
            return ""
        return f"{sum(stage.numCompletedTasks for stage in known)} of {sum(stage.numTasks for stage in known)} tasks"


def check_spark_alive(folder: Path) -> None:
    """SparkUnavailableError if Spark's process has ended by itself: no query can be restarted in a JVM that is gone."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
    code = process.poll() if process is not None else None
    if code is None:
        return
    if code == _OUT_OF_MEMORY_EXIT_CODE:
        raise SparkUnavailableError(
            "Spark's process has ended: its heap was full",
            hint="Give it more by the setting spark.driver_memory_mb, and start it again: the streams go on from where they "
            f"were. Its log is {folder / 'spark.log'}",
            folder=str(folder),
        )
    killed = "by the system for want of memory, or by somebody" if code == -signal.SIGKILL else ""
    raise SparkUnavailableError(
        "Spark's process has ended",
        found=f"signal {-code}{f': killed {killed}' if killed else ''}" if code < 0 else f"exit code {code}",
        hint=f"Start it again: the streams go on from where they were. Its output is in {folder / 'spark.out'}, its log in "
        f"{folder / 'spark.log'}; its memory is the setting spark.driver_memory_mb",
        folder=str(folder),
    )


def _not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


def _silence_pyspark_logs() -> None:
    """Turn off PySpark's logs: it also writes every error that it raises to stderr, with the plan and the JVM's stack."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    # Also errors of callbacks, with their traceback: `failures` explains them.
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    # Py4J reports a call that was interrupted because Spark is gone through the root logger.
    logging.getLogger().addFilter(_not_py4j)


@contextlib.contextmanager
def _patched(module: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _launch(context: type, output: Path) -> None:
    """Start the JVM. Its output goes to a file, not to the terminal."""
    from pyspark import java_gateway

    def recorded(*arguments: Any, **options: Any) -> "subprocess.Popen[bytes]":
        _launching.append(subprocess.Popen(*arguments, **options))
        return _launching[-1]

    with output.open("ab") as sink, _patched(java_gateway, "Popen", recorded):
        # A process session of its own: signals to our process group must not reach the JVM, which ends when we do.
        options = {"stdout": sink, "stderr": sink, "start_new_session": True}
        try:
            gateway = java_gateway.launch_gateway(None, options)  # type: ignore[no-untyped-call]
        except BaseException:
            # PySpark deletes the file that a starting JVM reports its port in: that JVM would never exit.
            for launching in _launching:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(launching.pid, signal.SIGKILL)
                launching.wait()
            _launching.clear()
            raise
    context._ensure_initialized(gateway=gateway)  # type: ignore[attr-defined]  # noqa: SLF001
    # From here on PySpark manages the JVM.
    _launching.clear()


def _prioritize_jit(context: Any) -> None:
    """Give all threads that Java starts from here on a lower priority than its compilers, which run already."""
    if sys.platform == "linux":
        context._jvm.java.lang.Thread.currentThread().getThreadGroup().setMaxPriority(_BELOW_JIT_PRIORITY)  # noqa: SLF001


def _start_error(error: Exception, folder: Path) -> SparkUnavailableError:
    output = folder / "spark.out"
    last_lines = output.read_text(errors="replace").splitlines()[-5:] if output.exists() else []
    return SparkUnavailableError(
        "Spark did not start",
        found=str(error).partition("\n")[0][:300],
        hint=f"Its output is in {output}, its log in {folder / 'spark.log'}",
        lines=last_lines,
        folder=str(folder),
    )


def _properties(settings: Settings, folder: Path, name: str, slots: int, jars: list[Path]) -> dict[str, str]:
    log = folder / "spark.log"
    logging_file = folder / "log4j2.properties"
    logging_file.write_text(_LOG4J.format(path=log), encoding="utf-8")
    properties = {
        "spark.app.name": f"riverrun {name}",
        "spark.master": master_of(settings) or f"local[{slots}]",
        "spark.driver.memory": f"{settings.spark.driver_memory_mb}m",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{logging_file} "
        f"-Dderby.system.home={folder / 'tmp'} {_UTC}",
        "spark.executor.extraJavaOptions": _UTC,
        "spark.executorEnv.TZ": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder / "tmp"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(shuffle_partitions(settings)),
        # Batch queries may use fewer partitions, never more; a stream keeps the number its state was created with.
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
        # How often an idle stream polls. With Spark's default of 10 ms four idle streams keep half a core busy, here and in
        # the broker.
        "spark.sql.streaming.pollingDelay": IDLE_POLL,
        # Streams take turns in the task slots, each in a pool of its own.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # All state of this process shares one limit, instead of 64 MB of buffers for each partition of each operator.
        "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
        "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": STATE_MEMORY_MB,
        # So that a stream can change between near real time and real time and keep its state.
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        # A real-time shuffle sends rows at once instead of waiting for a full buffer (DESIGN: 37 → 10 ms).
        "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "1",
        # Without Kafka in this list: its V1 batch writer loses the counts of observe().
        "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
        # The rows of a batch may be collected in this process (sink.py); the batch size bounds how many they are.
        "spark.driver.maxResultSize": "0",
        "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|jaas|keystore[.]key|key[.]pem|private key",
        "spark.pyspark.python": worker_python(settings),
        # How long a worker waits for Spark: the default is too short on a busy machine.
        "spark.python.authenticate.socketTimeout": "120s",
    }
    if not master_of(settings):
        properties |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if is_local_master(properties["spark.master"]):
        if sys.platform == "linux":
            properties["spark.driver.extraJavaOptions"] += f" {_JIT_PRIORITY}"
        own = settings.spark.config.get("spark.driver.extraJavaOptions", "")
        properties["spark.driver.extraJavaOptions"] += f" {_EXIT_ON_OUT_OF_MEMORY}"
        # Java refuses two collectors.
        if cores() <= _FEW_CORES and not re.search(r"-XX:\+Use\w+GC\b", own):
            properties["spark.driver.extraJavaOptions"] += f" {_SERIAL_GC}"
        # On the class path rather than in `spark.jars`: a class archive has no classes of a second class loader.
        properties["spark.driver.extraClassPath"] = os.pathsep.join(map(str, jars))
        if local_folder(settings.streams.checkpoints) is not None:
            # On other file systems only the default manager replaces a file atomically.
            properties |= LOCAL_FILES
    else:
        properties["spark.jars"] = ",".join(map(str, jars))
        properties["spark.executor.memory"] = f"{settings.spark.executor_memory_mb}m"
    return properties


def _format(properties: Mapping[str, str]) -> str:
    """Java's properties format."""
    escaped = {name: value.replace("\\", "\\\\").replace("\n", "\\n") for name, value in properties.items()}
    return "".join(f"{name.replace(':', chr(92) + ':')}={value}\n" for name, value in escaped.items())


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
