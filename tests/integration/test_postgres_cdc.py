"""From a real Postgres through Debezium on a real Connect into Kafka, and from Kafka into Postgres again."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

import riverrun
from riverrun.cli.connect_reconciler import ConnectReconciler, reconcile_connect
from riverrun.config import Project, Secret, load
from riverrun.config.spec import PostgresSettings
from riverrun.connectors.jdbc.config import sink_configs
from riverrun.connectors.jdbc.target import JdbcTarget
from riverrun.connectors.kafka_connect import ConnectClient, Vault
from riverrun.connectors.kafka_connect.reconcile import OWNER_PROPERTY, wait_for_state
from riverrun.connectors.postgres.connector_configs import cdc_connectors, source_configs
from riverrun.connectors.postgres.debezium import FAILED_CHANGES
from riverrun.errors import DatabaseNotReadyError
from riverrun.model.connectors.jdbc import jdbc
from riverrun.model.table import Column, TableSpec
from support.shop import Shop, kill_under_load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from riverrun.testing.pytest_plugin import KafkaUnderTest

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def shop(kafka: "KafkaUnderTest", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with Shop(tmp_path_factory.mktemp("shop"), "shop", kafka.settings, rows=500) as running:
        yield running


def followed(shop: Shop, app: riverrun.App, database: str, *statements: str) -> PostgresSettings:
    """A database of its own, followed as the app says."""
    url = shop.postgres.shop(database, *statements)
    shop.postgres.run(
        "do $$ declare t text; begin for t in select tablename from pg_tables where schemaname = 'public' loop "
        "execute format('alter table %I owner to cdc', t); end loop; end $$",
        database=database,
    )
    settings = PostgresSettings(url=url, password=Secret("cdc"), heartbeat_seconds=1)
    follow(shop, app, settings, database)
    return settings


def follow(shop: Shop, app: riverrun.App, settings: PostgresSettings, database: str) -> None:
    project = Project(shop.root / database)
    configs = source_configs(cdc_connectors(app, settings, project), settings, project)
    app.apply(shop.connection)
    shop.tell(configs)


def values(shop: Shop, topic: str, count: int) -> list[tuple[str, dict[str, Any] | None]]:
    """The records of a topic with one partition, when there are so many."""
    shop.wait(lambda: len(shop.records(topic, 1)) >= count, f"{topic} has not {count} records")
    return shop.records(topic, 1)


def test_nothing_is_lost_and_nothing_comes_twice_whatever_is_killed(shop: Shop) -> None:
    """The full run, with more kills and more load, is script/kill-postgres."""
    verdict = kill_under_load(shop, kills=2, restarts=1, rate=40, between=(2.0, 5.0))
    assert verdict.good, verdict
    assert verdict.changes > 100
    assert verdict.rows == verdict.rows_expected > 500


TYPES = """create table things(
    id text primary key, n2 smallint, n8 bigint, f8 double precision, num numeric(12,3), wide numeric, cash money,
    yes boolean, u uuid,
    day date, clock time, local timestamp, at3 timestamptz(3), at6 timestamptz, gap interval, j json, jb jsonb,
    bytes bytea, words text[], nums numeric[], times timestamptz[], flags bool[], ip inet, code char(4), left_out point,
    with_default int default 7)"""
THING = """insert into things values (
    'a', 1, 9007199254740993, 2.25, 1234.500, 0.000000000000000001, 12.50, true, '6F9619FF-8B86-D011-B42D-00CF4FC964FF',
    '2026-01-31', '12:30:05.5', '2026-01-31 12:30:05.123456', '2026-01-31 12:30:05.123456+02',
    '2026-01-31 12:30:05.123456+02',
    '1 day 2 hours', '{"a": 1}', '{"b": [1, 2]}', '\\x00ff10', '{a,NULL,"b,c"}', '{1.10,NULL}',
    '{2026-01-31 12:30:05.123456+02}', '{t,f}', '10.0.0.1/8', 'ab', '(1,2)', null)"""
AT6 = datetime(2026, 1, 31, 10, 30, 5, 123456, UTC)
READ: Mapping[str, Any] = {
    "id": "a", "n2": 1, "n8": 9007199254740993, "f8": 2.25, "num": Decimal("1234.500"),
    "wide": Decimal("0.000000000000000001"), "cash": Decimal("12.50"), "yes": True,
    "u": UUID("6f9619ff-8b86-d011-b42d-00cf4fc964ff"), "day": date(2026, 1, 31),
    "clock": "12:30:05.5Z", "local": datetime(2026, 1, 31, 12, 30, 5, 123456, UTC), "at3": AT6.replace(microsecond=123000),
    "at6": AT6, "gap": "P0Y0M1DT2H0M0S", "j": '{"a": 1}', "jb": '{"b": [1, 2]}', "bytes": b"\x00\xff\x10",
    "words": ["a", None, "b,c"], "nums": [Decimal("1.10"), None], "times": [AT6], "flags": [True, False],
    "ip": "10.0.0.1/8", "code": "ab  ", "with_default": None,
}  # fmt: skip


def test_every_type_is_read_as_what_it_is(shop: Shop, spark: "SparkSession") -> None:
    app = riverrun.App("types")
    app.table("things", riverrun.postgres("things"))
    # Lists of some types cannot be read again where an update leaves long ones alone.
    followed(shop, app, "types", TYPES, "alter table things replica identity full", THING)
    schema = app.topics["types.things"].schema
    assert schema is not None
    ((key, value),) = values(shop, "types.things", 1)
    assert key == "a"
    read = schema.decode(json.dumps(value).encode())
    assert {name: getattr(read, name) for name in READ} == READ
    assert not hasattr(read, "left_out")
    # Spark reads the same, with the topic's own type.
    from riverrun.streams.compile.record_schema import RecordSchema

    shape = RecordSchema.from_event(schema.event)
    raw = spark.createDataFrame([(bytearray(json.dumps(value).encode()),)], "raw binary")
    row = shape.parse(raw, "raw").collect()[0]
    assert row["_ok"]
    assert (row["num"], row["day"], row["words"], bytes(row["bytes"])) == (
        Decimal("1234.5"),
        date(2026, 1, 31),
        ["a", None, "b,c"],
        b"\x00\xff\x10",
    )
    assert row["nums"] == [Decimal("1.1"), None]
    # In both ways it comes: read from the table, and from the log.
    shop.postgres.run("update things set n2 = 2", database="types")
    *_, (_, updated) = values(shop, "types.things", 2)
    assert {**(updated or {}), "n2": 1} == value


class Payment(riverrun.Event):
    id: int = riverrun.key()
    amount: float
    note: str | None = None
    extra: str | None = None
    change: str
    changed_at: datetime


def test_a_stream_of_changes_says_what_happened(shop: Shop) -> None:
    app = riverrun.App("bank")
    app.source(app.topic("payments", Payment), riverrun.postgres("payments"))
    payments = "create table payments(id bigint primary key, amount numeric(9,2) not null, note text)"
    followed(
        shop,
        app,
        "bank",
        payments,
        "alter table payments replica identity full",
        "insert into payments values (1, 1.5)",
    )
    values(shop, "payments", 1)
    shop.postgres.run(
        "insert into payments values (2, 20, 'x')",
        "update payments set amount = 21 where id = 2",
        "delete from payments where id = 2",
        "alter table payments add extra text",
        "insert into payments values (3, 3, null, 'new')",
        "update payments set id = 4 where id = 3",
        database="bank",
    )
    schema = app.topics["payments"].schema
    assert schema is not None
    read = [(key, schema.decode(json.dumps(each).encode())) for key, each in values(shop, "payments", 7)]
    told = [(key, each.change, each.amount, each.note, each.extra) for key, each in read]  # type: ignore[attr-defined]
    assert told == [
        ("1", "r", 1.5, None, None),
        ("2", "c", 20.0, "x", None),
        ("2", "u", 21.0, "x", None),
        ("2", "d", 21.0, "x", None),
        ("3", "c", 3.0, None, "new"),
        ("3", "d", 3.0, None, "new"),
        ("4", "c", 3.0, None, "new"),
    ]


def test_several_tables_and_keys_of_several_columns_forget_what_is_deleted(shop: Shop) -> None:
    app = riverrun.App("many")
    app.table("prices", riverrun.postgres("prices"))
    app.table("areas", riverrun.postgres("areas"))
    tables = (
        "create table prices(day date, area int, price numeric(9,4), primary key (day, area))",
        "create table areas(id int primary key, name text)",
    )
    rows = ("insert into prices values ('2026-01-01', 1, 0.5)", "insert into areas values (1, 'north'), (2, 'south')")
    followed(shop, app, "many", *tables, *rows)
    values(shop, "many.areas", 2)
    values(shop, "many.prices", 1)
    shop.postgres.run("delete from areas where id = 2", "update prices set area = 3", database="many")
    assert values(shop, "many.areas", 3)[-1] == ("2", None)
    moved = values(shop, "many.prices", 3)[1:]
    assert [(json.loads(key)["area"], value and value["price"]) for key, value in moved] == [(1, None), (3, "0.5000")]


def test_a_table_brings_the_rows_it_has_also_when_it_is_declared_later(shop: Shop) -> None:
    """One that is not to bring them does not keep the others from it."""

    def declared(*more: str) -> riverrun.App:
        app = riverrun.App("grow")
        app.table("cities", riverrun.postgres("cities"))
        app.table("visits", riverrun.postgres("visits", snapshot=False))
        for name in more:
            app.table(name, riverrun.postgres(name))
        return app

    tables = [f"create table {name}(id int primary key, name text)" for name in ("cities", "visits", "streets")]
    rows = [f"insert into {name} values (1, 'old')" for name in ("cities", "visits", "streets")]  # noqa: S608
    settings = followed(shop, declared(), "grow", *tables, *rows)
    assert [key for key, _ in values(shop, "grow.cities", 1)] == ["1"]
    shop.postgres.run("insert into visits values (2, 'new')", database="grow")
    assert [key for key, _ in values(shop, "grow.visits", 1)] == ["2"]
    follow(shop, declared("streets"), settings, "grow")
    assert [key for key, _ in values(shop, "grow.streets", 1)] == ["1"]
    insert = [f"insert into {name} values (3, 'new')" for name in ("cities", "visits", "streets")]  # noqa: S608
    shop.postgres.run(*insert, database="grow")
    found = {name: [key for key, _ in values(shop, f"grow.{name}", 2)] for name in ("cities", "visits", "streets")}
    assert found == {"cities": ["1", "3"], "visits": ["2", "3"], "streets": ["1", "3"]}
    # The same tables stay where they are: nothing is read again.
    follow(shop, declared("streets"), settings, "grow")
    shop.postgres.run(*[each.replace("(3", "(4") for each in insert], database="grow")
    found = {name: [key for key, _ in values(shop, f"grow.{name}", 3)] for name in ("cities", "visits", "streets")}
    assert found == {"cities": ["1", "3", "4"], "visits": ["2", "3", "4"], "streets": ["1", "3", "4"]}


LONG = {
    "text": "repeat('long ', 2000)", "varchar": "repeat('long ', 2000)", "json": "to_json(repeat('x', 5000))",
    "jsonb": "to_jsonb(repeat('x', 5000))", "xml": "('<a>' || repeat('x', 5000) || '</a>')::xml",
    "citext": "repeat('long ', 2000)", "hstore": "hstore('a', repeat('x', 5000))",
    "text[]": "array_fill('word'::text, array[1000])", "varchar[]": "array_fill('word'::varchar, array[1000])",
    "int[]": "array_fill(7, array[1000])", "bigint[]": "array_fill(8::bigint, array[1000])",
}  # fmt: skip


def test_a_long_value_is_in_the_record_of_an_update_that_left_it_alone(shop: Shop) -> None:
    app = riverrun.App("long")
    app.table("papers", riverrun.postgres("papers"))
    columns = [f"c{number}" for number in range(len(LONG))]
    listed = ", ".join(f"{name} {kind}" for name, kind in zip(columns, LONG, strict=True))
    statements = [
        "create extension citext; create extension hstore",
        f"create table papers(id int primary key, pages int, {listed})",
        # Kept outside the row when it is longer than 2 kB, not compressed below that: and not in the log of the update.
        *[f"alter table papers alter {name} set storage external" for name in columns],
        "insert into papers values (0, 0)",
    ]
    followed(shop, app, "long", *statements)
    values(shop, "long.papers", 1)
    shop.postgres.run(
        f"insert into papers values (1, 1, {', '.join(LONG.values())})",  # noqa: S608
        "update papers set pages = 2 where id = 1",
        database="long",
    )
    (_, inserted), (_, updated) = values(shop, "long.papers", 3)[1:]
    assert inserted is not None
    assert all(len(inserted[name]) >= 1000 for name in columns)
    assert updated == {**inserted, "pages": 2}


def test_a_row_that_was_deleted_before_its_update_was_read_does_not_stop_the_others(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be known is left out and said, everything after it comes, and no record has Debezium's placeholder: the
    connector went on with placeholders for a minute, for every value that could not be read again."""
    app = riverrun.App("gone")
    app.table("notes", riverrun.postgres("notes"))
    table = (
        "create table notes(id int primary key, n int, body text); alter table notes alter body set storage external"
    )
    followed(shop, app, "gone", table, "insert into notes values (0, 0)")
    values(shop, "gone.notes", 1)
    said: list[str] = []
    with ConnectClient(shop.connect.attached) as client:
        name = "gone.postgres"
        client.stop(name)
        wait_for_state(client, name, "stopped")
        shop.postgres.run(
            "insert into notes values (1, 1, repeat('long ', 2000))",
            "update notes set n = 2 where id = 1",
            "insert into notes values (3, 1, repeat('also ', 2000))",
            "begin; update notes set n = 2 where id = 3; delete from notes where id = 1; insert into notes values (2, 2); "
            "commit",
            "update notes set n = 3 where id = 3; delete from notes where id = 3",
            database="gone",
        )
        client.resume(name)
        beside = ConnectReconciler(client, Vault(None), "gone", {name: {}}, said.append)
        monkeypatch.setattr(beside, "_reconcile", lambda: True)
        beside.start()
        found = values(shop, "gone.notes", 6)
        assert [(key, value and value["n"]) for key, value in found] == [
            ("0", 0), ("1", 1), ("3", 1), ("1", None), ("2", 2), ("3", None),
        ]  # fmt: skip
        assert "unavailable_value" not in str(found)
        shop.wait(lambda: client.config(name)[FAILED_CHANGES] == "fail", "it is not strict again")
        beside.stop()
    assert "deleted before its update was read" in str(said)


