"""Use cases whose streams are held against what plain Python finds, on a real broker: a line of `USE_CASES` for each."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from support.usecases import Modules

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d")

Key = tuple[Any, ...]
Expected = Mapping[Any, Any]


@dataclass(frozen=True)
class Check:
    """A stream: the columns that tell its rows apart, those that are compared, and the same by plain Python, from an
    example's `figures` module and the good events. `a.b` is a part of a column."""

    stream: str
    key: tuple[str, ...]
    figures: tuple[str, ...]
    expected: Callable[[Any, list[Any]], Expected]

    def rows(self, found: list[dict[str, Any]]) -> dict[Key, Key]:
        """The newest row of each key."""
        return {_columns(row, self.key): _columns(row, self.figures) for row in found}


@dataclass(frozen=True)
class UseCase:
    """An example: the topic its source feeds, the type of its events, and what is checked. `closing` is an event's fields
    that are changed for a last one, long after all others, so that windows end; its own rows are left out by `closed`."""

    name: str
    topic: str
    event: str
    closing: Mapping[str, Any]
    closed: Callable[[dict[str, Any]], bool]
    checks: tuple[Check, ...]

    def records(self, modules: Modules, number: int) -> list[Any]:
        return list(islice(modules.source.events(seed=4), number))

    def tables(self) -> dict[str, dict[str, Any]]:
        """The rows of tables that are there before the first record: by topic, and by key."""
        return {}

    def good(self, modules: Modules, records: list[Any]) -> list[Any]:
        return [each for each in records if isinstance(each, getattr(modules.app, self.event))]

    def last(self, good: list[Any]) -> Any:
        """The closing event: like another one, two days later."""
        import msgspec

        at = max(each.at for each in good) + timedelta(days=2)
        return msgspec.structs.replace(good[-1], at=at, **self.closing)


def _columns(row: dict[str, Any], names: tuple[str, ...]) -> Key:
    return tuple(_column(row, name) for name in names)


def _column(row: dict[str, Any], name: str) -> Any:
    outer, _, inner = name.partition(".")
    value = row[outer][inner] if inner else row[outer]
    return datetime.fromisoformat(value) if isinstance(value, str) and _TIME.match(value) else value


def _values(expected: Mapping[Any, Mapping[str, Any]], *names: str) -> Expected:
    return {(key,): tuple(row[name] for name in names) for key, row in expected.items()}


_SCORE = ("innings", "batting", "runs", "wickets", "balls", "run_rate", "target", "needed", "balls_left", "required_rate",
          "result")  # fmt: skip
_SAID = ("version", "striker", "bowler", "runs", "extras", "wicket", "dismissed", "at")

CRICKET = UseCase(
    "cricket", "deliveries", "Delivery", {"match_id": "closing"}, lambda row: row["match_id"] == "closing",
    (
        Check("scoreboard", ("match_id",), _SCORE,
              lambda figures, good: _values(figures.Figures().add(good).scoreboard(), *_SCORE)),
        Check("balls", ("match_id", "innings", "over_no", "ball_no"), _SAID,
              lambda figures, good: {key: tuple(getattr(each, name) for name in _SAID)
                                     for key, each in figures.Figures().add(good).balls.items()}),
    ),
)  # fmt: skip

HASHTAGS = UseCase(
    "hashtags", "posts", "Post", {"author": "closing", "post_id": "closing", "tags": ["closing"]},
    lambda row: row.get("author") == "closing" or row.get("tag") == "closing",
    (
        Check("author_minutes", ("minute.start", "author"), ("posts", "tags"),
              lambda figures, good: figures.Figures(good).author_minutes()),
        Check("tag_minutes", ("minute.start", "tag"), ("authors",),
              lambda figures, good: {key: (each,) for key, each in figures.Figures(good).tag_minutes().items()}),
        Check("trending", ("span.end", "tag"), ("score", "votes", "now", "usual", "burst"),
              lambda figures, good: figures.Figures(good).trending()),
    ),
)  # fmt: skip

GAMING = UseCase(
    "gaming", "hits", "Hit", {"player": "closing", "hit_id": "closing", "cup": "closing"},
    lambda row: row.get("player") == "closing" or row.get("cup") == "closing",
    (
        Check("standings", ("cup", "player"), ("points", "reached"),
              lambda figures, good: figures.Figures(good).standings()),
        Check("duels", ("cup", "round_no", "duel", "player"), ("points",),
              lambda figures, good: {key: (each,) for key, each in figures.Figures(good).duels().items()}),
        Check("sessions", ("player", "began"), ("ended", "points", "hits"),
              lambda figures, good: figures.Figures(good).sessions()),
        Check("outliers", ("minute.start", "player"), ("points", "usual"),
              lambda figures, good: figures.Figures(good).outliers()),
    ),
)  # fmt: skip


# Those who are there when the bank opens: `events(seed=4)`.
def _customers() -> list[Any]:
    found: list[Any] = Modules().people.customers(1200, seed=4)
    return found


@dataclass(frozen=True)
class JoiningTables(UseCase):
    """Its streams join tables of a database."""

    def tables(self) -> dict[str, dict[str, Any]]:
        people = _customers()
        return {
            "bank.customers": {each["customer_id"]: each for each in (one.customer_row() for one in people)},
            "bank.accounts": {each["account_id"]: each for each in (one.account_row() for one in people)},
        }


def _of_bank(stream: str, names: tuple[str, ...]) -> Callable[[Any, list[Any]], Expected]:
    def rows(figures: Any, good: list[Any]) -> Expected:
        opening = {each.account_id: each.opening_cents for each in _customers()}
        found = figures.Figures(good, opening).all()[stream]
        return {key: tuple(row[name] for name in names) for key, row in found.items()}

    return rows


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
    tuple(Check(stream, key, names, _of_bank(stream, names)) for stream, (key, names) in _BANK.items()),
)  # fmt: skip

USE_CASES = (CRICKET, HASHTAGS, GAMING, BANK)
