"""An app without streams: its topics as tables, by `riverrun run` and by `riverrun serve`, and no Spark for it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from riverrun.config.project import Project
from riverrun.config.serve_state import StoreEndpoint, find_store_endpoint
from riverrun.errors import RiverrunError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.topics import apply_topics
from riverrun.kafka.producer.producer import Producer
from riverrun.model.topic import Topic
from riverrun.store.client import StoreClient
from riverrun.testing import KafkaUnderTest
from support.cluster import wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

APP = """
import riverrun as rr

app = rr.App("NAME")

class Gate(rr.Event):
    gate: str = rr.key()
    cars: int

gates = app.topic("TOPIC", Gate, partitions=1)
app.store(gates, name="gates")
app.dashboard(rr.number("Cars", "select sum(cars) from gates"))
"""


@pytest.fixture
def project(kafka: KafkaUnderTest, kafka_topic: Callable[..., str], tmp_path: Path) -> Project:
    topic = kafka_topic()
    (tmp_path / "app.py").write_text(APP.replace("TOPIC", topic).replace("NAME", topic.replace("-", "_")))
    toml = f'[project]\napp = "app.py"\n[kafka]\nbootstrap_servers = "{kafka.bootstrap_servers}"\n'
    (tmp_path / "riverrun.toml").write_text(toml)
    plain: Topic[Any] = Topic(topic, None, 1)
    apply_topics(Admin(kafka.connection), [plain])
    with Producer(kafka.connection) as producer:
        for number in range(3):
            producer.send(topic, json.dumps({"gate": f"g{number}", "cars": number}).encode(), key=f"g{number}")
    return Project(tmp_path)


def started(project: Project, *arguments: str) -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RIVERRUN_")}
    return subprocess.Popen(
        [sys.executable, "-m", "riverrun", *arguments], cwd=project.root, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def answer(project: Project, sql: str) -> object:
    serving = find_store_endpoint(project)
    if serving is None:
        return None
    with StoreClient(serving.address) as client:
        try:
            return client.query(sql).rows.to_pylist()
        except RiverrunError as error:
            return str(error)


def stopped(process: "subprocess.Popen[str]") -> str:
    process.send_signal(signal.SIGINT)
    try:
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, said
    return said


@pytest.mark.parametrize("command", ["run", "serve"])
def test_its_topics_are_tables(project: Project, command: str) -> None:
    process = started(project, command)
    try:
        asked = "select count(*) as n, sum(cars) as cars from gates"
        wait_for(
            lambda: process.poll() is not None or answer(project, asked) == [{"n": 3, "cars": 3}], 120, "no rows came"
        )
        assert process.poll() is None, process.communicate()[0]
        names = [child.name() for child in psutil.Process(process.pid).children(recursive=True)]
        assert not [name for name in names if "java" in name]
        listed = started(project, "tables").communicate(timeout=60)[0]
        assert "gates" in listed
        serving = find_store_endpoint(project)
        assert isinstance(serving, StoreEndpoint)
    finally:
        said = stopped(process)
    assert "Stopped." in said


def test_it_is_checked_without_spark(project: Project) -> None:
    checked = started(project, "validate")
    said, _ = checked.communicate(timeout=60)
    assert checked.returncode == 0, said
    assert "nothing wrong" in said
    path = project.root / "app.py"
    path.write_text(
        path.read_text().replace("sum(cars)", "sum(lorries)") + 'app.store(gates, name="wrong", key="door")\n'
    )
    said, _ = started(project, "validate").communicate(timeout=60)
    assert "The table wrong has no column door, which key names; it has gate, cars" in said


def test_it_can_run_until_all_is_there(project: Project) -> None:
    said, _ = started(project, "run", "--until-caught-up").communicate(timeout=180)
    assert "Spark is not started" in said
    refused, _ = started(project, "run", "--stream", "gates").communicate(timeout=60)
    assert "has no stream gates: it has none" in refused
    # What was kept is there without anybody who serves it.
    copied, _ = started(project, "tables", "snapshot", "copy.duckdb").communicate(timeout=60)
    assert "gates" in copied
