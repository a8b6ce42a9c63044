"""A replay corrects the tables of its stream: the embedded store on a real broker, topics written by transactions."""

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from riverrun.config.spec import StoreSettings
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.producer.producer import Producer
from riverrun.model.table import RECORD_TIME, Column, TableGeneration, TableSpec
from riverrun.store.catalog import Catalog, publish_generations, publish_tables
from riverrun.store.embedded import EmbeddedStore
from riverrun.testing import KafkaUnderTest
from support.storing import caught_up, column, events, load, loads

pytestmark = pytest.mark.kafka

SETTINGS = StoreSettings(memory_mb=256)
# 2026-01-01 00:10 UTC: where the partial replays of these tests begin.
SINCE_MS = 1_767_225_600_000 + 600_000


def event(number: int, minute: int, note: str) -> bytes:
    return json.dumps({"id": number, "at": f"2026-01-01T00:{minute:02d}:00Z", "note": note}).encode()


class Scene:
    """A stream's topic, its app's catalog, and the store that follows it."""

    def __init__(self, kafka: KafkaUnderTest, folder: Path, topic: str) -> None:
        self.kafka, self.folder, self.topic = kafka, folder, topic
        self.app = f"replayed-{secrets.token_hex(4)}"
        self.admin = Admin(kafka.connection)
        self.said: list[str] = []
        self.stores: list[EmbeddedStore] = []
        self.generations: list[TableGeneration] = []

    def send(self, topic: str, values: Sequence[bytes], *, key: str = "a") -> None:
        """In transactions of two, so that a third of the offsets are no records."""
        with Producer(self.kafka.connection, transactional_id=f"{topic}.writer") as producer:
            for at in range(0, len(values), 2):
                with producer.transaction() as transaction:
                    for value in values[at : at + 2]:
                        transaction.send(topic, value, key=key)

    def open(self) -> EmbeddedStore:
        catalog = Catalog(self.kafka.connection, self.app)
        store = EmbeddedStore(self.folder, self.kafka.connection, SETTINGS, catalog=catalog, notice=self.said.append)
        self.stores.append(store)
        store.open()
        return store

    def replay(self, rows: Sequence[bytes], *, since_ms: int = 0, tables: Sequence[TableSpec] = ()) -> str:
        """What a replay does at its cut: its rows are in a topic of their own, and the catalog is told of it. `tables` are
        those of the replay's code."""
        number = len(self.generations) + 2
        topic = f"{self.topic}.{number}"
        places = self.admin.topic(self.topic).topic_partitions
        self.admin.create_topic(topic, partitions=len(places), replicas=0, config={"retention.ms": "-1"})
        self.send(topic, rows)
        first = {each.partition: offset for each, offset in self.admin.offsets(places, "latest").items()}
        self.generations.append(TableGeneration(number, topic, first, since_ms))
        publish_generations(self.kafka.connection, self.app, self.topic, self.generations, tables)
        return topic


@pytest.fixture
def scene(kafka: KafkaUnderTest, kafka_topic: Callable[..., str], tmp_path: Path) -> Iterator[Scene]:
    made = Scene(kafka, tmp_path / "store", kafka_topic(partitions=2))
    yield made
    for store in made.stores:
        store.close()


def rows(store: EmbeddedStore, sql: str) -> list[tuple[object, ...]]:
    return [tuple(each.values()) for each in store.query(sql).rows.to_pylist()]


def notes(store: EmbeddedStore) -> list[tuple[object, ...]]:
    return rows(store, "select id, note from events order by id, note")


def test_a_replay_from_the_beginning_replaces_all_rows_under_the_same_name(scene: Scene) -> None:
    table = events(scene.topic)
    publish_tables(scene.kafka.connection, scene.app, [table])
    scene.send(scene.topic, [event(number, number, "old") for number in range(10)])
    store = scene.open()
    caught_up(store, events=10)
    scene.replay([event(number, number, "new") for number in range(7)])
    scene.send(scene.topic, [event(number, number, "after") for number in (20, 21)])
    found = caught_up(store, events=9)["events"]
    assert notes(store) == [*[(number, "new") for number in range(7)], (20, "after"), (21, "after")]
    assert (found.state, found.detail) == ("following", "")
    assert list(store.tables) == ["events"]
    assert any("shows what the replay of its stream has made: generation 2, 9 rows" in each for each in scene.said)
    # And it goes on, also after a restart.
    store.close()
    scene.send(scene.topic, [event(30, 30, "later")])
    again = scene.open()
    caught_up(again, events=10)
    assert (30, "later") in notes(again)


def test_rows_of_before_a_later_beginning_stay_each_once(scene: Scene) -> None:
    publish_tables(scene.kafka.connection, scene.app, [events(scene.topic)])
    scene.send(scene.topic, [event(number, number, "old") for number in range(20)])
    store = scene.open()
    caught_up(store, events=20)
    # A late row, of before the beginning: the old generation has made one of the same record.
    scene.replay([event(number, number, "new") for number in (3, *range(10, 15))], since_ms=SINCE_MS)
    scene.send(scene.topic, [event(5, 5, "late, after the cut"), event(40, 40, "after")])
    caught_up(store, events=17)
    assert notes(store) == sorted([
        *[(number, "old") for number in range(10)],
        (5, "late, after the cut"),
        *[(number, "new") for number in range(10, 15)],
        (40, "after"),
    ])  # fmt: skip


