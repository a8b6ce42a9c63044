"""Reads the state of the pipeline topology: the file that the run writes, the offsets of topics, the store's tables."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

from riverrun.config.project import Project
from riverrun.config.stream_state import describe_pipeline, last_progress
from riverrun.dashboard.topology.node_metrics import PipelineSnapshot, TopicSnapshot
from riverrun.errors import RiverrunError
from riverrun.errors.base import sentence
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.reading.record_counter import RecordCount, TopicCounter
from riverrun.model.cluster_state import TopicPartition, TopicState
from riverrun.model.topology import PipelineTopology, topology_from_dict
from riverrun.store.contract import Store

# Topics change seldom, and are fetched only this often.
TOPICS_SECONDS = 10.0
# How long a read waits for the brokers; a slower answer is used by the next read.
WAIT_SECONDS = 0.5
# A failed pipeline is not listed: its streams show the error.
_STATE_PHRASES = {"running": "runs, but", "died": "does not run:"}


class TopologyReader:
    """Reads snapshots, in one thread at a time. Without a connection nothing is known of topics."""

    def __init__(self, project: Project, app: str, connection: Connection | None, store: Store) -> None:
        self._project = project
        self._app = app
        self._store = store
        self._kafka = TopicOffsets(connection) if connection is not None else None

    def read(self, topics: Sequence[str]) -> PipelineSnapshot:
        at = time.time()
        errors: list[str] = []
        pipeline, progress = describe_pipeline(self._project)
        if pipeline is not None and pipeline.get("app", self._app) != self._app:
            pipeline = progress = None
        elif pipeline is not None and pipeline["detail"] and pipeline["state"] in _STATE_PHRASES:
            errors.append(sentence(f"The pipeline {_STATE_PHRASES[pipeline['state']]} {pipeline['detail']}"))
        topic_snapshots: Mapping[str, TopicSnapshot | None] = {}
        if self._kafka is not None:
            topic_snapshots, kafka_error = self._kafka.read(topics)
            errors += [kafka_error] if kafka_error else []
        try:
            table_statuses = {status.table: status for status in self._store.table_statuses()}
        except RiverrunError as error:
            table_statuses = {}
            errors.append(str(error))
        return PipelineSnapshot(at, pipeline, progress, topic_snapshots, table_statuses, tuple(errors))

    def topology(self) -> tuple[PipelineTopology | None, bool]:
        """The topology that runs, or ran last, and whether it is running."""
        pipeline, progress = describe_pipeline(self._project)
        progress = progress or last_progress(self._project)
        if pipeline is None or progress is None or progress.app != self._app:
            return None, False
        return topology_from_dict(progress.topology), pipeline["state"] == "running"

    def close(self) -> None:
        if self._kafka is not None:
            self._kafka.close()


class TopicOffsets:
    """The offsets of topics, fetched in a thread of its own, so that brokers that do not answer block nobody."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._admin: Admin | None = None
        self._counter: TopicCounter | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="riverrun-topology-kafka")
        self._pending: Future[dict[str, TopicSnapshot | None]] | None = None
        self._latest: dict[str, TopicSnapshot | None] = {}
        self._topics: dict[str, TopicState] = {}
        self._first: dict[TopicPartition, int] = {}
        self._topics_fetched_at = 0.0
        self._requested: tuple[str, ...] = ()

    def read(self, topics: Sequence[str]) -> tuple[Mapping[str, TopicSnapshot | None], str]:
        """The newest known snapshots, and the error if there is one."""
        if self._pending is None:
            self._pending = self._pool.submit(self._fetch, tuple(topics))
        try:
            self._latest = self._pending.result(WAIT_SECONDS)
        except FutureTimeoutError:
            return self._latest, ""
        except RiverrunError as error:
            self._pending, self._latest = None, {}
            return {}, str(error)
        self._pending = None
        return self._latest, ""

    def _fetch(self, names: tuple[str, ...]) -> dict[str, TopicSnapshot | None]:
        if self._admin is None:
            self._admin = Admin(self._connection)
        now = time.monotonic()
        if names != self._requested or now - self._topics_fetched_at > TOPICS_SECONDS:
            # Set again only when all of it worked: a topic may be deleted in between.
            self._requested = ()
            self._topics = self._admin.topics(names, config=False)
            self._first = self._admin.offsets(self._places, "earliest")
            self._topics_fetched_at = now
        requested, self._requested = names, ()
        ends = self._admin.offsets(self._places, "latest", committed_only=True)
        self._requested = requested
        return {name: self._snapshot(name, ends) for name in names}

    def _count(self, state: TopicState, ends: Mapping[TopicPartition, int]) -> RecordCount | None:
        """Count the records of a topic; None when they cannot be read: the offsets are useful without it."""
        if self._counter is None:
            self._counter = TopicCounter(self._connection)
        try:
            return self._counter.count(
                state.name, self._first, {partition: ends.get(partition, 0) for partition in state.topic_partitions}
            )
        except RiverrunError:
            return None

    @property
    def _places(self) -> list[TopicPartition]:
        return [partition for topic_state in self._topics.values() for partition in topic_state.topic_partitions]

    def _snapshot(self, name: str, ends: Mapping[TopicPartition, int]) -> TopicSnapshot | None:
        state = self._topics.get(name)
        if state is None:
            return None
        first = sum(self._first.get(partition, 0) for partition in state.topic_partitions)
        end = sum(ends.get(partition, 0) for partition in state.topic_partitions)
        # Counting reads records: the first snapshot goes without, to be fast.
        count = self._count(state, ends) if name in self._latest else None
        return TopicSnapshot(first, end, len(state.partitions), state.problem, count)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
