"""The embedded store follows real topics: rows, updates, changes of a table, topics that grow, vanish and lose records."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from riverrun.config.spec import StoreSettings
from riverrun.errors import StoreError, StoreTableError, StoreUnavailableError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.producer.producer import Producer
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.table import TableSpec
from riverrun.store.catalog import Catalog, publish_tables
from riverrun.store.embedded import EmbeddedStore
from riverrun.testing import KafkaUnderTest
from support.storing import caught_up, column, events, load, loads

pytestmark = pytest.mark.kafka

Open = Callable[..., EmbeddedStore]
SETTINGS = StoreSettings(memory_mb=256)


class Said(list[str]):
    """What the store had to say."""

    def has(self, words: str) -> bool:
        return any(words in each for each in self)


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def opened(kafka: KafkaUnderTest, tmp_path: Path, said: Said) -> Iterator[Open]:
    """Open the store of this test; those that are still open are closed in the end."""
    stores: list[EmbeddedStore] = []

    def open_store(*tables: TableSpec, catalog: Catalog | None = None) -> EmbeddedStore:
        store = EmbeddedStore(tmp_path / "store", kafka.connection, SETTINGS, catalog=catalog, notice=said.append)
        stores.append(store)
        store.open()
        store.apply(tables)
        return store

    yield open_store
    for store in stores:
        store.close()


def send(kafka: KafkaUnderTest, topic: str, values: Sequence[bytes | None], *, key: str | None = None) -> None:
    with Producer(kafka.connection) as producer:
        for value in values:
            producer.send(topic, value, key=key)


def event(number: int, **more: object) -> bytes:
    return json.dumps({"id": number, "at": "2026-01-01T00:00:00Z", "note": f"note {number}"} | more).encode()


def rows(store: EmbeddedStore, sql: str) -> list[tuple[object, ...]]:
    return [tuple(each.values()) for each in store.query(sql).rows.to_pylist()]


def test_topics_become_tables_and_a_restart_goes_on(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str], opened: Open
) -> None:
    topic, updates = kafka_topic(partitions=3), kafka_topic("updates", partitions=2)
    send(kafka, topic, [event(number) for number in range(500)])
    send(kafka, updates, [load("a", number) for number in range(50)], key="a")
    store = opened(events(topic), loads(updates))
    found = caught_up(store, events=500, loads=1)
    assert sum(found["events"].positions.values()) == 500
    assert found["events"].state == "following"
    assert found["events"].newest == 1767225600
    assert rows(store, "SELECT count(*) AS n, sum(id) AS s FROM events") == [(500, 124750)]
    assert rows(store, 'SELECT house, "load" FROM loads') == [("a", 49.0)]
    store.close()
    send(kafka, topic, [event(number) for number in range(500, 600)])
    again = opened()
    assert again.tables == {"events": events(topic), "loads": loads(updates)}
    caught_up(again, events=600, loads=1)
    assert rows(again, "SELECT count(DISTINCT id) AS n FROM events") == [(600,)]


def test_only_what_is_committed_is_read_and_nothing_lags(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str], opened: Open
) -> None:
    topic = kafka_topic()
    store = opened(events(topic))
    with Producer(kafka.connection, transactional_id=f"{topic}-writer") as producer:
        with producer.transaction() as transaction:
            transaction.send(topic, event(1))
        with contextlib.suppress(ZeroDivisionError), producer.transaction() as transaction:
            transaction.send(topic, event(2))
            raise ZeroDivisionError
        with producer.transaction() as transaction:
            transaction.send(topic, event(3))
    # Behind the last record are the marks of its transaction, which are no lag.
    caught_up(store, events=2)
    assert rows(store, "SELECT id FROM events ORDER BY id") == [(1,), (3,)]


def test_a_topic_may_come_later_and_grow(kafka: KafkaUnderTest, kafka_topic: Callable[..., str], opened: Open) -> None:
    topic = f"{kafka_topic()}-later"
    store = opened(events(topic))
    assert "waits for the topic" in caught_up(store, events=0)["events"].detail
    admin = Admin(kafka.connection)
    admin.create_topic(topic, partitions=1, replicas=0, config={})
    send(kafka, topic, [event(1)])
    caught_up(store, events=1)
    admin.add_partitions(topic, 3)
    with Producer(kafka.connection) as producer:
        producer.send(topic, event(2), partition=2)
    assert caught_up(store, events=2)["events"].positions.keys() >= {0, 2}


def test_records_that_retention_took_are_counted(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str], opened: Open, said: Said
) -> None:
    topic = kafka_topic()
    send(kafka, topic, [event(number) for number in range(10)])
    Admin(kafka.connection).delete_records({TopicPartition(topic, 0): 4})
    store = opened(events(topic))
    found = caught_up(store, events=6)["events"]
    assert "4 gone before they were read" in found.detail
    assert said.has("4 records of")


def test_a_topic_that_is_made_anew_is_read_from_its_beginning(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str], opened: Open, said: Said
) -> None:
    topic = kafka_topic()
    send(kafka, topic, [event(number) for number in range(10)])
    store = opened(events(topic))
    caught_up(store, events=10)
    store.close()
    admin = Admin(kafka.connection)
    admin.delete_topics([topic])
    admin.create_topic(topic, partitions=1, replicas=0, config={})
    send(kafka, topic, [event(number) for number in range(100, 103)])
    again = opened()
    caught_up(again, events=13)
    assert said.has("deleted and made anew")
    assert rows(again, "SELECT count(*) AS n FROM events WHERE id >= 100") == [(3,)]


def test_two_tables_of_one_topic(kafka: KafkaUnderTest, kafka_topic: Callable[..., str], opened: Open) -> None:
    topic = kafka_topic(partitions=2)
    send(kafka, topic, [event(number, note=f"{number % 7}") for number in range(100)])
    store = opened(events(topic))
    caught_up(store, events=100)
    store.apply([events(topic, name="notes", key=("note",), upserts=True)])
    caught_up(store, events=100, notes=7)
    send(kafka, topic, [event(1000, note="new")])
    caught_up(store, events=101, notes=8)


def test_a_new_column_appears_while_it_runs_and_a_changed_type_is_refused(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str], opened: Open, said: Said
) -> None:
    topic, other, app = kafka_topic(), kafka_topic("other"), kafka_topic("app")
    table, beside = events(topic), events(other, name="beside")
    publish_tables(kafka.connection, app, [table, beside])
    store = opened(catalog=Catalog(kafka.connection, app))
    send(kafka, topic, [event(1)])
    caught_up(store, events=1, beside=0)
    # The declaration first, then rows: as a pipeline does it. The store must know the column before the first such row.
    more = replace(table, columns=(*table.columns, column("extra", "decimal(10,2)")))
    publish_tables(kafka.connection, app, [more, beside])
    send(kafka, topic, [event(2, extra=1.5)])
    caught_up(store, events=2)
    assert [str(each) for _, each in rows(store, "SELECT id, extra FROM events ORDER BY id")] == ["None", "1.50"]
    assert said.has("new column extra")
    wrong = replace(more, columns=(column("id", "text"), *more.columns[1:]))
    publish_tables(kafka.connection, app, [wrong, beside])
    send(kafka, topic, [event(3)])
    send(kafka, other, [event(1)])
    found = caught_up(store, beside=1)
    assert found["events"].state == "failing"
    assert "riverrun tables remove events" in found["events"].detail
    assert found["events"].rows == 2
    # Taken back, it goes on where it was: nothing is lost.
    publish_tables(kafka.connection, app, [more, beside])
    assert caught_up(store, events=3)["events"].state == "following"
    # Or removed, and so made anew as it is declared.
    publish_tables(kafka.connection, app, [wrong, beside])
    send(kafka, other, [event(2)])
    assert caught_up(store, beside=2)["events"].state == "failing"
    store.remove("events")
    caught_up(store, events=3)
    assert rows(store, "SELECT id FROM events ORDER BY id") == [("1",), ("2",), ("3",)]


def test_apply_is_all_or_nothing(kafka: KafkaUnderTest, kafka_topic: Callable[..., str], opened: Open) -> None:
    topic = kafka_topic()
    store = opened(events(topic))
    with pytest.raises(StoreTableError):
        store.apply([loads(topic), events(topic, time="recorded_at")])
    assert list(store.tables) == ["events"]
    assert store.apply([events(topic)]) == []


def test_a_removed_table_is_read_anew(kafka: KafkaUnderTest, kafka_topic: Callable[..., str], opened: Open) -> None:
    topic = kafka_topic()
    send(kafka, topic, [event(1), b"bad", event(2)])
    store = opened(events(topic))
    found = caught_up(store, events=2)["events"]
    assert "1 record did not fit" in found.detail
    assert [(name, each.offset, each.bytes) for name, each in store.rejected_rows()] == [("events", 1, b"bad")]
    store.remove("events")
    assert store.table_statuses() == []
    assert store.rejected_rows() == []
    with pytest.raises(StoreError, match="no table events"):
        store.remove("events")
    store.apply([events(topic, columns=(column("id", "text"), *events().columns[1:]))])
    caught_up(store, events=2)
    assert rows(store, "SELECT id FROM events ORDER BY id") == [("1",), ("2",)]


def test_a_snapshot_opens_in_duckdb_itself(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str], opened: Open, tmp_path: Path
) -> None:
    topic = kafka_topic()
    send(kafka, topic, [event(number) for number in range(100)])
    store = opened(events(topic), loads(kafka_topic("loads")))
    caught_up(store, events=100)
    store.snapshot(tmp_path / "copy.duckdb")
    with duckdb.connect(str(tmp_path / "copy.duckdb"), read_only=True) as copy:
        assert copy.execute("SELECT count(*), sum(id) FROM events").fetchone() == (100, 4950)
        found = copy.execute("SELECT schema_name, table_name FROM duckdb_tables() ORDER BY ALL").fetchall()
        assert found == [("main", "events"), ("main", "loads")]
    with pytest.raises(StoreError, match="already"):
        store.snapshot(tmp_path / "copy.duckdb")


def test_a_closed_store_says_so(kafka: KafkaUnderTest, tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "store", kafka.connection, SETTINGS)
    with pytest.raises(StoreUnavailableError, match="not open"):
        store.query("SELECT 1")
    with store:
        pass
    store.close()
    with pytest.raises(StoreUnavailableError):
        store.apply([events("t")])
