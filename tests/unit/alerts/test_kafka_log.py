"""What the alerts' log in Kafka does without one; with one it is tested in tests/integration/test_alerts.py."""

import contextlib
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.alerts.kafka_log import KafkaAlertLog
from riverrun.errors import BrokerUnreachableError, OffsetOutOfRangeError


def log_of(topics: Callable[..., Any]) -> Any:
    log: Any = KafkaAlertLog.__new__(KafkaAlertLog)
    log._admin, log._topics = SimpleNamespace(topics=topics), ["load"]
    log._topic_ids, log._current_topic_ids = {"load": "first"}, {}
    log._topic_ids_checked_at, log._topic_ids_thread = 0.0, None
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
    log._topic_ids_checked_at = 0.0
    with contextlib.suppress(OffsetOutOfRangeError):
        log._check_topics()
    # On a busy machine the answer is there at the next look only.
    log._topic_ids_thread.join(30)
    with pytest.raises(OffsetOutOfRangeError, match="load was deleted and made again"):
        log._check_topics()
