"""What a database's catalog says about the server, its slots and a table, as plain facts."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.model.connectors.postgres_types import PgColumn

if TYPE_CHECKING:
    import psycopg

_SERVER = """
    select current_setting('server_version_num')::int, current_setting('wal_level'),
           current_setting('max_replication_slots')::int, current_setting('max_wal_senders')::int,
           (select rolreplication or rolsuper from pg_roles where rolname = current_user),
           (select rolsuper from pg_roles where rolname = current_user),
           exists (select 1 from pg_roles where rolname = 'rds_replication' and pg_has_role(current_user, oid, 'member')),
           (select count(*) from pg_replication_slots),
           (select count(*) from pg_stat_replication),
           pg_is_in_recovery()
"""
_TABLE = """
    select c.oid, c.relkind::text, c.relreplident::text, pg_has_role(current_user, c.relowner, 'usage'),
           has_table_privilege(c.oid, 'select'), has_schema_privilege(c.relnamespace, 'usage'),
           c.reltoastrelid <> 0 or c.relkind = 'p', pg_get_userbyid(c.relowner),
           has_table_privilege(c.oid, 'insert') and has_table_privilege(c.oid, 'update')
             and has_table_privilege(c.oid, 'delete')
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = %s and c.relname = %s
"""
# A domain is treated as its base type, an enum as text.
_COLUMNS = """
    select a.attname, case
             when t.typtype = 'e' then 'text'
             when e.typtype = 'e' then 'text[]'
             when t.typtype = 'd' then format_type(t.typbasetype, t.typtypmod)
             else format_type(a.atttypid, a.atttypmod) end,
           a.attnotnull, a.atthasdef or a.attidentity <> '', a.attlen = -1 and a.attstorage <> 'p'
    from pg_attribute a join pg_type t on t.oid = a.atttypid left join pg_type e on e.oid = t.typelem and t.typlen = -1
    where a.attrelid = %s and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_KEY = """
    select a.attname from pg_index i
    join lateral unnest(i.indkey) with ordinality as k(attnum, place) on true
    join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
    where i.indrelid = %s and {which} order by k.place
"""
_TABLE_NAMES = """
    select n.nspname || '.' || c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p') and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname !~ '^pg_'
    order by 1 limit 500
"""
_SLOTS = """
    select s.slot_name, s.plugin, s.slot_type, s.database, s.active, s.active_pid,
           coalesce(pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_receive_lsn()
                                    else pg_current_wal_lsn() end, s.restart_lsn), 0)::bigint,
           s.wal_status, r.application_name, r.client_addr::text, r.usename
    from pg_replication_slots s left join pg_stat_replication r on r.pid = s.active_pid
"""
# Of variable size, but always short.
_NEVER_TOASTED = frozenset(
    {"numeric", "inet", "cidr", "int4range", "int8range", "tsrange", "tstzrange", "daterange", "name"}
)
_PUBLICATION = """
    select p.oid, p.puballtables, p.pubinsert and p.pubupdate and p.pubdelete, pg_has_role(current_user, p.pubowner, 'usage')
    from pg_publication p where p.pubname = %s
"""
_PUBLICATION_TABLES = """
    select n.nspname || '.' || c.relname from pg_publication_rel r
    join pg_class c on c.oid = r.prrelid join pg_namespace n on n.oid = c.relnamespace where r.prpubid = %s
"""


@dataclass(frozen=True)
class ServerFacts:
    """The settings that change data capture depends on. `version` is 150004 for 15.4."""

    version: int
    wal_level: str
    max_slots: int
    max_senders: int
    may_replicate: bool
    superuser: bool
    slots: int
    senders: int
    standby: bool

    @property
    def version_text(self) -> str:
        return f"{self.version // 10000}.{self.version % 10000}"


