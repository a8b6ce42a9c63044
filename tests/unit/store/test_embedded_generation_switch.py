"""When a table goes over to what a replay has made, without a broker."""

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import duckdb
import pytest

from riverrun.config import KafkaSettings
from riverrun.kafka.connection import Connection
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.table import TableGeneration
from riverrun.store.embedded.generation_switch import GenerationSwitcher, next_generation, visible_tables
from riverrun.store.embedded.ingest import TableIngest
from riverrun.store.embedded.session import DuckDBSession
from riverrun.store.embedded.table_state import NOT_ASSIGNED, TableState, load_states
from support.storing import block, events, make

MADE = TableGeneration(2, "events.2", {0: 5})


@pytest.mark.parametrize(
    ("generations", "number", "expected"),
    [
        ((), 1, None),
        ((MADE,), 1, 2),
        ((MADE,), 2, None),
        # Of several the last that has made all rows; else one after the other.
        ((MADE, replace(MADE, number=3)), 1, 3),
        ((MADE, replace(MADE, number=3, since_ms=9)), 1, 2),
        ((replace(MADE, since_ms=9), replace(MADE, number=3, since_ms=9)), 1, 2),
    ],
)
def test_which_generation_is_next(generations: tuple[TableGeneration, ...], number: int, expected: int | None) -> None:
    found = next_generation(events(generations=generations), number)
    assert (found.number if found else None) == expected


def test_nothing_is_taken_for_read_while_the_end_of_the_history_is_not_known() -> None:
    with duckdb.connect() as database:
        states = make(database, events(generations=(MADE,)))
        ends: dict[TopicPartition, int] | None = {}
        switching = GenerationSwitcher(
            DuckDBSession(database),
            states,
            lambda _: None,
            partitions=lambda topic: [TopicPartition(topic, 0)],
            ends=lambda _: ends,
        )
        switching.step()
        assert list(visible_tables(states)) == ["events"]
        hidden = states["events~2"]
        assert hidden.read_epoch == NOT_ASSIGNED
        # Nobody has looked for its topic yet.
        ends = {TopicPartition("events.2", 0): 0}
        switching.step()
        assert hidden.spec.topic == "events.2"
        hidden.read_epoch = 0
        for unknown in (None, {}, {TopicPartition("events", 0): 0}, {TopicPartition("events.2", 0): 1}):
            ends = unknown
            switching.step()
            assert hidden.spec.topic == "events.2"
        ends = {TopicPartition("events.2", 0): 0}
        switching.step()
        assert (hidden.spec.topic, hidden.positions) == ("events", {0: 5})
        # The table that is shown has read further: not yet.
        states["events"].positions = {0: 7}
        switching.step()
        assert list(states) == ["events", "events~2"]
        hidden.positions = {0: 7}
        switching.step()
        assert list(states) == ["events"]
        assert (states["events"].generation, states["events"].positions) == (2, {0: 7})
        assert database.execute("SELECT name, generation, replaces FROM _riverrun.tables").fetchall() == [
            ("events", 2, "")
        ]


def test_a_table_that_is_held_at_a_cut_takes_nothing_from_behind_it() -> None:
    from riverrun.store.embedded.writer import TableWriter

    with duckdb.connect() as database:
        states = make(database, events())
        state = states["events"]
        state.stop_offsets = {0: 2}
        records = [(0, number, b'{"id": %d, "at": "2026-01-01T00:00:00Z"}' % number) for number in range(5)]
        assert TableWriter(DuckDBSession(database)).write(block("events", records), 0, states) == {}
        assert state.positions == {0: 2}
        assert database.execute("SELECT id FROM main.events ORDER BY id").fetchall() == [(0,), (1,)]


def test_a_replacement_that_was_begun_during_the_look_at_kafka_is_read_at_the_next_one() -> None:
    """The look did not ask for its topic: that it is not in the answer says nothing."""
    with duckdb.connect() as database:
        said: list[str] = []
        states = make(database, events(generations=(MADE,)))
        states["events"].topic_id = "A"
        ingest, reader = followed(database, states, said)
        switching = GenerationSwitcher(
            DuckDBSession(database), states, said.append, partitions=ingest.partitions, ends=lambda _: None
        )
        there = {"events": ("A", 1), "events.2": ("B", 1)}

        def partitions(topics: Collection[str]) -> dict[str, tuple[str, int]]:
            switching.step()
            return {topic: there[topic] for topic in topics}

        ingest._ends.partition_counts = partitions  # type: ignore[method-assign]
        ingest._assign_partitions(reader)
        switching.step()
        assert list(states) == ["events", "events~2"]
        assert (states["events"].generation, states["events~2"].read_epoch) == (1, NOT_ASSIGNED)
        ingest._assign_partitions(reader)
        assert states["events~2"].read_epoch == 1
        assert TopicPartition("events.2", 0) in reader.followed
        assert not [words for words in said if "is not there" in words]


def test_a_history_that_really_is_not_there_is_given_up() -> None:
    with duckdb.connect() as database:
        said: list[str] = []
        states = make(database, events(generations=(MADE,)))
        ingest, reader = followed(database, states, said)
        ingest._ends.partition_counts = lambda topics: {topic: ("A", 1) for topic in topics if topic == "events"}  # type: ignore[method-assign]
        switching = GenerationSwitcher(
            DuckDBSession(database), states, said.append, partitions=ingest.partitions, ends=lambda _: None
        )
        for _ in range(2):
            switching.step()
            ingest._assign_partitions(reader)
        switching.step()
        assert list(states) == ["events"]
        assert states["events"].generation == 2
        assert "events.2, which a replay has made, is not there" in said[-1]


