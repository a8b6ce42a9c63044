"""Who takes part: how each is installed, and how it is started on two cores. The jobs are in jobs/, and say there what they
promise and when they write."""

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import venv
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from load import by_hand_command, riverrun_command
from riverrun.artifacts import cache_folder
from riverrun.artifacts.java import find_java
from riverrun.artifacts.lock import read_lock_file
from riverrun.artifacts.sets import fetch, fetch_lock
from riverrun.config import ArtifactSettings, JavaSettings
from riverrun.errors import RiverrunError
from riverrun.streams.run.class_archive import spark_class_archive

HERE = Path(__file__).parent
JOBS = HERE / "jobs"
REQUIREMENTS = HERE / "requirements"
CACHE = Path.home() / ".cache" / "riverrun-bench"
INSTALL_SECONDS = 1800


class MissingError(Exception):
    """A contender cannot take part here, and why."""


@dataclass
class Turn:
    """One start of one contender."""

    folder: Path
    servers: str
    output: str
    # Not used before: a name for its group, its application, its topics.
    name: str
    forever: bool = False

    @property
    def environment(self) -> dict[str, str]:
        found = {
            "BENCH_SERVERS": self.servers,
            "BENCH_OUTPUT": self.output,
            "BENCH_FOLDER": str(self.folder),
            "BENCH_ID": self.name,
        }
        return found | ({"BENCH_FOREVER": "1"} if self.forever else {})


@dataclass
class Command:
    """A process of a contender; `environment` is on top of the turn's."""

    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    # Only riverrun and PySpark run in the Python of the bench.
    own_python: bool = True


@dataclass
class Contender(ABC):
    """`emits` and `promise` are the columns of the table; `note` is what is unlike the others."""

    name: str
    title: str
    emits: str
    promise: str
    note: str = ""
    # Contenders that write only when a window closes have no latency to speak of: it is the window's length.
    latency: bool = True
    backlog: bool = True

    @property
    def output(self) -> str:
        return f"out-{self.name}"

    @abstractmethod
    def prepare(self) -> str:
        """Make it ready, and give its version. MissingError says what is not there."""

    def settled(self) -> bool:
        """Whether what a first run leaves for all later ones is there: a first run is measured by nobody."""
        return True

    @abstractmethod
    def commands(self, turn: Turn) -> list[Command]:
        """What to start; work that is not part of its start, such as an empty store, is done here."""


@dataclass
class Riverrun(Contender):
    speed: str = "near-real-time"

    @property
    def output(self) -> str:
        return "by_riverrun"

    def prepare(self) -> str:
        from riverrun import __version__

        return __version__

    def settled(self) -> bool:
        """Its archive of Spark's classes is made beside the first run that lasts for a minute."""
        jars, cache = fetch("spark-kafka", ArtifactSettings()), cache_folder(ArtifactSettings())
        return spark_class_archive(find_java(JavaSettings()), jars, cache, CACHE).path.is_file()

    def commands(self, turn: Turn) -> list[Command]:
        return [
            Command(riverrun_command(turn.folder, turn.servers, self.speed, forever=turn.forever), own_python=False)
        ]


@dataclass
class PySpark(Contender):
    speed: str = "near-real-time"

    @property
    def output(self) -> str:
        return "by_hand"

    @cached_property
    def jars(self) -> str:
        return ",".join(map(str, fetch("spark-kafka", ArtifactSettings())))

    def prepare(self) -> str:
        import pyspark

        assert self.jars
        return str(pyspark.__version__)

    def commands(self, turn: Turn) -> list[Command]:
        words = by_hand_command(turn.folder, turn.servers, self.speed, self.jars, java_home())
        return [Command(words, own_python=False)]


