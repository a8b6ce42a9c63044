"""A consumer group of three processes, one killed with -9, one added: every record handled, none skipped, lag 0."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import riverrun as rr
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.groups import group_lags
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support import group_member
from support.kafka_tools import described_group

COUNT = 60_000
PARTITIONS = 6
PER_SECOND = 6_000


class Members:
    """The processes of one group, and what they wrote down."""

    def __init__(self, servers: str, topic: str, group: str, folder: Path) -> None:
        self._arguments = (servers, topic, group)
        self._folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def add(self) -> None:
        path = self._folder / f"member-{len(self.processes)}"
        command = [sys.executable, str(group_member.__file__), *self._arguments, str(path)]
        self.processes.append(subprocess.Popen(command))

    def handled(self) -> dict[int, list[list[int]]]:
        """partition → one list of offsets per member, in the order it handled them."""
        found: dict[int, list[list[int]]] = defaultdict(list)
        for path in sorted(self._folder.glob("member-*")):
            mine: dict[int, list[int]] = defaultdict(list)
            for line in path.read_text().splitlines():
                partition, offset = map(int, line.split())
                mine[partition].append(offset)
            for partition, offsets in mine.items():
                found[partition].append(offsets)
        return found

    def count(self) -> int:
        return len({(p, o) for p, lists in self.handled().items() for offsets in lists for o in offsets})

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(60)


@pytest.fixture
def members(kafka: KafkaUnderTest, kafka_topic: Callable[..., str], tmp_path: Path) -> Iterator[Members]:
    topic = kafka_topic(partitions=PARTITIONS)
    made = Members(kafka.bootstrap_servers, topic, f"group-of-{topic}", tmp_path)
    yield made
    made.stop()


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@pytest.mark.slow
def test_one_is_killed_and_one_comes_and_nothing_is_skipped(kafka: KafkaUnderTest, members: Members) -> None:
    _, topic, group = members._arguments
    sent: list[int] = []

    def feed() -> None:
        begun = time.monotonic()

        def paced() -> Iterator[dict[str, int]]:
            for number in range(COUNT):
                if number % 500 == 0:
                    time.sleep(max(0.0, begun + number / PER_SECOND - time.monotonic()))
                yield {"n": number}

        with rr.Producer(kafka.connection) as producer:
            sent.append(producer.send_all(topic, paced(), key=lambda each: str(each["n"])))

    for _ in range(3):
        members.add()
    feeder = threading.Thread(target=feed)
    feeder.start()
    wait_for(lambda: members.count() > COUNT // 4, 60, "the group did not begin")
    members.processes[0].kill()
    members.processes[0].wait(10)
    members.add()
    feeder.join(60)
    assert sent == [COUNT]

    admin = Admin(kafka.connection)

    def behind() -> int | None:
        found = group_lags(admin, [group], seconds=False)
        return found[0].lag if found and len(found[0].partitions) == PARTITIONS else None

    wait_for(lambda: behind() == 0, 90, "the lag did not fall to 0")
    ends = {place.partition: end for place, end in admin.offsets(admin.topic(topic).topic_partitions, "latest").items()}
    assert sum(ends.values()) == COUNT
    handled = members.handled()
    for partition, end in ends.items():
        everything = {offset for offsets in handled[partition] for offset in offsets}
        assert everything == set(range(end)), f"partition {partition}: every record handled at least once"
        for offsets in handled[partition]:
            # A member may lose a partition, get it back, and read some of it again; it never skips ahead.
            ahead = [pair for pair in pairwise(offsets) if pair[1] > pair[0] + 1]
            after_others = {other + 1 for others in handled[partition] if others is not offsets for other in others}
            assert all(after in after_others for _, after in ahead), f"partition {partition}: order kept"
    assert_others_agree(kafka, topic, group, ends)
    members.stop()
    codes = [process.returncode for process in members.processes]
    assert codes == [-signal.SIGKILL, 0, 0, 0], "the others end cleanly on SIGTERM"
    assert behind() == 0
    assert rest_for_kcat(kafka.bootstrap_servers, topic, group) == []


def assert_others_agree(kafka: KafkaUnderTest, topic: str, group: str, ends: dict[int, int]) -> None:
    """`riverrun groups`, and Kafka's own ConsumerGroupCommand."""
    command = [sys.executable, "-m", "riverrun", "groups", "describe", group, "--json"]
    done = subprocess.run(
        [*command, "--bootstrap-servers", kafka.bootstrap_servers],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    rows = json.loads(done.stdout)
    rows = rows["partitions"] if isinstance(rows, dict) else rows
    assert {row["partition"]: (row["committed"], row["lag"]) for row in rows} == {
        p: (end, 0) for p, end in ends.items()
    }
    theirs = described_group(kafka.bootstrap_servers, group)
    assert theirs == {(topic, partition): (end, end, 0) for partition, end in ends.items()}


def rest_for_kcat(servers: str, topic: str, group: str) -> list[str]:
    """What kcat still gets as a member of the group: an independent reader of the same offsets."""
    command = ["kcat", "-b", servers, "-G", group, "-e", "-q", "-X", "auto.offset.reset=earliest", topic]
    done = subprocess.run(
        [*command[:-1], "-X", "enable.partition.eof=true", topic],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()
