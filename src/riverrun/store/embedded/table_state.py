# ruff: noqa: S608  -- SQL is made here, of names and values that are quoted
"""The state of each table while the store runs: what is in the file, and its current problem."""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from riverrun.model.table import RECORD_TIME, TableSpec, table_from_dict
from riverrun.store.embedded.schema import quote_literal
from riverrun.store.embedded.session import DuckDBSession

_COUNTS = "topic_id, positions, rows, rejected, repeated, gone, newest, updated, generation, replaces"
# The epoch of a table that is not assigned to the reader: a new one, or one that has missed something.
NOT_ASSIGNED = 1 << 62


@dataclass
class TableState:
    """A table: its declaration, how far it has read, and its counts. `problem` is why it is paused, `retry_at` until
    when."""

    spec: TableSpec
    topic_id: str = ""
    positions: dict[int, int] = field(default_factory=dict)
    rows: int = 0
    rejected: int = 0
    duplicates: int = 0
    expired: int = 0
    newest: float = 0.0
    updated: float = 0.0
    # The generation of its stream that its rows belong to; and the table that it replaces once it has them all.
    generation: int = 1
    replaces: str = ""
    problem: str = ""
    # Whether the problem is a refused declaration: that ends with a new one, not by itself.
    refused: bool = False
    retry_at: float = 0.0
    failures: int = 0
    # Records read before this epoch are not for it: it lacks the records before them.
    read_epoch: int = NOT_ASSIGNED
    bytes: int = -1
    # Where it stops reading, by partition, until a newer generation has caught up to there.
    stop_offsets: dict[int, int] = field(default_factory=dict)

    @property
    def min_time_ms(self) -> int:
        """Rows with an earlier time are skipped: they belong to an earlier generation. 0: none are.

        Windows that began before the replay's start are only partly counted by it; so they stay as they were.
        """
        generation = next(
            (generation for generation in self.spec.generations if generation.number == self.generation), None
        )
        if generation is None or self.spec.time == RECORD_TIME:
            return 0
        is_windowed = self.spec.upserts and self.spec.time in self.spec.key
        return generation.since_ms if is_windowed or self.spec.topic == generation.topic else 0

    @property
    def is_paused(self) -> bool:
        """Whether it takes no records now."""
        return self.refused or self.retry_at > time.monotonic()

    def mark_failed(self, problem: str) -> None:
        """Pause it for a while, longer each time."""
        self.problem, self.read_epoch = problem, NOT_ASSIGNED
        self.failures += 1
        self.retry_at = time.monotonic() + min(2.0**self.failures, 30.0)

    def mark_refused(self, problem: str) -> None:
        self.problem, self.refused, self.read_epoch = problem, True, NOT_ASSIGNED

    def clear_problem(self) -> None:
        self.problem, self.refused, self.failures, self.retry_at = "", False, 0, 0.0

    def update_statement(self) -> str:
        """The statement that writes its counts."""
        positions = json.dumps({str(partition): offset for partition, offset in sorted(self.positions.items())})
        return (
            f"UPDATE _riverrun.tables SET topic_id = {quote_literal(self.topic_id)}, "
            f"positions = {quote_literal(positions)}, "
            f"rows = {self.rows}, rejected = {self.rejected}, repeated = {self.duplicates}, gone = {self.expired}, "
            f"newest = {self.newest!r}, updated = {self.updated!r}, generation = {self.generation}, "
            f"replaces = {quote_literal(self.replaces)} WHERE name = {quote_literal(self.spec.name)}"
        )


def load_states(database: DuckDBSession) -> dict[str, TableState]:
    rows = database.run(f"SELECT spec, {_COUNTS} FROM _riverrun.tables ORDER BY name")
    states = {}
    for spec, topic_id, positions, *counts in rows:
        offsets = {int(partition): offset for partition, offset in json.loads(positions).items()}
        state = TableState(table_from_dict(json.loads(spec)), topic_id, offsets, *counts)
        states[state.spec.name] = state
    return states


def save_states(database: DuckDBSession, states: Iterable[TableState]) -> None:
    """Write the counts of tables."""
    for state in states:
        database.run(state.update_statement())
