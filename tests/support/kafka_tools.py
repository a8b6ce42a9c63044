"""Kafka's own command-line tools: what our figures are compared with."""

import os
import subprocess

from riverrun.artifacts import fetch, find_java
from riverrun.config import ArtifactSettings, JavaSettings

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


def tool(name: str, *arguments: str) -> str:
    """What a tool prints."""
    settings = ArtifactSettings()
    class_path = os.pathsep.join(str(path) for path in (*fetch("kafka", settings), *fetch("kafka-tools", settings)))
    done = subprocess.run(
        [find_java(JavaSettings()).executable, "-XX:TieredStopAtLevel=1", "-cp", class_path, name, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def described_group(bootstrap_servers: str, group: str) -> dict[tuple[str, int], tuple[int, int, int]]:
    """(topic, partition) → (committed, end, lag), as Kafka's own tool sees a group."""
    text = tool(GROUPS, "--bootstrap-server", bootstrap_servers, "--describe", "--group", group)
    rows = [line.split() for line in text.splitlines() if line.startswith(group)]
    return {(row[1], int(row[2])): (int(row[3]), int(row[4]), int(row[5])) for row in rows}
