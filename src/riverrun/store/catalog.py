"""The tables of an app as its pipeline publishes them: a compacted topic, `APP.tables`, one record per table.

The pipeline publishes them before its streams start, so whoever has read a row and then reads the catalog to its end
knows the columns of that row. A store follows it, and needs neither Spark nor the pipeline file.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from riverrun.errors import DeclarationError, StoreError, TopicNotFoundError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.compacted_topic import ensure_compacted_topic
from riverrun.kafka.connection import Connection
from riverrun.kafka.reading.tail_reader import TopicTailReader
from riverrun.model.table import TableGeneration, TableSpec, table_from_dict


def catalog_topic(app: str) -> str:
    return f"{app}.tables"


def publish_tables(connection: Connection, app: str, tables: Sequence[TableSpec]) -> None:
    """Publish which tables there are now. Tables that are gone from the pipeline file get a tombstone."""
    from riverrun.kafka.producer.producer import Producer

    topic = catalog_topic(app)
    ensure_compacted_topic(Admin(connection), topic)
    with Catalog(connection, app) as catalog:
        published = catalog.refresh()
    declared = {spec.name: spec for spec in tables}
    with Producer(connection) as producer:
        for name, table in declared.items():
            if published.get(name) != table:
                producer.send(topic, json.dumps(table.as_dict()).encode(), key=name)
        for name in published.keys() - declared.keys():
            producer.send(topic, None, key=name)


def publish_generations(
    connection: Connection,
    app: str,
    topic: str,
    generations: Sequence[TableGeneration],
    tables: Sequence[TableSpec] = (),
) -> list[str]:
    """Publish what replays have made of the tables of a topic; returns the names of those tables. A store that follows the
    catalog knows it before it writes any row that came later.

    `tables` are those of the topic as the replay's code declares them. A table's columns and its generations go into one
    record: a store that got the generation first would read all of it with the columns of before, once and for good."""
    from riverrun.kafka.producer.producer import Producer

    with Catalog(connection, app) as catalog:
        published = {name: spec for name, spec in catalog.refresh().items() if spec.topic == topic}
    declared = {spec.name: spec for spec in tables if spec.topic == topic}
    current = {name: replace(spec, generations=tuple(generations)) for name, spec in {**published, **declared}.items()}
    changed = [spec for name, spec in current.items() if published.get(name) != spec]
    if changed:
        ensure_compacted_topic(Admin(connection), catalog_topic(app))
        with Producer(connection) as producer:
            for table in changed:
                producer.send(catalog_topic(app), json.dumps(table.as_dict()).encode(), key=table.name)
    return list(current)


class Catalog:
    """Follows an app's catalog. `refresh` reads to its end and returns all current tables."""

    def __init__(self, connection: Connection, app: str) -> None:
        self.tables: dict[str, TableSpec] = {}
        self._topic = catalog_topic(app)
        self._tail = TopicTailReader(connection, self._topic)

    def refresh(self) -> dict[str, TableSpec]:
        """The current tables; none before the first pipeline has published. Raises KafkaError when the brokers are
        unreachable, and StoreError, once, when a table cannot be read; the others are known all the same."""
        try:
            records = self._tail.read()
        except TopicNotFoundError:
            return self.tables
        unreadable: StoreError | None = None
        for key, value in records:
            try:
                self._apply_record(key.decode(), value)
            except StoreError as error:
                unreadable = error
        if unreadable is not None:
            raise unreadable
        return self.tables

    def _apply_record(self, name: str, value: bytes | None) -> None:
        if value is None:
            self.tables.pop(name, None)
            return
        try:
            self.tables[name] = table_from_dict(json.loads(value))
        except (ValueError, KeyError, TypeError, DeclarationError) as error:
            raise StoreError(
                f"The table {name} in the topic {self._topic} cannot be read",
                found=str(error),
                hint="A newer riverrun may have written it: use that one",
                table=name,
            ) from error

    def close(self) -> None:
        self._tail.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
