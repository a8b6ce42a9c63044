"""The contract of a channel: it sends a message, and says as exactly as it can what became of it.

The difference between "not accepted" and "unknown" keeps a message from being lost or sent twice, so an answer is one of
four:

    SendAccepted    the provider has it, and delivers it from here on
    SendRefused     it never accepts it (a wrong number), or not at present (no credit: `permanent` is false)
    SendDeferred    it certainly does not have it, and may accept it later: too fast, not reachable, not logged in
    OutcomeUnknown  it may have it: the answer did not come, or was a server error
"""

import hashlib
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

# The states of a delivery. `trying` is written before a request is made: after a crash it says that the message may have
# been sent.
DeliveryState = Literal["due", "trying", "sent", "delivered", "undelivered", "refused", "expired"]
FINAL_STATES: frozenset[DeliveryState] = frozenset({"delivered", "undelivered", "refused", "expired"})


class AlertMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One text for one receiver. `id` is the same however often the message is made from the same incident."""

    id: str
    channel: str
    receiver: str
    text: str
    title: str = ""
    severity: str = "warning"
    # Unix milliseconds after which it is not sent any more; 0: never.
    expires: int = 0
    # The template registered for this text, where a country requires one; empty: the channel's.
    template: str = ""


class DeliveryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The delivery status of a message. Times are Unix milliseconds.

    `used_ids` counts the ids that a refusal used up at the provider: the next attempt needs a new one.
    """

    state: DeliveryState = "due"
    tries: int = 0
    used_ids: int = 0
    # Not tried before this time.
    retry_at: int = 0
    updated_at: int = 0
    # When the last request was made that may have been accepted.
    requested_at: int = 0
    parts: int = 0
    provider_id: str = ""
    reason: str = ""

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES


@dataclass(frozen=True)
class SendAccepted:
    provider_id: str
    parts: int = 1


@dataclass(frozen=True)
class SendRefused:
    """The provider refused it. `permanent`: waiting does not help. `id_used`: the provider knows the id now."""

    reason: str
    permanent: bool = True
    id_used: bool = False


@dataclass(frozen=True)
class SendDeferred:
    """It may be accepted later. `retry_after` in seconds, if given. `down`: the channel itself fails, it is not our rate."""

    reason: str
    retry_after: float | None = None
    down: bool = True


@dataclass(frozen=True)
class OutcomeUnknown:
    reason: str


SendResult = SendAccepted | SendRefused | SendDeferred | OutcomeUnknown
# What `look_up` returns for a message.
LookupResult = Literal["taken", "not taken"] | OutcomeUnknown


@dataclass(frozen=True)
class DeliveryReport:
    """The provider's later report about a message it accepted."""

    provider_id: str
    state: Literal["sent", "delivered", "undelivered"]
    reason: str = ""


@dataclass(frozen=True)
class MessageCheck:
    """What a message costs, or why it cannot be sent at all."""

    parts: int = 1
    problem: str = ""


class Channel(Protocol):
    """A way to send messages. `idempotent`: a second request with the same id is not a second message, as long as the
    provider remembers the first: `idempotency_window_ms`. `destination` says, for people, what it sends to."""

    name: str
    destination: str
    idempotent: bool
    idempotency_window_ms: int

    def check(self, message: AlertMessage) -> MessageCheck:
        """Check a message without sending it."""

    def send(self, message: AlertMessage, provider_id: str) -> SendResult:
        """Send it under this id. Failures of the network or the provider are results, not exceptions."""

    def look_up(self, provider_id: str) -> LookupResult:
        """Whether the provider accepted this id, or why that is unknown now."""

    def close(self) -> None: ...


def make_provider_id(namespace: str, message: AlertMessage, delivery: DeliveryStatus) -> str:
    """The id for the next attempt: always the same for a message, until a refusal used it up at the provider.

    A message's own id contains a row's key, which may be anything, and repeats after a project is reset: the provider would
    take the first new message for one it already has. So the id is a hash, and `namespace` is random and lives as long as
    the state topic.
    """
    whole = "\0".join([namespace, message.id, str(delivery.used_ids)])
    return hashlib.sha256(whole.encode(errors="surrogatepass")).hexdigest()[:32]


def text_problem(text: str) -> str:
    """Why no channel can send this text; empty when one can."""
    if not text.strip():
        return "the text is empty"
    # Half of a UTF-16 surrogate pair is no character, and cannot be encoded as UTF-8.
    return "the text has half a character" if any(0xD800 <= ord(character) <= 0xDFFF for character in text) else ""
