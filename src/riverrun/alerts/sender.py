"""Sends due messages through their channels, each effectively once, whatever is killed meanwhile.

    due ──▶ trying ──▶ sent ──▶ delivered, undelivered (what the provider reports later)
      ▲       │  └───▶ refused (a dead letter, with the reason), expired
      └───────┘  not now: later again

Before a request is made, `trying` is written, with the id the provider will know the message by. A message in that state
that is not in flight was left so by a crash, or by an answer that did not come: then the provider is asked for the id
before anything is sent. `SendScheduler` decides and has no thread and no clock; `NotificationSender` is the loop around it.
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
    """What the sender needs of the alert state. `namespace` is random and as old as the state topic (`make_provider_id`)."""

    namespace: str

    def due(self, now: int) -> Sequence[tuple[AlertMessage, DeliveryStatus]]:
        """Unsettled messages whose `retry_at` has come, oldest first; including `trying`, without `sent`."""

    def find_by_provider_id(self, provider_id: str) -> tuple[str, DeliveryStatus] | None:
        """The id and delivery status of the message that the provider knows by this id."""

    def save_deliveries(self, changes: Mapping[str, DeliveryStatus]) -> None:
        """Save delivery statuses, by message id. Returns when they are durable."""


@dataclass(frozen=True)
class RetryPolicy:
    """Waits in milliseconds. A channel that fails `down_after` times in a row is down: one message at a time probes whether
    it is back, and all others wait. `max_unknown_attempts`: tries on a channel that cannot detect duplicates.
    `max_in_flight`: concurrent requests to one channel."""

    initial_backoff_ms: int = 1000
    max_backoff_ms: int = 30_000
    down_after: int = 3
    max_unknown_attempts: int = 3
    max_in_flight: int = 16


@dataclass(frozen=True)
class SendAttempt:
    """One request to make. `lookup_first`: an earlier one may have been accepted, so look it up first."""

    message: AlertMessage
    delivery: DeliveryStatus
    lookup_first: bool
    parts: int = 1


@dataclass
class ChannelHealth:
    """A channel's health. `blocked_until`: nothing is sent before; `problem`: why it is down, empty when it is up."""

    consecutive_failures: int = 0
    blocked_until: int = 0
    problem: str = ""
    since: int = 0
    reported_limit: str = ""


@dataclass
class SenderCounts:
    """Counts since this process started."""

    sent: int = 0
    refused: int = 0
    expired: int = 0
    retried: int = 0


