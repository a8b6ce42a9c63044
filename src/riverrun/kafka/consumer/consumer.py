"""Reading records: one by one, in batches, or handled in parallel.

    with Consumer(readings, group="alerts") as consumer:
        for record in consumer:
            print(record, record.value.load_kw)

At least once by default: a record counts as done when the next one is asked for, and only what is done is committed. A loop
that ends by an exception leaves the record in hand, so it is read again. `run` handles many records at a time and commits up
to the first one that is not done (riverrun.kafka.consumer.parallel).
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
from riverrun.kafka.connection import Connection, connection_of
from riverrun.kafka.consumer.dead_letter import DeadLetters
from riverrun.kafka.consumer.hand import Hand
from riverrun.kafka.consumer.lookup import choose
from riverrun.kafka.consumer.options import ConsumerKeywords, ConsumerMetrics, ConsumerOptions, Counts
from riverrun.kafka.consumer.parallel import Engine
from riverrun.kafka.consumer.record import Batch, Decoding, Record
from riverrun.kafka.consumer.run_options import RunKeywords, RunOptions
from riverrun.kafka.consumer.subscription import Listener, Subscription
from riverrun.kafka.consumer.worker import run_in_threads
from riverrun.kafka.registry.wire import wires_of
from riverrun.model.state import Place
from riverrun.model.topic import Topic

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    V = DefaultTypeVar("V", default=Any)
else:
    V = TypeVar("V")

log = logging.getLogger("riverrun.kafka.consumer")

# How many records a plain loop fetches at a time, and how long it goes on without looking after the group.
_FETCH = 500
_AHEAD = 1000
_LOOK_SECONDS = 0.5
# How long a wait for records goes on before it looks whether it is to end.
_TURN_SECONDS = 0.1


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
        self.connection = connection_of(connection)
        choice, schemas = choose(topics, group, self.options.partitions)
        self.group = group
        registry = self.connection.registry
        self._decoding: Decoding[V] = Decoding(schemas, wires_of(topics, registry), registry)
        self._counts = Counts()
        listener = Listener(self._assigned, self._revoked, self._lost, self._moved)
        self._reading = Subscription(choice, self.options, self.connection, listener, self._counts)
        self._commits = self._reading.commits
        self._hand = Hand()
        self._engine: Engine[V] | None = None
        self._stopping = threading.Event()
        self._closed = False
        self._look_at = 0.0
        self._commit_at = time.monotonic() + self.options.commit_interval_seconds
        self._metrics_at = time.monotonic() + self.options.metrics_seconds

    # --- one by one ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Record[V]]:
        return self

    def __next__(self) -> Record[V]:
        """The next record; by asking, the one before is done. Ends after `stop`, or at the end if not to `follow`."""
        self._check_usable()
        self._settle()
        while (record := self._at_hand()) is None:
            if not self._refill():
                raise StopIteration
        self._commit_ahead()
        return record

    def _settle(self) -> None:
        """What was handed out is done."""
        self._counts.handled += self._hand.settle()
        if self.options.commit == "record":
            self._commit_done()

    def _at_hand(self) -> Record[V] | None:
        """The next record, if it was fetched and the group can do without us for the moment."""
        if time.monotonic() < self._look_at and not self._stopping.is_set():
            message = self._hand.take_one()
            if message is not None:
                return Record(message, self._decoding)
        return None

    def _refill(self) -> bool:
        """Fetch, for a moment; False when it is over."""
        if self._stopping.is_set():
            return False
        ahead = len(self._hand)
        if not ahead and self.options.commit == "batch":
            self._commit_done()
        self._look_after(time.monotonic())
        if ahead < _FETCH:
            self._hand.put(self._reading.fetch(_FETCH - ahead, 0.0 if ahead else _TURN_SECONDS))
        else:
            self._reading.serve(_AHEAD - ahead)
        self._look_at = time.monotonic() + _LOOK_SECONDS
        return bool(len(self._hand)) or not self._finished

    # --- in batches ---------------------------------------------------------------------------------------------------

    def batches(self, most: int = 1000, *, wait_seconds: float = 1.0) -> Iterator[Batch[V]]:
        """Batches of up to `most` records; a batch that is not full is given out `wait_seconds` after it began.

        By asking for the next batch, the one before is done.
        """
        check_batch(most)
        while True:
            self._check_usable()
            self._settle_batch()
            if not self._gather(most, wait_seconds):
                return
            yield self._take_batch(most)

    def _settle_batch(self) -> None:
        self._settle()
        if self.options.commit == "batch":
            self._commit_done()

    def _gather(self, most: int, wait_seconds: float) -> bool:
        """Fetch until there is a batch; False when it is over."""
        for _ in self._gathering(most, wait_seconds):
            pass
        return self._has_batch

    def _gathering(self, most: int, wait_seconds: float) -> Iterator[None]:
        """Fetch until there is a batch, or it is over; for a moment from one turn to the next."""
        hand = self._hand
        end: float | None = None
        while len(hand) < most and not self._stopping.is_set():
            now = time.monotonic()
            self._look_after(now)
            if len(hand):
                end = end or now + wait_seconds
                if now >= end:
                    break
            left = min(_TURN_SECONDS, wait_seconds if end is None else end - now)
            hand.put(self._reading.fetch(most - len(hand), _TURN_SECONDS if end is None else left, left))
            if self._finished:
                break
            if len(hand) < most:
                yield

    @property
    def _has_batch(self) -> bool:
        return bool(len(self._hand)) and not self._stopping.is_set()

    def _take_batch(self, most: int) -> Batch[V]:
        messages = self._hand.take_many(most, self._reading.positions)
        self._commit_ahead()
        return Batch(messages, self._decoding)

    # --- in parallel --------------------------------------------------------------------------------------------------

    def run(
        self, handler: Callable[[Record[V]], None], *, workers: int = 8, **options: Unpack[RunKeywords]
    ) -> ConsumerMetrics:
        """Call `handler` for every record, in `workers` threads, until `stop`, SIGTERM or SIGINT, or the end.

        Keywords are those of `RunOptions`: the order to keep, how much may be in flight, and what to do with errors. What
        was begun is finished and committed. Gives the counts.
        """
        with self._begin_run(RunOptions(**options)) as engine:
            run_in_threads(engine, handler, workers, self.stop)
        return self.metrics()

    @contextlib.contextmanager
    def _begin_run(self, options: RunOptions) -> Iterator[Engine[V]]:
        """What `run` stands on, for crews of another kind."""
        self._check_usable()
        self._settle()
        self._reading.move(self._hand.drop_ahead(self._reading.owned))
        dead_letters = DeadLetters(self.connection, self.group, options.dead_letter, create=options.create_dead_letter)
        engine = self._engine = Engine(
            reading=self._reading,
            decoding=self._decoding,
            consumer=self.options,
            options=options,
            dead_letters=dead_letters,
            stopping=self._stopping,
            counts=self._counts,
            tick=self._tick,
        )
        try:
            yield engine
        finally:
            self._engine = None
            dead_letters.close()
            self._hand.done.update(engine.committable())
            self._reading.move(engine.unfinished)

    def stop(self) -> None:
        """End the loop or `run` soon, from any thread or a signal handler: what was begun is finished and committed."""
        self._stopping.set()

    # --- commits ------------------------------------------------------------------------------------------------------

    def commit(self, *, wait: bool = True, through: Record[V] | None = None) -> None:
        """Commit all that was handed out, what is in hand included; or of one partition all `through` this record.

        With `wait` CommitError is raised when the cluster does not confirm it; without, by the next commit.
        """
        self._check_usable()
        if not self.group:
            raise UsageError("A consumer without a group has nothing to commit to", hint="Give it a `group`")
        self._commits.raise_failure()
        if self._engine is not None:
            offsets: Mapping[Place, int] = self._engine.committable()
        elif through is not None:
            offsets = {through.place: through.offset + 1}
        else:
            offsets = self._hand.done | self._hand.in_hand()
        self._commit(offsets, wait=wait)

    def _commit(self, offsets: Mapping[Place, int], *, wait: bool, seconds: float | None = None) -> None:
        self._commits.put(offsets)
        seconds = self._reading.timeout if seconds is None else seconds
        if self._reading.calling_back:
            # Nothing can be awaited here, nor must it: the client lets no partition go before this is answered.
            self._reading.send_commits(at_once=True)
        elif self._engine is not None:
            # Asked by a handler: the thread that reads does it.
            if wait:
                self._commits.wait(seconds)
        elif wait:
            self._commits.await_with(lambda: self._reading.serve(_AHEAD - len(self._hand)), seconds)
        else:
            self._reading.send_commits()

    def _commit_done(
        self, done: Mapping[Place, int] | None = None, *, wait: bool | None = None, seconds: float | None = None
    ) -> None:
        """Commit what is done, the way that was chosen, if this consumer commits at all."""
        if self.group and self.options.delivery == "at-least-once":
            wait = self.options.waits_for_commit if wait is None else wait
            self._commit(self._hand.done if done is None else done, wait=wait, seconds=seconds)

    def _commit_ahead(self) -> None:
        """At most once: commit what is about to be handed out; when that fails, it is not handed out."""
        if self.options.delivery != "at-most-once" or not self.group:
            return
        try:
            self._commit(self._hand.in_hand(), wait=True)
        except BaseException:
            self._hand.put_back()
            raise

    def _look_after(self, now: float) -> None:
        """What is due from time to time in a plain loop."""
        if self.options.commit == "interval" and now >= self._commit_at:
            self._commit_at = now + self.options.commit_interval_seconds
            self._commit_done()
        self._tick(now)

    def _tick(self, now: float) -> None:
        if self.options.on_metrics is not None and now >= self._metrics_at:
            self._metrics_at = now + self.options.metrics_seconds
            self.options.on_metrics(self.metrics())

    # --- partitions come and go ---------------------------------------------------------------------------------------

    def _assigned(self, places: list[Place]) -> None:
        if self._engine is not None:
            self._engine.assigned(places)
        if self.options.on_assigned is not None:
            self.options.on_assigned(places)

    def _revoked(self, places: list[Place]) -> None:
        if self.options.on_revoked is not None:
            self.options.on_revoked(places)
        if self._engine is not None:
            self._engine.revoked(places)
        elif self.options.commit != "manual":
            self._commit_done({place: offset for place, offset in self._hand.done.items() if place in places})
        self._commits.release(places)
        self._hand.forget(places)

    def _lost(self, places: list[Place]) -> None:
        if self._engine is not None:
            self._engine.lost(places)
        self._commits.forget(places)
        self._hand.forget(places)
        if places:
            log.warning("Lost %s; what was not committed is read again.", ", ".join(map(str, places)))
        if self.options.on_lost is not None:
            self.options.on_lost(places)

    def _moved(self, place: Place, offset: int) -> None:
        """By a seek, or because the topic was made anew: what lies before counts as done, and going back is right."""
        self._commits.forget([place])
        if self._engine is not None:
            self._engine.moved(place, offset)
        else:
            self._hand.forget([place])
            self._hand.done[place] = offset

    # --- where it stands ----------------------------------------------------------------------------------------------

    @property
    def partitions(self) -> list[Place]:
        """The partitions this consumer reads now."""
        return sorted(self._reading.owned)

    def position(self) -> dict[Place, int]:
        """The offset of the next record to be handed out, of each partition of which that is known."""
        return {**self._reading.positions, **self._hand.first_ahead()}

    def lag(self) -> dict[Place, int]:
        """How many offsets each partition goes on behind what is done. Asks the cluster; while it runs, see `metrics`."""
        self._not_in_run("ask for its lag")
        self._check_usable()
        self._await_partitions()
        places = self.partitions
        done = self._standing(places)
        unknown = [place for place in places if place not in done]
        done |= self._reading.committed(unknown) if self.group else {}
        unknown = [place for place in places if place not in done]
        done |= self._reading.lookup.offsets_at(unknown, self.options.first)
        ends = self._reading.lookup.offsets_at(places, OFFSET_END)
        return {place: max(0, ends[place] - done[place]) for place in places}

    def metrics(self) -> ConsumerMetrics:
        """The counts so far, and how it stands. Asks nobody."""
        in_flight = self._engine.in_flight if self._engine is not None else (0, 0)
        return ConsumerMetrics(
            **dataclasses.asdict(self._counts),
            in_flight=in_flight[0],
            in_flight_bytes=in_flight[1],
            commits=self._commits.commits,
            commits_failed=self._commits.failed,
            lag=self._known_lag(),
        )

    def _standing(self, places: Collection[Place]) -> dict[Place, int]:
        done = self._engine.committable() if self._engine is not None else self._hand.done
        return {place: offset for place, offset in done.items() if place in places}

    def _known_lag(self) -> int | None:
        places = set(self._reading.owned)
        done = {**self._commits.committed(), **self._standing(places)}
        ends = dict(self._reading.ends)
        if not places or not places <= done.keys() & ends.keys():
            return None
        return sum(max(0, ends[place] - done[place]) for place in places)

    # --- elsewhere ----------------------------------------------------------------------------------------------------

    def seek(self, partition: int | Place, offset: int) -> None:
        """Go on at this offset of a partition. What lies before counts as done, for the next commit as well."""
        self._seek({self._place(partition): offset})

    def seek_to_beginning(self, *partitions: int | Place) -> None:
        """Go on at the oldest records, of these partitions or of all this consumer has."""
        self._seek(self._reading.lookup.offsets_at(self._places(partitions), OFFSET_BEGINNING))

    def seek_to_end(self, *partitions: int | Place) -> None:
        """Go on with the records that come from now on."""
        self._seek(self._reading.lookup.offsets_at(self._places(partitions), OFFSET_END))

    def seek_to_time(self, moment: datetime, *partitions: int | Place) -> None:
        """Go on with the first record that has this timestamp or a later one; at the end where there is none."""
        if moment.tzinfo is None:
            raise UsageError(f"{moment} has no time zone", hint="Add one: moment.replace(tzinfo=UTC)")
        self._seek(self._reading.lookup.offsets_at(self._places(partitions), moment))

    def _seek(self, offsets: Mapping[Place, int]) -> None:
        if not self._reading.assigning:
            self._not_in_run("seek")
        self._reading.move(offsets)
        for place, offset in offsets.items():
            self._moved(place, offset)

    def pause(self, *partitions: int | Place) -> None:
        """Hand out no records of these partitions, or of all, until `resume`. The loop goes on with the others."""
        self._not_in_run("pause")
        places = self._places(partitions)
        self._reading.pause(places)
        self._reading.move(self._reading.first_held(places) | self._hand.drop_ahead(places))

    def resume(self, *partitions: int | Place) -> None:
        self._not_in_run("resume")
        self._reading.resume(self._places(partitions))

    def _places(self, partitions: Collection[int | Place]) -> list[Place]:
        self._check_usable()
        self._await_partitions()
        return [self._place(each) for each in partitions] if partitions else self.partitions

    def _place(self, partition: int | Place) -> Place:
        self._check_usable()
        self._await_partitions()
        topics = sorted({place.topic for place in self._reading.owned})
        place = partition if isinstance(partition, Place) else Place(topics[0] if topics else "", partition)
        if not isinstance(partition, Place) and len(topics) > 1:
            raise UsageError(
                f"Partition {partition} of which topic?", hint="Give a riverrun.Place(topic, partition)", topics=topics
            )
        if place not in self._reading.owned:
            raise UsageError(
                f"This consumer does not read {place} now",
                found=", ".join(map(str, self.partitions)) or "no partitions",
                topic=place.topic,
                partition=place.partition,
            )
        return place

    def _await_partitions(self) -> None:
        """Take part in the group until it has given us partitions, or none."""
        end = time.monotonic() + max(self._reading.timeout, 2 * self.options.session_timeout_seconds)
        while not self._reading.has_partitions and not self._stopping.is_set():
            if time.monotonic() > end:
                raise BrokerUnreachableError(
                    f"The group {self.group} gave this consumer no partitions yet",
                    hint="Another member may be slow to give up its own; try again",
                    group=self.group,
                )
            self._hand.put(self._reading.fetch(_FETCH, _TURN_SECONDS))

    @property
    def _finished(self) -> bool:
        return not self.options.follow and self._reading.at_end

    # --- the end ------------------------------------------------------------------------------------------------------

    def _not_in_run(self, doing: str) -> None:
        if self._engine is not None:
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
        """Commit what was handed out and leave the group, within `close_seconds` for each. May be called twice."""
        if not self._closed:
            self._counts.handled += self._hand.settle()
            self._close()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._stopping.set()
        try:
            if self.options.commit != "manual":
                self._commit_done(wait=True, seconds=self.options.close_seconds)
            elif not self._commits.idle:
                # What commit(wait=False) left to do.
                self._commit({}, wait=True, seconds=self.options.close_seconds)
        finally:
            # Leaving waits for brokers that may never answer, and takes no deadline.
            leaving = threading.Thread(target=self._reading.close, name="riverrun-leave", daemon=True)
            leaving.start()
            leaving.join(self.options.close_seconds)
            if leaving.is_alive():
                log.warning(
                    "The group %s did not answer within %g s when this consumer left; it will miss it later.",
                    self.group or "(none)",
                    self.options.close_seconds,
                )


def check_batch(most: int) -> None:
    if most < 1:
        raise UsageError(f"A batch cannot have {most} records", expected="at least 1", option="most")
