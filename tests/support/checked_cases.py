"""Use cases whose streams are held against what plain Python finds, on a real broker: a line of `USE_CASES` for each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any

from riverrun.demo.comparing import Check
from support.usecases import Modules


@dataclass(frozen=True)
class UseCase:
    """An example: the topic its source feeds and the type of its events. `closing` is an event's fields that are changed
    for a last one, long after all others, so that windows end; its own rows are left out by `closed`. `by_http`: the source
    posts its records. What is checked is in its `figures`."""

    name: str
    topic: str
    event: str
    closing: Mapping[str, Any]
    closed: Callable[[Mapping[str, Any]], bool]
    by_http: bool = False

    def records(self, modules: Modules, number: int) -> list[Any]:
        return list(islice(modules.source.events(seed=4), number))

    def good(self, modules: Modules, records: list[Any]) -> list[Any]:
        return [each for each in records if isinstance(each, getattr(modules.app, self.event))]

    def last(self, good: list[Any]) -> Any:
        """The closing event: like another one, two days later."""
        import msgspec

        at = max(each.at for each in good) + timedelta(days=2)
        return msgspec.structs.replace(good[-1], at=at, **self.closing)

    def checks(self, modules: Modules) -> tuple[Check, ...]:
        found: tuple[Check, ...] = modules.figures.CHECKS
        return found


CRICKET = UseCase(
    "cricket", "deliveries", "Delivery", {"match_id": "closing"}, lambda row: row["match_id"] == "closing"
)
HASHTAGS = UseCase(
    "hashtags", "posts", "Post", {"author": "closing", "post_id": "closing", "tags": ["closing"]},
    lambda row: row.get("author") == "closing" or row.get("tag") == "closing",
)  # fmt: skip
GAMING = UseCase(
    "gaming", "hits", "Hit", {"player": "closing", "hit_id": "closing", "cup": "closing"},
    lambda row: row.get("player") == "closing" or row.get("cup") == "closing",
)  # fmt: skip
# Of a sensor that no door has: it is in no zone.
MALL = UseCase(
    "mall", "counts", "Count", {"sensor": "closing"}, lambda row: row.get("sensor") == "closing", by_http=True
)

USE_CASES = (CRICKET, HASHTAGS, GAMING, MALL)
