"""Messages between the connection's thread and the one that sends them to Kafka: a bounded queue."""

import threading
from collections import deque
from dataclasses import dataclass
from typing import Literal

MAX_BYTES = 32 << 20

# no: sent for the first time. redelivered: the broker says that it sent it before (DUP). seen: it does not say so, and the
# same message was in Kafka before the connection was lost.
Repeat = Literal["no", "redelivered", "seen"]


@dataclass(frozen=True, slots=True)
class MqttMessage:
    """A message as it came. `connection` and `mid` identify it for the acknowledgement, valid in that connection only."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    repeat: Repeat
    connection: int
    mid: int
    received_ms: int
    digest: int

    @property
    def ack_id(self) -> tuple[int, int]:
        return self.connection, self.mid


class MessageQueue:
    """Safe to share. It takes all that it is given: it has an end because the connection is not read while `is_full`."""

    def __init__(self, max_messages: int, max_bytes: int = MAX_BYTES) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._messages: deque[MqttMessage] = deque()
        # Messages of a lost connection, until it is known whether the broker sends them again.
        self._held: list[MqttMessage] = []
        # Bytes of the messages that can be taken.
        self._bytes = 0
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._messages) + len(self._held)

    @property
    def is_full(self) -> bool:
        """By the messages that can be taken. Held ones do not count: the broker's answer, which has to be read, decides
        about them, and nothing else comes before it."""
        return len(self._messages) >= self._max_messages or self._bytes >= self._max_bytes

    def put(self, message: MqttMessage) -> None:
        with self._changed:
            self._messages.append(message)
            self._bytes += len(message.payload)
            if len(self._messages) == 1:
                self._changed.notify_all()

    def take(self, max_messages: int, max_bytes: int) -> list[MqttMessage]:
        """The oldest messages; none when there are none, and at least one however large it is."""
        taken: list[MqttMessage] = []
        size = 0
        with self._changed:
            while self._messages and len(taken) < max_messages and size < max_bytes:
                taken.append(self._messages.popleft())
                size += len(taken[-1].payload)
            self._bytes -= size
        return taken

    def wait(self, seconds: float) -> None:
        """Wait for a message, at most so long."""
        with self._changed:
            if not self._messages:
                self._changed.wait(seconds)

    def wake(self) -> None:
        """Wake the waiting threads."""
        with self._changed:
            self._changed.notify_all()

    def hold(self) -> None:
        """The connection is lost. Hold what was not taken: a broker that kept the session sends it again. QoS 0 stays: it is
        never sent again."""
        with self._changed:
            self._held += [message for message in self._messages if message.qos > 0]
            self._messages = deque(message for message in self._messages if message.qos == 0)
            self._bytes = sum(len(message.payload) for message in self._messages)

    def forget_held(self) -> int:
        """The broker kept the session, and sends the held messages again."""
        with self._changed:
            count = len(self._held)
            self._held = []
            return count

    def release_held(self) -> int:
        """The broker lost the session, or may never come back: no one else has the held messages, so they can be taken."""
        with self._changed:
            count = len(self._held)
            self._messages.extendleft(reversed(self._held))
            self._bytes += sum(len(message.payload) for message in self._held)
            self._held = []
            self._changed.notify_all()
            return count
