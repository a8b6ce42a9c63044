"""Commits offsets, one request at a time, on the thread that polls.

The client lets one thread at a time into a consumer, and whoever polls in a loop hardly leaves it: a commit of another
thread waits for ever, and inside of a rebalance callback it cannot enter at all. So commits are sent, without waiting, by
the thread that polls (`pump`), and answered inside of its next poll (`answered`). Whoever waits, waits with a deadline,
which the client's own synchronous commit does not have: that one is used only inside of a callback.

A commit that nobody waits for cannot be overtaken: per partition only the newest offset is sent, never a smaller one than
before, and never for a partition that was forgotten. A commit that failed for the moment is tried again; why it failed is
logged, counted, and raised by the next one who waits.
"""

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.errors import CommitError, RiverrunError
from riverrun.kafka.border import translate
from riverrun.model.state import Place

log = logging.getLogger("riverrun.kafka.consumer")

# What a group answers while it is being shared out anew, or its coordinator moves: the same commit works a moment later.
_SETTLING = frozenset({
    ClientError.REBALANCE_IN_PROGRESS, ClientError.ILLEGAL_GENERATION, ClientError.STALE_MEMBER_EPOCH,
    ClientError.COORDINATOR_LOAD_IN_PROGRESS, ClientError.COORDINATOR_NOT_AVAILABLE, ClientError.NOT_COORDINATOR,
    ClientError._WAIT_COORD, ClientError._TRANSPORT, ClientError._TIMED_OUT, ClientError.REQUEST_TIMED_OUT,
    ClientError.UNKNOWN_MEMBER_ID, ClientError._ALL_BROKERS_DOWN,
})  # fmt: skip
_AGAIN_SECONDS = 0.25
# So many refusals in a row are told; fewer are how groups work.
_ORDINARY = 8

# How long a thread that waits for an answer polls at a time; and one that leaves the polling to another waits.
_TURN_SECONDS = 0.05


class Channel(Protocol):
    """What carries commits: a `Subscription`."""

    @property
    def in_callback(self) -> bool:
        """Whether this is called from within a poll of the same thread, where nothing can be polled."""

    def send_commit(self, offsets: list[ClientPartition]) -> None:
        """Send it, and do not wait: `Committer.answered` is called within a later poll."""

    def commit_now(self, offsets: list[ClientPartition]) -> list[ClientPartition]:
        """Send it, and wait."""

    @property
    def may_poll(self) -> bool:
        """Whether this thread may poll: not while another one does."""

    def serve(self, seconds: float) -> None:
        """Poll, and keep what comes for later."""


