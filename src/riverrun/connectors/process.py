"""The connector process of an app: runs every part of every source, every sink and every service, each in its own thread.

One process at a time: a new one takes over the transactional ids, and the one before ends as soon as it notices. What fails
is retried or reported, and the others continue. The status of each is in the state topic, for `riverrun connectors`.
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

from riverrun.connectors.contract import ConnectorContext, create_service, create_sink, create_source
from riverrun.connectors.retry import MAX_BACKOFF_SECONDS, Backoff, NoticeThrottle, is_permanent
from riverrun.connectors.sink_runner import SinkJob, SinkRunner
from riverrun.connectors.source_runner import SourceJob, SourceRunner
from riverrun.connectors.state_topic import (
    ConnectorLease,
    StateRecord,
    create_state_topic,
    lease_holder_record,
    lease_record,
    read_connector_state,
    state_topic_name,
    status_record,
)
from riverrun.connectors.status import ConnectorStatus, now_ms
from riverrun.errors import BrokerUnreachableError, KafkaError, ProducerFencedError, RiverrunError, TopicExistsError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.topics import create_topic
from riverrun.kafka.producer.delivery import Delivery
from riverrun.kafka.producer.producer import Producer
from riverrun.model.connector import SourceBinding

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.kafka.connection import Connection
    from riverrun.model.topic import Topic

_LOG = logging.getLogger("riverrun.connectors")
# How often statuses are published, and how often a process without changes publishes its heartbeat.
PUBLISH_SECONDS = 0.5
HEARTBEAT_SECONDS = 3.0
# How often sources are asked for new parts.
PART_DISCOVERY_SECONDS = 5.0
STOP_SECONDS = 15.0
# How long open transactions of earlier processes in the state topic are waited for before services and sinks start.
PREVIOUS_STATE_SECONDS = 5.0
# Parts that are started at a time, of a source that has many.
MAX_PARTS_STARTED = 20


class ConnectorProcess:
    """Runs what an app declares. `context` says with what."""

    def __init__(self, context: ConnectorContext) -> None:
        self._context = context
        self._connection = context.connection
        self._app = context.app
        self._notice = context.notice
        self._source_jobs = [
            SourceJob(self._app.name, binding.name, self._app.topics[binding.topic], create_source(binding, context))
            for binding in self._app.sources.values()
            if binding.source.runs_as == "reader"
        ]
        self._sink_jobs = [
            SinkJob(
                self._app.name, binding.name, sink_topic(self._app, binding.upstream), create_sink(binding, context)
            )
            for binding in self._app.sinks.values()
            if binding.sink.runs_as == "writer"
        ]
        self._services = service_groups(self._app)
        self._statuses: dict[tuple[str, str, str], ConnectorStatus] = {}
        self._threads: list[threading.Thread] = []
        # Parts that were started, by connector and name.
        self._part_runners: dict[tuple[str, str], SourceRunner] = {}
        self._halt = threading.Event()
        self._fenced_by: ProducerFencedError | None = None
        started_ms = now_ms()
        self._lease = ConnectorLease(secrets.token_hex(8), os.getpid(), socket.gethostname(), started_ms, started_ms)
        # Set as soon as everything was started.
        self.ready = threading.Event()

    @property
    def names(self) -> list[str]:
        """Its connectors, sources first."""
        return [*connector_names(self._app, "source"), *connector_names(self._app, "sink")]

    @property
    def statuses(self) -> list[ConnectorStatus]:
        return list(self._statuses.values())

    def run(self, stop: threading.Event) -> None:
        """Run until `stop`. ProducerFencedError when another process has taken over."""
        if not self._acquire_lease(stop):
            return
        publisher = _StatusPublisher(self._connection, self._app.name)
        try:
            publisher.publish([lease_record(self._lease)])
            # Parts first: they take over their transactional ids, which aborts what an earlier process left open.
            self._discover_parts()
            self._start_services_and_sinks(self._previous_statuses(stop))
            discovery = _Interval(PART_DISCOVERY_SECONDS)
            publishing = _Interval(PUBLISH_SECONDS)
            while not stop.is_set() and self._fenced_by is None:
                if discovery.due():
                    self._discover_parts()
                    self.ready.set()
                if publishing.due():
                    self._publish_status(publisher)
                stop.wait(0.05)
        finally:
            self._shut_down(publisher)
        if self._fenced_by is not None:
            raise ProducerFencedError(
                f"Another process runs the connectors of {self._app.name} now",
                hint="One does at a time; stop the other one first",
            ) from self._fenced_by

    def _acquire_lease(self, stop: threading.Event) -> bool:
        """Wait for the cluster as long as it takes; False when stopped before."""
        backoff = Backoff()
        while not stop.is_set():
            try:
                create_state_topic(self._connection, self._app.name)
                # Before any id is taken over: a process that is fenced finds out by whom.
                with Producer(self._connection) as producer:
                    key, value = lease_holder_record(self._lease)
                    producer.send(state_topic_name(self._app.name), value, key=key)
                return True
            except KafkaError as error:
                delay = backoff.next_delay()
                self._notice(f"connectors begin in {delay:g} s: {error}")
                stop.wait(delay)
        return False

    def _previous_statuses(self, stop: threading.Event) -> dict[tuple[str, str, str], ConnectorStatus]:
        """The last status that an earlier process published of each connector: its counts continue from there."""
        backoff = Backoff()
        while not stop.is_set() and self._fenced_by is None:
            try:
                return read_connector_state(
                    self._connection, self._app.name, wait_for_transactions=True, seconds=PREVIOUS_STATE_SECONDS
                ).statuses
            except BrokerUnreachableError:
                # A transaction is open that nobody takes over, or Kafka is unreachable: use what can be read.
                with contextlib.suppress(KafkaError):
                    return read_connector_state(self._connection, self._app.name, wait_for_transactions=False).statuses
                stop.wait(backoff.next_delay())
            except RiverrunError as error:
                self._notice(f"the counts of earlier runs are not known: {error}")
                break
        return {}

    def _start_services_and_sinks(self, previous: Mapping[tuple[str, str, str], ConnectorStatus]) -> None:
        """Start services and sinks. Parts have counts with their positions; these continue from the last published ones."""
        for service in self._services:
            statuses = self._register_statuses(service)
            for status in statuses.values():
                status.continue_from(previous.get(status.key))
            self._start(_ServiceRunner(service, self._context, statuses, self._halt))
        for job in self._sink_jobs:
            status = self._register_status(ConnectorStatus("sink", job.name, "all", job.topic_name))
            status.continue_from(previous.get(status.key))
            self._start(SinkRunner(self._connection, job, status, self._halt, notice=self._notice))

    def _start(self, thread: threading.Thread) -> None:
        self._threads.append(thread)
        thread.start()

    def _register_status(self, status: ConnectorStatus) -> ConnectorStatus:
        status.state_since_ms = now_ms()
        return self._statuses.setdefault(status.key, status)

    def _register_statuses(self, bindings: Sequence[SourceBinding]) -> dict[str, ConnectorStatus]:
        return {
            binding.name: self._register_status(ConnectorStatus("source", binding.name, "all", binding.topic))
            for binding in bindings
        }

    def _discover_parts(self) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for job in self._source_jobs:
            try:
                parts = job.source.parts()
            except Exception as error:  # noqa: BLE001  -- a source is anybody's code
                status = self._register_status(ConnectorStatus("source", job.name, "all", job.topic.name))
                status.set_state("failed" if is_permanent(error) else "retrying", f"its parts are not known: {error}")
                continue
            startable = [name for name in parts if self._should_start(job, name)]
            for part in startable[:MAX_PARTS_STARTED] if job.source.reopens_finished else startable:
                status = self._register_status(ConnectorStatus("source", job.name, part, job.topic.name))
                runner = SourceRunner(
                    self._connection, job, part, status, self._halt, on_fenced=self._on_fenced, notice=self._notice
                )
                self._part_runners[job.name, part] = runner
                self._start(runner)

    def _should_start(self, job: SourceJob, part: str) -> bool:
        runner = self._part_runners.get((job.name, part))
        return runner is None or (job.source.reopens_finished and runner.finished and not runner.is_alive())

    def _on_fenced(self, error: ProducerFencedError) -> None:
        """A transaction that timed out looks the same as another holder of the id: the state topic tells which it is."""
        try:
            holder = read_connector_state(self._connection, self._app.name).lease_holder
        except RiverrunError:
            return  # the part tries again, and gets the error again
        if holder != self._lease.id:
            self._fenced_by = error
            self._halt.set()

    def _publish_status(self, publisher: "_StatusPublisher") -> None:
        self._lease.renewed_ms = now_ms()
        publisher.publish_changed(self.statuses, self._lease)

    def _shut_down(self, publisher: "_StatusPublisher") -> None:
        self._halt.set()
        # For readers and sinks that wait on this event.
        self._context.stop.set()
        deadline = time.monotonic() + STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if left := [thread.name for thread in self._threads if thread.is_alive()]:
            self._notice(f"{', '.join(left)} did not end in {STOP_SECONDS:g} s; what they had begun is not committed")
        self._lease.renewed_ms = self._lease.ended_ms = now_ms()
        if self._fenced_by is None:
            publisher.publish_changed(self.statuses, self._lease, publish_all=True)
        publisher.close()


def sink_topic(app: "App", origin: str) -> "Topic[Any] | str":
    """The topic that a sink reads: a stream's rows are in its output topic."""
    stream = app.streams.get(origin)
    return stream.output_topic if stream is not None else app.topics[origin]


