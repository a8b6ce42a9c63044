"""The source: a session with the broker, read in bites, acknowledged when Kafka has them."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from riverrun.connectors.contract import Around
from riverrun.connectors.mqtt.address import Address, address_of
from riverrun.connectors.mqtt.inbox import Inbox, Message
from riverrun.connectors.mqtt.item import maker
from riverrun.connectors.mqtt.seen import Seen
from riverrun.connectors.mqtt.session import Session, Wanted
from riverrun.errors import ConnectorFailedError, DeclarationError
from riverrun.model.connector import Fed, Item, Items, Position, Reader, Source
from riverrun.model.connectors.mqtt import mqtt
from riverrun.model.quantity import milliseconds

# How long a broker may be away before people are told that the connector does not work.
PATIENCE_SECONDS = 15.0
_BITE = 2000
_BITE_BYTES = 4 << 20
# The mark that says which filters the session at the broker may have.
FILTERS = "filters"
# MQTT's word for a session that never ends.
_NEVER = 0xFFFFFFFF


def make(declared: mqtt, around: Around) -> "MqttSource":
    """What runs a declared source."""
    feds = [each for each in around.app.sources.values() if each.source is declared]
    if len(feds) != 1:
        raise DeclarationError(
            "One riverrun.mqtt(…) is the source of several topics", hint="Write a riverrun.mqtt(…) for each of them"
        )
    fed = feds[0]
    address = address_of(declared, around.settings.mqtt, around.root, around.secret, fed.name)
    return MqttSource(address, wanted_of(declared, fed, around.app.name), maker(declared, around.app.topics[fed.topic]))


class MqttSource(Source):
    """One session, one part. What was in Kafka before is remembered for as long as the process lives."""

    remembers = False
    lag_unit = "messages"

    def __init__(self, address: Address, wanted: Wanted, to_item: Callable[[Message], Item]) -> None:
        self._address = address
        self._wanted = wanted
        self._to_item = to_item
        self._seen = Seen()

    def open_with(self, part: str, position: Position, marks: Mapping[str, Any]) -> "MqttReader":  # noqa: ARG002
        before = marks.get(FILTERS) or []
        wanted = replace(self._wanted, dropped=tuple(each for each in before if each not in self._wanted.filters))
        # While it is full, the connection is not read and its end not noticed, so the receive maximum comes first.
        inbox = Inbox(2 * self._wanted.in_flight)
        return MqttReader(Session(self._address, wanted, inbox, self._seen), inbox, self._to_item, before)


class MqttReader(Reader):
    """Positions count the messages that this reader gave out.

    The broker keeps our subscriptions with the session, so one that is gone from the pipeline file must be ended there. What
    was ever subscribed to is kept as a mark, which is written before the first connection is made.
    """

    def __init__(
        self, session: Session, inbox: Inbox, to_item: Callable[[Message], Item], before: Sequence[str] = ()
    ) -> None:
        self.session = session
        self._inbox = inbox
        self._to_item = to_item
        self._given = 0
        # Given out, and not in Kafka yet, by the position after them.
        self._waiting: deque[tuple[int, list[Message]]] = deque()
        self._known = sorted(before)
        self._begun = False
        self._marking = False

    def read(self) -> Items | None:
        marked = self._mark()
        if marked is not None:
            return marked
        messages = self._inbox.take(_BITE, _BITE_BYTES)
        if not messages:
            if not self._marking:
                self._begin()
            self._check()
            return None
        self._given += len(messages)
        self._waiting.append((self._given, messages))
        return Items([self._to_item(each) for each in messages], self._given)

    def _mark(self) -> Items | None:
        """What the broker may know of our subscriptions, when that is not what is written down."""
        now = sorted(self.session.wanted.filters)
        true = now if self.session.up else sorted({*now, *self._known})
        if true != self._known:
            self._known, self._marking = true, True
            return Items([], self._given, marks={FILTERS: true})
        return None

    def wait(self, seconds: float) -> None:
        self._inbox.wait(seconds)

    def acknowledged(self, position: Position) -> None:
        self._marking = False
        self._begin()
        while self._waiting and self._waiting[0][0] <= position:
            self.session.acknowledge(self._waiting.popleft()[1])

    def _begin(self) -> None:
        """Connect, as soon as the mark is written."""
        if not self._begun:
            self._begun = True
            self.session.start()

    def lag(self) -> int | None:
        return len(self._inbox)

    def close(self) -> None:
        self.session.close()

    def _check(self) -> None:
        session = self.session
        if session.problem and time.monotonic() - session.down_since > PATIENCE_SECONDS:
            # The next reader begins with an empty inbox, and the broker may have lost all that it sent: what there is goes
            # into Kafka first.
            self._inbox.release_held()
            if len(self._inbox) or self._waiting:
                return
            raise ConnectorFailedError(
                f"There is no connection to the MQTT broker at {session.address}",
                found=session.problem,
                hint="The broker keeps the messages of our session; it is tried again",
                address=str(session.address),
            )


def wanted_of(declared: mqtt, fed: Fed, app: str) -> Wanted:
    """What to ask of the broker."""
    keep = milliseconds(declared.session, what="session of riverrun.mqtt")
    return Wanted(
        client_id=declared.client_id or f"riverrun-{app}-{fed.name}",
        filters=declared.topics,
        qos=declared.qos,
        retained=declared.retained,
        expiry_seconds=_NEVER if keep < 0 else min(_NEVER - 1, max(1, keep // 1000)),
        in_flight=declared.in_flight,
        keepalive_seconds=declared.keepalive_seconds,
    )
