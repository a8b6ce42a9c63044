"""What Debezium is told: names, routes, and which rows become what."""

from pathlib import Path

import pytest

import riverrun
from riverrun.config import Project, Secret
from riverrun.config.spec import PostgresSettings
from riverrun.connectors.jdbc.config import connector_config as sink_config
from riverrun.connectors.jdbc.target import JdbcTarget
from riverrun.connectors.postgres.address import database_of
from riverrun.connectors.postgres.capture import captured_tables, group_tables, slot_name
from riverrun.connectors.postgres.columns import CachedTable, CatalogCache, cache_key, resolve_columns
from riverrun.connectors.postgres.connector_configs import cdc_connectors
from riverrun.connectors.postgres.debezium import connector_config
from riverrun.errors import ConfigError, DatabaseNotReadyError, DatabaseUnreachableError
from riverrun.model.connectors.jdbc import jdbc
from riverrun.model.connectors.postgres_types import PgColumn, parse_columns
from riverrun.model.table import TableSpec
from riverrun.model.topic import Topic

URL = "postgresql://cdc@127.0.0.1:1/shop"
SETTINGS = PostgresSettings(url=URL, password=Secret("hush"), timeout_seconds=1)


class Payment(riverrun.Event):
    id: int = riverrun.key()
    amount: float
    fee: int


def shop() -> riverrun.App:
    app = riverrun.App("shop")
    payments = app.topic("payments", Payment)
    app.table("houses", riverrun.postgres("houses", columns="id text, since date"), key="id")
    app.table("prices", riverrun.postgres("prices", columns="day date, area text"), key=("day", "area"))
    app.source(payments, riverrun.postgres("bank.payments"))
    return app


def known(app: riverrun.App) -> dict[str, CachedTable]:
    text = {
        "houses": "id text, since date",
        "prices": "day date, area text",
        "payments": "id bigint, amount numeric, fee numeric",
    }
    return {
        each.name: CachedTable(parse_columns(text[each.name], each.table), ("id",)) for each in captured_tables(app)
    }


def test_one_connector_per_database_and_one_for_keys_of_several_columns(tmp_path: Path) -> None:
    app = shop()
    plain, composite = group_tables("shop", captured_tables(app), resolve_columns(app, SETTINGS, Project(tmp_path)))
    assert [table.table for table in plain.tables] == ["public.houses", "bank.payments"]
    assert (plain.connector, plain.slot) == ("shop.postgres", "riverrun_shop_postgres")
    assert (composite.connector, composite.slot) == ("shop.postgres.composite", "riverrun_shop_postgres_composite")
    config = connector_config(plain, database_of(SETTINGS, "", tmp_path), SETTINGS, known(app))
    assert config["table.include.list"] == r"public\.houses,bank\.payments"
    assert config["key.converter"] == "org.apache.kafka.connect.storage.StringConverter"
    assert config["database.password"] == Secret("hush")
    assert "hush" not in str(config)
    transforms = [config[f"transforms.{each}.type"] for each in str(config["transforms"]).split(",")]
    assert [str(transform).rpartition(".")[2] for transform in transforms] == [
        "ExtractNewRecordState",  # rows
        "ExtractNewRecordState",  # changes
        "ReplaceField$Value",
        "TimestampConverter$Value",
        "ExtractField$Key",  # houses
        "TimestampConverter$Value",
        "TimestampConverter$Value",
        "ExtractField$Key",  # payments
        "Cast$Value",
        "RegexRouter",
        "RegexRouter",
    ]
    assert config["transforms.t8.spec"] == "amount:float64,fee:int64"
    assert (config["transforms.t9.replacement"], config["transforms.t10.replacement"]) == ("shop.houses", "payments")
    both = connector_config(composite, database_of(SETTINGS, "", tmp_path), SETTINGS, known(app))
    assert both["key.converter.schemas.enable"] == "false"
    assert both["message.key.columns"] == r"public\.prices:day,area"


def test_a_table_without_a_snapshot_is_the_only_one_without(tmp_path: Path) -> None:
    app = riverrun.App("shop")
    app.table("houses", riverrun.postgres("houses", columns="id text"), key="id")
    app.table("visits", riverrun.postgres("visits", columns="id text", snapshot=False), key="id")
    (both,) = group_tables("shop", captured_tables(app), resolve_columns(app, SETTINGS, Project(tmp_path)))
    config = connector_config(both, database_of(SETTINGS, "", tmp_path), SETTINGS, {})
    assert (config["snapshot.mode"], config["snapshot.include.collection.list"]) == ("initial", r"public\.houses")
    (alone,) = group_tables("shop", captured_tables(app)[1:], {"visits": ("id",)})
    config = connector_config(alone, database_of(SETTINGS, "", tmp_path), SETTINGS, {})
    assert (config["snapshot.mode"], "snapshot.include.collection.list" in config) == ("no_data", False)


