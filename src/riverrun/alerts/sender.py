"""Takes due messages to their channels, each effectively once, whatever is killed meanwhile.

    due ──▶ trying ──▶ sent ──▶ delivered, undelivered (what the provider reports later)
      ▲       │  └───▶ refused (a dead letter, with the reason), expired
      └───────┘  not now: later again

Before a request is made, `trying` is written, with the id the provider will know the message by. A message that is found in
that state and not under way was left so by a crash, or by an answer that did not come: then the provider is asked for the id
before anything is sent. `Sending` decides and holds no thread and no clock; `Sender` is the loop around it.
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
    Accepted,
    Answer,
    Channel,
    Delivery,
    Message,
    NotNow,
    Refused,
    Report,
    Unsure,
    provider_id,
)
from riverrun.alerts.channels.limits import Limits
from riverrun.model.near import nearest

_LOG = logging.getLogger(__name__)


class Outbox(Protocol):
    """What the ledger gives. `namespace` is random and as old as the ledger (see `provider_id`)."""

    namespace: str

    def due(self, now: int) -> Sequence[tuple[Message, Delivery]]:
        """Messages that are not over and whose `again` has come, oldest first; `trying` ones too, `sent` ones not."""

    def find(self, provider_id: str) -> tuple[str, Delivery] | None:
        """The id of the message that a provider knows by this one, and where it stands."""

    def moved(self, changes: Mapping[str, Delivery]) -> None:
        """Keep where messages stand now, by id. It returns when that survives a crash."""


@dataclass(frozen=True)
class Policy:
    """Waits in milliseconds. A channel that fails `down_after` times in a row is down: one message at a time asks whether
    it is back, and all others wait. `most_unsure`: tries on a channel that cannot tell a message from its copy. `at_once`:
    requests under way to one channel."""

    first_wait: int = 1000
    most_wait: int = 30_000
    down_after: int = 3
    most_unsure: int = 3
    at_once: int = 16


@dataclass(frozen=True)
class Try:
    """One request to make. `ask`: an earlier one may have been taken, so look first."""

    message: Message
    delivery: Delivery
    ask: bool
    parts: int = 1


@dataclass
class Standing:
    """How a channel is. `until`: nothing goes to it before; `problem`: why it is down, empty when it is not."""

    fails: int = 0
    until: int = 0
    problem: str = ""
    since: int = 0
    said_limit: str = ""


@dataclass
class Counts:
    """Since this process began."""

    sent: int = 0
    refused: int = 0
    expired: int = 0
    retried: int = 0


class Sending:
    """The decisions: which messages to try now, and what an answer means. Time is given, and `chance` is a number from 0
    to 1. `notice` takes a sentence for people, once per change."""

    def __init__(
        self,
        outbox: Outbox,
        channels: Mapping[str, Channel],
        *,
        limits: Mapping[str, Limits] | None = None,
        policy: Policy = Policy(),  # noqa: B008  -- frozen
        chance: Callable[[], float] = random.random,
        notice: Callable[[str], None] = _LOG.warning,
    ) -> None:
        self._outbox = outbox
        self._channels = channels
        self._limits = dict(limits or {})
        self._policy = policy
        self._chance = chance
        self._notice = notice
        self._flying: dict[str, Try] = {}
        self._under_way: Counter[str] = Counter()
        self._later: dict[str, int] = {}
        self._early: dict[str, Report] = {}
        # Reports come from elsewhere than answers.
        self._lock = threading.RLock()
        self.standings = {name: Standing() for name in channels}
        self.counts = Counts()

    def restore(self, messages: Iterable[tuple[Message, Delivery]]) -> None:
        """Count what went out, or may have, before this process began: a day's budget does not begin anew with it."""
        for message, delivery in messages:
            limits = self._limits.get(message.channel)
            if limits is not None and delivery.state in {"trying", "sent", "delivered", "undelivered"}:
                limits.budget.take(delivery.parts, delivery.at)

    # --- what to do now ---

    def begin(self, now: int) -> list[Try]:
        """What to try now, already written down as such. Give each one's answer to `finish`."""
        with self._lock:
            chosen: list[Try] = []
            changes: dict[str, Delivery] = {}
            due = self._outbox.due(now)
            if self._later:
                known = {message.id for message, _ in due}
                self._later = {name: at for name, at in self._later.items() if name in known}
            room = Counter({name: self._room(name, now) for name in self._channels})
            for message, delivery in due:
                if message.id in self._flying:
                    continue
                if delivery.state == "due" and message.expires and now >= message.expires:
                    changes[message.id] = self._expired(delivery, now)
                    continue
                waits = self._later.get(message.id, 0) > now
                if waits or (message.channel in self._channels and room[message.channel] <= 0):
                    continue
                decided = self._decide(message, delivery, now)
                if isinstance(decided, Delivery):
                    changes[message.id] = decided
                elif decided is not None:
                    chosen.append(decided)
                    room[message.channel] -= 1
                elif self.standings[message.channel].until > now:
                    room[message.channel] = 0
            if chosen or changes:
                self._outbox.moved(changes | {each.message.id: each.delivery for each in chosen})
            for each in chosen:
                self._flying[each.message.id] = each
                self._under_way[each.message.channel] += 1
            return chosen

    def _room(self, name: str, now: int) -> int:
        """How many more may go to a channel now."""
        standing = self.standings[name]
        if now < standing.until:
            return 0
        # To one that is down, one message goes and asks whether it is back.
        return (1 if standing.problem else self._policy.at_once) - self._under_way[name]

    def _decide(self, message: Message, delivery: Delivery, now: int) -> Try | Delivery | None:
        """A try, an end, or nothing for now."""
        ask = delivery.state == "trying"
        channel = self._channels.get(message.channel)
        if channel is None:
            near = nearest(message.channel, self._channels)
            hint = f"; did you mean {near}?" if near else ""
            return self._refused(delivery, f"there is no channel {message.channel}{hint}", now)
        if ask and channel.once and now - delivery.out > channel.remembers:
            return self._refused(delivery, "the provider does not remember any more whether it had it", now)
        if ask:
            # Also when it is too late for it: whether it went out is worth knowing.
            return Try(message, _changed(delivery, tries=delivery.tries + 1, at=now), ask=True, parts=delivery.parts)
        weight = channel.weigh(message)
        if weight.problem:
            return self._refused(delivery, weight.problem, now)
        if not self._within_limits(message, weight.parts, now):
            return None
        name = provider_id(self._outbox.namespace, message, delivery)
        trying = _changed(
            delivery, state="trying", tries=delivery.tries + 1, at=now, out=now, provider_id=name, parts=weight.parts
        )
        return Try(message, trying, ask=False, parts=weight.parts)

    def _within_limits(self, message: Message, parts: int, now: int) -> bool:
        limits, standing = self._limits.get(message.channel), self.standings[message.channel]
        stop = limits.take(message.receiver, parts, now) if limits is not None else None
        if stop is None:
            standing.said_limit = ""
            return True
        if stop.everyone:
            standing.until = max(standing.until, now + stop.ms)
        else:
            self._later[message.id] = now + stop.ms
        if stop.ms >= self._policy.most_wait and standing.said_limit != stop.reason:
            standing.said_limit = stop.reason
            self._notice(f"alerts wait: channel {message.channel}: {stop.reason}")
        return False

    # --- what an answer means ---

    def finish(self, answers: Iterable[tuple[Try, Answer]], now: int) -> None:
        """Write down what came of tries."""
        with self._lock:
            done = list(answers)
            changes = {one.message.id: self._outcome(one, answer, now) for one, answer in done}
            if changes:
                self._outbox.moved(changes)
            for one, _ in done:
                if self._flying.pop(one.message.id, None) is not None:
                    self._under_way[one.message.channel] -= 1

    def _outcome(self, one: Try, answer: Answer, now: int) -> Delivery:
        delivery, name = one.delivery, one.message.channel
        match answer:
            case Accepted():
                self._well(name)
                self.counts.sent += 1
                sent = _changed(
                    delivery, state="sent", at=now, again=0, reason="",
                    provider_id=answer.provider_id, parts=max(answer.parts, one.parts),
                )  # fmt: skip
                early = self._early.pop(answer.provider_id, None)
                return sent if early is None else _changed(sent, state=early.state, reason=early.reason)
            case Refused(permanent=True):
                self._well(name)
                self._give_back(one, now)
                return self._refused(delivery, answer.reason, now)
            case Refused():
                self._give_back(one, now)
                self._failed(name, answer.reason, now)
                spent = delivery.spent + (1 if answer.spent else 0)
                return self._again(
                    one, _changed(delivery, state="due", spent=spent, provider_id=""), answer.reason, now
                )
            case NotNow():
                self._give_back(one, now)
                self._not_now(name, answer, now)
                return self._again(one, _changed(delivery, state="due"), answer.reason, now, answer.retry_after)
            case Unsure():
                self._failed(name, answer.reason, now)
                if not self._channels[name].once and delivery.tries >= self._policy.most_unsure:
                    reason = f"nobody can say whether it is out, after {delivery.tries} tries: {answer.reason}"
                    return self._refused(delivery, reason, now)
                return self._again(one, _changed(delivery, state="trying"), answer.reason, now)

    def reported(self, reports: Iterable[Report], now: int) -> None:
        """Write down what the provider said later. It may say so twice, and before its answer is here."""
        with self._lock:
            changes: dict[str, Delivery] = {}
            for each in reports:
                found = self._outbox.find(each.provider_id)
                if found is None:
                    continue
                name, delivery = found
                if name in self._flying:
                    # As many as are under way, no more.
                    self._early[each.provider_id] = each
                elif not delivery.over and (each.state, delivery.state) != ("sent", "sent"):
                    changes[name] = _changed(delivery, state=each.state, at=now, again=0, reason=each.reason)
            if changes:
                self._outbox.moved(changes)

    def _again(self, one: Try, delivery: Delivery, reason: str, now: int, retry_after: float | None = None) -> Delivery:
        self.counts.retried += 1
        asked = round(retry_after * 1000) if retry_after is not None else 0
        again = now + max(asked, self._backoff(delivery.tries))
        if one.message.expires and delivery.state == "due":
            # Then it is to be told as too late, and no later.
            again = min(again, max(now, one.message.expires))
        return _changed(delivery, again=again, at=now, reason=reason)

    def _refused(self, delivery: Delivery, reason: str, now: int) -> Delivery:
        self.counts.refused += 1
        return _changed(delivery, state="refused", at=now, again=0, reason=reason)

    def _expired(self, delivery: Delivery, now: int) -> Delivery:
        self.counts.expired += 1
        return _changed(delivery, state="expired", at=now, again=0, reason=delivery.reason or "it was too late for it")

    def _backoff(self, tries: int) -> int:
        """Twice as long each time, and somewhere in the upper half of that: many that failed together do not come back
        together."""
        longest = min(self._policy.most_wait, self._policy.first_wait << min(max(0, tries - 1), 30))
        return round(longest * (0.5 + self._chance() / 2))

    # --- how channels are ---

    def _well(self, name: str) -> None:
        standing = self.standings[name]
        if standing.problem:
            self._notice(f"alerts go on: channel {name} is back")
        self.standings[name] = Standing(said_limit=standing.said_limit)

    def _not_now(self, name: str, answer: NotNow, now: int) -> None:
        if answer.down:
            self._failed(name, answer.reason, now, answer.retry_after)
            return
        wait_ms = round(answer.retry_after * 1000) if answer.retry_after is not None else self._policy.first_wait
        self.standings[name].until = max(self.standings[name].until, now + wait_ms)

    def _failed(self, name: str, reason: str, now: int, retry_after: float | None = None) -> None:
        standing = self.standings[name]
        if standing.problem and now < standing.until:
            # It was under way when the channel went down: the same trouble, not more of it.
            return
        standing.fails += 1
        if standing.fails < self._policy.down_after:
            return
        if not standing.problem:
            standing.since = now
            self._notice(f"alerts are parked: channel {name} is down: {reason}")
        standing.problem = reason
        asked = round(retry_after * 1000) if retry_after is not None else 0
        pause = self._backoff(standing.fails - self._policy.down_after + 1)
        standing.until = max(standing.until, now + max(asked, pause))

    def _give_back(self, one: Try, now: int) -> None:
        if (limits := self._limits.get(one.message.channel)) is not None:
            limits.give_back(one.parts, now)


