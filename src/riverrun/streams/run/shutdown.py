"""The shutdown of a pipeline, soon after it was requested, even if Kafka is gone.

While Kafka answers, the shutdown may take its time: batches are ended cleanly, dead letters are written. If it does not,
waiting is useless: Spark's threads wait in Kafka's clients, a call to Spark waits for them, and each request of ours takes
its whole timeout. Then the shutdown is as abrupt as a kill: the next run resumes from the checkpoint.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from riverrun.kafka.connection import Connection
from riverrun.kafka.probe import RESPONSE_TIMEOUT_SECONDS, is_cluster_reachable
from riverrun.streams.run.session import kill_spark, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Without Kafka, Spark is killed after this time, which ends every call that waits for it.
SPARK_SECONDS = 1.5
# How long stopping the streams may take: while Kafka answers, and without it.
STOP_SECONDS = 60.0
SHORT_STOP_SECONDS = 3.0
POLL_SECONDS = 0.1


class GracefulShutdown:
    """Watches the shutdown of one pipeline in a thread of its own. Calls `abandon` if Kafka is gone."""

    def __init__(
        self,
        connection: Connection,
        stop: threading.Event,
        *,
        abandon: Callable[[], None],
        notice: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._stop = stop
        self._abandon = abandon
        self._notice = notice
        self._started = threading.Event()
        self._kafka_checked = threading.Event()
        self._finished = threading.Event()
        self._kafka_gone = False
        self._thread = threading.Thread(target=self._watch, name="riverrun-ending", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def begin(self) -> bool:
        """Begin the shutdown. Returns whether Kafka answers, so that waiting makes sense."""
        self._started.set()
        self._kafka_checked.wait(RESPONSE_TIMEOUT_SECONDS + 1)
        return self._kafka_checked.is_set() and not self._kafka_gone

    def stop(self, stops: Iterable[Callable[[], object]]) -> bool:
        """Call these in parallel and wait for them; with Kafka gone only briefly, and those that still run are left alone.
        Returns whether Kafka answers."""
        threads = [threading.Thread(target=stop, name="riverrun-stop", daemon=True) for stop in stops]
        for thread in threads:
            thread.start()
        answers = self.begin()
        deadline = time.monotonic() + (STOP_SECONDS if answers else SHORT_STOP_SECONDS)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.finish()
        return answers

    def finish(self) -> None:
        """Say that nothing waits for Spark any more, so that it is not killed."""
        self._finished.set()

    def _watch(self) -> None:
        while not self._stop.is_set() and not self._started.wait(POLL_SECONDS):
            pass
        try:
            self._kafka_gone = not is_cluster_reachable(self._connection.properties(), RESPONSE_TIMEOUT_SECONDS)
        finally:
            self._kafka_checked.set()
        if self._kafka_gone:
            self._abandon()
            self._notice(
                "Kafka does not answer: the streams end without waiting for it; the next run goes on from where they were"
            )
            if not self._finished.wait(SPARK_SECONDS):
                kill_spark()


def stop_spark(spark: "SparkSession", connection: Connection) -> None:
    """Stop a Spark that has read from Kafka; kill it first if Kafka is gone, because its tasks would wait for it."""
    if not is_cluster_reachable(connection.properties(), RESPONSE_TIMEOUT_SECONDS):
        kill_spark()
    stop_session(spark)
