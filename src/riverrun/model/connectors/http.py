"""Records by HTTP: `app.source(readings, riverrun.http())` makes a topic one that `POST /topics/readings` fills."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from riverrun.errors import DeclarationError
from riverrun.model.connector import Source, option


@dataclass(frozen=True)
class http(Source):
    """Takes records of a topic by HTTP: JSON, lists of it, lines of it. Only topics that say so can be posted to.

    Where it listens and who may post is in the settings `ingest.*`.
    """

    factory: ClassVar[str] = "riverrun.connectors.http.service:HttpService"
    runs_as: ClassVar[Literal["reader", "service", "connect"]] = "service"

    key: str = option(
        "",
        help="For a topic without an event type: the field whose value is the key of a record; dots lead inside.",
        example="repository.full_name",
    )

    def __post_init__(self) -> None:
        if self.key and not all(self.key.split(".")):
            raise DeclarationError(
                f"riverrun.http(key={self.key!r}) names no field", expected='a field such as "id" or "repository.id"'
            )