def attempt(channel: Channel, one: Try) -> Answer:
    """The request itself: ask first where it may be out already."""
    delivery = one.delivery
    if one.ask:
        if not delivery.provider_id:
            return NotNow("it was left without an id", retry_after=0.0, down=False)
        taken = channel.look_up(delivery.provider_id)
        if taken == "taken":
            return Accepted(delivery.provider_id, max(1, delivery.parts))
        if isinstance(taken, Unsure) and channel.once:
            return taken
        if taken == "not taken":
            # Its limits, its lateness and its text are judged anew, as for one that was never tried.
            return NotNow("the provider does not have it", retry_after=0.0, down=False)
    return channel.send(one.message, delivery.provider_id)


def _changed(delivery: Delivery, **changes: object) -> Delivery:
    return msgspec.structs.replace(delivery, **changes)


class Sender:
    """The loop: a thread that decides, and a few that wait for providers."""

    def __init__(
        self,
        sending: Sending,
        channels: Mapping[str, Channel],
        *,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        workers: int = 32,
        idle_seconds: float = 0.25,
    ) -> None:
        self._sending = sending
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
        flying: dict[Future[Answer], Try] = {}
        try:
            while not self._stop.is_set() or flying:
                if not self._stop.is_set():
                    for one in self._sending.begin(self._clock()):
                        future = self._pool.submit(self._attempt, one)
                        flying[future] = one
                        future.add_done_callback(lambda _: self._wake.set())
                self._wake.wait(self._idle)
                self._wake.clear()
                done = [each for each in flying if each.done()]
                if done:
                    self._sending.finish([(flying.pop(each), each.result()) for each in done], self._clock())
        finally:
            self._pool.shutdown(cancel_futures=True)

    def _attempt(self, one: Try) -> Answer:
        try:
            return attempt(self._channels[one.message.channel], one)
        except Exception as error:  # noqa: BLE001  -- a channel's bug must not stop the others, and nobody knows how far it came
            _LOG.exception("channel %s failed", one.message.channel)
            return Unsure(f"{type(error).__name__} in the channel")