def test_a_table_that_went_on_to_another_topic_during_the_look_is_not_begun_anew() -> None:
    """The id that was compared is that of the topic it read before."""
    with duckdb.connect() as database:
        said: list[str] = []
        states = make(database, events())
        state = states["events"]
        state.topic_id, state.positions = "A", {0: 5}
        ingest, _ = followed(database, states, said)
        ingest._restart_if_recreated(state, {"events.2": ("B", 1)})
        ingest._restart_if_recreated(state, {"events": ("A", 1)})
        assert (state.topic_id, state.positions, state.read_epoch, said) == ("A", {0: 5}, 0, [])
        ingest._restart_if_recreated(replace(state), {"events": ("C", 1)})
        assert load_states(DuckDBSession(database))["events"].topic_id == "", (
            "one that was replaced meanwhile is not saved"
        )
        ingest._restart_if_recreated(state, {"events": ("C", 1)})
        assert (state.topic_id, state.positions, state.read_epoch, len(said)) == ("C", {}, NOT_ASSIGNED, 1)


def test_a_replacement_whose_generation_the_catalog_has_no_more_is_given_up() -> None:
    """And the other tables go on."""
    with duckdb.connect() as database:
        said: list[str] = []
        states = make(database, events(generations=(MADE,)))
        switching = GenerationSwitcher(
            DuckDBSession(database), states, said.append, partitions=lambda _: None, ends=lambda _: None
        )
        switching.step()
        assert list(states) == ["events", "events~2"]
        states["events"].spec = events()
        switching.step()
        assert list(states) == ["events"]
        assert states["events"].generation == 1
        assert "The table events keeps its rows: its declaration has generation 2" in said[-1]
        # It comes back, for all that is known: then it is read.
        states["events"].spec = events(generations=(MADE,))
        switching.step()
        assert list(states) == ["events", "events~2"]


def test_a_table_is_not_held_for_a_generation_that_the_catalog_has_no_more() -> None:
    with duckdb.connect() as database:
        states = make(database, events(generations=(replace(MADE, since_ms=9),)))
        switching = GenerationSwitcher(
            DuckDBSession(database), states, print, partitions=lambda _: None, ends=lambda _: None
        )
        switching.step()
        assert states["events"].stop_offsets == {0: 5}
        states["events"].spec = events()
        switching.step()
        assert (states["events"].stop_offsets, states["events"].read_epoch) == ({}, NOT_ASSIGNED)


def test_a_history_that_could_not_be_ended_in_the_file_is_not_ended() -> None:
    with duckdb.connect() as database:
        states = make(database, events(generations=(MADE,)))
        session = DuckDBSession(database)
        switching = GenerationSwitcher(
            session,
            states,
            print,
            partitions=lambda topic: [TopicPartition(topic, 0)],
            ends=lambda _: {TopicPartition("events.2", 0): 3},
        )
        switching.step()
        hidden = states["events~2"]
        hidden.read_epoch, hidden.positions, hidden.topic_id = 1, {0: 3}, "B"
        run, session.run = session.run, refusing(session, "UPDATE")  # type: ignore[method-assign]
        with pytest.raises(duckdb.Error):
            switching.step()
        assert (hidden.spec.topic, hidden.topic_id, hidden.positions, hidden.read_epoch) == ("events.2", "B", {0: 3}, 1)
        session.run = run  # type: ignore[method-assign]
        switching.step()
        assert (hidden.spec.topic, hidden.positions, hidden.read_epoch) == ("events", {0: 5}, NOT_ASSIGNED)


def test_a_table_that_is_held_at_a_cut_stays_so_after_a_failure() -> None:
    """The file does not know the cut, the state in memory does."""
    from riverrun.store.embedded.writer import TableWriter

    with duckdb.connect() as database:
        states = make(database, events())
        state = states["events"]
        state.stop_offsets, state.failures = {0: 2}, 1
        records = [(0, number, b'{"id": %d, "at": "2026-01-01T00:00:00Z"}' % number) for number in range(5)]
        assert TableWriter(DuckDBSession(database)).write(block("events", records), 0, states) == {}
        assert (state.positions, state.stop_offsets) == ({0: 2}, {0: 2})
        assert database.execute("SELECT id FROM main.events ORDER BY id").fetchall() == [(0,), (1,)]


class Followed:
    """A reader that only remembers what it is to read."""

    followed: dict[TopicPartition, int]

    def assign(self, wanted: dict[TopicPartition, int], *, restart: list[TopicPartition]) -> None:  # noqa: ARG002
        self.followed = wanted


def followed(
    database: duckdb.DuckDBPyConnection, states: dict[str, TableState], said: list[str]
) -> tuple[TableIngest, Any]:
    """An Ingest whose threads do not run."""
    nowhere = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1", request_timeout_seconds=1))
    ingest = TableIngest(
        nowhere,
        DuckDBSession(database),
        states,
        threading.RLock(),
        name="test",
        catalog=None,
        apply_catalog=lambda _: None,
        maintenance=lambda: None,
        notice=said.append,
    )
    return ingest, Followed()


def refusing(session: DuckDBSession, word: str) -> Callable[..., list[Any]]:
    """A session's `run` that fails at statements of this kind."""
    run = session.run

    def refuse(sql: str, values: Any = None) -> list[Any]:
        if sql.startswith(word):
            raise duckdb.IOException("No space left on device")
        return run(sql, values)

    return refuse
