"""Reads the output topics of all streams while a demo runs, and counts their rows."""

import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

from riverrun.errors import RiverrunError
from riverrun.kafka.consumer.consumer import Consumer
from riverrun.kafka.exactly_once import BATCH_HEADER
from riverrun.model.topic import Topic

if TYPE_CHECKING:
    from collections.abc import Collection

    from riverrun.kafka.consumer.record import Record
    from riverrun.model.cluster_state import TopicPartition
    from riverrun.model.progress import PipelineProgress


class StreamResults:
    """Reads the topics of all streams, committed, in a thread of its own, in a `with`: counts rows, passes each to
    `take`.

    They are counted as they arrive, so that the end does not have to read everything again. A topic may be given with
    its type; then its records have that.
    """

    def __init__(self, topics: "Collection[str | Topic[Any]]") -> None:
        self._topics = list(topics)
        self._names = tuple(topic.name if isinstance(topic, Topic) else topic for topic in topics)
        self._consumer: Consumer[Any] = Consumer(self._topics, isolation="committed")
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._lock = threading.Lock()
        self._next: dict[TopicPartition, int] = {}
        self._error: Exception | None = None
        # (topic, batch that wrote them): number of rows.
        self._rows: Counter[tuple[str, bytes]] = Counter()

    def take(self, record: "Record[Any]") -> None:
        """Handle one row. Called under the lock."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.stop()
        self._thread.join(10)

    def _follow(self) -> None:
        try:
            with self._consumer:
                self._read(self._consumer)
        except RiverrunError as error:
            self._error = error

    def finish(self) -> None:
        """Read the rest, once nothing is written any more."""
        self.__exit__()
        self.check()
        with Consumer(self._topics, isolation="committed", follow=False) as consumer:
            for partition, offset in self._next.items():
                consumer.seek(partition, offset)
            self._read(consumer)

    def _read(self, consumer: "Consumer[Any]") -> None:
        for batch in consumer.batches(5000, wait_seconds=0.2):
            with self._lock:
                for record in batch:
                    # On a busy machine the thread may still read while the rest is read: each row is counted once.
                    if record.offset < self._next.get(record.topic_partition, 0):
                        continue
                    self._rows[record.topic, record.header(BATCH_HEADER) or b""] += 1
                    self._next[record.topic_partition] = record.offset + 1
                    self.take(record)

    def rows(self, progress: "PipelineProgress | None" = None) -> dict[str, int]:
        """How many rows each topic has: all, or those of the batches that had ended when the pipeline reported this
        progress.

        An interrupted batch is done again, and its rows counted, when the pipeline goes on.
        """
        finished_batches = (
            {stream.topic or stream.name: stream.batch for stream in progress.streams} if progress else {}
        )
        with self._lock:
            counted = list(self._rows.items())
        return {
            name: sum(
                count
                for (topic, batch), count in counted
                if topic == name and int(batch.rpartition(b"/")[2] or 0) <= finished_batches.get(name, sys.maxsize)
            )
            for name in self._names
        }

    def check(self) -> None:
        if self._error is not None:
            raise self._error
