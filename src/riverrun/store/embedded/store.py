"""The embedded store: what `store.contract` promises, on DuckDB in this process."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb

from riverrun.config.spec import StoreSettings
from riverrun.errors import StoreError, StoreTableError
from riverrun.kafka.connection import Connection
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.table import TableSpec
from riverrun.model.units import parse_size
from riverrun.store.catalog import Catalog
from riverrun.store.contract import QueryLimits, QueryResult, Store, TableHealth, TableStatus
from riverrun.store.embedded import schema, table_state
from riverrun.store.embedded.batch import RejectedRow
from riverrun.store.embedded.generation_switch import GenerationSwitcher, next_generation, visible_tables
from riverrun.store.embedded.ingest import TableIngest
from riverrun.store.embedded.maintenance import StoreMaintenance
from riverrun.store.embedded.queries import QueryRunner
from riverrun.store.embedded.session import DuckDBSession
from riverrun.store.embedded.snapshot import write_snapshot
from riverrun.store.embedded.store_file import StoreFile
from riverrun.store.embedded.table_state import TableState


def _ignore_notice(_: str) -> None:
    pass


class EmbeddedStore(Store):
    """One file of tables in `folder`, which this process owns while it is open.

    With a `catalog`, its tables are applied as soon as they are published; a declaration that is refused makes that
    table `failing`, and the others go on. `notice` gets sentences that an operator should know. Without `follow` it
    reads no topic.
    """

    def __init__(
        self,
        folder: Path,
        connection: Connection,
        settings: StoreSettings,
        *,
        catalog: Catalog | None = None,
        notice: Callable[[str], None] = _ignore_notice,
        follow: bool = True,
    ) -> None:
        self._follow = follow
        self._connection = connection
        self._catalog = catalog
        self._notice = notice
        self._max_bytes = parse_size(settings.max_size, what="store.max_size") if settings.max_size else 0
        self._file = StoreFile(folder, settings)
        self._lock = threading.RLock()
        self._states: dict[str, TableState] = {}
        # Tables in the catalog that could not be created at all: the declaration, and why.
        self._refused: dict[str, tuple[TableSpec, str]] = {}
        self._query_runner = QueryRunner(lambda: self._file.database)
        self._ingest: TableIngest | None = None
        self._database: DuckDBSession | None = None

    # --- lifecycle ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self._file.open()
        self._database = DuckDBSession(self._file.database.cursor())
        schema.create_metadata(self._database)
        self._states |= table_state.load_states(self._database)
        if not self._follow:
            return
        maintenance = StoreMaintenance(
            self._database,
            self._file,
            self._states,
            self._max_bytes,
            self._notice,
            pause_queries=self._query_runner.paused,
        )
        self._ingest = TableIngest(
            self._connection,
            self._database,
            self._states,
            self._lock,
            name=f"riverrun-store-{self._file.folder.name}",
            catalog=self._catalog,
            apply_catalog=self._apply_catalog,
            maintenance=maintenance.run_due,
            notice=self._notice,
        )
        self._ingest.switch_generations = GenerationSwitcher(
            self._database, self._states, self._notice, partitions=self._ingest.partitions, ends=self._ingest.ends
        ).step
        self._ingest.start()

    def close(self) -> None:
        ingest, self._ingest = self._ingest, None
        if ingest is not None:
            ingest.stop()
        self._query_runner.close()
        database, self._database = self._database, None
        if database is not None:
            with self._lock, contextlib.suppress(duckdb.Error):
                # Only offsets passed since the last row; unsaved, they are passed again.
                table_state.save_states(database, self._states.values())
            database.close()
        self._file.close()

    # --- tables -------------------------------------------------------------------------------------------------------

    @property
    def tables(self) -> dict[str, TableSpec]:
        return {name: state.spec for name, state in visible_tables(self._states).items()}

    def apply(self, tables: Sequence[TableSpec]) -> list[str]:
        with self._lock:
            database = self._open_session()
            statements: list[str] = []
            sentences: list[str] = []
            for table in tables:
                known = self._states.get(table.name)
                more_statements, more_sentences = schema.plan_changes(database, known.spec if known else None, table)
                statements += more_statements
                sentences += more_sentences
            if statements:
                with database.transaction():
                    for statement in statements:
                        database.run(statement)
            for table in tables:
                known = self._states.get(table.name)
                if known is None:
                    self._states[table.name] = TableState(table)
                else:
                    known.spec = table
                    if known.refused:
                        known.clear_problem()
                self._refused.pop(table.name, None)
            return sentences

    def remove(self, table: str) -> None:
        with self._lock:
            if table not in self.tables:
                raise StoreError(
                    f"The store has no table {table}", found=", ".join(self.tables) or "no tables", table=table
                )
            database = self._open_session()
            # The replacement under construction is dropped with it.
            names = [table, *(name for name, state in self._states.items() if state.replaces == table)]
            with database.transaction():
                for statement in [statement for name in names for statement in schema.drop_statements(name)]:
                    database.run(statement)
            for name in names:
                del self._states[name]
            # It may be created again from its current declaration.
            self._refused.pop(table, None)

    def _apply_catalog(self, catalog: Catalog) -> None:
        """Make the tables what the catalog says now. Called by the writer, before it writes later records."""
        for name, table in catalog.tables.items():
            known = self._states.get(name)
            if known is not None and known.spec == table and not known.refused:
                continue
            if self._refused.get(name, (None, ""))[0] == table:
                continue
            try:
                for sentence in self.apply([table]):
                    self._notice(sentence)
            except StoreTableError as error:
                self._refused[name] = (table, str(error))
                self._notice(str(error))
                if known is not None:
                    known.mark_refused(str(error))

    def _open_session(self) -> DuckDBSession:
        return self._database or DuckDBSession(self._file.database)  # which reports that the store is not open

    # --- queries ------------------------------------------------------------------------------------------------------

    def query(self, sql: str, limits: QueryLimits = QueryLimits(), *, name: str = "") -> QueryResult:  # noqa: B008  -- frozen
        return self._query_runner.query(sql, self.tables, limits, name)

    def cancel(self, name: str) -> bool:
        return self._query_runner.cancel(name)

    @property
    def folder(self) -> Path:
        return self._file.folder

    def snapshot(self, path: Path) -> None:
        write_snapshot(self._file.database, self.tables, path)

    def rejected_rows(self, table: str = "", limit: int = 100) -> list[tuple[str, RejectedRow]]:
        """The last rejected rows of a table, newest first, and why."""
        with contextlib.closing(DuckDBSession(self._file.database.cursor())) as session:
            rows = session.run(
                'SELECT "table", partition, "offset", reason, bytes FROM _riverrun.rejected '
                "WHERE ? IN ('', \"table\") ORDER BY rowid DESC LIMIT ?",
                [table, limit],
            )
        return [(name, RejectedRow(*rest)) for name, *rest in rows]

    # --- status -------------------------------------------------------------------------------------------------------

    def table_statuses(self) -> list[TableStatus]:
        states = list(self._states.values())
        ingest = self._ingest
        partitions = {state.spec.topic: ingest.partitions(state.spec.topic) if ingest else None for state in states}
        ends = (
            ingest.ends([partition for some in partitions.values() for partition in some or ()])
            if ingest is not None
            else None
        )
        replacements = {state.replaces: state for state in states if state.replaces}
        statuses = [
            self._table_status(state, partitions, ends, replacements.get(state.spec.name))
            for state in states
            if not state.replaces
        ]
        statuses += [
            TableStatus(name, 0, "failing", reason)
            for name, (_, reason) in sorted(self._refused.items())
            if name not in self._states
        ]
        return statuses

    def _table_status(
        self,
        table: TableState,
        topics: dict[str, list[TopicPartition] | None],
        ends: dict[TopicPartition, int] | None,
        replacement: TableState | None,
    ) -> TableStatus:
        """`replacement` is what is to take its place: it is not up to date before that has."""
        partitions, positions = topics[table.spec.topic], dict(table.positions)
        lag = _lag(table, partitions, ends)
        detail = [table.problem] if table.problem else []
        if replacement is not None:
            remaining = _lag(replacement, topics[replacement.spec.topic], ends)
            # At least one: a replacement that has read everything is not yet shown.
            lag = lag + max(1, remaining) if lag >= 0 else lag
            what = f", {remaining:,} offsets of {replacement.spec.topic} left" if remaining >= 0 else ""
            detail.append(f"shows its replay (generation {replacement.generation}) when that is read{what}")
            detail += [replacement.problem] if replacement.problem else []
        elif next_generation(table.spec, table.generation) is not None:
            lag = lag + 1 if lag >= 0 else lag
            detail.append("a replay has corrected its rows, and they are still to be read")
        if table.rejected:
            detail.append(f"{table.rejected:,} record{'s' if table.rejected != 1 else ''} did not fit its columns")
        if table.duplicates:
            detail.append(f"{table.duplicates:,} sent again and left out")
        if table.expired:
            detail.append(f"{table.expired:,} gone before they were read (retention)")
        if partitions == []:
            detail.append(f"waits for the topic {table.spec.topic}")
        if self._ingest is not None and self._ingest.error:
            detail.append(self._ingest.error)
        table_state: TableHealth = "failing" if table.problem else "following" if lag == 0 else "behind"
        return TableStatus(
            table.spec.name,
            table.rows,
            table_state,
            "; ".join(detail),
            positions,
            lag,
            table.newest,
            table.updated,
            table.bytes,
        )


def _lag(table: TableState, partitions: list[TopicPartition] | None, ends: dict[TopicPartition, int] | None) -> int:
    """The number of offsets that the table has not read; -1 when unknown."""
    if partitions is None or ends is None:
        return -1
    return sum(max(0, ends.get(partition, 0) - table.positions.get(partition.partition, 0)) for partition in partitions)
