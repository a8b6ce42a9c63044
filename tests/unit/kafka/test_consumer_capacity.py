"""Handlers that are slow: the room is shared among partitions."""

import threading
import time
from typing import Any

from riverrun.kafka.consumer.record import Record
from riverrun.model.cluster_state import TopicPartition
from unit.kafka.fake_client import FakeClient

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_partition_that_took_all_the_room_at_once_and_is_stuck_does_not_stop_the_other(wide: FakeClient) -> None:
    # The client gives all of the first partition before any of the second.
    wide.logs = {A: range(1000), B: range(1000)}
    wide.committed_offsets = {A: 0, B: 0}
    gate = threading.Event()
    seen: list[int] = []

    def handle(record: Record[Any]) -> None:
        if record.partition == 0:
            assert gate.wait(20)
        else:
            seen.append(record.offset)

    with wide.consumer(follow=False) as consumer:
        thread = threading.Thread(target=consumer.run, args=(handle,), kwargs={"workers": 2, "max_in_flight": 400})
        thread.start()
        end = time.monotonic() + 10
        while len(seen) < 1000 and time.monotonic() < end:
            time.sleep(0.01)
        others = len(seen)
        gate.set()
        thread.join(20)
    assert others == 1000
    assert wide.committed_offsets == {A: 1000, B: 1000}
