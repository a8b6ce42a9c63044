"""A Spark standalone cluster on this machine: a master and workers, each a process of its own, all on loopback.

From the pyspark package alone. Executors are started by the workers and end with them.
"""

import random
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from riverrun.artifacts import cache_folder
from riverrun.artifacts.java import find_java
from riverrun.artifacts.spark_java import spark_java_home
from riverrun.cluster.jvm import child_environment
from riverrun.cluster.ports import PortClaims
from riverrun.cluster.process import GuardedProcess
from riverrun.cluster.server import Deadline
from riverrun.config import Settings
from riverrun.errors import ServerDiedError, ServerNotReadyError, not_installed

HOST = "127.0.0.1"
START_SECONDS = 180.0
STOP_SECONDS = 15.0
_POLL_SECONDS = 0.1
# Memory of the master and of each worker; executors have their own.
_HEAP = "-Xmx192m"


class LocalSpark:
    """A master and `workers` with `cores` task slots each. Use it in a `with`; `master` is what `spark.master` is set to."""

    def __init__(
        self, folder: Path, settings: Settings | None = None, *, workers: int = 2, cores: int = 2, memory_mb: int = 1024
    ) -> None:
        self.folder = folder
        self.workers = workers
        self.cores = cores
        self.memory_mb = memory_mb
        self.port = 0
        self._settings = settings or Settings()
        self._claims = PortClaims()
        self._processes: list[GuardedProcess] = []

    @property
    def master(self) -> str:
        return f"spark://{HOST}:{self.port}"

    @property
    def driver_settings(self) -> dict[str, str]:
        """The settings a driver on this machine needs besides the master's address."""
        return {"spark.driver.host": HOST, "spark.driver.bindAddress": HOST}

    def __enter__(self) -> Self:
        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise not_installed(ImportError(name="pyspark"))
        home = Path(spec.origin).parent
        java = spark_java_home(find_java(self._settings.java), cache_folder(self._settings.artifacts))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = self._claims.claim_first(random.randrange(12000, 28000, 10))  # noqa: S311
        run = [str(java / "bin" / "java"), _HEAP, "-cp", f"{home / 'jars'}/*"]
        environ = child_environment() | {
            "JAVA_HOME": str(java),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            # Without it a worker looks for a build of Spark around its home, and no executor starts.
            "SPARK_SCALA_VERSION": "2.13",
        }
        listen = ["-h", HOST, "--webui-port", "0"]
        master = ["org.apache.spark.deploy.master.Master", *listen, "-p", str(self.port)]
        deadline = Deadline(START_SECONDS)
        try:
            self._start("master", [*run, *master], environ)
            self._wait_for_log("I have been elected leader", 1, deadline)
            for number in range(self.workers):
                work = ["-d", str(self.folder / f"work{number}"), "-c", str(self.cores), "-m", f"{self.memory_mb}m"]
                worker = ["org.apache.spark.deploy.worker.Worker", *listen, *work, self.master]
                self._start(f"worker{number}", [*run, *worker], environ)
            self._wait_for_log("Registering worker", self.workers, deadline)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        deadline = Deadline(STOP_SECONDS)
        for process in reversed(self._processes):
            process.ask_to_stop()
        for process in reversed(self._processes):
            process.stop(deadline)
        self._processes.clear()
        self._claims.close()

    def _start(self, name: str, command: list[str], environ: dict[str, str]) -> None:
        process = GuardedProcess(command, self.folder, self.folder / f"{name}.log", environ)
        process.start()
        self._processes.append(process)

    def _wait_for_log(self, text: str, times: int, deadline: Deadline) -> None:
        """Wait until the master has logged this text this many times."""
        log = self._processes[0].output
        while log.read_text(encoding="utf-8", errors="replace").count(text) < times:
            for process in self._processes:
                if not process.alive:
                    raise ServerDiedError(
                        f"Spark's {process.output.stem} ended by itself while it was started",
                        found=f"exit code {process.exit_code}",
                        hint=f"Its output is in {process.output}",
                    )
            if deadline.passed:
                raise ServerNotReadyError(
                    f"The Spark cluster in {self.folder} did not start within {deadline.seconds:g} s",
                    expected=f"{self.workers} workers at its master",
                    hint=f"Its output is in {self.folder}",
                )
            time.sleep(_POLL_SECONDS)