def sink_lag(connection: "Connection", app: "App", sink: str) -> int:
    """How many offsets of its topic a sink has not committed yet."""
    admin = Admin(connection)
    topic = sink_topic(app, app.sinks[sink].upstream)
    state = admin.topic(topic if isinstance(topic, str) else topic.name)
    ends = admin.offsets(state.topic_partitions, "latest", committed_only=True)
    starts = admin.offsets(state.topic_partitions, "earliest")
    committed = admin.committed_offsets(f"{app.name}.{sink}")
    return sum(
        max(0, ends[partition] - committed.get(partition, starts[partition])) for partition in state.topic_partitions
    )


def service_groups(app: "App") -> list[list[SourceBinding]]:
    """Sources that run as a service, grouped by class: one server is for all of them."""
    groups: dict[type, list[SourceBinding]] = {}
    for binding in app.sources.values():
        if binding.source.runs_as == "service":
            groups.setdefault(type(binding.source), []).append(binding)
    return list(groups.values())


def connector_names(app: "App", kind: str) -> list[str]:
    """The connectors of a kind that this process runs."""
    if kind == "source":
        return [source.name for source in app.sources.values() if source.source.runs_as != "connect"]
    return [sink.name for sink in app.sinks.values() if sink.sink.runs_as != "connect"]


