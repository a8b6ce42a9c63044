"""Compute a stream again from earlier offsets, beside the one that runs, and let it take over in one clean cutover.

The replay is a query of its own, with a checkpoint and a topic of its own. It goes from batch to batch by entries that are
written into its offset log (streams/run/offset_log.py), and none goes beyond what the running stream has committed, neither
in its inputs nor in its event-time clock. So when that one is stopped between two batches, the replay ends at exactly the
same records, and what comes after them is the next batch of the new generation, in the stream's own topic. Every record is
on one side of the cutover. A replay writes nothing to the stream's topic, so nobody is notified twice.
"""

import contextlib
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.config import Project, Settings, stream_state
from riverrun.config.run_state import acquire_lock
from riverrun.errors import (
    AlreadyRunningError,
    CheckpointError,
    OffsetOutOfRangeError,
    RiverrunError,
    SparkUnavailableError,
    StreamChangedError,
    StreamFailedError,
    TopicDiffersError,
    TopicExistsError,
    UsageError,
)
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.offsets import offsets_at
from riverrun.kafka.admin.timestamps import first_timestamps
from riverrun.kafka.connection import Connection
from riverrun.model.cluster_state import TopicPartition
from riverrun.streams.checkpoint import CheckpointStatus, Offsets, parse_offsets, query_id, read_checkpoint_status
from riverrun.streams.compile.compiler import compile_app
from riverrun.streams.compile.fingerprint import HISTORY_FILE, VersionHistory, compute_fingerprint
from riverrun.streams.compile.graph import Graph
from riverrun.streams.compile.sources import KafkaRecordSource
from riverrun.streams.compile.tables import build_tables
from riverrun.streams.compile.user_code import code_digest
from riverrun.streams.evolve.change import compare_with_history
from riverrun.streams.evolve.cutover import CutoverPoint, stop_after_batch
from riverrun.streams.evolve.replay_request import ReplayRequest
from riverrun.streams.evolve.versions import find_changes
from riverrun.streams.generations import Generation, checkpoint_name, current_generation, write_json
from riverrun.streams.pipeline import consumer_group, make_stream_context, replay_group, slots_for_streams
from riverrun.streams.run.offset_log import (
    batch_end_offsets,
    count_offsets_between,
    has_uncommitted_batch,
    last_committed_batch,
    min_offsets,
    plan_batch,
    planned_offsets,
    reached_watermark,
)
from riverrun.streams.run.planner import plan_streams
from riverrun.streams.run.progress import ProgressTracker
from riverrun.streams.run.running_stream import (
    INITIAL_BATCH_SIZE,
    MAX_BATCH_SIZE,
    MIN_BATCH_SIZE,
    RunningStream,
    StreamRun,
)
from riverrun.streams.run.session import check_spark_alive
from riverrun.streams.run.shutdown import GracefulShutdown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A batch lasts about this long. Each starts the query, which takes one to three seconds.
TARGET_BATCH_SECONDS = 20.0
# What may be left to read while the running stream is stopped: so many records, or what takes so long.
CUTOVER_RECORDS, CUTOVER_SECONDS = 20_000, 10.0
POLL_SECONDS = 0.1
# How long the running stream may take to end its batch.
ANSWER_SECONDS = 600.0
REPORT_SECONDS = 1.0
# Bad records are dead letters already: a tracker whose topics have no type counts them, and writes none.
NO_DEAD_LETTERS: Any = None


@dataclass(frozen=True)
class ReplayProgress:
    """How far a replay is. `read` records were read, about `left` are to be, at `rate` in a second so far.

    What is left is known in offsets, of which some are markers of transactions: as many of them, it is taken, as so far.
    """

    stream: str
    phase: str
    read: int
    left: int
    rate: float

    @property
    def seconds_left(self) -> float | None:
        return self.left / self.rate if self.rate > 0 else None


