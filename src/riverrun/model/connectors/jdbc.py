"""Rows of a stream, or records of a topic, into a table: `app.sink(house_load, riverrun.jdbc("public.house_load"))`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from riverrun.errors import DeclarationError
from riverrun.model.connector import Sink, option
from riverrun.model.connectors.postgres import DEFAULT_SCHEMA

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")


@dataclass(frozen=True)
class jdbc(Sink):
    """Keeps a table of Postgres equal to the newest row of each key (Debezium's JDBC sink on Kafka Connect): a row is
    inserted or replaced by its key, and a record without a value deletes it. Writing a row again changes nothing.

    Where the database is and who logs in is in the settings `postgres.*`.
    """

    runs_as: ClassVar[Literal["writer", "connect"]] = "connect"

    table: str = option(help="The table, with its schema where that is not `public`.", example="public.house_load")
    database: str = option(
        "", help="Which of the setting `postgres.databases`. Empty: that of `postgres.url`.", example="shop"
    )
    key: str | Sequence[str] = option(
        (), help="The columns of the table's primary key. Empty: the key of the stream or of the topic's event type."
    )
    create: bool = option(True, help="Whether the table is created where it is not there. It is never changed.")
    tasks: int = option(1, help="How many tasks write side by side; no more than the topic has partitions.")

    def __post_init__(self) -> None:
        parts = self.table.split(".")
        if len(parts) > 2 or not all(_NAME.fullmatch(part) for part in parts):
            raise DeclarationError(
                f"riverrun.jdbc({self.table!r}) names no table",
                expected='a table such as "public.house_load"',
                table=self.table,
            )
        if self.tasks < 1:
            raise DeclarationError(f"riverrun.jdbc({self.table!r}) needs at least 1 task", table=self.table)
        if len(parts) == 1:
            object.__setattr__(self, "table", f"{DEFAULT_SCHEMA}.{self.table}")
        object.__setattr__(self, "key", (self.key,) if isinstance(self.key, str) and self.key else tuple(self.key))
