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
from riverrun.kafka.probe import ANSWER_SECONDS, cluster_answers
from riverrun.streams.session import kill_spark, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Without Kafka: Spark is killed so much later, which ends every call that waits for it.
SPARK_SECONDS = 1.5
# How long what is stopped may take: while Kafka answers, and without it.
STOP_SECONDS = 60.0
SHORT_STOP_SECONDS = 3.0
LOOK_SECONDS = 0.1


class Ending:
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
        self._begun = threading.Event()
        self._known = threading.Event()
        self._over = threading.Event()
        self._gone = False
        self._thread = threading.Thread(target=self._watch, name="riverrun-ending", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def begin(self) -> bool:
        """The end begins now, whoever asked for it. Gives whether Kafka answers: then it is worth to wait."""
        self._begun.set()
        self._known.wait(ANSWER_SECONDS + 1)
        return self._known.is_set() and not self._gone

    def stop(self, stops: Iterable[Callable[[], object]]) -> bool:
        """Call these, all at once, and wait for them; with Kafka gone only shortly, and what still waits is left to wait.
        Gives whether Kafka answers."""
        threads = [threading.Thread(target=each, name="riverrun-stop", daemon=True) for each in stops]
        for each in threads:
            each.start()
        answers = self.begin()
        deadline = time.monotonic() + (STOP_SECONDS if answers else SHORT_STOP_SECONDS)
        for each in threads:
            each.join(max(0.0, deadline - time.monotonic()))
        self.over()
        return answers

    def over(self) -> None:
        """Nothing waits for Spark any more."""
        self._over.set()

    def _watch(self) -> None:
        while not self._stop.is_set() and not self._begun.wait(LOOK_SECONDS):
            pass
        try:
            self._gone = not cluster_answers(self._connection.properties(), ANSWER_SECONDS)
        finally:
            self._known.set()
        if self._gone:
            self._abandon()
            self._notice(
                "Kafka does not answer: the streams end without waiting for it; the next run goes on from where they were"
            )
            if not self._over.wait(SPARK_SECONDS):
                kill_spark()


def stop_spark(spark: "SparkSession", connection: Connection) -> None:
    """Stop a Spark that has read from Kafka; where that is gone, at once: its tasks would wait for it."""
    if not cluster_answers(connection.properties(), ANSWER_SECONDS):
        kill_spark()
    stop_session(spark)