class SendScheduler:
    """Decides which messages to try now, and what an answer means. The caller passes the time, and `chance` returns a number
    from 0 to 1. `notice` takes a sentence for people, once per change."""

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
        # Reports come from another thread than answers.
        self._lock = threading.RLock()
        self.channel_health = {name: ChannelHealth() for name in channels}
        self.counts = SenderCounts()

    def restore(self, messages: Iterable[tuple[AlertMessage, DeliveryStatus]]) -> None:
        """Count what was sent, or may have been, before this process started: a restart does not reset the day's budget."""
        for message, delivery in messages:
            limits = self._limits.get(message.channel)
            if limits is not None and delivery.state in {"trying", "sent", "delivered", "undelivered"}:
                limits.budget.spend(delivery.parts, delivery.updated_at)

    # --- choosing attempts ---

    def begin_attempts(self, now: int) -> list[SendAttempt]:
        """Choose what to try now, and save it as `trying`. Pass each answer to `finish_attempts`."""
        with self._lock:
            chosen: list[SendAttempt] = []
            changes: dict[str, DeliveryStatus] = {}
            due = self._outbox.due(now)
            if self._deferred_until:
                due_ids = {message.id for message, _ in due}
                self._deferred_until = {id_: at for id_, at in self._deferred_until.items() if id_ in due_ids}
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
                self._outbox.save_deliveries(changes | {attempt.message.id: attempt.delivery for attempt in chosen})
            for attempt in chosen:
                self._in_flight[attempt.message.id] = attempt
                self._in_flight_counts[attempt.message.channel] += 1
            return chosen

    def _free_slots(self, name: str, now: int) -> int:
        """How many more requests may go to a channel now."""
        health = self.channel_health[name]
        if now < health.blocked_until:
            return 0
        # A channel that is down gets one message, to probe whether it is back.
        return (1 if health.problem else self._policy.max_in_flight) - self._in_flight_counts[name]

    def _decide(self, message: AlertMessage, delivery: DeliveryStatus, now: int) -> SendAttempt | DeliveryStatus | None:
        """An attempt to make, a final status, or None to wait."""
        lookup_first = delivery.state == "trying"
        channel = self._channels.get(message.channel)
        if channel is None:
            near = nearest(message.channel, self._channels)
            hint = f"; did you mean {near}?" if near else ""
            return self._refuse(delivery, f"there is no channel {message.channel}{hint}", now)
        if lookup_first and channel.idempotent and now - delivery.requested_at > channel.idempotency_window_ms:
            return self._refuse(delivery, "the provider does not remember any more whether it had it", now)
        if lookup_first:
            # Also after it expired: whether it was sent is worth knowing.
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

    # --- handling answers ---

    def finish_attempts(self, answers: Iterable[tuple[SendAttempt, SendResult]], now: int) -> None:
        """Save the outcome of attempts."""
        with self._lock:
            done = list(answers)
            changes = {attempt.message.id: self._outcome(attempt, answer, now) for attempt, answer in done}
            if changes:
                self._outbox.save_deliveries(changes)
            for attempt, _ in done:
                if self._in_flight.pop(attempt.message.id, None) is not None:
                    self._in_flight_counts[attempt.message.channel] -= 1

    def _outcome(self, attempt: SendAttempt, answer: SendResult, now: int) -> DeliveryStatus:
        delivery, name = attempt.delivery, attempt.message.channel
        match answer:
            case SendAccepted():
                self._mark_healthy(name)
                self.counts.sent += 1
                sent = _replace(
                    delivery, state="sent", updated_at=now, retry_at=0, reason="",
                    provider_id=answer.provider_id, parts=max(answer.parts, attempt.parts),
                )  # fmt: skip
                early = self._early_reports.pop(answer.provider_id, None)
                return sent if early is None else _replace(sent, state=early.state, reason=early.reason)
            case SendRefused(permanent=True):
                self._mark_healthy(name)
                self._refund_limits(attempt, now)
                return self._refuse(delivery, answer.reason, now)
            case SendRefused():
                self._refund_limits(attempt, now)
                self._mark_failed(name, answer.reason, now)
                used_ids = delivery.used_ids + (1 if answer.id_used else 0)
                return self._retry_later(
                    attempt, _replace(delivery, state="due", used_ids=used_ids, provider_id=""), answer.reason, now
                )
            case SendDeferred():
                self._refund_limits(attempt, now)
                self._defer_channel(name, answer, now)
                return self._retry_later(
                    attempt, _replace(delivery, state="due"), answer.reason, now, answer.retry_after
                )
            case OutcomeUnknown():
                self._mark_failed(name, answer.reason, now)
                if not self._channels[name].idempotent and delivery.tries >= self._policy.max_unknown_attempts:
                    reason = f"nobody can say whether it is out, after {delivery.tries} tries: {answer.reason}"
                    return self._refuse(delivery, reason, now)
                return self._retry_later(attempt, _replace(delivery, state="trying"), answer.reason, now)

    def apply_reports(self, reports: Iterable[DeliveryReport], now: int) -> None:
        """Save the provider's later reports. One may come twice, and before the answer to its request."""
        with self._lock:
            changes: dict[str, DeliveryStatus] = {}
            for report in reports:
                reported = self._outbox.find_by_provider_id(report.provider_id)
                if reported is None:
                    continue
                id_, delivery = reported
                if id_ in self._in_flight:
                    # So there are never more of them than messages in flight.
                    self._early_reports[report.provider_id] = report
                elif not delivery.is_final and (report.state, delivery.state) != ("sent", "sent"):
                    changes[id_] = _replace(
                        delivery, state=report.state, updated_at=now, retry_at=0, reason=report.reason
                    )
            if changes:
                self._outbox.save_deliveries(changes)

    def _retry_later(
        self, attempt: SendAttempt, delivery: DeliveryStatus, reason: str, now: int, retry_after: float | None = None
    ) -> DeliveryStatus:
        self.counts.retried += 1
        requested_ms = round(retry_after * 1000) if retry_after is not None else 0
        retry_at = now + max(requested_ms, self._backoff(delivery.tries))
        if attempt.message.expires and delivery.state == "due":
            # At that time it is marked as expired, and not later.
            retry_at = min(retry_at, max(now, attempt.message.expires))
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
        """Exponential backoff, with jitter in the upper half: messages that failed together are not retried together."""
        longest = min(self._policy.max_backoff_ms, self._policy.initial_backoff_ms << min(max(0, tries - 1), 30))
        return round(longest * (0.5 + self._chance() / 2))

    # --- channel health ---

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
            # It was in flight when the channel went down: the same failure, not another one.
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

    def _refund_limits(self, attempt: SendAttempt, now: int) -> None:
        if (limits := self._limits.get(attempt.message.channel)) is not None:
            limits.refund(attempt.parts, now)


def execute_attempt(channel: Channel, one: SendAttempt) -> SendResult:
    """Make the request; first look the message up where it may have been sent already."""
    delivery = one.delivery
    if one.lookup_first:
        if not delivery.provider_id:
            return SendDeferred("it was left without an id", retry_after=0.0, down=False)
        looked_up = channel.look_up(delivery.provider_id)
        if looked_up == "taken":
            return SendAccepted(delivery.provider_id, max(1, delivery.parts))
        if isinstance(looked_up, OutcomeUnknown) and channel.idempotent:
            return looked_up
        if looked_up == "not taken":
            # Its limits, expiry and text are checked again, as for a message that was never tried.
            return SendDeferred("the provider does not have it", retry_after=0.0, down=False)
    return channel.send(one.message, delivery.provider_id)


def _replace(delivery: DeliveryStatus, **changes: object) -> DeliveryStatus:
    return msgspec.structs.replace(delivery, **changes)


class NotificationSender:
    """The send loop: one thread that decides, and a pool that waits for providers."""

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
        """Wake the loop: there is something new to send."""
        self._wake.set()

    def stop(self) -> None:
        """End `run` once requests in flight are finished and saved."""
        self._stop.set()
        self._wake.set()

    def run(self) -> None:
        """Send until `stop`. Errors of the outbox are raised: without the state topic nothing may be sent."""
        in_flight: dict[Future[SendResult], SendAttempt] = {}
        try:
            while not self._stop.is_set() or in_flight:
                if not self._stop.is_set():
                    for attempt in self._scheduler.begin_attempts(self._clock()):
                        future = self._pool.submit(self._execute, attempt)
                        in_flight[future] = attempt
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

    def _execute(self, attempt: SendAttempt) -> SendResult:
        try:
            return execute_attempt(self._channels[attempt.message.channel], attempt)
        except Exception as error:  # noqa: BLE001  -- a channel's bug must not stop the others, and its outcome is unknown
            _LOG.exception("channel %s failed", attempt.message.channel)
            return OutcomeUnknown(f"{type(error).__name__} in the channel")
