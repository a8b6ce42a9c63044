"""Read records: one by one, in batches, or handled in parallel.

    with Consumer(readings, group="alerts") as consumer:
        for record in consumer:
            print(record, record.value.load_kw)

At least once by default: a record counts as done when the next one is asked for, and only what is done is committed. A loop
that ends by an exception leaves the current record undone, so it is read again. `run` handles many records at a time and
commits up to the first one that is not done (riverrun.kafka.consumer.parallel_runner).
"""

import contextlib
import dataclasses
import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from riverrun.errors import BrokerUnreachableError, CommitError, UsageError
from riverrun.kafka.connection import Connection, as_connection
from riverrun.kafka.consumer.dead_letter import DeadLetterProducer
from riverrun.kafka.consumer.fetch_buffer import FetchBuffer
from riverrun.kafka.consumer.options import ConsumerCounts, ConsumerKeywords, ConsumerMetrics, ConsumerOptions
from riverrun.kafka.consumer.parallel_runner import ParallelRunner
from riverrun.kafka.consumer.record import Batch, Record, RecordDecoder
from riverrun.kafka.consumer.run_options import RunKeywords, RunOptions
from riverrun.kafka.consumer.subscription import RebalanceListener, Subscription
from riverrun.kafka.consumer.topic_lookup import select_topics
from riverrun.kafka.consumer.worker_threads import run_in_threads
from riverrun.kafka.registry.wire_format import wire_formats_of
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.topic import Topic

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    V = DefaultTypeVar("V", default=Any)
else:
    V = TypeVar("V")

log = logging.getLogger("riverrun.kafka.consumer")

# How many records a plain loop fetches at a time, and how long it continues without serving the group.
_FETCH_RECORDS = 500
_MAX_BUFFERED = 1000
_POLL_INTERVAL_SECONDS = 0.5
# How long a wait for records lasts before it checks for a stop.
_POLL_WAIT_SECONDS = 0.1


