"""The same figures in plain Python: what the streams of app.py must come to. Nothing here is shared with them.

python figures.py --seed 1 --events 50000        compare with what is in the project's Kafka, after source.py sent the same
"""

import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from app import MANY_PAYMENTS, MOST_KM_AN_HOUR, Transaction, app
from people import cities, km_between
from source import Sent, feed_of, options_of

from riverrun.demo.comparison import clock_of, report, rows_of

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# How wide the windows of a stream are, and how far apart they begin.
WINDOWS = {
    "velocity": (10 * MINUTE, 5 * MINUTE), "travel": (8 * HOUR, 4 * HOUR), "transfers": (HOUR, HOUR),
    "unmatched": (HOUR, HOUR), "hours": (HOUR, HOUR),
}  # fmt: skip
# The columns that tell a stream's rows apart; the time is first, where there is one.
KEYS = {
    "balances": ("account_id",), "velocity": ("span", "account_id"), "travel": ("span", "account_id"),
    "transfers": ("hour", "transfer_id"), "unmatched": ("hour", "transfer_id"), "hours": ("hour", "kind"),
}  # fmt: skip
# What changes when the tables do is as it was when the row was made: not compared.
LEFT_OUT = ("name", "phone", "overdraft_cents")
Key = tuple[Any, ...]
Row = dict[str, Any]
Rows = dict[Key, Row]


