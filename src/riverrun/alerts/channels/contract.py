"""What a channel is: something that takes a message, and says as exactly as it can what became of it.

The difference between «not taken» and «nobody knows» is what keeps a message from being lost or sent twice, so an answer
is one of four:

    Accepted   it has it; the receiver's phone is its business from here
    Refused    it does not take it, now or ever (a wrong number), or only not like this (no credit: `permanent` is false)
    NotNow     it certainly does not have it, and may take it later: too fast, not reachable, not logged in
    Unsure     it may have it: the answer did not come, or was an error of its own
"""

import hashlib
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

# Where a message stands on its way. `trying` is written before a request is made: whoever finds it after a crash knows
# that the message may be out.
DeliveryState = Literal["due", "trying", "sent", "delivered", "undelivered", "refused", "expired"]
FINAL_STATES: frozenset[DeliveryState] = frozenset({"delivered", "undelivered", "refused", "expired"})


class AlertMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One text for one receiver. `id` is the same however often the message is made from the same episode."""

    id: str
    channel: str
    receiver: str
    text: str
    title: str = ""
    severity: str = "warning"
    # Unix milliseconds after which it makes no sense any more; 0: never.
    expires: int = 0
    # The template registered for this text, where a country asks for one; empty: the channel's.
    template: str = ""


class DeliveryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message stands. Times are Unix milliseconds.

    `used_ids` counts the ids that the provider has refused for good: the next try needs one it does not know.
    """

    state: DeliveryState = "due"
    tries: int = 0
    used_ids: int = 0
    # Not before.
    retry_at: int = 0
    updated_at: int = 0
    # When the last request was made that may have been taken.
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
    """`permanent`: nothing that can be waited for changes it. `id_used`: the id is known there now."""

    reason: str
    permanent: bool = True
    id_used: bool = False


@dataclass(frozen=True)
class SendDeferred:
    """`retry_after` in seconds, where it says. `down`: the channel itself is the trouble, not our pace."""

    reason: str
    retry_after: float | None = None
    down: bool = True


@dataclass(frozen=True)
class OutcomeUnknown:
    reason: str


SendResult = SendAccepted | SendRefused | SendDeferred | OutcomeUnknown
# What `look_up` knows of a message.
LookupResult = Literal["taken", "not taken"] | OutcomeUnknown


@dataclass(frozen=True)
class DeliveryReport:
    """What the provider said later of a message it took."""

    provider_id: str
    state: Literal["sent", "delivered", "undelivered"]
    reason: str = ""


@dataclass(frozen=True)
class MessageCheck:
    """What a message costs, or why it cannot be sent at all."""

    parts: int = 1
    problem: str = ""


class Channel(Protocol):
    """`idempotent`: a second request with the same id is not a second message, for as long as the provider remembers the
    first: `idempotency_window_ms`. `destination` says, for people, what it sends to."""

    name: str
    destination: str
    idempotent: bool
    idempotency_window_ms: int

    def check(self, message: AlertMessage) -> MessageCheck:
        """Check a message without sending it."""

    def send(self, message: AlertMessage, provider_id: str) -> SendResult:
        """Hand it over, under this id. Raises nothing for what the network or the provider does."""

    def look_up(self, provider_id: str) -> LookupResult:
        """Whether the provider took this id, or why that cannot be said now."""

    def close(self) -> None: ...


def make_provider_id(namespace: str, message: AlertMessage, delivery: DeliveryStatus) -> str:
    """The id for the next try: always the same for a message, until the provider has used it up by a refusal.

    A message's own id holds a row's key, which may be anything, and begins anew when a project is reset: the provider would
    take the first message of the new life for one it already has. So the id is a digest, and `namespace` is made at random
    with the ledger, and ends with it.
    """
    whole = "\0".join([namespace, message.id, str(delivery.used_ids)])
    return hashlib.sha256(whole.encode(errors="surrogatepass")).hexdigest()[:32]


def text_problem(text: str) -> str:
    """Why no channel can send this text; empty when one may."""
    if not text.strip():
        return "the text is empty"
    # Half of a UTF-16 pair is no character, and cannot be written as UTF-8.
    return "the text has half a character" if any(0xD800 <= ord(character) <= 0xDFFF for character in text) else ""
