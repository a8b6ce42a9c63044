"""The end of a pipeline, soon after somebody asked for it, whatever is gone.

While Kafka answers, the end may take its time: batches are left in order, dead letters are written. When it does not,
nothing that is waited for can come: Spark's threads wait in Kafka's clients, a call to Spark waits for them, and each
request of ours takes its whole timeout. Then the end is cut short, as a kill would: the next run goes on from where this
one was.
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

# Without Kafka: Spark is killed so much later, which ends every call that waits for it.
SPARK_SECONDS = 1.5
# How long what is stopped may take: while Kafka answers, and without it.
STOP_SECONDS = 60.0
SHORT_STOP_SECONDS = 3.0
POLL_SECONDS = 0.1


class GracefulShutdown:
    """Watches over the end of one pipeline, from a thread of its own. `abandon` is called when Kafka is gone."""

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
        """The end begins now, whoever asked for it. Gives whether Kafka answers: then it is worth to wait."""
        self._started.set()
        self._kafka_checked.wait(RESPONSE_TIMEOUT_SECONDS + 1)
        return self._kafka_checked.is_set() and not self._kafka_gone

    def stop(self, stops: Iterable[Callable[[], object]]) -> bool:
        """Call these, all at once, and wait for them; with Kafka gone only shortly, and what still waits is left to wait.
        Gives whether Kafka answers."""
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
        """Nothing waits for Spark any more."""
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
    """Stop a Spark that has read from Kafka; where that is gone, at once: its tasks would wait for it."""
    if not is_cluster_reachable(connection.properties(), RESPONSE_TIMEOUT_SECONDS):
        kill_spark()
    stop_session(spark)
