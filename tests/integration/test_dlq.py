"""`riverrun dlq` on a real broker: letters of several reasons, counted, shown, mended and sent back, each once."""

import json
import os
import re
import secrets
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

import riverrun as rr
from riverrun.config import KafkaSettings
from riverrun.errors import ProducerFencedError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.dead_letters.redrive import REDRIVEN_HEADER, Redrive
from riverrun.kafka.dead_letters.redrive_log import read_redrive_log
from riverrun.kafka.dead_letters.summary import summarize
from riverrun.model.cluster_state import TopicPartition
from riverrun.testing.pytest_plugin import KafkaUnderTest, local_kafka
from support.cluster import wait_for
from support.consuming import Bench
from support.shell import Shell

pytestmark = pytest.mark.kafka

APP = """
import riverrun as rr

app = rr.App("meters")

class Reading(rr.Event, version=2):
    house_id: str = rr.key()
    load_kw: float = rr.field(ge=0)

app.topic("TOPIC", Reading, partitions=2)
"""
MEND = """
import json

def fix(value, letter):
    assert letter.group == "meters"
    try:
        found = json.loads(value)
    except ValueError:
        return None
    found["load_kw"] = abs(float(found.get("load_kw", 0)))
    return json.dumps(found).encode()
"""


class Reading(rr.Event, version=2):
    house_id: str = rr.key()
    load_kw: float = rr.field(ge=0)


@pytest.fixture
def shell(kafka: KafkaUnderTest, tmp_path: Path) -> Shell:
    return Shell(tmp_path, kafka.bootstrap_servers)


@pytest.fixture
def bench(kafka: KafkaUnderTest, kafka_topic: Callable[..., str]) -> Bench:
    return Bench(kafka.connection, kafka_topic, partitions=2)


def die(bench: Bench, *, typed: bool = True, group: str = "meters", **options: Any) -> int:
    """Read the topic to its end; what cannot be read becomes a dead letter. How many."""
    topic: Any = rr.Topic(bench.topic, Reading, partitions=2) if typed else bench.topic
    with rr.Consumer(topic, group=group, connection=bench.connection, follow=False) as consumer:
        return consumer.run(lambda _: None, on_unreadable="dead-letter", on_error="dead-letter", **options).dead


def all_of(bench: Bench, topic: str = "") -> list[rr.Record[Any]]:
    with rr.Consumer(topic or bench.topic, connection=bench.connection, follow=False) as consumer:
        return list(consumer)


def redriven_of(bench: Bench) -> list[rr.Record[Any]]:
    return [record for record in all_of(bench) if record.header(REDRIVEN_HEADER) is not None]


def redrive(shell: Shell, topic: str, *arguments: str) -> Any:
    return shell.fine("dlq", "redrive", topic, "--yes", "--json", *arguments).json


POISON = [
    (b'{"house_id": "h1", "load_kw": "3.5"}', b"h1", 0),
    (b'{"house_id": "h2", "load_kw": "1"}', b"h2", 1),
    (b'{"house_id": "h3", "load_kw": "2"}', b"h3", 0),
    (b'{"house_id": "h4", "load_kw": -1}', b"h4", 1),
    (b'{"house_id": 5, "load_kw": 1}', b"h5", 0),
    (b"\xff\x00", b"\xfe", 1),
    (b'{"house_id": "h7"', None, 0),
]
GOOD = (b'{"house_id": "h1", "load_kw": 1}', b"h1", 0)


@pytest.fixture
def meters(bench: Bench, shell: Shell) -> Bench:
    """A project whose app declares the topic, with seven letters of five reasons among good records."""
    (shell.root / "app.py").write_text(APP.replace("TOPIC", bench.topic), encoding="utf-8")
    (shell.root / "riverrun.toml").write_text('[project]\napp = "app.py"\n', encoding="utf-8")
    (shell.root / "mend.py").write_text(MEND, encoding="utf-8")
    bench.send([GOOD, *POISON, GOOD], headers=[("trace", b"t-1")])
    assert die(bench) == 7
    return bench


# --- list and show ----------------------------------------------------------------------------------------------------


def test_letters_are_counted_by_reason(shell: Shell, meters: Bench) -> None:
    (found,) = shell.fine("dlq", "list", meters.topic, "--json").json
    assert (found["topic"], found["letters"], found["redriven"], found["waiting"]) == (f"{meters.topic}.dead", 7, 0, 7)
    assert found["oldest"] <= found["newest"]
    first, *rest = found["reasons"]
    assert first["letters"] == 3
    assert first["reason"].endswith("$.load_kw: expected `float`, got `str`.")
    assert [each["letters"] for each in rest] == [1, 1, 1, 1]
    everything = shell.fine("dlq", "list", "--json").json
    assert [each["letters"] for each in everything if each["topic"] == f"{meters.topic}.dead"] == [7]


