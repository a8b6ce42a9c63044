"""A consumer's client: its topics, its assigned partitions, their positions, and the errors that Kafka reports.

Everything the client library reports — assigned and revoked partitions, log ends, expired offsets, deleted topics, wrong
passwords — arrives in `fetch` and nowhere else. Records that were fetched are never lost to an error: they are buffered and
returned by the next `fetch`.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, Consumer, KafkaException, Message
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.errors import BrokerUnreachableError, ConfigError, MaxPollExceededError, RiverrunError, UsageError
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.committer import Committer
from riverrun.kafka.consumer.offset_gap import OffsetGap, offset_gap_error
from riverrun.kafka.consumer.options import ConsumerCounts, ConsumerOptions
from riverrun.kafka.consumer.topic_lookup import UNKNOWN_TOPIC_CODES, TopicLookup, TopicSelection
from riverrun.kafka.error_mapping import RETRIABLE_CODES, client_log, translate
from riverrun.model.cluster_state import TopicPartition

log = logging.getLogger("riverrun.kafka.consumer")

_AUTHENTICATION_CODES = frozenset(
    {ClientError._AUTHENTICATION, ClientError._SSL, ClientError.SASL_AUTHENTICATION_FAILED}
)
_OFFSET_RESET_CODES = frozenset(
    {ClientError._AUTO_OFFSET_RESET, ClientError.OFFSET_OUT_OF_RANGE, ClientError._LOG_TRUNCATION}
)
# The client recovers by itself after these.
_TRANSIENT_CODES = RETRIABLE_CODES | {
    ClientError._TRANSPORT, ClientError._ALL_BROKERS_DOWN, ClientError._TIMED_OUT, ClientError._RESOLVE,
    ClientError._WAIT_COORD, ClientError.REQUEST_TIMED_OUT, ClientError._NODE_UPDATE, ClientError.REBALANCE_IN_PROGRESS,
    ClientError.STALE_MEMBER_EPOCH, ClientError.UNKNOWN_MEMBER_ID, ClientError.ILLEGAL_GENERATION,
}  # fmt: skip
_NEW_TOPICS_SECONDS = 10.0
_SERVE_SECONDS = 0.001
# How long to wait for another thread to leave the client before relying on that thread to do the work.
_LOCK_SECONDS = 0.05
# How long a group must have moved no partitions before a member's assignment counts as stable.
_REBALANCE_QUIET_SECONDS = {"classic": 5.0, "consumer": 12.0}
_END_OFFSETS_SECONDS = 0.25
_NO_GROUP_ID = "riverrun-alone"


@dataclass(frozen=True)
class RebalanceListener:
    """Callbacks about partitions. `revoked` is called while they are still ours; they are revoked when it returns.

    `moved` reports that a partition continues at an earlier offset, because its log is not the one that was read.
    """

    assigned: Callable[[list[TopicPartition]], None]
    revoked: Callable[[list[TopicPartition]], None]
    lost: Callable[[list[TopicPartition]], None]
    moved: Callable[[TopicPartition, int], None]


@dataclass
class FetchedRecords:
    """The result of one `fetch`: records, and the end offset of each partition that was read to its end."""

    messages: list[Message] = field(default_factory=list)
    ends: dict[TopicPartition, int] = field(default_factory=dict)


class Subscription:
    """One client of the library below, opened by the first `fetch`.

    The client lets one thread at a time in, and who comes second may wait for ever. So `fetch`, `keep_alive`, `seek` and
    `send_commits` share a lock, and the two that other threads call do not insist on it.
    """

    def __init__(
        self,
        selection: TopicSelection,
        options: ConsumerOptions,
        connection: Connection,
        listener: RebalanceListener,
        counts: ConsumerCounts,
    ) -> None:
        self.selection = selection
        self.options = options
        self._listener = listener
        self.assignment: set[TopicPartition] = set()
        # The next offset to read of each assigned partition; missing where nothing was read yet.
        self.positions: dict[TopicPartition, int] = {}
        # The end offsets of our partitions, as of a moment ago.
        self.ends: dict[TopicPartition, int] = {}
        self._ends_at = 0.0
        self._counts = counts
        self._bootstrap_servers = connection.bootstrap_servers
        self.timeout: float = connection.settings.request_timeout_seconds
        self._lock = threading.RLock()
        self._opened = False
        self._closing = False
        self._assigned_once = False
        self._rebalanced = False
        # Whether the client is in a callback right now: then nothing can be polled.
        self.in_callback = False
        # Start offsets of the partitions that are assigned when the callback returns; None outside of an assignment.
        self._incoming_offsets: dict[TopicPartition, int] | None = None
        # Until when more partitions may be assigned or revoked.
        self._rebalancing_until = 0.0
        self._paused: set[TopicPartition] = set()
        # Partitions whose end was reached once; those that had nothing more to read at the last poll.
        self._reached_end: set[TopicPartition] = set()
        self.at_log_end: set[TopicPartition] = set()
        self._initial_offsets: dict[TopicPartition, int] = {}
        self._without_offset: set[TopicPartition] = set()
        self._out_of_range: dict[TopicPartition, int] = {}
        self._buffered = FetchedRecords()
        self._events: list[Message] = []
        self._interrupted = False
        # Paused only because the caller waits for something other than records.
        self._muted: set[TopicPartition] = set()
        self._failure: BaseException | None = None
        self._login_error: ClientError | None = None
        self._topic_missing = False
        self._unreachable = False
        self._topics: list[str] = []
        self._refresh_topics_at = 0.0
        self.committer = Committer(self._commit, selection.group)
        properties = options.client_properties(connection, selection.group or _NO_GROUP_ID)
        try:
            self.client = Consumer(
                {**properties, "error_cb": self._on_error, "on_commit": self.committer.on_response}, logger=client_log
            )
        except (KafkaException, ValueError, TypeError) as error:
            reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            raise ConfigError([f"the client refuses a property of the consumer: {reason}"]) from error
        self.lookup = TopicLookup(
            self.client,
            selection,
            bootstrap_servers=self._bootstrap_servers,
            timeout=self.timeout,
            on_wait=self._poll_errors,
        )

    # --- opening ------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find the cluster and the topics, and subscribe. Raises within the request timeout what is missing."""
        if self._opened:
            return
        topics = self.lookup.topics()
        if self.selection.group_managed:
            self._subscribe(topics)
        else:
            partitions = self.lookup.partitions(topics)
            self._initial_offsets = self._start_offsets(partitions)
            self.client.assign(
                [ClientPartition(*partition, offset) for partition, offset in self._initial_offsets.items()]
            )
            self._assigned(partitions)
        self._opened = True

    def _start_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        if self.selection.group:
            return dict.fromkeys(partitions, OFFSET_STORED)
        return self.lookup.offsets_at(partitions, self.options.start_position)

    def _subscribe(self, topics: list[str]) -> None:
        self._topics = topics
        self._refresh_topics_at = time.monotonic() + _NEW_TOPICS_SECONDS
        if not topics:
            log.warning("No topic matches %s yet; looking again every %g s.", self.selection, _NEW_TOPICS_SECONDS)
            return
        self.client.subscribe(topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)

    # --- fetching -----------------------------------------------------------------------------------------------------

    def fetch(self, max_records: int, wait_seconds: float, fill_seconds: float = 0.0) -> FetchedRecords:
        """Up to `max_records` records: waits for a first one, then takes what is there, or waits up to `fill_seconds` for
        more."""
        with self._lock:
            self.open()
            if self._interrupted:
                self._rewind()
            self.committer.send_pending()
            if not self._buffered.messages:
                self._unmute()
                self._collect(lambda: self._poll(max_records, wait_seconds, fill_seconds))
            self._process_events()
            fetched, self._buffered = self._buffered, FetchedRecords()
            self.positions.update(self._positions_now())
            self._update_ends()
            return fetched

    def keep_alive(self, capacity: int) -> None:
        """Serve the group and the commits for a moment, unless another thread does so by a `fetch` of its own.

        Up to `capacity` records are taken meanwhile, and held for the next `fetch`.
        """
        if not self._lock.acquire(timeout=_LOCK_SECONDS):
            return
        try:
            if self._interrupted:
                self._rewind()
            self.committer.send_pending()
            if len(self._buffered.messages) >= capacity:
                self._mute()
            self._collect(lambda: self._poll(1, _SERVE_SECONDS, 0.0))
        finally:
            self._lock.release()
        if self._buffered.messages:
            # The client has more of them and returns at once; so wait here.
            time.sleep(_SERVE_SECONDS)

    def send_commits(self, *, at_once: bool = False) -> None:
        """Send pending commits. When another thread is in the client, that one does it before it leaves."""
        if self._lock.acquire(timeout=_SERVE_SECONDS):
            try:
                self.committer.send_pending(at_once=at_once)
            finally:
                self._lock.release()

    def _collect(self, poll: Callable[[], list[Message]]) -> None:
        """Add what the client returns to the buffer. If this is interrupted, it is read again."""
        self._rebalanced = False
        self._interrupted = True
        messages = poll()
        events = [message for message in messages if message.error() is not None]
        if events:
            messages = [message for message in messages if message.error() is None]
        if self._rebalanced:
            messages = [message for message in messages if (message.topic(), message.partition()) in self.assignment]
        if self.at_log_end:
            self.at_log_end.difference_update({(message.topic(), message.partition()) for message in messages})
        if self._buffered.messages:
            self._buffered.messages += messages
        else:
            self._buffered.messages = messages
        self._events += events
        self._interrupted = False
        # Commits that other threads asked for meanwhile.
        self.committer.send_pending()

    def _mute(self) -> None:
        """Get no records for now, without forgetting which partitions are paused for other reasons."""
        if unmuted := self.assignment - self._paused - self._muted:
            self.client.pause([ClientPartition(*partition) for partition in unmuted])
            self._muted |= unmuted

    def _unmute(self) -> None:
        if self._muted:
            muted = [
                ClientPartition(*partition) for partition in self._muted if partition in self.assignment - self._paused
            ]
            self.client.resume(muted)
            self._muted = set()

    def _poll(self, max_records: int, wait_seconds: float, fill_seconds: float) -> list[Message]:
        # `poll` returns as soon as there is a record, and can be interrupted; `consume` waits for the full number.
        try:
            first = self.client.poll(wait_seconds)
            if first is None:
                return []
            return [first, *self.client.consume(max_records - 1, fill_seconds)] if max_records > 1 else [first]
        except KafkaException as error:
            raise translate(error, f"reading {self.selection}", bootstrap=self._bootstrap_servers) from error

    def _positions_now(self) -> dict[TopicPartition, int]:
        # The client's own position: it includes transaction markers behind the last record, and costs one call a fetch.
        client_positions = self.client.position([ClientPartition(*partition) for partition in self.assignment])
        return {
            TopicPartition(client_position.topic, client_position.partition): client_position.offset
            for client_position in client_positions
            if client_position.offset >= 0
        }

    def _update_ends(self) -> None:
        # What the client learnt with its last fetches; other threads must not ask it (`committer` explains why).
        now = time.monotonic()
        if now >= self._ends_at:
            self._ends_at = now + _END_OFFSETS_SECONDS
            for partition in self.assignment:
                _, end = self.client.get_watermark_offsets(ClientPartition(*partition), cached=True)
                if end >= 0:
                    self.ends[partition] = end

    def _process_events(self) -> None:
        """Handle everything that is not a record; errors that must stop the reader are raised here, after the records are
        buffered."""
        stop: RiverrunError | None = None
        events, self._events = self._events, []
        for event in events:
            stop = self._handle_event(event) or stop
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._raise_login_error()
        if stop is not None:
            raise stop
        if self._topic_missing:
            self._topic_missing = False
            self._check_topics()
        if self._without_offset or self._out_of_range:
            self._reset_positions()
        if self.selection.patterns and self.selection.group_managed and time.monotonic() > self._refresh_topics_at:
            self._refresh_topics()

    def _handle_event(self, event: Message) -> RiverrunError | None:
        error: Any = event.error()
        code, offset = error.code(), event.offset()
        partition = TopicPartition(event.topic() or "", -1 if event.partition() is None else event.partition() or 0)
        if code == ClientError._PARTITION_EOF:
            if partition in self.assignment and offset is not None:
                self._reached_end.add(partition)
                self.at_log_end.add(partition)
                self._buffered.ends[partition] = self.ends[partition] = offset
        elif code in _OFFSET_RESET_CODES:
            if partition in self.assignment:
                if offset is None or offset < 0:
                    self._without_offset.add(partition)
                else:
                    self._out_of_range[partition] = offset
        elif code == ClientError._MAX_POLL_EXCEEDED:
            return self._poll_too_late_error()
        elif code in UNKNOWN_TOPIC_CODES:
            self._topic_missing = True
        elif error.fatal() or code not in _TRANSIENT_CODES:
            return translate(
                error,
                f"reading {event.topic() or self.selection}",
                topic=event.topic(),
                bootstrap=self._bootstrap_servers,
            )
        return None

    def _poll_too_late_error(self) -> MaxPollExceededError:
        limit = self.options.max_poll_seconds
        return MaxPollExceededError(
            f"A record or batch took longer than {limit:g} s, and the group {self.selection.group} gave this consumer's "
            "partitions to others",
            found="what was in hand cannot be committed and will be read again",
            hint="Ask for smaller batches, raise max_poll_seconds, or use run(), which has no such limit",
            group=self.selection.group,
            max_poll_seconds=limit,
        )

    def _on_error(self, error: ClientError) -> None:
        code = error.code()
        if code in _AUTHENTICATION_CODES:
            self._login_error = error
        elif code in UNKNOWN_TOPIC_CODES:
            self._topic_missing = True
        elif code == ClientError._ALL_BROKERS_DOWN:
            if self._opened and not self._unreachable:
                log.warning("No broker at %s answers; trying again until one does.", self._bootstrap_servers)
            self._unreachable = True
        elif error.fatal():
            self._failure = translate(
                error, f"reading {self.selection}", bootstrap=self._bootstrap_servers, group=self.selection.group
            )

    def _poll_errors(self) -> None:
        self.client.poll(0)
        self._raise_login_error()

    def _raise_login_error(self) -> None:
        if self._login_error is not None:
            error, self._login_error = self._login_error, None
            raise translate(error, f"reading {self.selection}", bootstrap=self._bootstrap_servers)

    def _check_topics(self) -> None:
        """The client misses a topic or partition: check whether it was really deleted."""
        existing = self.lookup.all_topics(self.timeout)
        for name in self.selection.names:
            if existing is not None and name not in existing:
                self._lost([partition for partition in self.assignment if partition.topic == name])
                raise self.lookup.topic_not_found(name, deleted=True)

    def _refresh_topics(self) -> None:
        """If topics were created or deleted since, subscribe again, so that they are assigned."""
        self._refresh_topics_at = time.monotonic() + _NEW_TOPICS_SECONDS
        existing = self.lookup.all_topics(1.0)
        if existing is not None and (topics := self.selection.matching_topics(existing)) != self._topics:
            self._subscribe(topics)

    # --- rebalancing; called by the library inside of `poll` and `consume`, where nothing may be raised ---------------

    def _on_assign(self, _client: Consumer, partitions: list[ClientPartition]) -> None:
        self._run_callback(
            self._assign_incoming,
            [TopicPartition(client_partition.topic, client_partition.partition) for client_partition in partitions],
        )

    def _on_revoke(self, _client: Consumer, partitions: list[ClientPartition]) -> None:
        self._run_callback(
            self._revoked,
            [TopicPartition(client_partition.topic, client_partition.partition) for client_partition in partitions],
        )

    def _on_lost(self, _client: Consumer, partitions: list[ClientPartition]) -> None:
        self._run_callback(
            self._lost,
            [TopicPartition(client_partition.topic, client_partition.partition) for client_partition in partitions],
        )

    def _run_callback(self, callback: Callable[[list[TopicPartition]], None], partitions: list[TopicPartition]) -> None:
        if self._closing:
            return
        self._rebalanced = self.in_callback = True
        try:
            callback(partitions)
        except BaseException as error:  # noqa: BLE001  -- raised by `fetch`, after the records at hand are safe
            self._failure = error
        self.in_callback = False

    def _assign_incoming(self, partitions: list[TopicPartition]) -> None:
        """A group assigns partitions. They start at the committed offset, unless the listener seeks."""
        start_offsets = self._incoming_offsets = dict.fromkeys(partitions, OFFSET_STORED)
        try:
            self._assigned(partitions)
        finally:
            self._incoming_offsets = None
            # The client would do it by itself, but not when other partitions were reassigned meanwhile.
            self.client.incremental_assign(
                [ClientPartition(*partition, offset) for partition, offset in start_offsets.items()]
            )
            self._keep_paused(partitions)
        # A group moves partitions in two steps: first it revokes them, without assigning them to their new member.
        if not self.assignment or time.monotonic() < self._rebalancing_until:
            self._extend_rebalance()

    def _extend_rebalance(self) -> None:
        self._rebalancing_until = time.monotonic() + _REBALANCE_QUIET_SECONDS[self.options.protocol]

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        self._counts.rebalances += 1
        self._assigned_once = True
        self.assignment.update(partitions)
        self._listener.assigned(partitions)

    def _revoked(self, partitions: list[TopicPartition]) -> None:
        try:
            self._listener.revoked(partitions)
        finally:
            self._forget(partitions)

    def _lost(self, partitions: list[TopicPartition]) -> None:
        self._forget(partitions)
        self._listener.lost(partitions)

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        if partitions:
            self._extend_rebalance()
        self._drop_events(partitions)
        self.assignment.difference_update(partitions)
        self._reached_end.difference_update(partitions)
        self.at_log_end.difference_update(partitions)
        self._paused.difference_update(partitions)
        self._muted.difference_update(partitions)
        self._without_offset.difference_update(partitions)
        for partition in partitions:
            self.positions.pop(partition, None)
            self.ends.pop(partition, None)
            self._out_of_range.pop(partition, None)
            self._buffered.ends.pop(partition, None)
        if self._buffered.messages:
            self._buffered.messages = self._without(partitions)

    # --- positions ----------------------------------------------------------------------------------------------------

    @property
    def has_partitions(self) -> bool:
        """Whether there was an assignment, even an empty one."""
        return self._assigned_once

    @property
    def at_end(self) -> bool:
        """Whether every assigned partition was read to its end, and no more are about to be assigned."""
        return (
            self._assigned_once and self.assignment <= self._reached_end and time.monotonic() >= self._rebalancing_until
        )

    @property
    def assigning(self) -> bool:
        """Whether partitions are being assigned: their start offset can still be set."""
        return self._incoming_offsets is not None

    def seek(self, offsets: Mapping[TopicPartition, int], *, keep_buffered: bool = False) -> None:
        """Read these partitions from other offsets. Records that were fetched from them and not given out are dropped, or
        given out first, to `keep_buffered` them."""
        with self._lock:
            ours = {partition: offset for partition, offset in offsets.items() if partition in self.assignment}
            if not ours:
                return
            if self.in_callback and not self.assigning:
                raise UsageError("A consumer cannot be moved while partitions go", hint="Seek in on_assigned, or later")
            self._reassign(ours)
            self._drop_events(ours)
            if not keep_buffered:
                self._buffered.messages = self._without(ours)
            for partition, offset in ours.items():
                self._buffered.ends.pop(partition, None)
                self._reached_end.discard(partition)
                self.at_log_end.discard(partition)
                self._without_offset.discard(partition)
                self._out_of_range.pop(partition, None)
                if offset >= 0:
                    self.positions[partition] = offset
                else:
                    self.positions.pop(partition, None)

    def _reassign(self, offsets: Mapping[TopicPartition, int]) -> None:
        incoming = {} if self._incoming_offsets is None else self._incoming_offsets
        incoming.update({partition: offset for partition, offset in offsets.items() if partition in incoming})
        # Not the client's `seek`: it fails for a partition that has not started, or stopped because its offset expired.
        if reassigned := [
            ClientPartition(*partition, offset) for partition, offset in offsets.items() if partition not in incoming
        ]:
            self.client.incremental_unassign(reassigned)
            self.client.incremental_assign(reassigned)
            self._keep_paused(offsets.keys() - incoming.keys())

    def _keep_paused(self, partitions: Collection[TopicPartition]) -> None:
        """Pause those of these partitions again that were paused before they were reassigned."""
        if paused := [ClientPartition(*partition) for partition in partitions if partition in self._paused]:
            self.client.pause(paused)

    def _drop_events(self, partitions: Collection[TopicPartition]) -> None:
        """Drop end and offset events of these partitions: they are not true any more."""
        if self._events:
            dropped = set(partitions)
            self._events = [
                event
                for event in self._events
                if (event.topic(), event.partition()) not in dropped or not _is_offset_event(event)
            ]

    def first_buffered(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the first buffered record, of each of these that has one."""
        first: dict[TopicPartition, int] = {}
        for message in self._buffered.messages:
            partition = TopicPartition(message.topic(), message.partition())  # type: ignore[arg-type]
            if partition in partitions:
                first.setdefault(partition, message.offset())  # type: ignore[arg-type]
        return first

    def _without(self, partitions: Collection[TopicPartition]) -> list[Message]:
        dropped = set(partitions)
        return [message for message in self._buffered.messages if (message.topic(), message.partition()) not in dropped]

    def _rewind(self) -> None:
        """Read again what an interrupted fetch may have taken without returning it."""
        known = self._initial_offsets | self.positions | self.first_buffered(self.assignment)
        self.seek({partition: known.get(partition, OFFSET_STORED) for partition in self.assignment})

    def _reset_positions(self) -> None:
        """Partitions without a committed offset start at `start_position`; those whose offset expired at the oldest."""
        without_offset, out_of_range = set(self._without_offset), dict(self._out_of_range)
        try:
            if without_offset:
                self._start_new_partitions(without_offset)
            if not out_of_range:
                return
            first, end = (
                self.lookup.offsets_at(out_of_range, OFFSET_BEGINNING),
                self.lookup.offsets_at(out_of_range, OFFSET_END),
            )
        except BrokerUnreachableError as unreachable:
            log.warning("%s", unreachable)
            return
        gaps = [
            OffsetGap(partition, out_of_range[partition], first[partition], end[partition])
            for partition in out_of_range
            if partition in self.assignment
        ]
        error = offset_gap_error(gaps, self.selection.group, stops=self.options.on_gone == "stop")
        if self.options.on_gone == "stop":
            # The reader keeps its position: what it did not read is not committed, and the next one gets the error as well.
            raise error
        skipped_to = {gap.topic_partition: gap.next for gap in gaps if gap.next >= gap.first}
        moved_back = {gap.topic_partition: gap.next for gap in gaps if gap.next < gap.first}
        # What was fetched before a gap is returned. The gap itself is marked as read behind that.
        self.seek(skipped_to, keep_buffered=True)
        self._buffered.ends |= skipped_to
        self.seek(moved_back)
        for partition, offset in moved_back.items():
            self._listener.moved(partition, offset)
        self._counts.gone += sum(gap.missing for gap in gaps)
        log.warning("%s", error)
        if callable(self.options.on_gone):
            self.options.on_gone(error)

    def _start_new_partitions(self, partitions: set[TopicPartition]) -> None:
        # We know the position better: a seek came before the client learnt that the group has no offset. Or the log lost its
        # end; then the client answers this with the offset that is out of range.
        self.seek({partition: self.positions[partition] for partition in partitions if partition in self.positions})
        # The offset itself, not "the oldest": the client looks that up on its own, and goes there even after a seek.
        offsets = self.lookup.offsets_at(partitions - self.positions.keys(), self.options.start_position)
        self.seek(offsets)
        if self.options.commits_start_position:
            self._buffered.ends |= offsets

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Get no records of these until `resume`; what was fetched ahead is dropped, and fetched again then."""
        if ours := [partition for partition in partitions if partition in self.assignment]:
            self._paused.update(ours)
            self._keep_paused(set(ours) - (self._incoming_offsets or {}).keys())

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        if ours := [partition for partition in partitions if partition in self._paused]:
            self._paused.difference_update(ours)
            self.client.resume([ClientPartition(*partition) for partition in ours])

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(self._paused)

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets of the group, of the partitions that have one."""
        if not partitions:
            return {}
        try:
            answers = self.client.committed(
                [ClientPartition(*partition) for partition in partitions], timeout=self.timeout
            )
        except KafkaException as error:
            raise translate(
                error, f"reading the offsets of {self.selection.group}", bootstrap=self._bootstrap_servers
            ) from error
        return {
            TopicPartition(answer.topic, answer.partition): answer.offset for answer in answers if answer.offset >= 0
        }

    def _commit(self, offsets: list[ClientPartition]) -> None:
        self.client.commit(offsets=offsets, asynchronous=True)

    def close(self) -> None:
        """Leave the group and end the client. May take as long as the brokers let it: see `Consumer.close`."""
        self._closing = True
        self.client.close()


def _is_offset_event(event: Message) -> bool:
    """Whether an event is about an offset: a log end, or an expired one."""
    error: Any = event.error()
    return error.code() == ClientError._PARTITION_EOF or error.code() in _OFFSET_RESET_CODES