@dataclass
class PythonPeer(Contender):
    """A peer in a virtualenv of its own, made on first use."""

    # The name of its requirements file and of its virtualenv.
    package: str = ""

    @property
    def folder(self) -> Path:
        return CACHE / self.package

    def program(self, name: str = "python") -> str:
        return str(self.folder / "bin" / name)

    def prepare(self) -> str:
        wanted = (REQUIREMENTS / f"{self.package}.txt").read_text()
        done = self.folder / "installed.txt"
        if not done.exists() or done.read_text() != wanted:
            print(f"  installing {self.package} into {self.folder}", file=sys.stderr)
            if not Path(self.program()).exists():
                venv.create(self.folder, with_pip=True)
            command = [self.program(), "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS / f"{self.package}.txt")]
            call(command, f"pip could not install {self.package}")
            done.write_text(wanted)
        return wanted.splitlines()[0].partition("==")[2]


class Quix(PythonPeer):
    def commands(self, turn: Turn) -> list[Command]:
        # Each with a state folder of its own: a RocksDB belongs to one process.
        folders = [turn.folder / f"state-{each}" for each in (1, 2)]
        words = [self.program(), str(JOBS / "quix_job.py")]
        return [Command(words, {"BENCH_FOLDER": str(folder)}) for folder in folders]


class Bytewax(PythonPeer):
    def commands(self, turn: Turn) -> list[Command]:
        store = turn.folder / "recovery"
        store.mkdir()
        call([self.program(), "-m", "bytewax.recovery", str(store), "2"], "bytewax could not make its recovery store")
        addresses = ";".join(f"127.0.0.1:{free_port()}" for _ in range(2))
        words = [self.program(), "-m", "bytewax.run", "bytewax_job:flow", "-r", str(store), "-s", "10", "-b", "0"]
        return [Command([*words, "-i", str(each), "-a", addresses], {"PYTHONPATH": str(JOBS)}) for each in range(2)]


class Pathway(PythonPeer):
    def commands(self, turn: Turn) -> list[Command]:
        del turn
        words = [self.program("pathway"), "spawn", "--threads", "2", self.program(), str(JOBS / "pathway_job.py")]
        return [Command(words)]


class Faust(PythonPeer):
    def commands(self, turn: Turn) -> list[Command]:
        found = []
        for each in (1, 2):
            folder = turn.folder / f"worker-{each}"
            words = [self.program("faust"), "-A", "faust_job", "worker", "-l", "info", "--without-web"]
            found.append(Command(words, {"BENCH_FOLDER": str(folder), "PYTHONPATH": str(JOBS)}))
        return found


@dataclass
class Flink(PythonPeer):
    kind: str = "close"

    @cached_property
    def jar(self) -> str:
        return str(locked("flink-kafka")[0])

    def prepare(self) -> str:
        version = super().prepare()
        assert self.jar
        return version

    def commands(self, turn: Turn) -> list[Command]:
        del turn
        words = [self.program(), str(JOBS / "flink_sql.py"), self.kind, self.jar]
        return [Command(words, {"JAVA_HOME": java_home()})]


class KafkaStreams(Contender):
    classes = Path()
    jars: tuple[Path, ...] = ()

    def prepare(self) -> str:
        if (compiler := shutil.which("javac")) is None:
            raise MissingError("there is no Java compiler (`javac` on PATH; a JDK of 17 or later has it)")
        self.jars = locked("kafka-streams")
        source = JOBS / "KafkaStreamsJob.java"
        self.classes = CACHE / "kafka-streams" / hashlib.sha256(source.read_bytes()).hexdigest()[:16]
        if not (self.classes / "KafkaStreamsJob.class").exists():
            path = os.pathsep.join(map(str, self.jars))
            command = [compiler, "--release", "17", "-cp", path, "-d", str(self.classes), str(source)]
            call(command, "javac could not compile the job")
        return next(artifact.version for artifact in read_lock_file(REQUIREMENTS / "kafka-streams.lock").artifacts)

    def commands(self, turn: Turn) -> list[Command]:
        del turn
        path = os.pathsep.join(map(str, [self.classes, *self.jars]))
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [Command([str(Path(java_home()) / "bin" / "java"), quiet, "-cp", path, "KafkaStreamsJob"])]


def locked(name: str) -> tuple[Path, ...]:
    """The jars of a lock file of the bench; they come as riverrun's own do."""
    try:
        return fetch_lock(read_lock_file(REQUIREMENTS / f"{name}.lock"), ArtifactSettings()).paths
    except RiverrunError as error:
        raise MissingError(f"its jars could not be had: {error}") from error


def java_home() -> str:
    try:
        return str(find_java(JavaSettings()).home)
    except RiverrunError as error:
        raise MissingError(f"there is no Java: {error}") from error


def call(command: list[str], failure: str) -> None:
    """Run something to its end. MissingError with the last line it said, when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{failure}: {error}") from error
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()
        raise MissingError(f"{failure}: {lines[-1]}")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def all_contenders() -> list[Contender]:
    """In the order of the table; riverrun is first, and what the others are compared with."""
    batch, once, least = "each micro-batch", "exactly once", "at least once"
    live = "Latency only: its speed for few readings a second."
    return [
        Riverrun("riverrun", "riverrun", batch, once),
        Riverrun(
            "riverrun-real-time", "riverrun, real time", "each update", least, live, backlog=False, speed="real-time"
        ),
        PySpark("pyspark", "PySpark by hand", batch, least, "Checks nothing, counts nothing."),
        PySpark(
            "pyspark-real-time", "PySpark, real time", "each update", least, live, backlog=False, speed="real-time"
        ),
        KafkaStreams("kafka-streams", "Kafka Streams (Java)", "changed rows every 100 ms", once, "2 threads."),
        Flink(
            "flink",
            "PyFlink SQL, window function",
            "on window close",
            least,
            "Parallelism 2. Fewer rows to write than those that write updates.",
            latency=False,
            package="flink",
            kind="close",
        ),
        Flink(
            "flink-updates",
            "PyFlink SQL, GROUP BY",
            "changed rows every 100 ms",
            least,
            "Parallelism 2.",
            package="flink",
            kind="updates",
        ),
        Quix("quix", "Quix Streams", "each reading", least, "2 processes.", package="quix"),
        Bytewax(
            "bytewax",
            "Bytewax",
            "on window close",
            least,
            "2 processes. Fewer rows to write than those that write updates.",
            latency=False,
            package="bytewax",
        ),
        Pathway(
            "pathway",
            "Pathway",
            "changed rows every 100 ms",
            "none here",
            "2 threads. No persistence; each change is two records (old row taken back, new row); windows are kept.",
            package="pathway",
        ),
        Faust("faust", "Faust", "each reading", least, "2 workers, table in memory.", package="faust"),
    ]