def test_the_table_has_the_topic_and_then_its_reasons(shell: Shell, meters: Bench) -> None:
    lines = shell.fine("dlq", "list", f"{meters.topic}.dead").lines
    assert lines[0].split() == ["TOPIC", "LETTERS", "REDRIVEN", "WAITING", "OLDEST", "NEWEST"]
    assert lines[1].split()[:4] == [f"{meters.topic}.dead", "7", "0", "7"]
    assert lines[3:5] == [f"{meters.topic}.dead", "LETTERS  WAITING  REASON"]


def test_a_letter_is_shown_with_where_it_was_and_why(shell: Shell, meters: Bench) -> None:
    found = shell.fine("dlq", "show", meters.topic, "--json").json
    assert len(found) == 7
    by_key = {each.get("key"): each for each in found}
    one = by_key["h4"]
    assert one["from"] == f"{meters.topic}[1]@1"
    assert (one["error"], one["group"], one["redriven"]) == ("RecordUnreadableError", "meters", False)
    assert one["value"] == POISON[3][0].decode()
    assert one["headers"] == [{"name": "trace", "value": "t-1"}]
    binary = next(each for each in found if "value_hex" in each)
    assert (binary["value_hex"], binary["key_hex"]) == ("ff00", "fe")
    text = shell.fine("dlq", "show", meters.topic).out
    assert "  value  hex ff00\n" in text
    assert f"from {meters.topic}[1]@1, " in text


def test_letters_are_chosen_by_reason_value_place_and_number(shell: Shell, meters: Bench) -> None:
    def shown(*arguments: str) -> int:
        return len(shell.fine("dlq", "show", meters.topic, "--json", *arguments).json)

    assert shown("--reason", "GOT `str`") == 3
    assert shown("--reason", "got `str`", "--where", "house_id=h2") == 1
    assert shown("--partition", "0", "--offset", "3") == 1
    assert shown("--limit", "2") == 2
    few = shell.fine("dlq", "show", meters.topic, "--limit", "2")
    assert few.err == "The first 2; there are more: --limit N shows N.\n"
    assert shell.fine("dlq", "show", meters.topic, "--reason", "nothing like it").out == ""


