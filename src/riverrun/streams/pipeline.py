"""All streams of an app, running: creates the topics, starts and watches the queries, and stops everything in order."""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.alerts.kafka_log import publish_watched_tables
from riverrun.app import App
from riverrun.config import Project, Settings
from riverrun.dashboard.topology.builder import build_topology
from riverrun.errors import CheckpointError, PipelineError, RiverrunError, SparkUnavailableError, UsageError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.topics import apply_topics
from riverrun.kafka.connection import Connection
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.pipeline import Speed
from riverrun.model.progress import PipelineProgress
from riverrun.model.suggest import nearest
from riverrun.model.units import parse_duration_ms
from riverrun.store.catalog import publish_tables
from riverrun.streams.checkpoint import remove_checkpoint
from riverrun.streams.checkpoint_files import checkpoint_folder
from riverrun.streams.compile.compiler import Compilation, compile_app
from riverrun.streams.compile.graph import Graph, build_graph
from riverrun.streams.compile.sources import KafkaRecordSource
from riverrun.streams.compile.tables import build_tables, watched_tables
from riverrun.streams.compile.user_code import code_digest
from riverrun.streams.evolve.change import CodeChange
from riverrun.streams.evolve.cutover import CutoverHandler, ReplayFolder, prepare_start
from riverrun.streams.evolve.versions import VersionChecker
from riverrun.streams.generations import checkpoint_path, newer_generation, with_generations
from riverrun.streams.run.class_archive import make_archive
from riverrun.streams.run.dead_letter_writer import DeadLetterWriter
from riverrun.streams.run.planner import PipelinePlan, plan_streams, slots_for
from riverrun.streams.run.progress import ProgressTracker
from riverrun.streams.run.running_stream import RunningStream, StreamContext, needs_streaming_query
from riverrun.streams.run.session import check_spark_alive, is_spark_alive, shuffle_partitions, start_session
from riverrun.streams.run.shutdown import GracefulShutdown
from riverrun.streams.run.sink import forget_runs
from riverrun.streams.run.spark_cluster import (
    check_table_files,
    has_other_machines,
    is_local_master,
    master_of,
    python_notice,
)
from riverrun.streams.run.topic_watch import TopicWatch, topic_lost_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.25
# How long a cluster may take to give us executors, and for how long their number must not change to count as final.
EXECUTORS_SECONDS, SETTLED_SECONDS = 60.0, 2.0
# How often the end offsets of the inputs are read, to compute the lag of the streams.
END_OFFSETS_SECONDS = 1.0
# How long writing the last dead letters may take; what is left is written after the next start.
DRAIN_SECONDS = 60.0


def streams_folder(project: Project, app: App) -> Path:
    """Where the streams of an app keep their state."""
    return project.home / "streams" / app.name


def checkpoints_location(settings: Settings, project: Project, app: App) -> str:
    """Where the checkpoints of an app's streams are, each in a folder of its name. UsageError if each machine of a
    cluster would write its part of the state to its own disk."""
    location, master = settings.streams.checkpoints, master_of(settings)
    if not location and has_other_machines(settings):
        raise UsageError(
            f"Spark runs on a cluster ({master}), and its checkpoints would be on each machine's own disk",
            expected="a place that this machine and all workers see",
            hint="Name one in streams.checkpoints: hdfs://…, or a folder that is mounted everywhere",
        )
    return f"{location.rstrip('/')}/{app.name}" if location else str(streams_folder(project, app) / "checkpoints")


def consumer_group(app: App, stream: str) -> str:
    """The consumer group that shows the offsets of a stream."""
    return f"{app.name}.{stream}"


def replay_group(app: App, stream: str) -> str:
    """The consumer group of a replay of the stream."""
    return f"{consumer_group(app, stream)}.replay"


