"""The alert engine on a real broker: one transaction for what it decided and what it read, and one process at a time."""

import json
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from riverrun.alerts.dry_run import dry_run
from riverrun.alerts.engine import AlertEngine
from riverrun.alerts.history import read_history
from riverrun.alerts.kafka_log import KafkaAlertLog, publish_changes
from riverrun.alerts.state_topic import Silence, alerts_topic_name, encode_upsert
from riverrun.errors import KafkaError, ProducerFencedError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.producer.producer import Producer
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.positions import EARLIEST
from riverrun.testing import KafkaUnderTest
from support.watching import Gateway, rule, table

pytestmark = pytest.mark.kafka


class Town:
    """A topic of readings with two partitions, and engines that watch it."""

    def __init__(self, kafka: KafkaUnderTest, make_topic: Callable[..., str]) -> None:
        self.connection = kafka.connection
        self.topic = make_topic(partitions=2)
        self.app = f"town-{secrets.token_hex(4)}"
        self.gateway = Gateway()
        self.rules = [rule(over=table(name=self.topic, topic=self.topic), clear="load_kw < 1.8")]

    def log(self) -> KafkaAlertLog:
        return KafkaAlertLog(self.connection, self.app, [self.topic])

    def send(self, **loads: float) -> None:
        at = datetime.now(UTC).isoformat()
        with Producer(self.connection) as producer:
            for number, (house, load) in enumerate(loads.items()):
                value: dict[str, Any] = {"house_id": house, "load_kw": load, "phone": f"+{house}", "at": at}
                producer.send(self.topic, json.dumps(value), key=house, partition=number % 2)

    def committed(self) -> int:
        """How many records the ledger's group shows as read."""
        return sum(Admin(self.connection).committed_offsets(alerts_topic_name(self.app)).values())

    def run(self, engine: AlertEngine, until: Callable[[], bool], seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, self.gateway.texts
            engine.step()
            self.gateway.send_due(engine, time.time_ns() // 1_000_000)


@pytest.fixture
def town(kafka: KafkaUnderTest, kafka_topic: Callable[..., str]) -> Town:
    return Town(kafka, kafka_topic)


def test_a_row_is_told_once_however_often_the_process_starts(town: Town) -> None:
    with town.log() as log:
        engine = AlertEngine(town.rules, log)
        town.send(h1=3.0, h2=1.0)
        town.run(engine, lambda: len(town.gateway.taken) == 1)
        town.run(engine, lambda: town.committed() == 2)
        namespace = engine.namespace
    town.send(h1=3.1, h3=3.0)
    with town.log() as log:
        engine = AlertEngine(town.rules, log)
        assert engine.namespace == namespace
        town.run(engine, lambda: len(town.gateway.taken) == 2)
        town.run(engine, lambda: town.committed() == 4)
        assert engine.evaluator.counts.rows == 2
    assert sorted(text.split()[1] for text in town.gateway.texts.values()) == ["h1", "h3"]
    assert set(town.gateway.taken.values()) == {1}


def test_moving_the_offsets_of_the_group_sends_nothing_again(town: Town) -> None:
    with town.log() as log:
        engine = AlertEngine(town.rules, log)
        town.send(h1=3.0)
        town.run(engine, lambda: len(town.gateway.taken) == 1)
        town.run(engine, lambda: town.committed() == 1)
    Admin(town.connection).alter_group_offsets(
        alerts_topic_name(town.app), {TopicPartition(town.topic, 0): 0, TopicPartition(town.topic, 1): 0}
    )
    with town.log() as log:
        engine = AlertEngine(town.rules, log)
        town.send(h2=3.0)
        town.run(engine, lambda: len(town.gateway.taken) == 2)
        assert engine.evaluator.counts.rows == 1
    assert set(town.gateway.taken.values()) == {1}


def test_who_is_replaced_writes_and_sends_nothing_more(town: Town) -> None:
    with town.log() as old_log:
        old = AlertEngine(town.rules, old_log)
        town.send(h1=3.0)
        with town.log() as log:
            new = AlertEngine(town.rules, log)
            with pytest.raises(ProducerFencedError):
                town.run(old, lambda: False)
            assert town.gateway.taken == {}
            town.run(new, lambda: len(town.gateway.taken) == 1)


def test_a_topic_made_again_under_the_process_is_read_from_its_first_record(town: Town) -> None:
    with town.log() as log:
        engine = AlertEngine(town.rules, log)
        town.send(h1=3.0, h2=1.0, h3=1.0, h4=1.0)
        town.run(engine, lambda: town.committed() == 4)
        admin = Admin(town.connection)
        admin.delete_topics([town.topic])
        deadline = time.monotonic() + 20
        while town.topic in admin.topics([town.topic], config=False):
            assert time.monotonic() < deadline
        admin.create_topic(town.topic, partitions=2, replicas=1, config={})
        # One record in each partition, where two were read before: to judge by offsets alone, they came already.
        town.send(h5=3.0, h6=1.0)
        with pytest.raises(KafkaError, match="made again"):
            town.run(engine, lambda: False)
        assert engine.evaluator.counts.duplicates == 0
    with town.log() as log:
        engine = AlertEngine(town.rules, log)
        town.run(engine, lambda: len(town.gateway.taken) == 2)
    assert sorted(text.split()[1] for text in town.gateway.texts.values()) == ["h1", "h5"]


def test_a_silence_reaches_the_process_that_runs(town: Town) -> None:
    with town.log() as log:
        engine = AlertEngine(town.rules, log)
        silence = Silence(id="1", until=time.time_ns() // 1_000_000 + 600_000, key="h1")
        publish_changes(town.connection, town.app, [encode_upsert(silence)])
        town.run(engine, lambda: bool(engine.notifier.state.silences))
        town.send(h1=3.0, h2=3.0)
        town.run(engine, lambda: engine.evaluator.counts.rows == 2)
        town.run(engine, lambda: len(town.gateway.taken) == 1)
    assert [text.split()[1] for text in town.gateway.texts.values()] == ["h2"]


def test_a_dry_run_over_the_topic_tells_what_was_sent(town: Town) -> None:
    with town.log() as log:
        engine = AlertEngine(town.rules, log)
        for load in (3.0, 1.0, 3.0):
            town.send(h1=load, h2=load, h3=1.0)
        town.run(engine, lambda: len(town.gateway.taken) == 4)
    found = dry_run(town.rules, read_history(town.connection, [town.topic], start=EARLIEST))
    assert (found.messages, found.records) == (4, 9)
