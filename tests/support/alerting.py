"""Parts for tests of alerts: an outbox in memory that can be killed, and a channel that says what it is told to."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from riverrun.alerts.channels.contract import (
    AlertMessage,
    DeliveryStatus,
    LookupResult,
    MessageCheck,
    OutcomeUnknown,
    SendAccepted,
    SendResult,
)
from riverrun.alerts.sender import SendAttempt, SendScheduler, execute_attempt


class MemoryOutbox:
    """Keeps what a ledger keeps; every state a message had is in `history`."""

    namespace = "tests"

    def __init__(self, messages: Iterable[AlertMessage] = ()) -> None:
        self._lock = threading.Lock()
        self.messages: dict[str, AlertMessage] = {}
        self.deliveries: dict[str, DeliveryStatus] = {}
        self.history: dict[str, list[str]] = {}
        self.writes = 0
        for message in messages:
            self.add(message)

    def add(self, message: AlertMessage) -> None:
        with self._lock:
            self.messages[message.id] = message
            self.deliveries[message.id] = DeliveryStatus()
            self.history[message.id] = ["due"]

    def due(self, now: int) -> Sequence[tuple[AlertMessage, DeliveryStatus]]:
        with self._lock:
            return [
                (self.messages[name], each)
                for name, each in self.deliveries.items()
                if each.state in {"due", "trying"} and each.retry_at <= now
            ]

    def find_by_provider_id(self, provider_id: str) -> tuple[str, DeliveryStatus] | None:
        with self._lock:
            return next(
                ((name, each) for name, each in self.deliveries.items() if each.provider_id == provider_id), None
            )

    def save_deliveries(self, changes: Mapping[str, DeliveryStatus]) -> None:
        with self._lock:
            self.writes += 1
            for name, each in changes.items():
                self.deliveries[name] = each
                self.history[name].append(each.state)

    def state(self, name: str) -> str:
        return self.deliveries[name].state

    def states(self) -> dict[str, int]:
        """How many messages are in each state."""
        with self._lock:
            found = [delivery.state for delivery in self.deliveries.values()]
        return {each: found.count(each) for each in sorted(set(found))}


class Killed(BaseException):
    """Stands for kill -9: nothing after it is written."""


class MortalOutbox(MemoryOutbox):
    """Dies when answers are to be written for the `lives`th time: the requests are out, and nobody knows. 0: it lives."""

    def __init__(self, messages: Iterable[AlertMessage] = ()) -> None:
        super().__init__(messages)
        self.lives = 0

    def save_deliveries(self, changes: Mapping[str, DeliveryStatus]) -> None:
        if self.lives and any(change.state != "trying" for change in changes.values()):
            self.lives -= 1
            if not self.lives:
                raise Killed
        super().save_deliveries(changes)


class ScriptedChannel:
    """Answers from a list, then accepts. `has` are the ids it took, as `look_up` tells."""

    def __init__(self, *answers: SendResult, name: str = "sms", idempotent: bool = True) -> None:
        self.name = name
        self.destination = "a script"
        self.idempotent = idempotent
        self.idempotency_window_ms = 3_600_000
        self.answers = list(answers)
        self.sent: list[str] = []
        self.asked: list[str] = []
        self.has: set[str] = set()
        self.can_tell = True
        self.check_result = MessageCheck()

    def check(self, message: AlertMessage) -> MessageCheck:  # noqa: ARG002
        return self.check_result

    def send(self, message: AlertMessage, provider_id: str) -> SendResult:  # noqa: ARG002
        self.sent.append(provider_id)
        answer = self.answers.pop(0) if self.answers else SendAccepted(provider_id)
        if isinstance(answer, SendAccepted):
            self.has.add(provider_id)
            return SendAccepted(provider_id, answer.parts)
        return answer

    def look_up(self, provider_id: str) -> LookupResult:
        self.asked.append(provider_id)
        if not self.can_tell:
            return OutcomeUnknown("nobody tells")
        return "taken" if provider_id in self.has else "not taken"

    def close(self) -> None: ...


def step(sending: SendScheduler, channel: ScriptedChannel, now: int) -> list[SendAttempt]:
    """One round of the loop, without threads."""
    tries = sending.begin_attempts(now)
    sending.finish_attempts([(try_, execute_attempt(channel, try_)) for try_ in tries], now)
    return tries


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)
