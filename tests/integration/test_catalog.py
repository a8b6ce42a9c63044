"""The tables of an app in its topic: published by the pipeline, followed by the store."""

import json
import secrets
from dataclasses import replace

import pytest

import riverrun as rr
from riverrun.errors import StoreError, TopicNotFoundError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.reading.tail_reader import TopicTailReader
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.table import Column, TableSpec
from riverrun.store.catalog import Catalog, catalog_topic, publish_tables
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.connecting import wait_until

LOAD = TableSpec("load", "load", (Column("kw", "double", ("kw",)), Column("recorded_at", "timestamp", ())))
HIGH = replace(LOAD, name="high", topic="high", key=("kw",), upserts=True)


def test_tables_come_change_and_go(kafka: KafkaUnderTest) -> None:
    app = f"catalog{secrets.token_hex(4)}"
    with Catalog(kafka.connection, app) as catalog:
        assert catalog.refresh() == {}, "nobody has published yet"
        publish_tables(kafka.connection, app, [LOAD, HIGH])
        assert catalog.refresh() == {"load": LOAD, "high": HIGH}
        wider = replace(LOAD, columns=(*LOAD.columns, Column("amps", "double", ("amps",))))
        publish_tables(kafka.connection, app, [wider])
        assert catalog.refresh() == {"load": wider}
        assert catalog.refresh() == {"load": wider}
    with Catalog(kafka.connection, app) as later:
        assert later.refresh() == {"load": wider}


def test_one_that_comes_right_after_it_was_not_there_is_seen(kafka: KafkaUnderTest) -> None:
    """The client remembers for a tenth of a second that there is no such topic."""
    admin = Admin(kafka.connection)
    for _ in range(10):
        topic = f"tail-{secrets.token_hex(4)}"
        tail = TopicTailReader(kafka.connection, topic)
        with pytest.raises(TopicNotFoundError):
            tail.read()
        admin.create_topic(topic, partitions=1, replicas=0, config={})
        with rr.Producer(kafka.connection) as producer:
            producer.send(topic, b"1", key="a")
        assert tail.read() == [(b"a", b"1")]
        tail.close()


def test_one_that_cannot_be_read_is_said_and_the_others_are_followed(kafka: KafkaUnderTest) -> None:
    app = f"catalog{secrets.token_hex(4)}"
    publish_tables(kafka.connection, app, [LOAD])
    with rr.Producer(kafka.connection) as producer:
        producer.send(catalog_topic(app), b'{"name": "odd"}', key="odd")
    publish_later = replace(LOAD, retention_ms=5)
    with Catalog(kafka.connection, app) as catalog:
        with pytest.raises(StoreError, match="The table odd in the topic"):
            catalog.refresh()
        assert catalog.tables == {"load": LOAD}
        with rr.Producer(kafka.connection) as producer:
            producer.send(catalog_topic(app), json.dumps(publish_later.as_dict()).encode(), key="load")
            producer.send(catalog_topic(app), None, key="odd")
        assert catalog.refresh() == {"load": publish_later}


def test_what_has_not_changed_is_not_published_again(kafka: KafkaUnderTest) -> None:
    app = f"catalog{secrets.token_hex(4)}"
    place = TopicPartition(catalog_topic(app), 0)
    publish_tables(kafka.connection, app, [LOAD])
    end = Admin(kafka.connection).offsets([place], "latest")[place]
    publish_tables(kafka.connection, app, [LOAD])
    assert Admin(kafka.connection).offsets([place], "latest")[place] == end


def test_what_stands_behind_an_open_transaction_comes_with_a_later_read(kafka: KafkaUnderTest) -> None:
    app = f"catalog{secrets.token_hex(4)}"
    publish_tables(kafka.connection, app, [LOAD])
    topic = catalog_topic(app)
    with (
        Catalog(kafka.connection, app) as catalog,
        rr.Producer(kafka.connection, transactional_id=topic) as writer,
        rr.Producer(kafka.connection) as other,
    ):
        assert catalog.refresh() == {"load": LOAD}
        with writer.transaction() as tx:
            tx.send(topic, json.dumps(HIGH.as_dict()).encode(), key="high")
            wider = replace(LOAD, retention_ms=7)
            other.send(topic, json.dumps(wider.as_dict()).encode(), key="load")
            assert catalog.refresh() == {"load": LOAD}, "behind it, nothing is stable yet"
        # The broker marks its end a moment after it has acknowledged it.
        wait_until(lambda: catalog.refresh() == {"load": wider, "high": HIGH}, "both are read", seconds=20)
