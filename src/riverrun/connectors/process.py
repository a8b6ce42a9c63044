"""The connector process of an app: every part of every source, every sink and every service, each in a thread of its own.

One process at a time: who starts takes over the transactional ids, and the process before ends as soon as it notices. What
fails is tried again or told, and the others go on. How each one stands is in the ledger, for `riverrun connectors`.
"""

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from riverrun.connectors.contract import Around, service_of, sink_of, source_of
from riverrun.connectors.ledger import (
    Change,
    Life,
    holder_change,
    ledger_of,
    life_change,
    make_ledger,
    read_ledger,
    standing_change,
)
from riverrun.connectors.part import Feed, PartRunner
from riverrun.connectors.sinking import Drain, SinkRunner
from riverrun.connectors.standing import Standing, now_ms
from riverrun.connectors.trying import MOST_SECONDS, Pauses, Reminder, is_final
from riverrun.errors import BrokerUnreachableError, FencedError, KafkaError, RiverrunError, TopicExistsError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.topics import create_topic
from riverrun.kafka.producer.delivery import Delivery
from riverrun.kafka.producer.producer import Producer
from riverrun.model.connector import Fed

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.kafka.connection import Connection
    from riverrun.model.topic import Topic

_LOG = logging.getLogger("riverrun.connectors")
# How often standings are written, and how often a process that has nothing new to say says that it lives.
TELL_SECONDS = 0.5
ALIVE_SECONDS = 3.0
# How often sources are asked for parts that are new.
PARTS_SECONDS = 5.0
STOP_SECONDS = 15.0
# How long what earlier processes left open in the ledger is waited for before services and sinks begin.
EARLIER_SECONDS = 5.0
# Parts that are begun at a time, of a source that has many.
MOST_BEGUN = 20


