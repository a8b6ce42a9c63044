"""A producer whose cluster does not answer: what it does not deliver it tells, and it blocks no longer than it says.

The topics of these tests are made known by hand, as no cluster is there to ask.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from riverrun.config import KafkaSettings
from riverrun.errors import (
    BrokerUnreachableError,
    DeliveryError,
    EventInvalidError,
    HandlerError,
    QueueFullError,
    RecordTooLargeError,
    UsageError,
)
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.metrics import ProducerMetrics
from riverrun.kafka.producer.producer import Producer
from riverrun.model.event import Event, key
from riverrun.model.topic import Topic

NOWHERE = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1", request_timeout_seconds=1))


class Order(Event):
    id: str = key()


ORDERS = Topic("orders", Order)
EVENT = Order(id="o1")


def lonely(**options: Any) -> Producer:
    """A producer that knows the topic orders, and has nobody to send its records to."""
    producer = Producer(NOWHERE, **{"delivery_timeout_seconds": 30, **options})
    core, make = producer._core, producer._core._create_client

    def make_known(*args: Any, **kwargs: Any) -> Any:
        client = make(*args, **kwargs)
        client._partitions["orders"] = 2
        return client

    core.client._partitions["orders"] = 2
    core._create_client = make_known  # type: ignore[method-assign]
    return producer


@contextmanager
def given_up(producer: Producer) -> Iterator[Producer]:
    """Closes it without a wait; what is undelivered then is not what the test is about."""
    try:
        yield producer
    finally:
        with suppress(DeliveryError):
            producer.close(0)


@contextmanager
def interrupted(after: float) -> Iterator[None]:
    """Ctrl-C, a moment from now; must arrive within a second."""
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
    started = time.monotonic()
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        timer.cancel()
    assert time.monotonic() - started < after + 1.5


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parent,
    )


# --- what is asked of a cluster that is not there ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "send", [lambda p: p.send("t", b"x"), lambda p: p.send_soon("t", b"x"), lambda p: p.send_all("t", [])]
)
def test_no_broker_is_said_within_the_request_timeout(send: Callable[[Producer], Any]) -> None:
    with Producer(NOWHERE) as producer:
        started = time.monotonic()
        with pytest.raises(BrokerUnreachableError, match="Connection refused") as caught:
            send(producer)
        assert 0.9 < time.monotonic() - started < 3
    assert caught.value.fields["bootstrap"] == "127.0.0.1:1"


def test_what_cannot_be_sent_is_said_at_once() -> None:
    with lonely() as producer:
        with pytest.raises(EventInvalidError):
            producer.send_soon(ORDERS, {"id": "o1"})
        with pytest.raises(EventInvalidError):
            producer.send_soon(ORDERS, Order(id=5))  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="record's key"):
            producer.send_soon(ORDERS, EVENT, key=5)  # type: ignore[arg-type]
        with pytest.raises(RecordTooLargeError) as caught:
            producer.send_soon("orders", b"x" * 1_000_001)
        assert (caught.value.fields["size"], caught.value.fields["limit"]) == (1_000_001, 1_000_000)
        assert producer.metrics().sent == 0


# --- what is not delivered is told -------------------------------------------------------------------------------------


def test_a_failed_delivery_nobody_asked_about_is_raised_by_flush_once() -> None:
    with lonely(delivery_timeout_seconds=0.3) as producer:
        producer.send_soon(ORDERS, EVENT)
        producer.send_soon(ORDERS, Order(id="o2"))
        with pytest.raises(DeliveryError, match="2 records were not delivered") as caught:
            producer.flush()
        assert [each.key for each in caught.value.undelivered] == [b"o1", b"o2"]
        assert caught.value.undelivered[0].value == b'{"id":"o1"}'
        producer.flush()


def test_a_failed_delivery_somebody_asked_about_is_not_raised_again() -> None:
    with lonely(delivery_timeout_seconds=0.3) as producer:
        first, second = producer.send_soon(ORDERS, EVENT), producer.send_soon(ORDERS, EVENT)
        assert isinstance(first.exception(), DeliveryError)
        with pytest.raises(DeliveryError, match="not acknowledged in time"):
            second.result()
        producer.flush()
        assert producer.metrics() == ProducerMetrics(sent=2, acknowledged=0, failed=2, queued=0, bytes=22)


def test_a_failed_synchronous_send_raises_its_own_error() -> None:
    with (
        lonely(delivery_timeout_seconds=0.3) as producer,
        pytest.raises(DeliveryError, match="not acknowledged in time"),
    ):
        producer.send(ORDERS, EVENT)


def test_close_raises_what_it_could_not_deliver() -> None:
    producer = lonely()
    for _ in range(5):
        producer.send_soon(ORDERS, EVENT)
    started = time.monotonic()
    with pytest.raises(DeliveryError, match="5 records were not delivered") as caught:
        producer.close(0.2)
    assert time.monotonic() - started < 3
    assert "given up before it was sent" in str(caught.value)
    producer.close()


def test_leaving_the_with_raises_what_was_not_delivered() -> None:
    with (
        pytest.raises(DeliveryError, match="1 record was not delivered"),
        lonely(delivery_timeout_seconds=0.3) as producer,
    ):
        producer.send_soon(ORDERS, EVENT)


def test_an_exception_in_the_with_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError) as caught, lonely(delivery_timeout_seconds=0.3) as producer:
        _ = producer.send_soon(ORDERS, EVENT), 1 / 0
    assert "1 record was not delivered" in caught.value.__notes__[0]


def test_ctrl_c_in_the_with_leaves_soon() -> None:
    with interrupted(0.1), lonely(delivery_timeout_seconds=0.5) as producer:
        producer.send_soon(ORDERS, EVENT).result()


def test_a_callback_is_told_of_the_failure_and_nobody_else() -> None:
    told: list[Any] = []
    with lonely(delivery_timeout_seconds=0.3) as producer:
        producer.send_soon(ORDERS, EVENT, on_delivery=told.append)
        producer.flush()
    assert isinstance(told[0].exception(), DeliveryError)


def test_a_callback_runs_while_nobody_calls() -> None:
    called = threading.Event()
    with lonely(delivery_timeout_seconds=0.3) as producer:
        producer.send_soon(ORDERS, EVENT, on_delivery=lambda _: called.set())
        assert called.wait(5)


def test_a_callback_that_raises_is_not_lost() -> None:
    with lonely(delivery_timeout_seconds=0.3) as producer:
        producer.send_soon(ORDERS, EVENT, on_delivery=lambda _: 1 / 0)
        with pytest.raises(HandlerError, match="ZeroDivisionError"):
            producer.flush()


@pytest.mark.parametrize(
    "wait",
    [lambda p: p.send(ORDERS, EVENT), lambda p: p.flush(), lambda p: p.close(), lambda p: p.send_all(ORDERS, [])],
)
def test_a_callback_cannot_wait_for_itself(wait: Callable[[Producer], Any]) -> None:
    with lonely(delivery_timeout_seconds=0.3) as producer:
        producer.send_soon(ORDERS, EVENT, on_delivery=lambda _: wait(producer))
        with pytest.raises(HandlerError, match="An on_delivery callback cannot"):
            producer.flush()


def test_a_callback_can_send_soon() -> None:
    with lonely(delivery_timeout_seconds=0.3) as producer:
        producer.send_soon(ORDERS, EVENT, on_delivery=lambda _: producer.send_soon(ORDERS, Order(id="again")))
        with pytest.raises(DeliveryError) as caught:
            producer.flush()
        assert [each.key for each in caught.value.undelivered] == [b"again"]


def test_send_all_says_what_became_of_its_records() -> None:
    with lonely(delivery_timeout_seconds=0.3) as producer:
        with pytest.raises(DeliveryError, match="600 records were not delivered") as caught:
            producer.send_all(ORDERS, (Order(id=str(n)) for n in range(600)))
        assert {name: caught.value.fields[name] for name in ("count", "taken", "acknowledged")} == {
            "count": 600, "taken": 600, "acknowledged": 0,
        }  # fmt: skip
        assert len(caught.value.undelivered) == 100
        producer.flush()


def test_send_all_stops_at_the_first_failure() -> None:
    taken = 0

    def values() -> Iterator[Order]:
        nonlocal taken
        while True:
            taken += 1
            if taken % 300 == 0:
                time.sleep(0.1)
            yield EVENT

    with lonely(delivery_timeout_seconds=0.3) as producer, pytest.raises(DeliveryError) as caught:
        producer.send_all(ORDERS, values())
    assert caught.value.fields["count"] == caught.value.fields["taken"] < 5000


def test_send_all_tells_both_of_an_error_of_its_values_and_of_undelivered_records() -> None:
    def values() -> Iterator[Order]:
        yield from [EVENT] * 300
        raise ZeroDivisionError

    with lonely(delivery_timeout_seconds=0.3) as producer, pytest.raises(ZeroDivisionError) as caught:
        producer.send_all(ORDERS, values())
    assert caught.value.__notes__[0].startswith("Of the 256 records taken before this: 256 records were not delivered")


def test_send_all_delivers_what_came_before_an_invalid_value() -> None:
    with lonely(delivery_timeout_seconds=0.3) as producer, pytest.raises(EventInvalidError) as caught:
        producer.send_all(ORDERS, [EVENT, EVENT, Order(id=5)])  # type: ignore[arg-type]
    assert "Of the 2 records taken before this" in caught.value.__notes__[0]


def test_an_interrupted_send_all_leaves_its_failures_to_close() -> None:
    producer = lonely(queue_records=100)
    with interrupted(0.2):
        producer.send_all(ORDERS, [EVENT] * 200)
    with pytest.raises(DeliveryError, match="100 records were not delivered"):
        producer.close(0)


def test_flush_says_how_many_are_still_on_their_way() -> None:
    with given_up(lonely()) as producer:
        producer.send_soon(ORDERS, EVENT)
        with pytest.raises(DeliveryError, match="1 record is still on the way"):
            producer.flush(0.1)


# --- back pressure -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("send", ["send", "send_soon", "send_all"])
def test_a_full_queue_blocks_until_its_deadline(send: str) -> None:
    with given_up(lonely(queue_records=50, queue_timeout_seconds=0.4, delivery_timeout_seconds=3)) as producer:
        if send != "send_all":
            for _ in range(50):
                producer.send_soon(ORDERS, EVENT)
        calls: dict[str, Callable[[], Any]] = {
            "send": lambda: producer.send(ORDERS, EVENT),
            "send_soon": lambda: producer.send_soon(ORDERS, EVENT),
            "send_all": lambda: producer.send_all(ORDERS, [EVENT] * 60),
        }
        started = time.monotonic()
        with pytest.raises(QueueFullError, match="Connection refused") as caught:
            calls[send]()
        assert time.monotonic() - started > 0.4
        assert caught.value.fields["queued"] >= 50
        assert 0.4 <= caught.value.fields["waited_seconds"] < 2
        assert producer.metrics().sent == 50, "the record that did not fit was not taken"


def test_the_queue_is_bounded_by_bytes_too() -> None:
    with given_up(lonely(queue_mb=1, queue_timeout_seconds=0.1)) as producer:
        with pytest.raises(QueueFullError):
            _ = [producer.send_soon("orders", b"x" * 100_000) for _ in range(100)]
        assert producer.metrics().sent == 10


def test_a_full_queue_takes_again_when_there_is_room() -> None:
    with given_up(lonely(queue_records=10, queue_timeout_seconds=5, delivery_timeout_seconds=0.5)) as producer:
        for _ in range(25):
            producer.send_soon(ORDERS, EVENT)
        assert producer.metrics().sent == 25


def test_a_callback_does_not_wait_for_room() -> None:
    with given_up(lonely(queue_records=1, delivery_timeout_seconds=0.3)) as producer:
        producer.send_soon(ORDERS, EVENT, on_delivery=lambda _: producer.send_soon(ORDERS, EVENT))
        with pytest.raises(HandlerError, match="QueueFullError"):
            producer.flush()


# --- waiting -----------------------------------------------------------------------------------------------------------


def test_waiting_for_a_delivery_has_an_end() -> None:
    with given_up(lonely()) as producer:
        delivery = producer.send_soon(ORDERS, EVENT)
        assert not delivery.done()
        assert repr(delivery) == "<Delivery pending>"
        with pytest.raises(TimeoutError, match="it may still be"):
            delivery.result(0.1)
        with pytest.raises(TimeoutError):
            delivery.exception(0)


def test_a_delivery_is_settled_when_its_producer_closes() -> None:
    with given_up(lonely()) as producer:
        delivery = producer.send_soon(ORDERS, EVENT)
    assert delivery.done()
    assert isinstance(delivery.exception(), DeliveryError)
    assert repr(delivery) == "<Delivery failed: _PURGE_QUEUE>"


@pytest.mark.parametrize("where", ["lookup", "room", "result", "send", "flush", "close"])
def test_ctrl_c_is_heard(where: str) -> None:
    patient = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1", request_timeout_seconds=30))
    producer = lonely(queue_records=10)
    with given_up(producer), given_up(Producer(patient)) as other:
        delivery, *_ = [producer.send_soon(ORDERS, EVENT) for _ in range(5 if where == "send" else 10)]
        waits: dict[str, Callable[[], Any]] = {
            "lookup": lambda: other.send("t", b""),
            "room": lambda: producer.send_soon(ORDERS, EVENT),
            "result": delivery.result,
            "send": lambda: producer.send(ORDERS, EVENT),
            "flush": producer.flush,
            "close": producer.close,
        }
        with interrupted(0.3):
            waits[where]()


@pytest.mark.parametrize("send", [lambda p: p.send(ORDERS, EVENT), lambda p: p.send_soon(ORDERS, EVENT)])
def test_ctrl_c_that_the_library_takes_for_a_wrong_header_is_ctrl_c(send: Callable[[Producer], Any]) -> None:
    """It says so when the signal arrives while it reads a header: about one in a thousand."""

    def met(*_: Any) -> None:
        raise TypeError("expected header key to be unicode string")

    with lonely() as producer:
        send_first = producer.send_soon(ORDERS, EVENT)
        assert not send_first.done()
        producer._core.client.produce = met
        with pytest.raises(KeyboardInterrupt):
            send(producer)
        with pytest.raises(DeliveryError):
            producer.close(0)


def test_ctrl_c_that_the_library_loses_in_a_callback_is_ctrl_c() -> None:
    def lost(_: Any) -> None:
        raise SystemError("<method 'flush'> returned NULL without setting an exception")

    with given_up(lonely()) as producer:
        with pytest.raises(KeyboardInterrupt):
            producer._core.client.call(lost)
        producer.send_soon(ORDERS, EVENT)
        with pytest.raises(DeliveryError, match="still on the way"):
            producer.flush(0.1)


# The thread that reports is whoever polls at that moment: us, or the producer's own.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_report_that_was_interrupted_is_missed() -> None:
    class Interrupted:
        def __call__(self, *_: Any) -> None:
            raise KeyboardInterrupt

    producer = lonely()
    delivery = producer.send_soon(ORDERS, EVENT)
    delivery._callback = Interrupted()
    missed = "The outcome of 1 record is not known"
    try:
        producer.close(0)
    except KeyboardInterrupt:
        with pytest.raises(DeliveryError, match=missed):
            producer.flush()
    except DeliveryError as error:
        assert missed in str(error)  # noqa: PT017
    else:
        pytest.fail("closing a producer whose report was interrupted said nothing")


def test_threads_share_a_producer() -> None:
    with given_up(lonely()) as producer:

        def send() -> None:
            for _ in range(5000):
                producer.send_soon(ORDERS, EVENT)

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert producer.metrics().sent == 20_000
        assert producer.metrics().queued == 20_000
        with pytest.raises(DeliveryError, match="20000 records were not delivered"):
            producer.close(0)
    assert producer.metrics() == ProducerMetrics(sent=20_000, acknowledged=0, failed=20_000, queued=0, bytes=220_000)


# --- its end -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [lambda p: p.send(ORDERS, EVENT), lambda p: p.send_soon(ORDERS, EVENT), lambda p: p.send_all(ORDERS, [EVENT]),
     lambda p: p.send("new", b""), lambda p: p.send_soon(ORDERS, EVENT, key="k")],
)  # fmt: skip
def test_a_closed_producer_says_so(use: Callable[[Producer], Any]) -> None:
    producer = lonely()
    producer.close()
    producer.close()
    with pytest.raises(UsageError, match="This producer is closed"):
        use(producer)


def test_a_producer_that_was_dropped_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.warns(ResourceWarning, match="was not closed"):
        lonely(delivery_timeout_seconds=0.3).send_soon(ORDERS, EVENT)
    assert "records are lost" in caplog.text
    assert "1 record was not delivered" in caplog.text


def test_a_producer_that_is_left_at_the_end_of_the_program_says_so() -> None:
    done = run("from test_producer import *; p = lonely(delivery_timeout_seconds=0.3); p.send_soon(ORDERS, EVENT)")
    assert done.returncode == 0
    assert "A producer was not closed, and records are lost: 1 record was not delivered" in done.stderr


def test_no_thread_is_left() -> None:
    before = threading.active_count()
    with given_up(lonely()) as producer:
        producer.send_soon(ORDERS, EVENT)
        assert threading.active_count() > before
    assert threading.active_count() == before


def test_a_forked_child_cannot_use_its_parents_producer() -> None:
    code = """
