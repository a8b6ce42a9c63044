"""Takes due messages to their channels, each effectively once, whatever is killed meanwhile.

    due ──▶ trying ──▶ sent ──▶ delivered, undelivered (what the provider reports later)
      ▲       │  └───▶ refused (a dead letter, with the reason), expired
      └───────┘  not now: later again

Before a request is made, `trying` is written, with the id the provider will know the message by. A message that is found in
that state and not under way was left so by a crash, or by an answer that did not come: then the provider is asked for the id
before anything is sent. `SendScheduler` decides and holds no thread and no clock; `NotificationSender` is the loop around
it.
"""

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import msgspec

from riverrun.alerts.channels.contract import (
    AlertMessage,
    Channel,
    DeliveryReport,
    DeliveryStatus,
    OutcomeUnknown,
    SendAccepted,
    SendDeferred,
    SendRefused,
    SendResult,
    make_provider_id,
)
from riverrun.alerts.channels.limits import ChannelLimits
from riverrun.model.suggest import nearest

_LOG = logging.getLogger(__name__)


class Outbox(Protocol):
    """What the ledger gives. `namespace` is random and as old as the ledger (see `provider_id`)."""

    namespace: str

    def due(self, now: int) -> Sequence[tuple[AlertMessage, DeliveryStatus]]:
        """Messages that are not over and whose `retry_at` has come, oldest first; `trying` ones too, `sent` ones not."""

    def find_by_provider_id(self, provider_id: str) -> tuple[str, DeliveryStatus] | None:
        """The id of the message that a provider knows by this one, and where it stands."""

    def save_deliveries(self, changes: Mapping[str, DeliveryStatus]) -> None:
        """Keep where messages stand now, by id. It returns when that survives a crash."""


@dataclass(frozen=True)
class RetryPolicy:
    """Waits in milliseconds. A channel that fails `down_after` times in a row is down: one message at a time asks whether it
    is back, and all others wait. `max_unknown_attempts`: tries on a channel that cannot tell a message from its copy.
    `max_in_flight`: requests under way to one channel."""

    initial_backoff_ms: int = 1000
    max_backoff_ms: int = 30_000
    down_after: int = 3
    max_unknown_attempts: int = 3
    max_in_flight: int = 16


@dataclass(frozen=True)
class SendAttempt:
    """One request to make. `lookup_first`: an earlier one may have been taken, so look first."""

    message: AlertMessage
    delivery: DeliveryStatus
    lookup_first: bool
    parts: int = 1


@dataclass
class ChannelHealth:
    """How a channel is. `blocked_until`: nothing goes to it before; `problem`: why it is down, empty when it is not."""

    consecutive_failures: int = 0
    blocked_until: int = 0
    problem: str = ""
    since: int = 0
    reported_limit: str = ""


@dataclass
class SenderCounts:
    """Since this process began."""

    sent: int = 0
    refused: int = 0
    expired: int = 0
    retried: int = 0


