"""A session with an MQTT broker, kept up by a thread of its own: connect, subscribe, receive, acknowledge, reconnect.

The broker keeps the session by our client id: messages that come while we are disconnected wait there. A message is
acknowledged by its packet id, which is only valid in the connection it came by: after a reconnect the broker may give the
same id to another message, and a late acknowledgement would lose that one. So each connection has a client of its own, only
the thread uses it, and messages of an earlier connection are not acknowledged: they come again, marked as duplicates.

Messages that were not read when the connection was lost are held until the broker says whether it kept the session. If it
did, it sends them again; if it did not (it crashed without saving, or the session expired), no other copy exists, and they
go on into Kafka. They do so as well when the broker is unreachable for long.
"""

import contextlib
import logging
import random
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from riverrun.connectors.mqtt.address import Address
from riverrun.connectors.mqtt.duplicates import DuplicateDetector, message_digest
from riverrun.connectors.mqtt.message_queue import MessageQueue, MqttMessage, Repeat

log = logging.getLogger(__name__)

INITIAL_BACKOFF_SECONDS = 0.2
MAX_BACKOFF_SECONDS = 30.0
_CONNECT_SECONDS = 15.0
_CLOSING_SECONDS = 5.0
_LEAVING_SECONDS = 1.0
_STABLE_SECONDS = 5.0
# How long messages of a lost connection are held for a broker that does not come back.
HOLD_SECONDS = 15.0
# Without messages for so long, and with nothing unacknowledged, the broker has sent everything it had.
_QUIET_SECONDS = 1.0
# How many packets are read before acknowledgements are sent and a stop is checked.
_MAX_PACKETS = 64
_RETAINED = {
    "always": SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE,
    "first": SubscribeOptions.RETAIN_SEND_IF_NEW_SUB,
    "never": SubscribeOptions.RETAIN_DO_NOT_SEND,
}


@dataclass(frozen=True)
class SessionOptions:
    """What a session asks of its broker. `expiry_seconds` is how long the broker keeps it while we are disconnected."""

    client_id: str
    filters: Sequence[str]
    qos: Literal[0, 1]
    retained: Literal["first", "always", "never"]
    expiry_seconds: int
    in_flight: int
    keepalive_seconds: int
    # Filters of an earlier run: the session still has them until we unsubscribe.
    removed_filters: Sequence[str] = ()


@dataclass
class MqttCounts:
    """Counts since the session was created."""

    connections: int = 0
    received: int = 0
    redelivered: int = 0
    duplicates: int = 0
    acknowledged: int = 0
    # Acknowledgements whose connection was lost: these messages come again.
    late_acknowledgements: int = 0


class _ConnectionLostError(Exception):
    """The connection ended, or failed, and why."""


