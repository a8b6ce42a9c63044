"""When a table goes over to what a replay has made, without a broker."""

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import duckdb
import pytest

from riverrun.config import KafkaSettings
from riverrun.kafka.connection import Connection
from riverrun.model.state import Place
from riverrun.model.table import TableGeneration
from riverrun.store.embedded.ingest import Ingest
from riverrun.store.embedded.session import Session
from riverrun.store.embedded.state import NOT_READ, TableState, load
from riverrun.store.embedded.switching import Switching, next_generation, shown
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
        ends: dict[Place, int] | None = {}
        switching = Switching(
            Session(database), states, lambda _: None, places=lambda topic: [Place(topic, 0)], ends=lambda _: ends
        )
        switching.turn()
        assert list(shown(states)) == ["events"]
        hidden = states["events~2"]
        assert hidden.turn == NOT_READ
        # Nobody has looked for its topic yet.
        ends = {Place("events.2", 0): 0}
        switching.turn()
        assert hidden.spec.topic == "events.2"
        hidden.turn = 0
        for unknown in (None, {}, {Place("events", 0): 0}, {Place("events.2", 0): 1}):
            ends = unknown
            switching.turn()
            assert hidden.spec.topic == "events.2"
        ends = {Place("events.2", 0): 0}
        switching.turn()
        assert (hidden.spec.topic, hidden.positions) == ("events", {0: 5})
        # The table that is shown has read further: not yet.
        states["events"].positions = {0: 7}
        switching.turn()
        assert list(states) == ["events", "events~2"]
        hidden.positions = {0: 7}
        switching.turn()
        assert list(states) == ["events"]
        assert (states["events"].generation, states["events"].positions) == (2, {0: 7})
        assert database.execute("SELECT name, generation, replaces FROM _riverrun.tables").fetchall() == [
            ("events", 2, "")
        ]


def test_a_table_that_is_held_at_a_cut_takes_nothing_from_behind_it() -> None:
    from riverrun.store.embedded.writing import Writer

    with duckdb.connect() as database:
        states = make(database, events())
        state = states["events"]
        state.until = {0: 2}
        records = [(0, number, b'{"id": %d, "at": "2026-01-01T00:00:00Z"}' % number) for number in range(5)]
        assert Writer(Session(database)).write(block("events", records), 0, states) == {}
        assert state.positions == {0: 2}
        assert database.execute("SELECT id FROM main.events ORDER BY id").fetchall() == [(0,), (1,)]


def test_a_replacement_that_was_begun_during_the_look_at_kafka_is_read_at_the_next_one() -> None:
    """The look did not ask for its topic: that it is not in the answer says nothing."""
    with duckdb.connect() as database:
        said: list[str] = []
        states = make(database, events(generations=(MADE,)))
        states["events"].topic_id = "A"
        ingest, reader = followed(database, states, said)
        switching = Switching(Session(database), states, said.append, places=ingest.places, ends=lambda _: None)
        there = {"events": ("A", 1), "events.2": ("B", 1)}

        def partitions(topics: Collection[str]) -> dict[str, tuple[str, int]]:
            switching.turn()
            return {topic: there[topic] for topic in topics}

        ingest._ends.partitions = partitions  # type: ignore[method-assign]
        ingest._choose(reader)
        switching.turn()
        assert list(states) == ["events", "events~2"]
        assert (states["events"].generation, states["events~2"].turn) == (1, NOT_READ)
        ingest._choose(reader)
        assert states["events~2"].turn == 1
        assert Place("events.2", 0) in reader.followed
        assert not [words for words in said if "is not there" in words]


def test_a_history_that_really_is_not_there_is_given_up() -> None:
    with duckdb.connect() as database:
        said: list[str] = []
        states = make(database, events(generations=(MADE,)))
        ingest, reader = followed(database, states, said)
        ingest._ends.partitions = lambda topics: {each: ("A", 1) for each in topics if each == "events"}  # type: ignore[method-assign]
        switching = Switching(Session(database), states, said.append, places=ingest.places, ends=lambda _: None)
        for _ in range(2):
            switching.turn()
            ingest._choose(reader)
        switching.turn()
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
        ingest._of_another_topic(state, {"events.2": ("B", 1)})
        ingest._of_another_topic(state, {"events": ("A", 1)})
        assert (state.topic_id, state.positions, state.turn, said) == ("A", {0: 5}, 0, [])
        ingest._of_another_topic(replace(state), {"events": ("C", 1)})
        assert load(Session(database))["events"].topic_id == "", "one that was replaced meanwhile is not saved"
        ingest._of_another_topic(state, {"events": ("C", 1)})
        assert (state.topic_id, state.positions, state.turn, len(said)) == ("C", {}, NOT_READ, 1)


