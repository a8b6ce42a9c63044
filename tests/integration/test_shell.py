"""`riverrun produce` and `riverrun consume` as a shell uses them: pipes, files, terminals, signals."""

import contextlib
import itertools
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from riverrun.errors import OffsetOutOfRangeError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.producer.producer import Producer
from riverrun.kafka.reading.partition_reader import OffsetRange, PartitionReader
from riverrun.model.cluster_state import TopicPartition
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.cluster import wait_for
from support.shell import Shell

pytestmark = pytest.mark.kafka

APP = """
from datetime import datetime
import riverrun as rr

app = rr.App("meters")

class Reading(rr.Event, version=2):
    house_id: str = rr.key()
    load_kw: float = rr.field(ge=0)
    at: datetime = rr.event_time()

app.topic("TOPIC", Reading, partitions=2, retention="1 day")
"""
# The records of these tests have fixed times, long past: retention would remove them while they are read.
FOREVER = {"retention.ms": "-1"}
GOOD = '{"house_id": "h1", "load_kw": 1.5, "at": "2026-07-01T10:00:00Z"}'


@pytest.fixture
def admin(kafka: KafkaUnderTest) -> Admin:
    return Admin(kafka.connection)


@pytest.fixture
def shell(kafka: KafkaUnderTest, tmp_path: Path) -> Shell:
    return Shell(tmp_path, kafka.bootstrap_servers)


@pytest.fixture
def name() -> str:
    return f"shell-{secrets.token_hex(4)}"


@pytest.fixture
def typed(shell: Shell, name: str) -> str:
    """A topic with a type, declared in the project's app and created."""
    (shell.root / "app.py").write_text(APP.replace("TOPIC", name), encoding="utf-8")
    (shell.root / "riverrun.toml").write_text('[project]\napp = "app.py"\n', encoding="utf-8")
    shell.fine("topics", "apply")
    return name


def numbered(topic: str, admin: Admin, count: int, partitions: int = 1) -> None:
    with Producer(admin.connection) as producer:
        for number in range(count):
            producer.send_soon(
                topic, {"n": number}, key=f"k{number}", partition=number % partitions,
                timestamp=1_782_900_000_000 + number * 1000,
            )  # fmt: skip


def numbers(lines: list[str]) -> list[int]:
    return [json.loads(line)["n"] for line in lines]


# --- produce ----------------------------------------------------------------------------------------------------------


