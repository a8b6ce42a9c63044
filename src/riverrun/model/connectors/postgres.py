"""Rows of a Postgres database as they change: `app.table("houses", riverrun.postgres("public.houses"))` is a table that
streams join, `app.source(transactions, riverrun.postgres("public.transactions"))` a stream of changes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from riverrun.errors import DeclarationError
from riverrun.model.connector import Source, option

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")
DEFAULT_SCHEMA = "public"


@dataclass(frozen=True)
class postgres(Source):
    """Follows a table of Postgres through its write-ahead log (Debezium on Kafka Connect): the rows that are there first,
    then each insert, update and delete, in order per key, none twice for readers of committed records.

    Where the database is and who logs in is in the settings `postgres.*`. Its rows keep their columns' names.
    """

    runs_as: ClassVar[Literal["reader", "service", "connect"]] = "connect"

    table: str = option(help="The table, with its schema where that is not `public`.", example="public.houses")
    database: str = option(
        "", help="Which of the setting `postgres.databases`. Empty: that of `postgres.url`.", example="shop"
    )
    columns: str = option(
        "",
        help="The columns to take, in Postgres's words. Empty: all that the table has, found in the database when the "
        "pipeline starts and remembered in .riverrun. For `app.table`; a topic's event type says it for `app.source`.",
        example="house_id text, limit_kw numeric(8,3)",
    )
    key: str | Sequence[str] = option(
        (), help="The columns that tell rows apart. Empty: the table's primary key.", example="house_id"
    )
    partitions: int = option(1, help="Partitions of the topic that `app.table` makes.")
    snapshot: bool = option(True, help="Whether the rows that are there at the first start come first.")

    def __post_init__(self) -> None:
        parts = self.table.split(".")
        if len(parts) > 2 or not all(_NAME.fullmatch(part) for part in parts):
            raise DeclarationError(
                f"riverrun.postgres({self.table!r}) names no table",
                expected='a table such as "public.houses"; names with other characters are not supported',
                table=self.table,
            )
        if self.partitions < 1:
            raise DeclarationError(f"riverrun.postgres({self.table!r}) needs at least 1 partition", table=self.table)
        if len(parts) == 1:
            object.__setattr__(self, "table", f"{DEFAULT_SCHEMA}.{self.table}")
        object.__setattr__(self, "key", (self.key,) if isinstance(self.key, str) and self.key else tuple(self.key))

    @property
    def keys(self) -> tuple[str, ...]:
        """The key's columns, where they are declared."""
        return tuple(self.key)
