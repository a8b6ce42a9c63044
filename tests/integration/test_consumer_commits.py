"""Commits get through while the consumer polls.

The client lets one thread at a time into a consumer (Handle_serialize_enter in its C part, retried by usleep): a commit of
another thread than the one that polls in a loop waits for ever. This held the demo up; see kafka/consumer/committer.py.
"""

import threading
import time
from collections.abc import Callable

import riverrun as rr
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.groups import group_lags
from riverrun.testing.pytest_plugin import KafkaUnderTest


def test_what_was_handled_is_committed_while_run_waits_for_more(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=4)
    group = f"idle-{topic}"
    with rr.Producer(kafka.connection) as producer:
        producer.send_all(topic, ({"n": n} for n in range(4_000)), key=lambda each: str(each["n"]))
    with rr.Consumer(topic, group=group, connection=kafka.connection, commit_interval_seconds=0.5) as consumer:
        thread = threading.Thread(target=lambda: consumer.run(lambda _: None, workers=4))
        thread.start()
        admin = Admin(kafka.connection)
        deadline = time.monotonic() + 20
        behind: int | None = None
        while behind != 0 and time.monotonic() < deadline:
            found = group_lags(admin, [group], seconds=False)
            behind = found[0].lag if found and len(found[0].partitions) == 4 else None
            time.sleep(0.1)
        consumer.stop()
        thread.join(30)
    assert behind == 0