def test_what_goes_in_comes_out(shell: Shell, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic()
    lines = ['{"b": 1,  "a": "é"}', "[1, 2]", '"text"', "null", "3.50"]
    done = shell.fine("produce", topic, stdin="\n\n".join(lines))
    assert done.err == f"5 records acknowledged by {topic} (1 partition).\n"
    assert done.out == ""
    assert shell.fine("consume", topic).lines == lines


def test_a_topic_that_is_not_there(shell: Shell, admin: Admin, name: str) -> None:
    done = shell.riverrun("produce", name, stdin="1\n")
    assert done.code == 1
    assert "say --create to make it" in done.err.lower()
    assert admin.topics([name]) == {}
    shell.fine("produce", name, "--create", "--partitions", "3", stdin="1\n")
    assert len(admin.topic(name).partitions) == 3
    assert f"Did you mean {name}?" in shell.riverrun("produce", f"{name}x", stdin="1\n").err


def test_it_stops_at_the_first_bad_line_and_says_what_is_done(shell: Shell, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic()
    (shell.root / "in.jsonl").write_text('{"n": 1}\n{"n": 2}\n\noops\n{"n": 3}\n', encoding="utf-8")
    for arguments, stdin in ((["in.jsonl"], ""), ([], (shell.root / "in.jsonl").read_text(encoding="utf-8"))):
        done = shell.riverrun("produce", topic, *arguments, stdin=stdin)
        assert done.code == 1
        source = "in.jsonl" if arguments else "stdin"
        assert done.err.startswith(f"EVENT_INVALID  {source}:4: JSON is malformed: invalid character")
        assert "2 records before it were acknowledged" in done.err
    assert numbers(shell.fine("consume", topic).lines) == [1, 2, 1, 2]


def test_bad_lines_can_be_skipped_counted_and_kept(shell: Shell, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic()
    text = b'{"n": 1}\n' + b"oops\n" * 15 + b'{"a": "\xff"}\n{"n": 2}'
    done = shell.fine("produce", topic, "--bad-to", "bad.txt", "--json", stdin=text)
    assert done.json["acknowledged"] == 2
    assert done.json["bad"] == 16
    assert len(re.findall(r"stdin:\d+: ", done.err)) == 10
    assert "16 lines of stdin skipped; they are in bad.txt." in done.err
    assert (shell.root / "bad.txt").read_bytes() == b"oops\n" * 15 + b'{"a": "\xff"}\n'
    assert numbers(shell.fine("consume", topic).lines) == [1, 2]


def test_a_declared_type_is_checked_and_gives_key_and_header(shell: Shell, typed: str) -> None:
    shell.fine("produce", typed, stdin=GOOD)
    (line,) = shell.fine("consume", typed, "--json").lines
    record = json.loads(line)
    assert (record["key"], record["headers"]) == ("h1", {"riverrun.schema": "Reading/2"})
    assert record["value"] == json.loads(GOOD)
    refused = shell.riverrun("produce", typed, stdin=GOOD.replace("1.5", '"much"'))
    assert refused.code == 1
    assert "stdin:1: $.load_kw: expected `float`, got `str`" in refused.err
    assert "0 records before it were acknowledged" in refused.err
    assert shell.riverrun("produce", typed, "--key", "at", stdin=GOOD).code == 2


def test_csv_with_a_type_and_without(shell: Shell, typed: str, kafka_topic: Callable[..., str]) -> None:
    text = "house_id,load_kw,at\nh1,1.5,2026-07-01T10:00:00Z\nh2,,2026-07-01T10:00:00Z\n"
    done = shell.fine("produce", typed, "--csv", "--skip-bad", stdin=text)
    assert "stdin:3: object missing required field `load_kw`" in done.err
    assert [json.loads(line)["load_kw"] for line in shell.fine("consume", typed).lines] == [1.5]
    topic = kafka_topic()
    shell.fine("produce", topic, "--csv", "--key", "house_id", stdin=text)
    found = [json.loads(line) for line in shell.fine("consume", topic, "--json").lines]
    assert [(each["key"], each["value"]["load_kw"]) for each in found] == [("h1", "1.5"), ("h2", "")]


def test_keys_from_a_field_or_before_a_separator(shell: Shell, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic()
    shell.fine("produce", topic, "--key", "house.id", "--header", "from=test", stdin='{"house": {"id": 7}}')
    shell.fine("produce", topic, "--key-separator", r"\t", stdin="k2\t[2]\n")
    shell.fine("produce", topic, "--text", "--key-separator", ":", stdin="k3: any text\n")
    assert shell.fine("consume", topic, "--keys").lines == ['7\t{"house": {"id": 7}}', "k2\t[2]", "k3\t any text"]
    first = json.loads(shell.fine("consume", topic, "--json", "--limit", "1").out)
    assert first["headers"] == {"from": "test"}


def test_a_round_trip_keeps_keys(shell: Shell, admin: Admin, kafka_topic: Callable[..., str]) -> None:
    first, second = kafka_topic("first", config=FOREVER), kafka_topic("second", config=FOREVER)
    numbered(first, admin, 50)
    copied = shell.line(f"riverrun consume {first} --keys | riverrun produce {second} --key-separator '\\t'")
    assert copied.code == 0
    assert shell.fine("consume", second, "--keys").lines == shell.fine("consume", first, "--keys").lines


def test_a_record_that_is_too_large_is_a_bad_line(shell: Shell, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic(config={"max.message.bytes": "10000"})
    large = json.dumps({"text": os.urandom(10_000).hex()})
    done = shell.riverrun("produce", topic, stdin=f"1\n{large}\n2\n")
    assert done.code == 1
    assert "stdin:2: it is longer than a record may be (10000 bytes)" in done.err
    # Many that fit go through, though together they are more than one batch may be.
    many = "".join(json.dumps({"text": os.urandom(3000).hex()}) + "\n" for _ in range(20))
    assert "20 records" in shell.fine("produce", topic, stdin=many).err


def test_a_slow_pipe_does_not_hold_records_back(shell: Shell, admin: Admin, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic()
    child = shell.start("produce", topic)
    assert child.stdin is not None
    follower = shell.start("consume", topic, "--follow", "--limit", "2")
    try:
        for line in (b"1\n", b"2\n"):
            child.stdin.write(line)
            child.stdin.flush()
        # The producer's input is still open: the records are there all the same.
        out, _ = follower.communicate(timeout=60)
        assert out == b"1\n2\n"
        _, err = child.communicate(timeout=60)
        assert b"2 records acknowledged" in err
    finally:
        child.kill()
        follower.kill()
        child.wait()
        follower.wait()


def test_a_rate_is_kept(shell: Shell, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic()
    text = "".join(f"{number}\n" for number in range(100))
    done = shell.fine("produce", topic, "--rate", "100", "--json", stdin=text).json
    assert done["acknowledged"] == 100
    assert 0.85 < done["seconds"] < 10


def test_memory_stays_bounded(shell: Shell, kafka_topic: Callable[..., str]) -> None:
    """400 MB of lines through a process that may have 450 MB of data in all, stacks of threads included."""
    topic = kafka_topic(config={"retention.bytes": "1000000", "segment.bytes": "1048576"})
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, (450 << 20, 450 << 20)); "
        "from riverrun.cli.main import run; sys.exit(run(sys.argv[1:]))"
    )
    line = json.dumps({"text": "x" * 4000}).encode() + b"\n"
    with subprocess.Popen(
        [sys.executable, "-c", limited, "produce", topic, "--json"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=shell.environ, cwd=shell.root,
    ) as child:  # fmt: skip
        assert child.stdin is not None
        for _ in range(1000):
            child.stdin.write(line * 100)
        out, err = child.communicate(timeout=120)
    assert child.returncode == 0, err.decode()
    assert json.loads(out)["acknowledged"] == 100_000


# --- consume ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], range(20)),
        (["--from", "15"], range(15, 20)),
        (["--from", "-3"], range(17, 20)),
        (["--from", "latest"], []),
        (["--from", "2026-07-01T10:00:12Z"], range(12, 20)),
        (["--from", "5", "--to", "8"], range(5, 8)),
        (["--to", "2026-07-01T10:00:03Z"], range(3)),
        (["--limit", "4"], range(4)),
        (["--where", "n>=18"], range(18, 20)),
        (["--where", "n>3", "--where", "n<7", "--limit", "2"], range(4, 6)),
        (["--partition", "0", "--from", "99"], []),
    ],
)
def test_from_and_to(
    flags: list[str], expected: range, admin: Admin, shell: Shell, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(config=FOREVER)
    numbered(topic, admin, 20)
    assert numbers(shell.fine("consume", topic, *flags).lines) == list(expected)


def test_the_last_records_of_a_topic_come_from_all_its_partitions(
    admin: Admin, shell: Shell, kafka_topic: Callable[..., str]
) -> None:
    topic, other = kafka_topic(partitions=3, config=FOREVER), kafka_topic("other", config=FOREVER)
    numbered(topic, admin, 30, partitions=3)
    numbered(other, admin, 30)
    assert numbers(shell.fine("consume", topic, "--from", "-5").lines) == [25, 26, 27, 28, 29]
    both = [json.loads(line) for line in shell.fine("consume", topic, other, "--from", "-2", "--json").lines]
    assert sorted((each["topic"], each["value"]["n"]) for each in both) == sorted(
        [(topic, 28), (topic, 29), (other, 28), (other, 29)]
    )
    only = shell.fine("consume", topic, "--partition", "1", "--from", "-2").lines
    assert numbers(only) == [25, 28]


def test_only_committed_records_and_no_wait_for_open_transactions(
    admin: Admin, shell: Shell, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic()
    with Producer(admin.connection, transactional_id=f"t-{topic}") as producer:
        with producer.transaction() as transaction:
            transaction.send(topic, b"1")
        with contextlib.suppress(ZeroDivisionError), producer.transaction() as transaction:
            transaction.send(topic, b"2")
            raise ZeroDivisionError
        with producer.transaction() as transaction:
            transaction.send(topic, b"3")
        with producer.transaction() as transaction:
            transaction.send_soon(topic, b"4").result(30)
            assert shell.fine("consume", topic).lines == ["1", "3"]
    assert shell.fine("consume", topic).lines == ["1", "3", "4"]


def test_any_bytes_are_printed(admin: Admin, shell: Shell, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic(config={"cleanup.policy": "compact"})
    with Producer(admin.connection) as producer:
        producer.send(topic, b"\xff\x00", key=b"a")
        producer.send(topic, b"plain text", key=b"b")
        producer.send(topic, None, key=b"c")
    found = [json.loads(line) for line in shell.fine("consume", topic, "--json").lines]
    assert found[0]["value_base64"] == "/wA="
    assert found[1]["value_text"] == "plain text"
    assert found[2]["value"] is None
    assert shell.fine("consume", topic).out == "\\xff\x00\nplain text\nnull\n"
    assert "plain text" in shell.fine("consume", topic, "--table").out


def test_a_table_has_a_column_for_each_field(admin: Admin, shell: Shell, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic()
    shell.fine("produce", topic, "--key", "id", stdin='{"id": "a", "load_kw": 1.5}\n{"id": "b", "note": "x"}\n')
    head, *rows = shell.fine("consume", topic, "--table").lines
    assert head.split() == ["PARTITION", "OFFSET", "TIME", "KEY", "ID", "LOAD", "KW", "NOTE"]
    assert [row.split()[3:] for row in rows] == [["a", "a", "1.5", "-"], ["b", "b", "-", "x"]]


def test_nothing_there_is_said(shell: Shell, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic()
    done = shell.fine("consume", topic)
    assert (done.out, done.err) == ("", f"There are no such records in {topic}.\n")


def test_head_ends_it_quietly(admin: Admin, shell: Shell, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic()
    (shell.root / "many").write_text("".join(f'{{"n": {number}}}\n' for number in range(200_000)), encoding="utf-8")
    shell.fine("produce", topic, "many")
    done = shell.line(f"riverrun consume {topic} | head -2")
    assert (done.code, numbers(done.lines), done.err) == (0, [0, 1], "")
    followed = shell.line(f"riverrun consume {topic} --follow --from -3 | head -3")
    assert (followed.code, len(followed.lines)) == (0, 3)


def test_follow_goes_on_and_ends_with_ctrl_c(admin: Admin, shell: Shell, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic(config=FOREVER)
    numbered(topic, admin, 3)
    child = shell.start("consume", topic, "--follow")
    assert child.stdout is not None
    try:
        assert [child.stdout.readline() for _ in range(3)] == [b'{"n":0}\n', b'{"n":1}\n', b'{"n":2}\n']
        numbered(topic, admin, 1)
        assert child.stdout.readline() == b'{"n":0}\n'
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
        assert child.returncode == 0
        assert err.decode().strip() == "4 records."
    finally:
        child.kill()
        child.wait()


def test_a_topic_that_is_deleted_ends_its_follower(admin: Admin, shell: Shell, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic()
    shell.fine("produce", topic, stdin="1\n")
    child = shell.start("consume", topic, "--follow")
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"1\n"
        admin.delete_topics([topic])
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 1
    assert err.decode().startswith(f"TOPIC_NOT_FOUND  The cluster has no topic {topic}")


def test_what_retention_removed_before_it_was_read_is_counted(admin: Admin, kafka_topic: Callable[..., str]) -> None:
    """The command looks where the log begins and starts there; a log whose beginning moves meanwhile is the reader's."""
    topic = kafka_topic(config=FOREVER)
    place = TopicPartition(topic, 0)
    numbered(topic, admin, 10)
    admin.delete_records({place: 4})
    gone: list[tuple[TopicPartition, int, int]] = []
    with PartitionReader(
        admin.connection, {place: OffsetRange(1, 8)}, on_gone=lambda *what: gone.append(what)
    ) as reader:
        offsets = [record.offset() for batch in reader for record in batch]
    assert gone == [(place, 1, 3)]
    assert offsets == [4, 5, 6, 7]
    with PartitionReader(
        admin.connection, {place: OffsetRange(0, 3)}, on_gone=lambda *what: gone.append(what)
    ) as reader:
        assert [record for batch in reader for record in batch] == []


def test_a_log_that_went_back_is_told_and_not_counted_as_gone(admin: Admin, kafka_topic: Callable[..., str]) -> None:
    """A topic made again while it is read: there were «-7 records gone»."""
    topic = kafka_topic(config=FOREVER)
    place = TopicPartition(topic, 0)
    numbered(topic, admin, 3)
    gone: list[tuple[TopicPartition, int, int]] = []
    cut: list[OffsetOutOfRangeError] = []
    with PartitionReader(
        admin.connection, {place: OffsetRange(10, 12)}, on_gone=lambda *what: gone.append(what), on_truncated=cut.append
    ) as reader:
        offsets = [record.offset() for batch in reader for record in batch]
    assert not gone
    assert f"{topic}[0] was to be read from offset 10 on, and its log ends at 3" in str(cut[0])
    assert offsets == [0, 1, 2]
    with (
        PartitionReader(admin.connection, {place: OffsetRange(10, None)}) as reader,
        pytest.raises(OffsetOutOfRangeError, match="made again"),
    ):
        list(itertools.islice(reader, 100))


def test_a_group_goes_on_where_it_stands(
    admin: Admin, shell: Shell, name: str, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(config=FOREVER)
    numbered(topic, admin, 10)
    assert numbers(shell.fine("consume", topic, "--group", name, "--limit", "4").lines) == [0, 1, 2, 3]
    assert admin.committed_offsets(name) == {TopicPartition(topic, 0): 4}
    limited = shell.fine("consume", topic, "--group", name, "--where", "n>4", "--limit", "2")
    assert numbers(limited.lines) == [5, 6]
    assert admin.committed_offsets(name) == {TopicPartition(topic, 0): 7}
    assert numbers(shell.fine("consume", topic, "--group", name, "--follow", "--limit", "1").lines) == [7]
    assert len(shell.fine("consume", topic, "--group", name, "--table").lines) == 3
    assert admin.committed_offsets(name) == {TopicPartition(topic, 0): 10}
    assert shell.fine("consume", topic, "--group", name).out == ""
    late = shell.fine("consume", topic, "--group", f"{name}-late", "--from", "2026-07-01T10:00:08Z")
    assert numbers(late.lines) == [8, 9]


def test_two_of_a_group_share_the_partitions(
    admin: Admin, shell: Shell, name: str, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=2, config=FOREVER)
    members = [shell.start("consume", topic, "--group", name, "--follow") for _ in range(2)]
    try:
        wait_for(lambda: shares(admin, name) == [1, 1], 60, "the partitions are not shared")
        numbered(topic, admin, 100, partitions=2)
        wait_for(lambda: sum(admin.committed_offsets(name).values()) == 100, 60, "not all is committed")
        outputs = []
        for child in members:
            child.send_signal(signal.SIGINT)
            outputs.append(numbers(child.communicate(timeout=60)[0].decode().splitlines()))
            assert child.returncode == 0
    finally:
        for child in members:
            child.kill()
            child.wait()
    assert [len(output) for output in outputs] == [50, 50]
    assert sorted(outputs[0] + outputs[1]) == list(range(100))


def shares(admin: Admin, group: str) -> list[int]:
    """How many partitions each member of a group has."""
    found = admin.groups([group]).get(group)
    return [len(member.assignment) for member in found.members] if found else []


@pytest.mark.parametrize(
    "flags",
    [
        ["--group", "g", "--from", "-5"],
        ["--group", "g", "--to", "5"],
        ["--json", "--table"],
        ["--follow", "--to", "5"],
        ["--from", "whenever"],
        ["--where", "n"],
        ["--partition", "9"],
    ],
)
def test_wrong_flags_are_refused(flags: list[str], shell: Shell, kafka_topic: Callable[..., str]) -> None:
    done = shell.riverrun("consume", kafka_topic(), *flags)
    assert done.code == 2
    assert done.err.startswith("USAGE  ")


def test_interactive_produce_invites(shell: Shell, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic()
    done = shell.at_terminal("produce", topic, typed="1\n2\n\x04")
    assert done.code == 0
    assert "Ctrl-D ends" in done.err
    assert shell.fine("consume", topic).lines == ["1", "2"]


def test_two_readers_see_the_same(admin: Admin, shell: Shell, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic(partitions=2, config=FOREVER)
    numbered(topic, admin, 100, partitions=2)
    seen: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: seen.append(sorted(numbers(shell.fine("consume", topic).lines))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [list(range(100))] * 2
