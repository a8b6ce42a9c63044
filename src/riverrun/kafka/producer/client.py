"""One librdkafka producer: which thread polls it, its waits, and the errors it reports. Used by `Producer`, not by users.

Delivery reports are served by the calling threads: sending polls now and then, waiting polls all the time. A thread of the
client serves them while nobody calls. Only one thread polls at a time, so callbacks never run at the same time, and a
record's callback runs after those of the records before it in its partition. The thread does not do all of it because,
while another thread is busy sending, it would wait 5 ms for the interpreter for each single report; and a synchronous send
would pay for two thread switches.
"""

import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from confluent_kafka import Producer as RawProducer

from riverrun.errors import (
    BrokerUnreachableError,
    ConfigError,
    DeliveryError,
    QueueFullError,
    RiverrunError,
    TopicNotFoundError,
    UsageError,
)
from riverrun.kafka.error_mapping import client_log, translate
from riverrun.kafka.producer.delivery import Delivery, DeliveryFailures
from riverrun.model.suggest import nearest

_AUTHENTICATION_CODES = frozenset(
    {ClientError._AUTHENTICATION, ClientError._SSL, ClientError.SASL_AUTHENTICATION_FAILED}
)
_UNKNOWN_TOPIC_CODES = frozenset({ClientError.UNKNOWN_TOPIC_OR_PART, ClientError._UNKNOWN_TOPIC})

# A topic that was created a moment ago may not be known to every broker yet.
_NEW_TOPIC_SECONDS = 1.0
# One step of a wait. Python handles signals between steps, so this is how long Ctrl-C may take.
_POLL_SECONDS = 0.1
# A flush does not return when one record is done, only when all are: check in between.
_FLUSH_SECONDS = 0.02
# The thread leaves polling to others for this long after they did it.
_QUIET_SECONDS = 0.01
# How often the thread polls when nothing is in flight, for the client's log lines and errors: they would pile up.
_IDLE_SECONDS = 1.0

_open_clients: "weakref.WeakSet[ProducerClient]" = weakref.WeakSet()
_fork_watched = False


def _after_fork_in_child() -> None:
    for client in list(_open_clients):
        client.on_fork()


def _watch_forks() -> None:
    global _fork_watched  # noqa: PLW0603  -- a process registers once
    if not _fork_watched:
        _fork_watched = True
        os.register_at_fork(after_in_child=_after_fork_in_child)