class SendScheduler:
    """The decisions: which messages to try now, and what an answer means. Time is given, and `chance` is a number from 0
    to 1. `notice` takes a sentence for people, once per change."""

    def __init__(
        self,
        outbox: Outbox,
        channels: Mapping[str, Channel],
        *,
        limits: Mapping[str, ChannelLimits] | None = None,
        policy: RetryPolicy = RetryPolicy(),  # noqa: B008  -- frozen
        chance: Callable[[], float] = random.random,
        notice: Callable[[str], None] = _LOG.warning,
    ) -> None:
        self._outbox = outbox
        self._channels = channels
        self._limits = dict(limits or {})
        self._policy = policy
        self._chance = chance
        self._notice = notice
        self._in_flight: dict[str, SendAttempt] = {}
        self._in_flight_counts: Counter[str] = Counter()
        self._deferred_until: dict[str, int] = {}
        self._early_reports: dict[str, DeliveryReport] = {}
        # Reports come from elsewhere than answers.
        self._lock = threading.RLock()
        self.channel_health = {name: ChannelHealth() for name in channels}
        self.counts = SenderCounts()

    def restore(self, messages: Iterable[tuple[AlertMessage, DeliveryStatus]]) -> None:
        """Count what went out, or may have, before this process began: a day's budget does not begin anew with it."""
        for message, delivery in messages:
            limits = self._limits.get(message.channel)
            if limits is not None and delivery.state in {"trying", "sent", "delivered", "undelivered"}:
                limits.budget.spend(delivery.parts, delivery.updated_at)

    # --- what to do now ---

    def begin_attempts(self, now: int) -> list[SendAttempt]:
        """What to try now, already written down as such. Give each one's answer to `finish_attempts`."""
        with self._lock:
            chosen: list[SendAttempt] = []
            changes: dict[str, DeliveryStatus] = {}
            due = self._outbox.due(now)
            if self._deferred_until:
                known = {message.id for message, _ in due}
                self._deferred_until = {name: at for name, at in self._deferred_until.items() if name in known}
            free_slots = Counter({name: self._free_slots(name, now) for name in self._channels})
            for message, delivery in due:
                if message.id in self._in_flight:
                    continue
                if delivery.state == "due" and message.expires and now >= message.expires:
                    changes[message.id] = self._expire(delivery, now)
                    continue
                waits = self._deferred_until.get(message.id, 0) > now
                if waits or (message.channel in self._channels and free_slots[message.channel] <= 0):
                    continue
                decided = self._decide(message, delivery, now)
                if isinstance(decided, DeliveryStatus):
                    changes[message.id] = decided
                elif decided is not None:
                    chosen.append(decided)
                    free_slots[message.channel] -= 1
                elif self.channel_health[message.channel].blocked_until > now:
                    free_slots[message.channel] = 0
            if chosen or changes:
                self._outbox.save_deliveries(changes | {each.message.id: each.delivery for each in chosen})
            for each in chosen:
                self._in_flight[each.message.id] = each
                self._in_flight_counts[each.message.channel] += 1
            return chosen

    def _free_slots(self, name: str, now: int) -> int:
        """How many more may go to a channel now."""
        health = self.channel_health[name]
        if now < health.blocked_until:
            return 0
        # To one that is down, one message goes and asks whether it is back.
        return (1 if health.problem else self._policy.max_in_flight) - self._in_flight_counts[name]

    def _decide(self, message: AlertMessage, delivery: DeliveryStatus, now: int) -> SendAttempt | DeliveryStatus | None:
        """A try, an end, or nothing for now."""
        lookup_first = delivery.state == "trying"
        channel = self._channels.get(message.channel)
        if channel is None:
            near = nearest(message.channel, self._channels)
            hint = f"; did you mean {near}?" if near else ""
            return self._refuse(delivery, f"there is no channel {message.channel}{hint}", now)
        if lookup_first and channel.idempotent and now - delivery.requested_at > channel.idempotency_window_ms:
            return self._refuse(delivery, "the provider does not remember any more whether it had it", now)
        if lookup_first:
            # Also when it is too late for it: whether it went out is worth knowing.
            return SendAttempt(
                message,
                _replace(delivery, tries=delivery.tries + 1, updated_at=now),
                lookup_first=True,
                parts=delivery.parts,
            )
        check = channel.check(message)
        if check.problem:
            return self._refuse(delivery, check.problem, now)
        if not self._within_limits(message, check.parts, now):
            return None
        id_ = make_provider_id(self._outbox.namespace, message, delivery)
        trying = _replace(
            delivery,
            state="trying",
            tries=delivery.tries + 1,
            updated_at=now,
            requested_at=now,
            provider_id=id_,
            parts=check.parts,
        )
        return SendAttempt(message, trying, lookup_first=False, parts=check.parts)

    def _within_limits(self, message: AlertMessage, parts: int, now: int) -> bool:
        limits, health = self._limits.get(message.channel), self.channel_health[message.channel]
        delay = limits.acquire(message.receiver, parts, now) if limits is not None else None
        if delay is None:
            health.reported_limit = ""
            return True
        if delay.whole_channel:
            health.blocked_until = max(health.blocked_until, now + delay.ms)
        else:
            self._deferred_until[message.id] = now + delay.ms
        if delay.ms >= self._policy.max_backoff_ms and health.reported_limit != delay.reason:
            health.reported_limit = delay.reason
            self._notice(f"alerts wait: channel {message.channel}: {delay.reason}")
        return False

    # --- what an answer means ---

    def finish_attempts(self, answers: Iterable[tuple[SendAttempt, SendResult]], now: int) -> None:
        """Write down what came of tries."""
        with self._lock:
            done = list(answers)
            changes = {one.message.id: self._outcome(one, answer, now) for one, answer in done}
            if changes:
                self._outbox.save_deliveries(changes)
            for one, _ in done:
                if self._in_flight.pop(one.message.id, None) is not None:
                    self._in_flight_counts[one.message.channel] -= 1

    def _outcome(self, one: SendAttempt, answer: SendResult, now: int) -> DeliveryStatus:
        delivery, name = one.delivery, one.message.channel
        match answer:
            case SendAccepted():
                self._mark_healthy(name)
                self.counts.sent += 1
                sent = _replace(
                    delivery, state="sent", updated_at=now, retry_at=0, reason="",
                    provider_id=answer.provider_id, parts=max(answer.parts, one.parts),
                )  # fmt: skip
                early = self._early_reports.pop(answer.provider_id, None)
                return sent if early is None else _replace(sent, state=early.state, reason=early.reason)
            case SendRefused(permanent=True):
                self._mark_healthy(name)
                self._refund_limits(one, now)
                return self._refuse(delivery, answer.reason, now)
            case SendRefused():
                self._refund_limits(one, now)
                self._mark_failed(name, answer.reason, now)
                used_ids = delivery.used_ids + (1 if answer.id_used else 0)
                return self._retry_later(
                    one, _replace(delivery, state="due", used_ids=used_ids, provider_id=""), answer.reason, now
                )
            case SendDeferred():
                self._refund_limits(one, now)
                self._defer_channel(name, answer, now)
                return self._retry_later(one, _replace(delivery, state="due"), answer.reason, now, answer.retry_after)
            case OutcomeUnknown():
                self._mark_failed(name, answer.reason, now)
                if not self._channels[name].idempotent and delivery.tries >= self._policy.max_unknown_attempts:
                    reason = f"nobody can say whether it is out, after {delivery.tries} tries: {answer.reason}"
                    return self._refuse(delivery, reason, now)
                return self._retry_later(one, _replace(delivery, state="trying"), answer.reason, now)

    def apply_reports(self, reports: Iterable[DeliveryReport], now: int) -> None:
        """Write down what the provider said later. It may say so twice, and before its answer is here."""
        with self._lock:
            changes: dict[str, DeliveryStatus] = {}
            for report in reports:
                known = self._outbox.find_by_provider_id(report.provider_id)
                if known is None:
                    continue
                name, delivery = known
                if name in self._in_flight:
                    # As many as are under way, no more.
                    self._early_reports[report.provider_id] = report
                elif not delivery.is_final and (report.state, delivery.state) != ("sent", "sent"):
                    changes[name] = _replace(
                        delivery, state=report.state, updated_at=now, retry_at=0, reason=report.reason
                    )
            if changes:
                self._outbox.save_deliveries(changes)

    def _retry_later(
        self, one: SendAttempt, delivery: DeliveryStatus, reason: str, now: int, retry_after: float | None = None
    ) -> DeliveryStatus:
        self.counts.retried += 1
        requested_ms = round(retry_after * 1000) if retry_after is not None else 0
        retry_at = now + max(requested_ms, self._backoff(delivery.tries))
        if one.message.expires and delivery.state == "due":
            # Then it is to be told as too late, and no later.
            retry_at = min(retry_at, max(now, one.message.expires))
        return _replace(delivery, retry_at=retry_at, updated_at=now, reason=reason)

    def _refuse(self, delivery: DeliveryStatus, reason: str, now: int) -> DeliveryStatus:
        self.counts.refused += 1
        return _replace(delivery, state="refused", updated_at=now, retry_at=0, reason=reason)

    def _expire(self, delivery: DeliveryStatus, now: int) -> DeliveryStatus:
        self.counts.expired += 1
        return _replace(
            delivery, state="expired", updated_at=now, retry_at=0, reason=delivery.reason or "it was too late for it"
        )

    def _backoff(self, tries: int) -> int:
        """Twice as long each time, and somewhere in the upper half of that: many that failed together do not come back
        together."""
        longest = min(self._policy.max_backoff_ms, self._policy.initial_backoff_ms << min(max(0, tries - 1), 30))
        return round(longest * (0.5 + self._chance() / 2))

    # --- how channels are ---

    def _mark_healthy(self, name: str) -> None:
        health = self.channel_health[name]
        if health.problem:
            self._notice(f"alerts go on: channel {name} is back")
        self.channel_health[name] = ChannelHealth(reported_limit=health.reported_limit)

    def _defer_channel(self, name: str, answer: SendDeferred, now: int) -> None:
        if answer.down:
            self._mark_failed(name, answer.reason, now, answer.retry_after)
            return
        wait_ms = (
            round(answer.retry_after * 1000) if answer.retry_after is not None else self._policy.initial_backoff_ms
        )
        self.channel_health[name].blocked_until = max(self.channel_health[name].blocked_until, now + wait_ms)

    def _mark_failed(self, name: str, reason: str, now: int, retry_after: float | None = None) -> None:
        health = self.channel_health[name]
        if health.problem and now < health.blocked_until:
            # It was under way when the channel went down: the same trouble, not more of it.
            return
        health.consecutive_failures += 1
        if health.consecutive_failures < self._policy.down_after:
            return
        if not health.problem:
            health.since = now
            self._notice(f"alerts are parked: channel {name} is down: {reason}")
        health.problem = reason
        requested_ms = round(retry_after * 1000) if retry_after is not None else 0
        pause = self._backoff(health.consecutive_failures - self._policy.down_after + 1)
        health.blocked_until = max(health.blocked_until, now + max(requested_ms, pause))

    def _refund_limits(self, one: SendAttempt, now: int) -> None:
        if (limits := self._limits.get(one.message.channel)) is not None:
            limits.refund(one.parts, now)


