"""Commits: what is pending, what is in flight, and what failed.

The client lets one thread at a time into a consumer, and a thread that polls in a loop hardly leaves it: a commit of another
thread waits for ever. And its synchronous commit has no deadline: it was seen to wait for minutes on a broker that hangs.
So commits are sent, without waiting, by the thread that polls (`send_pending`), and answered within its next poll
(`on_response`); callers wait with a deadline. Revoked partitions need no wait: the client does not let them go before the
group has answered the commits that were sent before.

Per partition only the newest offset is sent, one request at a time, never a smaller offset than before, and never for a
partition that was forgotten. A commit that failed temporarily is sent again; its error is logged, counted, and raised by the
next call that asks.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.errors import CommitError
from riverrun.kafka.error_mapping import translate
from riverrun.model.cluster_state import TopicPartition

log = logging.getLogger("riverrun.kafka.consumer")

# A group's answers during a rebalance, or while its coordinator moves: the same commit works a moment later.
_RETRIABLE_CODES = frozenset({
    ClientError.REBALANCE_IN_PROGRESS, ClientError.ILLEGAL_GENERATION, ClientError.STALE_MEMBER_EPOCH,
    ClientError.COORDINATOR_LOAD_IN_PROGRESS, ClientError.COORDINATOR_NOT_AVAILABLE, ClientError.NOT_COORDINATOR,
    ClientError._WAIT_COORD, ClientError._TRANSPORT, ClientError._TIMED_OUT, ClientError.REQUEST_TIMED_OUT,
    ClientError.UNKNOWN_MEMBER_ID, ClientError._ALL_BROKERS_DOWN,
})  # fmt: skip
_RETRY_SECONDS = 0.25
# So many such answers in a row are logged; fewer are normal.
_FAILURES_BEFORE_WARNING = 8

Clock = Callable[[], float]


class Committer:
    """`send` gives a request to the client and does not wait. `send_pending` and `on_response` are for the thread that
    polls."""

    def __init__(
        self, send: Callable[[list[ClientPartition]], None], group: str, clock: Clock = time.monotonic
    ) -> None:
        self._send = send
        self._group = group
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._pending: dict[TopicPartition, int] = {}
        self._in_flight: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._retry_at = 0.0
        # Why a commit failed, and for which partitions; cleared as soon as all of them are committed after all.
        self._failure: CommitError | None = None
        self._failed: set[TopicPartition] = set()
        # Partitions that were lost before their commit was answered; those that are released once it is.
        self._revoked_uncommitted: set[TopicPartition] = set()
        self._released: set[TopicPartition] = set()
        self._consecutive_failures = 0
        self.commits = 0
        self.failed = 0

    def put(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets next."""
        with self._changed:
            for given, offset in offsets.items():
                partition = TopicPartition(*given)
                latest = max(
                    self._pending.get(partition, -1),
                    self._in_flight.get(partition, -1),
                    self._committed.get(partition, -1),
                )
                if offset > latest:
                    self._pending[partition] = offset

    def send_pending(self, *, at_once: bool = False) -> None:
        """Send what is pending, unless a request is in flight; `at_once` sends it even then."""
        with self._changed:
            if not self._pending or (not at_once and (self._in_flight or self._clock() < self._retry_at)):
                return
            request = [ClientPartition(*partition, offset) for partition, offset in self._pending.items()]
            self._in_flight |= self._pending
            self._pending = {}
        try:
            self._send(request)
        except KafkaException as error:
            self.on_response(error.args[0], request)

    def on_response(self, error: ClientError | None, partitions: Sequence[ClientPartition]) -> None:
        """Handle the answer to a request."""
        with self._changed:
            retriable = False
            failure: ClientError | None = None
            if error is not None and not partitions:
                partitions = [ClientPartition(*partition, offset) for partition, offset in self._in_flight.items()]
            for response in partitions:
                partition, problem = TopicPartition(response.topic, response.partition), response.error or error
                if problem is not None:
                    failure, retriable = problem, problem.code() in _RETRIABLE_CODES
                if self._in_flight.get(partition) == response.offset:
                    del self._in_flight[partition]
                    self._complete(partition, response.offset, problem)
            self._retry_at = self._clock() + _RETRY_SECONDS if retriable else 0.0
            if failure is None:
                self.commits += 1
                self._consecutive_failures = 0
            else:
                self.failed += 1
                self._consecutive_failures += 1
                commit_error = self._commit_error(failure)
                if self._consecutive_failures == (_FAILURES_BEFORE_WARNING if retriable else 1):
                    log.warning("%s", commit_error)
                self._failure = commit_error
            if not self._failed:
                self._failure = None
            self._changed.notify_all()

    def _complete(self, partition: TopicPartition, offset: int, problem: ClientError | None) -> None:
        still_assigned = partition not in self._released
        self._released.discard(partition)
        if problem is not None:
            self._failed.add(partition)
            if still_assigned and problem.code() in _RETRIABLE_CODES:
                self._pending.setdefault(partition, offset)
        else:
            self._failed.discard(partition)
            if still_assigned:
                self._committed[partition] = offset

    @property
    def idle(self) -> bool:
        """Whether everything that was put is committed, or failed for good."""
        return not self._pending and not self._in_flight

    def wait_polling(self, poll: Callable[[], None], seconds: float) -> None:
        """Wait until all that was put is committed; CommitError when it is not. `poll` pumps and polls for a moment."""
        self._begin_wait()
        end = self._clock() + seconds
        while not self.idle and self._clock() < end:
            poll()
        self._end_wait(seconds)

    def wait(self, seconds: float) -> None:
        """The same for other threads, while one polls."""
        self._begin_wait()
        end = self._clock() + seconds
        with self._changed:
            while not self.idle and (left := end - self._clock()) > 0:
                self._changed.wait(left)
        self._end_wait(seconds)

    def _begin_wait(self) -> None:
        with self._changed:
            # Somebody waits: what failed temporarily is sent again at once.
            self._retry_at = 0.0
            self._revoked_uncommitted.clear()

    def _end_wait(self, seconds: float) -> None:
        with self._changed:
            self.raise_failure()
            if self._revoked_uncommitted:
                raise self._revoked_error(self._revoked_uncommitted)
            if not self.idle:
                raise self._timeout_error(seconds)

    def raise_failure(self) -> None:
        """Raise why an earlier commit failed, once."""
        with self._changed:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                self._failed.clear()
                raise failure

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """These are about to be revoked: send their pending commits, now or never."""
        self.send_pending(at_once=True)
        with self._changed:
            self._released |= self._in_flight.keys() & set(partitions)
            for partition in partitions:
                self._committed.pop(partition, None)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """These are not ours any more, or are read from another offset: commit nothing for them, whatever the answer."""
        with self._changed:
            for partition in partitions:
                if self._pending.pop(partition, None) is not None or self._in_flight.pop(partition, None) is not None:
                    self._revoked_uncommitted.add(partition)
                self._committed.pop(partition, None)
                self._failed.discard(partition)
                self._released.discard(partition)
            if not self._failed:
                self._failure = None
            self._changed.notify_all()

    def committed(self) -> dict[TopicPartition, int]:
        """The committed offsets."""
        with self._changed:
            return dict(self._committed)

    def _commit_error(self, error: ClientError) -> CommitError:
        cause = translate(error, "committing")
        return CommitError(
            f"The group {self._group} could not commit",
            found=cause.found or cause.what,
            hint="What was handled since the last commit will be read again",
            group=self._group,
            kafka_error=error.name(),
        )

    def _revoked_error(self, partitions: Collection[TopicPartition]) -> CommitError:
        return CommitError(
            f"The group {self._group} took {', '.join(map(str, sorted(partitions)))} away before the commit",
            hint="What was handled since the last commit will be read again",
            group=self._group,
        )

    def _timeout_error(self, seconds: float) -> CommitError:
        offsets = ", ".join(
            f"{partition}@{offset}" for partition, offset in sorted((self._in_flight | self._pending).items())[:5]
        )
        return CommitError(
            f"The group {self._group} could not commit within {seconds:g} s",
            found=f"no answer for {offsets}",
            hint="What was handled since the last commit will be read again",
            group=self._group,
        )
