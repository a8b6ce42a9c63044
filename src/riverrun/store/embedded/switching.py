# ruff: noqa: S608  -- SQL is made here, of names and values that are quoted
"""After a replay a table shows what the new generation has made, from one question to the next.

The new rows are gathered in a table that nobody sees: first what the old one keeps (rows of before the replay's beginning),
then the corrected history from the generation's own topic, then the stream's topic from the cut on. The old table goes on
meanwhile. When the new one has all that the old one has read, it takes its name, in one transaction.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from riverrun.errors import StoreTableError
from riverrun.model.state import Place
from riverrun.model.table import RECORD_TIME, TableGeneration, TableSpec
from riverrun.store.embedded import schema
from riverrun.store.embedded.schema import literal, quoted, rows_of, seen_of
from riverrun.store.embedded.session import Session
from riverrun.store.embedded.state import NOT_READ, TableState, save


def next_generation(spec: TableSpec, number: int) -> TableGeneration | None:
    """The generation that a table of that number is to show next: the last that has made all rows, else the first newer."""
    newer = [each for each in spec.generations if each.number > number]
    whole = [each for each in newer if not each.since_ms]
    return whole[-1] if whole else newer[0] if newer else None


class Switching:
    """Called by the writer alone, under the store's lock. `places` and `ends` tell of topics, as Ingest knows them."""

    def __init__(
        self,
        database: Session,
        states: dict[str, TableState],
        notice: Callable[[str], None],
        *,
        places: Callable[[str], list[Place] | None],
        ends: Callable[[list[Place]], dict[Place, int] | None],
    ) -> None:
        self._database = database
        self._states = states
        self._notice = notice
        self._places = places
        self._ends = ends

    def turn(self) -> None:
        """Do what can be done now."""
        for state in [each for each in self._states.values() if not each.replaces]:
            made = self.replacement_of(state)
            if made is not None:
                self._advance(state, made)
            elif (generation := next_generation(state.spec, state.generation)) is not None:
                self._begin(state, generation)
            elif state.until:
                # It was held for a generation that the catalog has no more.
                state.until, state.turn = {}, NOT_READ

    def replacement_of(self, state: TableState) -> TableState | None:
        return next((each for each in self._states.values() if each.replaces == state.spec.name), None)

    # --- begin --------------------------------------------------------------------------------------------------------

    def _begin(self, state: TableState, generation: TableGeneration) -> None:
        spec, keeps = state.spec, bool(generation.since_ms)
        if keeps and spec.time == RECORD_TIME and not spec.upserts:
            self._notice(
                f"The table {spec.name} keeps its rows: its stream was not replayed from the beginning, and without an "
                f"event time it cannot be told which of them are replaced. The corrected ones are in {generation.topic}"
            )
            self._is_of(state, generation.number)
            return
        if keeps and not self._is_at_cut(state, generation):
            return
        name = f"{spec.name}~{generation.number}"
        made = TableState(
            replace(spec, name=name, topic=generation.topic), generation=generation.number, replaces=spec.name
        )
        with self._database.transaction():
            for statement in schema.creation(made.spec):
                self._database.run(statement)
            if keeps:
                made.rows = self._keep_rows(state, made, generation)
                made.newest, made.rejected, made.repeated, made.gone = 0.0, state.rejected, state.repeated, state.gone
            save(self._database, [made])
        self._states[name] = made
        self._notice(
            f"The table {spec.name} is read anew from {generation.topic}, which a replay has made; "
            "until that is done it shows what it had"
        )

    def _is_at_cut(self, state: TableState, generation: TableGeneration) -> bool:
        """Whether the table has all rows of the generation before, and none of the new one; it is held there until it is."""
        if all(state.positions.get(partition, 0) >= offset for partition, offset in generation.first.items()):
            if state.until:
                # What came behind the cut was left out, and is to be read again.
                state.until, state.turn = {}, NOT_READ
            return True
        state.until = dict(generation.first)
        return False

    def _keep_rows(self, old: TableState, made: TableState, generation: TableGeneration) -> int:
        names = ", ".join(quoted(each.name) for each in made.spec.columns)
        # A table by key without a time of its own: what the replay has a newer row of is replaced one by one.
        before = f"WHERE {quoted(old.spec.time)} < to_timestamp({generation.since_ms / 1000!r})"
        kept = self._database.count(
            f"INSERT INTO {rows_of(made.spec.name)} ({names}) SELECT {names} FROM {rows_of(old.spec.name)} "
            + ("" if old.spec.time == RECORD_TIME else before)
        )
        self._database.run(f"INSERT INTO {seen_of(made.spec.name)} FROM {seen_of(old.spec.name)}")
        return kept

    # --- go on --------------------------------------------------------------------------------------------------------

    def _advance(self, state: TableState, made: TableState) -> None:
        generation = next((each for each in state.spec.generations if each.number == made.generation), None)
        if generation is None:
            self._notice(
                f"The table {state.spec.name} keeps its rows: its declaration has generation {made.generation}, which was "
                "being read, no more. That is so when its app ran from a copy of the project without its .riverrun folder"
            )
            self._drop(made)
            return
        if not self._is_declared_alike(state, made):
            return
        if made.spec.topic == generation.topic:
            self._history(state, made, generation)
            return
        following = next_generation(state.spec, made.generation)
        if following is not None and following.since_ms:
            # A later replay builds on this one, and must find it at its own cut.
            made.until = dict(following.first)
        wanted = {part: min(offset, made.until.get(part, offset)) for part, offset in state.positions.items()}
        if all(made.positions.get(part, 0) >= offset for part, offset in wanted.items()):
            self._swap(state, made)

    def _is_declared_alike(self, state: TableState, made: TableState) -> bool:
        """Columns that were declared meanwhile are there, too."""
        wanted = replace(state.spec, name=made.spec.name, topic=made.spec.topic)
        if wanted == made.spec:
            return True
        try:
            statements, _ = schema.changes(self._database, made.spec, wanted, replaces=made.replaces)
        except StoreTableError as error:
            made.refuse(str(error))
            return False
        with self._database.transaction():
            for statement in statements:
                self._database.run(statement)
        made.spec = wanted
        return True

    def _history(self, state: TableState, made: TableState, generation: TableGeneration) -> None:
        places = self._places(generation.topic)
        if places is None or made.turn == NOT_READ:
            # Nobody has looked for the topic since.
            return
        if not places:
            self._notice(
                f"The table {state.spec.name} keeps its rows: {generation.topic}, which a replay has made, is not there"
            )
            self._drop(made)
            self._is_of(state, generation.number)
            return
        ends = self._ends(places)
        # An answer to somebody else's question may not have them: then nothing is known.
        if ends is None or any(
            each not in ends or made.positions.get(each.partition, 0) < ends[each] for each in places
        ):
            return
        spec = replace(made.spec, topic=state.spec.topic)
        after = replace(made, spec=spec, topic_id=state.topic_id, positions=dict(generation.first))
        with self._database.transaction():
            self._database.run(schema.stored(spec))
            save(self._database, [after])
        # The turn first: the reader looks at it without the lock.
        made.turn = NOT_READ
        made.spec, made.topic_id, made.positions = spec, after.topic_id, after.positions

    def _swap(self, state: TableState, made: TableState) -> None:
        name, hidden = state.spec.name, made.spec.name
        with self._database.transaction():
            for statement in [
                *schema.removal(name),
                f"ALTER TABLE {rows_of(hidden)} RENAME TO {quoted(name)}",
                f"ALTER TABLE {seen_of(hidden)} RENAME TO {quoted(name)}",
                f"UPDATE _riverrun.tables SET name = {literal(name)} WHERE name = {literal(hidden)}",
                f'UPDATE _riverrun.rejected SET "table" = {literal(name)} WHERE "table" = {literal(hidden)}',
                schema.view(state.spec),
            ]:
                self._database.run(statement)
            now = replace(made, spec=state.spec, replaces="")
            self._database.run(schema.stored(now.spec))
            save(self._database, [now])
        del self._states[hidden]
        self._states[name] = now
        self._notice(
            f"The table {name} shows what the replay of its stream has made: generation {made.generation}, "
            f"{made.rows:,} row{'' if made.rows == 1 else 's'}"
        )

    def _drop(self, made: TableState) -> None:
        with self._database.transaction():
            for statement in schema.removal(made.spec.name):
                self._database.run(statement)
        del self._states[made.spec.name]

    def _is_of(self, state: TableState, number: int) -> None:
        state.generation = number
        save(self._database, [state])


def shown(states: Mapping[str, TableState]) -> dict[str, TableState]:
    """The tables that readers see."""
    return {name: each for name, each in list(states.items()) if not each.replaces}
