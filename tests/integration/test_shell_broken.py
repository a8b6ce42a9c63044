"""The commands while their only broker dies, hangs and comes back."""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverrun.cluster.kafka.local import LocalKafka
from riverrun.config import KafkaSettings
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.model.cluster_state import TopicPartition
from riverrun.testing.pytest_plugin import local_kafka
from support.cluster import wait_for
from support.shell import Shell

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    with local_kafka(tmp_path_factory.mktemp("alone"), KafkaSettings()) as kafka:
        yield kafka


@pytest.fixture
def shell(alone: LocalKafka, tmp_path: Path) -> Shell:
    (tmp_path / "riverrun.toml").write_text("[kafka]\nrequest_timeout_seconds = 2\n", encoding="utf-8")
    return Shell(tmp_path, alone.bootstrap_servers)


def end_of(alone: LocalKafka, topic: str) -> int:
    admin = Admin(Connection(KafkaSettings(bootstrap_servers=alone.bootstrap_servers)))
    return admin.offsets([TopicPartition(topic, 0)], "latest")[TopicPartition(topic, 0)]


def wait_for_end(alone: LocalKafka, topic: str, end: int) -> None:
    wait_for(lambda: end_of(alone, topic) == end, 60, f"{topic} does not end at {end}")


def test_a_broker_that_dies_on_the_way_is_told_with_what_is_done(alone: LocalKafka, shell: Shell) -> None:
    shell.fine("topics", "create", "dying")
    child = shell.start("produce", "dying", "--timeout", "5")
    assert child.stdin is not None
    try:
        for end in (1000, 2000):
            child.stdin.write(b"1\n" * 1000)
            child.stdin.flush()
            wait_for_end(alone, "dying", end)
        alone.brokers[0].kill()
        child.stdin.write(b"2\n" * 2000)
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
        alone.brokers[0].restart()
    told = err.decode()
    assert child.returncode == 1, told
    # What is slow is said meanwhile, on a line of its own before the error.
    match = re.search(
        r"^DELIVERY_FAILED  dying acknowledged (\d+) of the 4000 records that were read\.", told, re.MULTILINE
    )
    assert match, told
    # The answer to the second thousand may have died with the broker; what it told is there.
    assert 1000 <= int(match[1]) <= 2000
    assert end_of(alone, "dying") == 2000


def test_follow_waits_for_a_broker_that_comes_back(alone: LocalKafka, shell: Shell) -> None:
    shell.fine("produce", "following", "--create", stdin="1\n")
    child = shell.start("consume", "following", "--follow", "--limit", "2")
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        assert child.stdout.readline() == b"1\n"
        alone.brokers[0].kill()
        assert b"waiting for it" in child.stderr.readline()
        alone.brokers[0].restart()
        shell.fine("produce", "following", stdin="2\n")
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert out == b"2\n"
    assert b"The brokers answer again." in err
    assert child.returncode == 0


@pytest.mark.parametrize("command", [["topics"], ["groups"], ["offsets", "show", "g"], ["consume", "dying"]])
def test_a_broker_that_hangs_is_told_at_the_deadline(command: list[str], alone: LocalKafka, shell: Shell) -> None:
    pid = alone.brokers[0].pid
    assert pid > 0
    os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    try:
        done = shell.riverrun(*command)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert done.code == 1
    assert done.err.startswith(f"KAFKA_UNREACHABLE  No broker at {alone.bootstrap_servers} answered")
    assert time.monotonic() - started < 15
