"""The compacted topics in which riverrun keeps what it knows stay short: a start does not read what was overwritten."""

import secrets
import time

import pytest

from riverrun.alerts.kafka_log import publish_watched_tables
from riverrun.connectors import state_topic as connectors
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.compacted_topic import COMPACTED_TOPIC_CONFIG, ensure_compacted_topic
from riverrun.kafka.dead_letters.redrive_log import ensure_redrive_topic as make_redriven
from riverrun.kafka.producer.producer import Producer
from riverrun.kafka.reading.partition_reader import PartitionReader, resolve_offset_ranges
from riverrun.model.positions import EARLIEST
from riverrun.store import catalog
from riverrun.testing import KafkaUnderTest

pytestmark = pytest.mark.kafka


def settings_of(admin: Admin, topic: str) -> dict[str, str]:
    return {name: admin.topic(topic).config[name].value for name in COMPACTED_TOPIC_CONFIG}


def test_every_topic_of_ours_that_is_compacted_has_the_settings(kafka: KafkaUnderTest) -> None:
    app, admin = f"short-{secrets.token_hex(4)}", Admin(kafka.connection)
    publish_watched_tables(kafka.connection, app, {})
    connectors.create_state_topic(kafka.connection, app)
    catalog.publish_tables(kafka.connection, app, [])
    made = [f"{app}.alerts", f"{app}.connectors", f"{app}.tables", make_redriven(admin, f"{app}.dead")]
    assert [settings_of(admin, each) for each in made] == [COMPACTED_TOPIC_CONFIG] * 4


def test_a_topic_that_was_made_with_default_segments_gets_them(kafka: KafkaUnderTest) -> None:
    topic, admin = f"old-{secrets.token_hex(4)}", Admin(kafka.connection)
    admin.create_topic(topic, partitions=1, replicas=0, config={"cleanup.policy": "compact"})
    assert settings_of(admin, topic)["segment.bytes"] == str(1 << 30)
    ensure_compacted_topic(admin, topic)
    assert settings_of(admin, topic) == COMPACTED_TOPIC_CONFIG


def test_a_start_does_not_read_what_was_overwritten(kafka: KafkaUnderTest) -> None:
    topic, admin = f"overwritten-{secrets.token_hex(4)}", Admin(kafka.connection)
    ensure_compacted_topic(admin, topic)
    written = 0
    with Producer(kafka.connection, transactional_id=topic) as producer:
        for _ in range(24):
            with producer.transaction() as transaction:
                for key in range(50):
                    # Bytes that nobody can compress: a segment is closed after a megabyte of them.
                    transaction.send_soon(topic, secrets.token_bytes(5000), key=str(key))
                    written += 1
    deadline = time.monotonic() + 90
    while (read := records_in(kafka, admin, topic)) > written / 3:
        assert time.monotonic() < deadline, f"{read} of {written} records are read at a start"
        time.sleep(0.5)
    assert read >= 50


def records_in(kafka: KafkaUnderTest, admin: Admin, topic: str) -> int:
    with PartitionReader(kafka.connection, resolve_offset_ranges(admin, [topic], start=EARLIEST)) as reader:
        return sum(len(batch) for batch in reader)
