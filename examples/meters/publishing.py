"""Meters that publish at an MQTT broker instead of sending to Kafka: `METERS_MQTT=mqtt://127.0.0.1:18830` for `riverrun run`
and for source.py. riverrun brings what they publish into the topic (`rr.mqtt` in app.py).

Where nobody is at that address, a mosquitto is started for as long as this runs.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
from app import Reading
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

# From the broker's start to somebody who listens to it: Spark may be starting.
START_SECONDS, ANSWER_SECONDS = 900.0, 60.0
# What the broker answers when nobody has subscribed: it keeps the message for nobody.
NOBODY = 0x10


class Meters:
    """All meters of the city by one connection, in a `with`. What `send_all` counts the broker has taken: QoS 1."""

    def __init__(self, stop: threading.Event) -> None:
        address = urlsplit(os.environ["METERS_MQTT"])
        self._host, self._port = address.hostname or "127.0.0.1", address.port or 1883
        self._stop = stop
        self._stack = ExitStack()
        self._reasons: dict[int, int] = {}
        self._told = threading.Condition()
        self._client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        self._client.max_inflight_messages_set(1000)
        self._client.on_publish = self._on_publish

    def _on_publish(self, _client: Client, _data: Any, number: int, reason: Any, _properties: Any) -> None:
        with self._told:
            self._reasons[number] = reason.value
            self._told.notify_all()

    def __enter__(self) -> Self:
        self._stack.enter_context(broker(self._host, self._port))
        self._client.connect(self._host, self._port)
        self._client.loop_start()
        self._stack.callback(self._client.loop_stop)
        self._stack.callback(self._client.disconnect)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def send_all(self, _topic: object, values: Iterable[Reading | bytes]) -> int:
        """Publish readings; bytes are what a broken meter sends. Gives how many the broker has for riverrun.

        What nobody has subscribed to the broker does not keep, and says so; it is published again until somebody has.
        """
        left = [self._message(each) for each in values]
        number, ends = len(left), time.monotonic() + START_SECONDS
        while (left := self._publish(left)) and not self._stop.wait(0.5):
            if time.monotonic() > ends:
                sys.exit("Nobody has subscribed: start `riverrun run` with the same METERS_MQTT in another terminal.")
        return number - len(left)

    def _message(self, value: Reading | bytes) -> tuple[str, bytes]:
        if isinstance(value, bytes):
            return "meters/broken/reading", value
        return f"meters/{value.house_id}/reading", msgspec.json.encode(value)

    def _publish(self, messages: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        """Those that nobody has subscribed to."""
        sent = {self._client.publish(topic, payload, qos=1).mid: (topic, payload) for topic, payload in messages}
        with self._told:
            if not self._told.wait_for(lambda: sent.keys() <= self._reasons.keys(), ANSWER_SECONDS):
                sys.exit(f"The MQTT broker does not acknowledge what is published (waited {ANSWER_SECONDS:.0f} s).")
            return [message for number, message in sent.items() if self._reasons.pop(number) == NOBODY]


@contextmanager
def broker(host: str, port: int) -> Iterator[None]:
    """Whoever is there, or a mosquitto of our own."""
    if _answers(host, port):
        yield
        return
    program = mosquitto()
    if program is None:
        sys.exit(f"Nobody is at {host}:{port}, and mosquitto is not on this machine: `apt install mosquitto`.")
    with tempfile.TemporaryDirectory(prefix="meters-mqtt-") as folder:
        config = Path(folder) / "mosquitto.conf"
        # Without the last line it drops what is more than 1,000 messages behind.
        config.write_text(f"listener {port} {host}\nallow_anonymous true\nmax_queued_messages 0\n", encoding="utf-8")
        with subprocess.Popen([program, "-c", str(config)], stderr=subprocess.DEVNULL) as process:
            try:
                ends = time.monotonic() + ANSWER_SECONDS
                while not _answers(host, port):
                    if process.poll() is not None or time.monotonic() > ends:
                        sys.exit(f"mosquitto did not start at {host}:{port}.")
                    time.sleep(0.05)
                yield
            finally:
                process.terminate()


def mosquitto() -> str | None:
    """Where it is; Debian keeps it where only root's PATH looks."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False