def make_stream_context(
    compilation: Compilation,
    settings: Settings,
    project: Project,
    connection: Connection,
    notice: Callable[[str], None],
) -> StreamContext:
    checkpoints = checkpoints_location(settings, project, compilation.graph.app)
    log = str(project.home / "spark" / "spark.log")
    transaction_seconds = (
        parse_duration_ms(settings.streams.transaction_timeout, what="streams.transaction_timeout") / 1000
    )
    return StreamContext(compilation, connection, Admin(connection), checkpoints, log, transaction_seconds, notice)


def build_checked_graph(app: App) -> Graph:
    """The app's graph; PipelineError when there are no streams to run."""
    graph = build_graph(app)
    if not app.streams:
        raise PipelineError([_no_streams_text(app)], file=app.file)
    return graph


def _no_streams_text(app: App) -> str:
    """What is missing, and an example with a topic of the app."""
    if not app.topics:
        return (
            f"The app {app.name} has no streams, and no topic to read. "
            "Declare both: app.topic(…), and below @app.stream a function whose parameter is the topic's name."
        )
    source = next((name for name in app.topics if name.isidentifier()), "TOPIC")
    example = f'app.sql("NAME", "SELECT * FROM {source}")'  # noqa: S608
    return f"The app {app.name} has no streams. Declare one: {example}, or a function of {source} below @app.stream."


def open_session(
    graph: Graph,
    settings: Settings,
    project: Project,
    *,
    speed: Speed | None = None,
    inspect_only: bool = False,
    check_wanted: Callable[[], None] = lambda: None,
) -> "SparkSession":
    """Spark for the streams of a graph; with `inspect_only` no query will run on it. `check_wanted` as for
    `start_session`."""
    check_table_files(graph.app, settings)
    slots, folder = slots_for(graph, settings, speed), project.home / "spark"
    return start_session(
        settings, folder, name=graph.app.name, slots=slots, brief=inspect_only, check_wanted=check_wanted
    )


def count_slots(spark: "SparkSession") -> int:
    """How many tasks Spark runs at once. On a cluster this is known once the executors are there: before, Spark says 2."""
    context = spark.sparkContext
    if _is_dynamic(spark) or is_local_master(context.master or ""):
        # With dynamic allocation there may be no executors before there is work.
        return int(context.defaultParallelism)
    deadline = time.monotonic() + EXECUTORS_SECONDS
    slots, since = 0, time.monotonic()
    jvm: Any = context._jsc  # noqa: SLF001
    while slots == 0 or time.monotonic() - since < SETTLED_SECONDS:
        # The driver is in this list too.
        executors = int(jvm.sc().getExecutorMemoryStatus().size()) - 1
        now = int(context.defaultParallelism) if executors else 0
        if now != slots:
            slots, since = now, time.monotonic()
        if time.monotonic() > deadline:
            if slots:
                break
            raise SparkUnavailableError(
                f"The cluster {context.master} has given us no executor in {EXECUTORS_SECONDS:g} s",
                hint="Are its workers up, and do they have cores and memory that nobody else holds? Its own page says",
            )
        time.sleep(POLL_SECONDS)
    return slots


def _is_dynamic(spark: "SparkSession") -> bool:
    return spark.sparkContext.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"


def slots_for_streams(spark: "SparkSession", settings: Settings) -> int:
    """`count_slots`. On a cluster it also sets the number of shuffle partitions, if no setting does."""
    slots = count_slots(spark)
    local = is_local_master(spark.sparkContext.master or "")
    if not local and "spark.sql.shuffle.partitions" not in settings.spark.config:
        partitions = shuffle_partitions(settings, 0 if _is_dynamic(spark) else slots)
        spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    return slots