class ProducerClient:
    """A librdkafka producer and its thread. Its creator must `close` or `stop` it."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        *,
        user_properties: Mapping[str, Any],
        request_timeout: float,
        on_statistics: Callable[[str], Any] | None = None,
    ) -> None:
        self.bootstrap_servers = str(properties["bootstrap.servers"])
        self.failures = DeliveryFailures(self.bootstrap_servers)
        self.request_timeout = request_timeout
        # Counted without a lock: the interpreter does not switch threads within `count += 1`.
        self.sent = 0
        self.bytes = 0
        self.reported = 0
        self.errors_only = bool(properties.get("delivery.report.only.error"))
        self.asleep = False
        self.urgent = 0
        self.after_poll: Callable[[], None] | None = None
        self._partitions: dict[str, int] = {}
        self._last_error: ClientError | None = None
        self._login_error: ClientError | None = None
        self._polling = threading.RLock()
        self._poller = 0
        self._quiet_until = 0.0
        self._wake = threading.Event()
        self._stop = False
        self._closed_message = ("This producer is closed", "Make a new one")
        callbacks: dict[str, Any] = {"error_cb": self._on_error}
        if on_statistics is not None:
            callbacks["stats_cb"] = on_statistics
        self._raw: RawProducer | None = _create_raw_producer({**properties, **callbacks}, user_properties)
        self.produce: Callable[..., None] = self._raw.produce
        _watch_forks()
        _open_clients.add(self)
        self._thread = threading.Thread(target=self._run_thread, name="riverrun-producer", daemon=True)
        self._thread.start()

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def raw(self) -> RawProducer:
        if self._raw is None:
            self._refuse()
        return self._raw

    @property
    def closed(self) -> bool:
        return self._raw is None

    def __len__(self) -> int:
        """Records without a delivery report yet."""
        raw = self._raw
        return len(raw) if raw is not None else 0

    @property
    def queued(self) -> int:
        """Records without a delivery report yet, exactly (the library's own number has log lines in it) if that is known."""
        return len(self) if self.errors_only else max(self.sent - self.reported, 0)

    def _refuse(self, *_: Any) -> NoReturn:
        what, hint = self._closed_message
        raise UsageError(what, hint=hint)

    def on_fork(self) -> None:
        """In a forked child: the client's threads are not here, so nothing of it may be touched, not even to free it."""
        raw, self._raw = self._raw, None
        if raw is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(raw))
            self.reported = self.sent  # by the parent
            self.produce = self._refuse
            self._closed_message = (
                "This producer was made before the process forked, and its threads are in the parent",
                'Make one in the child, and start that with multiprocessing\'s "spawn", or before there is a producer here',
            )

    def _on_error(self, error: ClientError) -> None:
        if error.code() != ClientError._ALL_BROKERS_DOWN:  # which says less than the error before it
            self._last_error = error
        if error.code() in _AUTHENTICATION_CODES:
            self._login_error = error

    # --- polling ------------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Serve what has arrived, unless another thread is doing so already."""
        if self._poller != threading.get_ident():
            self._poll(0.0, _poll_now)
            self._quiet_until = time.monotonic() + _QUIET_SECONDS

    def poll_wait(self, *, flush: bool = False) -> None:
        """Wait a moment for something to happen, serving what arrives. `flush` sends lingering records at once."""
        self.refuse_in_callback("wait")
        self._quiet_until = time.monotonic() + 2 * _POLL_SECONDS
        self._poll(_POLL_SECONDS, _flush_a_moment if flush else _poll_a_moment)
        self._quiet_until = time.monotonic() + _QUIET_SECONDS

    def _poll(self, lock_seconds: float, action: Callable[[RawProducer], Any]) -> bool:
        """Poll; False when another thread is polling."""
        try:
            return self._serve(lock_seconds, action)
        except KafkaException as error:
            # The library reports a fatal error once, to the thread that polls. The records report it, too.
            self._last_error = self.failures.fatal = error.args[0]
            if self._raw is not None:
                self._raw.purge(blocking=False)
            return True

    def call(self, action: Callable[[RawProducer], Any]) -> None:
        """Make a call of the client library that serves reports by itself."""
        self.refuse_in_callback("wait")
        while not self._serve(_POLL_SECONDS, action):
            self._quiet_until = time.monotonic() + 2 * _POLL_SECONDS

    def in_callback(self) -> bool:
        return self._poller == threading.get_ident()

    def refuse_in_callback(self, doing: str) -> None:
        if self.in_callback():
            raise UsageError(
                f"An on_delivery callback cannot {doing}: it runs in the very thread that would do the work",
                hint="Use send_soon in it, and leave waiting to others",
            )

    def _serve(self, lock_seconds: float, action: Callable[[RawProducer], Any]) -> bool:
        """Make a call that serves reports; False when another thread does and did not end in time."""
        try:
            if not self._polling.acquire(timeout=lock_seconds):
                return False
            self._poller = threading.get_ident()
            raw = self._raw
            if raw is not None:
                action(raw)
        except SystemError as error:
            # Before Python 3.12 the library loses a KeyboardInterrupt in one of its callbacks, and raises this.
            raise KeyboardInterrupt from error
        finally:
            # Ctrl-C may come between getting the lock and setting `_poller`; the lock itself knows its owner.
            if self._poller == threading.get_ident():
                self._poller = 0
            with contextlib.suppress(RuntimeError):
                self._polling.release()
        if self.after_poll is not None:
            self.after_poll()
        return True

    def wait_for(self, delivery: Delivery, timeout: float | None) -> None:
        """Wait until this delivery is settled, or lost; TimeoutError when that takes longer."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while len(self) and delivery._message is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"the record was not acknowledged within {timeout} s; it may still be")
            self.poll_wait(flush=True)

    def wait_for_queue_space(self, started: float, deadline: float) -> None:
        """The queue is full: serve reports until it may have room. QueueFullError at the deadline."""
        if time.monotonic() >= deadline or self.in_callback():
            raise self.queue_full_error(started)
        self.poll_wait()

    def queue_full_error(self, started: float) -> QueueFullError:
        waited = time.monotonic() - started
        return QueueFullError(
            f"The producer's queue stayed full for {waited:.1f} s; this record was not taken",
            found=f"{len(self)} records waiting for acknowledgement" + self._last_error_text(),
            hint="Send more slowly, wait longer (queue_timeout_seconds) or check the cluster (`riverrun status`)",
            queued=len(self),
            waited_seconds=round(waited, 3),
        )

    def drain(self, deadline: float) -> int:
        """Wait until every record has its report or the deadline passes; returns the number of those without."""
        self.refuse_in_callback("wait")
        while (left := len(self)) and time.monotonic() < deadline:
            self.poll_wait(flush=True)
        return left

    def _last_error_text(self) -> str:
        return f"; last error: {self._last_error.str()}" if self._last_error is not None else ""

    def take_failure(self) -> RiverrunError | None:
        """The error for undelivered records that was not reported yet."""
        error = self.failures.take_error()
        unreported = self._take_unreported()
        if unreported and error is None:
            error = DeliveryError(
                f"The outcome of {unreported} record{'s' if unreported != 1 else ''} is not known: the program was "
                "interrupted as it was reported",
                hint="Look for it in the topic before sending it again",
                count=unreported,
            )
        return error

    def _take_unreported(self) -> int:
        """Records whose report was lost: Ctrl-C can hit the very function that takes it."""
        sent = self.sent
        if self.errors_only or len(self) or sent <= self.reported:
            return 0
        unreported, self.reported = sent - self.reported, sent
        return unreported

    # --- requests to the cluster --------------------------------------------------------------------------------------

    def check_topic(self, topic: str, partition: int, seconds: float | None = None) -> None:
        """TopicNotFoundError for a topic the cluster does not have, now and not when its records time out. `seconds` is how
        long the cluster may take to answer; else the request timeout."""
        deadline = time.monotonic() + (self.request_timeout if seconds is None else seconds)
        if not self._partitions:
            # Asked twice, because what is sent before the connection is established waits for the library's next try at a
            # producer id, half a second later (505 ms to the first receipt, every time; 31 ms this way).
            self._look_up(topic, deadline)
        if topic not in self._partitions or partition >= self._partitions[topic]:
            self._partitions[topic] = self._look_up(topic, deadline)
        if partition >= self._partitions[topic]:
            raise UsageError(
                f"The topic {topic} has no partition {partition}",
                expected=f"0 to {self._partitions[topic] - 1}",
                topic=topic,
            )

    def _look_up(self, topic: str, deadline: float) -> int:
        """How many partitions the topic has."""
        grace_end = time.monotonic() + _NEW_TOPIC_SECONDS
        while True:
            metadata = self.request(
                lambda raw, seconds: raw.list_topics(topic, seconds), deadline, f"looking for {topic}"
            )
            topic_metadata = metadata.topics[topic]
            if topic_metadata.error is None:
                return len(topic_metadata.partitions)
            code, now = topic_metadata.error.code(), time.monotonic()
            if code in _UNKNOWN_TOPIC_CODES and now >= grace_end:
                raise self._topic_not_found(topic, deadline)
            if code not in _UNKNOWN_TOPIC_CODES and (code != ClientError.LEADER_NOT_AVAILABLE or now >= deadline):
                raise self.translate(topic_metadata.error, f"looking for {topic}", topic=topic)
            time.sleep(0.05)

    def _topic_not_found(self, topic: str, deadline: float) -> TopicNotFoundError:
        metadata = self.request(lambda raw, seconds: raw.list_topics(None, seconds), deadline, "listing topics")
        suggestion = nearest(topic, set(metadata.topics) - {topic})
        return TopicNotFoundError(
            f"There is no topic {topic} at {self.bootstrap_servers}",
            hint=f"Did you mean {suggestion}?" if suggestion else f"Create it: riverrun topics create {topic}",
            topic=topic,
        )

    def request(self, call: Callable[[RawProducer, float], Any], deadline: float, doing: str) -> Any:
        """An answer from the cluster. The call blocks inside the client library, where Ctrl-C is ignored, so a thread makes
        it; meanwhile this one sees a refused login, which the call itself would only report as a timeout."""
        raw, result = self.raw, _CallResult()
        seconds = max(deadline - time.monotonic(), 0.1)
        threading.Thread(target=result.run, args=(lambda: call(raw, seconds),), daemon=True).start()
        while not result.ready.wait(0.01):
            self.poll()
            if (login_error := self._login_error) is not None:
                self._login_error = None
                raise self.translate(login_error, doing)
            if time.monotonic() > deadline + 5:
                raise self.explain(KafkaException(ClientError(ClientError._TIMED_OUT)), doing)
        if isinstance(result.error, KafkaException):
            raise self.explain(result.error, doing) from result.error
        if result.error is not None:
            raise result.error
        return result.value

    def explain(self, error: KafkaException, doing: str, **fields: Any) -> RiverrunError:
        """Our error. The library says "timed out" although it knows more: a refused login, a refused connection."""
        translated = self.translate(error, doing, **fields)
        if isinstance(translated, BrokerUnreachableError) and (last := self._last_error) is not None:
            if last.code() in _AUTHENTICATION_CODES:
                return self.translate(last, doing, **fields)
            translated.found = last.str()
        return translated

    def translate(self, error: ClientError | KafkaException, doing: str, **fields: Any) -> RiverrunError:
        return translate(error, doing, bootstrap=self.bootstrap_servers, **fields)

    # --- end ----------------------------------------------------------------------------------------------------------

    def close(self, deadline: float) -> RiverrunError | None:
        """Deliver what is queued until the deadline, give up the rest, free everything. Returns the unreported error."""
        if self._raw is None:
            return None
        self.refuse_in_callback("close its producer")
        self.produce = self._refuse
        try:
            if self.drain(deadline):
                self._raw.purge()
                self.drain(time.monotonic() + 5)
        finally:
            self.stop()
        return self.take_failure()

    def stop(self) -> None:
        """End the thread and free the client, whatever is queued."""
        self.produce = self._refuse
        self._stop = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(5)
        # Freed when the last thread leaves its call: destroying it earlier would crash.
        self._raw = None
        _open_clients.discard(self)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake the thread because there is something to poll; for callers that see `asleep`."""
        self.asleep = False
        self._wake.set()

    def _run_thread(self) -> None:
        while not self._stop and self._raw is not None:
            self._wake.clear()
            if not len(self):
                self.asleep = True
                if not len(self) and not self._stop:
                    self._wake.wait(_IDLE_SECONDS)
                self.asleep = False
                self._poll(0.0, _poll_now)
            elif time.monotonic() < self._quiet_until and not self.urgent:
                self._wake.wait(_QUIET_SECONDS)
            elif not self._poll(0.0, _flush_a_moment if self.urgent else _poll_briefly):
                # Another thread is inside a call that serves reports, such as the commit of a transaction: no need to poll.
                self._wake.wait(_QUIET_SECONDS)