class Consumer(Generic[V]):
    """Reads topics, by a group or alone. For one thread; `stop`, `commit` and `metrics` may be called from others.

    `topics` is a `Topic`, a name, a compiled pattern that whole names must match, or several of them. Without a group
    nothing is committed and all partitions are read. Keywords are those of `ConsumerOptions`.
    """

    def __init__(
        self,
        topics: Topic[V] | str | re.Pattern[str] | Iterable[Topic[V] | str | re.Pattern[str]],  # type: ignore[type-var]
        *,
        group: str = "",
        connection: Connection | str | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        self.options = ConsumerOptions(**options)
        self.connection = as_connection(connection)
        selection, schemas = select_topics(topics, group, self.options.partitions)
        self.group = group
        registry = self.connection.registry
        self._decoder: RecordDecoder[V] = RecordDecoder(schemas, wire_formats_of(topics, registry), registry)
        self._counts = ConsumerCounts()
        listener = RebalanceListener(self._assigned, self._revoked, self._lost, self._moved)
        self._subscription = Subscription(selection, self.options, self.connection, listener, self._counts)
        self._committer = self._subscription.committer
        self._buffer = FetchBuffer()
        self._runner: ParallelRunner[V] | None = None
        self._stopping = threading.Event()
        self._closed = False
        self._poll_due_at = 0.0
        self._commit_at = time.monotonic() + self.options.commit_interval_seconds
        self._metrics_at = time.monotonic() + self.options.metrics_seconds

    # --- one by one ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Record[V]]:
        return self

    def __next__(self) -> Record[V]:
        """The next record; asking for it marks the one before as done. Ends after `stop`, or at the end without `follow`."""
        self._check_usable()
        self._mark_done()
        while (record := self._next_buffered()) is None:
            if not self._refill():
                raise StopIteration
        self._commit_before_delivery()
        return record

    def _mark_done(self) -> None:
        """Mark what was returned as done."""
        self._counts.handled += self._buffer.mark_done()
        if self.options.commit == "record":
            self._commit_done()

    def _next_buffered(self) -> Record[V] | None:
        """The next record, if it is buffered and the group need not be served at the moment."""
        if time.monotonic() < self._poll_due_at and not self._stopping.is_set():
            message = self._buffer.take_one()
            if message is not None:
                return Record(message, self._decoder)
        return None

    def _refill(self) -> bool:
        """Fetch for a moment; False when it is over."""
        if self._stopping.is_set():
            return False
        buffered = len(self._buffer)
        if not buffered and self.options.commit == "batch":
            self._commit_done()
        self._run_periodic(time.monotonic())
        if buffered < _FETCH_RECORDS:
            self._buffer.put(
                self._subscription.fetch(_FETCH_RECORDS - buffered, 0.0 if buffered else _POLL_WAIT_SECONDS)
            )
        else:
            self._subscription.keep_alive(_MAX_BUFFERED - buffered)
        self._poll_due_at = time.monotonic() + _POLL_INTERVAL_SECONDS
        return bool(len(self._buffer)) or not self._finished

    # --- in batches ---------------------------------------------------------------------------------------------------

    def batches(self, max_records: int = 1000, *, wait_seconds: float = 1.0) -> Iterator[Batch[V]]:
        """Batches of up to `max_records` records; a batch that is not full is given out `wait_seconds` after it began.

        Asking for the next batch marks the one before as done.
        """
        check_batch_size(max_records)
        while True:
            self._check_usable()
            self._mark_batch_done()
            if not self._fill_batch(max_records, wait_seconds):
                return
            yield self._take_batch(max_records)

    def _mark_batch_done(self) -> None:
        self._mark_done()
        if self.options.commit == "batch":
            self._commit_done()

    def _fill_batch(self, max_records: int, wait_seconds: float) -> bool:
        """Fetch until there is a batch; False when it is over."""
        for _ in self._fill_batch_steps(max_records, wait_seconds):
            pass
        return self._has_batch

    def _fill_batch_steps(self, max_records: int, wait_seconds: float) -> Iterator[None]:
        """Fetch until there is a batch, or it is over; each step takes only a moment."""
        buffer = self._buffer
        end: float | None = None
        while len(buffer) < max_records and not self._stopping.is_set():
            now = time.monotonic()
            self._run_periodic(now)
            if len(buffer):
                end = end or now + wait_seconds
                if now >= end:
                    break
            left = min(_POLL_WAIT_SECONDS, wait_seconds if end is None else end - now)
            buffer.put(
                self._subscription.fetch(max_records - len(buffer), _POLL_WAIT_SECONDS if end is None else left, left)
            )
            if self._finished:
                break
            if len(buffer) < max_records:
                yield

    @property
    def _has_batch(self) -> bool:
        return bool(len(self._buffer)) and not self._stopping.is_set()

    def _take_batch(self, max_records: int) -> Batch[V]:
        messages = self._buffer.take_batch(max_records, self._subscription.positions)
        self._commit_before_delivery()
        return Batch(messages, self._decoder)

    # --- in parallel --------------------------------------------------------------------------------------------------

    def run(
        self, handler: Callable[[Record[V]], None], *, workers: int = 8, **options: Unpack[RunKeywords]
    ) -> ConsumerMetrics:
        """Call `handler` for every record, in `workers` threads, until `stop`, SIGTERM or SIGINT, or the end.

        Keywords are those of `RunOptions`: the order to keep, how much may be in flight, and what to do with errors. What
        was started is finished and committed. Returns the counts.
        """
        with self._begin_run(RunOptions(**options)) as runner:
            run_in_threads(runner, handler, workers, self.stop)
        return self.metrics()

    @contextlib.contextmanager
    def _begin_run(self, options: RunOptions) -> Iterator[ParallelRunner[V]]:
        """The basis of `run`, for other kinds of workers."""
        self._check_usable()
        self._mark_done()
        self._subscription.seek(self._buffer.drop_buffered(self._subscription.assignment))
        dead_letters = DeadLetterProducer(
            self.connection, self.group, options.dead_letter, create=options.create_dead_letter
        )
        runner = self._runner = ParallelRunner(
            subscription=self._subscription,
            decoder=self._decoder,
            consumer=self.options,
            options=options,
            dead_letters=dead_letters,
            stopping=self._stopping,
            counts=self._counts,
            tick=self._tick,
        )
        try:
            yield runner
        finally:
            self._runner = None
            dead_letters.close()
            self._buffer.done.update(runner.committable())
            self._subscription.seek(runner.resume_offsets)

    def stop(self) -> None:
        """End the loop or `run` soon, from any thread or a signal handler: what was started is finished and committed."""
        self._stopping.set()

    # --- commits ------------------------------------------------------------------------------------------------------

    def commit(self, *, wait: bool = True, through: Record[V] | None = None) -> None:
        """Commit everything that was returned, the current record included; or of one partition all `through` this record.

        With `wait` CommitError is raised when the cluster does not confirm it; without, by the next commit.
        """
        self._check_usable()
        if not self.group:
            raise UsageError("A consumer without a group has nothing to commit to", hint="Give it a `group`")
        self._committer.raise_failure()
        if self._runner is not None:
            offsets: Mapping[TopicPartition, int] = self._runner.committable()
        elif through is not None:
            offsets = {through.topic_partition: through.offset + 1}
        else:
            offsets = self._buffer.done | self._buffer.delivered_positions()
        self._commit(offsets, wait=wait)

    def _commit(self, offsets: Mapping[TopicPartition, int], *, wait: bool, seconds: float | None = None) -> None:
        self._committer.put(offsets)
        seconds = self._subscription.timeout if seconds is None else seconds
        if self._subscription.in_callback:
            # Nothing can be awaited here, nor must it: the client revokes no partition before this is answered.
            self._subscription.send_commits(at_once=True)
        elif self._runner is not None:
            # Called by a handler: the reading thread sends it.
            if wait:
                self._committer.wait(seconds)
        elif wait:
            self._committer.wait_polling(
                lambda: self._subscription.keep_alive(_MAX_BUFFERED - len(self._buffer)), seconds
            )
        else:
            self._subscription.send_commits()

    def _commit_done(
        self,
        done: Mapping[TopicPartition, int] | None = None,
        *,
        wait: bool | None = None,
        seconds: float | None = None,
    ) -> None:
        """Commit what is done, in the chosen mode, if this consumer commits at all."""
        if self.group and self.options.delivery == "at-least-once":
            wait = self.options.waits_for_commit if wait is None else wait
            self._commit(self._buffer.done if done is None else done, wait=wait, seconds=seconds)

    def _commit_before_delivery(self) -> None:
        """At most once: commit what is about to be returned; when that fails, it is not returned."""
        if self.options.delivery != "at-most-once" or not self.group:
            return
        try:
            self._commit(self._buffer.delivered_positions(), wait=True)
        except BaseException:
            self._buffer.return_delivered()
            raise

    def _run_periodic(self, now: float) -> None:
        """Do what is due from time to time in a plain loop."""
        if self.options.commit == "interval" and now >= self._commit_at:
            self._commit_at = now + self.options.commit_interval_seconds
            self._commit_done()
        self._tick(now)

    def _tick(self, now: float) -> None:
        if self.options.on_metrics is not None and now >= self._metrics_at:
            self._metrics_at = now + self.options.metrics_seconds
            self.options.on_metrics(self.metrics())

    # --- rebalancing --------------------------------------------------------------------------------------------------

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        if self._runner is not None:
            self._runner.assigned(partitions)
        if self.options.on_assigned is not None:
            self.options.on_assigned(partitions)

    def _revoked(self, partitions: list[TopicPartition]) -> None:
        if self.options.on_revoked is not None:
            self.options.on_revoked(partitions)
        if self._runner is not None:
            self._runner.revoked(partitions)
        elif self.options.commit != "manual":
            self._commit_done(
                {partition: offset for partition, offset in self._buffer.done.items() if partition in partitions}
            )
        self._committer.release(partitions)
        self._buffer.forget(partitions)

    def _lost(self, partitions: list[TopicPartition]) -> None:
        if self._runner is not None:
            self._runner.lost(partitions)
        self._committer.forget(partitions)
        self._buffer.forget(partitions)
        if partitions:
            log.warning("Lost %s; what was not committed is read again.", ", ".join(map(str, partitions)))
        if self.options.on_lost is not None:
            self.options.on_lost(partitions)

    def _moved(self, partition: TopicPartition, offset: int) -> None:
        """By a seek, or because the topic was created again: everything before counts as done, and going back is right."""
        self._committer.forget([partition])
        if self._runner is not None:
            self._runner.moved(partition, offset)
        else:
            self._buffer.forget([partition])
            self._buffer.done[partition] = offset

    # --- positions and metrics ----------------------------------------------------------------------------------------

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions this consumer reads now."""
        return sorted(self._subscription.assignment)

    def position(self) -> dict[TopicPartition, int]:
        """The offset of the next record to be returned, of each partition of which that is known."""
        return {**self._subscription.positions, **self._buffer.first_buffered()}

    def lag(self) -> dict[TopicPartition, int]:
        """How many offsets each partition continues behind what is done. Asks the cluster; during `run`, use `metrics`."""
        self._refuse_in_run("ask for its lag")
        self._check_usable()
        self._await_partitions()
        partitions = self.partitions
        done = self._done_offsets(partitions)
        unknown = [partition for partition in partitions if partition not in done]
        done |= self._subscription.committed(unknown) if self.group else {}
        unknown = [partition for partition in partitions if partition not in done]
        done |= self._subscription.lookup.offsets_at(unknown, self.options.start_position)
        ends = self._subscription.lookup.offsets_at(partitions, OFFSET_END)
        return {partition: max(0, ends[partition] - done[partition]) for partition in partitions}

    def metrics(self) -> ConsumerMetrics:
        """The counts so far, and the current state. Makes no request."""
        in_flight = self._runner.in_flight if self._runner is not None else (0, 0)
        return ConsumerMetrics(
            **dataclasses.asdict(self._counts),
            in_flight=in_flight[0],
            in_flight_bytes=in_flight[1],
            commits=self._committer.commits,
            commits_failed=self._committer.failed,
            lag=self._cached_lag(),
        )

    def _done_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        done = self._runner.committable() if self._runner is not None else self._buffer.done
        return {partition: offset for partition, offset in done.items() if partition in partitions}

    def _cached_lag(self) -> int | None:
        partitions = set(self._subscription.assignment)
        done = {**self._committer.committed(), **self._done_offsets(partitions)}
        ends = dict(self._subscription.ends)
        if not partitions or not partitions <= done.keys() & ends.keys():
            return None
        return sum(max(0, ends[partition] - done[partition]) for partition in partitions)

    # --- seek and pause -----------------------------------------------------------------------------------------------

    def seek(self, partition: int | TopicPartition, offset: int) -> None:
        """Continue at this offset of a partition. Everything before counts as done, for the next commit as well."""
        self._seek({self._resolve_partition(partition): offset})

    def seek_to_beginning(self, *partitions: int | TopicPartition) -> None:
        """Continue at the oldest records, of these partitions or of all this consumer has."""
        self._seek(self._subscription.lookup.offsets_at(self._resolve_partitions(partitions), OFFSET_BEGINNING))

    def seek_to_end(self, *partitions: int | TopicPartition) -> None:
        """Continue with the records that come from now on."""
        self._seek(self._subscription.lookup.offsets_at(self._resolve_partitions(partitions), OFFSET_END))

    def seek_to_time(self, moment: datetime, *partitions: int | TopicPartition) -> None:
        """Continue with the first record that has this timestamp or a later one; at the end if there is none."""
        if moment.tzinfo is None:
            raise UsageError(f"{moment} has no time zone", hint="Add one: moment.replace(tzinfo=UTC)")
        self._seek(self._subscription.lookup.offsets_at(self._resolve_partitions(partitions), moment))

    def _seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        if not self._subscription.assigning:
            self._refuse_in_run("seek")
        self._subscription.seek(offsets)
        for partition, offset in offsets.items():
            self._moved(partition, offset)

    def pause(self, *partitions: int | TopicPartition) -> None:
        """Return no records of these partitions, or of all, until `resume`. The loop continues with the others."""
        self._refuse_in_run("pause")
        topic_partitions = self._resolve_partitions(partitions)
        self._subscription.pause(topic_partitions)
        self._subscription.seek(
            self._subscription.first_buffered(topic_partitions) | self._buffer.drop_buffered(topic_partitions)
        )

    def resume(self, *partitions: int | TopicPartition) -> None:
        self._refuse_in_run("resume")
        self._subscription.resume(self._resolve_partitions(partitions))

    def _resolve_partitions(self, partitions: Collection[int | TopicPartition]) -> list[TopicPartition]:
        self._check_usable()
        self._await_partitions()
        return [self._resolve_partition(given) for given in partitions] if partitions else self.partitions

    def _resolve_partition(self, partition: int | TopicPartition) -> TopicPartition:
        self._check_usable()
        self._await_partitions()
        topics = sorted({topic_partition.topic for topic_partition in self._subscription.assignment})
        topic_partition = (
            partition
            if isinstance(partition, TopicPartition)
            else TopicPartition(topics[0] if topics else "", partition)
        )
        if not isinstance(partition, TopicPartition) and len(topics) > 1:
            raise UsageError(
                f"Partition {partition} of which topic?",
                hint="Give a riverrun.TopicPartition(topic, partition)",
                topics=topics,
            )
        if topic_partition not in self._subscription.assignment:
            raise UsageError(
                f"This consumer does not read {topic_partition} now",
                found=", ".join(map(str, self.partitions)) or "no partitions",
                topic=topic_partition.topic,
                partition=topic_partition.partition,
            )
        return topic_partition

    def _await_partitions(self) -> None:
        """Poll the group until it has assigned us partitions, or none."""
        end = time.monotonic() + max(self._subscription.timeout, 2 * self.options.session_timeout_seconds)
        while not self._subscription.has_partitions and not self._stopping.is_set():
            if time.monotonic() > end:
                raise BrokerUnreachableError(
                    f"The group {self.group} gave this consumer no partitions yet",
                    hint="Another member may be slow to give up its own; try again",
                    group=self.group,
                )
            self._buffer.put(self._subscription.fetch(_FETCH_RECORDS, _POLL_WAIT_SECONDS))

    @property
    def _finished(self) -> bool:
        return not self.options.follow and self._subscription.at_end

    # --- closing ------------------------------------------------------------------------------------------------------

    def _refuse_in_run(self, doing: str) -> None:
        if self._runner is not None:
            raise UsageError(f"A consumer cannot {doing} while it runs", hint="It pauses by itself; see its metrics()")

    def _check_usable(self) -> None:
        if self._closed:
            raise UsageError("This consumer is closed", hint="Make a new one")

    def __enter__(self) -> Self:
        self._check_usable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self._close()
        except CommitError as problem:
            error.add_note(f"While the consumer was closed after this: {problem}")

    def close(self) -> None:
        """Commit what was returned and leave the group, within `close_seconds` for each. May be called twice."""
        if not self._closed:
            self._counts.handled += self._buffer.mark_done()
            self._close()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._stopping.set()
        try:
            if self.options.commit != "manual":
                self._commit_done(wait=True, seconds=self.options.close_seconds)
            elif not self._committer.idle:
                # What commit(wait=False) left to do.
                self._commit({}, wait=True, seconds=self.options.close_seconds)
        finally:
            # Leaving waits for brokers that may never answer, and takes no deadline.
            leaving = threading.Thread(target=self._subscription.close, name="riverrun-leave", daemon=True)
            leaving.start()
            leaving.join(self.options.close_seconds)
            if leaving.is_alive():
                log.warning(
                    "The group %s did not answer within %g s when this consumer left; it will miss it later.",
                    self.group or "(none)",
                    self.options.close_seconds,
                )


def check_batch_size(max_records: int) -> None:
    if max_records < 1:
        raise UsageError(f"A batch cannot have {max_records} records", expected="at least 1", option="max_records")
