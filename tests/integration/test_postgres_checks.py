"""What is checked before a database is followed, on a real Postgres: each problem with the SQL that mends it, which does."""

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import riverrun
from riverrun.config import Project, Secret
from riverrun.config.spec import PostgresSettings
from riverrun.connectors.postgres.capture import captured_tables, group_tables
from riverrun.connectors.postgres.checks import DatabaseCheck, check_databases
from riverrun.connectors.postgres.columns import resolve_columns
from riverrun.connectors.postgres.connector_configs import cdc_connectors, source_configs
from riverrun.connectors.postgres.sql import RESERVED, quoted, quoted_table
from riverrun.errors import DatabaseNotReadyError, DatabaseRefusedError, DatabaseUnreachableError
from support.postgres import TestPostgres
from support.shell import Shell

HOUSES = "create table houses(house_id text primary key, street text); alter table houses owner to cdc"


@pytest.fixture(scope="module")
def server() -> Iterator[TestPostgres]:
    with TestPostgres() as running:
        yield running


@pytest.fixture
def database(server: TestPostgres, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"d{zlib.crc32(request.node.name.encode())}"
    yield name
    for (slot,) in server.run(f"select slot_name from pg_replication_slots where database = '{name}'"):  # noqa: S608
        server.run(f"select pg_drop_replication_slot('{slot}')")
    server.run(f"drop database if exists {name} with (force)")


def settings_of(url: str, password: str = "cdc") -> PostgresSettings:  # noqa: S107
    return PostgresSettings(url=url, password=Secret(password), timeout_seconds=5)


def table_app(key: str | tuple[str, ...] = ()) -> riverrun.App:
    app = riverrun.App("meters")
    app.table("houses", riverrun.postgres("houses"), key=key)
    return app


def checked(app: riverrun.App, url: str, root: Path, *, mend: bool = False) -> list[DatabaseCheck]:
    settings = settings_of(url)
    keys = resolve_columns(app, settings, Project(root), fresh=True)
    return check_databases(group_tables(app.name, captured_tables(app), keys), settings, root, fix=mend)


def only(found: list[DatabaseCheck], state: str) -> list[DatabaseCheck]:
    return [each for each in found if each.state == state]


def mends(
    server: TestPostgres,
    database: str,
    problem: DatabaseCheck,
    again: Callable[[], list[DatabaseCheck]],
    *,
    restart: bool = False,
) -> None:
    """The SQL of a problem is SQL, and afterwards the problem is gone."""
    server.run(*[each for each in problem.sql.partition(" --")[0].split(";") if each.strip()], database=database)
    if restart:
        server.restart()
    assert problem.check not in {each.check for each in only(again(), "fail")}


def test_a_database_that_is_ready_is_followed_and_the_publication_made(
    server: TestPostgres, database: str, tmp_path: Path
) -> None:
    url = server.shop(database, HOUSES)
    before = checked(table_app(), url, tmp_path)
    assert {each.state for each in before} == {"ok"}
    app = table_app()
    project = Project(tmp_path)
    followings = cdc_connectors(app, settings_of(url), project)
    (config,) = source_configs(followings, settings_of(url), project).values()
    assert config["publication.name"] == "riverrun_meters_postgres"
    made = server.run("select pubname, tablename from pg_publication_tables", database=database)
    assert made == [("riverrun_meters_postgres", "houses")]
    assert "has all 1 tables" in str(checked(table_app(), url, tmp_path, mend=True))


def test_a_publication_gets_the_tables_it_lacks(server: TestPostgres, database: str, tmp_path: Path) -> None:
    url = server.shop(database, HOUSES, "create table streets(id int primary key); alter table streets owner to cdc")
    assert not only(checked(table_app(), url, tmp_path, mend=True), "fail")
    app = table_app()
    app.table("streets", riverrun.postgres("streets"))
    assert "does not have public.streets: made now" in str(checked(app, url, tmp_path, mend=True))


def test_a_table_that_is_declared_later_is_a_group_of_its_own(
    server: TestPostgres, database: str, tmp_path: Path
) -> None:
    """Once the connector of the others has begun, which its slot tells. One that is taken out and declared again is new."""

    def connectors(*names: str) -> dict[str, str]:
        app = riverrun.App("meters")
        for name in names:
            app.table(name, riverrun.postgres(name))
        followings = cdc_connectors(app, settings_of(url), Project(tmp_path))
        configs = source_configs(followings, settings_of(url), Project(tmp_path))
        return {name: str(each["table.include.list"]).replace("\\", "") for name, each in configs.items()}

    streets = "create table {name}(id int primary key); alter table {name} owner to cdc"
    url = server.shop(database, HOUSES, *[streets.format(name=name) for name in ("streets", '"order"')])
    assert connectors("houses") == {"meters.postgres": "public.houses"}
    assert connectors("houses", "streets") == {"meters.postgres": "public.houses,public.streets"}
    begin = "select pg_create_logical_replication_slot('{slot}', 'pgoutput')"
    server.run(begin.format(slot="riverrun_meters_postgres"), database=database)
    assert connectors("houses", "streets", "order") == {
        "meters.postgres": "public.houses,public.streets",
        "meters.postgres.group2": "public.order",
    }
    server.run(begin.format(slot="riverrun_meters_postgres_group2"), database=database)
    assert connectors("houses", "order") == {
        "meters.postgres": "public.houses",
        "meters.postgres.group2": "public.order",
    }
    assert connectors("houses", "streets", "order") == {
        "meters.postgres": "public.houses",
        "meters.postgres.group3": "public.streets",
        "meters.postgres.group2": "public.order",
    }
    gone = settings_of(url.replace(f":{server.port}", ":1"))
    app = table_app()
    app.table("order", riverrun.postgres("order"))
    assert [each.group for each in cdc_connectors(app, gone, Project(tmp_path))] == [1, 2]
    app.table("cities", riverrun.postgres("cities", columns="id int"), key="id")
    with pytest.raises(DatabaseUnreachableError, match=r"Whether public\.cities is followed already is not known"):
        cdc_connectors(app, gone, Project(tmp_path))


def test_names_that_need_quotes_have_them(server: TestPostgres) -> None:
    words = {each for (each,) in server.run("select word from pg_get_keywords() where catcode in ('R', 'T')")}
    assert words <= RESERVED
    assert [quoted(each) for each in ("houses", "order", "Houses", 'a"b')] == [
        "houses",
        '"order"',
        '"Houses"',
        '"a""b"',
    ]
    assert quoted_table("public.HouseLoad") == 'public."HouseLoad"'


def test_rights_and_publications_that_our_login_may_not_have(
    server: TestPostgres, database: str, tmp_path: Path
) -> None:
    url = server.shop(database, "create schema s; create table s.houses(house_id text primary key)", user="reader")
    server.run("alter role reader noreplication")
    app = riverrun.App("meters")
    app.table("houses", riverrun.postgres("s.houses", columns="house_id text"), key="house_id")

    def again() -> list[DatabaseCheck]:
        followings = group_tables("meters", captured_tables(app), {"houses": ("house_id",)})
        return check_databases(followings, settings_of(url, "reader"), tmp_path, fix=True)

    problems = only(again(), "fail")
    assert [problem.sql for problem in problems] == [
        "ALTER ROLE reader WITH REPLICATION;",
        "GRANT USAGE ON SCHEMA s TO reader;",
        "GRANT SELECT ON s.houses TO reader;",
    ]
    for problem in problems:
        server.run(problem.sql, database=database)
    (last,) = only(again(), "fail")
    assert last.check == "publication"
    assert last.sql.startswith("CREATE PUBLICATION riverrun_meters_postgres FOR TABLE s.houses")
    mends(server, database, last, again)


def test_a_table_that_is_not_there_and_one_that_is_none(server: TestPostgres, database: str, tmp_path: Path) -> None:
    url = server.shop(database, HOUSES.replace("houses", "house"))
    with pytest.raises(DatabaseNotReadyError, match=r"no table public\.houses.*Did you mean public\.house\?"):
        checked(table_app(), url, tmp_path)
    server.run("create view houses as select * from house; alter view houses owner to cdc", database=database)
    (problem,) = only(checked(table_app("house_id"), url, tmp_path), "fail")
    assert "public.houses is a view" in problem.found


def test_a_table_without_a_key(server: TestPostgres, database: str, tmp_path: Path) -> None:
    url = server.shop(database, "create table houses(house_id text, street text); alter table houses owner to cdc")
    with pytest.raises(DatabaseNotReadyError, match="has no primary key: say key="):
        checked(table_app(), url, tmp_path)
    (problem,) = only(checked(table_app("house_id"), url, tmp_path, mend=True), "fail")
    assert "Postgres refuses its updates and deletes" in problem.found
    # Nothing was published: the source application goes on as before.
    server.run("insert into houses values ('a', 'b')", "update houses set street = 'c'", database=database)
    mends(server, database, problem, lambda: checked(table_app("house_id"), url, tmp_path))


def test_a_key_that_deletes_do_not_tell(server: TestPostgres, database: str, tmp_path: Path) -> None:
    url = server.shop(database, HOUSES)
    (problem,) = only(checked(table_app("street"), url, tmp_path), "fail")
    assert "deletes only tell house_id" in problem.found
    mends(server, database, problem, lambda: checked(table_app("street"), url, tmp_path))


class Paper(riverrun.Event):
    id: int = riverrun.key()
    body: str | None = None


def test_long_values_that_an_update_does_not_tell(server: TestPostgres, database: str, tmp_path: Path) -> None:
    """Whether there are any yet does not matter. Where only the newest row counts, they are read from it."""
    papers = "create table papers(id int primary key, body text, {more}); alter table papers owner to cdc"
    url = server.shop(database, papers.format(more="days date[]"), HOUSES)
    assert not only(checked(table_app(), url, tmp_path), "fail")

    def rows() -> list[DatabaseCheck]:
        app = riverrun.App("meters")
        app.table("papers", riverrun.postgres("papers"))
        return checked(app, url, tmp_path)

    def changes() -> list[DatabaseCheck]:
        app = riverrun.App("meters")
        app.source(app.topic("papers", Paper), riverrun.postgres("papers"))
        return checked(app, url, tmp_path)

    (of_rows,) = only(rows(), "fail")
    assert "public.papers can have long values (days)" in of_rows.found
    (of_changes,) = only(changes(), "fail")
    assert "public.papers can have long values (body)" in of_changes.found
    server.run("alter table papers drop days", database=database)
    assert not only(rows(), "fail")
    mends(server, database, of_changes, changes)


class Payment(riverrun.Event):
    id: int = riverrun.key()
    amount: float
    at: int
    gone: str


def test_an_event_type_that_does_not_fit_the_table(server: TestPostgres, database: str, tmp_path: Path) -> None:
    url = server.shop(
        database,
        "create table payments(id bigint primary key, amount numeric(9,2), at timestamptz not null, change text)",
        "alter table payments owner to cdc",
    )
    app = riverrun.App("bank")
    app.source(app.topic("payments", Payment), riverrun.postgres("payments"))
    said = " ".join(each.message for each in only(checked(app, url, tmp_path), "fail"))
    assert "Payment.at cannot be read from timestamp with time zone: declare it as datetime" in said
    assert "Payment.gone has no column in public.payments" in said
    assert "has a column change" in said
    assert "only tells id, and the topic payments needs amount, at, gone" in said
    (warned,) = only(checked(app, url, tmp_path), "warn")[:1]
    assert "Payment.amount must not be null" in warned.found


def test_slots_left_behind_taken_and_lost(server: TestPostgres, database: str, tmp_path: Path) -> None:
    url = server.shop(database, HOUSES)
    server.run("select pg_create_logical_replication_slot('old_pipeline', 'pgoutput')", database=database)
    (left,) = [each for each in only(checked(table_app(), url, tmp_path), "warn") if database in each.found]
    assert "The slot old_pipeline" in left.found
    assert "nobody reads it, and it holds" in left.found
    mends(server, database, left, lambda: checked(table_app(), url, tmp_path))
    server.run(
        "select pg_create_logical_replication_slot('riverrun_meters_postgres', 'test_decoding')", database=database
    )
    (problem,) = only(checked(table_app(), url, tmp_path), "fail")
    assert "is test_decoding's" in problem.found
    mends(server, database, problem, lambda: checked(table_app(), url, tmp_path))


def test_a_server_that_has_no_room_and_no_rows_in_its_log(tmp_path: Path) -> None:
    with TestPostgres({"wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "0"}) as server:
        url = server.shop("shop", HOUSES)
        server.run("select pg_create_physical_replication_slot('standby')")
        problems = only(checked(table_app(), url, tmp_path), "fail")
        assert [problem.check for problem in problems] == ["wal_level", "slots", "senders"]
        assert "All 1 replication slots are taken (standby)" in problems[1].found
        for problem in problems:
            server.run(problem.sql.partition(";")[0])
        assert "ALTER SYSTEM" in problems[0].sql
        # What the command line says goes before ALTER SYSTEM: without it, the settings hold from the next start on.
        server.forget_settings("wal_level", "max_replication_slots", "max_wal_senders")
        server.restart()
        assert not only(checked(table_app(), url, tmp_path), "fail")


def test_a_database_that_is_away_or_does_not_let_us_in(server: TestPostgres, database: str, tmp_path: Path) -> None:
    url = server.shop(database, HOUSES)
    with pytest.raises(DatabaseRefusedError, match="does not let cdc in") as caught:
        resolve_columns(table_app(), settings_of(url, "wrong hush"), Project(tmp_path))
    assert "wrong hush" not in str(caught.value)
    with pytest.raises(DatabaseRefusedError, match="does not exist"):
        resolve_columns(table_app(), settings_of(url.replace(database, "nowhere")), Project(tmp_path))
    gone = url.replace(f":{server.port}", ":1")
    with pytest.raises(DatabaseUnreachableError, match="does not answer"):
        resolve_columns(table_app(), settings_of(gone), Project(tmp_path))
    app = table_app()
    resolve_columns(app, settings_of(url), Project(tmp_path))
    told: list[str] = []
    followings = cdc_connectors(app, settings_of(gone), Project(tmp_path), told.append)
    assert source_configs(followings, settings_of(gone), Project(tmp_path), notice=told.append)
    assert any("does not answer" in each for each in told)


def test_domains_and_enums_are_what_they_are_made_of(server: TestPostgres, database: str, tmp_path: Path) -> None:
    url = server.shop(
        database,
        "create type mood as enum ('good', 'bad'); create domain price as numeric(9,2)",
        "create table houses(house_id text primary key, m mood, ms mood[], p price, at point)",
        "alter table houses owner to cdc",
    )
    app = table_app()
    assert "left out: at" in str(checked(app, url, tmp_path))
    event = app.topics["meters.houses"].event
    assert event is not None
    assert event.__struct_fields__ == ("house_id", "m", "ms", "p")


def test_from_the_shell(server: TestPostgres, database: str, tmp_path: Path) -> None:
    url = server.shop(database, "create table houses(house_id text, street text); alter table houses owner to cdc")
    (tmp_path / "app.py").write_text(
        'import riverrun as rr\n\napp = rr.App("meters")\napp.table("houses", rr.postgres("houses"), key="house_id")\n'
        'app.topic("moves")\n'
        'app.sql("moved", "select * from moves cross join houses")\n'
    )
    (tmp_path / "password.txt").write_text("cdc")
    (tmp_path / "riverrun.toml").write_text(
        f'[project]\napp = "app.py"\n[postgres]\nurl = "{url}"\npassword = {{ file = "password.txt" }}\n'
    )
    shell = Shell(tmp_path, "127.0.0.1:1")
    refused = shell.riverrun("connect", "check")
    assert refused.code == 1, refused
    (line,) = [each for each in refused.lines if each.startswith("fail")]
    assert "Postgres refuses its updates and deletes" in line
    said = shell.riverrun("connect", "check", "--json")
    (problem,) = [each for each in said.json if each["state"] == "fail"]
    assert f"→ {problem['sql']}" in refused.out
    server.run(problem["sql"], database=database)
    mended = shell.fine("connect", "check", "app.py")
    assert {each.split()[0] for each in mended.lines} == {"ok"}
    assert not server.run("select 1 from pg_publication", database=database), "a check changes nothing"
    (tmp_path / "none.py").write_text('import riverrun as rr\n\napp = rr.App("none")\n')
    assert "none follows no database." in shell.fine("connect", "check", "none.py").err
    # Who only looks at the file needs neither the database nor its password: the columns are remembered.
    (tmp_path / "password.txt").unlink()
    assert "houses" in shell.fine("graph").out
    assert "nothing wrong" in shell.fine("validate").err
    (tmp_path / ".riverrun" / "postgres.json").unlink()
    assert "which cannot be read" in shell.riverrun("graph").err