@dataclass(frozen=True)
class TableFacts:
    """A table's catalog entry. `identity` is Postgres's code: d (its key), f (full), i (an index), n (nothing)."""

    name: str
    oid: int
    kind: str
    identity: str
    owned: bool
    readable: bool
    schema_usable: bool
    owner: str
    writable: bool
    columns: tuple[PgColumn, ...]
    required: frozenset[str]
    defaulted: frozenset[str]
    primary_key: tuple[str, ...]
    identity_columns: tuple[str, ...]
    # Columns whose values can be so long that Postgres stores them outside the row (TOAST): the log of an update that leaves
    # such a value unchanged does not contain it.
    toast_columns: tuple[PgColumn, ...] = ()

    def column(self, name: str) -> PgColumn | None:
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True)
class ReplicationSlot:
    """A replication slot: who reads from it, and how many bytes of the log it makes the database retain."""

    name: str
    plugin: str
    kind: str
    database: str
    active: bool
    pid: int | None
    retained_bytes: int
    wal_status: str
    application: str
    client: str
    user: str


@dataclass(frozen=True)
class Publication:
    name: str
    all_tables: bool
    publishes_all: bool
    owned: bool
    tables: frozenset[str] = field(default_factory=frozenset)
    # The tables that it names one by one: not because it is for all tables, or for all of a schema.
    named_tables: frozenset[str] = field(default_factory=frozenset)


def read_server(connection: "psycopg.Connection[Any]") -> ServerFacts:
    row = connection.execute(_SERVER).fetchone()
    assert row is not None  # noqa: S101  -- a select without from gives a row
    version, level, slots, senders, replicates, superuser, managed, used_slots, used_senders, standby = row
    return ServerFacts(
        version, level, slots, senders, replicates or managed, superuser, used_slots, used_senders, standby
    )


def read_table(connection: "psycopg.Connection[Any]", name: str) -> TableFacts | None:
    """The facts of a table, a view or the like; None when there is none of that name."""
    schema, _, short = name.partition(".")
    row = connection.execute(_TABLE, (schema, short)).fetchone()
    if row is None:
        return None
    oid, kind, identity, owned, readable, usable, can_be_long, owner, writable = row
    rows = connection.execute(_COLUMNS, (oid,)).fetchall()
    columns = tuple(PgColumn(item[0], item[1]) for item in rows)
    primary = _key(connection, oid, "i.indisprimary")
    replicated = {"f": tuple(item.name for item in columns), "d": primary, "n": ()}.get(identity)
    if replicated is None:
        replicated = _key(connection, oid, "i.indisreplident")
    required = frozenset(item[0] for item in rows if item[2])
    defaulted = frozenset(item[0] for item in rows if item[3])
    long = tuple(
        column for column, item in zip(columns, rows, strict=True) if item[4] and column.base_type not in _NEVER_TOASTED
    )
    return TableFacts(
        name, oid, kind, identity, owned, readable, usable, owner, writable,
        columns, required, defaulted, primary, replicated, long if can_be_long else (),
    )  # fmt: skip


def _key(connection: "psycopg.Connection[Any]", oid: int, which: str) -> tuple[str, ...]:
    rows = connection.execute(_KEY.format(which=which), (oid,)).fetchall()
    return tuple(row[0] for row in rows)


def read_table_names(connection: "psycopg.Connection[Any]") -> list[str]:
    return [row[0] for row in connection.execute(_TABLE_NAMES).fetchall()]


def read_slots(connection: "psycopg.Connection[Any]") -> list[ReplicationSlot]:
    replication_slots = []
    for row in connection.execute(_SLOTS).fetchall():
        name, plugin, kind, database, active, pid, retained, *texts = row
        status, application, client, user = (text or "" for text in texts)
        replication_slots.append(
            ReplicationSlot(
                name, plugin or "", kind, database or "", active, pid, int(retained), status, application, client, user
            )
        )
    return replication_slots


def read_publication(connection: "psycopg.Connection[Any]", name: str) -> Publication | None:
    row = connection.execute(_PUBLICATION, (name,)).fetchone()
    if row is None:
        return None
    listed = connection.execute(
        "select schemaname || '.' || tablename from pg_publication_tables where pubname = %s", (name,)
    )
    tables = frozenset(table_row[0] for table_row in listed.fetchall())
    named = frozenset(table_row[0] for table_row in connection.execute(_PUBLICATION_TABLES, (row[0],)).fetchall())
    return Publication(name, row[1], row[2], row[3], tables | named, named)


def read_publication_names(connection: "psycopg.Connection[Any]") -> set[str]:
    return {row[0] for row in connection.execute("select pubname from pg_publication").fetchall()}
