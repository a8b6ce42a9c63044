"""Send lines as records to one topic, count them, and report bad lines."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from riverrun.errors import DeliveryError, EventInvalidError, QueueFullError, RecordUnreadableError, RiverrunError
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.producer import Producer
from riverrun.kafka.producer.record_serializer import RecordSerializer
from riverrun.model.lines import BadLine, LineRecord
from riverrun.model.rate_limit import ThroughputThrottler

# Room in a batch for what is not the record: Kafka's own headers.
OVERHEAD_BYTES = 256
_PROGRESS_SECONDS = 0.2
_CHECK_EVERY = 256


@dataclass
class LineCounts:
    """Lines that were sent, and bad lines. Kept up to date while sending."""

    taken: int = 0
    bad: int = 0
    acknowledged: int = 0


class LineSender:
    """Sends lines to one topic.

    `source` names the lines in messages. `on_bad` decides about a bad line: true to continue, false to stop. `limit` is the
    largest record the topic takes, in bytes. A record that is not acknowledged after `timeout_seconds` has failed, and the
    whole send with it. `pack` makes the bytes to send from a line's value, if a topic is not plain JSON.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        *,
        source: str,
        limit: int,
        headers: Sequence[tuple[str, str | bytes | None]] = (),
        on_bad: Callable[[BadLine], bool],
        on_progress: Callable[[LineCounts], None] | None = None,
        timeout_seconds: float = 60,
        pack: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self.counts = LineCounts()
        self._pack = pack
        self._topic = topic
        self._source = source
        self._limit = limit - OVERHEAD_BYTES - sum(len(name) + len(value or b"") for name, value in headers)
        self._headers = list(headers)
        self._on_bad = on_bad
        self._on_progress = on_progress
        self._next_progress = 0.0
        self._stopped_at: BadLine | None = None
        self._producer = Producer(
            connection,
            queue_timeout_seconds=timeout_seconds,
            delivery_timeout_seconds=timeout_seconds,
            properties={"message.max.bytes": limit},
        )

    def delivery_progress(self) -> tuple[int, int]:
        """How many records were sent, and of how many of them the outcome is known. Any thread may ask."""
        metrics = self._producer.metrics()
        return metrics.sent, metrics.sent - metrics.queued

    def send(
        self, lines: Iterable[LineRecord | BadLine], *, read_ahead: bool, rate_limit: ThroughputThrottler | None = None
    ) -> LineCounts:
        """Send all and wait for their acknowledgement. A `read_ahead` source (a file) is read ahead in blocks; others (a
        pipe, a terminal) line by line, so that a record never waits for the next line. Whatever ends it early, `counts` says
        how far it came, and what was sent until then is acknowledged or part of the error."""
        records = self._records(lines)
        try:
            with self._producer as producer:
                if read_ahead and rate_limit is None:
                    self._send_blocks(producer, records)
                else:
                    self._send_each(producer, records, rate_limit)
                producer.flush()
        except (DeliveryError, QueueFullError) as error:
            raise self._delivery_error(error) from error
        finally:
            self.counts.acknowledged = self._producer.metrics().acknowledged
        if self._stopped_at is not None:
            raise self._bad_line_error(self._stopped_at)
        return self.counts

    def _records(self, lines: Iterable[LineRecord | BadLine]) -> Iterator[LineRecord]:
        counts = self.counts
        for raw_line in lines:
            line = self._packed(raw_line) if self._pack is not None and isinstance(raw_line, LineRecord) else raw_line
            if isinstance(line, LineRecord) and not self._too_large(line):
                counts.taken += 1
                if self._on_progress is not None and not counts.taken % _CHECK_EVERY:
                    self._progress()
                yield line
                continue
            bad = line if isinstance(line, BadLine) else self._as_bad(line)
            counts.bad += 1
            if not self._on_bad(bad):
                # Raised when all before it are acknowledged: an exception from here would lose those that are read and not
                # sent yet.
                self._stopped_at = bad
                return

    def _packed(self, line: LineRecord) -> LineRecord | BadLine:
        assert self._pack is not None  # noqa: S101  -- checked by the caller
        try:
            return line._replace(value=self._pack(line.value))
        except (RecordUnreadableError, EventInvalidError) as error:
            return BadLine(line.number, error.found, line.value)

    def _too_large(self, line: LineRecord) -> bool:
        return len(line.value) + len(line.key or b"") > self._limit

    def _as_bad(self, line: LineRecord) -> BadLine:
        return BadLine(line.number, f"its record is larger than {self._limit} bytes", line.value)

    def _progress(self) -> None:
        now = time.monotonic()
        if self._on_progress is not None and now >= self._next_progress:
            self._next_progress = now + _PROGRESS_SECONDS
            self._on_progress(self.counts)

    def _send_blocks(self, producer: Producer, records: Iterator[LineRecord]) -> None:
        serializer = RecordSerializer(self._topic)
        serializer.encode, serializer.key_of, serializer.headers = attrgetter("value"), attrgetter("key"), self._headers
        producer._core.send_all(serializer, records, None)

    def _send_each(
        self, producer: Producer, records: Iterator[LineRecord], rate_limit: ThroughputThrottler | None
    ) -> None:
        send, topic, headers = producer.send_soon, self._topic, self._headers or None
        for line in records:
            if rate_limit is not None:
                rate_limit.wait()
                self._progress()
            send(topic, line.value, key=line.key, headers=headers)
            if not self.counts.taken % _CHECK_EVERY and producer.metrics().failed:
                return

    def _delivery_error(self, error: RiverrunError) -> DeliveryError:
        done = self._producer.metrics().acknowledged
        return DeliveryError(
            f"{self._topic} acknowledged {done} of the {self.counts.taken} records that were read",
            found=f"{error.what}" + (f": {error.found}" if error.found else ""),
            hint="The rest may or may not have been written. Check the cluster (`riverrun status`)",
            topic=self._topic,
            acknowledged=done,
            taken=self.counts.taken,
        )

    def _bad_line_error(self, line: BadLine) -> EventInvalidError:
        done = self._producer.metrics().acknowledged
        shown = line.data[:200].decode(errors="backslashreplace")
        return EventInvalidError(
            f"{self._source}:{line.number}: {line.reason}",
            found=shown + ("…" if len(line.data) > 200 else ""),
            hint=f"{done} record{'s' if done != 1 else ''} before it {'were' if done != 1 else 'was'} acknowledged; "
            "--skip-bad goes on after bad lines",
            file=self._source,
            line=line.number,
            reason=line.reason,
            acknowledged=done,
        )
