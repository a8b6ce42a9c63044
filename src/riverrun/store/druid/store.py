"""Druid as a store: riverrun owns a Kafka supervisor for each table, and asks Druid's SQL.

What a table is declared to be is kept in Druid itself, in its supervisor's spec: any riverrun that is pointed at this Druid
knows the app's tables. Rows are read from Kafka by Druid alone; this process may come and go.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Sequence

from riverrun.config.spec import DruidSettings
from riverrun.errors import (
    QueryCancelledError,
    RiverrunError,
    StoreError,
    StoreTableError,
    StoreUnavailableError,
)
from riverrun.kafka.connection import Connection
from riverrun.kafka.java_client import java_properties
from riverrun.model.table import TableSpec
from riverrun.store.catalog import Catalog
from riverrun.store.contract import Answer, Limits, Standing, Store
from riverrun.store.druid.answers import as_arrow
from riverrun.store.druid.changes import Change, changes, differs, retired_by
from riverrun.store.druid.client import DruidClient
from riverrun.store.druid.counts import count, identified, newest, ties
from riverrun.store.druid.spec import (
    IDENTITY,
    INTERCEPTOR,
    Declared,
    Reading,
    VersionSource,
    compaction_of,
    datasource_of,
    declared_in,
    rules_of,
    supervisor_spec,
)
from riverrun.store.druid.watch import Watch
from riverrun.store.sql.druid_tables import Kept
from riverrun.store.sql.prepare import Prepared, prepare

# Exact answers, in UTC: Druid is fast and approximate by default.
_CONTEXT = {
    "useApproximateCountDistinct": False,
    "useApproximateTopN": False,
    "useGroupingSetForExactDistinct": True,
    "sqlTimeZone": "Etc/UTC",
}
# How often the catalog is looked at.
_FOLLOW_SECONDS = 1.0
# How long it is believed that no record of a table was sent twice.
_TWINS_SECONDS = 1.0
_REMOVE_SECONDS = 60.0
_STANDING_SECONDS = 10.0
_KILLABLE = "1000-01-01/3000-01-01"


class DruidStore(Store):
    """The tables of one app in a Druid. `url` is its router; `notice` is told what happens by itself."""

    def __init__(
        self,
        app: str,
        settings: DruidSettings,
        connection: Connection,
        *,
        url: str,
        catalog: Catalog | None = None,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.app = app
        self._settings = settings
        self._connection = connection
        self._client = DruidClient(url, settings)
        self._catalog = catalog
        self._notice = notice
        self._version: VersionSource = _version_source(settings)
        self._applying = threading.Lock()
        self._running: dict[str, str] = {}
        self._cancelled: set[str] = set()
        self._known: dict[str, frozenset[str]] = {}
        self._twins: dict[str, tuple[bool, float]] = {}
        self._watches: dict[str, Watch] = {}
        self._tables: dict[str, TableSpec] = {}
        self._stop = threading.Event()
        self._follower: threading.Thread | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self._client.version()
        self._refresh()
        if self._catalog is not None and self._follower is None:
            self._stop.clear()
            self._follower = threading.Thread(target=self._follow, name=f"{self.app}-tables", daemon=True)
            self._follower.start()

    def close(self) -> None:
        self._stop.set()
        if self._follower is not None:
            self._follower.join()
            self._follower = None
        self._client.close()

    def _follow(self) -> None:
        """Make of the catalog what it says, again and again. What cannot be done is told once."""
        told = ""
        while True:
            try:
                assert self._catalog is not None  # noqa: S101  -- or there is no such thread
                for sentence in self.apply(list(self._catalog.refresh().values())):
                    self._notice(sentence)
                told = ""
            except RiverrunError as error:
                if str(error) != told:
                    told = str(error)
                    self._notice(told)
            if self._stop.wait(_FOLLOW_SECONDS):
                return

    # --- tables -------------------------------------------------------------------------------------------------------

    @property
    def tables(self) -> dict[str, TableSpec]:
        return {name: each.table for name, each in self._refresh().items()}

    def apply(self, tables: Sequence[TableSpec]) -> list[str]:
        with self._applying:
            supervisors = self._client.supervisors()
            there = self._declared(supervisors)
            planned: list[tuple[Change, Declared]] = []
            problems: list[str] = []
            for table in tables:
                old = there.get(table.name)
                change = changes(old.table if old else None, table, old.retired if old else {})
                problems += change.problems
                retired = retired_by(old.table, table, old.retired) if old else {}
                new = Declared(self.app, table, old.version if old else self._version, retired)
                supervisor_spec(new, self._reading())
                planned.append((change, new))
            if problems:
                raise StoreTableError(
                    f"{len(problems)} change{'s' if len(problems) > 1 else ''} cannot be made, and nothing was changed",
                    hint="Store it by another name, or `riverrun tables remove` it and let Druid read its topic again",
                    lines=problems,
                    tables=", ".join(sorted({each.table.name for change, each in planned if change.problems})),
                )
            done: list[str] = []
            for change, new in planned:
                done += self._make(change, new, supervisors.get(datasource_of(self.app, new.table.name)))
            if done:
                self._refresh()
            return done

    def _make(self, change: Change, new: Declared, supervisor: dict[str, object] | None) -> list[str]:
        """Make one table what it is to be; what was done."""
        table, datasource = new.table, datasource_of(self.app, new.table.name)
        spec = supervisor_spec(new, self._reading())
        said: list[str] = []
        suspended = False
        if supervisor is None:
            self._create(datasource, spec)
            said.append(f"{table.name}: made; Druid reads the topic {table.topic}")
        else:
            current = supervisor.get("spec")
            suspended = bool(isinstance(current, dict) and current.get("suspended"))
            edited = differs(spec, current)
            if change.sentences or edited:
                self._client.submit({**spec, "suspended": suspended})
                said += [f"{table.name}: {each}" for each in change.sentences] or [
                    f"{table.name}: its spec in Druid was not riverrun's ({edited}); it is again"
                ]
            if suspended:
                said.append(f"{table.name}: is suspended in Druid, and reads nothing until somebody resumes it there")
        if said:
            self._keep(table, datasource)
            self._known.pop(datasource, None)
        return said

    def _create(self, datasource: str, spec: dict[str, object]) -> None:
        """A new supervisor. One that was there before may have left its offsets: with its rows gone, they must go too."""
        if self._client.history(datasource) and not self._segments(datasource):
            self._client.submit({**spec, "suspended": True})
            self._wait(
                lambda: (self._client.supervisor_status(datasource) or {}).get("detailedState") == "SUSPENDED",
                f"The supervisor of {datasource} did not start",
            )
            self._client.reset(datasource)
        self._client.submit(spec)

    def _keep(self, table: TableSpec, datasource: str) -> None:
        """Retention and compaction, where they are not what they must be."""
        rules = rules_of(table)
        if [each for each in self._client.rules(datasource) if each.get("type")] != rules:
            self._client.set_rules(datasource, rules)
        wanted = compaction_of(self.app, table)
        if differs(wanted, self._client.compaction(datasource)):
            self._client.set_compaction(wanted)

    def remove(self, table: str) -> None:
        datasource = datasource_of(self.app, table)
        if datasource not in self._client.supervisors() and not self._client.history(datasource):
            raise StoreTableError(
                f"Druid has no table {table} of {self.app}", hint="`riverrun tables` lists them", table=table
            )
        # In this order: offsets are forgotten while there is a supervisor to do it, and no task may publish after that.
        self._client.reset(datasource)
        self._client.terminate(datasource)
        self._client.stop_tasks(datasource)
        self._wait(lambda: not self._busy(datasource), f"Tasks of {table} did not end")
        self._client.drop_compaction(datasource)
        self._client.set_rules(datasource, [])

        def gone() -> bool:
            self._client.drop(datasource)
            return not self._segments(datasource)

        self._wait(gone, f"Segments of {table} are still there")
        self._client.kill(datasource, _KILLABLE)
        self._known.pop(datasource, None)
        self._twins.pop(datasource, None)
        self._watches.pop(table, None)
        self._refresh()

    def _busy(self, datasource: str) -> bool:
        return any(self._client.tasks(datasource, state=each) for each in ("running", "pending", "waiting"))

    def _segments(self, datasource: str) -> int:
        query = f"SELECT COUNT(*) FROM sys.segments WHERE datasource = '{_literal(datasource)}'"  # noqa: S608
        return self._number(query)

    def _wait(self, condition: Callable[[], bool], complaint: str) -> None:
        deadline = time.monotonic() + _REMOVE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise StoreUnavailableError(f"{complaint} within {_REMOVE_SECONDS:g} s", url=self._client.url)
            time.sleep(0.2)

    def _declared(self, supervisors: dict[str, dict[str, object]]) -> dict[str, Declared]:
        found: dict[str, Declared] = {}
        for each in supervisors.values():
            spec = each.get("spec")
            declared = declared_in(spec) if isinstance(spec, dict) else None
            if declared is not None and declared.app == self.app:
                found[declared.table.name] = declared
        return found

    def _refresh(self) -> dict[str, Declared]:
        found = self._declared(self._client.supervisors())
        self._tables = {name: each.table for name, each in found.items()}
        return found

    def _reading(self) -> Reading:
        consumer = java_properties(self._connection)
        if self._settings.kafka_servers:
            consumer["bootstrap.servers"] = self._settings.kafka_servers
        consumer |= dict(self._settings.kafka_properties)
        consumer.pop("client.id", None)
        return Reading(consumer, self._settings.task_seconds)

    # --- where they stand ---------------------------------------------------------------------------------------------

    def standing(self) -> list[Standing]:
        found = self._refresh()
        sizes = self._sizes()
        return [self._standing(each, sizes) for _, each in sorted(found.items())]

    def _standing(self, declared: Declared, sizes: dict[str, int]) -> Standing:
        table = declared.table
        datasource = datasource_of(self.app, table.name)
        watch = self._watches.get(table.name)
        if watch is None:
            watch = self._watches[table.name] = Watch(datasource, table.topic, self._client, self._connection)
        seen, lag = watch.look()
        detail = seen.detail
        rows, newest = -1, 0.0
        try:
            rows, newest = self._count(table, datasource)
            tied = self._ties(declared, datasource) if rows else 0
            if tied:
                detail = "; ".join([*([detail] if detail else []), _tied(tied)])
        except StoreError as error:
            detail = "; ".join([*([detail] if detail else []), f"Druid did not count its rows: {error}"])
        return Standing(
            table.name, rows, seen.state, detail, seen.positions, lag, newest, watch.updated, sizes.get(datasource, 0)
        )

    def _count(self, table: TableSpec, datasource: str) -> tuple[int, float]:
        kept = self._kept(table)
        if "__time" not in (kept.known or ()):
            return 0, 0.0
        rows = self._number(count(table, datasource, twins=kept.twins))
        return rows, self._number(newest(datasource)) / 1000 if rows else 0.0

    def _number(self, sql: str) -> int:
        rows = self._client.sql(sql, seconds=_STANDING_SECONDS, context=_CONTEXT).rows
        # Of a system table without such rows Druid gives no count, instead of 0.
        return int(rows[0][0] or 0) if rows else 0

    def _ties(self, declared: Declared, datasource: str) -> int:
        if not declared.table.upserts or declared.version == "offset":
            return 0
        return self._number(ties(declared.table, datasource))

    def _sizes(self) -> dict[str, int]:
        like = _literal(datasource_of(self.app, ""))
        query = (
            'SELECT datasource, SUM("size") FROM sys.segments WHERE is_published = 1 '  # noqa: S608
            f"AND SUBSTRING(datasource, 1, {len(datasource_of(self.app, ''))}) = '{like}' GROUP BY 1"
        )
        with contextlib.suppress(StoreError):
            return {str(name): int(size or 0) for name, size in self._client.sql(query, seconds=_STANDING_SECONDS).rows}
        return {}

    # --- questions ----------------------------------------------------------------------------------------------------

    def ask(self, sql: str, limits: Limits = Limits(), *, name: str = "") -> Answer:  # noqa: B008  -- frozen
        begun = time.monotonic()
        name = name or secrets.token_hex(8)
        query_id = f"riverrun-{secrets.token_hex(8)}"
        self._running[name] = query_id
        try:
            prepared = prepare(sql, self._tables or self.tables, "druid", datasource=self._kept)
            text = self._written(prepared, begun + limits.seconds)
            left = max(0.1, begun + limits.seconds - time.monotonic())
            # Not a LIMIT around it: that would drop the order of what is inside.
            context = {**prepared.context, "sqlOuterLimit": limits.rows + 1}
            result = self._client.sql(text, seconds=left, name=query_id, context=context)
        except RiverrunError as error:
            if query_id in self._cancelled:
                raise QueryCancelledError("The question was cancelled", name=name) from error
            raise
        finally:
            self._running.pop(name, None)
            self._cancelled.discard(query_id)
        rows = as_arrow(result, [each.type for each in prepared.columns])
        more = rows.num_rows > limits.rows
        return Answer(rows.slice(0, limits.rows) if more else rows, more, time.monotonic() - begun)

    def cancel(self, name: str) -> bool:
        query_id = self._running.get(name)
        if query_id is None:
            return False
        self._cancelled.add(query_id)
        # It may not have reached Druid yet: asked again for as long as it runs.
        deadline = time.monotonic() + _STANDING_SECONDS
        while self._running.get(name) == query_id and time.monotonic() < deadline:
            with contextlib.suppress(StoreError):
                self._client.cancel(query_id)
            time.sleep(0.02)
        return True

    def _written(self, prepared: Prepared, deadline: float) -> str:
        """The question's text. Newest values in it are asked for first: with them Druid skips segments."""
        values = []
        for each in prepared.latest:
            left = max(0.1, deadline - time.monotonic())
            found = as_arrow(self._client.sql(each.sql, seconds=left, context=prepared.context), [each.type])
            values.append(found.column(0)[0].as_py() if found.num_rows else None)
        return prepared.given(values)

    def _kept(self, table: TableSpec) -> Kept:
        """How Druid has a table now."""
        datasource = datasource_of(self.app, table.name)
        known = self._columns(table, datasource)
        return Kept(datasource, known, self._has_twins(table, datasource, known))

    def _has_twins(self, table: TableSpec, datasource: str, known: frozenset[str]) -> bool:
        """Whether a table has rows that could be there twice: those with an identity of their writer's."""
        if table.upserts or table.rollup or IDENTITY not in known:
            return False
        found, asked = self._twins.get(datasource, (False, 0.0))
        if not found and time.monotonic() - asked > _TWINS_SECONDS:
            found = bool(self._number(identified(datasource)))
            self._twins[datasource] = (found, time.monotonic())
        return found

    def _columns(self, table: TableSpec, datasource: str) -> frozenset[str]:
        """The columns that Druid knows of a table: one it has not had a row of is not there. Asked until all are."""
        known = self._known.get(datasource, frozenset())
        wanted = {"__time", *(each.name for each in table.columns if each.name != table.time)}
        if not wanted <= known:
            query = (
                "SELECT COLUMN_NAME FROM INFORMATION_SCHEMA.COLUMNS WHERE TABLE_SCHEMA = 'druid' "  # noqa: S608
                f"AND TABLE_NAME = '{_literal(datasource)}'"
            )
            found = self._client.sql(query, seconds=_STANDING_SECONDS).rows
            known = self._known[datasource] = frozenset(str(row[0]) for row in found)
        return known


def _version_source(settings: DruidSettings) -> VersionSource:
    """A Druid that riverrun runs has its interceptor; another one has it when its settings say so."""
    here = not settings.url
    return "offset" if here or INTERCEPTOR in settings.kafka_properties.get("interceptor.classes", "") else "time"


def _tied(count: int) -> str:
    keys = f"{count} key{'s have' if count > 1 else ' has'}"
    return (
        f"{keys} two newest records of one millisecond, and which of them is shown is not known "
        "(this Druid does not know a record's offset; see docs/decisions/0011-druid-store.md)"
    )


def _literal(text: str) -> str:
    return text.replace("'", "''")