class Replay:
    """One replay, from its beginning or from where an earlier process left it. Needs the lock of `request.replay`."""

    def __init__(
        self,
        request: ReplayRequest,
        graph: Graph,
        spark: "SparkSession",
        connection: Connection,
        *,
        settings: Settings,
        project: Project,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._request = request
        self._project = project
        self._notice = notice
        self._admin = Admin(connection)
        self._folder = request.replay
        self._group = replay_group(request.app, request.stream)
        self._compilation = compile_app(
            graph, spark, KafkaRecordSource(spark, connection, topics=request.app.topics)
        ).require()
        self._compiled = self._compilation.streams[request.stream]
        # Saved with the new generation: whoever finishes the swap publishes the columns that its rows have.
        topic = self._compiled.stream.output_topic
        tables = build_tables(self._compilation) if settings.store.kind != "none" else []
        self._tables = [table for table in tables if table.topic == topic]
        self._context = make_stream_context(self._compilation, settings, project, connection, notice)
        slots = slots_for_streams(spark, settings)
        self._plan = plan_streams(self._compilation, settings, slots=slots, speed="near-real-time").for_stream(
            request.stream
        )
        self._speed: str = plan_streams(self._compilation, settings, slots=slots).for_stream(request.stream).speed
        self._reported_at = 0.0
        # As it is loaded here, whatever becomes of the files meanwhile.
        self._code = code_digest(request.app)
        self._batch_size = INITIAL_BATCH_SIZE
        self._rate = 0.0
        self._state: dict[str, Any] = {}
        # The stream itself, while it is stopped here.
        self._live_stream: RunningStream | None = None

    # --- before -------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Begin, or see where an earlier process has left it."""
        # What was agreed on with a process that is gone by now holds no more.
        self._folder.request.unlink(missing_ok=True)
        self._folder.withdraw_answer()
        self._state = self._request.state
        if not self._state:
            self._begin()
        elif self._state["code"] != self._code:
            raise UsageError(
                f"The pipeline file has changed since the replay of {self._request.stream} began",
                hint=f"Remove that one with `{self._request.command} --cancel` and begin anew",
                stream=self._request.stream,
            )
        elif self._request.requested_from not in ("", self._state["asked"]):
            raise UsageError(
                f"A replay of {self._request.stream} from {self._state['asked']} is not finished",
                hint=f"Go on with it: `{self._request.command}`; or remove it with `--cancel`",
                stream=self._request.stream,
            )
        else:
            self._save(**{**self._state, "resumed": True})
            self._notice(f"going on with the replay of {self._request.stream} from {self._state['asked']}")
        self._write_code_version()
        self._make_topic()
        self._stream = self._open_stream()

    def _write_code_version(self) -> None:
        """What the new generation is made by; the stream's own when it is swapped in. Readers of the stream's topic get its
        rows then, so they must be able to."""
        history = VersionHistory.read(self._folder.stream_folder / HISTORY_FILE)
        fingerprint = compute_fingerprint(self._compilation, self._request.stream)
        change = compare_with_history(history, fingerprint)
        if change.kind == "refused":
            topic = self._compiled.stream.output_topic
            raise StreamChangedError(
                [
                    f"{self._request.stream} cannot take over: readers of {topic} have rows of another kind, and "
                    f'{change.reason_text}. Give it a topic of its own, `topic="{topic}_2"`, and `riverrun run --fresh`.'
                ],
                streams=self._request.stream,
            )
        history.add_version(fingerprint, fresh=True).write(self._folder.path / HISTORY_FILE)

    def _check_others(self) -> None:
        """Who runs the pipeline starts again with this file after the swap, with all its streams: they must be able to."""
        if not stream_state.is_running(self._project):
            return
        changes = find_changes(self._compilation, self._folder.stream_folder.parent)
        blocked = [
            name for name, each in changes.items() if each.kind in ("fresh", "refused") and name != self._request.stream
        ]
        if blocked:
            raise StreamChangedError(
                [
                    f"{self._request.stream} cannot be replayed beside the pipeline that runs: that starts again with this "
                    f"file at the swap, and {', '.join(blocked)} cannot go on with it ({changes[blocked[0]].reason_text}). "
                    f"Stop the pipeline, replay {' and '.join([self._request.stream, *blocked])}, and run it again; or "
                    "change one stream at a time."
                ],
                streams=", ".join(blocked),
            )

    def _begin(self) -> None:
        self._check_speed()
        self._check_others()
        live_status = self._live_status()
        begin = self._start_offsets(live_status)
        number = current_generation(self._folder.stream_folder) + 1
        topic = f"{self._compiled.stream.output_topic}.{number}"
        if self._admin.topics([topic], config=False):
            raise TopicExistsError(
                f"The rows of the replay would go to {topic}, and that topic is there already",
                hint=f"Is it of use to anybody? Else: `riverrun topics delete {topic}`",
                topic=topic,
            )
        # A checkpoint of that number is of a replay that nobody knows any more.
        shutil.rmtree(
            Path(self._request.checkpoints) / checkpoint_name(self._request.stream, number), ignore_errors=True
        )
        self._save(
            number=number,
            topic=topic,
            asked=self._request.requested_from or "beginning",
            begin=begin,
            since_ms=self._start_time_ms(begin),
            code=self._code,
            file=self._request.app.file,
            planned=False,
            began_at=_utc_now(),
        )

    def _check_speed(self) -> None:
        progress = stream_state.live_progress(self._project)
        running = (
            [stream.speed for stream in progress.streams if stream.name == self._request.stream] if progress else []
        )
        speed = running[0] if running else self._speed
        hints = {
            "real-time": "Real time has no batches to cut between: run it with `--speed near-real-time` meanwhile",
            "batch": "Run it again: a batch computes everything anew each time",
        }
        if speed in hints:
            raise UsageError(
                f"The stream {self._request.stream} runs {speed}, and cannot be replayed",
                expected="near-real-time",
                hint=hints[speed],
                stream=self._request.stream,
            )

    def _live_status(self) -> CheckpointStatus:
        """The checkpoint status of the running stream."""
        status = read_checkpoint_status(self._request.live_checkpoint, self._request.stream)
        if status is None:
            raise CheckpointError(
                f"The checkpoint of {self._request.stream} is gone",
                expected=str(self._request.live_checkpoint),
                hint="Was the stream begun anew with `--fresh`? Then there is nothing to replay: `--cancel`",
                stream=self._request.stream,
            )
        return status

    def _start_offsets(self, live_status: CheckpointStatus) -> Offsets:
        """Where to begin in each input: as requested, but at most where the running stream is."""
        position = self._request.position
        places = [
            place
            for name in self._compilation.sources(self._request.stream)
            for place in self._admin.topic(name).topic_partitions
        ]
        earliest = self._admin.offsets(places, "earliest")
        if position.kind == "offset":
            expired = {place: first for place, first in earliest.items() if first > position.number}
            if expired:
                first = ", ".join(f"{place} from {offset}" for place, offset in sorted(expired.items())[:4])
                raise OffsetOutOfRangeError(
                    f"Records from offset {position.number} on are not there any more (retention)",
                    found=first,
                    hint="Begin with the first there are: --from beginning",
                    stream=self._request.stream,
                )
        elif any(earliest.values()) and offsets_at(self._admin, places, position) == earliest:
            self._notice("older records are not there any more (retention): it begins with the first there are")
        starts: Offsets = {}
        for place, offset in offsets_at(self._admin, places, position).items():
            starts.setdefault(place.topic, {})[place.partition] = offset
        starts = min_offsets(starts, live_status.end)
        if not count_offsets_between(
            starts, {topic: parts for topic, parts in live_status.end.items() if topic in starts}
        ):
            raise UsageError(
                f"There is nothing to replay: {self._request.stream} has read no record from {position} on",
                hint="Begin earlier, with --from",
                stream=self._request.stream,
            )
        if self._compiled.query.aggregated and not self._compiled.query.windowed and position.kind != "earliest":
            self._notice(f"{self._request.stream} counts over all time, and its new generation will know nothing older")
        return starts

    def _start_time_ms(self, begin: Offsets) -> int:
        """A time, in milliseconds since 1970, that no record before these offsets is newer than; 0 when there is none."""
        first_offsets = {
            TopicPartition(topic, part): offset
            for topic, parts in begin.items()
            for part, offset in parts.items()
            if offset > 0
        }
        if not first_offsets:
            return 0
        if self._request.position.kind == "time":
            return self._request.position.number
        return max(first_timestamps(self._admin.connection, first_offsets).values(), default=0) or round(
            time.time() * 1000
        )

    def _make_topic(self) -> None:
        """A topic like the stream's own."""
        topic, own = str(self._state["topic"]), self._admin.topic(self._compiled.stream.output_topic)
        existing = self._admin.topics([topic], config=False).get(topic)
        if existing is None:
            config = {name: each.value for name, each in own.config.items() if each.origin == "topic"}
            self._admin.create_topic(topic, partitions=len(own.partitions), replicas=own.replicas, config=config)
        elif len(existing.partitions) != len(own.partitions):
            raise TopicDiffersError(
                f"{topic} has {len(existing.partitions)} partitions, and {own.name} has {len(own.partitions)}",
                hint=f"Begin anew: `{self._request.command} --cancel`",
                topic=topic,
            )

    def _open_stream(self) -> RunningStream:
        topics = dict.fromkeys(self._compilation.sources(self._request.stream), False)
        file = self._folder.path / "record_counts.json"
        tracker = ProgressTracker(
            self._compiled, topics, self._group, file, admin=self._admin, dead_letters=NO_DEAD_LETTERS
        )
        checkpoint = f"{self._request.checkpoints}/{checkpoint_name(self._request.stream, int(self._state['number']))}"
        stream_run = StreamRun(
            f"{self._request.stream}.replay",
            str(self._state["topic"]),
            checkpoint,
            start_offsets=parse_offsets(self._state["begin"]),
            single_batch=True,
            replaying=True,
        )
        return RunningStream(self._context, self._plan, tracker, self._folder.path, stream_run)

    # --- running ------------------------------------------------------------------------------------------------------

    def run(
        self, stop: threading.Event, changed: Callable[[ReplayProgress], None] = lambda _: None
    ) -> Generation | None:
        """Until it has taken over, or `stop` is set: then None, and it can be gone on with."""
        self._stop, self._changed = stop, changed
        shutdown = GracefulShutdown(self._admin.connection, stop, abandon=self._abandon, notice=self._notice)
        shutdown.start()
        try:
            while not stop.is_set():
                if self._catch_up() and (generation := self._cut_over()) is not None:
                    return generation
            return None
        except Exception:
            if stop.is_set() and not shutdown.begin():
                # Without Kafka, what is asked for meanwhile fails, Spark too.
                return None
            raise
        finally:
            self._folder.request.unlink(missing_ok=True)
            if shutdown.stop([self._stream.stop]):
                self._stream.commit_group_offsets()

    def _abandon(self) -> None:
        """Kafka is gone: nothing waits for it any more."""
        self._admin.cancel()
        for stream in (self._stream, self._live_stream):
            if stream is not None:
                stream.abandon()

    def _catch_up(self) -> bool:
        """Read on up to where the running stream is at most; whether little is left by then."""
        live_status = self._live_status()
        self._run_batch(self._limit_offsets(live_status), self._watermark_limit(live_status.watermark_ms))
        left = count_offsets_between(self._own_offsets, self._limit_offsets(self._live_status()))
        return not has_uncommitted_batch(self._stream.checkpoint) and left <= max(
            CUTOVER_RECORDS, self._rate * CUTOVER_SECONDS
        )

    @property
    def _own_offsets(self) -> Offsets:
        status = read_checkpoint_status(self._stream.checkpoint, self._request.stream)
        return status.end if status is not None else parse_offsets(self._state["begin"])

    def _limit_offsets(self, live_status: CheckpointStatus) -> Offsets:
        """How far it may go: where the running stream is, and in topics that one does not read, to their ends."""
        limits: Offsets = {}
        for topic in self._compilation.sources(self._request.stream):
            if topic in live_status.end:
                limits[topic] = live_status.end[topic]
            else:
                ends = self._admin.offsets(self._admin.topic(topic).topic_partitions, "latest", committed_only=True)
                limits[topic] = {place.partition: offset for place, offset in ends.items()}
        return limits

    def _watermark_limit(self, watermark_ms: int) -> int | None:
        """How far its event-time clock may go, so that it sends no final row before the running stream does. One that keeps
        no state has no clock."""
        return watermark_ms if (self._request.live_checkpoint / "state").exists() else None

    def _run_batch(self, cap: Offsets, watermark_limit: int | None, *, last: bool = False) -> bool:
        """One batch: the one that was cut off, else the next. With `last` its clock is exactly the one given. False when
        there is nothing to do."""
        folder = Path(str(self._stream.checkpoint))
        before = self._own_offsets
        self._report_progress("replaying" if not last else "taking over", before, cap)
        if not self._state["planned"]:
            self._plan_first(cap)
        elif not has_uncommitted_batch(folder):
            status = read_checkpoint_status(folder, self._request.stream)
            assert status is not None  # noqa: S101
            ends = batch_end_offsets(before, cap, self._batch_size)
            watermark_ms = reached_watermark(folder)
            if watermark_limit is not None:
                watermark_ms = (
                    watermark_limit
                    if last and not count_offsets_between(ends, cap)
                    else min(watermark_ms, watermark_limit)
                )
            watermark_ms = max(status.watermark_ms, watermark_ms)
            if not count_offsets_between(before, ends) and watermark_ms == status.watermark_ms:
                return False
            plan_batch(folder, last_committed_batch(folder) + 1, ends, watermark_ms)
        began = time.monotonic()
        self._stream.run_planned_batch(lambda: self._wait(before, cap))
        rows, seconds = count_offsets_between(before, self._own_offsets), max(0.001, time.monotonic() - began)
        if rows:
            self._rate = rows / seconds
            self._batch_size = round(min(MAX_BATCH_SIZE, max(MIN_BATCH_SIZE, self._rate * TARGET_BATCH_SECONDS)))
        self._report_progress("replaying" if not last else "taking over", self._own_offsets, cap)
        return True

    def _plan_first(self, cap: Offsets) -> None:
        """Spark plans the first batch, with all it writes down for later; it is cut to size before it runs."""
        begin = parse_offsets(self._state["begin"])
        folder = Path(str(self._stream.checkpoint))
        if not (folder / "offsets" / "0").exists():
            self._stream.plan_first_batch()
        plan_batch(
            folder, 0, batch_end_offsets(begin, min_offsets(planned_offsets(folder, 0), cap), self._batch_size), 0
        )
        self._save(**{**self._state, "planned": True})

    def _wait(self, before: Offsets, cap: Offsets) -> bool:
        self._report_progress("replaying", before, cap)
        return self._wait_alive()

    def _wait_alive(self) -> bool:
        """A moment; False when it is to stop. A stream whose Spark is gone is never over, and does not say so itself."""
        check_spark_alive(self._project.home / "spark")
        return not self._stop.wait(POLL_SECONDS)

    def _report_progress(self, phase: str, own: Offsets, cap: Offsets) -> None:
        passed, read = (
            count_offsets_between(parse_offsets(self._state["begin"]), own),
            self._stream.progress.record_counts.read,
        )
        # A batch that a crash kept from being counted leaves fewer than were read, never more than there are.
        share = min(1.0, read / passed) if passed and read else 1.0
        progress = ReplayProgress(
            self._request.stream,
            phase,
            min(read, passed),
            round(count_offsets_between(own, cap) * share),
            self._rate * share,
        )
        if time.monotonic() > self._reported_at + REPORT_SECONDS:
            self._reported_at = time.monotonic()
            with contextlib.suppress(OSError):
                write_json(self._folder.progress, asdict(progress))
        self._changed(progress)

    # --- cutover ------------------------------------------------------------------------------------------------------

    def _cut_over(self) -> Generation | None:
        """Take over from the running stream; None when that did not come about, and is to be tried again."""
        with self._agreed_point() as answer:
            if answer is None or answer.end is None:
                return None
            cap = {topic: parts for topic, parts in answer.end.items() if topic in self._own_offsets}
            while self._run_batch(cap, self._watermark_limit(answer.watermark_ms), last=True):
                if self._stop.is_set():
                    return None
            generation = self._new_generation(answer)
            tables = [table.as_dict() for table in self._tables]
            self._save(**{**self._state, "made": asdict(generation), "tables": tables})
            if not self._accept():
                return None
        return self._finish(generation)

    def _accept(self) -> bool:
        return self._folder.accept()

    def _finish(self, generation: Generation) -> Generation:
        self._folder.finish_swap(self._admin, self._group)
        return generation

    def _new_generation(self, answer: CutoverPoint) -> Generation:
        target = self._compiled.stream.output_topic
        first = self._admin.offsets(self._admin.topic(target).topic_partitions, "latest")
        return Generation(
            number=int(self._state["number"]),
            query=query_id(self._stream.checkpoint),
            previous_query=answer.query,
            topic=str(self._state["topic"]),
            replayed_from=str(self._state["asked"]),
            begin=parse_offsets(self._state["begin"]),
            cutover=self._own_offsets,
            first={place.partition: offset for place, offset in first.items()},
            watermark_ms=answer.watermark_ms,
            # A crash may have kept some from being counted.
            rows=-1 if self._state.get("resumed") else self._stream.progress.record_counts.out,
            at=_utc_now(),
            since_ms=int(self._state.get("since_ms", 0)),
        )

    @contextmanager
    def _agreed_point(self) -> Iterator[CutoverPoint | None]:
        """Where the running stream is stopped, as long as this block lasts or until the answer is accepted."""
        request_id = secrets.token_hex(8)
        try:
            if stream_state.is_running(self._project):
                yield self._request_stop(request_id)
            else:
                with self._lock_pipeline():
                    yield self._stop_offline_stream(request_id)
        finally:
            if not self._folder.swap.exists():
                self._folder.request.unlink(missing_ok=True)
                self._folder.withdraw_answer()

    def _request_stop(self, request_id: str) -> CutoverPoint | None:
        """Ask the process that runs the pipeline; None if it ends meanwhile."""
        self._check_runner()
        self._folder.write_request(request_id, self._code)
        deadline = time.monotonic() + ANSWER_SECONDS
        while not self._stop.wait(POLL_SECONDS):
            answer = self._folder.read_answer(request_id)
            if answer is not None and answer.error:
                raise StreamFailedError(
                    f"The stream {self._request.stream} cannot hand over: {answer.error}", stream=self._request.stream
                )
            if answer is not None:
                return answer
            if not stream_state.is_running(self._project) or not self._folder.request.exists():
                return None
            if time.monotonic() > deadline:
                raise StreamFailedError(
                    f"The pipeline did not stop {self._request.stream} for {ANSWER_SECONDS:g} s",
                    hint="Look at it with `riverrun status`; the replay can be continued",
                    stream=self._request.stream,
                )
        return None

    def _check_runner(self) -> None:
        progress = stream_state.live_progress(self._project)
        if progress is None:
            return
        own_progress = [stream for stream in progress.streams if stream.name == self._request.stream]
        if progress.app != self._request.app.name or not own_progress:
            raise AlreadyRunningError(
                f"A pipeline of this project runs without {self._request.stream}, so nobody can hand it over",
                hint=f"Stop that one (pid {progress.pid}), or run the stream with it; the replay can be continued",
                stream=self._request.stream,
            )

    @contextmanager
    def _lock_pipeline(self) -> Iterator[None]:
        """Nobody runs the pipeline, and nobody may begin to."""
        path = stream_state.lock_path(self._project)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            acquire_lock(descriptor, 1.0, lambda: AlreadyRunningError("A pipeline was started meanwhile"))
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\nof the replay of {self._request.stream}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def _stop_offline_stream(self, request_id: str) -> CutoverPoint:
        """The stream does not run: its checkpoint has the offsets, once no batch is half sent."""
        tracker = ProgressTracker(
            self._compiled,
            dict.fromkeys(self._compilation.sources(self._request.stream), False),
            consumer_group(self._request.app, self._request.stream),
            self._folder.stream_folder / "record_counts.json",
            admin=self._admin,
            dead_letters=NO_DEAD_LETTERS,
        )
        stream_run = StreamRun(
            f"{self._request.stream}.old", self._compiled.stream.output_topic, str(self._request.live_checkpoint)
        )
        self._live_stream = live_stream = RunningStream(
            self._context, self._plan, tracker, self._folder.stream_folder, stream_run
        )
        try:
            answer = stop_after_batch(live_stream, request_id, self._wait_alive)
        except SparkUnavailableError:
            # The batch is as it was.
            raise
        except RiverrunError as error:
            raise CheckpointError(
                f"The last batch of {self._request.stream} was cut off half sent, and could not be ended",
                found=str(error),
                hint="End it with the pipeline file it was begun with: `riverrun run --until-caught-up`",
                stream=self._request.stream,
            ) from error
        finally:
            live_stream.close()
        self._folder.write_answer(answer)
        return answer

    def _save(self, **state: Any) -> None:
        self._state = state
        write_json(self._folder.state, state)
        # As the next process will read it.
        self._state = self._request.state


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
