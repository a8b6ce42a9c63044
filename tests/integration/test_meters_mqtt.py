"""The meters publish at a real mosquitto, which their source starts itself; riverrun brings all of it into the topic."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from riverrun.app import load_app
from riverrun.cluster.ports import HOST, Claims
from riverrun.config import KafkaSettings
from riverrun.kafka.connection import Connection
from riverrun.testing.pytest_plugin import local_kafka
from support.cluster import wait_for
from support.connecting import records_in
from support.connector_child import Child
from support.shell import Shell
from support.usecases import EXAMPLES

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]


def test_what_meters_publish_is_in_the_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source begins before anybody has subscribed, and nothing of it is lost."""
    claims = Claims()
    port = claims.claim_first(20_000 + os.getpid() % 8000)
    claims.close()
    monkeypatch.setenv("METERS_MQTT", f"mqtt://{HOST}:{port}")
    root = tmp_path / "meters"
    shutil.copytree(EXAMPLES / "meters", root, ignore=shutil.ignore_patterns(".riverrun"))
    with local_kafka(tmp_path / "kafka", KafkaSettings()) as running:
        connection = Connection(KafkaSettings(bootstrap_servers=running.bootstrap_servers))
        load_app(root / "app.py").apply(connection)
        command = [sys.executable, "source.py", "--houses", "300", "--speed", "600"]
        environ = Shell(root, running.bootstrap_servers).environ
        with subprocess.Popen(command, cwd=root, env=environ, stdout=subprocess.PIPE, text=True) as source:
            child = Child(root, running.bootstrap_servers)
            try:
                wait_for(lambda: len(records_in(connection, "readings")) >= 1500, 180, "nothing comes")
                wait_for(lambda: bool(records_in(connection, "readings.dead")), 180, "nothing is broken")
                source.terminate()
                said, _ = source.communicate(timeout=60)
            finally:
                source.kill()
                child.stop()
        told = json.loads(said)
        stored, letters = len(records_in(connection, "readings")), len(records_in(connection, "readings.dead"))
    assert source.returncode == 0
    assert (stored, letters) == (told["acknowledged"] - told["broken"], told["broken"])
