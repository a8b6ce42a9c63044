"""All streams of an app, running: topics made, queries started and looked after, everything stopped in order."""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.alerts.kafka_log import tell_tables
from riverrun.app import App
from riverrun.config import Project, Settings
from riverrun.dash.picture.shape import shape_of
from riverrun.errors import CheckpointError, PipelineError, RiverrunError, SparkUnavailableError, UsageError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.topics import apply_topics
from riverrun.kafka.connection import Connection
from riverrun.model.near import nearest
from riverrun.model.pipeline import Speed
from riverrun.model.progress import PipelineProgress
from riverrun.model.quantity import milliseconds
from riverrun.model.state import Place
from riverrun.store.catalog import publish
from riverrun.streams.books import Books
from riverrun.streams.change import Change
from riverrun.streams.checkpoint import remove_checkpoint
from riverrun.streams.compiler import Compilation, compile_app
from riverrun.streams.ending import Ending
from riverrun.streams.generations import checkpoint_of, newer_generation, with_generations
from riverrun.streams.graph import Graph, graph_of
from riverrun.streams.handover import Handover, ReplayFolder, before_start
from riverrun.streams.planner import Plan, plan_streams, slots_for
from riverrun.streams.quick_start import make_archive
from riverrun.streams.remote_files import checkpoint_folder
from riverrun.streams.running import RunningStream, Surroundings, needs_stream
from riverrun.streams.session import check_alive, is_alive, shuffle_partitions, start_session
from riverrun.streams.sink import forget_runs
from riverrun.streams.sources import KafkaRecords
from riverrun.streams.spark_cluster import (
    check_table_files,
    has_other_machines,
    is_local_master,
    master_of,
    python_notice,
)
from riverrun.streams.sweeping import Sweeper
from riverrun.streams.tables import tables_of, watched_by
from riverrun.streams.topic_watch import TopicWatch, topic_lost
from riverrun.streams.user_code import code_of
from riverrun.streams.versions import Versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS = 0.25
# How long a cluster may take to give us executors, and when as many as come are taken for all.
EXECUTORS_SECONDS, SETTLED_SECONDS = 60.0, 2.0
# How often the ends of the inputs are asked for, to know how far behind a stream is.
ENDS_SECONDS = 1.0
# How long the last dead letters may take; what is left is written after the next start.
DRAIN_SECONDS = 60.0


def streams_folder(project: Project, app: App) -> Path:
    """Where the streams of an app keep what they must not lose."""
    return project.home / "streams" / app.name


def checkpoints_of(settings: Settings, project: Project, app: App) -> str:
    """Where the checkpoints of an app's streams are, each in a folder of its name. UsageError where each machine of a
    cluster would write its part of the state to a disk of its own."""
    place, master = settings.streams.checkpoints, master_of(settings)
    if not place and has_other_machines(settings):
        raise UsageError(
            f"Spark runs on a cluster ({master}), and its checkpoints would be on each machine's own disk",
            expected="a place that this machine and all workers see",
            hint="Name one in streams.checkpoints: hdfs://…, or a folder that is mounted everywhere",
        )
    return f"{place.rstrip('/')}/{app.name}" if place else str(streams_folder(project, app) / "checkpoints")


def group_of(app: App, stream: str) -> str:
    """The consumer group that shows where a stream stands."""
    return f"{app.name}.{stream}"


def replay_group(app: App, stream: str) -> str:
    """The same of a replay."""
    return f"{group_of(app, stream)}.replay"


def surroundings(
    done: Compilation, settings: Settings, project: Project, connection: Connection, notice: Callable[[str], None]
) -> Surroundings:
    checkpoints = checkpoints_of(settings, project, done.graph.app)
    log = str(project.home / "spark" / "spark.log")
    open_for = milliseconds(settings.streams.transaction_timeout, what="streams.transaction_timeout") / 1000
    return Surroundings(done, connection, Admin(connection), checkpoints, log, open_for, notice)


def checked_graph(app: App) -> Graph:
    """The app's graph; PipelineError when there are no streams to run."""
    graph = graph_of(app)
    if not app.streams:
        raise PipelineError([_no_streams(app)], file=app.file)
    return graph


