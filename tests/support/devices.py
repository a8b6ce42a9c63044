"""Devices: real MQTT clients that publish with QoS 1, and know what the broker told them is safe."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from paho.mqtt.client import Client, MQTTMessageInfo
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from riverrun.cluster.ports import HOST


class Device:
    """One client, with a thread of its own. It comes back by itself when its broker does, and sends again what was not
    acknowledged."""

    def __init__(self, port: int, name: str, *, in_flight: int = 10, login: tuple[str, str] | None = None) -> None:
        self.name = name
        self._room = threading.Semaphore(in_flight)
        self._lock = threading.Lock()
        self._sent: dict[int, bytes] = {}
        # Acknowledged before `publish` had returned.
        self._early: set[int] = set()
        self.acknowledged: list[bytes] = []
        self._client = Client(
            CallbackAPIVersion.VERSION2, name, clean_session=False, protocol=MQTTProtocolVersion.MQTTv311
        )
        if login is not None:
            self._client.username_pw_set(*login)
        self._client.reconnect_delay_set(1, 2)
        self._client.max_inflight_messages_set(in_flight)
        self._client.on_publish = self._on_publish
        self._client.connect_async(HOST, port, 30)
        self._client.loop_start()

    def _on_publish(self, _client: Client, _data: Any, mid: int, _reason: Any, _properties: Any) -> None:
        with self._lock:
            payload = self._sent.pop(mid, None)
            if payload is None:
                self._early.add(mid)
                return
            self.acknowledged.append(payload)
        self._room.release()

    @property
    def unacknowledged(self) -> int:
        return len(self._sent)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> MQTTMessageInfo:
        """Publish with QoS 1, as soon as there is room in flight. It counts when it is in `acknowledged`."""
        assert self._room.acquire(timeout=300), "the broker acknowledges nothing"
        told = self._client.publish(topic, payload, qos=1, retain=retain)
        # The client has locks of its own, and calls back while it holds them.
        with self._lock:
            self._sent[told.mid] = payload
            early = told.mid in self._early
            self._early.discard(told.mid)
        if early:
            self._on_publish(self._client, None, told.mid, None, None)
        return told

    def publish_qos_0(self, topic: str, payload: bytes) -> None:
        deadline = time.monotonic() + 60
        while not self._client.is_connected():
            assert time.monotonic() < deadline, "no connection"
            time.sleep(0.01)
        self._client.publish(topic, payload, qos=0).wait_for_publish(60)

    def settle(self, seconds: float = 120) -> None:
        """Wait until the broker has acknowledged everything."""
        deadline = time.monotonic() + seconds
        while self._sent:
            assert time.monotonic() < deadline, f"{self.name}: {len(self._sent)} messages are not acknowledged"
            time.sleep(0.005)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        self._client.on_publish = None
        # The library leaves these two to the garbage collector.
        self._client._reset_sockets(sockpair_only=True)


@contextlib.contextmanager
def device(
    port: int, name: str = "device", *, in_flight: int = 10, login: tuple[str, str] | None = None
) -> Iterator[Device]:
    found = Device(port, name, in_flight=in_flight, login=login)
    try:
        yield found
    finally:
        found.close()


def publish_all(port: int, topic: str, payloads: Sequence[bytes], *, name: str = "device") -> None:
    """Publish, and wait until the broker has all of them."""
    with device(port, name) as found:
        for payload in payloads:
            found.publish(topic, payload)
        found.settle()
