"""The examples in the help of every command that needs a cluster, run as they stand in a project made for them."""

import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from riverrun.cli.reference import all_commands
from riverrun.kafka.admin.admin import Admin
from riverrun.model.cluster_state import TopicPartition
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.shell import Shell

pytestmark = pytest.mark.kafka

GROUPS = ("topics", "produce", "consume", "groups", "offsets", "config", "init")
# Reads a pager, or starts the project's own servers: what these do is tested where they are.
ELSEWHERE = re.compile(r"\bless\b|riverrun up\b")
APP = 'import riverrun as rr\napp = rr.App("meters")\napp.topic("readings", partitions=4)\n'


def examples() -> Iterator[tuple[str, str]]:
    for path, command in all_commands():
        if path.split()[1:2] and path.split()[1] in GROUPS:
            for line in lines(command):
                if not ELSEWHERE.search(line):
                    yield path, line


def lines(command: click.Command) -> list[str]:
    return re.findall(r"^Example: (.*)$", command.epilog or "", re.MULTILINE)


class Stage:
    """A project with what the examples talk about: a file, an app, two topics, a group. On a cluster that may be somebody's
    own, all have names that nobody else has."""

    def __init__(self, kafka: KafkaUnderTest, root: Path) -> None:
        self.shell = Shell(root, kafka.bootstrap_servers)
        self.admin = Admin(kafka.connection)
        mark = secrets.token_hex(4)
        self.names = {name: f"{name}-{mark}" for name in ("readings", "orders", "billing")}
        rows = [json.dumps({"house_id": f"h{number}", "load_kw": number}) for number in range(5)]
        (root / f"{self.names['readings']}.jsonl").write_text("\n".join(rows), encoding="utf-8")
        (root / "meters.py").write_text(APP.replace("readings", self.names["readings"]), encoding="utf-8")
        (root / "riverrun.toml").write_text("[profile.prod.kafka]\nheap_mb = 512\n", encoding="utf-8")
        self.admin.create_topic(self.names["orders"], partitions=1, replicas=0, config={})
        self.admin.alter_group_offsets(self.names["billing"], {TopicPartition(self.names["orders"], 0): 0})

    def have_readings(self) -> None:
        self.admin.create_topic(self.names["readings"], partitions=4, replicas=0, config={"retention.ms": "60000"})

    def line(self, text: str) -> str:
        return re.sub("|".join(self.names), lambda found: self.names[found[0]], text)


@pytest.mark.parametrize(("path", "line"), [pytest.param(*example, id=example[0]) for example in examples()])
def test_the_example_works(path: str, line: str, kafka: KafkaUnderTest, tmp_path: Path) -> None:
    stage = Stage(kafka, tmp_path)
    if "topics create" not in line:
        stage.have_readings()
    done = stage.shell.line(stage.line(line))
    assert done.code == 0, done.err


def test_there_are_examples_to_run() -> None:
    assert len(list(examples())) >= 15
