"""A sink: the records of a topic, in batches, to somewhere else. At least once, committed after they are safe there.

What a target does not take now is tried again for as long as it takes, and what is behind waits in Kafka: that is the back
pressure. What it never takes goes to the topic's dead letters with the reason, and the rest goes on.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.connectors.standing import Standing, now_ms
from riverrun.connectors.trying import Pauses, Reminder, is_final
from riverrun.errors import ConnectorRefusedError, RetryLaterError, RiverrunError
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.consumer import Consumer
from riverrun.kafka.consumer.dead_letter import DeadLetters
from riverrun.kafka.consumer.record import Record
from riverrun.model.connector import Sink, Undone

if TYPE_CHECKING:
    from riverrun.model.topic import Topic

_LOG = logging.getLogger("riverrun.connectors")
# A batch that takes longer is read again in a new life of its group's member: others are not to wait for it.
HOLD_SECONDS = 60.0
# Batches are kept shorter than this.
SLOW_SECONDS = 20.0
MOST_WAIT_SECONDS = 30.0
COMMIT_SECONDS = 0.2


@dataclass(frozen=True)
class Drain:
    """A sink and the topic it is fed from."""

    app: str
    name: str
    topic: "Topic[Any] | str"
    sink: Sink

    @property
    def topic_name(self) -> str:
        return self.topic if isinstance(self.topic, str) else self.topic.name

    @property
    def group(self) -> str:
        return f"{self.app}.{self.name}"


class SinkRunner(threading.Thread):
    """Runs one sink until `stop`."""

    def __init__(
        self,
        connection: Connection,
        drain: Drain,
        standing: Standing,
        stop: threading.Event,
        *,
        notice: Callable[[str], None] = _LOG.warning,
    ) -> None:
        super().__init__(name=standing.who, daemon=True)
        self._connection = connection
        self._drain = drain
        self._standing = standing
        self._halt = stop
        self._notice = notice
        self._pauses = Pauses()
        self._reminder = Reminder()
        self._consumer: Consumer[Any] | None = None
        # How many records are written together. Fewer after a batch that took too long: what is never done in time would be
        # written again for ever, as far as it came.
        self._size = drain.sink.batch

    def run(self) -> None:
        standing = self._standing
        while not self._halt.is_set():
            try:
                self._live()
            except Exception as error:  # noqa: BLE001  -- a sink is anybody's code: whatever it raises is told and tried again
                words = _words(error)
                if is_final(error):
                    standing.become("failed", words)
                    self._notice(f"{standing.who} has failed, and is not tried again: {words}")
                    return
                standing.become("retrying", words)
                pause = self._pauses.next()
                _LOG.debug("%s failed", standing.who, exc_info=error)
                if self._reminder.due(words):
                    self._notice(f"{standing.who} is tried again in {pause:g} s: {words}")
                self._halt.wait(pause)
        standing.become("stopped", standing.error)

    def _live(self) -> None:
        drain, sink = self._drain, self._drain.sink
        dead_letters = DeadLetters(self._connection, drain.group)
        dead_letters.prepare([drain.topic_name])
        sink.open()
        try:
            with Consumer(
                drain.topic,
                group=drain.group,
                connection=self._connection,
                # Not "batch": that would leave the mark of a transaction at the end uncommitted until the next record.
                commit="interval",
                commit_interval_seconds=COMMIT_SECONDS,
                max_poll_seconds=HOLD_SECONDS * 5,
                on_metrics=self._counted,
                metrics_seconds=0.5,
            ) as consumer:
                self._consumer = consumer
                ender = threading.Thread(target=self._end, args=(consumer,), daemon=True)
                ender.start()
                self._standing.become("waiting")
                # By asking for the next batch, the one before is done; how large it is may have changed.
                while (batch := next(consumer.batches(self._size, wait_seconds=sink.batch_seconds), None)) is not None:
                    self._standing.become("running")
                    began = time.monotonic()
                    try:
                        if not _Batch(self, dead_letters, list(batch)).write():
                            # Not committed: leaving the loop by an error gives it back.
                            raise _GivenBackError(0.0, self._standing.error)
                    finally:
                        self._resize(len(batch), time.monotonic() - began)
                    self._standing.become("waiting")
        except _GivenBackError as later:
            later_seconds, words = later.wait, later.words
        else:
            return
        finally:
            self._consumer = None
            sink.close()
            dead_letters.close()
        self.wait(later_seconds, words)

    def _resize(self, count: int, seconds: float) -> None:
        """Half as many after a batch that took long, up to twice as many after one that did not."""
        if seconds > SLOW_SECONDS:
            self._size = max(1, min(self._size, count) // 2)
        elif seconds < SLOW_SECONDS / 4:
            self._size = min(self._drain.sink.batch, 2 * self._size)

    def _end(self, consumer: "Consumer[Any]") -> None:
        while self._consumer is consumer:
            if self._halt.wait(0.1):
                consumer.stop()
                return

    def _counted(self, metrics: Any) -> None:
        self._standing.lag, self._standing.lag_unit = metrics.lag, "offsets"

    # --- for a batch --------------------------------------------------------------------------------------------------

    @property
    def sink(self) -> Sink:
        return self._drain.sink

    def wait(self, seconds: float, words: str) -> bool:
        """Wait before another try; False when it is to end."""
        self._standing.become("retrying", words)
        return not self._halt.wait(seconds)

    def went_on(self) -> None:
        """The target takes records: what fails next is another failure."""
        self._pauses.reset()
        self._reminder.reset()

    def count(self, records: int, dead: int) -> None:
        """Of a whole batch: one that is given back is written again, and is counted then."""
        self._standing.records += records
        self._standing.dead += dead
        self._standing.committed_ms = now_ms()


class _GivenBackError(Exception):
    """A batch that was not written before the end, or before others would have to wait for it."""

    def __init__(self, wait: float, words: str) -> None:
        super().__init__(words)
        self.wait = wait
        self.words = words


class _Batch:
    """Writes some records, however often it takes."""

    def __init__(self, runner: SinkRunner, dead_letters: DeadLetters, records: list[Record[Any]]) -> None:
        self._runner = runner
        self._dead_letters = dead_letters
        self._records = records
        self._attempts: dict[str, int] = {}
        self._dead = 0
        self._began = time.monotonic()
        self._pauses = Pauses(0.2, MOST_WAIT_SECONDS)

    def write(self) -> bool:
        """True when each is written or a dead letter. False: it is to end, or takes too long."""
        if not self._write(self._records):
            return False
        self._runner.count(len(self._records), self._dead)
        return True

    def _write(self, records: Sequence[Record[Any]]) -> bool:
        while records:
            undone, wait, words = self._try(records)
            if len(undone) < len(records):
                self._runner.went_on()
            if wait is None:
                # Refused as a whole: one bad record must not take the others along.
                return self._alone(undone)
            records = undone
            if records and not self._wait(wait, words):
                return False
        return True

    def _try(self, records: Sequence[Record[Any]]) -> tuple[list[Record[Any]], float | None, str]:
        """Those that are left, how long to wait for them (None: try them alone), and why."""
        try:
            undone = list(self._runner.sink.write(records) or ())
        except RetryLaterError as error:
            return list(records), error.after_seconds, str(error)
        except ConnectorRefusedError as error:
            if len(records) > 1:
                return list(records), None, str(error)
            self._bury(records[0], error)
            return [], 0.0, ""
        except Exception as error:  # noqa: BLE001  -- a sink is anybody's code
            return self._failed(records, error)
        return self._judged(undone)

    def _failed(self, records: Sequence[Record[Any]], error: Exception) -> tuple[list[Record[Any]], float | None, str]:
        place = str(records[0])
        attempts = self._attempts[place] = self._attempts.get(place, 0) + 1
        if attempts <= self._runner.sink.retries:
            return list(records), self._pauses.next(), _words(error)
        if len(records) > 1:
            self._attempts[place] = 0
            return list(records), None, _words(error)
        self._bury(records[0], error, attempts)
        return [], 0.0, ""

    def _judged(self, undone: list[Undone]) -> tuple[list[Record[Any]], float | None, str]:
        later = [each for each in undone if each.again]
        for each in undone:
            if not each.again:
                self._bury(each.record, ConnectorRefusedError(each.reason.rstrip(".")))
        wait = max((each.after_seconds for each in later), default=0.0)
        return [each.record for each in later], wait, later[0].reason if later else ""

    def _alone(self, records: Sequence[Record[Any]]) -> bool:
        return all(self._write([record]) for record in records)

    def _wait(self, seconds: float, words: str) -> bool:
        wait = seconds or self._pauses.next()
        if time.monotonic() + wait - self._began > HOLD_SECONDS:
            # What is written of it is written again then: the group must not wait for one member.
            raise _GivenBackError(wait, words)
        return self._runner.wait(wait, words)

    def _bury(self, record: Record[Any], error: Exception, attempts: int = 1) -> None:
        self._dead_letters.write(record, error, attempts)
        self._dead += 1
        _LOG.warning("%s went to the dead letters: %s", record, _words(error))


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, RiverrunError) else f"{type(error).__name__}: {error}"
