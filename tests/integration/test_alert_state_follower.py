"""The alerts page on a real broker: the ledger is waited for, followed, and followed again when brokers or the topic come
back; what people say reaches the process that sends."""

import asyncio
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from riverrun.alerts.engine import AlertEngine
from riverrun.alerts.kafka_log import KafkaAlertLog, publish_changes
from riverrun.alerts.state_topic import AlertState, alerts_topic_name, encode_upsert
from riverrun.dashboard.alerts import state_follower
from riverrun.dashboard.alerts.live import AlertsBroadcast
from riverrun.dashboard.alerts.state_follower import AlertStateFollower
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.producer import Producer
from support.alerted import quiet
from support.producing import Fragile, fragile_kafka
from support.watching import Gateway, rule, table

pytestmark = pytest.mark.kafka
MOST_SECONDS = 60.0


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fragile]:
    with fragile_kafka(tmp_path_factory.mktemp("fragile")) as broker:
        yield broker


@pytest.fixture
def followed(fragile: Fragile, monkeypatch: pytest.MonkeyPatch) -> Iterator["Followed"]:
    monkeypatch.setattr(state_follower, "RETRY_SECONDS", 0.2)
    monkeypatch.setattr(state_follower, "MAX_RETRY_SECONDS", 0.5)
    monkeypatch.setattr(state_follower, "POLL_SECONDS", 0.2)
    found = Followed(fragile)
    yield found
    found.follower.close()


class Followed:
    """An app of its own, and who follows its alerts."""

    def __init__(self, fragile: Fragile) -> None:
        self.fragile = fragile
        # Brokers that stand still are soon known to.
        self.connection = Connection(replace(fragile.connection.settings, request_timeout_seconds=1))
        self.app = f"town-{secrets.token_hex(4)}"
        self.follower = AlertStateFollower(self.connection, self.app)
        self.changes = threading.Semaphore(0)

    def start(self) -> None:
        self.follower.start(self.changes.release)

    def until(self, found: Callable[[AlertState], bool]) -> None:
        self.wait(lambda: self.follower.read(found))

    def wait(self, condition: Callable[[], bool]) -> None:
        """For a change after which it holds."""
        deadline = time.monotonic() + MOST_SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.follower.status()
            self.changes.acquire(timeout=0.1)


def test_the_ledger_is_waited_for_and_followed(followed: Followed) -> None:
    assert followed.follower.status().version == 0
    followed.start()
    followed.wait(lambda: followed.follower.status().ready)
    assert not followed.follower.status().topic_exists
    # Somebody silences before anything has run.
    followed.follower.publish([encode_upsert(quiet("s1"))])
    followed.until(lambda ledger: "s1" in ledger.silences)
    assert followed.follower.status().topic_exists
    publish_changes(followed.connection, followed.app, [encode_upsert(quiet("s2")), (b'["silence","s1"]', None)])
    followed.until(lambda ledger: set(ledger.silences) == {"s2"})


def test_a_ledger_made_anew_is_read_anew(followed: Followed) -> None:
    followed.follower.publish([encode_upsert(quiet("old"))])
    followed.start()
    followed.until(lambda ledger: "old" in ledger.silences)
    Admin(followed.connection).delete_topics([alerts_topic_name(followed.app)])
    followed.until(lambda ledger: not ledger.silences)
    followed.wait(lambda: not followed.follower.status().topic_exists)
    followed.follower.publish([encode_upsert(quiet("new"))])
    followed.until(lambda ledger: set(ledger.silences) == {"new"})


def test_brokers_that_stand_still_are_told_of_and_waited_for(followed: Followed) -> None:
    followed.follower.publish([encode_upsert(quiet("s1"))])
    followed.start()
    followed.until(lambda ledger: "s1" in ledger.silences)
    with followed.fragile.paused():
        followed.wait(lambda: bool(followed.follower.status().error))
        # What is known stays to be seen.
        assert followed.follower.read(lambda ledger: set(ledger.silences)) == {"s1"}
    followed.wait(lambda: not followed.follower.status().error)
    publish_changes(followed.connection, followed.app, [encode_upsert(quiet("s2"))])
    followed.until(lambda ledger: set(ledger.silences) == {"s1", "s2"})


def test_what_is_said_on_the_page_reaches_the_process(followed: Followed) -> None:
    topic = f"readings-{secrets.token_hex(4)}"
    Admin(followed.connection).create_topic(topic, partitions=2, replicas=1, config={})
    rules = [rule(over=table(name=topic, topic=topic), clear="load_kw < 1.8")]
    gateway = Gateway()

    def send(count: int, load: float) -> None:
        at = datetime.now(UTC).isoformat()
        with Producer(followed.fragile.connection) as producer:
            for number in range(count):
                value = {"house_id": f"h{number}", "load_kw": load, "phone": f"+3538612345{number:02}", "at": at}
                producer.send(topic, json.dumps(value), key=f"h{number}", partition=number % 2)

    with KafkaAlertLog(followed.fragile.connection, followed.app, [topic]) as log:
        engine = AlertEngine(rules, log)

        def work(until: Callable[[], bool]) -> None:
            deadline = time.monotonic() + MOST_SECONDS
            while not until():
                assert time.monotonic() < deadline
                engine.step()
                gateway.send_due(engine, time.time_ns() // 1_000_000)

        send(3, 3.0)
        followed.start()
        work(lambda: len(gateway.taken) == 3)
        work(lambda: followed.follower.read(lambda it: len(it.incidents) == 3 and len(it.deliveries) == 3))

        async def talk() -> None:
            alerts = AlertsBroadcast(followed.app, followed.follower)
            state = await alerts.state()
            assert {(each["key"], each["list"]) for each in state["cases"].values()} == {
                ("h0", "firing"), ("h1", "firing"), ("h2", "firing"),
            }  # fmt: skip
            found = await alerts.incident("overload", "h1", 1)
            assert found["place"] == f"{topic}[1]@0"
            assert found["letters"][0]["to"] == "+353861234501"
            assert {each["name"]: each["value"] for each in found["row"]}["load_kw"] == "3.0"
            await alerts.acknowledge("overload", "h1", 1, "ada")
            await alerts.silence("overload", "h7", 60, "painters", "ada")

        asyncio.run(talk())
        said = engine.notifier.state
        work(lambda: ("overload", "h1", 1) in said.acks and len(said.silences) == 1)
        followed.until(lambda ledger: [ack.by for ack in ledger.acks.values()] == ["ada"])
        work(lambda: followed.follower.lag() is None)
    # Nobody judges any more.
    send(8, 3.0)
    followed.wait(lambda: followed.follower.lag() is not None)
    behind = followed.follower.lag()
    assert behind is not None
    assert behind.offsets == 8
