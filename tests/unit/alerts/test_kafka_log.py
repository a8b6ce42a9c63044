"""What the alerts' log in Kafka does without one; with one it is tested in tests/integration/test_alerts.py."""

import contextlib
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.alerts.kafka_log import KafkaLog
from riverrun.errors import BrokerUnreachableError, OffsetGoneError


def log_of(topics: Callable[..., Any]) -> Any:
    log: Any = KafkaLog.__new__(KafkaLog)
    log._admin, log._topics = SimpleNamespace(topics=topics), ["load"]
    log._ids, log._ids_now, log._ids_asked, log._asking = {"load": "first"}, {}, 0.0, None
    return log


def test_the_loop_does_not_wait_for_a_kafka_that_is_away() -> None:
    """Each look took twelve seconds then, and SIGTERM waited for it."""
    never = threading.Event()

    def topics(*_: object, **__: object) -> None:
        never.wait(120)
        raise BrokerUnreachableError("none")

    log = log_of(topics)
    looking = threading.Thread(target=log._check_topics, daemon=True)
    looking.start()
    looking.join(30)
    assert not looking.is_alive()
    never.set()


def test_a_topic_that_is_another_one_is_noticed() -> None:
    log, now = log_of(lambda *_, **__: {"load": SimpleNamespace(topic_id=now[0])}), ["first"]
    log._check_topics()
    now[0] = "second"
    log._ids_asked = 0.0
    with contextlib.suppress(OffsetGoneError):
        log._check_topics()
    # On a busy machine the answer is there at the next look only.
    log._asking.join(30)
    with pytest.raises(OffsetGoneError, match="load was deleted and made again"):
        log._check_topics()
