# ruff: noqa: S608  -- SQL is made here, of names and values that are quoted
"""What is known of each table while the store runs: as it is in the file, and what is wrong with it now."""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from riverrun.model.table import RECORD_TIME, TableSpec, table_from
from riverrun.store.embedded.schema import literal
from riverrun.store.embedded.session import Session

_COUNTS = "topic_id, positions, rows, rejected, repeated, gone, newest, updated, generation, replaces"
# The turn of a table that no reader reads for: a new one, or one that has missed something.
NOT_READ = 1 << 62


@dataclass
class TableState:
    """A table: what it is, how far it has read, and its counts. `problem` is why it does not go on, and until when."""

    spec: TableSpec
    topic_id: str = ""
    positions: dict[int, int] = field(default_factory=dict)
    rows: int = 0
    rejected: int = 0
    repeated: int = 0
    gone: int = 0
    newest: float = 0.0
    updated: float = 0.0
    # Which generation of its stream its rows are of; and the table that it takes the place of when it has them all.
    generation: int = 1
    replaces: str = ""
    problem: str = ""
    # Whether the problem is a declaration that was refused: that ends with another one, not by itself.
    refused: bool = False
    retry_at: float = 0.0
    failures: int = 0
    # Records that were read before this turn of the reader are not for it: it does not have what is before them.
    turn: int = NOT_READ
    bytes: int = -1
    # Where it stops reading, by partition, until a newer generation has what it has up to there.
    until: dict[int, int] = field(default_factory=dict)

    @property
    def oldest_taken_ms(self) -> int:
        """Rows whose time is before this are not taken: they are of an earlier generation. 0: all are.

        Of windows that were begun before the replay's place, what it has counted is a part; so they stay as they were.
        """
        made = next((each for each in self.spec.generations if each.number == self.generation), None)
        if made is None or self.spec.time == RECORD_TIME:
            return 0
        windows = self.spec.upserts and self.spec.time in self.spec.key
        return made.since_ms if windows or self.spec.topic == made.topic else 0

    @property
    def resting(self) -> bool:
        """Whether it takes no records now."""
        return self.refused or self.retry_at > time.monotonic()

    def failed(self, problem: str) -> None:
        """Leave it alone for a while, longer each time."""
        self.problem, self.turn = problem, NOT_READ
        self.failures += 1
        self.retry_at = time.monotonic() + min(2.0**self.failures, 30.0)

    def refuse(self, problem: str) -> None:
        self.problem, self.refused, self.turn = problem, True, NOT_READ

    def well(self) -> None:
        self.problem, self.refused, self.failures, self.retry_at = "", False, 0, 0.0

    def saving(self) -> str:
        """The statement that writes its counts."""
        positions = json.dumps({str(partition): offset for partition, offset in sorted(self.positions.items())})
        return (
            f"UPDATE _riverrun.tables SET topic_id = {literal(self.topic_id)}, positions = {literal(positions)}, "
            f"rows = {self.rows}, rejected = {self.rejected}, repeated = {self.repeated}, gone = {self.gone}, "
            f"newest = {self.newest!r}, updated = {self.updated!r}, generation = {self.generation}, "
            f"replaces = {literal(self.replaces)} WHERE name = {literal(self.spec.name)}"
        )


def load(database: Session) -> dict[str, TableState]:
    found = database.run(f"SELECT spec, {_COUNTS} FROM _riverrun.tables ORDER BY name")
    states = {}
    for spec, topic_id, positions, *counts in found:
        told = {int(partition): offset for partition, offset in json.loads(positions).items()}
        state = TableState(table_from(json.loads(spec)), topic_id, told, *counts)
        states[state.spec.name] = state
    return states


def save(database: Session, states: Iterable[TableState]) -> None:
    """Write the counts of tables."""
    for each in states:
        database.run(each.saving())
