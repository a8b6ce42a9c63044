"""One librdkafka producer: who polls it, what waits for what, and the errors it reports. Used by `Producer`, not by users.

Delivery reports are served by whoever calls: sending polls now and then, waiting polls all the time. A thread of the client
serves them while nobody calls. Only one thread polls at a time, so callbacks never run at the same time, and a record's
callback runs after those of the records before it in its partition. Why the thread does not do all of it: while another
thread is busy sending, it would wait 5 ms for the interpreter for each single report; and a synchronous send would pay for
two thread switches.
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
from riverrun.kafka.border import client_log, translate
from riverrun.kafka.producer.delivery import Delivery, Failures
from riverrun.model.near import nearest

_LOGIN = frozenset({ClientError._AUTHENTICATION, ClientError._SSL, ClientError.SASL_AUTHENTICATION_FAILED})
_NO_TOPIC = frozenset({ClientError.UNKNOWN_TOPIC_OR_PART, ClientError._UNKNOWN_TOPIC})

# A topic that was made a moment ago may not be known to every broker yet.
_NEW_TOPIC_SECONDS = 1.0
# One turn of a wait. Python handles signals between turns, so this is how long Ctrl-C may take.
_TURN_SECONDS = 0.1
# A flush does not return when one record is done, only when all are: look in between.
_FLUSH_SECONDS = 0.02
# The thread leaves polling to others for this long after they did it.
_QUIET_SECONDS = 0.01
# How often the thread looks when nothing is on its way, for the client's log lines and errors: they would pile up.
_IDLE_SECONDS = 1.0

_living: "weakref.WeakSet[Client]" = weakref.WeakSet()
_fork_watched = False


def _after_fork_in_child() -> None:
    for client in list(_living):
        client.forked()


def _watch_forks() -> None:
    global _fork_watched  # noqa: PLW0603  -- a process registers once
    if not _fork_watched:
        _fork_watched = True
        os.register_at_fork(after_in_child=_after_fork_in_child)


class Client:
    """A librdkafka producer and its thread. Whoever makes one must `close` or `stop` it."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        *,
        given: Mapping[str, Any],
        request_timeout: float,
        on_statistics: Callable[[str], Any] | None = None,
    ) -> None:
        self.where = str(properties["bootstrap.servers"])
        self.failures = Failures(self.where)
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
        self._refusal = ("This producer is closed", "Make a new one")
        callbacks: dict[str, Any] = {"error_cb": self._on_error}
        if on_statistics is not None:
            callbacks["stats_cb"] = on_statistics
        self._raw: RawProducer | None = _make({**properties, **callbacks}, given)
        self.produce: Callable[..., None] = self._raw.produce
        _watch_forks()
        _living.add(self)
        self._thread = threading.Thread(target=self._keep, name="riverrun-producer", daemon=True)
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
        """Records without an answer yet."""
        raw = self._raw
        return len(raw) if raw is not None else 0

    @property
    def queued(self) -> int:
        """Records without an answer yet, exactly (the library's own number has log lines in it) where that is known."""
        return len(self) if self.errors_only else max(self.sent - self.reported, 0)

    def _refuse(self, *_: Any) -> NoReturn:
        what, hint = self._refusal
        raise UsageError(what, hint=hint)

    def forked(self) -> None:
        """In a forked child: the client's threads are not here, so nothing of it may be touched, not even to free it."""
        raw, self._raw = self._raw, None
        if raw is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(raw))
            self.reported = self.sent  # by the parent
            self.produce = self._refuse
            self._refusal = (
                "This producer was made before the process forked, and its threads are in the parent",
                'Make one in the child, and start that with multiprocessing\'s "spawn", or before there is a producer here',
            )

    def _on_error(self, error: ClientError) -> None:
        if error.code() != ClientError._ALL_BROKERS_DOWN:  # which says less than what came before it
            self._last_error = error
        if error.code() in _LOGIN:
            self._login_error = error

    # --- polling ------------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Serve what has arrived, unless somebody is doing so already."""
        if self._poller != threading.get_ident():
            self._poll(0.0, _poll_now)
            self._quiet_until = time.monotonic() + _QUIET_SECONDS

    def turn(self, *, flush: bool = False) -> None:
        """Wait a moment for something to happen, serving what arrives. `flush` sends lingering records at once."""
        self.refuse_in_callback("wait")
        self._quiet_until = time.monotonic() + 2 * _TURN_SECONDS
        self._poll(_TURN_SECONDS, _flush_a_moment if flush else _poll_a_moment)
        self._quiet_until = time.monotonic() + _QUIET_SECONDS

    def _poll(self, lock_seconds: float, action: Callable[[RawProducer], Any]) -> bool:
        """False when another thread is at it."""
        try:
            return self._serve(lock_seconds, action)
        except KafkaException as error:
            # How the library says, once, to whoever polls, that this client is at its end. The records tell it, too.
            self._last_error = self.failures.fatal = error.args[0]
            if self._raw is not None:
                self._raw.purge(blocking=False)
            return True

    def hold(self, action: Callable[[RawProducer], Any]) -> None:
        """A call of the client library that serves reports by itself."""
        self.refuse_in_callback("wait")
        while not self._serve(_TURN_SECONDS, action):
            self._quiet_until = time.monotonic() + 2 * _TURN_SECONDS

    def in_callback(self) -> bool:
        return self._poller == threading.get_ident()

    def refuse_in_callback(self, doing: str) -> None:
        if self.in_callback():
            raise UsageError(
                f"An on_delivery callback cannot {doing}: it runs in the very thread that would do the work",
                hint="Use send_soon in it, and leave waiting to others",
            )

    def _serve(self, lock_seconds: float, action: Callable[[RawProducer], Any]) -> bool:
        """Make a call that serves reports; False when another thread is at it and did not end in time."""
        try:
            if not self._polling.acquire(timeout=lock_seconds):
                return False
            self._poller = threading.get_ident()
            raw = self._raw
            if raw is not None:
                action(raw)
        except SystemError as error:
            # Before Python 3.12 the library loses the KeyboardInterrupt that hits one of its callbacks, and says this.
            raise KeyboardInterrupt from error
        finally:
            # Ctrl-C may come between getting the lock and noting that we have it; the lock itself knows whose it is.
            if self._poller == threading.get_ident():
                self._poller = 0
            with contextlib.suppress(RuntimeError):
                self._polling.release()
        if self.after_poll is not None:
            self.after_poll()
        return True

    def wait_for(self, delivery: Delivery, timeout: float | None) -> None:
        """Until this delivery is settled, or lost; TimeoutError when that takes longer."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while len(self) and delivery._message is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"the record was not acknowledged within {timeout} s; it may still be")
            self.turn(flush=True)

    def wait_for_room(self, started: float, deadline: float) -> None:
        """The queue is full: serve reports until it may have room. QueueFullError at the deadline."""
        if time.monotonic() >= deadline or self.in_callback():
            raise self.full(started)
        self.turn()

    def full(self, started: float) -> QueueFullError:
        waited = time.monotonic() - started
        return QueueFullError(
            f"The producer's queue stayed full for {waited:.1f} s; this record was not taken",
            found=f"{len(self)} records waiting for acknowledgement" + self._last_error_text(),
            hint="Send more slowly, wait longer (queue_timeout_seconds) or check the cluster (`riverrun status`)",
            queued=len(self),
            waited_seconds=round(waited, 3),
        )

    def drain(self, deadline: float) -> int:
        """Until every record has its answer or the deadline passes; the number of those without."""
        self.refuse_in_callback("wait")
        while (left := len(self)) and time.monotonic() < deadline:
            self.turn(flush=True)
        return left

    def _last_error_text(self) -> str:
        return f"; last error: {self._last_error.str()}" if self._last_error is not None else ""

    def take_failure(self) -> RiverrunError | None:
        """The error for what was not delivered and nobody was told of yet."""
        error = self.failures.take()
        lost = self._take_lost()
        if lost and error is None:
            error = DeliveryError(
                f"The outcome of {lost} record{'s' if lost != 1 else ''} is not known: the program was interrupted as it "
                "was reported",
                hint="Look for it in the topic before sending it again",
                count=lost,
            )
        return error

    def _take_lost(self) -> int:
        """Records whose report was lost: Ctrl-C can hit the very function that takes it."""
        sent = self.sent
        if self.errors_only or len(self) or sent <= self.reported:
            return 0
        lost, self.reported = sent - self.reported, sent
        return lost

    # --- questions to the cluster -------------------------------------------------------------------------------------

    def check(self, topic: str, partition: int, seconds: float | None = None) -> None:
        """TopicNotFoundError for a topic the cluster does not have, now and not when its records time out. `seconds` is how
        long the cluster may take to say so; else as long as any request."""
        deadline = time.monotonic() + (self.request_timeout if seconds is None else seconds)
        if not self._partitions:
            # Asked twice, because what is sent before the connection is settled waits for the library's next try at a
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
        patience = time.monotonic() + _NEW_TOPIC_SECONDS
        while True:
            metadata = self.ask(lambda raw, seconds: raw.list_topics(topic, seconds), deadline, f"looking for {topic}")
            found = metadata.topics[topic]
            if found.error is None:
                return len(found.partitions)
            code, now = found.error.code(), time.monotonic()
            if code in _NO_TOPIC and now >= patience:
                raise self._no_topic(topic, deadline)
            if code not in _NO_TOPIC and (code != ClientError.LEADER_NOT_AVAILABLE or now >= deadline):
                raise self.translate(found.error, f"looking for {topic}", topic=topic)
            time.sleep(0.05)

    def _no_topic(self, topic: str, deadline: float) -> TopicNotFoundError:
        metadata = self.ask(lambda raw, seconds: raw.list_topics(None, seconds), deadline, "listing topics")
        near = nearest(topic, set(metadata.topics) - {topic})
        return TopicNotFoundError(
            f"There is no topic {topic} at {self.where}",
            hint=f"Did you mean {near}?" if near else f"Create it: riverrun topics create {topic}",
            topic=topic,
        )

    def ask(self, question: Callable[[RawProducer, float], Any], deadline: float, doing: str) -> Any:
        """An answer from the cluster. The call blocks inside the client library, deaf to Ctrl-C, so a thread makes it;
        meanwhile this one hears of a refused login, which the call itself would only report as a timeout."""
        raw, answer = self.raw, _Answer()
        seconds = max(deadline - time.monotonic(), 0.1)
        threading.Thread(target=answer.get, args=(lambda: question(raw, seconds),), daemon=True).start()
        while not answer.there.wait(0.01):
            self.poll()
            if (refused := self._login_error) is not None:
                self._login_error = None
                raise self.translate(refused, doing)
            if time.monotonic() > deadline + 5:
                raise self.explain(KafkaException(ClientError(ClientError._TIMED_OUT)), doing)
        if isinstance(answer.error, KafkaException):
            raise self.explain(answer.error, doing) from answer.error
        if answer.error is not None:
            raise answer.error
        return answer.value

    def explain(self, error: KafkaException, doing: str, **fields: Any) -> RiverrunError:
        """Our error. The library says "timed out" where it knows more: a refused login, a refused connection."""
        found = self.translate(error, doing, **fields)
        if isinstance(found, BrokerUnreachableError) and (last := self._last_error) is not None:
            if last.code() in _LOGIN:
                return self.translate(last, doing, **fields)
            found.found = last.str()
        return found

    def translate(self, error: ClientError | KafkaException, doing: str, **fields: Any) -> RiverrunError:
        return translate(error, doing, bootstrap=self.where, **fields)

    # --- end ----------------------------------------------------------------------------------------------------------

    def close(self, deadline: float) -> RiverrunError | None:
        """Deliver what waits until the deadline, give up the rest, free everything. The error for what nobody was told."""
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
        # Freed when the last thread that is inside a call of it leaves: destroying it under its feet would crash.
        self._raw = None
        _living.discard(self)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There is something to look after; for those who see `asleep`."""
        self.asleep = False
        self._wake.set()

    def _keep(self) -> None:
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
                # Another thread is inside a call that serves reports, such as the commit of a transaction: no need to look.
                self._wake.wait(_QUIET_SECONDS)


