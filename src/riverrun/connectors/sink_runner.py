"""Run a sink: write the records of a topic to another system, in batches. At least once, committed after they are written.

What a target does not take now is retried for as long as it takes, and later records wait in Kafka: that is the back
pressure. What it never takes goes to the topic's dead letters with the reason, and the rest continues.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.connectors.retry import Backoff, NoticeThrottle, is_permanent
from riverrun.connectors.status import ConnectorStatus, now_ms
from riverrun.errors import ConnectorRefusedError, RetryLaterError, RiverrunError
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.consumer import Consumer
from riverrun.kafka.consumer.dead_letter import DeadLetterProducer
from riverrun.kafka.consumer.record import Record
from riverrun.model.connector import FailedRecord, Sink

if TYPE_CHECKING:
    from riverrun.model.topic import Topic

_LOG = logging.getLogger("riverrun.connectors")
# A batch that takes longer is given back and read again by a new group member: others must not wait for it.
MAX_BATCH_SECONDS = 60.0
# The batch size is reduced to keep batches shorter than this.
SLOW_BATCH_SECONDS = 20.0
MAX_RETRY_SECONDS = 30.0
COMMIT_SECONDS = 0.2


@dataclass(frozen=True)
class SinkJob:
    """A sink and the topic it reads."""

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
        job: SinkJob,
        status: ConnectorStatus,
        stop: threading.Event,
        *,
        notice: Callable[[str], None] = _LOG.warning,
    ) -> None:
        super().__init__(name=status.label, daemon=True)
        self._connection = connection
        self._job = job
        self._status = status
        self._halt = stop
        self._notice = notice
        self._backoff = Backoff()
        self._notice_throttle = NoticeThrottle()
        self._consumer: Consumer[Any] | None = None
        # How many records are written together. Fewer after a batch that took too long: a batch that is never done in time
        # would be partly written again for ever.
        self._batch_size = job.sink.batch

    def run(self) -> None:
        status = self._status
        while not self._halt.is_set():
            try:
                self._run_once()
            except Exception as error:  # noqa: BLE001  -- a sink is anybody's code: any error is reported and tried again
                reason = _error_text(error)
                if is_permanent(error):
                    status.set_state("failed", reason)
                    self._notice(f"{status.label} has failed, and is not tried again: {reason}")
                    return
                status.set_state("retrying", reason)
                delay = self._backoff.next_delay()
                _LOG.debug("%s failed", status.label, exc_info=error)
                if self._notice_throttle.should_notify(reason):
                    self._notice(f"{status.label} is tried again in {delay:g} s: {reason}")
                self._halt.wait(delay)
        status.set_state("stopped", status.error)

    def _run_once(self) -> None:
        job, sink = self._job, self._job.sink
        dead_letters = DeadLetterProducer(self._connection, job.group)
        dead_letters.prepare([job.topic_name])
        sink.open()
        try:
            with Consumer(
                job.topic,
                group=job.group,
                connection=self._connection,
                # Not "batch": that would leave the transaction marker at the end uncommitted until the next record.
                commit="interval",
                commit_interval_seconds=COMMIT_SECONDS,
                max_poll_seconds=MAX_BATCH_SECONDS * 5,
                on_metrics=self._update_lag,
                metrics_seconds=0.5,
            ) as consumer:
                self._consumer = consumer
                stopper = threading.Thread(target=self._stop_consumer, args=(consumer,), daemon=True)
                stopper.start()
                self._status.set_state("waiting")
                # Asking for the next batch completes the one before; the batch size may have changed.
                while (
                    batch := next(consumer.batches(self._batch_size, wait_seconds=sink.batch_seconds), None)
                ) is not None:
                    self._status.set_state("running")
                    started = time.monotonic()
                    try:
                        if not _SinkBatch(self, dead_letters, list(batch)).write():
                            # Not committed: leaving the loop by an error gives it back.
                            raise _BatchReturnedError(0.0, self._status.error)
                    finally:
                        self._resize(len(batch), time.monotonic() - started)
                    self._status.set_state("waiting")
        except _BatchReturnedError as returned:
            wait_seconds, reason = returned.wait, returned.reason
        else:
            return
        finally:
            self._consumer = None
            sink.close()
            dead_letters.close()
        self.wait(wait_seconds, reason)

    def _resize(self, count: int, seconds: float) -> None:
        """Half the batch size after a slow batch, up to twice as much after a fast one."""
        if seconds > SLOW_BATCH_SECONDS:
            self._batch_size = max(1, min(self._batch_size, count) // 2)
        elif seconds < SLOW_BATCH_SECONDS / 4:
            self._batch_size = min(self._job.sink.batch, 2 * self._batch_size)

    def _stop_consumer(self, consumer: "Consumer[Any]") -> None:
        while self._consumer is consumer:
            if self._halt.wait(0.1):
                consumer.stop()
                return

    def _update_lag(self, metrics: Any) -> None:
        self._status.lag, self._status.lag_unit = metrics.lag, "offsets"

    # --- for a batch --------------------------------------------------------------------------------------------------

    @property
    def sink(self) -> Sink:
        return self._job.sink

    def wait(self, seconds: float, reason: str) -> bool:
        """Wait before another try; False when stopped."""
        self._status.set_state("retrying", reason)
        return not self._halt.wait(seconds)

    def reset_backoff(self) -> None:
        """The target takes records: the next failure is a new one."""
        self._backoff.reset()
        self._notice_throttle.reset()

    def count(self, records: int, dead_letters: int) -> None:
        """Count a whole batch: one that is given back is written again, and is counted then."""
        self._status.records += records
        self._status.dead_letters += dead_letters
        self._status.committed_ms = now_ms()


class _BatchReturnedError(Exception):
    """A batch was not written before the stop, or before others would have to wait for it."""

    def __init__(self, wait: float, reason: str) -> None:
        super().__init__(reason)
        self.wait = wait
        self.reason = reason


class _SinkBatch:
    """Writes a batch of records, with as many attempts as it takes."""

    def __init__(self, runner: SinkRunner, dead_letters: DeadLetterProducer, records: list[Record[Any]]) -> None:
        self._runner = runner
        self._dead_letters = dead_letters
        self._records = records
        self._attempts: dict[str, int] = {}
        self._dead_letter_count = 0
        self._started = time.monotonic()
        self._backoff = Backoff(0.2, MAX_RETRY_SECONDS)

    def write(self) -> bool:
        """True when each is written or a dead letter. False: stopped, or it takes too long."""
        if not self._write(self._records):
            return False
        self._runner.count(len(self._records), self._dead_letter_count)
        return True

    def _write(self, records: Sequence[Record[Any]]) -> bool:
        while records:
            left, wait, reason = self._attempt(records)
            if len(left) < len(records):
                self._runner.reset_backoff()
            if wait is None:
                # Refused as a whole: one bad record must not fail the others.
                return self._write_one_by_one(left)
            records = left
            if records and not self._wait(wait, reason):
                return False
        return True

    def _attempt(self, records: Sequence[Record[Any]]) -> tuple[list[Record[Any]], float | None, str]:
        """The records that are left, how long to wait for them (None: try them one by one), and why."""
        try:
            undone = list(self._runner.sink.write(records) or ())
        except RetryLaterError as error:
            return list(records), error.after_seconds, str(error)
        except ConnectorRefusedError as error:
            if len(records) > 1:
                return list(records), None, str(error)
            self._write_dead_letter(records[0], error)
            return [], 0.0, ""
        except Exception as error:  # noqa: BLE001  -- a sink is anybody's code
            return self._handle_error(records, error)
        return self._sort_failed(undone)

    def _handle_error(
        self, records: Sequence[Record[Any]], error: Exception
    ) -> tuple[list[Record[Any]], float | None, str]:
        record_id = str(records[0])
        attempts = self._attempts[record_id] = self._attempts.get(record_id, 0) + 1
        if attempts <= self._runner.sink.retries:
            return list(records), self._backoff.next_delay(), _error_text(error)
        if len(records) > 1:
            self._attempts[record_id] = 0
            return list(records), None, _error_text(error)
        self._write_dead_letter(records[0], error, attempts)
        return [], 0.0, ""

    def _sort_failed(self, failed_records: list[FailedRecord]) -> tuple[list[Record[Any]], float | None, str]:
        retryable = [failed for failed in failed_records if failed.retry]
        for failed in failed_records:
            if not failed.retry:
                self._write_dead_letter(failed.record, ConnectorRefusedError(failed.reason.rstrip(".")))
        wait = max((failed.after_seconds for failed in retryable), default=0.0)
        return [failed.record for failed in retryable], wait, retryable[0].reason if retryable else ""

    def _write_one_by_one(self, records: Sequence[Record[Any]]) -> bool:
        return all(self._write([record]) for record in records)

    def _wait(self, seconds: float, reason: str) -> bool:
        wait = seconds or self._backoff.next_delay()
        if time.monotonic() + wait - self._started > MAX_BATCH_SECONDS:
            # Records written before are written again then: the group must not wait for one member.
            raise _BatchReturnedError(wait, reason)
        return self._runner.wait(wait, reason)

    def _write_dead_letter(self, record: Record[Any], error: Exception, attempts: int = 1) -> None:
        self._dead_letters.write(record, error, attempts)
        self._dead_letter_count += 1
        _LOG.warning("%s went to the dead letters: %s", record, _error_text(error))


def _error_text(error: Exception) -> str:
    return str(error) if isinstance(error, RiverrunError) else f"{type(error).__name__}: {error}"
