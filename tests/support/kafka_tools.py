"""Kafka's own command-line tools: what our figures are compared with, and what sets what we have no words for."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from riverrun.artifacts import fetch, find_java
from riverrun.config import ArtifactSettings, JavaSettings

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"


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


@contextmanager
def producer_quota(bootstrap_servers: str, client_id: str, bytes_per_second: int) -> Iterator[None]:
    """Let the cluster take no more than this from the producers of a client; the rest waits. Others are not slowed.

    Kafka averages over quota.window.num - 1 seconds, 10 unless the broker was told: so much may be sent at once.
    """
    whom = ("--bootstrap-server", bootstrap_servers, "--alter", "--entity-type", "clients", "--entity-name", client_id)
    tool(CONFIGS, *whom, "--add-config", f"producer_byte_rate={bytes_per_second}")
    try:
        yield
    finally:
        tool(CONFIGS, *whom, "--delete-config", "producer_byte_rate")