def _poll_now(raw: RawProducer) -> None:
    raw.poll(0)


def _poll_briefly(raw: RawProducer) -> None:
    raw.poll(_FLUSH_SECONDS)


def _poll_a_moment(raw: RawProducer) -> None:
    raw.poll(_TURN_SECONDS)


def _flush_a_moment(raw: RawProducer) -> None:
    raw.flush(_FLUSH_SECONDS)


class _Answer:
    """What a call in another thread gave."""

    def __init__(self) -> None:
        self.there = threading.Event()
        self.value: Any = None
        self.error: Exception | None = None

    def get(self, call: Callable[[], Any]) -> None:
        try:
            self.value = call()
        except Exception as error:  # noqa: BLE001  -- raised by the thread that asked
            self.error = error
        finally:
            self.there.set()


def _make(properties: dict[str, Any], given: Mapping[str, Any]) -> RawProducer:
    try:
        return RawProducer(properties, logger=client_log)
    except (KafkaException, ValueError, TypeError) as error:
        argument = error.args[0] if error.args else error
        text = (argument.str() if isinstance(argument, ClientError) else str(argument)).strip()
        named = [each for each in given if each in text]
        if named:
            raise UsageError(f"The producer's property {named[0]} is refused", found=text, property=named[0]) from error
        raise ConfigError([f"kafka: {text}"]) from error