def test_an_idle_database_lets_go_of_its_log(shop: Shop) -> None:
    app = riverrun.App("idle")
    app.table("rare", riverrun.postgres("rare"))
    followed(
        shop,
        app,
        "idle",
        "create table rare(id int primary key)",
        "create table busy(n int)",
        "insert into rare values (1)",
    )
    values(shop, "idle.rare", 1)
    place = "select pg_current_wal_lsn()"
    shop.postgres.run("insert into busy select generate_series(1, 20000)", database="idle")
    ((now,),) = shop.postgres.run(place, database="idle")
    behind = (
        f"select pg_wal_lsn_diff(confirmed_flush_lsn, '{now}') >= 0 from pg_replication_slots where database = 'idle'"  # noqa: S608
    )
    shop.wait(lambda: shop.postgres.run(behind) == [(True,)], "the slot did not move on")
    assert len(shop.records("idle.rare", 1)) == 1


def test_a_connector_that_is_not_declared_any_more_goes_with_its_slot(shop: Shop) -> None:
    """Also the last one. Declared again, it begins anew: what changed meanwhile is there."""
    app = riverrun.App("leaving")
    app.table("rooms", riverrun.postgres("rooms"))
    url = shop.postgres.shop("leaving", "create table rooms(id int primary key); alter table rooms owner to cdc")
    shop.postgres.run("insert into rooms values (1)", database="leaving")
    project = Project(shop.root / "leaving")
    project.root.mkdir()
    login = shop.connect.attached
    (project.root / "connect-password").write_text(login.password.reveal())
    (project.root / "password").write_text("cdc")
    (project.root / "riverrun.toml").write_text(
        f'[connect]\nurl = "{login.url}"\nusername = "{login.username}"\npassword = {{ file = "connect-password" }}\n'
        f'[postgres]\nurl = "{url}"\npassword = {{ file = "password" }}\n'
    )
    settings = load(project)

    def told() -> None:
        postgres = settings.settings.postgres
        configs = source_configs(cdc_connectors(app, postgres, project), postgres, project)
        app.apply(shop.connection)
        shop.tell({name: {**config, OWNER_PROPERTY: "leaving"} for name, config in configs.items()})

    slots = "select slot_name from pg_replication_slots where database = 'leaving'"
    told()
    values(shop, "leaving.rooms", 1)
    assert shop.postgres.run(slots) == [("riverrun_leaving_postgres",)]
    said: list[str] = []
    with reconcile_connect(settings, riverrun.App("leaving"), {}, said.append) as beside:
        assert beside is not None

        def dropped() -> bool:
            beside.poll()
            return "dropped the slot" in str(said)

        shop.wait(dropped, "the slot is still there")
    assert shop.postgres.run(slots) == []
    assert shop.postgres.run("select pubname from pg_publication", database="leaving") == []
    with ConnectClient(login) as client:
        assert "leaving.postgres" not in client.names()
    shop.postgres.run("insert into rooms values (2)", database="leaving")
    told()
    assert [key for key, _ in values(shop, "leaving.rooms", 3)] == ["1", "1", "2"]


