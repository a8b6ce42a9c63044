"""How fast and how much a channel may send: token buckets, and SMS parts per day. The caller passes the time.

Nothing is dropped here: for a message over a limit, the caller gets the time to wait.
"""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

# How many receivers' buckets are kept. A full bucket equals a new one, so only the busiest ever stay.
MAX_RECEIVERS = 100_000
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class MessageRate:
    """`count` messages per `period_ms`, and as many at once. 0: unlimited."""

    count: int = 0
    period_ms: int = 1000

    @property
    def token_interval_ms(self) -> float:
        return self.period_ms / self.count


class MessageTokenBucket:
    """A token bucket that refills evenly and never holds more than `rate.count`."""

    def __init__(self, rate: MessageRate, now: int) -> None:
        self._rate = rate
        self._tokens = float(rate.count)
        self._filled_at = now

    def wait_ms(self, now: int) -> int:
        """Milliseconds until there is a token; 0: there is one."""
        self._refill(now)
        return 0 if self._tokens >= 1 else max(1, round((1 - self._tokens) * self._rate.token_interval_ms))

    def consume(self, now: int) -> None:
        self._refill(now)
        self._tokens -= 1

    def is_full(self, now: int) -> bool:
        self._refill(now)
        return self._tokens >= self._rate.count

    def _refill(self, now: int) -> None:
        # A clock that is set back adds no tokens, and removes none.
        elapsed_ms = max(0, now - self._filled_at)
        self._tokens = min(float(self._rate.count), self._tokens + elapsed_ms / self._rate.token_interval_ms)
        self._filled_at = max(self._filled_at, now)


class DailyBudget:
    """SMS parts per calendar day of a time zone. 0: unlimited."""

    def __init__(self, parts: int, zone: str = "UTC") -> None:
        self._max_parts = parts
        self._zone = ZoneInfo(zone)
        self._day = ""
        self._spent = 0

    @property
    def max_parts(self) -> int:
        return self._max_parts

    def spent(self, now: int) -> int:
        self._roll_day(now)
        return self._spent

    def wait_ms(self, parts: int, now: int) -> int:
        """Milliseconds until the budget has room for `parts`; 0: it has. A message larger than a whole day's budget is sent
        alone, at the beginning of a day: otherwise it never would be."""
        if not self._max_parts:
            return 0
        self._roll_day(now)
        if not self._spent or self._spent + parts <= self._max_parts:
            return 0
        local = datetime.fromtimestamp(now / 1000, self._zone)
        midnight = (local + _DAY).replace(hour=0, minute=0, second=0, microsecond=0)
        return max(1, round(midnight.timestamp() * 1000) - now)

    def spend(self, parts: int, at: int) -> None:
        """Count parts that were sent at a time. Those of earlier days are ignored."""
        day = self._day_of(at)
        if day > self._day:
            self._day, self._spent = day, 0
        if day == self._day:
            self._spent += parts

    def _roll_day(self, now: int) -> None:
        if (day := self._day_of(now)) > self._day:
            self._day, self._spent = day, 0

    def _day_of(self, at: int) -> str:
        return datetime.fromtimestamp(at / 1000, self._zone).date().isoformat()


@dataclass(frozen=True)
class LimitDelay:
    """How long to wait, and why. `whole_channel`: no other message of the channel may be sent either."""

    ms: int
    reason: str
    whole_channel: bool = False


class ChannelLimits:
    """All limits of one channel: its rate, the rate per receiver, and the daily budget."""

    def __init__(
        self,
        *,
        rate: MessageRate | None = None,
        per_receiver: MessageRate | None = None,
        budget: DailyBudget | None = None,
    ) -> None:
        self._rate = rate or MessageRate()
        self._per_receiver = per_receiver or MessageRate()
        self.budget = budget or DailyBudget(0)
        self._channel_bucket: MessageTokenBucket | None = None
        self._receiver_buckets: OrderedDict[str, MessageTokenBucket] = OrderedDict()

    def acquire(self, receiver: str, parts: int, now: int) -> LimitDelay | None:
        """Take what one message needs from all limits, or from none: then return how long to wait, and why."""
        receiver_bucket = self._receiver_bucket(receiver, now)
        delays = [
            LimitDelay(self.budget.wait_ms(parts, now), f"the day's {self.budget.max_parts} parts are used up"),
            LimitDelay(receiver_bucket.wait_ms(now) if receiver_bucket else 0, "this receiver has had enough for now"),
            LimitDelay(self._channel_wait_ms(now), "the channel's pace", whole_channel=True),
        ]
        longest = max(delays, key=lambda delay: delay.ms)
        if longest.ms:
            return longest
        self.budget.spend(parts, now)
        if receiver_bucket:
            receiver_bucket.consume(now)
        if self._channel_bucket:
            self._channel_bucket.consume(now)
        return None

    def refund(self, parts: int, now: int) -> None:
        """Return the budget of a message that was certainly not accepted. Its rate tokens are not returned."""
        self.budget.spend(-parts, now)

    def _channel_wait_ms(self, now: int) -> int:
        if not self._rate.count:
            return 0
        if self._channel_bucket is None:
            self._channel_bucket = MessageTokenBucket(self._rate, now)
        return self._channel_bucket.wait_ms(now)

    def _receiver_bucket(self, receiver: str, now: int) -> MessageTokenBucket | None:
        if not self._per_receiver.count:
            return None
        bucket = self._receiver_buckets.get(receiver)
        if bucket is None:
            bucket = self._receiver_buckets[receiver] = MessageTokenBucket(self._per_receiver, now)
            self._evict(now)
        self._receiver_buckets.move_to_end(receiver)
        return bucket

    def _evict(self, now: int) -> None:
        while self._receiver_buckets and len(self._receiver_buckets) > MAX_RECEIVERS:
            name, oldest = next(iter(self._receiver_buckets.items()))
            if not oldest.is_full(now):
                # Still counting: it stays, and the map is as large as the traffic of one period.
                return
            del self._receiver_buckets[name]
