"""Delivers accepted messages to their phones, and calls the callbacks. Its state is in the store: a restart continues."""

import logging
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx

from riverrun.alerts.gateway.message_store import AcceptedMessage, MessageStore
from riverrun.alerts.gateway.statuses import DELIVERED, EXPIRED, report_error, status_body
from riverrun.alerts.gateway.timestamps import format_timestamp
from riverrun.config.spec import is_loopback

MAX_CALLBACK_TRIES = 10
CALLBACK_TIMEOUT_SECONDS = 5.0
_LOG = logging.getLogger(__name__)


class DeliveryWorker:
    """The delivery loop. `delivery_ms`: how long a message takes to its phone. `minute_ms`: the provider waits `1 + n²`
    minutes before the nth retry of a callback; tests have shorter minutes."""

    def __init__(
        self,
        store: MessageStore,
        *,
        delivery_ms: int = 400,
        minute_ms: int = 60_000,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._delivery_ms = delivery_ms
        self._minute_ms = minute_ms
        self._clock = clock
        self._on_change = on_change
        self._client = httpx.Client(timeout=CALLBACK_TIMEOUT_SECONDS, follow_redirects=False, trust_env=False)
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="riverrun-gateway", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(CALLBACK_TIMEOUT_SECONDS * 2)
        self._client.close()

    def wake(self) -> None:
        self._wake.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.step(self._clock())
            except Exception:  # noqa: BLE001  -- one message's failure must not stop the next
                _LOG.exception("the gateway's delivery worker failed")
            self._wake.wait(0.05)
            self._wake.clear()

    def step(self, now: int) -> None:
        """Deliver messages and call callbacks that are due now."""
        arrived = self._store.pending(now - self._delivery_ms)
        for message in arrived:
            late = message.expires and now > message.expires
            self._store.complete(message.number, EXPIRED if late else DELIVERED, now)
        if arrived:
            self._on_change()
        for message in self._store.due_callbacks(now):
            if self._stop.is_set():
                return
            self._store.record_callback(
                message.number, 0 if self._post_callback(message) else self._retry_at(message.callback_tries, now)
            )

    def _retry_at(self, tries: int, now: int) -> int:
        number = tries + 1
        return 0 if number >= MAX_CALLBACK_TRIES else now + self._minute_ms * (1 + number * number)

    def _post_callback(self, message: AcceptedMessage) -> bool:
        try:
            answer = self._client.post(message.callback_url, json={"results": [delivery_report(message)]})
        except httpx.HTTPError as error:
            _LOG.debug("callback %s: %s", message.callback_url, error)
            return False
        return answer.is_success


def is_allowed_callback(url: str) -> bool:
    """Whether a callback address is on this machine: the gateway calls no other."""
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and is_loopback(parts.hostname or "")
    except ValueError:
        return False


def delivery_report(message: AcceptedMessage) -> dict[str, object]:
    """A delivery report, as sent to callbacks and by `/sms/3/reports`."""
    return {
        "bulkId": message.bulk_id,
        "messageId": message.message_id,
        "to": message.receiver,
        "sender": message.sender,
        "sentAt": format_timestamp(message.accepted_at),
        "doneAt": format_timestamp(message.done_at),
        "messageCount": message.parts,
        "callbackData": message.callback_data,
        "status": status_body(message.status),
        "error": report_error(message.status),
    }