class Committer:
    """Of one consumer."""

    def __init__(self, channel: Channel, group: str) -> None:
        self._channel = channel
        self._group = group
        self._changed = threading.Condition(threading.RLock())
        self._wanted: dict[Place, int] = {}
        self._sending: dict[Place, int] = {}
        self._under_way = False
        self._committed: dict[Place, int] = {}
        self._not_before = 0.0
        # Why a commit failed, and of what; forgotten as soon as all of that is committed after all.
        self._failure: CommitError | None = None
        self._failed: set[Place] = set()
        # Partitions that went to others before what was wanted of them was committed.
        self._too_late_for: set[Place] = set()
        self._in_a_row = 0
        self._closed = False
        self.commits = 0
        self.failed = 0

    def put(self, offsets: Mapping[Place, int]) -> None:
        """Commit these with the next `pump`; does not wait."""
        with self._changed:
            for each, offset in offsets.items():
                place = Place(*each)
                latest = max(self._wanted.get(place, -1), self._sending.get(place, -1), self._committed.get(place, -1))
                if offset > latest:
                    self._wanted[place] = offset

    def start(self) -> None:
        """Send what is wanted now, if this thread may; else the one that polls does."""
        if self._channel.may_poll and not self._channel.in_callback:
            self.pump()

    def pump(self) -> None:
        """Send what is wanted, if nothing is under way. Called by the thread that polls, before each poll."""
        with self._changed:
            if self._under_way or self._closed or not self._wanted or time.monotonic() < self._not_before:
                return
            self._sending, self._wanted = self._wanted, {}
            self._under_way = True
            request = [ClientPartition(*place, offset) for place, offset in self._sending.items()]
            try:
                self._channel.send_commit(request)
            except (KafkaException, RuntimeError) as error:
                self._refused(error)

    def answered(self, error: ClientError | None, partitions: Iterable[ClientPartition]) -> None:
        """The answer to what was sent; called within a poll."""
        with self._changed:
            answer = list(partitions)
            ours = any(self._sending.get(Place(each.topic, each.partition)) == each.offset for each in answer)
            if not self._under_way or (answer and not ours):
                # The late answer to a commit that a newer one has replaced, or of partitions that are not ours any more.
                return
            if error is not None:
                self._refused(KafkaException(error))
            else:
                self._take_answer(answer)

    def wait(self, seconds: float) -> None:
        """Wait until all that was put is committed; CommitError when it is not after that time."""
        end = time.monotonic() + seconds
        self._not_before = 0.0
        self._too_late_for.clear()
        if self._channel.in_callback:
            self._commit_now()
        else:
            self._await_answers(end)
        with self._changed:
            if failure := self._take_failure():
                raise failure
            if self._too_late_for:
                raise self._not_ours(self._too_late_for)
            if self._wanted or self._sending:
                raise self._too_late(seconds)

    def _await_answers(self, end: float) -> None:
        while (self._wanted or self._sending) and (left := end - time.monotonic()) > 0 and not self._closed:
            if self._channel.may_poll:
                self.pump()
                self._channel.serve(min(left, _TURN_SECONDS))
            else:
                with self._changed:
                    if self._wanted or self._sending:
                        self._changed.wait(min(left, _TURN_SECONDS))

    def _commit_now(self) -> None:
        """Inside of a callback: what is under way will be answered too late to count; the newest is sent with it."""
        with self._changed:
            self._sending = {**self._sending, **self._wanted}
            self._wanted = {}
            if not self._sending:
                return
            self._under_way = True
            request = [ClientPartition(*place, offset) for place, offset in self._sending.items()]
            try:
                self._take_answer(self._channel.commit_now(request))
            except (KafkaException, RuntimeError) as error:
                self._refused(error)
                # Whether to try again is for a poll to decide, and partitions that go away are forgotten before.

    def raise_failure(self) -> None:
        """Raise why an earlier commit failed, once."""
        with self._changed:
            if failure := self._take_failure():
                raise failure

    def forget(self, places: Collection[Place]) -> None:
        """These are not ours any more: commit nothing for them, and take no answer about them."""
        with self._changed:
            for place in places:
                if place in self._wanted or place in self._sending:
                    self._too_late_for.add(place)
                self._wanted.pop(place, None)
                self._sending.pop(place, None)
                self._committed.pop(place, None)
                self._failed.discard(place)
            self._under_way = self._under_way and bool(self._sending)
            self._changed.notify_all()

    def committed(self) -> dict[Place, int]:
        """What this committer has committed."""
        with self._changed:
            return dict(self._committed)

    def close(self) -> None:
        """No more commits; what is still wanted is not committed."""
        with self._changed:
            self._closed = True
            self._wanted.clear()
            self._sending.clear()
            self._changed.notify_all()

    # --- answers ------------------------------------------------------------------------------------------------------

    def _take_answer(self, partitions: Iterable[ClientPartition]) -> None:
        failure: CommitError | None = None
        settling = False
        done: set[Place] = set()
        for each in partitions:
            if each.error is None:
                done.add(Place(each.topic, each.partition))
            else:
                failure = self._explained(each.error)
                settling = each.error.code() in _SETTLING
        self._settle(done, failure, settling=settling)

    def _refused(self, error: KafkaException | RuntimeError) -> None:
        if isinstance(error, KafkaException):
            self._settle((), self._explained(error), settling=error.args[0].code() in _SETTLING)
        else:
            # The client was closed under us.
            failure = CommitError(f"The group {self._group} could not commit", found=str(error), group=self._group)
            self._settle((), failure, settling=False)

    def _settle(self, done: Collection[Place], failure: CommitError | None, *, settling: bool) -> None:
        with self._changed:
            self._under_way = False
            for place, offset in self._sending.items():
                if place in done:
                    self._committed[place] = offset
                    self._failed.discard(place)
                else:
                    self._failed.add(place)
                    if settling:
                        self._wanted.setdefault(place, offset)
            self._sending = {}
            self._not_before = time.monotonic() + _AGAIN_SECONDS if settling else 0.0
            if failure is None:
                self.commits += 1
                self._in_a_row = 0
                if not self._failed:
                    self._failure = None
            else:
                self.failed += 1
                self._in_a_row += 1
                # While a group is shared out anew a refusal is ordinary, and the next try does it.
                if self._in_a_row == (_ORDINARY if settling else 1):
                    log.warning("%s", failure)
                self._failure = failure
            self._changed.notify_all()

    def _explained(self, error: ClientError | KafkaException) -> CommitError:
        cause: RiverrunError = translate(error, "committing")
        return CommitError(
            f"The group {self._group} could not commit",
            found=cause.found or cause.what,
            hint="What was handled since the last commit will be read again",
            group=self._group,
            **{name: value for name, value in cause.fields.items() if name == "kafka_error"},
        )

    def _take_failure(self) -> CommitError | None:
        failure, self._failure = self._failure, None
        self._failed.clear()
        return failure

    def _not_ours(self, places: Collection[Place]) -> CommitError:
        return CommitError(
            f"The group {self._group} gave {', '.join(map(str, sorted(places)))} to another member before the commit",
            hint="What was handled since the last commit will be read again",
            group=self._group,
        )

    def _too_late(self, seconds: float) -> CommitError:
        offsets = ", ".join(f"{place}@{offset}" for place, offset in sorted((self._sending | self._wanted).items())[:5])
        return CommitError(
            f"The group {self._group} could not commit within {seconds:g} s",
            found=f"no answer for {offsets}",
            hint="What was handled since the last commit will be read again",
            group=self._group,
        )
