"""The embedded store: what `store.contract` promises, on DuckDB in this process."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb

from riverrun.config.spec import StoreSettings
from riverrun.errors import StoreError, StoreTableError
from riverrun.kafka.connection import Connection
from riverrun.model.quantity import bytes_of
from riverrun.model.state import Place
from riverrun.model.table import TableSpec
from riverrun.store.catalog import Catalog
from riverrun.store.contract import Answer, Limits, Standing, State, Store
from riverrun.store.embedded import schema, state
from riverrun.store.embedded.asking import Asking
from riverrun.store.embedded.batch import Misfit
from riverrun.store.embedded.file import StoreFile
from riverrun.store.embedded.ingest import Ingest
from riverrun.store.embedded.session import Session
from riverrun.store.embedded.snapshot import write_snapshot
from riverrun.store.embedded.state import TableState
from riverrun.store.embedded.switching import Switching, next_generation, shown
from riverrun.store.embedded.upkeep import Upkeep


def _say_nothing(_: str) -> None:
    pass


class EmbeddedStore(Store):
    """One file of tables in `folder`, which this process owns while it is open.

    With a `catalog`, the tables are what it says, as soon as it says so; a declaration that is refused makes that table
    `failing`, and the others go on. `notice` is told in a sentence what an operator should know. Without `follow` it
    reads no topic.
    """

    def __init__(
        self,
        folder: Path,
        connection: Connection,
        settings: StoreSettings,
        *,
        catalog: Catalog | None = None,
        notice: Callable[[str], None] = _say_nothing,
        follow: bool = True,
    ) -> None:
        self._follow = follow
        self._connection = connection
        self._catalog = catalog
        self._notice = notice
        self._max_bytes = bytes_of(settings.max_size, what="store.max_size") if settings.max_size else 0
        self._file = StoreFile(folder, settings)
        self._lock = threading.RLock()
        self._states: dict[str, TableState] = {}
        # Tables that the catalog names and that could not be made at all: the declaration, and why.
        self._refused: dict[str, tuple[TableSpec, str]] = {}
        self._asking = Asking(lambda: self._file.database)
        self._ingest: Ingest | None = None
        self._database: Session | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self._file.open()
        self._database = Session(self._file.database.cursor())
        schema.prepare(self._database)
        self._states |= state.load(self._database)
        if not self._follow:
            return
        upkeep = Upkeep(
            self._database, self._file, self._states, self._max_bytes, self._notice, paused=self._asking.paused
        )
        self._ingest = Ingest(
            self._connection,
            self._database,
            self._states,
            self._lock,
            name=f"riverrun-store-{self._file.folder.name}",
            catalog=self._catalog,
            declare=self._declare,
            upkeep=upkeep.turn,
            notice=self._notice,
        )
        self._ingest.switch = Switching(
            self._database, self._states, self._notice, places=self._ingest.places, ends=self._ingest.ends
        ).turn
        self._ingest.start()

    def close(self) -> None:
        ingest, self._ingest = self._ingest, None
        if ingest is not None:
            ingest.stop()
        self._asking.close()
        database, self._database = self._database, None
        if database is not None:
            with self._lock, contextlib.suppress(duckdb.Error):
                # Only what was passed since the last row; without it that is passed again.
                state.save(database, self._states.values())
            database.close()
        self._file.close()

    # --- tables -------------------------------------------------------------------------------------------------------

    @property
    def tables(self) -> dict[str, TableSpec]:
        return {name: each.spec for name, each in shown(self._states).items()}

    def apply(self, tables: Sequence[TableSpec]) -> list[str]:
        with self._lock:
            database = self._writing()
            statements: list[str] = []
            said: list[str] = []
            for table in tables:
                known = self._states.get(table.name)
                more, told = schema.changes(database, known.spec if known else None, table)
                statements += more
                said += told
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
                        known.well()
                self._refused.pop(table.name, None)
            return said

    def remove(self, table: str) -> None:
        with self._lock:
            if table not in self.tables:
                raise StoreError(
                    f"The store has no table {table}", found=", ".join(self.tables) or "no tables", table=table
                )
            database = self._writing()
            # What was to take its place goes with it.
            names = [table, *(name for name, each in self._states.items() if each.replaces == table)]
            with database.transaction():
                for statement in [statement for name in names for statement in schema.removal(name)]:
                    database.run(statement)
            for name in names:
                del self._states[name]
            # Declared as it is now, it may be made anew.
            self._refused.pop(table, None)

    def _declare(self, catalog: Catalog) -> None:
        """Have the tables as the catalog has them now. Called by the writer, before it writes what came after."""
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
                    known.refuse(str(error))

    def _writing(self) -> Session:
        return self._database or Session(self._file.database)  # which says that the store is not open

    # --- questions ----------------------------------------------------------------------------------------------------

    def ask(self, sql: str, limits: Limits = Limits(), *, name: str = "") -> Answer:  # noqa: B008  -- frozen
        return self._asking.ask(sql, self.tables, limits, name)

    def cancel(self, name: str) -> bool:
        return self._asking.cancel(name)

    @property
    def folder(self) -> Path:
        return self._file.folder

    def snapshot(self, path: Path) -> None:
        write_snapshot(self._file.database, self.tables, path)

    def rejected(self, table: str = "", most: int = 100) -> list[tuple[str, Misfit]]:
        """The last records that were no rows of their table, newest first, and why."""
        with contextlib.closing(Session(self._file.database.cursor())) as session:
            found = session.run(
                'SELECT "table", partition, "offset", reason, bytes FROM _riverrun.rejected '
                "WHERE ? IN ('', \"table\") ORDER BY rowid DESC LIMIT ?",
                [table, most],
            )
        return [(name, Misfit(*rest)) for name, *rest in found]

    # --- where it stands ----------------------------------------------------------------------------------------------

    def standing(self) -> list[Standing]:
        states = list(self._states.values())
        ingest = self._ingest
        places = {each.spec.topic: ingest.places(each.spec.topic) if ingest else None for each in states}
        ends = ingest.ends([each for some in places.values() for each in some or ()]) if ingest is not None else None
        made = {each.replaces: each for each in states if each.replaces}
        found = [self._of(each, places, ends, made.get(each.spec.name)) for each in states if not each.replaces]
        found += [
            Standing(name, 0, "failing", reason)
            for name, (_, reason) in sorted(self._refused.items())
            if name not in self._states
        ]
        return found

    def _of(
        self,
        table: TableState,
        topics: dict[str, list[Place] | None],
        ends: dict[Place, int] | None,
        made: TableState | None,
    ) -> Standing:
        """`made` is what is to take its place: it is not up to date before that has."""
        places, positions = topics[table.spec.topic], dict(table.positions)
        lag = _lag(table, places, ends)
        detail = [table.problem] if table.problem else []
        if made is not None:
            left = _lag(made, topics[made.spec.topic], ends)
            # One at least: that it has read all does not mean that it is shown.
            lag = lag + max(1, left) if lag >= 0 else lag
            what = f", {left:,} offsets of {made.spec.topic} left" if left >= 0 else ""
            detail.append(f"shows its replay (generation {made.generation}) when that is read{what}")
            detail += [made.problem] if made.problem else []
        elif next_generation(table.spec, table.generation) is not None:
            lag = lag + 1 if lag >= 0 else lag
            detail.append("a replay has corrected its rows, and they are still to be read")
        if table.rejected:
            detail.append(f"{table.rejected:,} record{'s' if table.rejected != 1 else ''} did not fit its columns")
        if table.repeated:
            detail.append(f"{table.repeated:,} sent again and left out")
        if table.gone:
            detail.append(f"{table.gone:,} gone before they were read (retention)")
        if places == []:
            detail.append(f"waits for the topic {table.spec.topic}")
        if self._ingest is not None and self._ingest.trouble:
            detail.append(self._ingest.trouble)
        state: State = "failing" if table.problem else "following" if lag == 0 else "behind"
        return Standing(
            table.spec.name,
            table.rows,
            state,
            "; ".join(detail),
            positions,
            lag,
            table.newest,
            table.updated,
            table.bytes,
        )


def _lag(table: TableState, places: list[Place] | None, ends: dict[Place, int] | None) -> int:
    """Offsets that the table has not read; -1 when that is not known."""
    if places is None or ends is None:
        return -1
    return sum(max(0, ends.get(each, 0) - table.positions.get(each.partition, 0)) for each in places)