def check_checkpoint(context: StreamContext, name: str, group: str, stream_folder: Path) -> None:
    """Raise CheckpointError if the checkpoint of a stream that has run before is gone: it would silently begin at the start
    again. `stream_folder` is the stream's own."""
    folder = checkpoint_folder(context.compilation.spark, checkpoint_path(context.checkpoints, stream_folder))
    if newer_checkpoint := newer_generation(
        checkpoint_folder(context.compilation.spark, context.checkpoints), stream_folder, context.compilation.streams
    ):
        raise CheckpointError(
            f"The stream {name} has a newer checkpoint than the one this project knows: {newer_checkpoint}",
            expected=str(folder),
            hint=f"A replay was swapped in elsewhere: copy {stream_folder / 'generations.json'} "
            "from the project that did it",
            stream=name,
        )
    if (folder / "metadata").exists():
        return
    committed = context.admin.committed_offsets(group)
    if committed:
        where = ", ".join(
            f"{partition.topic}[{partition.partition}]@{offset}" for partition, offset in sorted(committed.items())[:4]
        )
        raise CheckpointError(
            f"The stream {name} has run before, and its checkpoint is gone",
            expected=str(folder),
            found=f"the group {group} at {where}",
            hint=f"Put the folder back, or read everything again with `--fresh {name}`",
            stream=name,
        )