def test_names_fit_postgres_and_differ() -> None:
    assert slot_name("Shop.postgres") != slot_name("shop.postgres")
    assert slot_name("a-b.postgres") != slot_name("a_b.postgres")
    assert len(slot_name("x" * 200)) <= 63


def test_columns_are_remembered_and_asked_for_only_when_they_are_not(tmp_path: Path) -> None:
    app = riverrun.App("meters")
    app.table("houses", riverrun.postgres("houses"))
    project = Project(tmp_path)
    with pytest.raises(DatabaseUnreachableError) as caught:
        resolve_columns(app, SETTINGS, project)
    assert "The columns of public.houses are not known" in str(caught.value)
    assert "columns=" in str(caught.value)
    found = CachedTable((PgColumn("house_id", "text"), PgColumn("place", "point")), ("house_id",))
    CatalogCache(project).add({cache_key(captured_tables(app)[0]): found})
    assert resolve_columns(app, SETTINGS, project) == {"houses": ("house_id",)}
    topic = app.tables["houses"].source
    assert isinstance(topic, Topic)
    assert topic.event is not None
    assert topic.event.__struct_fields__ == ("house_id",)
    told: list[str] = []
    resolve_columns(app, SETTINGS, project, fresh=True, notice=told.append)
    assert "taken to be as they were" in told[0]
    (project.home / "postgres.json").write_text("{]")
    assert CatalogCache(project).read() == {}


def test_a_table_is_followed_once(tmp_path: Path) -> None:
    app = shop()
    app.table("again", riverrun.postgres("public.houses", columns="id text"), key="id")
    with pytest.raises(DatabaseNotReadyError, match=r"public\.houses is followed already"):
        cdc_connectors(app, SETTINGS, Project(tmp_path))


@pytest.mark.parametrize(
    ("settings", "name", "said"),
    [
        (PostgresSettings(), "", "postgres.url is not set"),
        (PostgresSettings(url="postgresql:///shop"), "", "names no host"),
        (PostgresSettings(url=URL), "crm", "has no crm"),
        (
            PostgresSettings(url=f"{URL}?target_session_attrs=any"),
            "",
            "the option target_session_attrs, which Connect would",
        ),
        (PostgresSettings(url=f"{URL}?connect_timeout=3"), "", "set postgres.timeout_seconds instead"),
        (PostgresSettings(databases={"crm": "env:CRM"}), "crm", "the variable CRM, which is not set"),
        (PostgresSettings(databases={"crm": "file:no.txt"}), "crm", "which cannot be read"),
    ],
)
def test_a_database_that_the_settings_do_not_have(
    settings: PostgresSettings, name: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        database_of(settings, name, tmp_path, {})


def test_a_named_database_brings_its_password(tmp_path: Path) -> None:
    url = "postgresql://crm:se%40cret@db.example/crm?sslmode=require"
    found = database_of(PostgresSettings(databases={"crm": "env:CRM"}), "crm", tmp_path, {"CRM": url})
    assert (found.host, found.port, found.user, found.password.reveal()) == ("db.example", 5432, "crm", "se@cret")
    assert found.options == {"sslmode": "require"}
    assert "se@cret" not in repr(found)


def test_options_of_an_address_reach_debezium_and_the_sink(tmp_path: Path) -> None:
    settings = PostgresSettings(url=f"{URL}?sslmode=require&channel_binding=require")
    database = database_of(settings, "", tmp_path)
    app = shop()
    plain, _ = group_tables("shop", captured_tables(app), resolve_columns(app, settings, Project(tmp_path)))
    config = connector_config(plain, database, settings, {})
    assert (config["database.sslmode"], config["driver.channelBinding"]) == ("require", "require")
    target = JdbcTarget("load", "app.py:1", jdbc("load"), TableSpec("load", "t", (), ("id",)), decimals_are_text=False)
    url = sink_config("shop", target, database)["connection.url"]
    assert "sslmode=require&channelBinding=require" in str(url)
