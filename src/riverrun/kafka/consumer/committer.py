"""What is to be committed, what is on its way, and what failed.

The client lets one thread at a time into a consumer, and whoever polls in a loop hardly leaves it: a commit of another
thread waits for ever. And its synchronous commit has no deadline: it was seen to wait for minutes on a broker that hangs.
So commits are sent, without waiting, by the thread that polls (`pump`), and answered within its next poll (`answered`);
whoever waits, waits with a deadline. Partitions that go to another member need no wait: the client does not let them go
before the group has answered the commits that were sent before.

Per partition only the newest offset is sent, one request at a time, never a smaller offset than before, and never for a
partition that was forgotten. A commit that failed for the moment is sent again; why it failed is logged, counted, and
raised by the next one who asks.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.errors import CommitError
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
# So many such answers in a row are told; fewer are how groups work.
_ORDINARY = 8

Clock = Callable[[], float]


class Committer:
    """`send` gives a request to the client and does not wait. `pump` and `answered` are for the thread that polls."""

    def __init__(
        self, send: Callable[[list[ClientPartition]], None], group: str, clock: Clock = time.monotonic
    ) -> None:
        self._send = send
        self._group = group
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._wanted: dict[Place, int] = {}
        self._sending: dict[Place, int] = {}
        self._committed: dict[Place, int] = {}
        self._not_before = 0.0
        # Why a commit failed, and of what; forgotten as soon as all of that is committed after all.
        self._failure: CommitError | None = None
        self._failed: set[Place] = set()
        # Partitions that went before what was wanted of them was answered; those that go once it is.
        self._missed: set[Place] = set()
        self._released: set[Place] = set()
        self._in_a_row = 0
        self.commits = 0
        self.failed = 0

    def put(self, offsets: Mapping[Place, int]) -> None:
        """Commit these next."""
        with self._changed:
            for each, offset in offsets.items():
                place = Place(*each)
                latest = max(self._wanted.get(place, -1), self._sending.get(place, -1), self._committed.get(place, -1))
                if offset > latest:
                    self._wanted[place] = offset

    def pump(self, *, at_once: bool = False) -> None:
        """Send what is wanted, unless a request is on its way; `at_once` sends it even then."""
        with self._changed:
            if not self._wanted or (not at_once and (self._sending or self._clock() < self._not_before)):
                return
            request = [ClientPartition(*place, offset) for place, offset in self._wanted.items()]
            self._sending |= self._wanted
            self._wanted = {}
        try:
            self._send(request)
        except KafkaException as error:
            self.answered(error.args[0], request)

    def answered(self, error: ClientError | None, partitions: Sequence[ClientPartition]) -> None:
        """What became of a request."""
        with self._changed:
            settling = False
            failure: ClientError | None = None
            if error is not None and not partitions:
                partitions = [ClientPartition(*place, offset) for place, offset in self._sending.items()]
            for each in partitions:
                place, problem = Place(each.topic, each.partition), each.error or error
                if problem is not None:
                    failure, settling = problem, problem.code() in _SETTLING
                if self._sending.get(place) == each.offset:
                    del self._sending[place]
                    self._settle(place, each.offset, problem)
            self._not_before = self._clock() + _AGAIN_SECONDS if settling else 0.0
            if failure is None:
                self.commits += 1
                self._in_a_row = 0
            else:
                self.failed += 1
                self._in_a_row += 1
                explained = self._explained(failure)
                if self._in_a_row == (_ORDINARY if settling else 1):
                    log.warning("%s", explained)
                self._failure = explained
            if not self._failed:
                self._failure = None
            self._changed.notify_all()

    def _settle(self, place: Place, offset: int, problem: ClientError | None) -> None:
        ours = place not in self._released
        self._released.discard(place)
        if problem is not None:
            self._failed.add(place)
            if ours and problem.code() in _SETTLING:
                self._wanted.setdefault(place, offset)
        else:
            self._failed.discard(place)
            if ours:
                self._committed[place] = offset

    @property
    def idle(self) -> bool:
        """Whether everything that was put is committed, or failed for good."""
        return not self._wanted and not self._sending

    def await_with(self, serve: Callable[[], None], seconds: float) -> None:
        """Wait until all that was put is committed; CommitError when it is not. `serve` pumps and polls for a moment."""
        self._begin_wait()
        end = self._clock() + seconds
        while not self.idle and self._clock() < end:
            serve()
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
            # Somebody waits: what failed for the moment is sent again at once.
            self._not_before = 0.0
            self._missed.clear()

    def _end_wait(self, seconds: float) -> None:
        with self._changed:
            self.raise_failure()
            if self._missed:
                raise self._not_ours(self._missed)
            if not self.idle:
                raise self._too_late(seconds)

    def raise_failure(self) -> None:
        """Raise why an earlier commit failed, once."""
        with self._changed:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                self._failed.clear()
                raise failure

    def release(self, places: Collection[Place]) -> None:
        """These are about to go: send what is wanted of them, now or never."""
        self.pump(at_once=True)
        with self._changed:
            self._released |= self._sending.keys() & set(places)
            for place in places:
                self._committed.pop(place, None)

    def forget(self, places: Collection[Place]) -> None:
        """These are not ours any more, or are read from elsewhere: commit nothing for them, whatever is answered."""
        with self._changed:
            for place in places:
                if self._wanted.pop(place, None) is not None or self._sending.pop(place, None) is not None:
                    self._missed.add(place)
                self._committed.pop(place, None)
                self._failed.discard(place)
                self._released.discard(place)
            if not self._failed:
                self._failure = None
            self._changed.notify_all()

    def committed(self) -> dict[Place, int]:
        """What was committed."""
        with self._changed:
            return dict(self._committed)

    def _explained(self, error: ClientError) -> CommitError:
        cause = translate(error, "committing")
        return CommitError(
            f"The group {self._group} could not commit",
            found=cause.found or cause.what,
            hint="What was handled since the last commit will be read again",
            group=self._group,
            kafka_error=error.name(),
        )

    def _not_ours(self, places: Collection[Place]) -> CommitError:
        return CommitError(
            f"The group {self._group} took {', '.join(map(str, sorted(places)))} away before the commit",
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
