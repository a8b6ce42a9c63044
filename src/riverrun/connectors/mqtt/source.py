"""The MQTT source: a session with the broker, read in batches, acknowledged when they are in Kafka."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from riverrun.connectors.contract import ConnectorContext
from riverrun.connectors.mqtt.address import Address, broker_address
from riverrun.connectors.mqtt.duplicates import DuplicateDetector
from riverrun.connectors.mqtt.item import item_factory
from riverrun.connectors.mqtt.message_queue import MessageQueue, MqttMessage
from riverrun.connectors.mqtt.session import MqttSession, SessionOptions
from riverrun.errors import ConnectorFailedError, DeclarationError
from riverrun.model.connector import Item, Items, Position, Reader, Source, SourceBinding
from riverrun.model.connectors.mqtt import mqtt
from riverrun.model.units import parse_duration_ms

# How long a broker may be disconnected before the connector reports a failure.
MAX_DISCONNECTED_SECONDS = 15.0
_MAX_READ_MESSAGES = 2000
_MAX_READ_BYTES = 4 << 20
# The mark with the filters that the session at the broker may have.
FILTERS_MARK = "filters"
# MQTT's value for a session that never expires.
_NO_EXPIRY = 0xFFFFFFFF


def create_source(declared: mqtt, context: ConnectorContext) -> "MqttSource":
    """Create the source for a declaration."""
    bindings = [source for source in context.app.sources.values() if source.source is declared]
    if len(bindings) != 1:
        raise DeclarationError(
            "One riverrun.mqtt(…) is the source of several topics", hint="Write a riverrun.mqtt(…) for each of them"
        )
    binding = bindings[0]
    address = broker_address(declared, context.settings.mqtt, context.project_root, context.secret, binding.name)
    return MqttSource(
        address,
        session_options(declared, binding, context.app.name),
        item_factory(declared, context.app.topics[binding.topic]),
    )


class MqttSource(Source):
    """One session, one part. Which messages are already in Kafka is remembered for as long as the process lives."""

    resumable = False
    lag_unit = "messages"

    def __init__(self, address: Address, options: SessionOptions, to_item: Callable[[MqttMessage], Item]) -> None:
        self._address = address
        self._options = options
        self._to_item = to_item
        self._duplicates = DuplicateDetector()

    def open_with_marks(self, part: str, position: Position, marks: Mapping[str, Any]) -> "MqttReader":  # noqa: ARG002
        previous_filters = marks.get(FILTERS_MARK) or []
        options = replace(
            self._options,
            removed_filters=tuple(
                topic_filter for topic_filter in previous_filters if topic_filter not in self._options.filters
            ),
        )
        # While it is full, the connection is not read and a disconnect not noticed, so the receive maximum comes first.
        queue = MessageQueue(2 * self._options.in_flight)
        return MqttReader(
            MqttSession(self._address, options, queue, self._duplicates), queue, self._to_item, previous_filters
        )


class MqttReader(Reader):
    """Positions count the messages that this reader returned.

    The broker stores our subscriptions with the session, so one removed from the pipeline file must be unsubscribed there.
    Everything ever subscribed to is stored as a mark, which is written before the first connection is made.
    """

    def __init__(
        self,
        session: MqttSession,
        queue: MessageQueue,
        to_item: Callable[[MqttMessage], Item],
        previous_filters: Sequence[str] = (),
    ) -> None:
        self.session = session
        self._queue = queue
        self._to_item = to_item
        self._read_count = 0
        # Returned, and not in Kafka yet, by the position after them.
        self._unacknowledged: deque[tuple[int, list[MqttMessage]]] = deque()
        self._marked_filters = sorted(previous_filters)
        self._started = False
        self._mark_pending = False

    def read(self) -> Items | None:
        marked = self._filters_mark()
        if marked is not None:
            return marked
        messages = self._queue.take(_MAX_READ_MESSAGES, _MAX_READ_BYTES)
        if not messages:
            if not self._mark_pending:
                self._start_session()
            self._check_connection()
            return None
        self._read_count += len(messages)
        self._unacknowledged.append((self._read_count, messages))
        return Items([self._to_item(message) for message in messages], self._read_count)

    def _filters_mark(self) -> Items | None:
        """The subscriptions that the broker may have, when they differ from the written mark."""
        declared = sorted(self.session.options.filters)
        subscribed = declared if self.session.is_connected else sorted({*declared, *self._marked_filters})
        if subscribed != self._marked_filters:
            self._marked_filters, self._mark_pending = subscribed, True
            return Items([], self._read_count, marks={FILTERS_MARK: subscribed})
        return None

    def wait(self, seconds: float) -> None:
        self._queue.wait(seconds)

    def acknowledged(self, position: Position) -> None:
        self._mark_pending = False
        self._start_session()
        while self._unacknowledged and self._unacknowledged[0][0] <= position:
            self.session.acknowledge(self._unacknowledged.popleft()[1])

    def _start_session(self) -> None:
        """Connect, as soon as the mark is written."""
        if not self._started:
            self._started = True
            self.session.start()

    def lag(self) -> int | None:
        return len(self._queue)

    def close(self) -> None:
        self.session.close()

    def _check_connection(self) -> None:
        session = self.session
        if session.problem and time.monotonic() - session.down_since > MAX_DISCONNECTED_SECONDS:
            # The next reader starts with an empty queue, and the broker may have lost all that it sent: what is queued goes
            # into Kafka first.
            self._queue.release_held()
            if len(self._queue) or self._unacknowledged:
                return
            raise ConnectorFailedError(
                f"There is no connection to the MQTT broker at {session.address}",
                found=session.problem,
                hint="The broker keeps the messages of our session; it is tried again",
                address=str(session.address),
            )


def session_options(declared: mqtt, binding: SourceBinding, app: str) -> SessionOptions:
    """What to ask of the broker."""
    expiry_ms = parse_duration_ms(declared.session, what="session of riverrun.mqtt")
    return SessionOptions(
        client_id=declared.client_id or f"riverrun-{app}-{binding.name}",
        filters=declared.topic_filters,
        qos=declared.qos,
        retained=declared.retained,
        expiry_seconds=_NO_EXPIRY if expiry_ms < 0 else min(_NO_EXPIRY - 1, max(1, expiry_ms // 1000)),
        in_flight=declared.in_flight,
        keepalive_seconds=declared.keepalive_seconds,
    )
