"""What is refused, and what is said, before Spark is started on other machines."""

import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.app import App
from riverrun.config import KafkaSettings, Secret, Settings, SparkSettings, StreamSettings
from riverrun.errors import UsageError
from riverrun.kafka.connection import Connection
from riverrun.kafka.java_client import java_properties
from riverrun.model.pipeline import csv, json, parquet
from riverrun.streams import pipeline
from riverrun.streams.run import session, spark_cluster
from riverrun.streams.run.sink import ExactlyOnceSink
from riverrun.streams.run.spark_cluster import check_spark_settings, check_table_files, python_notice
from riverrun.streams.run.worker_launcher import driver_path

CLUSTER = SparkSettings(master="spark://a:7077", python="/opt/python")
JARS = "org.apache.hadoop:hadoop-aws:3.5.0,org.apache.spark:spark-hadoop-cloud_2.13:4.3.0"
MANAGER = {"spark.sql.streaming.checkpointFileManagerClass": spark_cluster.S3_CHECKPOINTS}


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        ({}, r"hadoop-aws and org.apache.spark:spark-hadoop-cloud_2.13.*; and .spark.sql.streaming.checkpointFile"),
        ({"spark.jars.packages": JARS}, r"\[spark.config\]: .spark.sql.streaming.checkpointFileManagerClass. = .*Abortable"),
        (MANAGER, r"Add to \[spark.config\]: .spark.jars.packages. with org.apache.hadoop:hadoop-aws and"),
        ({"spark.jars": "/opt/hadoop-aws-3.5.0.jar", **MANAGER}, r"with org.apache.spark:spark-hadoop-cloud_2.13, in the"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("master", ["", "spark://a:7077"])
def test_checkpoints_on_s3_need_two_things_that_pyspark_has_not(
    config: dict[str, str], missing: str, master: str
) -> None:
    spark = SparkSettings(master=master, python="/opt/python", config=config)
    settings = Settings(spark=spark, streams=StreamSettings(checkpoints="s3a://bucket/riverrun"))
    with pytest.raises(UsageError, match=missing):
        check_spark_settings(settings)


def test_checkpoints_on_s3_are_taken_with_both() -> None:
    spark = SparkSettings(config={"spark.jars.packages": JARS, **MANAGER})
    check_spark_settings(Settings(spark=spark, streams=StreamSettings(checkpoints="s3a://bucket/riverrun")))


def test_no_message_advises_s3() -> None:
    sources = Path(spark_cluster.__file__).parents[1]
    advised = [file.name for file in sources.rglob("*.py") if "s3a://" in file.read_text(encoding="utf-8")]
    assert advised == ["spark_cluster.py"]


def app_with(source: Any) -> App:
    app = App("meters")
    app.table("houses", source)
    return app


@pytest.mark.parametrize("source", [csv("data/houses.csv"), json("/srv/houses.json"), parquet("~/houses.parquet")])
def test_a_file_of_this_machine_is_no_table_of_a_cluster(source: Any) -> None:
    app = app_with(source)
    with pytest.raises(UsageError, match=r"the table houses is a file of this machine.*hdfs://…; or, .*file:///"):
        check_table_files(app, Settings(spark=CLUSTER))
    for here in ("", "local[2]", "local-cluster[2,1,1024]"):
        check_table_files(app, Settings(spark=SparkSettings(master=here)))


@pytest.mark.parametrize("path", ["hdfs://namenode/houses.csv", "file:///mnt/shared/houses.csv"])
def test_a_file_that_all_machines_see_is_a_table_of_a_cluster(path: str) -> None:
    check_table_files(app_with(csv(path)), Settings(spark=CLUSTER))


def test_a_table_on_s3_needs_the_jar_for_it() -> None:
    app = app_with(csv("s3a://bucket/houses.csv"))
    with pytest.raises(UsageError, match="hadoop-aws, in the versions"):
        check_table_files(app, Settings())
    check_table_files(app, Settings(spark=SparkSettings(config={"spark.jars": "/opt/hadoop-aws-3.5.0.jar"})))


def test_a_virtual_environment_of_this_machine_is_not_taken_for_one_of_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    nobody = Settings(spark=SparkSettings(master="spark://a:7077"))
    with pytest.raises(UsageError, match=r"no setting names the Python of its workers.*Let spark.python name"):
        check_spark_settings(nobody)
    for said in (CLUSTER, SparkSettings(master="yarn", config={"spark.pyspark.python": "/opt/python"})):
        check_spark_settings(Settings(spark=said))
        assert python_notice(Settings(spark=said)) == ""
    for here in ("", "local[2]", "local-cluster[2,1,1024]"):
        check_spark_settings(Settings(spark=SparkSettings(master=here)))
        assert python_notice(Settings(spark=SparkSettings(master=here))) == ""
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    check_spark_settings(nobody)
    assert f"Spark's workers start {sys.executable}, " in python_notice(nobody)
    assert "spark.python" in python_notice(nobody)


def test_executors_get_their_memory(tmp_path: Path) -> None:
    spark = SparkSettings(master="yarn", python="/opt/python", executor_memory_mb=2048)
    assert session._properties(Settings(spark=spark), tmp_path, "meters", 2, [])["spark.executor.memory"] == "2048m"
    assert "spark.executor.memory" not in session._properties(Settings(), tmp_path, "meters", 2, [])


@pytest.mark.parametrize(("slots", "partitions"), [(0, 8), (3, 2), (16, 8), (40, 20), (1000, 64)])
def test_a_cluster_splits_by_the_slots_of_its_executors(
    monkeypatch: pytest.MonkeyPatch, slots: int, partitions: int
) -> None:
    monkeypatch.setattr(session, "cores", lambda: 2)
    assert session.shuffle_partitions(Settings(spark=CLUSTER), slots) == partitions
    assert session.shuffle_partitions(Settings(), slots) == 2
    assert session.shuffle_partitions(Settings(spark=SparkSettings(master="yarn", shuffle_partitions=5)), slots) == 5


def test_a_session_on_a_cluster_is_told_its_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "count_slots", lambda _: 24)
    told: dict[str, str] = {}
    context = SimpleNamespace(master="spark://a:7077", getConf=dict)
    spark: Any = SimpleNamespace(sparkContext=context, conf=SimpleNamespace(set=told.__setitem__))
    assert pipeline.slots_for_streams(spark, Settings(spark=CLUSTER)) == 24
    assert told == {"spark.sql.shuffle.partitions": "12"}


