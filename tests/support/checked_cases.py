"""Use cases whose streams are held against what plain Python finds, on a real broker: a line of `USE_CASES` for each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any

from riverrun.demo.comparison import StreamCheck
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
        return [record for record in records if isinstance(record, getattr(modules.app, self.event))]

    def last(self, good: list[Any]) -> Any:
        """The closing event: like another one, two days later."""
        import msgspec

        at = max(each.at for each in good) + timedelta(days=2)
        return msgspec.structs.replace(good[-1], at=at, **self.closing)

    @property
    def fed(self) -> tuple[str, ...]:
        """The topics that its source fills."""
        return (self.topic,)

    def checks(self, modules: Modules) -> tuple[StreamCheck, ...]:
        found: tuple[StreamCheck, ...] = modules.figures.CHECKS
        return found

    def tables(self, modules: Modules) -> dict[str, dict[str, Any]]:  # noqa: ARG002
        """The rows of tables that are there before the first record: by topic, and by key."""
        return {}


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


@dataclass(frozen=True)
class JoiningTables(UseCase):
    """Its streams join tables of a database: those who are there when the bank opens, of `events(seed=4)`."""

    @property
    def fed(self) -> tuple[str, ...]:
        return (self.topic, "bank.customers", "bank.accounts")

    def tables(self, modules: Modules) -> dict[str, dict[str, Any]]:
        people = modules.people.customers(1200, seed=4)
        return {
            "bank.customers": {each["customer_id"]: each for each in (one.customer_row() for one in people)},
            "bank.accounts": {each["account_id"]: each for each in (one.account_row() for one in people)},
        }

    def checks(self, modules: Modules) -> tuple[StreamCheck, ...]:
        opening = {customer.account_id: customer.opening_cents for customer in modules.people.customers(1200, seed=4)}

        def of(stream: str, names: tuple[str, ...]) -> Callable[[Any], dict[Any, Any]]:
            def right(good: Any) -> dict[Any, Any]:
                rows = modules.figures.Figures(good, opening).all()[stream]
                return {key: tuple(row[name] for name in names) for key, row in rows.items()}

            return right

        return tuple(StreamCheck(stream, key, names, of(stream, names)) for stream, (key, names) in _BANK.items())


_BANK = {
    "balances": (("account_id",), ("cents", "transactions", "at")),
    "velocity": (("span.start", "account_id"), ("payments", "cents", "at")),
    "travel": (("span.start", "account_id"), ("jumps", "left_city", "city", "km", "minutes", "at")),
    "transfers": (("hour.start", "transfer_id"), ("legs", "net_cents", "cents")),
    "unmatched": (("hour.start", "transfer_id"), ("legs", "net_cents", "cents")),
    "hours": (("hour.start", "kind"), ("transactions", "cents")),
}
# So much is paid to nobody else.
_CLOSING = 987_654_321
BANK = JoiningTables(
    "bank", "transactions", "Transaction",
    {"account_id": "closing", "ref": "closing", "kind": "salary", "cents": _CLOSING, "city": "", "transfer_id": ""},
    lambda row: row.get("cents") == _CLOSING,
)  # fmt: skip

USE_CASES = (CRICKET, HASHTAGS, GAMING, MALL, BANK)