def _poll_now(raw: RawProducer) -> None:
    raw.poll(0)


def _poll_briefly(raw: RawProducer) -> None:
    raw.poll(_FLUSH_SECONDS)


def _poll_a_moment(raw: RawProducer) -> None:
    raw.poll(_POLL_SECONDS)


def _flush_a_moment(raw: RawProducer) -> None:
    raw.flush(_FLUSH_SECONDS)


class _CallResult:
    """The result of a call in another thread."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.value: Any = None
        self.error: Exception | None = None

    def run(self, call: Callable[[], Any]) -> None:
        try:
            self.value = call()
        except Exception as error:  # noqa: BLE001  -- raised by the thread that asked
            self.error = error
        finally:
            self.ready.set()


def _create_raw_producer(properties: dict[str, Any], user_properties: Mapping[str, Any]) -> RawProducer:
    try:
        return RawProducer(properties, logger=client_log)
    except (KafkaException, ValueError, TypeError) as error:
        argument = error.args[0] if error.args else error
        text = (argument.str() if isinstance(argument, ClientError) else str(argument)).strip()
        named = [name for name in user_properties if name in text]
        if named:
            raise UsageError(f"The producer's property {named[0]} is refused", found=text, property=named[0]) from error
        raise ConfigError([f"kafka: {text}"]) from error
