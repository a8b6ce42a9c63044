"""Druid as a store: riverrun owns a Kafka supervisor for each table, and queries Druid's SQL.

A table's declaration is kept in Druid itself, in its supervisor's spec: any riverrun that is pointed at this Druid
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
from riverrun.store.contract import QueryLimits, QueryResult, Store, TableStatus
from riverrun.store.druid.client import DruidClient
from riverrun.store.druid.results import to_arrow
from riverrun.store.druid.status_queries import has_identities_sql, newest_time_sql, row_count_sql, tied_keys_sql
from riverrun.store.druid.supervisor_monitor import SupervisorMonitor
from riverrun.store.druid.supervisor_spec import (
    IDENTITY,
    OFFSET_INTERCEPTOR,
    SupervisorOptions,
    TableDeclaration,
    VersionSource,
    build_supervisor_spec,
    compaction_config,
    datasource_name,
    read_declaration,
    retention_rules,
)
from riverrun.store.druid.table_diff import TableChange, compare_tables, first_difference, retired_columns
from riverrun.store.sql.druid_tables import DruidTable
from riverrun.store.sql.prepared_query import PreparedQuery, prepare

# Exact results, in UTC: Druid is fast and approximate by default.
_CONTEXT = {
    "useApproximateCountDistinct": False,
    "useApproximateTopN": False,
    "useGroupingSetForExactDistinct": True,
    "sqlTimeZone": "Etc/UTC",
}
# How often the catalog is polled.
_FOLLOW_SECONDS = 1.0
# How long a finding that a table has no duplicate records is cached.
_DUPLICATES_SECONDS = 1.0
_REMOVE_SECONDS = 60.0
_STATUS_SECONDS = 10.0
_ALL_TIME_INTERVAL = "1000-01-01/3000-01-01"


class DruidStore(Store):
    """The tables of one app in a Druid. `url` is its router; `notice` gets a sentence for each change made in the
    background."""

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
        self._known_columns: dict[str, frozenset[str]] = {}
        self._duplicates: dict[str, tuple[bool, float]] = {}
        self._monitors: dict[str, SupervisorMonitor] = {}
        self._tables: dict[str, TableSpec] = {}
        self._stop = threading.Event()
        self._follower: threading.Thread | None = None

    # --- lifecycle ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self._client.version()
        self._refresh()
        if self._catalog is not None and self._follower is None:
            self._stop.clear()
            self._follower = threading.Thread(target=self._follow_catalog, name=f"{self.app}-tables", daemon=True)
            self._follower.start()

    def close(self) -> None:
        self._stop.set()
        if self._follower is not None:
            self._follower.join()
            self._follower = None
        self._client.close()

    def _follow_catalog(self) -> None:
        """Apply the catalog, again and again. What cannot be applied is reported once."""
        last_error = ""
        while True:
            try:
                assert self._catalog is not None  # noqa: S101  -- or there is no such thread
                for sentence in self.apply(list(self._catalog.refresh().values())):
                    self._notice(sentence)
                last_error = ""
            except RiverrunError as error:
                if str(error) != last_error:
                    last_error = str(error)
                    self._notice(last_error)
            if self._stop.wait(_FOLLOW_SECONDS):
                return

    # --- tables -------------------------------------------------------------------------------------------------------

    @property
    def tables(self) -> dict[str, TableSpec]:
        return {name: declaration.table for name, declaration in self._refresh().items()}

    def apply(self, tables: Sequence[TableSpec]) -> list[str]:
        with self._applying:
            supervisors = self._client.supervisors()
            existing = self._declarations(supervisors)
            planned: list[tuple[TableChange, TableDeclaration]] = []
            problems: list[str] = []
            for table in tables:
                old = existing.get(table.name)
                change = compare_tables(old.table if old else None, table, old.retired if old else {})
                problems += change.problems
                retired = retired_columns(old.table, table, old.retired) if old else {}
                new = TableDeclaration(self.app, table, old.version if old else self._version, retired)
                build_supervisor_spec(new, self._supervisor_options())
                planned.append((change, new))
            if problems:
                raise StoreTableError(
                    f"{len(problems)} change{'s' if len(problems) > 1 else ''} cannot be made, and nothing was changed",
                    hint="Store it by another name, or `riverrun tables remove` it and let Druid read its topic again",
                    lines=problems,
                    tables=", ".join(
                        sorted({declaration.table.name for change, declaration in planned if change.problems})
                    ),
                )
            done: list[str] = []
            for change, new in planned:
                done += self._apply_table(change, new, supervisors.get(datasource_name(self.app, new.table.name)))
            if done:
                self._refresh()
            return done

    def _apply_table(
        self, change: TableChange, new: TableDeclaration, supervisor: dict[str, object] | None
    ) -> list[str]:
        """Make one table what it is declared to be; returns what was done."""
        table, datasource = new.table, datasource_name(self.app, new.table.name)
        spec = build_supervisor_spec(new, self._supervisor_options())
        sentences: list[str] = []
        suspended = False
        if supervisor is None:
            self._create(datasource, spec)
            sentences.append(f"{table.name}: made; Druid reads the topic {table.topic}")
        else:
            current = supervisor.get("spec")
            suspended = bool(isinstance(current, dict) and current.get("suspended"))
            difference = first_difference(spec, current)
            if change.sentences or difference:
                self._client.submit({**spec, "suspended": suspended})
                sentences += [f"{table.name}: {sentence}" for sentence in change.sentences] or [
                    f"{table.name}: its spec in Druid was not riverrun's ({difference}); it is again"
                ]
            if suspended:
                sentences.append(
                    f"{table.name}: is suspended in Druid, and reads nothing until somebody resumes it there"
                )
        if sentences:
            self._apply_retention(table, datasource)
            self._known_columns.pop(datasource, None)
        return sentences

    def _create(self, datasource: str, spec: dict[str, object]) -> None:
        """Create a supervisor. An earlier one may have left its offsets: its rows are gone, so they must go too."""
        if self._client.history(datasource) and not self._segment_count(datasource):
            self._client.submit({**spec, "suspended": True})
            self._wait(
                lambda: (self._client.supervisor_status(datasource) or {}).get("detailedState") == "SUSPENDED",
                f"The supervisor of {datasource} did not start",
            )
            self._client.reset(datasource)
        self._client.submit(spec)

    def _apply_retention(self, table: TableSpec, datasource: str) -> None:
        """Set retention and compaction, where they differ from the declaration."""
        rules = retention_rules(table)
        if [rule for rule in self._client.rules(datasource) if rule.get("type")] != rules:
            self._client.set_rules(datasource, rules)
        compaction = compaction_config(self.app, table)
        if first_difference(compaction, self._client.compaction(datasource)):
            self._client.set_compaction(compaction)

    def remove(self, table: str) -> None:
        datasource = datasource_name(self.app, table)
        if datasource not in self._client.supervisors() and not self._client.history(datasource):
            raise StoreTableError(
                f"Druid has no table {table} of {self.app}", hint="`riverrun tables` lists them", table=table
            )
        # In this order: offsets are reset while there is a supervisor to do it, and no task may publish after that.
        self._client.reset(datasource)
        self._client.terminate(datasource)
        self._client.stop_tasks(datasource)
        self._wait(lambda: not self._has_tasks(datasource), f"Tasks of {table} did not end")
        self._client.drop_compaction(datasource)
        self._client.set_rules(datasource, [])

        def gone() -> bool:
            self._client.drop(datasource)
            return not self._segment_count(datasource)

        self._wait(gone, f"Segments of {table} are still there")
        self._client.kill(datasource, _ALL_TIME_INTERVAL)
        self._known_columns.pop(datasource, None)
        self._duplicates.pop(datasource, None)
        self._monitors.pop(table, None)
        self._refresh()

    def _has_tasks(self, datasource: str) -> bool:
        return any(self._client.tasks(datasource, state=state) for state in ("running", "pending", "waiting"))

    def _segment_count(self, datasource: str) -> int:
        query = f"SELECT COUNT(*) FROM sys.segments WHERE datasource = '{_escape_literal(datasource)}'"  # noqa: S608
        return self._query_number(query)

    def _wait(self, condition: Callable[[], bool], complaint: str) -> None:
        deadline = time.monotonic() + _REMOVE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise StoreUnavailableError(f"{complaint} within {_REMOVE_SECONDS:g} s", url=self._client.url)
            time.sleep(0.2)

    def _declarations(self, supervisors: dict[str, dict[str, object]]) -> dict[str, TableDeclaration]:
        declarations: dict[str, TableDeclaration] = {}
        for supervisor in supervisors.values():
            spec = supervisor.get("spec")
            declaration = read_declaration(spec) if isinstance(spec, dict) else None
            if declaration is not None and declaration.app == self.app:
                declarations[declaration.table.name] = declaration
        return declarations

    def _refresh(self) -> dict[str, TableDeclaration]:
        declarations = self._declarations(self._client.supervisors())
        self._tables = {name: declaration.table for name, declaration in declarations.items()}
        return declarations

    def _supervisor_options(self) -> SupervisorOptions:
        consumer = java_properties(self._connection)
        if self._settings.kafka_servers:
            consumer["bootstrap.servers"] = self._settings.kafka_servers
        consumer |= dict(self._settings.kafka_properties)
        consumer.pop("client.id", None)
        return SupervisorOptions(consumer, self._settings.task_seconds)

    # --- status -------------------------------------------------------------------------------------------------------

    def table_statuses(self) -> list[TableStatus]:
        declarations = self._refresh()
        sizes = self._sizes()
        return [self._table_status(declaration, sizes) for _, declaration in sorted(declarations.items())]

    def _table_status(self, declaration: TableDeclaration, sizes: dict[str, int]) -> TableStatus:
        table = declaration.table
        datasource = datasource_name(self.app, table.name)
        monitor = self._monitors.get(table.name)
        if monitor is None:
            monitor = self._monitors[table.name] = SupervisorMonitor(
                datasource, table.topic, self._client, self._connection
            )
        status, lag = monitor.check()
        detail = status.detail
        rows, newest = -1, 0.0
        try:
            rows, newest = self._count(table, datasource)
            tied = self._ties(declaration, datasource) if rows else 0
            if tied:
                detail = "; ".join([*([detail] if detail else []), _ties_text(tied)])
        except StoreError as error:
            detail = "; ".join([*([detail] if detail else []), f"Druid did not count its rows: {error}"])
        return TableStatus(
            table.name,
            rows,
            status.state,
            detail,
            status.positions,
            lag,
            newest,
            monitor.updated,
            sizes.get(datasource, 0),
        )

    def _count(self, table: TableSpec, datasource: str) -> tuple[int, float]:
        druid_table = self._druid_table(table)
        if "__time" not in (druid_table.known_columns or ()):
            return 0, 0.0
        rows = self._query_number(row_count_sql(table, datasource, has_duplicates=druid_table.has_duplicates))
        return rows, self._query_number(newest_time_sql(datasource)) / 1000 if rows else 0.0

    def _query_number(self, sql: str) -> int:
        rows = self._client.sql(sql, seconds=_STATUS_SECONDS, context=_CONTEXT).rows
        # For a system table without such rows Druid returns no count, instead of 0.
        return int(rows[0][0] or 0) if rows else 0

    def _ties(self, declaration: TableDeclaration, datasource: str) -> int:
        if not declaration.table.upserts or declaration.version == "offset":
            return 0
        return self._query_number(tied_keys_sql(declaration.table, datasource))

    def _sizes(self) -> dict[str, int]:
        like = _escape_literal(datasource_name(self.app, ""))
        query = (
            'SELECT datasource, SUM("size") FROM sys.segments WHERE is_published = 1 '  # noqa: S608
            f"AND SUBSTRING(datasource, 1, {len(datasource_name(self.app, ''))}) = '{like}' GROUP BY 1"
        )
        with contextlib.suppress(StoreError):
            return {str(name): int(size or 0) for name, size in self._client.sql(query, seconds=_STATUS_SECONDS).rows}
        return {}

    # --- queries ------------------------------------------------------------------------------------------------------

    def query(self, sql: str, limits: QueryLimits = QueryLimits(), *, name: str = "") -> QueryResult:  # noqa: B008  -- frozen
        begun = time.monotonic()
        name = name or secrets.token_hex(8)
        query_id = f"riverrun-{secrets.token_hex(8)}"
        self._running[name] = query_id
        try:
            prepared = prepare(sql, self._tables or self.tables, "druid", datasource=self._druid_table)
            text = self._fill_latest(prepared, begun + limits.seconds)
            left = max(0.1, begun + limits.seconds - time.monotonic())
            # Not a LIMIT around it: that would drop the order inside.
            context = {**prepared.context, "sqlOuterLimit": limits.rows + 1}
            result = self._client.sql(text, seconds=left, name=query_id, context=context)
        except RiverrunError as error:
            if query_id in self._cancelled:
                raise QueryCancelledError("The question was cancelled", name=name) from error
            raise
        finally:
            self._running.pop(name, None)
            self._cancelled.discard(query_id)
        rows = to_arrow(result, [column.type for column in prepared.columns])
        more = rows.num_rows > limits.rows
        return QueryResult(rows.slice(0, limits.rows) if more else rows, more, time.monotonic() - begun)

    def cancel(self, name: str) -> bool:
        query_id = self._running.get(name)
        if query_id is None:
            return False
        self._cancelled.add(query_id)
        # It may not have reached Druid yet: cancelled again for as long as it runs.
        deadline = time.monotonic() + _STATUS_SECONDS
        while self._running.get(name) == query_id and time.monotonic() < deadline:
            with contextlib.suppress(StoreError):
                self._client.cancel(query_id)
            time.sleep(0.02)
        return True

    def _fill_latest(self, prepared: PreparedQuery, deadline: float) -> str:
        """The query's text. Newest values in it are queried first: with them Druid skips segments."""
        values = []
        for latest in prepared.latest:
            left = max(0.1, deadline - time.monotonic())
            result = to_arrow(self._client.sql(latest.sql, seconds=left, context=prepared.context), [latest.type])
            values.append(result.column(0)[0].as_py() if result.num_rows else None)
        return prepared.with_latest(values)

    def _druid_table(self, table: TableSpec) -> DruidTable:
        """How Druid holds a table now."""
        datasource = datasource_name(self.app, table.name)
        known_columns = self._columns(table, datasource)
        return DruidTable(datasource, known_columns, self._has_duplicates(table, datasource, known_columns))

    def _has_duplicates(self, table: TableSpec, datasource: str, known_columns: frozenset[str]) -> bool:
        """Whether a table may have duplicate rows: those with an identity from their writer."""
        if table.upserts or table.rollup or IDENTITY not in known_columns:
            return False
        has_duplicates, checked_at = self._duplicates.get(datasource, (False, 0.0))
        if not has_duplicates and time.monotonic() - checked_at > _DUPLICATES_SECONDS:
            has_duplicates = bool(self._query_number(has_identities_sql(datasource)))
            self._duplicates[datasource] = (has_duplicates, time.monotonic())
        return has_duplicates

    def _columns(self, table: TableSpec, datasource: str) -> frozenset[str]:
        """The columns that Druid knows of a table: it does not know one before its first row. Asked again until all are
        there."""
        known = self._known_columns.get(datasource, frozenset())
        expected = {"__time", *(column.name for column in table.columns if column.name != table.time)}
        if not expected <= known:
            query = (
                "SELECT COLUMN_NAME FROM INFORMATION_SCHEMA.COLUMNS WHERE TABLE_SCHEMA = 'druid' "  # noqa: S608
                f"AND TABLE_NAME = '{_escape_literal(datasource)}'"
            )
            rows = self._client.sql(query, seconds=_STATUS_SECONDS).rows
            known = self._known_columns[datasource] = frozenset(str(row[0]) for row in rows)
        return known


def _version_source(settings: DruidSettings) -> VersionSource:
    """A Druid that riverrun runs has the interceptor; another one has it when its settings say so."""
    here = not settings.url
    return (
        "offset" if here or OFFSET_INTERCEPTOR in settings.kafka_properties.get("interceptor.classes", "") else "time"
    )


def _ties_text(count: int) -> str:
    keys = f"{count} key{'s have' if count > 1 else ' has'}"
    return (
        f"{keys} two newest records of one millisecond, and which of them is shown is not known "
        "(this Druid does not know a record's offset; see docs/decisions/0011-druid-store.md)"
    )


def _escape_literal(text: str) -> str:
    return text.replace("'", "''")
