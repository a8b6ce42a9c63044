"""Settings of Spark's session that depend on the machine and on what it is for."""

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark import java_gateway

from riverrun.app import App
from riverrun.config import Project, Settings, SparkSettings, StreamSettings
from riverrun.errors import SparkUnavailableError, UsageError
from riverrun.model.pipeline import every_ms
from riverrun.streams import pipeline
from riverrun.streams.generations import Generation, add_generation, newer_generation
from riverrun.streams.pipeline import checkpoints_location
from riverrun.streams.run import session, spark_cluster
from riverrun.streams.run.worker_launcher import write_worker_launcher


@pytest.mark.parametrize(("cores", "master", "less"), [(2, "local[6]", True), (4, "local", True), (8, "local[9]", False),
                                                       (2, "spark://spark.example:7077", False)])  # fmt: skip
def test_one_compiler_where_cores_are_few(monkeypatch: pytest.MonkeyPatch, cores: int, master: str, less: bool) -> None:
    monkeypatch.setattr(session, "cores", lambda: cores)
    assert ("-XX:TieredStopAtLevel=1" in str(session.fast_start_options(master))) is less


@pytest.mark.parametrize(("own", "through", "master"), [("", "", ""), ("yarn", "", "yarn"), ("", "spark://a:1", "spark://a:1"),
                                                        ("yarn", "yarn", "yarn")])  # fmt: skip
def test_the_master_counts_whichever_setting_names_it(own: str, through: str, master: str) -> None:
    config = {"spark.master": through} if through else {}
    assert spark_cluster.master_of(Settings(spark=SparkSettings(master=own, config=config))) == master


def test_two_masters_are_refused() -> None:
    with pytest.raises(UsageError, match=r"spark.master is yarn, and spark.master in \[spark.config\] is local"):
        spark_cluster.master_of(Settings(spark=SparkSettings(master="yarn", config={"spark.master": "local"})))


@pytest.mark.parametrize(("master", "local"), [("", True), ("local", True), ("local[3]", True),
                                               ("local-cluster[2,1,1024]", False), ("spark://a:7077", False)])  # fmt: skip
def test_a_cluster_of_processes_on_this_machine_is_a_cluster(master: str, local: bool) -> None:
    assert spark_cluster.is_local_master(master) is local


def test_the_master_of_the_config_gets_what_a_cluster_needs(tmp_path: Path) -> None:
    settings = Settings(spark=SparkSettings(config={"spark.master": "spark://a:7077"}, python="/opt/python"))
    found = session._properties(settings, tmp_path, "meters", 2, [Path("/jars/kafka.jar")])
    assert found["spark.master"] == "spark://a:7077"
    assert found["spark.jars"] == "/jars/kafka.jar"
    assert found["spark.pyspark.python"] == "/opt/python"
    assert "spark.driver.host" not in found
    assert "spark.hadoop.fs.file.impl" not in found


def test_the_heap_is_small_and_streams_look_again_at_once_where_nothing_else_is_set(tmp_path: Path) -> None:
    """The heap used to be a quarter of the machine (5.7 GB resident for 1,000 readings/s), the trigger a second."""
    found = session._properties(Settings(), tmp_path, "meters", 2, [])
    assert found["spark.driver.memory"] == "768m"
    assert StreamSettings().every == "0 s"
    assert every_ms(StreamSettings().every, "streams.every") == 0