import gc
from test_producer import *
p = lonely(properties={"reconnect.backoff.ms": 10_000, "reconnect.backoff.max.ms": 10_000})
delivery = p.send_soon(ORDERS, EVENT)
# The C library's resolver has a lock that a fork copies as it is; if a thread of the client has it, no name is resolved in
# the child, ever. So not while the parent connects.
while p._core.client._last_error is None:
    p._core.client.poll_wait()
child = os.fork()
if child == 0:
    for use in (lambda: p.send(ORDERS, EVENT), lambda: p.send_soon(ORDERS, EVENT), lambda: p.send_all(ORDERS, [EVENT])):
        try:
            use()
        except UsageError as error:
            print(error.what, flush=True)
    p.flush(), p.close()
    q = lonely()
    q.send_soon(ORDERS, EVENT)
    try:
        q.close(0)
    except DeliveryError as error:
        print(error.what, flush=True)
    del p, delivery
    gc.collect()
    sys.exit(7)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    p.close(0)
except DeliveryError as error:
    print("parent:", error.what)
"""
    done = run(code)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        *["This producer was made before the process forked, and its threads are in the parent"] * 3,
        "1 record was not delivered",
        "child 7",
        "parent: 1 record was not delivered",
    ]


# --- hooks -------------------------------------------------------------------------------------------------------------


def test_metrics_are_handed_out_at_intervals() -> None:
    seen: list[ProducerMetrics] = []
    twice = threading.Event()

    def on_metrics(metrics: ProducerMetrics) -> None:
        seen.append(metrics)
        if len(seen) >= 2:
            twice.set()

    with given_up(lonely(on_metrics=on_metrics, metrics_seconds=0.1)) as producer:
        producer.send_soon(ORDERS, EVENT)
        assert twice.wait(10)
    assert (seen[-1].sent, seen[-1].queued, seen[-1].latency_ms) == (1, 1, None)


def test_a_metrics_hook_that_raises_is_not_lost() -> None:
    called = threading.Event()

    def on_metrics(_: ProducerMetrics) -> None:
        called.set()
        raise ValueError("mine")

    producer = lonely(on_metrics=on_metrics, metrics_seconds=0.1)
    assert called.wait(10)
    with pytest.raises(HandlerError, match="ValueError: mine"):
        producer.close()


# --- transactions ------------------------------------------------------------------------------------------------------


def test_what_needs_a_transaction_and_what_needs_an_id() -> None:
    with lonely() as plain, pytest.raises(UsageError, match="has no transactional_id"), plain.transaction():
        pass
    with lonely(transactional_id="t") as producer:
        for use in (producer.send, producer.send_soon):
            with pytest.raises(UsageError, match="in transactions only"):
                use(ORDERS, EVENT)
        with pytest.raises(UsageError, match="in transactions only"):
            producer.send_all(ORDERS, [EVENT])
        with pytest.raises(UsageError, match="This transaction is not open"):
            producer.transaction().send(ORDERS, EVENT)
        with pytest.raises(BrokerUnreachableError), producer.transaction():
            pass


def test_its_thread_rests_while_another_one_is_in_a_long_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of a transaction takes a while and serves reports itself: looking again and again took a core meanwhile."""
    producer = lonely()
    client = producer._core.client
    looks: list[str] = []
    poll = client._poll

    def counted(*words: Any) -> bool:
        looks.append(threading.current_thread().name)
        return poll(*words)

    monkeypatch.setattr(client, "_poll", counted)
    producer.send_soon(ORDERS, EVENT)
    client.call(lambda _: time.sleep(0.5))
    seen = looks.count(client._thread.name)
    with suppress(DeliveryError):
        producer.close(timeout_seconds=0)
    # Every 10 ms; without a rest it was tens of thousands.
    assert seen < 500