class ConnectorProcess:
    """Runs what an app declares. `around` says with what."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._connection = around.connection
        self._app = around.app
        self._notice = around.notice
        self._feeds = [
            Feed(self._app.name, fed.name, self._app.topics[fed.topic], source_of(fed, around))
            for fed in self._app.sources.values()
            if fed.source.runs_as == "reader"
        ]
        self._drains = [
            Drain(self._app.name, drained.name, topic_of(self._app, drained.of), sink_of(drained, around))
            for drained in self._app.sinks.values()
            if drained.sink.runs_as == "writer"
        ]
        self._services = services_of(self._app)
        self._standings: dict[tuple[str, str, str], Standing] = {}
        self._threads: list[threading.Thread] = []
        # Parts that were begun, by connector and name.
        self._parts: dict[tuple[str, str], PartRunner] = {}
        self._halt = threading.Event()
        self._fence: FencedError | None = None
        begun = now_ms()
        self._life = Life(secrets.token_hex(8), os.getpid(), socket.gethostname(), begun, begun)
        # Set as soon as everything was begun.
        self.ready = threading.Event()

    @property
    def names(self) -> list[str]:
        """Its connectors, sources first."""
        return [*names_of(self._app, "source"), *names_of(self._app, "sink")]

    @property
    def standings(self) -> list[Standing]:
        return list(self._standings.values())

    def run(self, stop: threading.Event) -> None:
        """Until `stop`. FencedError when another process has taken over."""
        if not self._begin(stop):
            return
        teller = _Teller(self._connection, self._app.name)
        try:
            teller.tell([life_change(self._life)])
            # Parts first: they take their transactional ids over, which ends what an earlier process left open.
            self._look_for_parts()
            self._start_others(self._earlier(stop))
            looks = _Every(PARTS_SECONDS)
            tells = _Every(TELL_SECONDS)
            while not stop.is_set() and self._fence is None:
                if looks.due():
                    self._look_for_parts()
                    self.ready.set()
                if tells.due():
                    self._tell(teller)
                stop.wait(0.05)
        finally:
            self._end(teller)
        if self._fence is not None:
            raise FencedError(
                f"Another process runs the connectors of {self._app.name} now",
                hint="One does at a time; stop the other one first",
            ) from self._fence

    def _begin(self, stop: threading.Event) -> bool:
        """Wait for the cluster as long as it takes; False when it is to end before."""
        pauses = Pauses()
        while not stop.is_set():
            try:
                make_ledger(self._connection, self._app.name)
                # Before any id is taken over: whoever loses its own finds out to whom.
                with Producer(self._connection) as producer:
                    key, value = holder_change(self._life)
                    producer.send(ledger_of(self._app.name), value, key=key)
                return True
            except KafkaError as error:
                pause = pauses.next()
                self._notice(f"connectors begin in {pause:g} s: {error}")
                stop.wait(pause)
        return False

    def _earlier(self, stop: threading.Event) -> dict[tuple[str, str, str], Standing]:
        """How each connector stood when an earlier process last said so: its counts go on from there."""
        pauses = Pauses()
        while not stop.is_set() and self._fence is None:
            try:
                return read_ledger(self._connection, self._app.name, settled=True, seconds=EARLIER_SECONDS).standings
            except BrokerUnreachableError:
                # A transaction is open that nobody takes over, or Kafka is away: what can be read must do.
                with contextlib.suppress(KafkaError):
                    return read_ledger(self._connection, self._app.name, settled=False).standings
                stop.wait(pauses.next())
            except RiverrunError as error:
                self._notice(f"the counts of earlier runs are not known: {error}")
                break
        return {}

    def _start_others(self, earlier: Mapping[tuple[str, str, str], Standing]) -> None:
        """Services and sinks. Parts have their counts with their positions; these go on from what was last told."""
        for service in self._services:
            standings = self._stand_all(service)
            for standing in standings.values():
                standing.go_on_from(earlier.get(standing.key))
            self._start(_ServiceRunner(service, self._around, standings, self._halt))
        for drain in self._drains:
            standing = self._stand(Standing("sink", drain.name, "all", drain.topic_name))
            standing.go_on_from(earlier.get(standing.key))
            self._start(SinkRunner(self._connection, drain, standing, self._halt, notice=self._notice))

    def _start(self, thread: threading.Thread) -> None:
        self._threads.append(thread)
        thread.start()

    def _stand(self, standing: Standing) -> Standing:
        standing.since_ms = now_ms()
        return self._standings.setdefault(standing.key, standing)

    def _stand_all(self, feds: Sequence[Fed]) -> dict[str, Standing]:
        return {each.name: self._stand(Standing("source", each.name, "all", each.topic)) for each in feds}

    def _look_for_parts(self) -> None:
        self._threads = [each for each in self._threads if each.is_alive()]
        for feed in self._feeds:
            try:
                parts = feed.source.parts()
            except Exception as error:  # noqa: BLE001  -- a source is anybody's code
                standing = self._stand(Standing("source", feed.name, "all", feed.topic.name))
                standing.become("failed" if is_final(error) else "retrying", f"its parts are not known: {error}")
                continue
            fresh = [each for each in parts if self._is_to_begin(feed, each)]
            for part in fresh[:MOST_BEGUN] if feed.source.begins_again else fresh:
                standing = self._stand(Standing("source", feed.name, part, feed.topic.name))
                runner = PartRunner(
                    self._connection, feed, part, standing, self._halt, fenced=self._on_fence, notice=self._notice
                )
                self._parts[feed.name, part] = runner
                self._start(runner)

    def _is_to_begin(self, feed: Feed, part: str) -> bool:
        runner = self._parts.get((feed.name, part))
        return runner is None or (feed.source.begins_again and runner.finished and not runner.is_alive())

    def _on_fence(self, error: FencedError) -> None:
        """A transaction that the cluster gave up looks the same as another holder of the id: the ledger knows."""
        try:
            holder = read_ledger(self._connection, self._app.name).holder
        except RiverrunError:
            return  # the part tries again, and will hear it then
        if holder != self._life.id:
            self._fence = error
            self._halt.set()

    def _tell(self, teller: "_Teller") -> None:
        self._life.at = now_ms()
        teller.tell_changed(self.standings, self._life)

    def _end(self, teller: "_Teller") -> None:
        self._halt.set()
        # For readers and sinks that wait by themselves.
        self._around.stop.set()
        deadline = time.monotonic() + STOP_SECONDS
        for each in self._threads:
            each.join(max(0.0, deadline - time.monotonic()))
        if left := [each.name for each in self._threads if each.is_alive()]:
            self._notice(f"{', '.join(left)} did not end in {STOP_SECONDS:g} s; what they had begun is not committed")
        self._life.at = self._life.ended = now_ms()
        if self._fence is None:
            teller.tell_changed(self.standings, self._life, now=True)
        teller.close()


def topic_of(app: "App", of: str) -> "Topic[Any] | str":
    """The topic that a sink's records are in: a stream's rows are in one of their own."""
    stream = app.streams.get(of)
    return stream.target if stream is not None else app.topics[of]


def behind_of(connection: "Connection", app: "App", sink: str) -> int:
    """How many offsets of its topic a sink has not committed yet."""
    admin = Admin(connection)
    topic = topic_of(app, app.sinks[sink].of)
    state = admin.topic(topic if isinstance(topic, str) else topic.name)
    ends = admin.offsets(state.places, "latest", committed_only=True)
    starts = admin.offsets(state.places, "earliest")
    done = admin.committed(f"{app.name}.{sink}")
    return sum(max(0, ends[place] - done.get(place, starts[place])) for place in state.places)


def services_of(app: "App") -> list[list[Fed]]:
    """Sources that are hosted, together by their class: one server is for all of them."""
    found: dict[type, list[Fed]] = {}
    for fed in app.sources.values():
        if fed.source.runs_as == "service":
            found.setdefault(type(fed.source), []).append(fed)
    return list(found.values())


def names_of(app: "App", kind: str) -> list[str]:
    """The connectors of a kind that this process runs."""
    if kind == "source":
        return [each.name for each in app.sources.values() if each.source.runs_as != "connect"]
    return [each.name for each in app.sinks.values() if each.sink.runs_as != "connect"]


def make_topics(around: Around) -> None:
    """Make the topics that sources fill, where they are not there: this process may be the first of the app to run."""
    admin = Admin(around.connection)
    wanted = {around.app.sources[name].topic for name in names_of(around.app, "source")}
    for name in sorted(wanted - set(admin.topics(wanted, config=False))):
        with contextlib.suppress(TopicExistsError):
            create_topic(admin, around.app.topics[name])


def has_connectors(app: "App") -> bool:
    """Whether there is anything for this process to do."""
    return bool(names_of(app, "source") or names_of(app, "sink"))


class _ServiceRunner(threading.Thread):
    """A service, made and run again when it fails."""

    def __init__(
        self, feds: Sequence[Fed], around: Around, standings: dict[str, Standing], stop: threading.Event
    ) -> None:
        super().__init__(name=f"service {', '.join(each.name for each in feds)}", daemon=True)
        self._feds = feds
        self._around = around
        self._standings = standings
        self._halt = stop
        self._pauses = Pauses()
        self._reminder = Reminder()

    def run(self) -> None:
        while not self._halt.is_set():
            began = time.monotonic()
            try:
                service_of(self._feds, self._around).run(self._halt, self._standings)
            except Exception as error:  # noqa: BLE001  -- it is told, and tried again
                words = str(error) if isinstance(error, RiverrunError) else f"{type(error).__name__}: {error}"
                final = is_final(error)
                for each in self._standings.values():
                    each.become("failed" if final else "retrying", words)
                if final:
                    self._around.notice(f"{self.name} has failed, and is not tried again: {words}")
                    return
                if time.monotonic() - began > 30:
                    self._pauses.reset()
                    self._reminder.reset()
                pause = self._pauses.next()
                if self._reminder.due(words):
                    again = f"it is tried again in {pause:g} s, and then at least every {MOST_SECONDS:g} s"
                    self._around.notice(f"{self.name} has failed; {again}: {words}")
                self._halt.wait(pause)
        for each in self._standings.values():
            each.become("stopped", each.error)


class _Every:
    """True now and then, the first time at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at = 0.0

    def due(self) -> bool:
        now = time.monotonic()
        if now < self._at:
            return False
        self._at = now + self._seconds
        return True


