"""The tables of an app in its topic: published by the pipeline, followed by the store."""

import secrets
from dataclasses import replace

from riverrun.model.table import Column, TableSpec
from riverrun.store.catalog import Catalog, catalog_topic, publish
from riverrun.testing.pytest_plugin import KafkaUnderTest

LOAD = TableSpec("load", "load", (Column("kw", "double", ("kw",)), Column("recorded_at", "timestamp", ())))
HIGH = replace(LOAD, name="high", topic="high", key=("kw",), upserts=True)


def test_tables_come_change_and_go(kafka: KafkaUnderTest) -> None:
    app = f"catalog{secrets.token_hex(4)}"
    with Catalog(kafka.connection, app) as catalog:
        assert catalog.refresh() == {}, "nobody has published yet"
        publish(kafka.connection, app, [LOAD, HIGH])
        assert catalog.refresh() == {"load": LOAD, "high": HIGH}
        wider = replace(LOAD, columns=(*LOAD.columns, Column("amps", "double", ("amps",))))
        publish(kafka.connection, app, [wider])
        assert catalog.refresh() == {"load": wider}
        assert catalog.refresh() == {"load": wider}
    with Catalog(kafka.connection, app) as later:
        assert later.refresh() == {"load": wider}


def test_what_has_not_changed_is_not_published_again(kafka: KafkaUnderTest) -> None:
    from riverrun.kafka.admin.admin import Admin
    from riverrun.model.state import Place

    app = f"catalog{secrets.token_hex(4)}"
    place = Place(catalog_topic(app), 0)
    publish(kafka.connection, app, [LOAD])
    end = Admin(kafka.connection).offsets([place], "latest")[place]
    publish(kafka.connection, app, [LOAD])
    assert Admin(kafka.connection).offsets([place], "latest")[place] == end