def create_source_topics(context: ConnectorContext) -> None:
    """Create the topics that sources write to, if they are missing: this may be the app's first process to run."""
    admin = Admin(context.connection)
    topic_names = {context.app.sources[name].topic for name in connector_names(context.app, "source")}
    for name in sorted(topic_names - set(admin.topics(topic_names, config=False))):
        with contextlib.suppress(TopicExistsError):
            create_topic(admin, context.app.topics[name])


def has_connectors(app: "App") -> bool:
    """Whether there is anything for this process to do."""
    return bool(connector_names(app, "source") or connector_names(app, "sink"))


class _ServiceRunner(threading.Thread):
    """Runs a service, and creates and runs it again when it fails."""

    def __init__(
        self,
        bindings: Sequence[SourceBinding],
        context: ConnectorContext,
        statuses: dict[str, ConnectorStatus],
        stop: threading.Event,
    ) -> None:
        super().__init__(name=f"service {', '.join(binding.name for binding in bindings)}", daemon=True)
        self._bindings = bindings
        self._connector_context = context
        self._statuses = statuses
        self._halt = stop
        self._backoff = Backoff()
        self._notice_throttle = NoticeThrottle()

    def run(self) -> None:
        while not self._halt.is_set():
            started = time.monotonic()
            try:
                create_service(self._bindings, self._connector_context).run(self._halt, self._statuses)
            except Exception as error:  # noqa: BLE001  -- it is reported, and tried again
                reason = str(error) if isinstance(error, RiverrunError) else f"{type(error).__name__}: {error}"
                permanent = is_permanent(error)
                for status in self._statuses.values():
                    status.set_state("failed" if permanent else "retrying", reason)
                if permanent:
                    self._connector_context.notice(f"{self.name} has failed, and is not tried again: {reason}")
                    return
                if time.monotonic() - started > 30:
                    self._backoff.reset()
                    self._notice_throttle.reset()
                delay = self._backoff.next_delay()
                if self._notice_throttle.should_notify(reason):
                    retry_text = f"it is tried again in {delay:g} s, and then at least every {MAX_BACKOFF_SECONDS:g} s"
                    self._connector_context.notice(f"{self.name} has failed; {retry_text}: {reason}")
                self._halt.wait(delay)
        for status in self._statuses.values():
            status.set_state("stopped", status.error)