class Figures:
    """What transactions come to. What comes twice counts once."""

    def __init__(self, transactions: Iterable[Transaction], opening: Mapping[str, int]) -> None:
        self._made = list(
            {(transaction.account_id, transaction.ref): transaction for transaction in transactions}.values()
        )
        self._opening = opening

    def all(self) -> dict[str, Rows]:
        """For each stream, its rows by their key."""
        transfers = self.transfers()
        return {
            "balances": self.balances(), "velocity": self.velocity(), "travel": self.travel(), "transfers": transfers,
            "unmatched": {key: row for key, row in transfers.items() if row["net_cents"]}, "hours": self.hours(),
        }  # fmt: skip

    def balances(self) -> Rows:
        found: Rows = {}
        for each in self._made:
            start = {"cents": self._opening[each.account_id], "transactions": 0, "at": each.at}
            row = found.setdefault((each.account_id,), start)
            row["cents"] += each.cents
            row["transactions"] += 1
            row["at"] = max(row["at"], each.at)
        return found

    def velocity(self) -> Rows:
        paid = self._by("velocity", "account_id", lambda each: each.kind == "card")
        return {
            key: {
                "payments": len(made),
                "cents": -sum(each.cents for each in made),
                "at": max(each.at for each in made),
            }
            for key, made in paid.items()
            if len(made) >= MANY_PAYMENTS
        }

    def travel(self) -> Rows:
        found, places = {}, cities()
        for key, made in self._by("travel", "account_id", lambda each: bool(each.city)).items():
            uses = sorted({(each.at, each.city) for each in made})
            jumps = []
            for (left, here), (came, there) in pairwise(uses):
                km, taken = km_between(places[here], places[there]), (came - left) // timedelta(milliseconds=1)
                if km * 3_600_000 > taken * MOST_KM_AN_HOUR:
                    jumps.append((here, there, km, taken // 60_000, came))
            if jumps:
                names = ("left_city", "city", "km", "minutes", "at")
                found[key] = {"jumps": len(jumps), **dict(zip(names, jumps[-1], strict=True))}
        return found

    def transfers(self) -> Rows:
        legs = self._by("transfers", "transfer_id", lambda each: each.kind == "transfer")
        return {
            key: {
                "legs": len(made), "net_cents": sum(each.cents for each in made),
                "cents": max(abs(each.cents) for each in made),
            }
            for key, made in legs.items()
        }  # fmt: skip

    def hours(self) -> Rows:
        return {
            key: {"transactions": len(made), "cents": _moved(made)}
            for key, made in self._by("hours", "kind", lambda _: True).items()
        }

    def months(self) -> Rows:
        """Account and month: the least that was on it, when, and what was there at its end."""
        found: Rows = {}
        standing = dict(self._opening)
        for each in sorted(self._made, key=lambda each: (each.at, each.ref)):
            standing[each.account_id] += each.cents
            now = standing[each.account_id]
            key = (each.account_id, f"{each.at:%Y-%m}")
            row = found.setdefault(key, {"least_cents": now, "least_at": each.at, "last_cents": now})
            if now < row["least_cents"]:
                row |= {"least_cents": now, "least_at": each.at}
            row["last_cents"] = now
        return found

    def _by(self, stream: str, name: str, wanted: Any) -> dict[Key, list[Transaction]]:
        found: dict[Key, list[Transaction]] = defaultdict(list)
        for each in filter(wanted, self._made):
            for begin in _begins(each.at, *WINDOWS[stream]):
                found[begin, getattr(each, name)].append(each)
        return found


def _moved(made: Iterable[Transaction]) -> int:
    """Payment by payment: a transfer is one, of what left the account that it is from."""
    paid = {}
    for each in made:
        if not each.transfer_id:
            paid[each.account_id, each.ref] = each.cents
        elif each.cents < 0:
            paid["transfer", each.transfer_id] = each.cents
    return sum(map(abs, paid.values()))


def _begins(at: datetime, width: timedelta, every: timedelta) -> Iterator[datetime]:
    begin = at - (at - EPOCH) % every
    while begin > at - width:
        yield begin
        begin -= every


def of(sent: Iterable[Sent]) -> Figures:
    """What the source's records come to. What is broken does not count."""
    sent = list(sent)
    rows = [each.value for each in sent if each.table == "accounts" and isinstance(each.value, dict)]
    made = (each.value for each in sent if isinstance(each.value, Transaction))
    return Figures(made, {row["account_id"]: row["opening_cents"] for row in rows})


# --- comparing ---


def keyed(stream: str, rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Rows of a stream, as a consumer or the test kit gives them, like those above; the newest of each key."""
    names, found = KEYS[stream], {}
    for row in rows:
        key = tuple(_plain(row[name]) for name in names)
        found[key] = {name: _plain(each) for name, each in row.items() if name not in (*names, *LEFT_OUT)}
    return found


def _plain(value: Any) -> Any:
    """A window is when it begins; a time is one of Python's."""
    value = value["start"] if isinstance(value, Mapping) else value
    if isinstance(value, str) and len(value) > 18 and value[10] == "T":
        value = datetime.fromisoformat(value)
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def main() -> int:
    sent = list(feed_of(options_of(__doc__ or "")))
    expected, wrong = of(sent).all(), 0
    made = [each.value for each in sent if isinstance(each.value, Transaction)]
    phones: dict[str, set[str]] = defaultdict(set)
    for each in sent:
        if each.table == "customers" and isinstance(each.value, dict):
            phones[each.value["name"]].add(each.value["phone"])
    for stream in app.streams:
        # The clock first: what is over by it has been sent.
        clock = clock_of(stream, Transaction, made)
        raw = list(rows_of(stream))
        rows, right = keyed(stream, raw), expected[stream]
        # Whether a window still took what came too late depends on how far the stream was.
        touched = _touched(stream, [each.value for each in sent if each.odd == "too_late"])
        if stream == "unmatched":
            # Told when no leg can come any more, by the stream's clock.
            touched |= {key for key in right if key[0] + HOUR > clock}
        wrong += report(stream, right, rows, left_out=touched, why="it depends on how far the stream was")
        for row in raw:
            if "phone" in row and row["phone"] not in phones[row["name"]]:
                print(f"  {row['name']} never had the phone {row['phone']}")
                wrong += 1
    return 1 if wrong else 0


def _touched(stream: str, too_late: Collection[Any]) -> set[Key]:
    """The keys of a stream's rows that these belong to. A balance takes them whenever they come."""
    if stream not in WINDOWS:
        return set()
    name = KEYS[stream][1]
    return {(begin, getattr(each, name)) for each in too_late for begin in _begins(each.at, *WINDOWS[stream])}


if __name__ == "__main__":
    sys.exit(main())