@pytest.mark.parametrize(
    ("own", "ours"), [("-XX:+UseG1GC -Xss2m", False), ("-XX:+UseZGC", False), ("-Xss2m", True), ("", True)]
)
def test_a_user_s_own_collector_is_the_only_one(
    own: str, ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java does not start with two."""
    monkeypatch.setattr(session, "cores", lambda: 2)
    settings = Settings(spark=SparkSettings(config={"spark.driver.extraJavaOptions": own}))
    found = session._properties(settings, tmp_path, "meters", 2, [])
    assert ("-XX:+UseSerialGC" in found["spark.driver.extraJavaOptions"]) is ours


def test_a_worker_starts_by_the_installed_pyspark_with_its_arguments(tmp_path: Path) -> None:
    python = write_worker_launcher(tmp_path / "with space", sys.executable)
    (tmp_path / "shown.py").write_text("import sys, pyspark\nprint(sys.argv[1:], pyspark.__file__, sys.path[0])\n")
    package = Path(pyspark.__file__).parent
    archive = package / "python" / "lib" / "pyspark.zip"
    assert archive.exists()
    done = subprocess.run(
        [python, "-m", "shown", "pyspark.worker"], env={"PYTHONPATH": str(archive)}, cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["['pyspark.worker']", str(package / "__init__.py"), str(tmp_path)]
    version = subprocess.run([python, "-c", "print('plain')"], capture_output=True, text=True, check=True)
    assert version.stdout == "plain\n"


@pytest.mark.parametrize(("file", "told"), [("/site-packages/py4j/java_gateway.py", False), ("/me/app.py", True)])
def test_what_py4j_says_of_a_spark_that_is_gone_is_not_for_users(file: str, told: bool) -> None:
    record = logging.LogRecord("root", logging.ERROR, file, 1060, "Exception while sending command.", (), None)
    assert session._not_py4j(record) is told


@pytest.mark.parametrize(
    "spark", [SparkSettings(master="spark://a:7077"), SparkSettings(config={"spark.master": "yarn"})]
)
def test_a_cluster_needs_a_place_for_checkpoints_that_all_see(tmp_path: Path, spark: SparkSettings) -> None:
    app, project = App("meters"), Project(tmp_path)
    with pytest.raises(UsageError, match=r"checkpoints would be on each machine's own disk.*streams\.checkpoints"):
        checkpoints_location(Settings(spark=spark), project, app)
    shared = Settings(spark=spark, streams=StreamSettings(checkpoints="hdfs://namenode/riverrun/"))
    assert checkpoints_location(shared, project, app) == "hdfs://namenode/riverrun/meters"
    here = Settings(spark=SparkSettings(master="local-cluster[2,1,1024]"))
    assert checkpoints_location(here, project, app) == str(tmp_path / ".riverrun/streams/meters/checkpoints")


def test_a_generation_that_another_project_has_swapped_in_is_seen(tmp_path: Path) -> None:
    checkpoints, folder = tmp_path / "checkpoints", tmp_path / "streams" / "load"
    (checkpoints / "load" / "commits").mkdir(parents=True)
    assert newer_generation(checkpoints, folder) == ""
    (checkpoints / "load.2" / "commits").mkdir(parents=True)
    assert newer_generation(checkpoints, folder) == "load.2"
    assert newer_generation(checkpoints, folder, {"load", "load.2"}) == ""
    add_generation(folder, Generation(2, "q", "p", "load.2", "", {}, {}, {}, 0, 0, ""))
    assert newer_generation(checkpoints, folder) == ""


class Executors:
    """A cluster that gives one executor after the other; asked for the last time, it has them all."""

    def __init__(self, *slots: int) -> None:
        self.master = "spark://a:7077"
        self._slots = list(slots)
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(getExecutorMemoryStatus=lambda: self))

    def getConf(self) -> dict[str, str]:  # noqa: N802
        return {}

    def size(self) -> int:
        now = self._slots.pop(0) if len(self._slots) > 1 else self._slots[0]
        self.defaultParallelism = now or 2
        return 1 + (now > 0)


def test_slots_are_counted_when_the_executors_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(pipeline, "SETTLED_SECONDS", 0.05)
    late: Any = SimpleNamespace(sparkContext=Executors(0, 0, 4, 4, 8))
    assert pipeline.count_slots(late) == 8
    monkeypatch.setattr(pipeline, "EXECUTORS_SECONDS", 0.05)
    never: Any = SimpleNamespace(sparkContext=Executors(0))
    with pytest.raises(SparkUnavailableError, match="spark://a:7077 has given us no executor"):
        pipeline.count_slots(never)


def test_a_jvm_whose_start_is_cut_off_does_not_stay_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A signal while Spark starts: PySpark forgets the process, and that never ends by itself."""
    started: list[subprocess.Popen[bytes]] = []

    def launch(_: object, options: dict[str, Any]) -> None:
        started.append(java_gateway.Popen(["sleep", "600"], **options))  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    with pytest.raises(KeyboardInterrupt):
        session._launch(object, tmp_path / "spark.out")
    assert started[0].poll() == -9


def test_a_jvm_that_is_still_starting_can_be_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before it has told its port, PySpark does not know of it."""
    started: list[subprocess.Popen[bytes]] = []

    def launch(_: object, options: dict[str, Any]) -> None:
        started.append(java_gateway.Popen(["sleep", "600"], **options))  # type: ignore[attr-defined]
        session.kill_spark()
        try:
            started[0].wait(20)
        finally:
            started[0].kill()
        raise RuntimeError("Java gateway process exited before sending its port number")

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    with pytest.raises(RuntimeError, match="exited before"):
        session._launch(object, tmp_path / "spark.out")
    assert started[0].returncode == -9
