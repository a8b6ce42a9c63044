# ruff: noqa: S608  -- SQL is made here, of names and values that are quoted
"""After a replay, switches a table to the new generation's rows between two queries.

The new rows are gathered in a hidden table: first what the old one keeps (rows from before the replay's start), then
the corrected history from the generation's own topic, then the stream's topic from the cutover on. The old table goes
on meanwhile. When the new one has everything that the old one has read, it takes its name, in one transaction.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from riverrun.errors import StoreTableError
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.table import RECORD_TIME, TableGeneration, TableSpec
from riverrun.store.embedded import schema
from riverrun.store.embedded.schema import identities_table, quote_identifier, quote_literal, rows_table
from riverrun.store.embedded.session import DuckDBSession
from riverrun.store.embedded.table_state import NOT_ASSIGNED, TableState, save_states


def next_generation(spec: TableSpec, number: int) -> TableGeneration | None:
    """The generation that a table should show next: the last one that made all rows, else the first newer one."""
    newer = [generation for generation in spec.generations if generation.number > number]
    complete = [generation for generation in newer if not generation.since_ms]
    return complete[-1] if complete else newer[0] if newer else None


class GenerationSwitcher:
    """Called by the writer alone, under the store's lock. `partitions` and `ends` tell of topics, as ingest knows them."""

    def __init__(
        self,
        database: DuckDBSession,
        states: dict[str, TableState],
        notice: Callable[[str], None],
        *,
        partitions: Callable[[str], list[TopicPartition] | None],
        ends: Callable[[list[TopicPartition]], dict[TopicPartition, int] | None],
    ) -> None:
        self._database = database
        self._states = states
        self._notice = notice
        self._partitions = partitions
        self._ends = ends

    def step(self) -> None:
        """Do what can be done now."""
        for state in [table for table in self._states.values() if not table.replaces]:
            replacement = self.find_replacement(state)
            if replacement is not None:
                self._advance(state, replacement)
            elif (generation := next_generation(state.spec, state.generation)) is not None:
                self._start_replacement(state, generation)
            elif state.stop_offsets:
                # It was stopped for a generation that is no longer in the catalog.
                state.stop_offsets, state.read_epoch = {}, NOT_ASSIGNED

    def find_replacement(self, state: TableState) -> TableState | None:
        return next((table for table in self._states.values() if table.replaces == state.spec.name), None)

    # --- start --------------------------------------------------------------------------------------------------------

    def _start_replacement(self, state: TableState, generation: TableGeneration) -> None:
        spec, keeps_rows = state.spec, bool(generation.since_ms)
        if keeps_rows and spec.time == RECORD_TIME and not spec.upserts:
            self._notice(
                f"The table {spec.name} keeps its rows: its stream was not replayed from the beginning, and without an "
                f"event time it cannot be told which of them are replaced. The corrected ones are in {generation.topic}"
            )
            self._set_generation(state, generation.number)
            return
        if keeps_rows and not self._is_at_cutover(state, generation):
            return
        name = f"{spec.name}~{generation.number}"
        replacement = TableState(
            replace(spec, name=name, topic=generation.topic), generation=generation.number, replaces=spec.name
        )
        with self._database.transaction():
            for statement in schema.create_statements(replacement.spec):
                self._database.run(statement)
            if keeps_rows:
                replacement.rows = self._copy_kept_rows(state, replacement, generation)
                replacement.newest, replacement.rejected, replacement.duplicates, replacement.expired = (
                    0.0,
                    state.rejected,
                    state.duplicates,
                    state.expired,
                )
            save_states(self._database, [replacement])
        self._states[name] = replacement
        self._notice(
            f"The table {spec.name} is read anew from {generation.topic}, which a replay has made; "
            "until that is done it shows what it had"
        )

    def _is_at_cutover(self, state: TableState, generation: TableGeneration) -> bool:
        """Whether the table has all rows of the previous generation and none of the new one; it stops at the cutover
        until then."""
        if all(state.positions.get(partition, 0) >= offset for partition, offset in generation.first.items()):
            if state.stop_offsets:
                # Records past the cutover were skipped, and are read again.
                state.stop_offsets, state.read_epoch = {}, NOT_ASSIGNED
            return True
        state.stop_offsets = dict(generation.first)
        return False

    def _copy_kept_rows(self, old: TableState, replacement: TableState, generation: TableGeneration) -> int:
        names = ", ".join(quote_identifier(column.name) for column in replacement.spec.columns)
        # A table with a key and without a time of its own: rows are replaced one by one as the replay has newer ones.
        before = f"WHERE {quote_identifier(old.spec.time)} < to_timestamp({generation.since_ms / 1000!r})"
        row_count = self._database.run_count(
            f"INSERT INTO {rows_table(replacement.spec.name)} ({names}) SELECT {names} FROM {rows_table(old.spec.name)} "
            + ("" if old.spec.time == RECORD_TIME else before)
        )
        self._database.run(
            f"INSERT INTO {identities_table(replacement.spec.name)} FROM {identities_table(old.spec.name)}"
        )
        return row_count

    # --- continue -----------------------------------------------------------------------------------------------------

    def _advance(self, state: TableState, replacement: TableState) -> None:
        generation = next(
            (candidate for candidate in state.spec.generations if candidate.number == replacement.generation), None
        )
        if generation is None:
            self._notice(
                f"The table {state.spec.name} keeps its rows: its declaration has generation {replacement.generation}, "
                "which was being read, no more. That is so when its app ran from a copy of the project "
                "without its .riverrun folder"
            )
            self._drop(replacement)
            return
        if not self._sync_declaration(state, replacement):
            return
        if replacement.spec.topic == generation.topic:
            self._finish_history(state, replacement, generation)
            return
        following = next_generation(state.spec, replacement.generation)
        if following is not None and following.since_ms:
            # A later replay builds on this one, and must find it at its own cutover.
            replacement.stop_offsets = dict(following.first)
        targets = {
            partition: min(offset, replacement.stop_offsets.get(partition, offset))
            for partition, offset in state.positions.items()
        }
        if all(replacement.positions.get(partition, 0) >= offset for partition, offset in targets.items()):
            self._swap(state, replacement)

    def _sync_declaration(self, state: TableState, replacement: TableState) -> bool:
        """Add columns that were declared meanwhile."""
        expected = replace(state.spec, name=replacement.spec.name, topic=replacement.spec.topic)
        if expected == replacement.spec:
            return True
        try:
            statements, _ = schema.plan_changes(
                self._database, replacement.spec, expected, replaces=replacement.replaces
            )
        except StoreTableError as error:
            replacement.mark_refused(str(error))
            return False
        with self._database.transaction():
            for statement in statements:
                self._database.run(statement)
        replacement.spec = expected
        return True

    def _finish_history(self, state: TableState, replacement: TableState, generation: TableGeneration) -> None:
        partitions = self._partitions(generation.topic)
        if partitions is None or replacement.read_epoch == NOT_ASSIGNED:
            # The topic has not been looked up since.
            return
        if not partitions:
            self._notice(
                f"The table {state.spec.name} keeps its rows: {generation.topic}, which a replay has made, is not there"
            )
            self._drop(replacement)
            self._set_generation(state, generation.number)
            return
        ends = self._ends(partitions)
        # A response to another request may not have them: then nothing is known.
        if ends is None or any(
            partition not in ends or replacement.positions.get(partition.partition, 0) < ends[partition]
            for partition in partitions
        ):
            return
        spec = replace(replacement.spec, topic=state.spec.topic)
        after = replace(replacement, spec=spec, topic_id=state.topic_id, positions=dict(generation.first))
        with self._database.transaction():
            self._database.run(schema.update_spec_statement(spec))
            save_states(self._database, [after])
        # The epoch first: the reader looks at it without the lock.
        replacement.read_epoch = NOT_ASSIGNED
        replacement.spec, replacement.topic_id, replacement.positions = spec, after.topic_id, after.positions

    def _swap(self, state: TableState, replacement: TableState) -> None:
        name, hidden = state.spec.name, replacement.spec.name
        with self._database.transaction():
            for statement in [
                *schema.drop_statements(name),
                f"ALTER TABLE {rows_table(hidden)} RENAME TO {quote_identifier(name)}",
                f"ALTER TABLE {identities_table(hidden)} RENAME TO {quote_identifier(name)}",
                f"UPDATE _riverrun.tables SET name = {quote_literal(name)} WHERE name = {quote_literal(hidden)}",
                f'UPDATE _riverrun.rejected SET "table" = {quote_literal(name)} WHERE "table" = {quote_literal(hidden)}',
                schema.view_statement(state.spec),
            ]:
                self._database.run(statement)
            now = replace(replacement, spec=state.spec, replaces="")
            self._database.run(schema.update_spec_statement(now.spec))
            save_states(self._database, [now])
        del self._states[hidden]
        self._states[name] = now
        self._notice(
            f"The table {name} shows what the replay of its stream has made: generation {replacement.generation}, "
            f"{replacement.rows:,} row{'' if replacement.rows == 1 else 's'}"
        )

    def _drop(self, replacement: TableState) -> None:
        with self._database.transaction():
            for statement in schema.drop_statements(replacement.spec.name):
                self._database.run(statement)
        del self._states[replacement.spec.name]

    def _set_generation(self, state: TableState, number: int) -> None:
        state.generation = number
        save_states(self._database, [state])


def visible_tables(states: Mapping[str, TableState]) -> dict[str, TableState]:
    """The tables that readers see."""
    return {name: state for name, state in list(states.items()) if not state.replaces}
