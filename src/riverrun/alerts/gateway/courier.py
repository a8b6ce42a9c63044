"""Brings taken messages to their phones, and tells who asked for it. What it does is in the book, so a restart goes on."""

import logging
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx

from riverrun.alerts.gateway.book import Book, Taken
from riverrun.alerts.gateway.statuses import DELIVERED, EXPIRED, failure, status
from riverrun.alerts.gateway.times import stamp
from riverrun.config.spec import is_loopback

MOST_TRIES = 10
CALL_SECONDS = 5.0
_LOG = logging.getLogger(__name__)


class Courier:
    """`delivery_ms`: how long a message takes to its phone. `minute_ms`: the provider waits `1 + n²` minutes before the
    nth new try of a callback; tests have shorter minutes."""

    def __init__(
        self,
        book: Book,
        *,
        delivery_ms: int = 400,
        minute_ms: int = 60_000,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._book = book
        self._delivery = delivery_ms
        self._minute = minute_ms
        self._clock = clock
        self._changed = changed
        self._client = httpx.Client(timeout=CALL_SECONDS, follow_redirects=False, trust_env=False)
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="riverrun-gateway", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(CALL_SECONDS * 2)
        self._client.close()

    def wake(self) -> None:
        self._wake.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.step(self._clock())
            except Exception:  # noqa: BLE001  -- one message's trouble is not the next one's
                _LOG.exception("the gateway's courier stumbled")
            self._wake.wait(0.05)
            self._wake.clear()

    def step(self, now: int) -> None:
        """What is due now."""
        arrived = self._book.pending(now - self._delivery)
        for each in arrived:
            late = each.expires and now > each.expires
            self._book.done(each.number, EXPIRED if late else DELIVERED, now)
        if arrived:
            self._changed()
        for each in self._book.callbacks(now):
            if self._stop.is_set():
                return
            self._book.called(each.number, 0 if self._called(each) else self._again(each.callback_tries, now))

    def _again(self, tries: int, now: int) -> int:
        number = tries + 1
        return 0 if number >= MOST_TRIES else now + self._minute * (1 + number * number)

    def _called(self, each: Taken) -> bool:
        try:
            answer = self._client.post(each.callback_url, json={"results": [report(each)]})
        except httpx.HTTPError as error:
            _LOG.debug("callback %s: %s", each.callback_url, error)
            return False
        return answer.is_success


def may_call(url: str) -> bool:
    """This gateway is for one machine: it calls no other."""
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and is_loopback(parts.hostname or "")
    except ValueError:
        return False


def report(each: Taken) -> dict[str, object]:
    """A delivery report, as callbacks and `/sms/3/reports` have it."""
    return {
        "bulkId": each.bulk_id,
        "messageId": each.message_id,
        "to": each.receiver,
        "sender": each.sender,
        "sentAt": stamp(each.taken_at),
        "doneAt": stamp(each.done_at),
        "messageCount": each.parts,
        "callbackData": each.callback_data,
        "status": status(each.status),
        "error": failure(each.status),
    }