class _Interval:
    """Is due at most once per interval, the first time at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next_at = 0.0

    def due(self) -> bool:
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + self._seconds
        return True


class _StatusPublisher:
    """Publishes changed statuses to the state topic. Never waits: an unreachable cluster must not block the process."""

    def __init__(self, connection: "Connection", app: str) -> None:
        self._topic = state_topic_name(app)
        self._producer = Producer(connection, delivery_timeout_seconds=10, queue_records=1000, queue_timeout_seconds=0)
        self._published: dict[bytes, bytes | None] = {}
        self._counts: dict[tuple[str, str, str], tuple[float, int]] = {}
        self._heartbeat_at = 0.0

    def publish_changed(
        self, statuses: Sequence[ConnectorStatus], lease: ConnectorLease, *, publish_all: bool = False
    ) -> None:
        clock = time.monotonic()
        for status in statuses:
            self._update_rate(status, clock)
        changes = [change for change in map(status_record, statuses) if self._published.get(change[0]) != change[1]]
        if publish_all or clock - self._heartbeat_at >= HEARTBEAT_SECONDS:
            self._heartbeat_at = clock
            changes.append(lease_record(lease))
        if publish_all:
            changes = [*map(status_record, statuses), lease_record(lease)]
        self.publish(changes)

    def _update_rate(self, status: ConnectorStatus, now: float) -> None:
        key = (status.kind, status.name, status.part)
        before = self._counts.get(key)
        if before is None or now - before[0] >= 1.0 or before[1] > status.records:
            if before is not None and before[1] <= status.records:
                status.rate = round((status.records - before[1]) / (now - before[0]), 1)
            self._counts[key] = (now, status.records)

    def publish(self, changes: Sequence[StateRecord]) -> None:
        for key, value in changes:
            try:
                self._published[key] = value
                self._producer.send_soon(self._topic, value, key=key, on_delivery=partial(self._delivered, key, value))
            except RiverrunError as error:
                self._published.pop(key, None)
                _LOG.debug("a status was not published: %s", error)
                return

    def _delivered(self, key: bytes, value: bytes | None, delivery: Delivery) -> None:
        """Forget a status that the cluster did not take, so that it is published again, unless a newer one was."""
        if delivery.exception(0) is not None and self._published.get(key) == value:
            self._published.pop(key, None)

    def close(self) -> None:
        try:
            self._producer.close(3.0)
        except RiverrunError as error:
            _LOG.debug("the last status was not published: %s", error)