# --- and out again ---


def target(sink: jdbc, columns: str, topic: str, key: tuple[str, ...], *, text: bool) -> JdbcTarget:
    made = []
    for part in columns.split(", "):
        name, kind, *path = part.split(" ")
        made.append(Column(name, kind, tuple(path[0].split(".")) if path else (name,)))
    return JdbcTarget("load", "app.py:1", sink, TableSpec("load", topic, tuple(made), key), decimals_are_text=text)


def sent(shop: Shop, topic: str, records: list[tuple[str, dict[str, Any] | None]]) -> None:
    with riverrun.Producer(connection=shop.connection) as producer:
        for key, value in records:
            producer.send(topic, None if value is None else json.dumps(value).encode(), key=key.encode())


def test_rows_are_replaced_by_their_key_and_deleted(shop: Shop) -> None:
    url = shop.postgres.shop("out", "grant create on schema public to cdc")
    settings, project = PostgresSettings(url=url, password=Secret("cdc")), Project(shop.root / "out")
    columns = "house_id text, load_kw double, cost decimal(12,3), n bigint, ok boolean, at timestamp, day date"
    wanted = target(jdbc("house_load"), columns, "loads", ("house_id",), text=False)
    app = riverrun.App("out")
    app.topic("loads", config={"cleanup.policy": "compact"})
    app.apply(shop.connection)
    told: list[str] = []
    configs = sink_configs("out", [wanted], settings, project, notice=told.append)
    assert told == [f"made the table public.house_load in out at 127.0.0.1:{shop.postgres.port}"]
    shop.tell(configs)
    row = {
        "house_id": "a",
        "load_kw": 1.5,
        "cost": 0.125,
        "n": 1 << 60,
        "ok": True,
        "at": "2026-01-31T10:30:05.123456Z",
    }
    sent(
        shop,
        "loads",
        [
            ("a", {**row, "day": "2026-01-31", "more": [1]}),
            ("b", {**row, "house_id": "b"}),
            ("c", {**row, "house_id": "c"}),
            ("a", {**row, "load_kw": 2.5, "ok": None}),
            ("b", None),
            ("d", {"house_id": "d"}),
        ],
    )

    def rows() -> list[Any]:
        return shop.postgres.run(
            "select house_id, load_kw, cost, n, ok, at, day from house_load order by 1", database="out"
        )

    want = (Decimal("0.125"), 1 << 60, True, AT6, None)
    shop.wait(lambda: [each[0] for each in rows()] == ["a", "c", "d"], "not all rows are there")
    assert rows() == [
        ("a", 2.5, want[0], want[1], None, *want[3:]),
        ("c", 1.5, *want),
        ("d", None, None, None, None, None, None),
    ]
    # What is no row goes to the dead letters, and the others on.
    with riverrun.Producer(connection=shop.connection) as producer:
        producer.send("loads", b"this is no row", key=b"x")
    sent(shop, "loads", [("e", {**row, "house_id": "e"})])
    shop.wait(lambda: [each[0] for each in rows()][-1] == "e", "it did not go on")