def _no_streams(app: App) -> str:
    """What is missing, and what to write: with a topic that the app has."""
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
    only_look: bool = False,
    wanted: Callable[[], None] = lambda: None,
) -> "SparkSession":
    """Spark for the streams of a graph; with `only_look` nothing is run on it. `wanted` as for `start_session`."""
    check_table_files(graph.app, settings)
    slots, folder = slots_for(graph, settings, speed), project.home / "spark"
    return start_session(settings, folder, name=graph.app.name, slots=slots, brief=only_look, wanted=wanted)


def slots_of(spark: "SparkSession") -> int:
    """How many tasks Spark runs at once. On a cluster that is known when its executors are there: until then it says 2."""
    context = spark.sparkContext
    if _is_dynamic(spark) or is_local_master(context.master or ""):
        # Where executors come with the work, there may be none before it.
        return int(context.defaultParallelism)
    deadline = time.monotonic() + EXECUTORS_SECONDS
    slots, since = 0, time.monotonic()
    jvm: Any = context._jsc  # noqa: SLF001
    while slots == 0 or time.monotonic() - since < SETTLED_SECONDS:
        # The driver is one of them.
        there = int(jvm.sc().getExecutorMemoryStatus().size()) - 1
        now = int(context.defaultParallelism) if there else 0
        if now != slots:
            slots, since = now, time.monotonic()
        if time.monotonic() > deadline:
            if slots:
                break
            raise SparkUnavailableError(
                f"The cluster {context.master} has given us no executor in {EXECUTORS_SECONDS:g} s",
                hint="Are its workers up, and do they have cores and memory that nobody else holds? Its own page says",
            )
        time.sleep(LOOK_SECONDS)
    return slots


def _is_dynamic(spark: "SparkSession") -> bool:
    return spark.sparkContext.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"


def slots_for_streams(spark: "SparkSession", settings: Settings) -> int:
    """`slots_of`. On a cluster streams are split by them, where no setting says into how many partitions."""
    slots = slots_of(spark)
    local = is_local_master(spark.sparkContext.master or "")
    if not local and "spark.sql.shuffle.partitions" not in settings.spark.config:
        partitions = shuffle_partitions(settings, 0 if _is_dynamic(spark) else slots)
        spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    return slots


def check_checkpoint(around: Surroundings, name: str, group: str, own: Path) -> None:
    """A stream that has stood somewhere, and whose checkpoint is gone, would silently begin at the start again. `own` is the
    stream's folder."""
    folder = checkpoint_folder(around.done.spark, checkpoint_of(around.checkpoints, own))
    if newer := newer_generation(checkpoint_folder(around.done.spark, around.checkpoints), own, around.done.streams):
        raise CheckpointError(
            f"The stream {name} has a newer checkpoint than the one this project knows: {newer}",
            expected=str(folder),
            hint=f"A replay was swapped in elsewhere: copy {own / 'generations.json'} from the project that did it",
            stream=name,
        )
    if (folder / "metadata").exists():
        return
    stood = around.admin.committed(group)
    if stood:
        where = ", ".join(f"{place.topic}[{place.partition}]@{offset}" for place, offset in sorted(stood.items())[:4])
        raise CheckpointError(
            f"The stream {name} has run before, and its checkpoint is gone",
            expected=str(folder),
            found=f"the group {group} at {where}",
            hint=f"Put the folder back, or read everything again with `--fresh {name}`",
            stream=name,
        )