def test_a_replacement_whose_generation_the_catalog_has_no_more_is_given_up() -> None:
    """And the other tables go on."""
    with duckdb.connect() as database:
        said: list[str] = []
        states = make(database, events(generations=(MADE,)))
        switching = Switching(Session(database), states, said.append, places=lambda _: None, ends=lambda _: None)
        switching.turn()
        assert list(states) == ["events", "events~2"]
        states["events"].spec = events()
        switching.turn()
        assert list(states) == ["events"]
        assert states["events"].generation == 1
        assert "The table events keeps its rows: its declaration has generation 2" in said[-1]
        # It comes back, for all that is known: then it is read.
        states["events"].spec = events(generations=(MADE,))
        switching.turn()
        assert list(states) == ["events", "events~2"]


def test_a_table_is_not_held_for_a_generation_that_the_catalog_has_no_more() -> None:
    with duckdb.connect() as database:
        states = make(database, events(generations=(replace(MADE, since_ms=9),)))
        switching = Switching(Session(database), states, print, places=lambda _: None, ends=lambda _: None)
        switching.turn()
        assert states["events"].until == {0: 5}
        states["events"].spec = events()
        switching.turn()
        assert (states["events"].until, states["events"].turn) == ({}, NOT_READ)


def test_a_history_that_could_not_be_ended_in_the_file_is_not_ended() -> None:
    with duckdb.connect() as database:
        states = make(database, events(generations=(MADE,)))
        session = Session(database)
        switching = Switching(
            session, states, print, places=lambda topic: [Place(topic, 0)], ends=lambda _: {Place("events.2", 0): 3}
        )
        switching.turn()
        hidden = states["events~2"]
        hidden.turn, hidden.positions, hidden.topic_id = 1, {0: 3}, "B"
        run, session.run = session.run, refusing(session, "UPDATE")  # type: ignore[method-assign]
        with pytest.raises(duckdb.Error):
            switching.turn()
        assert (hidden.spec.topic, hidden.topic_id, hidden.positions, hidden.turn) == ("events.2", "B", {0: 3}, 1)
        session.run = run  # type: ignore[method-assign]
        switching.turn()
        assert (hidden.spec.topic, hidden.positions, hidden.turn) == ("events", {0: 5}, NOT_READ)


def test_a_table_that_is_held_at_a_cut_stays_so_after_a_failure() -> None:
    """The file does not know the cut, the state in memory does."""
    from riverrun.store.embedded.writing import Writer

    with duckdb.connect() as database:
        states = make(database, events())
        state = states["events"]
        state.until, state.failures = {0: 2}, 1
        records = [(0, number, b'{"id": %d, "at": "2026-01-01T00:00:00Z"}' % number) for number in range(5)]
        assert Writer(Session(database)).write(block("events", records), 0, states) == {}
        assert (state.positions, state.until) == ({0: 2}, {0: 2})
        assert database.execute("SELECT id FROM main.events ORDER BY id").fetchall() == [(0,), (1,)]


class Followed:
    """A reader that only remembers what it is to read."""

    followed: dict[Place, int]

    def follow(self, wanted: dict[Place, int], *, again: list[Place]) -> None:  # noqa: ARG002
        self.followed = wanted


def followed(database: duckdb.DuckDBPyConnection, states: dict[str, TableState], said: list[str]) -> tuple[Ingest, Any]:
    """An Ingest whose threads do not run."""
    nowhere = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1", request_timeout_seconds=1))
    ingest = Ingest(
        nowhere,
        Session(database),
        states,
        threading.RLock(),
        name="test",
        catalog=None,
        declare=lambda _: None,
        upkeep=lambda: None,
        notice=said.append,
    )
    return ingest, Followed()


def refusing(session: Session, word: str) -> Callable[..., list[Any]]:
    """A session's `run` that fails at statements of this kind."""
    run = session.run

    def refuse(sql: str, values: Any = None) -> list[Any]:
        if sql.startswith(word):
            raise duckdb.IOException("No space left on device")
        return run(sql, values)

    return refuse