def test_windows_begun_before_the_replay_stay_as_they_were(scene: Scene) -> None:
    publish_tables(scene.kafka.connection, scene.app, [loads(scene.topic)])
    scene.send(scene.topic, [load("a", 1.0, minute) for minute in (8, 9, 10, 11)])
    store = scene.open()
    caught_up(store, loads=4)
    # Of the window at 9 the replay has counted a part.
    scene.replay([load("a", 2.0, minute) for minute in (9, 10)], since_ms=SINCE_MS)
    scene.send(scene.topic, [load("a", 3.0, minute) for minute in (9, 12, 13)])
    caught_up(store, loads=5)
    found = rows(store, 'select extract(minute from minute) as m, "load" from loads order by 1')
    assert found == [(8, 1.0), (9, 1.0), (10, 2.0), (12, 3.0), (13, 3.0)]


def test_a_store_that_was_away_has_the_same_in_the_end(scene: Scene) -> None:
    publish_tables(scene.kafka.connection, scene.app, [events(scene.topic)])
    store = scene.open()
    scene.send(scene.topic, [event(number, number, "old") for number in range(4)])
    caught_up(store, events=4)
    store.close()
    scene.send(scene.topic, [event(number, number, "old") for number in range(4, 12)])
    scene.replay([event(number, number, "new") for number in (10, 11)], since_ms=SINCE_MS)
    scene.send(scene.topic, [event(5, 5, "late, after the cut")])
    scene.replay([event(number, number, "newer") for number in (10, 11)], since_ms=SINCE_MS)
    scene.send(scene.topic, [event(13, 13, "after")])
    expected = [
        *[(number, "old") for number in range(6)],
        (5, "late, after the cut"),
        *[(number, "old") for number in range(6, 10)],
        (10, "newer"), (11, "newer"), (13, "after"),
    ]  # fmt: skip
    again = scene.open()
    caught_up(again, events=14)
    assert notes(again) == sorted(expected)
    # Made anew from nothing, it is the same.
    again.remove("events")
    caught_up(again, events=14)
    assert notes(again) == sorted(expected)


def test_rows_without_an_event_time_are_kept_and_that_is_said(scene: Scene) -> None:
    columns = (column("id", "bigint"), column("note", "text"), Column(RECORD_TIME, "timestamp", ()))
    publish_tables(scene.kafka.connection, scene.app, [TableSpec("events", scene.topic, columns)])
    scene.send(scene.topic, [event(number, number, "old") for number in range(4)])
    store = scene.open()
    caught_up(store, events=4)
    topic = scene.replay([event(1, 1, "new")], since_ms=SINCE_MS)
    scene.send(scene.topic, [event(9, 9, "after")])
    caught_up(store, events=5)
    assert [note for _, note in notes(store)].count("new") == 0
    assert any("The table events keeps its rows" in each and topic in each for each in scene.said)


def test_a_history_that_was_deleted_changes_nothing(scene: Scene) -> None:
    publish_tables(scene.kafka.connection, scene.app, [events(scene.topic)])
    scene.send(scene.topic, [event(number, number, "old") for number in range(4)])
    store = scene.open()
    caught_up(store, events=4)
    store.close()
    topic = scene.replay([event(1, 1, "new")])
    scene.admin.delete_topics([topic])
    again = scene.open()
    scene.send(scene.topic, [event(9, 9, "after")])
    caught_up(again, events=5)
    assert notes(again) == [*[(number, "old") for number in range(4)], (9, "after")]
    assert any(f"{topic}, which a replay has made, is not there" in each for each in scene.said)


@pytest.mark.parametrize("away", [False, True], ids=["following", "away"])
def test_a_replay_that_adds_a_column_fills_it_in_all_history(scene: Scene, *, away: bool) -> None:
    """Before the edited pipeline runs again: only the replay knows the new column."""
    publish_tables(scene.kafka.connection, scene.app, [events(scene.topic)])
    scene.send(scene.topic, [event(number, number, "old") for number in range(4)])
    store = scene.open()
    caught_up(store, events=4)
    if away:
        store.close()
    wider = events(scene.topic)
    wider = replace(wider, columns=(*wider.columns, column("shelf", "bigint")))
    values = [json.dumps({**json.loads(event(n, n, "new")), "shelf": n + 100}).encode() for n in range(4)]
    scene.replay(values, tables=[wider])
    if away:
        store = scene.open()
    scene.send(scene.topic, [event(9, 9, "after")])
    caught_up(store, events=5)
    # What the edited pipeline publishes when it runs at last changes nothing more.
    publish_tables(scene.kafka.connection, scene.app, [replace(wider, generations=tuple(scene.generations))])
    assert rows(store, "select id, shelf from events order by id") == [*[(n, n + 100) for n in range(4)], (9, None)]