class Pipeline:
    """A pipeline on a running cluster. `run` returns when all streams are over or `stop` is set."""

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
        self.done: Compilation = compile_app(graph, spark, KafkaRecords(spark, connection, topics=self.app.topics))
        self.tables = tables_of(self.done)
        there = self._admin.topics(list(self.app.topics), config=False)
        self.plan: Plan = plan_streams(
            self.done,
            settings,
            slots=slots_for_streams(spark, settings),
            speed=speed,
            every=every,
            partitions={name: len(state.partitions) for name, state in there.items()},
        )
        self._names = [name for name in graph.order if not only or name in only]
        self._fresh = fresh
        self._keep_state = keep_state
        self.streams: list[RunningStream] = []
        self._handovers: dict[str, Handover] = {}
        self._code = code_of(self.app)
        # Set when the pipeline file has changed and a replay with the new one was swapped in: `run` is to be started anew.
        self.outdated = False
        # Kafka did not answer when the end came; known after `run`.
        self.kafka_gone = False
        self._ends: dict[Place, int] = {}
        self._ends_at = 0.0
        self._away = False
        self._places: list[Place] = []
        self.progress = PipelineProgress(
            self.app.name,
            self.app.file,
            pid=0,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            shape=shape_of(self.app, graph.inputs, {name: self.done.sources(name) for name in graph.order}).as_dict(),
        )

    def _require_stream(self, name: str) -> None:
        if name not in self.app.streams:
            near = nearest(name, self.app.streams)
            raise UsageError(
                f"The app {self.app.name} has no stream {name}",
                expected=", ".join(self.app.streams),
                hint=f"Did you mean {near}?" if near else "",
                stream=name,
            )

    def prepare(self) -> None:
        """See that every stream can go on from where it was, and make the topics. ChangedError when one cannot."""
        if said := python_notice(self._settings):
            self._notice(said)
        replays = {name: ReplayFolder(self._folder / name) for name in self._names}
        for name, replay in replays.items():
            # A swap that was cut off brings another checkpoint, and the code it was made by.
            before_start(replay, self._admin, replay_group(self.app, name), fresh=name in self._fresh)
        self._judge()
        outputs = [self.done.output_topic(name) for name in self._names]
        topics = {topic.name: topic for topic in [*self.app.topics.values(), *outputs]}
        apply_topics(self._admin, list(topics.values()))
        sources = {topic for name in self._names for topic in self.done.sources(name)}
        typed = [name for name in sources if name not in self.app.topics or self.app.topics[name].event is not None]
        self._sweeper = Sweeper(self._connection, self.done, f"{self.app.name}.dead-letters", self._notice)
        self._typed = set(typed)
        around = self._surroundings()
        for name in self._names:
            group = group_of(self.app, name)
            if name in self._fresh:
                self._forget(around, name, group)
                self._versions.begin(name)
            if self.plan.of(name).speed != "batch":
                check_checkpoint(around, name, group, self._folder / name)
            self.streams.append(self._stream(around, name))
            self._handovers[name] = Handover(replays[name], self._admin, replay_group(self.app, name), self._notice)
        self._publish()
        found = self._admin.topics(list(sources), config=False)
        self._places = [Place(name, part) for name, state in found.items() for part in range(len(state.partitions))]
        # Last: what is refused above leaves no thread behind.
        self._sweeper.start(typed)

    def _publish(self) -> None:
        """Tell the stores and the alerts which tables there are: before the first row of a new column can be read, and only
        when every stream can go on. A copy of the project that does not know the replays would take them back there."""
        if self._settings.store.kind != "none":
            folders = [self._folder / name for name in self.done.streams]
            publish(self._connection, self.app.name, with_generations(self.tables, folders))
        if self.app.alerts:
            tell_tables(self._connection, self.app.name, watched_by(self.done))

    @property
    def changes(self) -> dict[str, Change]:
        """What became of each stream's code since it last ran; known after `prepare`, also when that refuses."""
        return self._versions.found

    def _judge(self) -> None:
        """What the streams were edited to, against what their checkpoints were made by."""
        checkpoints = checkpoints_of(self._settings, self._project, self.app)
        self._versions = Versions(
            self.done, self._admin, self._folder, checkpoints, self._notice, self._settings.spark.shuffle_partitions
        )
        once = [
            name for name in self._names if self.plan.of(name).speed == "batch" and not needs_stream(self.done, name)
        ]
        self._versions.judge(self._names, once=once, fresh=self._fresh, keep=self._keep_state)

    def _stream(self, around: Surroundings, name: str) -> RunningStream:
        books = Books(
            self.done.streams[name],
            {topic: topic in self._typed for topic in self.done.sources(name)},
            group_of(self.app, name),
            self._folder / name / "account.json",
            admin=self._admin,
            sweeper=self._sweeper,
        )
        return RunningStream(around, self.plan.of(name), books, self._folder / name)

    def _surroundings(self) -> Surroundings:
        return surroundings(self.done, self._settings, self._project, self._connection, self._notice)

    def _forget(self, around: Surroundings, name: str, group: str) -> None:
        """Where a stream stood, so that it begins again at the first record there is."""
        remove_checkpoint(self.done.spark, checkpoint_of(around.checkpoints, self._folder / name))
        for each in ("account.json", "bite.json", "batch-run.json"):
            (self._folder / name / each).unlink(missing_ok=True)
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
        """Start all and look after them. Raises the first error that ended a stream for good, when all is over."""
        ending = Ending(self._connection, stop, abandon=self._abandon, notice=self._notice)
        ending.start()
        try:
            # Before any stream reads them.
            ids = self._versions.topic_ids([stream.name for stream in self.streams])
            for stream in self.streams:
                self._versions.begin(stream.name)
                stream.start()
            self._watch = TopicWatch(self._admin, ids)
            while not stop.is_set() and not self.outdated and not self._all_over:
                self._look()
                changed(self.snapshot())
                if until_caught_up and all(stream.caught_up for stream in self.streams):
                    break
                stop.wait(LOOK_SECONDS)
        finally:
            self._end(ending)
            changed(self.snapshot())
        for stream in self.streams:
            if stream.error is not None:
                raise stream.error

    def _end(self, ending: Ending) -> None:
        """Stop all streams, at once. What can only be waited for in vain, with Kafka or Spark gone, is left for the next
        run."""
        self.kafka_gone = not ending.stop(partial(self._stop, each) for each in self.streams)
        if self.kafka_gone:
            self._sweeper.close(0)
            return
        if is_alive():
            self._sweeper.drain(DRAIN_SECONDS)
        self._sweeper.close()
        for stream in self.streams:
            stream.mirror()
        self._look_at_ends(force=True)

    def _stop(self, stream: RunningStream) -> None:
        # What settles it for a replay must not start it again.
        self._handovers[stream.name].close()
        stream.stop()

    def _abandon(self) -> None:
        """Kafka is gone: nothing waits for it any more."""
        self._admin.give_up()
        for stream in self.streams:
            stream.abandon()

    def _look(self) -> None:
        check_alive(self._project.home / "spark")
        self._look_at_ends()
        for topic, what in self._watch.look().items():
            for stream in self.streams:
                if topic in self.done.sources(stream.name):
                    stream.fail(topic_lost(stream.name, topic, what, self.app.file))
        for index, stream in enumerate(self.streams):
            match self._handovers[stream.name].look(stream):
                case "run":
                    stream.look(self._ends)
                case "swapped":
                    self._take_over(index, self._handovers[stream.name].code)
        if all(stream.progress.batch >= 0 for stream in self.streams):
            make_archive(self.done.spark)

    @property
    def _all_over(self) -> bool:
        return all(each.over for each in self.streams) and not any(each.busy for each in self._handovers.values())

    def _take_over(self, index: int, code: str) -> None:
        """Go on with the generation that a replay has made."""
        name = self.streams[index].name
        self.streams[index].close()
        if code != self._code:
            self._notice(f"{name} was replayed with another version of the pipeline file: starting again with that one")
            self.outdated = True
            return
        self._notice(f"{name} goes on with what its replay has made")
        self.streams[index] = self._stream(self._surroundings(), name)
        self.streams[index].start()

    def _look_at_ends(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now >= self._ends_at:
            self._ends_at = now + ENDS_SECONDS
            try:
                self._ends = self._admin.offsets(self._places, "latest", committed_only=True)
            except RiverrunError as error:
                # The streams themselves say what is wrong with the cluster; but one that is gone they notice after a minute.
                self._ends = {}
                self._tell_away(away=error.retryable)
            else:
                self._tell_away(away=False)

    def _tell_away(self, *, away: bool) -> None:
        if away and not self._away:
            self._notice("Kafka does not answer; the streams wait for it, and go on when it is back")
        elif self._away and not away:
            self._notice("Kafka answers again")
        self._away = away

    def snapshot(self) -> PipelineProgress:
        """Where all streams stand now."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        return replace(self.progress, updated_at=now, streams=[stream.progress for stream in self.streams])