PEM = "-----BEGIN {0}-----\nMIIB\n-----END {0}-----\n"


def secured(tmp_path: Path) -> Connection:
    for name, kind in (("ca", "CERTIFICATE"), ("cert", "CERTIFICATE"), ("key", "PRIVATE KEY")):
        (tmp_path / name).write_text("# Főtanúsítvány\n" + PEM.format(kind), encoding="utf-8")
    files = {"ssl_ca_file": "ca", "ssl_certificate_file": "cert", "ssl_key_file": "key"}
    paths: dict[str, Any] = {setting: str(tmp_path / name) for setting, name in files.items()}
    return Connection(KafkaSettings(bootstrap_servers="a:1", ssl_key_password=Secret("s"), **paths))


@pytest.mark.parametrize("master", ["spark://a:7077", "local[2]"])
def test_workers_get_certificates_and_key_by_content(tmp_path: Path, master: str) -> None:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    admin: Any = None
    connection = secured(tmp_path)
    sink = ExactlyOnceSink.create(spark, connection, admin, name="s", topic="t", transaction_seconds=1, in_driver=False)
    properties, contents = sink.target.properties, {"ssl.ca.pem", "ssl.certificate.pem", "ssl.key.pem"}
    if master == "local[2]":
        assert not contents & properties.keys()
        return
    assert properties["ssl.ca.pem"] == PEM.format("CERTIFICATE")
    assert properties["ssl.key.pem"] == PEM.format("PRIVATE KEY")
    assert str(tmp_path) not in str(properties)
    assert str(tmp_path) not in str(java_properties(connection))


def test_spark_shows_no_secret_of_the_login(tmp_path: Path) -> None:
    """Spark hides an option whose name or value is of this pattern, in logs, plans and its pages."""
    hidden = session._properties(Settings(), tmp_path, "meters", 2, [])["spark.redaction.regex"]
    for name in ("kafka.ssl.keystore.key", "kafka.ssl.key.password", "kafka.sasl.jaas.config", "ssl.key.pem"):
        assert re.search(hidden, name)
    for name, value in java_properties(secured(tmp_path)).items():
        if "PRIVATE KEY" in value:
            assert re.search(hidden, name)
            assert re.search(hidden, value)


SLOW = "import time\ntime.sleep(600)\n"


def test_the_worker_of_the_driver_connects_before_it_imports_pyspark(tmp_path: Path) -> None:
    """On a cluster too: Spark waits 10 s for it, by no setting of its own."""
    slow = tmp_path / "slow"
    (slow / "pyspark").mkdir(parents=True)
    (slow / "pyspark" / "__init__.py").write_text(SLOW)
    path = driver_path(tmp_path / "made")
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                heard.append(connection.recv(4 + len("secret")))
                connection.sendall(b"\0\0\0\2ok")

        listening = threading.Thread(target=answer, daemon=True)
        listening.start()
        worker = subprocess.Popen(
            [sys.executable, "-m", "pyspark.sql.streaming.transform_with_state_driver_worker"],
            env={
                "PYTHONPATH": os.pathsep.join([path.split(os.pathsep)[0], str(slow)]),
                "PYTHON_WORKER_FACTORY_PORT": str(server.getsockname()[1]),
                "PYTHON_WORKER_FACTORY_SECRET": "secret",
            },
        )
        try:
            listening.join(20)
        finally:
            worker.kill()
            worker.wait()
    assert heard == [b"\0\0\0\6secret"]


def test_another_python_of_the_driver_is_as_it_was(tmp_path: Path) -> None:
    """It has its own sitecustomize, and nothing of ours on its path."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 'mine'\n")
    made = driver_path(tmp_path / "made").split(os.pathsep)[0]
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(mine, sys.path)"],
        env={"PYTHONPATH": os.pathsep.join([made, str(own)])}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("mine ")
    assert made not in done.stdout
