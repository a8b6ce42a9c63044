"""Parts for tests of alerts: an outbox in memory that can be killed, and a channel that says what it is told to."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from riverrun.alerts.channels.contract import Accepted, Answer, Delivery, Message, Taken, Unsure, Weight
from riverrun.alerts.sender import Sending, Try, attempt


class MemoryOutbox:
    """Keeps what a ledger keeps; every state a message had is in `history`."""

    namespace = "tests"

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._lock = threading.Lock()
        self.messages: dict[str, Message] = {}
        self.deliveries: dict[str, Delivery] = {}
        self.history: dict[str, list[str]] = {}
        self.writes = 0
        for each in messages:
            self.add(each)

    def add(self, message: Message) -> None:
        with self._lock:
            self.messages[message.id] = message
            self.deliveries[message.id] = Delivery()
            self.history[message.id] = ["due"]

    def due(self, now: int) -> Sequence[tuple[Message, Delivery]]:
        with self._lock:
            return [
                (self.messages[name], each)
                for name, each in self.deliveries.items()
                if each.state in {"due", "trying"} and each.again <= now
            ]

    def find(self, provider_id: str) -> tuple[str, Delivery] | None:
        with self._lock:
            return next(
                ((name, each) for name, each in self.deliveries.items() if each.provider_id == provider_id), None
            )

    def moved(self, changes: Mapping[str, Delivery]) -> None:
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
            found = [each.state for each in self.deliveries.values()]
        return {each: found.count(each) for each in sorted(set(found))}


class Killed(BaseException):
    """Stands for kill -9: nothing after it is written."""


class MortalOutbox(MemoryOutbox):
    """Dies when answers are to be written for the `lives`th time: the requests are out, and nobody knows. 0: it lives."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        super().__init__(messages)
        self.lives = 0

    def moved(self, changes: Mapping[str, Delivery]) -> None:
        if self.lives and any(each.state != "trying" for each in changes.values()):
            self.lives -= 1
            if not self.lives:
                raise Killed
        super().moved(changes)


class ScriptedChannel:
    """Answers from a list, then accepts. `has` are the ids it took, as `look_up` tells."""

    def __init__(self, *answers: Answer, name: str = "sms", once: bool = True) -> None:
        self.name = name
        self.where = "a script"
        self.once = once
        self.remembers = 3_600_000
        self.answers = list(answers)
        self.sent: list[str] = []
        self.asked: list[str] = []
        self.has: set[str] = set()
        self.can_tell = True
        self.weight = Weight()

    def weigh(self, message: Message) -> Weight:  # noqa: ARG002
        return self.weight

    def send(self, message: Message, provider_id: str) -> Answer:  # noqa: ARG002
        self.sent.append(provider_id)
        answer = self.answers.pop(0) if self.answers else Accepted(provider_id)
        if isinstance(answer, Accepted):
            self.has.add(provider_id)
            return Accepted(provider_id, answer.parts)
        return answer

    def look_up(self, provider_id: str) -> Taken:
        self.asked.append(provider_id)
        if not self.can_tell:
            return Unsure("nobody tells")
        return "taken" if provider_id in self.has else "not taken"

    def close(self) -> None: ...


def step(sending: Sending, channel: ScriptedChannel, now: int) -> list[Try]:
    """One round of the loop, without threads."""
    tries = sending.begin(now)
    sending.finish([(each, attempt(channel, each)) for each in tries], now)
    return tries


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)