def execute_attempt(channel: Channel, one: SendAttempt) -> SendResult:
    """The request itself: ask first where it may be out already."""
    delivery = one.delivery
    if one.lookup_first:
        if not delivery.provider_id:
            return SendDeferred("it was left without an id", retry_after=0.0, down=False)
        taken = channel.look_up(delivery.provider_id)
        if taken == "taken":
            return SendAccepted(delivery.provider_id, max(1, delivery.parts))
        if isinstance(taken, OutcomeUnknown) and channel.idempotent:
            return taken
        if taken == "not taken":
            # Its limits, its lateness and its text are judged anew, as for one that was never tried.
            return SendDeferred("the provider does not have it", retry_after=0.0, down=False)
    return channel.send(one.message, delivery.provider_id)


def _replace(delivery: DeliveryStatus, **changes: object) -> DeliveryStatus:
    return msgspec.structs.replace(delivery, **changes)


class NotificationSender:
    """The loop: a thread that decides, and a few that wait for providers."""

    def __init__(
        self,
        scheduler: SendScheduler,
        channels: Mapping[str, Channel],
        *,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        workers: int = 32,
        idle_seconds: float = 0.25,
    ) -> None:
        self._scheduler = scheduler
        self._channels = channels
        self._clock = clock
        self._idle = idle_seconds
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="riverrun-alert")
        self._wake = threading.Event()
        self._stop = threading.Event()

    def wake(self) -> None:
        """There is something new to send."""
        self._wake.set()

    def stop(self) -> None:
        """End `run` after what is under way, which is written down first."""
        self._stop.set()
        self._wake.set()

    def run(self) -> None:
        """Send until `stop`. What the outbox raises comes out: without a ledger nothing may be sent."""
        in_flight: dict[Future[SendResult], SendAttempt] = {}
        try:
            while not self._stop.is_set() or in_flight:
                if not self._stop.is_set():
                    for one in self._scheduler.begin_attempts(self._clock()):
                        future = self._pool.submit(self._execute, one)
                        in_flight[future] = one
                        future.add_done_callback(lambda _: self._wake.set())
                self._wake.wait(self._idle)
                self._wake.clear()
                done = [pending for pending in in_flight if pending.done()]
                if done:
                    self._scheduler.finish_attempts(
                        [(in_flight.pop(pending), pending.result()) for pending in done], self._clock()
                    )
        finally:
            self._pool.shutdown(cancel_futures=True)

    def _execute(self, one: SendAttempt) -> SendResult:
        try:
            return execute_attempt(self._channels[one.message.channel], one)
        except Exception as error:  # noqa: BLE001  -- a channel's bug must not stop the others, and nobody knows how far it came
            _LOG.exception("channel %s failed", one.message.channel)
            return OutcomeUnknown(f"{type(error).__name__} in the channel")