def test_a_window_is_a_key_of_times(shop: Shop) -> None:
    url = shop.postgres.shop("windows", "grant create on schema public to cdc")
    settings, project = PostgresSettings(url=url, password=Secret("cdc")), Project(shop.root / "windows")
    columns = "minute timestamp minute.start, minute_end timestamp minute.end, house_id text, order bigint"
    # A name of mixed case, and one that SQL has a use for, are names as any other.
    wanted = target(jdbc("PerMinute"), columns, "per-minute", ("minute", "house_id"), text=False)
    app = riverrun.App("windows")
    app.topic("per-minute")
    app.apply(shop.connection)
    shop.tell(sink_configs("windows", [wanted], settings, project))
    # The table that is there by now fits.
    assert sink_configs("windows", [wanted], settings, project)
    window = {"start": "2026-01-31T10:30:00.000000Z", "end": "2026-01-31T10:31:00.000000Z"}
    sent(shop, "per-minute", [("k", {"minute": window, "house_id": "a", "order": each}) for each in (1, 2)])

    def rows() -> list[Any]:
        return shop.postgres.run('select minute, minute_end, house_id, "order" from "PerMinute"', database="windows")

    start = datetime(2026, 1, 31, 10, 30, tzinfo=UTC)
    want = [(start, start.replace(minute=31), "a", 2)]
    shop.wait(lambda: rows() == want, "the row is not there")


