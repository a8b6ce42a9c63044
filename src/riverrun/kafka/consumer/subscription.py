"""A consumer's client: which topics, which partitions are ours now, where they are read, and what Kafka says about it.

Everything the client library tells — partitions that come and go, ends, offsets that are gone, topics that are gone, wrong
passwords — arrives in `fetch` and nowhere else. Records that were fetched are never lost to an error: they are held and
given out by the next `fetch`.
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

from riverrun.errors import BrokerUnreachableError, ConfigError, PollTooLateError, RiverrunError, UsageError
from riverrun.kafka.border import SETTLING, client_log, translate
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.committer import Committer
from riverrun.kafka.consumer.gone import Gap, gone_error
from riverrun.kafka.consumer.lookup import MISSING, Choice, Lookup
from riverrun.kafka.consumer.options import ConsumerOptions, Counts
from riverrun.model.state import Place

log = logging.getLogger("riverrun.kafka.consumer")

_LOGIN = frozenset({ClientError._AUTHENTICATION, ClientError._SSL, ClientError.SASL_AUTHENTICATION_FAILED})
_RESET = frozenset({ClientError._AUTO_OFFSET_RESET, ClientError.OFFSET_OUT_OF_RANGE, ClientError._LOG_TRUNCATION})
# The client goes on by itself after these.
_PASSING = SETTLING | {
    ClientError._TRANSPORT, ClientError._ALL_BROKERS_DOWN, ClientError._TIMED_OUT, ClientError._RESOLVE,
    ClientError._WAIT_COORD, ClientError.REQUEST_TIMED_OUT, ClientError._NODE_UPDATE, ClientError.REBALANCE_IN_PROGRESS,
    ClientError.STALE_MEMBER_EPOCH, ClientError.UNKNOWN_MEMBER_ID, ClientError.ILLEGAL_GENERATION,
}  # fmt: skip
_NEW_TOPICS_SECONDS = 10.0
_SERVE_SECONDS = 0.001
# How long to wait for another thread to leave the client before that one is trusted to do what is to be done.
_OTHER_SECONDS = 0.05
# How long a group must have moved no partitions before what a member has is what it keeps.
_QUIET_SECONDS = {"classic": 5.0, "consumer": 12.0}
_ENDS_SECONDS = 0.25
_ALONE = "riverrun-alone"


@dataclass(frozen=True)
class Listener:
    """Who is told about partitions. `revoked` is called while they are still ours; they go when it returns.

    `moved` is told that a partition goes on at an earlier offset, because its log is not the one that was read.
    """

    assigned: Callable[[list[Place]], None]
    revoked: Callable[[list[Place]], None]
    lost: Callable[[list[Place]], None]
    moved: Callable[[Place, int], None]


@dataclass
class Fetched:
    """What one `fetch` brought: records, then for each partition read to its end the offset of that end."""

    messages: list[Message] = field(default_factory=list)
    ends: dict[Place, int] = field(default_factory=dict)


class Subscription:
    """One client of the library below, opened by the first `fetch`.

    The client lets one thread at a time in, and who comes second may wait for ever. So `fetch`, `serve`, `move` and
    `send_commits` share a lock, and the two that other threads call do not insist on it.
    """

    def __init__(
        self, choice: Choice, options: ConsumerOptions, connection: Connection, listener: Listener, counts: Counts
    ) -> None:
        self.choice = choice
        self.options = options
        self._listener = listener
        self.owned: set[Place] = set()
        # Where each partition of ours is read next; missing where nothing was read yet.
        self.positions: dict[Place, int] = {}
        # The ends of our partitions, as of a moment ago.
        self.ends: dict[Place, int] = {}
        self._ends_at = 0.0
        self._counts = counts
        self._where = connection.bootstrap_servers
        self.timeout: float = connection.settings.request_timeout_seconds
        self._lock = threading.RLock()
        self._opened = False
        self._closing = False
        self._assigned_once = False
        self._rebalanced = False
        # Whether the client calls back right now: then nothing can be polled.
        self.calling_back = False
        # Where partitions begin that come when the client's call returns; None when none are about to.
        self._coming: dict[Place, int] | None = None
        # Until when more partitions may come or go.
        self._moving_until = 0.0
        self._paused: set[Place] = set()
        # Partitions whose end was reached once; those that had nothing more to read when we last looked.
        self._ended: set[Place] = set()
        self.at_tail: set[Place] = set()
        self._begin: dict[Place, int] = {}
        self._new: set[Place] = set()
        self._out_of_range: dict[Place, int] = {}
        self._held = Fetched()
        self._events: list[Message] = []
        self._torn = False
        # Paused only because somebody waits for something else than records.
        self._quiet: set[Place] = set()
        self._failure: BaseException | None = None
        self._login_error: ClientError | None = None
        self._missing = False
        self._unreachable = False
        self._topics: list[str] = []
        self._look_again_at = 0.0
        self.commits = Committer(self._commit, choice.group)
        properties = options.client_properties(connection, choice.group or _ALONE)
        try:
            self.client = Consumer(
                {**properties, "error_cb": self._on_error, "on_commit": self.commits.answered}, logger=client_log
            )
        except (KafkaException, ValueError, TypeError) as error:
            found = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            raise ConfigError([f"the client refuses a property of the consumer: {found}"]) from error
        self.lookup = Lookup(self.client, choice, where=self._where, timeout=self.timeout, on_wait=self._hear_errors)

    # --- opening ------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find the cluster and the topics, and ask for partitions. Says within the request timeout what is missing."""
        if self._opened:
            return
        topics = self.lookup.topics()
        if self.choice.shared:
            self._subscribe(topics)
        else:
            places = self.lookup.partitions(topics)
            self._begin = self._beginnings(places)
            self.client.assign([ClientPartition(*place, offset) for place, offset in self._begin.items()])
            self._assigned(places)
        self._opened = True

    def _beginnings(self, places: list[Place]) -> dict[Place, int]:
        if self.choice.group:
            return dict.fromkeys(places, OFFSET_STORED)
        return self.lookup.offsets_at(places, self.options.first)

    def _subscribe(self, topics: list[str]) -> None:
        self._topics = topics
        self._look_again_at = time.monotonic() + _NEW_TOPICS_SECONDS
        if not topics:
            log.warning("No topic matches %s yet; looking again every %g s.", self.choice, _NEW_TOPICS_SECONDS)
            return
        self.client.subscribe(topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)

    # --- fetching -----------------------------------------------------------------------------------------------------

    def fetch(self, most: int, wait_seconds: float, fill_seconds: float = 0.0) -> Fetched:
        """Up to `most` records: waits for a first one, then takes what is there, or waits up to `fill_seconds` for more."""
        with self._lock:
            self.open()
            if self._torn:
                self._rewind()
            self.commits.pump()
            if not self._held.messages:
                self._be_loud()
                self._take(lambda: self._poll(most, wait_seconds, fill_seconds))
            self._settle()
            held, self._held = self._held, Fetched()
            self.positions.update(self._positions_now())
            self._note_ends()
            return held

    def serve(self, room: int) -> None:
        """Look after the group and the commits for a moment, unless another thread does so by a `fetch` of its own.

        Up to `room` records are taken meanwhile, and held for the next `fetch`.
        """
        if not self._lock.acquire(timeout=_OTHER_SECONDS):
            return
        try:
            if self._torn:
                self._rewind()
            self.commits.pump()
            if len(self._held.messages) >= room:
                self._be_quiet()
            self._take(lambda: self._poll(1, _SERVE_SECONDS, 0.0))
        finally:
            self._lock.release()
        if self._held.messages:
            # The client has more of them, and does not wait; we do.
            time.sleep(_SERVE_SECONDS)

    def send_commits(self, *, at_once: bool = False) -> None:
        """Send what is to be committed. When another thread is in the client, that one does it before it leaves."""
        if self._lock.acquire(timeout=_SERVE_SECONDS):
            try:
                self.commits.pump(at_once=at_once)
            finally:
                self._lock.release()

    def _take(self, poll: Callable[[], list[Message]]) -> None:
        """Put what the client gives among what is held. If this is interrupted, it is read again."""
        self._rebalanced = False
        self._torn = True
        messages = poll()
        events = [each for each in messages if each.error() is not None]
        if events:
            messages = [each for each in messages if each.error() is None]
        if self._rebalanced:
            messages = [each for each in messages if (each.topic(), each.partition()) in self.owned]
        if self.at_tail:
            self.at_tail.difference_update({(each.topic(), each.partition()) for each in messages})
        if self._held.messages:
            self._held.messages += messages
        else:
            self._held.messages = messages
        self._events += events
        self._torn = False
        # What other threads asked for meanwhile.
        self.commits.pump()

    def _be_quiet(self) -> None:
        """Get no records for now, without forgetting who is paused for other reasons."""
        if loud := self.owned - self._paused - self._quiet:
            self.client.pause([ClientPartition(*place) for place in loud])
            self._quiet |= loud

    def _be_loud(self) -> None:
        if self._quiet:
            loud = [ClientPartition(*place) for place in self._quiet if place in self.owned - self._paused]
            self.client.resume(loud)
            self._quiet = set()

    def _poll(self, most: int, wait_seconds: float, fill_seconds: float) -> list[Message]:
        # `poll` returns as soon as there is a record, and can be interrupted; `consume` waits for all it was asked for.
        try:
            first = self.client.poll(wait_seconds)
            if first is None:
                return []
            return [first, *self.client.consume(most - 1, fill_seconds)] if most > 1 else [first]
        except KafkaException as error:
            raise translate(error, f"reading {self.choice}", bootstrap=self._where) from error

    def _positions_now(self) -> dict[Place, int]:
        # The client's own count: it knows of markers of transactions behind the last record, and costs one call a fetch.
        found = self.client.position([ClientPartition(*place) for place in self.owned])
        return {Place(each.topic, each.partition): each.offset for each in found if each.offset >= 0}

    def _note_ends(self) -> None:
        # What the client learnt with its last fetches; other threads must not ask it (`committer` says why).
        now = time.monotonic()
        if now >= self._ends_at:
            self._ends_at = now + _ENDS_SECONDS
            for place in self.owned:
                _, end = self.client.get_watermark_offsets(ClientPartition(*place), cached=True)
                if end >= 0:
                    self.ends[place] = end

    def _settle(self) -> None:
        """Look after all that is not a record; what must stop the reader is raised here, after the records are safe."""
        stop: RiverrunError | None = None
        events, self._events = self._events, []
        for event in events:
            stop = self._event(event) or stop
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._raise_login_error()
        if stop is not None:
            raise stop
        if self._missing:
            self._missing = False
            self._check_topics()
        if self._new or self._out_of_range:
            self._position_strays()
        if self.choice.patterns and self.choice.shared and time.monotonic() > self._look_again_at:
            self._look_for_topics()

    def _event(self, event: Message) -> RiverrunError | None:
        error: Any = event.error()
        code, offset = error.code(), event.offset()
        place = Place(event.topic() or "", -1 if event.partition() is None else event.partition() or 0)
        if code == ClientError._PARTITION_EOF:
            if place in self.owned and offset is not None:
                self._ended.add(place)
                self.at_tail.add(place)
                self._held.ends[place] = self.ends[place] = offset
        elif code in _RESET:
            if place in self.owned:
                if offset is None or offset < 0:
                    self._new.add(place)
                else:
                    self._out_of_range[place] = offset
        elif code == ClientError._MAX_POLL_EXCEEDED:
            return self._too_late()
        elif code in MISSING:
            self._missing = True
        elif error.fatal() or code not in _PASSING:
            return translate(
                error, f"reading {event.topic() or self.choice}", topic=event.topic(), bootstrap=self._where
            )
        return None

    def _too_late(self) -> PollTooLateError:
        limit = self.options.max_poll_seconds
        return PollTooLateError(
            f"A record or batch took longer than {limit:g} s, and the group {self.choice.group} gave this consumer's "
            "partitions to others",
            found="what was in hand cannot be committed and will be read again",
            hint="Ask for smaller batches, raise max_poll_seconds, or use run(), which has no such limit",
            group=self.choice.group,
            max_poll_seconds=limit,
        )

    def _on_error(self, error: ClientError) -> None:
        code = error.code()
        if code in _LOGIN:
            self._login_error = error
        elif code in MISSING:
            self._missing = True
        elif code == ClientError._ALL_BROKERS_DOWN:
            if self._opened and not self._unreachable:
                log.warning("No broker at %s answers; trying again until one does.", self._where)
            self._unreachable = True
        elif error.fatal():
            self._failure = translate(error, f"reading {self.choice}", bootstrap=self._where, group=self.choice.group)

    def _hear_errors(self) -> None:
        self.client.poll(0)
        self._raise_login_error()

    def _raise_login_error(self) -> None:
        if self._login_error is not None:
            error, self._login_error = self._login_error, None
            raise translate(error, f"reading {self.choice}", bootstrap=self._where)

    def _check_topics(self) -> None:
        """The client misses a topic or partition: is it really gone?"""
        there = self.lookup.all_topics(self.timeout)
        for name in self.choice.names:
            if there is not None and name not in there:
                self._lost([place for place in self.owned if place.topic == name])
                raise self.lookup.no_topic(name, any_more=True)

    def _look_for_topics(self) -> None:
        """Topics that came since, or went: subscribe anew, so that they are shared out."""
        self._look_again_at = time.monotonic() + _NEW_TOPICS_SECONDS
        there = self.lookup.all_topics(1.0)
        if there is not None and (topics := self.choice.topics(there)) != self._topics:
            self._subscribe(topics)

    # --- partitions come and go; called by the library inside of `poll` and `consume`, where nothing may be raised ----

    def _on_assign(self, _client: Consumer, partitions: list[ClientPartition]) -> None:
        self._guarded(self._come, [Place(each.topic, each.partition) for each in partitions])

    def _on_revoke(self, _client: Consumer, partitions: list[ClientPartition]) -> None:
        self._guarded(self._revoked, [Place(each.topic, each.partition) for each in partitions])

    def _on_lost(self, _client: Consumer, partitions: list[ClientPartition]) -> None:
        self._guarded(self._lost, [Place(each.topic, each.partition) for each in partitions])

    def _guarded(self, act: Callable[[list[Place]], None], places: list[Place]) -> None:
        if self._closing:
            return
        self._rebalanced = self.calling_back = True
        try:
            act(places)
        except BaseException as error:  # noqa: BLE001  -- raised by `fetch`, after the records at hand are safe
            self._failure = error
        self.calling_back = False

    def _come(self, places: list[Place]) -> None:
        """A group gives us partitions. They begin where it stands, unless who is told of them moves them."""
        coming = self._coming = dict.fromkeys(places, OFFSET_STORED)
        try:
            self._assigned(places)
        finally:
            self._coming = None
            # The client would do it by itself, but not when other partitions were moved meanwhile.
            self.client.incremental_assign([ClientPartition(*place, offset) for place, offset in coming.items()])
            self._hold(places)
        # A group moves partitions in two steps: first it takes them, and gives none to the member that is to have them.
        if not self.owned or time.monotonic() < self._moving_until:
            self._stir()

    def _stir(self) -> None:
        self._moving_until = time.monotonic() + _QUIET_SECONDS[self.options.protocol]

    def _assigned(self, places: list[Place]) -> None:
        self._counts.rebalances += 1
        self._assigned_once = True
        self.owned.update(places)
        self._listener.assigned(places)

    def _revoked(self, places: list[Place]) -> None:
        try:
            self._listener.revoked(places)
        finally:
            self._forget(places)

    def _lost(self, places: list[Place]) -> None:
        self._forget(places)
        self._listener.lost(places)

    def _forget(self, places: Collection[Place]) -> None:
        if places:
            self._stir()
        self._drop_events(places)
        self.owned.difference_update(places)
        self._ended.difference_update(places)
        self.at_tail.difference_update(places)
        self._paused.difference_update(places)
        self._quiet.difference_update(places)
        self._new.difference_update(places)
        for place in places:
            self.positions.pop(place, None)
            self.ends.pop(place, None)
            self._out_of_range.pop(place, None)
            self._held.ends.pop(place, None)
        if self._held.messages:
            self._held.messages = self._without(places)

    # --- positions ----------------------------------------------------------------------------------------------------

    @property
    def has_partitions(self) -> bool:
        """Whether partitions were given to us, be it none."""
        return self._assigned_once

    @property
    def at_end(self) -> bool:
        """Whether every partition of ours was read to its end, and no more are about to come."""
        return self._assigned_once and self.owned <= self._ended and time.monotonic() >= self._moving_until

    @property
    def assigning(self) -> bool:
        """Whether partitions are about to come: they can still be told where to begin."""
        return self._coming is not None

    def move(self, offsets: Mapping[Place, int], *, keep: bool = False) -> None:
        """Read these partitions from other offsets. Records that were fetched from them and not given out are dropped, or
        given out first, to `keep` them."""
        with self._lock:
            ours = {place: offset for place, offset in offsets.items() if place in self.owned}
            if not ours:
                return
            if self.calling_back and not self.assigning:
                raise UsageError("A consumer cannot be moved while partitions go", hint="Seek in on_assigned, or later")
            self._assign_anew(ours)
            self._drop_events(ours)
            if not keep:
                self._held.messages = self._without(ours)
            for place, offset in ours.items():
                self._held.ends.pop(place, None)
                self._ended.discard(place)
                self.at_tail.discard(place)
                self._new.discard(place)
                self._out_of_range.pop(place, None)
                if offset >= 0:
                    self.positions[place] = offset
                else:
                    self.positions.pop(place, None)

    def _assign_anew(self, offsets: Mapping[Place, int]) -> None:
        coming = {} if self._coming is None else self._coming
        coming.update({place: offset for place, offset in offsets.items() if place in coming})
        # Not `seek`: it fails for a partition that has not begun, or stopped because its offset is gone.
        if here := [ClientPartition(*place, offset) for place, offset in offsets.items() if place not in coming]:
            self.client.incremental_unassign(here)
            self.client.incremental_assign(here)
            self._hold(offsets.keys() - coming.keys())

    def _hold(self, places: Collection[Place]) -> None:
        """Partitions that are paused stay so when they are assigned anew."""
        if paused := [ClientPartition(*place) for place in places if place in self._paused]:
            self.client.pause(paused)

    def _drop_events(self, places: Collection[Place]) -> None:
        """Ends and offsets that were told of these are not true any more."""
        if self._events:
            gone = set(places)
            self._events = [
                each for each in self._events if (each.topic(), each.partition()) not in gone or not _is_of_offset(each)
            ]

    def first_held(self, places: Collection[Place]) -> dict[Place, int]:
        """The offset of the first record that was fetched and not given out, of each of these that has one."""
        first: dict[Place, int] = {}
        for each in self._held.messages:
            place = Place(each.topic(), each.partition())  # type: ignore[arg-type]
            if place in places:
                first.setdefault(place, each.offset())  # type: ignore[arg-type]
        return first

    def _without(self, places: Collection[Place]) -> list[Message]:
        gone = set(places)
        return [each for each in self._held.messages if (each.topic(), each.partition()) not in gone]

    def _rewind(self) -> None:
        """An interrupted fetch may have taken records nobody got: read them again."""
        known = self._begin | self.positions | self.first_held(self.owned)
        self.move({place: known.get(place, OFFSET_STORED) for place in self.owned})

    def _position_strays(self) -> None:
        """Partitions whose group has no offset begin at `start`; those whose offset is gone at the oldest there is."""
        new, gone = set(self._new), dict(self._out_of_range)
        try:
            if new:
                self._begin_new(new)
            if not gone:
                return
            first, end = self.lookup.offsets_at(gone, OFFSET_BEGINNING), self.lookup.offsets_at(gone, OFFSET_END)
        except BrokerUnreachableError as unreachable:
            log.warning("%s", unreachable)
            return
        gaps = [Gap(place, gone[place], first[place], end[place]) for place in gone if place in self.owned]
        error = gone_error(gaps, self.choice.group, stops=self.options.on_gone == "stop")
        if self.options.on_gone == "stop":
            # The reader stays where it was: what it did not read is not committed, and the next one is told as well.
            raise error
        onward = {gap.place: gap.next for gap in gaps if gap.next >= gap.first}
        back = {gap.place: gap.next for gap in gaps if gap.next < gap.first}
        # What was fetched in front of a gap is given out. The gap itself is done with behind that.
        self.move(onward, keep=True)
        self._held.ends |= onward
        self.move(back)
        for place, offset in back.items():
            self._listener.moved(place, offset)
        self._counts.gone += sum(gap.gone for gap in gaps)
        log.warning("%s", error)
        if callable(self.options.on_gone):
            self.options.on_gone(error)

    def _begin_new(self, places: set[Place]) -> None:
        # We know better where to read: a seek came before the client was told that the group has no offset. Or the log lost
        # its end; then the client answers this with the offset that is out of range.
        self.move({place: self.positions[place] for place in places if place in self.positions})
        # The offset itself, not «the oldest»: that the client looks up on its own, and goes there even after a seek.
        offsets = self.lookup.offsets_at(places - self.positions.keys(), self.options.first)
        self.move(offsets)
        if self.options.pins_start:
            self._held.ends |= offsets

    def pause(self, places: Collection[Place]) -> None:
        """Get no records of these until `resume`; what was fetched ahead is dropped, and fetched again then."""
        if ours := [place for place in places if place in self.owned]:
            self._paused.update(ours)
            self._hold(set(ours) - (self._coming or {}).keys())

    def resume(self, places: Collection[Place]) -> None:
        if ours := [place for place in places if place in self._paused]:
            self._paused.difference_update(ours)
            self.client.resume([ClientPartition(*place) for place in ours])

    @property
    def paused(self) -> frozenset[Place]:
        return frozenset(self._paused)

    def committed(self, places: Collection[Place]) -> dict[Place, int]:
        """What the group has committed, of those of which it has."""
        if not places:
            return {}
        try:
            found = self.client.committed([ClientPartition(*place) for place in places], timeout=self.timeout)
        except KafkaException as error:
            raise translate(error, f"reading the offsets of {self.choice.group}", bootstrap=self._where) from error
        return {Place(each.topic, each.partition): each.offset for each in found if each.offset >= 0}

    def _commit(self, offsets: list[ClientPartition]) -> None:
        self.client.commit(offsets=offsets, asynchronous=True)

    def close(self) -> None:
        """Leave the group and end the client. May take as long as the brokers let it: see `Consumer.close`."""
        self._closing = True
        self.client.close()


def _is_of_offset(event: Message) -> bool:
    """Whether an event says something about an offset: an end, or one that is gone."""
    error: Any = event.error()
    return error.code() == ClientError._PARTITION_EOF or error.code() in _RESET
