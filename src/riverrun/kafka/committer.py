"""Commits offsets from a thread of its own, one request at a time.

The client's own synchronous commit has no deadline: it was seen to wait for minutes on a broker that hangs. Here whoever
waits, waits with one, and a commit that nobody waits for cannot be overtaken: per partition only the newest offset is sent,
never a smaller one than before, and never for a partition that was forgotten. A commit that failed for the moment is tried
again; why it failed is logged, counted, and raised by the next one who waits.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping

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

Send = Callable[[list[ClientPartition]], list[ClientPartition]]


class Committer:
    """`send` commits and waits for the answer. Its thread begins with the first commit and ends with `close`."""

    def __init__(self, send: Send, group: str) -> None:
        self._send = send
        self._group = group
        self._changed = threading.Condition()
        self._wanted: dict[Place, int] = {}
        self._sending: dict[Place, int] = {}
        self._committed: dict[Place, int] = {}
        self._not_before = 0.0
        # Why a commit failed, and of what; forgotten as soon as all of that is committed after all.
        self._failure: CommitError | None = None
        self._failed: set[Place] = set()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.commits = 0
        self.failed = 0

    def put(self, offsets: Mapping[Place, int]) -> None:
        """Commit these next; does not wait."""
        with self._changed:
            for each, offset in offsets.items():
                place = Place(*each)
                latest = max(self._wanted.get(place, -1), self._sending.get(place, -1), self._committed.get(place, -1))
                if offset > latest:
                    self._wanted[place] = offset
            if self._wanted and self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="riverrun-commit", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until all that was put is committed; CommitError when it is not after that time."""
        end = time.monotonic() + seconds
        with self._changed:
            self._not_before = 0.0
            self._changed.notify_all()
            while (self._wanted or self._sending) and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            if failure := self._take_failure():
                raise failure
            if self._wanted or self._sending:
                raise self._too_late(seconds)

    def raise_failure(self) -> None:
        """Raise why an earlier commit failed, once."""
        with self._changed:
            if failure := self._take_failure():
                raise failure

    def forget(self, places: Collection[Place], seconds: float = 0.0) -> None:
        """These are not ours any more: commit nothing for them. A commit under way gets some time to be answered."""
        end = time.monotonic() + seconds
        with self._changed:
            for place in places:
                self._wanted.pop(place, None)
            while any(place in self._sending for place in places) and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            for place in places:
                self._wanted.pop(place, None)
                self._sending.pop(place, None)
                self._committed.pop(place, None)
                self._failed.discard(place)

    def committed(self) -> dict[Place, int]:
        """What this committer has committed."""
        with self._changed:
            return dict(self._committed)

    def close(self) -> None:
        """End the thread, after the request under way; what is still wanted is not committed."""
        with self._changed:
            self._closed = True
            self._wanted.clear()
            self._changed.notify_all()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (not self._wanted or time.monotonic() < self._not_before):
                    self._changed.wait(max(0.0, self._not_before - time.monotonic()) if self._wanted else None)
                if self._closed:
                    return
                self._sending, self._wanted = self._wanted, {}
                request = [ClientPartition(*place, offset) for place, offset in self._sending.items()]
            failure: CommitError | None = None
            settling = False
            done: dict[Place, int] = {}
            try:
                for each in self._send(request):
                    if each.error is None:
                        done[Place(each.topic, each.partition)] = each.offset
                    else:
                        failure = self._explained(each.error)
                        settling = each.error.code() in _SETTLING
            except KafkaException as error:
                failure = self._explained(error)
                settling = error.args[0].code() in _SETTLING
            except RuntimeError as error:
                # The client was closed under us.
                failure = CommitError(f"The group {self._group} could not commit", found=str(error), group=self._group)
            self._settle(done, failure, settling=settling)

    def _settle(self, done: Mapping[Place, int], failure: CommitError | None, *, settling: bool) -> None:
        with self._changed:
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
                if not self._failed:
                    self._failure = None
            else:
                self.failed += 1
                if self._failure is None:
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

    def _too_late(self, seconds: float) -> CommitError:
        offsets = ", ".join(f"{place}@{offset}" for place, offset in sorted((self._sending | self._wanted).items())[:5])
        return CommitError(
            f"The group {self._group} could not commit within {seconds:g} s",
            found=f"no answer for {offsets}",
            hint="What was handled since the last commit will be read again",
            group=self._group,
        )