class Pipeline:
    """A pipeline on a running cluster. `run` returns when all streams have ended or `stop` is set."""

    def __init__(
        self,
        graph: Graph,
        spark: "SparkSession",
        settings: Settings,
        project: Project,
        connection: Connection,
        *,
        speed: Speed | None = None,
        every: str | None = None,
        only: Collection[str] = (),
        fresh: Collection[str] = (),
        keep_state: Collection[str] = (),
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._project = project
        self._connection = connection
        self._admin = Admin(connection)
        self._notice = notice
        self._folder = streams_folder(project, graph.app)
        self.app = graph.app
        for name in [*only, *fresh, *keep_state]:
            self._require_stream(name)
        self.compilation: Compilation = compile_app(
            graph, spark, KafkaRecordSource(spark, connection, topics=self.app.topics)
        )
        self.tables = build_tables(self.compilation)
        topic_states = self._admin.topics(list(self.app.topics), config=False)
        self.plan: PipelinePlan = plan_streams(
            self.compilation,
            settings,
            slots=slots_for_streams(spark, settings),
            speed=speed,
            every=every,
            partitions={name: len(state.partitions) for name, state in topic_states.items()},
        )
        self._names = [name for name in graph.order if not only or name in only]
        self._fresh = fresh
        self._keep_state = keep_state
        self.streams: list[RunningStream] = []
        self._cutovers: dict[str, CutoverHandler] = {}
        self._code = code_digest(self.app)
        # Set when a replay with a newer pipeline file was swapped in: the pipeline has to be started again with that file.
        self.outdated = False
        # Whether Kafka did not answer during the shutdown; known after `run`.
        self.kafka_gone = False
        self._end_offsets: dict[TopicPartition, int] = {}
        self._end_offsets_due = 0.0
        self._kafka_away = False
        self._partitions: list[TopicPartition] = []
        self.progress = PipelineProgress(
            self.app.name,
            self.app.file,
            pid=0,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            topology=build_topology(
                self.app, graph.inputs, {name: self.compilation.sources(name) for name in graph.order}
            ).as_dict(),
        )

    def _require_stream(self, name: str) -> None:
        if name not in self.app.streams:
            suggestion = nearest(name, self.app.streams)
            raise UsageError(
                f"The app {self.app.name} has no stream {name}",
                expected=", ".join(self.app.streams),
                hint=f"Did you mean {suggestion}?" if suggestion else "",
                stream=name,
            )

    def prepare(self) -> None:
        """Check that every stream can resume from its checkpoint, and create the topics. StreamChangedError if one
        cannot."""
        if message := python_notice(self._settings):
            self._notice(message)
        replays = {name: ReplayFolder(self._folder / name) for name in self._names}
        for name, replay in replays.items():
            # Finishing an interrupted swap changes the checkpoint, and the code it was made by.
            prepare_start(replay, self._admin, replay_group(self.app, name), fresh=name in self._fresh)
        self._check_versions()
        outputs = [self.compilation.output_topic(name) for name in self._names]
        topics = {topic.name: topic for topic in [*self.app.topics.values(), *outputs]}
        apply_topics(self._admin, list(topics.values()))
        sources = {topic for name in self._names for topic in self.compilation.sources(name)}
        typed = [name for name in sources if name not in self.app.topics or self.app.topics[name].event is not None]
        self._dead_letters = DeadLetterWriter(
            self._connection, self.compilation, f"{self.app.name}.dead-letters", self._notice
        )
        self._typed_topics = set(typed)
        context = self._stream_context()
        for name in self._names:
            group = consumer_group(self.app, name)
            if name in self._fresh:
                self._reset_stream(context, name, group)
                self._versions.record_start(name)
            if self.plan.for_stream(name).speed != "batch":
                check_checkpoint(context, name, group, self._folder / name)
            self.streams.append(self._stream(context, name))
            self._cutovers[name] = CutoverHandler(
                replays[name], self._admin, replay_group(self.app, name), self._notice
            )
        self._publish_tables()
        topic_states = self._admin.topics(list(sources), config=False)
        self._partitions = [
            TopicPartition(name, partition)
            for name, state in topic_states.items()
            for partition in range(len(state.partitions))
        ]
        # Last, so that an error above leaves no thread behind.
        self._dead_letters.start(typed)

    def _publish_tables(self) -> None:
        """Publish the tables to the stores and the alerts: before the first row of a new column can be read, and only when
        every stream can resume. A copy of the project that does not know the replays would undo them in the stores."""
        if self._settings.store.kind != "none":
            folders = [self._folder / name for name in self.compilation.streams]
            publish_tables(self._connection, self.app.name, with_generations(self.tables, folders))
        if self.app.alerts:
            publish_watched_tables(self._connection, self.app.name, watched_tables(self.compilation))

    @property
    def changes(self) -> dict[str, CodeChange]:
        """How each stream's code has changed since it last ran; known after `prepare`, even if that raises."""
        return self._versions.changes

    def _check_versions(self) -> None:
        """Compare the code of the streams with the code their checkpoints were made by."""
        checkpoints = checkpoints_location(self._settings, self._project, self.app)
        self._versions = VersionChecker(
            self.compilation,
            self._admin,
            self._folder,
            checkpoints,
            self._notice,
            self._settings.spark.shuffle_partitions,
        )
        batch_only = [
            name
            for name in self._names
            if self.plan.for_stream(name).speed == "batch" and not needs_streaming_query(self.compilation, name)
        ]
        self._versions.check(self._names, batch_only=batch_only, fresh=self._fresh, keep_state=self._keep_state)

    def _stream(self, context: StreamContext, name: str) -> RunningStream:
        tracker = ProgressTracker(
            self.compilation.streams[name],
            {topic: topic in self._typed_topics for topic in self.compilation.sources(name)},
            consumer_group(self.app, name),
            self._folder / name / "record_counts.json",
            admin=self._admin,
            dead_letters=self._dead_letters,
        )
        return RunningStream(context, self.plan.for_stream(name), tracker, self._folder / name)

    def _stream_context(self) -> StreamContext:
        return make_stream_context(self.compilation, self._settings, self._project, self._connection, self._notice)

    def _reset_stream(self, context: StreamContext, name: str, group: str) -> None:
        """Delete the checkpoint and offsets of a stream, so that it begins again at the first record."""
        remove_checkpoint(self.compilation.spark, checkpoint_path(context.checkpoints, self._folder / name))
        for file_name in ("record_counts.json", "batch_size.json", "batch-run.json"):
            (self._folder / name / file_name).unlink(missing_ok=True)
        forget_runs(self._connection, self._admin, group)
        if group in self._admin.group_names():
            self._admin.delete_group(group)

    def run(
        self,
        stop: threading.Event,
        changed: Callable[[PipelineProgress], None] = lambda _: None,
        *,
        until_caught_up: bool = False,
    ) -> None:
        """Start all streams and watch them. At the end, raise the first error that ended a stream for good."""
        shutdown = GracefulShutdown(self._connection, stop, abandon=self._abandon, notice=self._notice)
        shutdown.start()
        try:
            # The ids of the topics, before any stream reads them.
            ids = self._versions.topic_ids([stream.name for stream in self.streams])
            for stream in self.streams:
                self._versions.record_start(stream.name)
                stream.start()
            self._watch = TopicWatch(self._admin, ids)
            while not stop.is_set() and not self.outdated and not self._all_ended:
                self._poll()
                changed(self.snapshot())
                if until_caught_up and all(stream.caught_up for stream in self.streams):
                    break
                stop.wait(POLL_SECONDS)
        finally:
            self._shut_down(shutdown)
            changed(self.snapshot())
        for stream in self.streams:
            if stream.error is not None:
                raise stream.error

    def _shut_down(self, shutdown: GracefulShutdown) -> None:
        """Stop all streams at once. With Kafka or Spark gone, do not wait for what cannot finish: the next run does it."""
        self.kafka_gone = not shutdown.stop(partial(self._stop, stream) for stream in self.streams)
        if self.kafka_gone:
            self._dead_letters.close(0)
            return
        if is_spark_alive():
            self._dead_letters.drain(DRAIN_SECONDS)
        self._dead_letters.close()
        for stream in self.streams:
            stream.commit_group_offsets()
        self._read_end_offsets(force=True)

    def _stop(self, stream: RunningStream) -> None:
        # First, so that the cutover to a replay does not start it again.
        self._cutovers[stream.name].close()
        stream.stop()

    def _abandon(self) -> None:
        """Kafka is gone: stop waiting for it."""
        self._admin.cancel()
        for stream in self.streams:
            stream.abandon()

    def _poll(self) -> None:
        check_spark_alive(self._project.home / "spark")
        self._read_end_offsets()
        for topic, what in self._watch.poll().items():
            for stream in self.streams:
                if topic in self.compilation.sources(stream.name):
                    stream.fail(topic_lost_error(stream.name, topic, what, self.app.file))
        for index, stream in enumerate(self.streams):
            match self._cutovers[stream.name].poll(stream):
                case "run":
                    stream.poll(self._end_offsets)
                case "swapped":
                    self._switch_generation(index, self._cutovers[stream.name].code)
        if all(stream.progress.batch >= 0 for stream in self.streams):
            make_archive(self.compilation.spark)

    @property
    def _all_ended(self) -> bool:
        return all(stream.has_ended for stream in self.streams) and not any(
            cutover.busy for cutover in self._cutovers.values()
        )

    def _switch_generation(self, index: int, code: str) -> None:
        """Continue with the generation that a replay has made."""
        name = self.streams[index].name
        self.streams[index].close()
        if code != self._code:
            self._notice(f"{name} was replayed with another version of the pipeline file: starting again with that one")
            self.outdated = True
            return
        self._notice(f"{name} goes on with what its replay has made")
        self.streams[index] = self._stream(self._stream_context(), name)
        self.streams[index].start()

    def _read_end_offsets(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now >= self._end_offsets_due:
            self._end_offsets_due = now + END_OFFSETS_SECONDS
            try:
                self._end_offsets = self._admin.offsets(self._partitions, "latest", committed_only=True)
            except RiverrunError as error:
                # The streams report what is wrong with the cluster, but notice a lost one only after a minute.
                self._end_offsets = {}
                self._report_kafka_away(away=error.retryable)
            else:
                self._report_kafka_away(away=False)

    def _report_kafka_away(self, *, away: bool) -> None:
        if away and not self._kafka_away:
            self._notice("Kafka does not answer; the streams wait for it, and go on when it is back")
        elif self._kafka_away and not away:
            self._notice("Kafka answers again")
        self._kafka_away = away

    def snapshot(self) -> PipelineProgress:
        """The progress of all streams now."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        return replace(self.progress, updated_at=now, streams=[stream.progress for stream in self.streams])
