"""One running stream: started, watched, restarted when its environment failed, stopped."""

import contextlib
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.errors import RiverrunError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.java_client import java_properties
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.progress import StreamProgress
from riverrun.streams.checkpoint import query_id
from riverrun.streams.checkpoint_files import HadoopFolder, checkpoint_folder
from riverrun.streams.compile.compiler import Compilation, encode_records
from riverrun.streams.compile.fingerprint import compute_fingerprint
from riverrun.streams.compile.sources import Counters, KafkaRecordSource
from riverrun.streams.generations import checkpoint_path
from riverrun.streams.run.batch_run import BatchRun, go_on_or_begin, read_topic_ranges
from riverrun.streams.run.failures import StreamFiles, explain_failure
from riverrun.streams.run.late_records import describe_all_late
from riverrun.streams.run.offset_log import has_uncommitted_batch, is_batch_written, last_planned_batch
from riverrun.streams.run.planner import StreamPlan
from riverrun.streams.run.progress import ProgressTracker
from riverrun.streams.run.row_identity import add_identity_header
from riverrun.streams.run.session import is_local, is_spark_alive
from riverrun.streams.run.sink import ExactlyOnceSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

# A backlog is read in batches that last about this long, so that progress is seen and a crash repeats little.
TARGET_BATCH_SECONDS = 10.0
# The first batch size, before anything was measured, and the bounds of all later ones.
INITIAL_BATCH_SIZE, MIN_BATCH_SIZE, MAX_BATCH_SIZE = 400_000, 20_000, 5_000_000
BACKOFF_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
# A stream that has run this long is healthy: the backoff starts over at the next failure.
HEALTHY_SECONDS = 60.0
# How many progress reports Spark keeps: enough to miss none between two polls.
RETAINED_REPORTS = 1000


@dataclass
class StreamContext:
    """What all streams of a pipeline share."""

    compilation: Compilation
    connection: Connection
    admin: Admin
    checkpoints: str
    spark_log: str
    transaction_seconds: float
    notice: Callable[[str], None]


@dataclass(frozen=True)
class StreamRun:
    """The checkpoint and output topic of one generation of a stream. `start_offsets` is where a new checkpoint begins to
    read; with `single_batch` only the one batch that is planned in the checkpoint is run (streams/run/offset_log.py)."""

    query: str
    topic: str
    checkpoint: str
    start_offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    single_batch: bool = False
    # Whether this is a replay: nothing may notify people.
    replaying: bool = False