class MqttSession(threading.Thread):
    """Puts messages into the queue as they come. `start` it, `close` it; `problem` says why there is no connection."""

    def __init__(
        self, address: Address, options: SessionOptions, queue: MessageQueue, duplicates: DuplicateDetector
    ) -> None:
        super().__init__(name=f"mqtt-{options.client_id}", daemon=True)
        self.address = address
        self.options = options
        self.counts = MqttCounts()
        self.problem = ""
        self.down_since = time.monotonic()
        self._queue = queue
        self._duplicates = duplicates
        self._connection_number = 0
        self._unacknowledged = 0
        self._last_message = 0.0
        self._subscribed = False
        self._up_since = 0.0
        self._to_acknowledge: deque[tuple[int, int]] = deque()
        self._closing = threading.Event()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, and the broker has accepted the subscriptions."""
        return self._subscribed

    def acknowledge(self, messages: Iterable[MqttMessage]) -> None:
        """These are in Kafka. Called from any thread; the session's own thread tells the broker."""
        for message in messages:
            self._duplicates.add(message.digest)
            if message.qos > 0:
                self._to_acknowledge.append(message.ack_id)
        self._wake()

    def close(self) -> None:
        """Send pending acknowledgements and disconnect. The session stays at the broker, and collects messages."""
        self._closing.set()
        self._wake()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(_CLOSING_SECONDS)
        if not self.is_alive():
            self._wake_receiver.close()
            self._wake_sender.close()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        delay = INITIAL_BACKOFF_SECONDS
        while not self._closing.is_set():
            try:
                self._run_connection()
            except _ConnectionLostError as lost:
                # Do not hurry after a connection that did not last: perhaps another client has our id.
                lasted = self._subscribed and time.monotonic() - self._up_since > _STABLE_SECONDS
                delay = INITIAL_BACKOFF_SECONDS if lasted else min(delay * 2, MAX_BACKOFF_SECONDS)
                self._on_lost(str(lost))
            # Random, so that not all clients reconnect at the same moment when a broker comes back.
            self._closing.wait(delay * random.uniform(0.5, 1.0))  # noqa: S311

    def _on_lost(self, why: str) -> None:
        if self._subscribed:
            self.down_since = time.monotonic()
        if self._subscribed or not self.problem:
            log.warning("There is no connection to the MQTT broker at %s (%s): trying again", self.address, why)
        self.problem = why
        self._subscribed = False
        self._unacknowledged = 0
        self._queue.hold()
        if time.monotonic() - self.down_since > HOLD_SECONDS:
            self._queue.release_held()
        self._queue.wake()

    def _run_connection(self) -> None:
        """Run one connection, from its start to its end."""
        self._connection_number += 1
        client = self._client()
        try:
            client.connect(
                self.address.host,
                self.address.port,
                self.options.keepalive_seconds,
                clean_start=False,
                properties=self._properties(),
            )
        except ssl.SSLError as error:
            raise _ConnectionLostError(
                f"TLS: {getattr(error, 'verify_message', '') or error.reason or error}"
            ) from error
        except (OSError, ValueError) as error:
            raise _ConnectionLostError(getattr(error, "strerror", "") or str(error) or type(error).__name__) from error
        try:
            self._serve(client)
        finally:
            with contextlib.suppress(OSError):
                if (sock := client.socket()) is not None:
                    sock.close()

    def _serve(self, client: Client) -> None:
        deadline = time.monotonic() + _CONNECT_SECONDS
        while not self._closing.is_set():
            if self._queue.is_full:
                # While the socket is not read, the broker's answer cannot arrive.
                deadline = time.monotonic() + _CONNECT_SECONDS
            if not self._subscribed and time.monotonic() > deadline:
                raise _ConnectionLostError(f"no answer within {_CONNECT_SECONDS:.0f} seconds")
            self._poll(client)
        with contextlib.suppress(_ConnectionLostError, OSError, ValueError):
            self._send_acknowledgements(client)
            client.disconnect()
            leave_deadline = time.monotonic() + _LEAVING_SECONDS
            # There is no socket any more if the broker disconnected first.
            while (sock := client.socket()) is not None and client.want_write() and time.monotonic() < leave_deadline:
                select.select([], [sock], [], _LEAVING_SECONDS)
                _check(client.loop_write())
        self._subscribed = False

    def _poll(self, client: Client) -> None:
        """Wait for something to do, and do it."""
        self._send_acknowledgements(client)
        sock: Any = client.socket()
        if sock is None:
            raise _ConnectionLostError("the broker closed the connection")
        # While the queue is full, the socket is not read: the broker notices, and keeps what it has. The receive maximum
        # alone is not enough: mosquitto 2.0.11 sends a whole backlog when some of it was acknowledged before, and that
        # before its SUBACK.
        listening = not self._queue.is_full
        ready = listening and bool(getattr(sock, "pending", int)())
        try:
            readable, writable, _ = select.select(
                [sock, self._wake_receiver] if listening else [self._wake_receiver],
                [sock] if client.want_write() else [],
                [],
                0 if ready else 0.2,
            )
        except (OSError, ValueError) as error:
            raise _ConnectionLostError(str(error)) from error
        if self._wake_receiver in readable:
            with contextlib.suppress(BlockingIOError):
                self._wake_receiver.recv(4096)
        if ready or sock in readable:
            self._read(client)
        if writable:
            _check(client.loop_write())
        _check(client.loop_misc())
        if not self._unacknowledged and time.monotonic() - self._last_message > _QUIET_SECONDS:
            self._duplicates.on_caught_up()

    def _read(self, client: Client) -> None:
        for _ in range(_MAX_PACKETS):
            before = self.counts.received
            _check(client.loop_read())
            if self.counts.received == before or self._queue.is_full:
                return

    def _send_acknowledgements(self, client: Client) -> None:
        """Acknowledge what is in Kafka, in the order in which it came."""
        while self._to_acknowledge:
            connection, mid = self._to_acknowledge.popleft()
            if connection != self._connection_number:
                self.counts.late_acknowledgements += 1
                continue
            _check(client.ack(mid, 1))
            self._unacknowledged -= 1
            self.counts.acknowledged += 1

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_sender.send(b".")

    # --- callbacks of the client library, in this thread --------------------------------------------------------------

    def _client(self) -> Client:
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=self.options.client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        if self.address.username:
            client.username_pw_set(self.address.username, self.address.password.reveal() or None)
        try:
            context = self.address.tls()
        except (OSError, ValueError) as error:
            raise _ConnectionLostError(f"the certificates cannot be used: {error}") from error
        if context is not None:
            client.tls_set_context(context)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        return client

    def _properties(self) -> Any:
        properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = self.options.expiry_seconds
        properties.ReceiveMaximum = self.options.in_flight
        return properties

    def _on_connect(self, client: Client, _data: Any, flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            raise _ConnectionLostError(f"the broker refuses us: {reason.getName()}")
        self.counts.connections += 1
        if flags.session_present:
            self._queue.forget_held()
        else:
            self._queue.release_held()
        if self.counts.connections > 1:
            self._duplicates.on_reconnected()
            if not flags.session_present:
                log.warning(
                    "The MQTT broker at %s has forgotten the session %s: what came while we were away is lost there",
                    self.address,
                    self.options.client_id,
                )
        self._last_message = time.monotonic()
        if self.options.removed_filters:
            code, _ = client.unsubscribe(list(self.options.removed_filters))
            _check(code)
        options = SubscribeOptions(qos=self.options.qos, retainHandling=_RETAINED[self.options.retained])
        code, _ = client.subscribe([(topic_filter, options) for topic_filter in self.options.filters])
        _check(code)

    def _on_subscribe(self, _client: Client, _data: Any, _mid: int, reasons: Sequence[Any], _properties: Any) -> None:
        for topic_filter, reason in zip(self.options.filters, reasons, strict=False):
            if reason.is_failure:
                raise _ConnectionLostError(f"the broker refuses the subscription to {topic_filter}: {reason.getName()}")
            if reason.value < self.options.qos:
                log.warning("The MQTT broker at %s grants %s only QoS %d", self.address, topic_filter, reason.value)
        self._subscribed = True
        self._up_since = time.monotonic()
        self.problem = ""

    def _on_disconnect(self, _client: Client, _data: Any, flags: Any, reason: Any, _properties: Any) -> None:
        if flags.is_disconnect_packet_from_server:
            raise _ConnectionLostError(f"the broker ended it: {reason.getName()}")

    def _on_message(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        payload = bytes(message.payload)
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = bytes(message._topic).decode(errors="replace")  # noqa: SLF001  -- a broker must not forward such a topic
        digest = message_digest(topic, payload)
        repeat: Repeat = "no"
        if message.dup:
            repeat = "redelivered"
            self.counts.redelivered += 1
        elif message.qos > 0 and self._duplicates.is_duplicate(digest):
            repeat = "seen"
            self.counts.duplicates += 1
        self.counts.received += 1
        self._last_message = time.monotonic()
        if message.qos > 0:
            self._unacknowledged += 1
        now = time.time_ns() // 1_000_000
        self._queue.put(
            MqttMessage(
                topic,
                payload,
                message.qos,
                bool(message.retain),
                repeat,
                self._connection_number,
                message.mid,
                now,
                digest,
            )
        )


def _check(code: MQTTErrorCode) -> None:
    if code != MQTTErrorCode.MQTT_ERR_SUCCESS:
        reason = {
            MQTTErrorCode.MQTT_ERR_CONN_LOST: "the connection was lost",
            MQTTErrorCode.MQTT_ERR_KEEPALIVE: "it is silent",
        }
        raise _ConnectionLostError(reason.get(code, code.name.removeprefix("MQTT_ERR_").lower().replace("_", " ")))