def test_raw_writes_the_very_bytes(shell: Shell, meters: Bench) -> None:
    found = shell.fine("dlq", "show", meters.topic, "--json").json
    offset = next(each["letter"].partition("@")[2] for each in found if "value_hex" in each)
    done = subprocess.run(
        ["riverrun", "dlq", "show", meters.topic, "--offset", offset, "--raw"],
        cwd=shell.root,
        env=shell.environ,
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == b"\xff\x00"


def test_nothing_dead_is_said_and_is_no_failure(shell: Shell, bench: Bench) -> None:
    bench.fill(3)
    for arguments in (["list"], ["show"], ["redrive"]):
        done = shell.fine("dlq", *arguments, bench.topic)
        assert (done.out, done.err) == ("", f"Nothing of {bench.topic} is dead.\n")
    assert shell.fine("dlq", "show", bench.topic, "--json").json == []
    assert redrive(shell, bench.topic)["sent"] == {}


# --- redrive ----------------------------------------------------------------------------------------------------------


def test_a_dry_run_and_a_missing_yes_send_nothing(shell: Shell, meters: Bench) -> None:
    dry = shell.fine("dlq", "redrive", meters.topic, "--fix", "mend.py", "--dry-run", "--json").json
    assert dry["sent"] == {meters.topic: 4}
    refused = shell.riverrun("dlq", "redrive", meters.topic, "--fix", "mend.py:fix")
    assert refused.code == 2
    assert f"4 records to {meters.topic}" in refused.err
    assert redriven_of(meters) == []
    assert f"{meters.topic}.dead.redriven" not in meters.admin.topics()


def test_mended_letters_go_back_once_and_the_rest_stays(shell: Shell, meters: Bench) -> None:
    done = redrive(shell, meters.topic, "--fix", "mend.py:fix")
    assert done["sent"] == {meters.topic: 4}
    assert done["left"] == {
        "the fix left it": 2,
        "still not a Reading: $.house_id: expected `str`, got `int`": 1,
    }
    found = {record.key: record for record in redriven_of(meters)}
    assert sorted(json.loads(each.raw or b"")["load_kw"] for each in found.values()) == [1.0, 1.0, 2.0, 3.5]
    one = found[b"h4"]
    assert [name for name, _ in one.headers] == ["trace", "riverrun.schema", REDRIVEN_HEADER]
    assert one.header("riverrun.schema") == b"Reading/2"
    assert re.fullmatch(rf"{meters.topic}\.dead/0/\d", (one.header(REDRIVEN_HEADER) or b"").decode())

    again = redrive(shell, meters.topic, "--fix", "mend.py:fix")
    assert (again["sent"], again["redriven_before"], sum(again["left"].values())) == ({}, 4, 3)
    assert len(redriven_of(meters)) == 4
    (counted,) = shell.fine("dlq", "list", meters.topic, "--json").json
    assert (counted["letters"], counted["redriven"], counted["waiting"]) == (7, 4, 3)
    assert len(shell.fine("dlq", "show", meters.topic, "--json").json) == 3
    assert len(shell.fine("dlq", "show", meters.topic, "--all", "--json").json) == 7
    assert die(meters) == 0


def test_what_is_still_no_event_stays_without_a_fix_too(shell: Shell, meters: Bench) -> None:
    done = shell.fine("dlq", "redrive", meters.topic, "--yes")
    assert "7 letters left" in done.err
    assert redriven_of(meters) == []


def test_filters_and_repeated_runs_are_exact(shell: Shell, meters: Bench) -> None:
    mend = ("--fix", "mend.py")
    assert redrive(shell, meters.topic, *mend, "--reason", "got `str`", "--limit", "2")["sent"] == {meters.topic: 2}
    assert redrive(shell, meters.topic, *mend, "--where", "house_id=h4")["sent"] == {meters.topic: 1}
    last = redrive(shell, meters.topic, *mend)
    assert (last["sent"], last["redriven_before"]) == ({meters.topic: 1}, 3)
    assert Counter(each.key for each in redriven_of(meters)) == Counter([b"h1", b"h2", b"h3", b"h4"])


def test_one_letter_can_be_named(shell: Shell, meters: Bench) -> None:
    found = shell.fine("dlq", "show", meters.topic, "--where", "house_id=h2", "--json").json
    offset = found[0]["letter"].partition("@")[2]
    assert redrive(shell, meters.topic, "--fix", "mend.py", "--offset", offset)["sent"] == {meters.topic: 1}
    assert [each.key for each in redriven_of(meters)] == [b"h2"]


def test_a_fix_that_raises_on_one_letter_sends_nothing(shell: Shell, meters: Bench) -> None:
    (shell.root / "mend.py").write_text(
        "import json\ndef fix(value, letter): return b'%d' % json.loads(value)['load_kw']\n"
    )
    done = shell.riverrun("dlq", "redrive", meters.topic, "--fix", "mend.py", "--yes")
    assert done.code == 1
    assert re.search(
        rf"HANDLER_FAILED\S*  fix of mend.py failed on the dead letter {meters.topic}.dead\[0\]@\d", done.err
    )
    assert "mend.py:2: TypeError" in done.err
    assert redriven_of(meters) == []


def test_what_a_fix_prints_does_not_mix_with_the_result(shell: Shell, meters: Bench) -> None:
    (shell.root / "mend.py").write_text("def fix(value, letter): print('looking')\n")
    done = shell.fine("dlq", "redrive", meters.topic, "--fix", "mend.py", "--yes", "--json")
    assert done.json["left"] == {"the fix left it": 7}
    assert "looking" in done.err


def test_without_a_type_records_go_back_as_they_are_and_may_die_again(shell: Shell, bench: Bench) -> None:
    bench.send([(b"{bad", b"k", 1), (b"\xff", None, 0)], headers=[("a", b"1")])
    assert die(bench, typed=False) == 2
    assert redrive(shell, bench.topic)["sent"] == {bench.topic: 2}
    found = redriven_of(bench)
    assert sorted((each.raw, each.key) for each in found if each.key) == [(b"{bad", b"k")]
    assert {each.headers[0] for each in found} == {("a", b"1")}
    assert die(bench, typed=False) == 2
    (counted,) = shell.fine("dlq", "list", bench.topic, "--json").json
    assert (counted["letters"], counted["waiting"], counted["died_again"]) == (4, 2, 2)
    assert redrive(shell, bench.topic)["sent"] == {bench.topic: 2}
    assert [len([name for name, _ in each.headers if name == REDRIVEN_HEADER]) for each in redriven_of(bench)] == [
        1
    ] * 4


def test_a_record_that_two_groups_gave_up_goes_back_once(shell: Shell, bench: Bench) -> None:
    bench.send([(b"{bad", b"k", 1), (b"{worse", b"k", 1)])
    assert [die(bench, typed=False, group=each) for each in ("one", "two")] == [2, 2]
    done = redrive(shell, bench.topic)
    assert (done["sent"], done["doubles"]) == ({bench.topic: 2}, 2)
    assert len(redriven_of(bench)) == 2
    (counted,) = shell.fine("dlq", "list", bench.topic, "--json").json
    assert (counted["redriven"], counted["waiting"]) == (4, 0)


def test_a_topic_of_ones_choice_holds_letters_of_several_topics(
    shell: Shell, bench: Bench, kafka: KafkaUnderTest, kafka_topic: Callable[..., str]
) -> None:
    other = Bench(kafka.connection, kafka_topic, partitions=2)
    name = f"graveyard-{secrets.token_hex(4)}"
    for each in (bench, other):
        each.send([(b"{bad", b"k", 0)])
        assert die(each, typed=False, dead_letter=name) == 1
    other.admin.delete_topics([other.topic])
    done = redrive(shell, name)
    assert done["sent"] == {bench.topic: 1}
    assert done["left"] == {f"its topic {other.topic} is not there any more": 1}
    assert len(redriven_of(bench)) == 1


def test_a_record_too_large_for_its_topic_stays(
    shell: Shell, kafka: KafkaUnderTest, kafka_topic: Callable[..., str]
) -> None:
    small = kafka_topic(partitions=2, config={"max.message.bytes": "2000"})
    bench = Bench(kafka.connection, kafka_topic, partitions=2, topic=small)
    for _ in range(5):
        bench.send([(b"{" + os.urandom(900), b"k", 0)])
    assert die(bench, typed=False) == 5
    (shell.root / "mend.py").write_text("def fix(value, letter): return value * 3 if letter.offset == 0 else value\n")
    done = redrive(shell, small, "--fix", "mend.py")
    assert done["left"] == {f"it is larger than {small} takes (max.message.bytes=2000)": 1}
    assert len(redriven_of(bench)) == 4


def test_topics_deleted_and_made_again_begin_anew(shell: Shell, bench: Bench) -> None:
    for _ in range(2):
        bench.send([(b"{bad", b"k", 1)], timestamp=1_782_900_000_000)
        assert die(bench, typed=False, group=f"g-{secrets.token_hex(4)}") == 1
        assert redrive(shell, bench.topic)["sent"] == {bench.topic: 1}
        assert len(redriven_of(bench)) == 1
        # The ledger stays, as it would be left by somebody who deletes what they know of.
        bench.admin.delete_topics([bench.topic, f"{bench.topic}.dead"])
        bench.admin.create_topic(bench.topic, partitions=2, replicas=0, config={"retention.ms": "-1"})


def test_entries_of_letters_that_retention_removed_are_taken_back(shell: Shell, bench: Bench) -> None:
    bench.send([(b"{bad", b"k", 1), (b"{worse", b"k", 1)])
    assert die(bench, typed=False) == 2
    redrive(shell, bench.topic)
    dead = f"{bench.topic}.dead"
    bench.admin.delete_records({TopicPartition(dead, 0): 1})
    bench.send([(b"{more", b"k", 1)])
    # The two that came back die again, and a new one with them.
    assert die(bench, typed=False) == 3
    assert redrive(shell, bench.topic)["sent"] == {bench.topic: 3}
    ledger = all_of(bench, f"{dead}.redriven")
    assert [each.key for each in ledger if each.deleted] == [b"0/0"]


# --- in the middle ----------------------------------------------------------------------------------------------------


def many(bench: Bench, count: int, size: int) -> set[bytes]:
    """So many letters, each of a value of its own that does not compress well."""
    values = [b"{%d %s" % (number, secrets.token_hex(size // 2).encode()) for number in range(count)]
    bench.send((value, b"k%d" % (number % 7), number % 2) for number, value in enumerate(values))
    with rr.Consumer(bench.topic, group="meters", connection=bench.connection, follow=False) as consumer:
        metrics = consumer.run(lambda _: None, on_unreadable="dead-letter", workers=8, order="none")
    assert metrics.dead == count
    return set(values)


def end_of(bench: Bench, *, committed_only: bool) -> int:
    places = [bench.place(0), bench.place(1)]
    return sum(bench.admin.offsets(places, "latest", committed_only=committed_only).values())


def moved(bench: Bench, past: int, child: "subprocess.Popen[bytes]") -> bool:
    return end_of(bench, committed_only=False) > past or child.poll() is not None


@pytest.mark.slow
def test_killed_again_and_again_each_is_sent_once(shell: Shell, bench: Bench) -> None:
    values = many(bench, 4000, 6000)
    kills_inside = 0
    # Soon after its first records, which is inside its first transaction; and inside a later one, after some are committed.
    for sent in (10, 10, 700, 10, 10, 700):
        # Ending what the last kill left open adds a marker to each partition; more than that is records.
        before = end_of(bench, committed_only=False)
        child = shell.start("dlq", "redrive", bench.topic, "--yes")
        wait_for(partial(moved, bench, before + sent, child), 60, "nothing was sent")
        assert child.poll() is None, "it was done before it could be killed"
        child.kill()
        child.communicate()
        kills_inside += end_of(bench, committed_only=True) < end_of(bench, committed_only=False)
    assert kills_inside, "no kill was inside a transaction"
    last = redrive(shell, bench.topic)
    assert last["sent"][bench.topic] + last["redriven_before"] == 4000
    assert last["redriven_before"] > 0
    found = redriven_of(bench)
    assert len(found) == 4000
    assert {record.raw for record in found} == values
    assert len({record.header(REDRIVEN_HEADER) for record in found}) == 4000


def test_ctrl_c_leaves_what_is_sent_and_noted(shell: Shell, bench: Bench, tmp_path: Path) -> None:
    many(bench, 1200, 100)
    (shell.root / "mend.py").write_text(
        # The first time through is the check; the second sends, and stops inside the third chunk.
        "import pathlib, time\ncalls = 0\ndef fix(value, letter):\n    global calls\n    calls += 1\n"
        "    if calls == 1200 + 1100:\n        pathlib.Path('there').touch()\n        time.sleep(60)\n    return value\n"
    )
    child = shell.start("dlq", "redrive", bench.topic, "--fix", "mend.py", "--yes")
    wait_for((tmp_path / "there").exists, 60, "it did not get there")
    os.kill(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert f"Stopped: 1,000 letters of {bench.topic}.dead re-driven; the rest waits as before." in err.decode()
    assert len(redriven_of(bench)) == 1000
    assert redrive(shell, bench.topic)["sent"] == {bench.topic: 200}
    assert len({each.header(REDRIVEN_HEADER) for each in redriven_of(bench)}) == 1200


def test_of_two_at_a_time_the_later_one_takes_over(bench: Bench) -> None:
    many(bench, 1200, 100)
    dead = f"{bench.topic}.dead"
    first, second = Redrive(bench.admin, dead), Redrive(bench.admin, dead)
    assert first.plan().sent_count == second.plan().sent_count == 1200

    def interfere(done: int, _: int) -> None:
        if done == 800:
            second.run()

    with pytest.raises(ProducerFencedError, match="Another re-drive of"):
        first.run(interfere)
    assert (first.done.sent_count, second.done.sent_count) == (500, 700)
    assert len({each.header(REDRIVEN_HEADER) for each in redriven_of(bench)}) == len(redriven_of(bench)) == 1200
    assert summarize(bench.admin, dead).count.waiting == 0
    assert len(read_redrive_log(bench.admin, dead)._letters) == 1200


def test_a_right_that_is_missing_is_named(tmp_path: Path) -> None:
    rights = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with local_kafka(tmp_path / "kafka", KafkaSettings(broker=rights)) as running:
        address = running.bootstrap_servers
        connection = Connection(KafkaSettings(bootstrap_servers=address))
        Admin(connection).create_topic("readings", partitions=2, replicas=0, config={})
        bench = Bench(connection, lambda **_: "readings", partitions=2)
        bench.send([(b"{bad", b"k", 1)])
        assert die(bench, typed=False) == 1
        deny = AclBinding(
            ResourceType.TOPIC, "readings.dead.redriven", ResourcePatternType.LITERAL, "User:ANONYMOUS", "*",
            AclOperation.ALL, AclPermissionType.DENY,
        )  # fmt: skip
        owner = AdminClient({"bootstrap.servers": address})
        for future in owner.create_acls([deny]).values():
            future.result(30)
        done = Shell(tmp_path, address).riverrun("dlq", "redrive", "readings", "--yes")
        assert done.code == 1
        assert "KAFKA_AUTHORIZATION" in done.err
        assert (
            "The topic readings.dead.redriven, in which riverrun notes what was re-driven, cannot be used" in done.err
        )
        assert redriven_of(bench) == []
