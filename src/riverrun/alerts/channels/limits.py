"""How fast and how much a channel may send: buckets that fill with time, and parts per day. The clock is the caller's.

Nothing is dropped here: a message that is over a limit is told when to come again.
"""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

# Receivers whose buckets are kept. One that is full again is as good as a new one, so only the busiest ever stay.
MOST_RECEIVERS = 100_000
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Rate:
    """`count` messages per `ms` milliseconds, and as many at once. 0: as many as come."""

    count: int = 0
    ms: int = 1000

    @property
    def token_ms(self) -> float:
        return self.ms / self.count


class Bucket:
    """Tokens come evenly; there are never more than `rate.count`."""

    def __init__(self, rate: Rate, now: int) -> None:
        self._rate = rate
        self._tokens = float(rate.count)
        self._at = now

    def wait(self, now: int) -> int:
        """Milliseconds until there is a token; 0: there is one."""
        self._fill(now)
        return 0 if self._tokens >= 1 else max(1, round((1 - self._tokens) * self._rate.token_ms))

    def take(self, now: int) -> None:
        self._fill(now)
        self._tokens -= 1

    def full(self, now: int) -> bool:
        self._fill(now)
        return self._tokens >= self._rate.count

    def _fill(self, now: int) -> None:
        # A clock that is set back gives no tokens, and takes none.
        gone = max(0, now - self._at)
        self._tokens = min(float(self._rate.count), self._tokens + gone / self._rate.token_ms)
        self._at = max(self._at, now)


class Budget:
    """Parts per calendar day of a zone. 0: as many as come."""

    def __init__(self, parts: int, zone: str = "UTC") -> None:
        self._most = parts
        self._zone = ZoneInfo(zone)
        self._day = ""
        self._spent = 0

    @property
    def most(self) -> int:
        return self._most

    def spent(self, now: int) -> int:
        self._turn(now)
        return self._spent

    def wait(self, parts: int, now: int) -> int:
        """Milliseconds until the day has room for so many; 0: it has. A message larger than a day's whole budget goes out
        alone, at the beginning of a day: else it never would."""
        if not self._most:
            return 0
        self._turn(now)
        if not self._spent or self._spent + parts <= self._most:
            return 0
        local = datetime.fromtimestamp(now / 1000, self._zone)
        midnight = (local + _DAY).replace(hour=0, minute=0, second=0, microsecond=0)
        return max(1, round(midnight.timestamp() * 1000) - now)

    def take(self, parts: int, at: int) -> None:
        """Count parts that went out at a time. What was before the day at hand does not matter any more."""
        day = self._name(at)
        if day > self._day:
            self._day, self._spent = day, 0
        if day == self._day:
            self._spent += parts

    def _turn(self, now: int) -> None:
        if (day := self._name(now)) > self._day:
            self._day, self._spent = day, 0

    def _name(self, at: int) -> str:
        return datetime.fromtimestamp(at / 1000, self._zone).date().isoformat()


@dataclass(frozen=True)
class Wait:
    """`everyone`: no other message of the channel could go either."""

    ms: int
    reason: str
    everyone: bool = False


class Limits:
    """All limits of one channel: its pace, that to one receiver, and what a day may cost."""

    def __init__(
        self, *, rate: Rate | None = None, per_receiver: Rate | None = None, budget: Budget | None = None
    ) -> None:
        self._rate = rate or Rate()
        self._per_receiver = per_receiver or Rate()
        self.budget = budget or Budget(0)
        self._all: Bucket | None = None
        self._each: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, receiver: str, parts: int, now: int) -> Wait | None:
        """Take what one message needs from each limit, or from none: then how long to wait, and why."""
        mine = self._bucket(receiver, now)
        waits = [
            Wait(self.budget.wait(parts, now), f"the day's {self.budget.most} parts are used up"),
            Wait(mine.wait(now) if mine else 0, "this receiver has had enough for now"),
            Wait(self._pace(now), "the channel's pace", everyone=True),
        ]
        longest = max(waits, key=lambda each: each.ms)
        if longest.ms:
            return longest
        self.budget.take(parts, now)
        if mine:
            mine.take(now)
        if self._all:
            self._all.take(now)
        return None

    def give_back(self, parts: int, now: int) -> None:
        """A message that was certainly not taken costs nothing. Its place in the pace is gone."""
        self.budget.take(-parts, now)

    def _pace(self, now: int) -> int:
        if not self._rate.count:
            return 0
        if self._all is None:
            self._all = Bucket(self._rate, now)
        return self._all.wait(now)

    def _bucket(self, receiver: str, now: int) -> Bucket | None:
        if not self._per_receiver.count:
            return None
        found = self._each.get(receiver)
        if found is None:
            found = self._each[receiver] = Bucket(self._per_receiver, now)
            self._forget(now)
        self._each.move_to_end(receiver)
        return found

    def _forget(self, now: int) -> None:
        while self._each and len(self._each) > MOST_RECEIVERS:
            name, oldest = next(iter(self._each.items()))
            if not oldest.full(now):
                # Still counting: it stays, and the map is as large as the traffic of one period.
                return
            del self._each[name]