def test_a_target_that_does_not_fit_is_told_with_the_sql(shop: Shop) -> None:
    url = shop.postgres.shop(
        "misfit", "create table loads(house_id int, kw text, must text not null)", "grant all on loads to cdc"
    )
    settings, project = PostgresSettings(url=url, password=Secret("cdc")), Project(shop.root / "misfit")
    columns = "house_id text, kw double, n bigint"
    wanted = [
        target(jdbc("loads"), columns, "loads", ("house_id",), text=False),
        target(jdbc("absent", create=False), columns, "loads", ("house_id",), text=False),
        target(jdbc("loads"), columns, "loads", (), text=False),
    ]
    with pytest.raises(DatabaseNotReadyError) as caught:
        sink_configs("misfit", wanted, settings, project)
    said = str(caught.value)
    assert "ALTER TABLE public.loads ALTER COLUMN house_id TYPE text;" in said
    assert "ALTER TABLE public.loads ALTER COLUMN kw TYPE double precision;" in said
    assert "ALTER TABLE public.loads ADD COLUMN n bigint;" in said
    assert "ALTER TABLE public.loads ADD PRIMARY KEY (house_id);" in said
    assert "ALTER TABLE public.loads ALTER COLUMN must DROP NOT NULL;" in said
    assert "CREATE TABLE public.absent (house_id text, kw double precision, n bigint, PRIMARY KEY (house_id));" in said
    assert "have no key to be replaced by" in said