class RunningStream:
    """One stream. `poll` is called again and again; it never blocks for long and never raises."""

    def __init__(
        self,
        context: StreamContext,
        plan: StreamPlan,
        tracker: ProgressTracker,
        folder: Path,
        stream_run: StreamRun | None = None,
    ) -> None:
        self._context = context
        self.plan = plan
        self._compiled = context.compilation.streams[plan.name]
        self.stream_run = stream_run or StreamRun(
            plan.name, self._compiled.stream.output_topic, checkpoint_path(context.checkpoints, folder)
        )
        self._tracker = tracker
        self._all_late = False
        self._batch_size_file = folder / "batch_size.json"
        self._batch_size = _read_batch_size(self._batch_size_file)
        self._batch_run_file = folder / "batch-run.json"
        self._sink = ExactlyOnceSink.create(
            context.compilation.spark,
            context.connection,
            context.admin,
            name=tracker.group,
            topic=self.stream_run.topic,
            transaction_seconds=context.transaction_seconds,
            # Also if Spark may partition rows differently the next time: tasks would have other rows.
            in_driver=self._compiled.query.unstable_partitions
            or (plan.speed == "near-real-time" and is_local(context.compilation.spark)),
        )
        # The plan to continue with after finishing a batch that was begun at another speed.
        self._next_plan: StreamPlan | None = None
        self._query: StreamingQuery | None = None
        self._batch_thread: threading.Thread | None = None
        self._batch_error: BaseException | None = None
        self._last_report: tuple[int, str] = (-1, "")
        self._started_at = self._restart_at = 0.0
        self._failures = 0
        self.error: RiverrunError | None = None
        self.progress = StreamProgress(
            plan.name,
            topic=self.stream_run.topic,
            group=tracker.group,
            speed=plan.speed,
            replaying=self.stream_run.replaying,
            record_counts=tracker.record_counts,
        )

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def has_ended(self) -> bool:
        return self.progress.phase in ("finished", "failed", "stopped")

    @property
    def caught_up(self) -> bool:
        """Whether it has read all records and has no more rows to send: the query is idle, not only without lag."""
        if self.has_ended:
            return True
        if (
            self.progress.phase != "running"
            or self.progress.lag != 0
            or self._query is None
            or self._next_plan is not None
        ):
            return False
        return self.plan.speed == "real-time" or self._query.status["message"] == "Waiting for data to arrive"

    # --- start --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._started_at = time.monotonic()
        try:
            if self.plan.speed == "batch" and not self._needs_streaming_query:
                self._start_batch()
            elif self.plan.speed == "real-time" and self.has_written_uncommitted:
                self._finish_interrupted_batch()
            else:
                self._start_query()
            self.progress.phase = "running"
        except Exception as error:  # noqa: BLE001  -- any error of Spark's is explained, and the other streams go on
            self._handle_failure(error)

    @property
    def _needs_streaming_query(self) -> bool:
        return needs_streaming_query(self._context.compilation, self.name)

    def _finish_interrupted_batch(self) -> None:
        """Finish a batch whose rows are in the topic, at the speed it was begun at. Real-time mode would plan it again,
        and the new batch of the same number would be mistaken for it."""
        self._context.notice(f"{self.name} finishes a batch that was cut off, and goes on in real time then")
        self._next_plan, single_batch_run = self.plan, replace(self.stream_run, single_batch=True)
        self.plan = replace(self.plan, speed="near-real-time", output_mode=self._compiled.mode)
        self.stream_run = single_batch_run
        self._start_query()

    def _start_next_plan(self) -> None:
        assert self._next_plan is not None  # noqa: S101
        self.plan, self._next_plan = self._next_plan, None
        self.stream_run = replace(self.stream_run, single_batch=False)
        self.start()

    def _start_query(self, write: Callable[["DataFrame", int], None] | None = None) -> None:
        compilation, spark = self._context.compilation, self._context.compilation.spark
        counters = Counters(streaming=True)
        options = {"maxOffsetsPerTrigger": str(self._batch_size)} if self.plan.speed == "near-real-time" else {}
        source = KafkaRecordSource(
            spark,
            self._context.connection,
            options=options,
            start_offsets=self.stream_run.start_offsets,
            topics=compilation.graph.app.topics,
        )
        rows = compilation.rows(self.name, source, counters=counters, broadcast=self.plan.speed == "real-time")
        # A scheduler pool of its own, so that its jobs take turns with those of other streams.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(RETAINED_REPORTS))
        # As in a batch run: tasks that are split by measured size would have other rows when computed again.
        spark.conf.set("spark.sql.adaptive.streaming.stateless.enabled", "false")
        records = encode_records(rows, self._compiled, counters)
        if self.plan.speed == "real-time":
            # Real-time mode has no batches to write exactly once: it uses Spark's own sink, and a header identifies each
            # record.
            writer = add_identity_header(records).writeStream.format("kafka").options(**self._spark_sink())
            real_time: Any = writer.trigger
            writer = real_time(realTime=f"{self.plan.every_ms} milliseconds")
        else:
            writer = records.writeStream.foreachBatch(write or self._sink.write)
            trigger: Any = {"availableNow": True}
            if self.stream_run.single_batch:
                trigger = {"once": True}
            elif self.plan.speed == "near-real-time":
                trigger = {"processingTime": f"{self.plan.every_ms} milliseconds"}
            writer = writer.trigger(**trigger)
        writer = (
            writer.queryName(self.stream_run.query)
            .option("checkpointLocation", self.stream_run.checkpoint)
            .outputMode(self._compiled.mode if self.plan.speed == "batch" else self.plan.output_mode)
        )
        self._last_report = (-1, "")
        self._query = writer.start()

    def _spark_sink(self) -> dict[str, str]:
        sink = {f"kafka.{name}": value for name, value in java_properties(self._context.connection).items()}
        return sink | {"topic": self._compiled.stream.output_topic, "includeHeaders": "true"}

    def _start_batch(self) -> None:
        self._batch_error = None
        self._batch_thread = threading.Thread(target=self._run_batch, name=f"batch {self.name}", daemon=True)
        self._batch_thread.start()

    def _run_batch(self) -> None:
        try:
            compilation = self._context.compilation
            run = self._open_batch_run()
            counters = Counters(streaming=False)
            records = KafkaRecordSource(
                compilation.spark, self._context.connection, ranges=run.ranges, topics=compilation.graph.app.topics
            )
            rows = compilation.rows(self.name, records, counters=counters, streaming=False)
            compilation.spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
            started = time.monotonic()
            # A task must have the same rows if it is computed again, so Spark must not split by sizes measured at run time.
            compilation.spark.conf.set("spark.sql.adaptive.enabled", "false")
            self._sink.write(encode_records(rows, self._compiled, counters), 0, run.id, run.digest)
            self._tracker.record_full_run(run.begin, run.end, counters.results())
            self._sink.finished(run.id)
            run.finish()
            self.progress.batch = 0
            self.progress.batch_ms = round((time.monotonic() - started) * 1000)
            self.progress.last_record_at = datetime.now(UTC).isoformat()
            seconds = max(0.001, time.monotonic() - started)
            self.progress.rows_in_per_second = self._tracker.record_counts.read / seconds
            self.progress.rows_out_per_second = self._tracker.record_counts.out / seconds
        except BaseException as error:  # noqa: BLE001  -- raised in the thread that polls
            self._batch_error = error

    def _open_batch_run(self) -> BatchRun:
        """The run that a crash interrupted, or a new one over all records."""
        context, code = self._context, compute_fingerprint(self._context.compilation, self.name).digest
        records = read_topic_ranges(context.admin, context.compilation.sources(self.name))
        return go_on_or_begin(self._batch_run_file, code, records, self._sink.last_claim(), context.notice)

    # --- watching -----------------------------------------------------------------------------------------------------

    def poll(self, ends: Mapping[TopicPartition, int]) -> None:
        if self.has_ended:
            return
        try:
            if self.progress.phase == "restarting":
                if time.monotonic() >= self._restart_at:
                    self.progress.restarts += 1
                    self.start()
                return
            if self._batch_thread is not None:
                self._poll_batch()
            elif self._query is not None:
                self._poll_query(ends)
            self.progress.record_counts = self._tracker.record_counts
            if self.progress.phase == "finished":
                self._tracker.commit_group_offsets()
            if ends:
                self.progress.lag = self._tracker.lag(ends)
            self.progress.first_batch_records = first_batch_records(
                self.progress, self._batch_size if self.plan.speed == "near-real-time" else None
            )
        except Exception as error:  # noqa: BLE001  -- as above
            self._handle_failure(error)

    def _poll_batch(self) -> None:
        assert self._batch_thread is not None  # noqa: S101
        if self._batch_thread.is_alive():
            return
        self._batch_thread = None
        if self._batch_error is not None:
            self._handle_failure(self._batch_error)
        else:
            self.progress.phase = "finished"

    def _poll_query(self, ends: Mapping[TopicPartition, int]) -> None:
        assert self._query is not None  # noqa: S101
        active = self._query.isActive
        self._record_progress()
        if not active:
            error = self._query.exception()
            if error is not None:
                self._handle_failure(self._sink.error or error)
            elif self._next_plan is not None:
                self._start_next_plan()
            else:
                self.progress.phase = "finished"
            return
        self._tracker.commit_group_offsets()
        if self._failures and time.monotonic() - self._started_at > HEALTHY_SECONDS:
            self._failures = 0
        self._adapt_batch_size(ends)

    def _report_late(self, report: Mapping[str, Any]) -> None:
        """Report late batches once until a batch has records in time; batches without records do not count."""
        message = describe_all_late(report)
        if message and not self._all_late:
            self._context.notice(f"{self.name} takes nothing: {message}")
        if report.get("numInputRows"):
            self._all_late = bool(message)

    def _record_progress(self) -> None:
        """Process all progress reports since the last call."""
        query: Any = self._query
        reports = query._jsq.recentProgress()  # noqa: SLF001
        new_reports: list[dict[str, Any]] = []
        # Each access to the list is a call to the JVM: go from the end back to the last known report.
        for index in range(len(reports) - 1, -1, -1):
            update = reports[index]
            report_id = (int(update.batchId()), str(update.timestamp()))
            if report_id <= self._last_report:
                break
            new_reports.append(json.loads(update.json()))
        for report in reversed(new_reports):
            self._tracker.record_batch(report, self.progress)
            self._report_late(report)
            self._last_report = (int(report["batchId"]), str(report["timestamp"]))

    def _adapt_batch_size(self, ends: Mapping[TopicPartition, int]) -> None:
        """Set the batch size for a backlog by how long a full batch took. The query is restarted, because it takes a new
        size only at the start."""
        if self.plan.speed != "near-real-time" or self.stream_run.single_batch or not self._query or not ends:
            return
        last = self._query.lastProgress
        if last is None or last.batchId < 1:
            # The first batch pays for compiling the query.
            return
        report = json.loads(last.json)
        rows, millis = int(report.get("numInputRows") or 0), int(report.get("batchDuration") or 0)
        if rows < 0.9 * self._batch_size or not millis:
            return
        batch_size = round(min(MAX_BATCH_SIZE, max(MIN_BATCH_SIZE, rows / millis * 1000 * TARGET_BATCH_SECONDS)))
        if abs(math.log2(batch_size / self._batch_size)) < 1 or self._tracker.lag(ends) < 2 * max(
            batch_size, self._batch_size
        ):
            return
        self._batch_size = batch_size
        _write_batch_size(self._batch_size_file, batch_size)
        self._query.stop()
        self._record_progress()
        self._start_query()

    def fail(self, error: RiverrunError) -> None:
        """End the stream for an error that was found outside of it."""
        if not self.has_ended:
            self._handle_failure(error)

    # --- stop ---------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop the query, and count what it has done."""
        if self._query is not None:
            with contextlib.suppress(Exception):
                self._query.stop()
            with contextlib.suppress(Exception):
                self._record_progress()
        self._sink.close()
        if not self.has_ended:
            self.progress.phase = "stopped"

    def abandon(self) -> None:
        """Kafka is gone: `stop` does not wait for it."""
        self._sink.abandon()

    # --- batches planned elsewhere (streams/evolve/replay.py, streams/evolve/cutover.py) ------------------------------

    def pause(self) -> None:
        """Stop as `stop` does, and do not restart until `start` is called."""
        if self._batch_thread is None and self.progress.phase != "failed":
            self.stop()
            self._query = None
            self._restart_at = math.inf
            self.progress.phase = "restarting"

    def plan_first_batch(self) -> None:
        """Let Spark plan the first batch of a new checkpoint without running it."""
        log = logging.getLogger("py4j.clientserver")
        self._start_query(_refuse_batch)
        assert self._query is not None  # noqa: S101
        try:
            # It would log the error that is expected here, with its stack.
            log.disabled = True
            self._query.awaitTermination()
        except Exception as error:
            if not (self.checkpoint / "offsets" / "0").exists():
                self._handle_failure(error)
                raise (self.error or explain_failure(self._compiled.stream, error, self._files)) from error
        finally:
            log.disabled = False
            self._query = None

    def run_planned_batch(self, wait: Callable[[], bool]) -> None:
        """Run the one batch that is planned, again if its environment failed. `wait` sleeps a moment; if it returns False,
        the batch is left as it is. Raises the error that ended the stream for good."""
        stream_run = self.stream_run
        self.stream_run = replace(stream_run, single_batch=True)
        # An error from before does not count.
        self.error = None
        try:
            self.start()
            while not self.has_ended:
                if not wait():
                    self.pause()
                    return
                self.poll({})
            if self.error is not None:
                raise self.error
            self.pause()
        finally:
            self.stream_run = stream_run

    @property
    def checkpoint(self) -> Path | HadoopFolder:
        return checkpoint_folder(self._context.compilation.spark, self.stream_run.checkpoint)

    @property
    def has_written_uncommitted(self) -> bool:
        """Whether rows of an uncommitted batch are in its topic. The stream must be stopped; no more of them are written
        later."""
        if not has_uncommitted_batch(self.checkpoint):
            return False
        generation = query_id(self.checkpoint)
        # The check below fences its own producers too.
        self._sink.reset_writers()
        return is_batch_written(self._context.admin, self._sink.target, generation, last_planned_batch(self.checkpoint))

    def close(self) -> None:
        """Close it, because another generation takes over."""
        self.commit_group_offsets()
        self._sink.close()

    def commit_group_offsets(self) -> None:
        """Commit the stream's offsets to its consumer group."""
        with contextlib.suppress(RiverrunError):
            self._tracker.commit_group_offsets()

    @property
    def _files(self) -> StreamFiles:
        return StreamFiles(
            self._context.spark_log, self.stream_run.checkpoint, str(Path(self._context.spark_log).parent)
        )

    def _handle_failure(self, error: BaseException) -> None:
        if not is_spark_alive():
            # Spark itself is gone, which the pipeline reports: this error is only a consequence.
            return
        if self._query is not None:
            # Our own polling may have failed: the query must not run beside the one that is started next.
            with contextlib.suppress(Exception):
                self._query.stop()
            self._query = None
        self._sink.reset_writers()
        failure = explain_failure(self._compiled.stream, error, self._files)
        self.progress.error = str(failure)
        if not failure.retryable:
            self.error = failure
            self.progress.phase = "failed"
            self._context.notice(str(failure))
            return
        wait = BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS) - 1)]
        self._failures += 1
        self._restart_at = time.monotonic() + wait
        self.progress.phase = "restarting"
        self._context.notice(f"{failure} It is started again in {wait:g} s.")


def needs_streaming_query(compilation: Compilation, name: str) -> bool:
    """Whether it uses operators that Spark has for streams only: then it runs as a streaming query, with a checkpoint,
    even at speed batch."""
    return "DeduplicateWithinWatermark" in compilation.streams[name].query.nodes


def _refuse_batch(frame: "DataFrame", batch: int) -> None:
    raise NotImplementedError(f"batch {batch} is planned only")


def first_batch_records(progress: StreamProgress, batch_size: int | None) -> int:
    """How many records its first batch since the start has, at most a batch's size; 0 when that batch is over."""
    if progress.phase != "running" or progress.batch >= 0 or progress.lag <= 0:
        return 0
    return progress.lag if batch_size is None else min(progress.lag, batch_size)


def _read_batch_size(file: Path) -> int:
    try:
        return min(MAX_BATCH_SIZE, max(MIN_BATCH_SIZE, int(file.read_text())))
    except (OSError, ValueError):
        return INITIAL_BATCH_SIZE


def _write_batch_size(file: Path, rows: int) -> None:
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(rows))
