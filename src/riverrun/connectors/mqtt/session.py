"""A session with an MQTT broker, kept up by a thread of its own: connect, subscribe, receive, acknowledge, connect again.

The broker keeps the session by our client id: what comes while we are away waits there. A message is acknowledged by its
packet id, which means something in the connection it came by and nowhere else: after a reconnect the broker may give the
same id to another message, and an acknowledgement that comes late would lose that one. So each connection has a client of
its own, only the thread talks to it, and what belongs to an earlier connection is not acknowledged: it comes again, marked.

Messages that nobody took when the connection was lost are held until the broker says whether it kept the session. If it did,
it sends them again; if it did not (it crashed without saving, or the session expired), they are all there is, and go on into
Kafka. They do so as well when the broker is away for long.
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
from riverrun.connectors.mqtt.inbox import Inbox, Message, Repeat
from riverrun.connectors.mqtt.seen import Seen, digest_of

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 30.0
_ANSWER_SECONDS = 15.0
_CLOSING_SECONDS = 5.0
_LEAVING_SECONDS = 1.0
_LASTING_SECONDS = 5.0
# How long messages of a lost connection are held for a broker that does not come back.
HOLD_SECONDS = 15.0
# Without news for so long, and with nothing unacknowledged, the broker has sent all that it had.
_QUIET_SECONDS = 1.0
# As many packets are read before acknowledgements and the end are looked after.
_PACKETS = 64
_RETAINED = {
    "always": SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE,
    "first": SubscribeOptions.RETAIN_SEND_IF_NEW_SUB,
    "never": SubscribeOptions.RETAIN_DO_NOT_SEND,
}


@dataclass(frozen=True)
class Wanted:
    """What a session asks of its broker. `expiry_seconds` is how long the broker keeps it while nobody is there."""

    client_id: str
    filters: Sequence[str]
    qos: Literal[0, 1]
    retained: Literal["first", "always", "never"]
    expiry_seconds: int
    in_flight: int
    keepalive_seconds: int
    # Filters of an earlier life: the session still has them until we say otherwise.
    dropped: Sequence[str] = ()


@dataclass
class Counts:
    """What happened since the session was made."""

    connections: int = 0
    received: int = 0
    redelivered: int = 0
    seen: int = 0
    acknowledged: int = 0
    # Acknowledgements whose connection was gone: these messages come again.
    too_late: int = 0


class _LostError(Exception):
    """The connection ended, or did not come about, and why."""


class Session(threading.Thread):
    """Messages go to the inbox as they come. `start` it, `close` it; `problem` says why there is no connection."""

    def __init__(self, address: Address, wanted: Wanted, inbox: Inbox, seen: Seen) -> None:
        super().__init__(name=f"mqtt-{wanted.client_id}", daemon=True)
        self.address = address
        self.wanted = wanted
        self.counts = Counts()
        self.problem = ""
        self.down_since = time.monotonic()
        self._inbox = inbox
        self._seen = seen
        self._number = 0
        self._unacknowledged = 0
        self._last_message = 0.0
        self._subscribed = False
        self._up_since = 0.0
        self._done: deque[tuple[int, int]] = deque()
        self._over = threading.Event()
        self._ears, self._mouth = socket.socketpair()
        self._ears.setblocking(False)
        self._mouth.setblocking(False)

    @property
    def up(self) -> bool:
        """Whether there is a connection, and the broker has taken the subscriptions."""
        return self._subscribed

    def acknowledge(self, messages: Iterable[Message]) -> None:
        """These are in Kafka. Called from any thread; the connection's own tells the broker."""
        for each in messages:
            self._seen.add(each.digest)
            if each.qos > 0:
                self._done.append(each.place)
        self._wake()

    def close(self) -> None:
        """Tell the broker what is acknowledged, and leave. The session stays there, and keeps what comes."""
        self._over.set()
        self._wake()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(_CLOSING_SECONDS)
        if not self.is_alive():
            self._ears.close()
            self._mouth.close()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._over.is_set():
            try:
                self._connection()
            except _LostError as lost:
                # A connection that did not last is no reason to hurry: perhaps another client has our id.
                lasted = self._subscribed and time.monotonic() - self._up_since > _LASTING_SECONDS
                pause = FIRST_PAUSE_SECONDS if lasted else min(pause * 2, LONGEST_PAUSE_SECONDS)
                self._lost(str(lost))
            # Not all bridges at the same moment, when a broker comes back.
            self._over.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311

    def _lost(self, why: str) -> None:
        if self._subscribed:
            self.down_since = time.monotonic()
        if self._subscribed or not self.problem:
            log.warning("There is no connection to the MQTT broker at %s (%s): trying again", self.address, why)
        self.problem = why
        self._subscribed = False
        self._unacknowledged = 0
        self._inbox.hold()
        if time.monotonic() - self.down_since > HOLD_SECONDS:
            self._inbox.release_held()
        self._inbox.wake()

    def _connection(self) -> None:
        """One connection, from its beginning to its end."""
        self._number += 1
        client = self._client()
        try:
            client.connect(
                self.address.host,
                self.address.port,
                self.wanted.keepalive_seconds,
                clean_start=False,
                properties=self._properties(),
            )
        except ssl.SSLError as error:
            raise _LostError(f"TLS: {getattr(error, 'verify_message', '') or error.reason or error}") from error
        except (OSError, ValueError) as error:
            raise _LostError(getattr(error, "strerror", "") or str(error) or type(error).__name__) from error
        try:
            self._serve(client)
        finally:
            with contextlib.suppress(OSError):
                if (wire := client.socket()) is not None:
                    wire.close()

    def _serve(self, client: Client) -> None:
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not self._over.is_set():
            if self._inbox.full:
                # What is not read cannot be heard.
                deadline = time.monotonic() + _ANSWER_SECONDS
            if not self._subscribed and time.monotonic() > deadline:
                raise _LostError(f"no answer within {_ANSWER_SECONDS:.0f} seconds")
            self._turn(client)
        with contextlib.suppress(_LostError, OSError, ValueError):
            self._tell(client)
            client.disconnect()
            until = time.monotonic() + _LEAVING_SECONDS
            # There is no socket any more when the broker left first.
            while (wire := client.socket()) is not None and client.want_write() and time.monotonic() < until:
                select.select([], [wire], [], _LEAVING_SECONDS)
                _check(client.loop_write())
        self._subscribed = False

    def _turn(self, client: Client) -> None:
        """Wait for something to do, and do it."""
        self._tell(client)
        wire: Any = client.socket()
        if wire is None:
            raise _LostError("the broker closed the connection")
        # A full inbox is not read into: the broker notices, and keeps what it has. The receive maximum alone is not enough:
        # mosquitto 2.0.11 sends a whole backlog when some of it was acknowledged before, and that before its SUBACK.
        listening = not self._inbox.full
        ready = listening and bool(getattr(wire, "pending", int)())
        try:
            readable, writable, _ = select.select(
                [wire, self._ears] if listening else [self._ears],
                [wire] if client.want_write() else [],
                [],
                0 if ready else 0.2,
            )
        except (OSError, ValueError) as error:
            raise _LostError(str(error)) from error
        if self._ears in readable:
            with contextlib.suppress(BlockingIOError):
                self._ears.recv(4096)
        if ready or wire in readable:
            self._read(client)
        if writable:
            _check(client.loop_write())
        _check(client.loop_misc())
        if not self._unacknowledged and time.monotonic() - self._last_message > _QUIET_SECONDS:
            self._seen.caught_up()

    def _read(self, client: Client) -> None:
        for _ in range(_PACKETS):
            before = self.counts.received
            _check(client.loop_read())
            if self.counts.received == before or self._inbox.full:
                return

    def _tell(self, client: Client) -> None:
        """Acknowledge what is in Kafka, in the order in which it came."""
        while self._done:
            connection, mid = self._done.popleft()
            if connection != self._number:
                self.counts.too_late += 1
                continue
            _check(client.ack(mid, 1))
            self._unacknowledged -= 1
            self.counts.acknowledged += 1

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._mouth.send(b".")

    # --- what the client library calls, in this thread ----------------------------------------------------------------

    def _client(self) -> Client:
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=self.wanted.client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        if self.address.username:
            client.username_pw_set(self.address.username, self.address.password.reveal() or None)
        try:
            context = self.address.tls()
        except (OSError, ValueError) as error:
            raise _LostError(f"the certificates cannot be used: {error}") from error
        if context is not None:
            client.tls_set_context(context)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        return client

    def _properties(self) -> Any:
        found: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        found.SessionExpiryInterval = self.wanted.expiry_seconds
        found.ReceiveMaximum = self.wanted.in_flight
        return found

    def _on_connect(self, client: Client, _data: Any, flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            raise _LostError(f"the broker refuses us: {reason.getName()}")
        self.counts.connections += 1
        if flags.session_present:
            self._inbox.forget_held()
        else:
            self._inbox.release_held()
        if self.counts.connections > 1:
            self._seen.reconnected()
            if not flags.session_present:
                log.warning(
                    "The MQTT broker at %s has forgotten the session %s: what came while we were away is lost there",
                    self.address,
                    self.wanted.client_id,
                )
        self._last_message = time.monotonic()
        if self.wanted.dropped:
            code, _ = client.unsubscribe(list(self.wanted.dropped))
            _check(code)
        options = SubscribeOptions(qos=self.wanted.qos, retainHandling=_RETAINED[self.wanted.retained])
        code, _ = client.subscribe([(each, options) for each in self.wanted.filters])
        _check(code)

    def _on_subscribe(self, _client: Client, _data: Any, _mid: int, reasons: Sequence[Any], _properties: Any) -> None:
        for each, reason in zip(self.wanted.filters, reasons, strict=False):
            if reason.is_failure:
                raise _LostError(f"the broker refuses the subscription to {each}: {reason.getName()}")
            if reason.value < self.wanted.qos:
                log.warning("The MQTT broker at %s grants %s only QoS %d", self.address, each, reason.value)
        self._subscribed = True
        self._up_since = time.monotonic()
        self.problem = ""

    def _on_disconnect(self, _client: Client, _data: Any, flags: Any, reason: Any, _properties: Any) -> None:
        if flags.is_disconnect_packet_from_server:
            raise _LostError(f"the broker ended it: {reason.getName()}")

    def _on_message(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        payload = bytes(message.payload)
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = bytes(message._topic).decode(errors="replace")  # noqa: SLF001  -- a broker must not pass on such a one
        digest = digest_of(topic, payload)
        repeat: Repeat = "no"
        if message.dup:
            repeat = "redelivered"
            self.counts.redelivered += 1
        elif message.qos > 0 and self._seen.again(digest):
            repeat = "seen"
            self.counts.seen += 1
        self.counts.received += 1
        self._last_message = time.monotonic()
        if message.qos > 0:
            self._unacknowledged += 1
        now = time.time_ns() // 1_000_000
        self._inbox.put(
            Message(topic, payload, message.qos, bool(message.retain), repeat, self._number, message.mid, now, digest)
        )


def _check(code: MQTTErrorCode) -> None:
    if code != MQTTErrorCode.MQTT_ERR_SUCCESS:
        reason = {
            MQTTErrorCode.MQTT_ERR_CONN_LOST: "the connection was lost",
            MQTTErrorCode.MQTT_ERR_KEEPALIVE: "it is silent",
        }
        raise _LostError(reason.get(code, code.name.removeprefix("MQTT_ERR_").lower().replace("_", " ")))