class _Teller:
    """Writes into the ledger what changed. Never waits: a cluster that is away must not keep the process from its work."""

    def __init__(self, connection: "Connection", app: str) -> None:
        self._topic = ledger_of(app)
        self._producer = Producer(connection, delivery_timeout_seconds=10, queue_records=1000, queue_timeout_seconds=0)
        self._told: dict[bytes, bytes | None] = {}
        self._counts: dict[tuple[str, str, str], tuple[float, int]] = {}
        self._at = 0.0

    def tell_changed(self, standings: Sequence[Standing], life: Life, *, now: bool = False) -> None:
        clock = time.monotonic()
        for each in standings:
            self._rate(each, clock)
        changes = [change for change in map(standing_change, standings) if self._told.get(change[0]) != change[1]]
        if now or clock - self._at >= ALIVE_SECONDS:
            self._at = clock
            changes.append(life_change(life))
        if now:
            changes = [*map(standing_change, standings), life_change(life)]
        self.tell(changes)

    def _rate(self, standing: Standing, now: float) -> None:
        key = (standing.kind, standing.name, standing.part)
        before = self._counts.get(key)
        if before is None or now - before[0] >= 1.0 or before[1] > standing.records:
            if before is not None and before[1] <= standing.records:
                standing.rate = round((standing.records - before[1]) / (now - before[0]), 1)
            self._counts[key] = (now, standing.records)

    def tell(self, changes: Sequence[Change]) -> None:
        for key, value in changes:
            try:
                self._told[key] = value
                self._producer.send_soon(self._topic, value, key=key, on_delivery=partial(self._delivered, key, value))
            except RiverrunError as error:
                self._told.pop(key, None)
                _LOG.debug("a standing was not told: %s", error)
                return

    def _delivered(self, key: bytes, value: bytes | None, delivery: Delivery) -> None:
        """What the cluster did not take is told again, unless something newer was."""
        if delivery.exception(0) is not None and self._told.get(key) == value:
            self._told.pop(key, None)

    def close(self) -> None:
        try:
            self._producer.close(3.0)
        except RiverrunError as error:
            _LOG.debug("the last standings were not told: %s", error)
