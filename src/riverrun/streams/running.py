"""One stream at work: started, watched, started again when what is around it failed, stopped."""

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
from riverrun.model.progress import StreamProgress
from riverrun.model.state import Place
from riverrun.streams.batch_run import BatchRun, all_records, go_on_or_begin
from riverrun.streams.blueprint import blueprint_of
from riverrun.streams.books import Books
from riverrun.streams.checkpoint import query_id
from riverrun.streams.compiler import Compilation, encoded
from riverrun.streams.cut import is_cut_off, is_written, planned
from riverrun.streams.failures import Files, explain
from riverrun.streams.generations import checkpoint_of
from riverrun.streams.identity import identified
from riverrun.streams.late import all_too_late
from riverrun.streams.planner import StreamPlan
from riverrun.streams.remote_files import HadoopFolder, checkpoint_folder
from riverrun.streams.session import is_alive, is_local
from riverrun.streams.sink import ExactSink
from riverrun.streams.sources import Counters, KafkaRecords

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

# A backlog is taken in bites that last about this long, so that progress is seen and a crash repeats little.
BITE_SECONDS = 10.0
# The first bite, before anything was measured, and the bounds of all later ones.
FIRST_BITE, SMALLEST_BITE, LARGEST_BITE = 400_000, 20_000, 5_000_000
BACKOFF_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
# A stream that has run this long is well again: the next failure is a first one.
WELL_SECONDS = 60.0
# Enough of Spark's reports to miss none between two looks.
KEPT_REPORTS = 1000


@dataclass
class Surroundings:
    """What all streams of a pipeline share."""

    done: Compilation
    connection: Connection
    admin: Admin
    checkpoints: str
    log: str
    transaction_seconds: float
    notice: Callable[[str], None]


@dataclass(frozen=True)
class Lane:
    """Where one generation of a stream keeps its place and sends its rows. `starts` is where it begins to read when it is
    new; with `once` it runs the one batch that is planned in its checkpoint (streams/cut.py), and is finished."""

    query: str
    topic: str
    checkpoint: str
    starts: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    once: bool = False
    # A replay: whatever tells people something must stay silent.
    replaying: bool = False


class RunningStream:
    """One stream. `look` is called again and again; it never blocks for long and never raises."""

    def __init__(
        self, around: Surroundings, plan: StreamPlan, books: Books, folder: Path, lane: Lane | None = None
    ) -> None:
        self._around = around
        self.plan = plan
        self._compiled = around.done.streams[plan.name]
        self.lane = lane or Lane(plan.name, self._compiled.stream.target, checkpoint_of(around.checkpoints, folder))
        self._books = books
        self._all_late = False
        self._bite_file = folder / "bite.json"
        self._bite = _read_bite(self._bite_file)
        self._run_file = folder / "batch-run.json"
        self._sink = ExactSink.of(
            around.done.spark,
            around.connection,
            around.admin,
            name=books.group,
            topic=self.lane.topic,
            transaction_seconds=around.transaction_seconds,
            # By this process too what Spark may split otherwise the next time: parts would hold other rows.
            here=self._compiled.query.splits_vary or (plan.speed == "near-real-time" and is_local(around.done.spark)),
        )
        # The plan to go on with when a batch that another speed had begun is finished.
        self._then: StreamPlan | None = None
        self._query: StreamingQuery | None = None
        self._batch: threading.Thread | None = None
        self._batch_error: BaseException | None = None
        self._seen: tuple[int, str] = (-1, "")
        self._started = self._again_at = 0.0
        self._failures = 0
        self.error: RiverrunError | None = None
        self.progress = StreamProgress(
            plan.name,
            topic=self.lane.topic,
            group=books.group,
            speed=plan.speed,
            replaying=self.lane.replaying,
            account=books.account,
        )

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def over(self) -> bool:
        return self.progress.phase in ("finished", "failed", "stopped")

    @property
    def caught_up(self) -> bool:
        """Whether it has read all there is and has nothing more to send: an idle query, not only one without lag."""
        if self.over:
            return True
        if self.progress.phase != "running" or self.progress.lag != 0 or self._query is None or self._then is not None:
            return False
        return self.plan.speed == "real-time" or self._query.status["message"] == "Waiting for data to arrive"

    # --- its life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._started = time.monotonic()
        try:
            if self.plan.speed == "batch" and not self._needs_stream:
                self._start_batch()
            elif self.plan.speed == "real-time" and self.is_cut_off:
                self._finish_batch()
            else:
                self._start_query()
            self.progress.phase = "running"
        except Exception as error:  # noqa: BLE001  -- whatever Spark raises is explained, and the other streams go on
            self._failed(error)

    @property
    def _needs_stream(self) -> bool:
        return needs_stream(self._around.done, self.name)

    def _finish_batch(self) -> None:
        """Real-time mode plans anew what was not committed. But rows of that batch are in the topic: it is finished first,
        as it was begun, or the next batch of its number would be taken for it."""
        self._around.notice(f"{self.name} finishes a batch that was cut off, and goes on in real time then")
        self._then, once = self.plan, replace(self.lane, once=True)
        self.plan = replace(self.plan, speed="near-real-time", output_mode=self._compiled.mode)
        self.lane = once
        self._start_query()

    def _go_on_then(self) -> None:
        assert self._then is not None  # noqa: S101
        self.plan, self._then = self._then, None
        self.lane = replace(self.lane, once=False)
        self.start()

    def _start_query(self, write: Callable[["DataFrame", int], None] | None = None) -> None:
        done, spark = self._around.done, self._around.done.spark
        counters = Counters(moving=True)
        options = {"maxOffsetsPerTrigger": str(self._bite)} if self.plan.speed == "near-real-time" else {}
        source = KafkaRecords(
            spark,
            self._around.connection,
            options=options,
            starts=self.lane.starts,
            topics=done.graph.app.topics,
        )
        rows = done.rows(self.name, source, counters=counters, broadcast=self.plan.speed == "real-time")
        # Its jobs take turns with those of the other streams.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(KEPT_REPORTS))
        # As in a batch run: parts that are split by measured size are others when they are computed again.
        spark.conf.set("spark.sql.adaptive.streaming.stateless.enabled", "false")
        records = encoded(rows, self._compiled, counters)
        if self.plan.speed == "real-time":
            # Real-time mode has no batches to write exactly once: Spark's own sink, and records that say which they are.
            writer = identified(records).writeStream.format("kafka").options(**self._spark_sink())
            real_time: Any = writer.trigger
            writer = real_time(realTime=f"{self.plan.every_ms} milliseconds")
        else:
            writer = records.writeStream.foreachBatch(write or self._sink.write)
            pace: Any = {"availableNow": True}
            if self.lane.once:
                pace = {"once": True}
            elif self.plan.speed == "near-real-time":
                pace = {"processingTime": f"{self.plan.every_ms} milliseconds"}
            writer = writer.trigger(**pace)
        writer = (
            writer.queryName(self.lane.query)
            .option("checkpointLocation", self.lane.checkpoint)
            .outputMode(self._compiled.mode if self.plan.speed == "batch" else self.plan.output_mode)
        )
        self._seen = (-1, "")
        self._query = writer.start()

    def _spark_sink(self) -> dict[str, str]:
        sink = {f"kafka.{name}": value for name, value in java_properties(self._around.connection).items()}
        return sink | {"topic": self._compiled.stream.target, "includeHeaders": "true"}

    def _start_batch(self) -> None:
        self._batch_error = None
        self._batch = threading.Thread(target=self._run_batch, name=f"batch {self.name}", daemon=True)
        self._batch.start()

    def _run_batch(self) -> None:
        try:
            done = self._around.done
            run = self._batch_run()
            counters = Counters(moving=False)
            records = KafkaRecords(done.spark, self._around.connection, ranges=run.ranges, topics=done.graph.app.topics)
            rows = done.rows(self.name, records, counters=counters, moving=False)
            done.spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
            started = time.monotonic()
            # A part must hold the same rows if it is computed again: Spark must not split by what it measures on the way.
            done.spark.conf.set("spark.sql.adaptive.enabled", "false")
            self._sink.write(encoded(rows, self._compiled, counters), 0, run.id, run.digest)
            self._books.whole(run.begin, run.end, counters.results())
            self._sink.finished(run.id)
            run.over()
            self.progress.batch = 0
            self.progress.batch_ms = round((time.monotonic() - started) * 1000)
            self.progress.last_record_at = datetime.now(UTC).isoformat()
            seconds = max(0.001, time.monotonic() - started)
            self.progress.rows_in_per_second = self._books.account.read / seconds
            self.progress.rows_out_per_second = self._books.account.out / seconds
        except BaseException as error:  # noqa: BLE001  -- carried to the thread that looks
            self._batch_error = error

    def _batch_run(self) -> BatchRun:
        """The run that a crash cut off, or a new one over all there is."""
        around, code = self._around, blueprint_of(self._around.done, self.name).fingerprint
        records = all_records(around.admin, around.done.sources(self.name))
        return go_on_or_begin(self._run_file, code, records, self._sink.last_claim(), around.notice)

    # --- watching -----------------------------------------------------------------------------------------------------

    def look(self, ends: Mapping[Place, int]) -> None:
        if self.over:
            return
        try:
            if self.progress.phase == "restarting":
                if time.monotonic() >= self._again_at:
                    self.progress.restarts += 1
                    self.start()
                return
            if self._batch is not None:
                self._look_at_batch()
            elif self._query is not None:
                self._look_at_query(ends)
            self.progress.account = self._books.account
            if self.progress.phase == "finished":
                self._books.mirror()
            if ends:
                self.progress.lag = self._books.lag(ends)
        except Exception as error:  # noqa: BLE001  -- as above
            self._failed(error)

    def _look_at_batch(self) -> None:
        assert self._batch is not None  # noqa: S101
        if self._batch.is_alive():
            return
        self._batch = None
        if self._batch_error is not None:
            self._failed(self._batch_error)
        else:
            self.progress.phase = "finished"

    def _look_at_query(self, ends: Mapping[Place, int]) -> None:
        assert self._query is not None  # noqa: S101
        active = self._query.isActive
        self._book()
        if not active:
            error = self._query.exception()
            if error is not None:
                self._failed(self._sink.error or error)
            elif self._then is not None:
                self._go_on_then()
            else:
                self.progress.phase = "finished"
            return
        self._books.mirror()
        if self._failures and time.monotonic() - self._started > WELL_SECONDS:
            self._failures = 0
        self._adapt(ends)

    def _tell_late(self, report: Mapping[str, Any]) -> None:
        """Once for as long as it lasts; batches without records say nothing of it."""
        said = all_too_late(report)
        if said and not self._all_late:
            self._around.notice(f"{self.name} takes nothing: {said}")
        if report.get("numInputRows"):
            self._all_late = bool(said)

    def _book(self) -> None:
        """Book all reports that came since the last look."""
        query: Any = self._query
        reports = query._jsq.recentProgress()  # noqa: SLF001
        new: list[dict[str, Any]] = []
        # Each look into the list is a call to the JVM: from the end, and only to what is known.
        for index in range(len(reports) - 1, -1, -1):
            each = reports[index]
            place = (int(each.batchId()), str(each.timestamp()))
            if place <= self._seen:
                break
            new.append(json.loads(each.json()))
        for report in reversed(new):
            self._books.batch(report, self.progress)
            self._tell_late(report)
            self._seen = (int(report["batchId"]), str(report["timestamp"]))

    def _adapt(self, ends: Mapping[Place, int]) -> None:
        """Size the bites of a backlog by what a full one took. A query takes a new size only when it starts."""
        if self.plan.speed != "near-real-time" or self.lane.once or not self._query or not ends:
            return
        last = self._query.lastProgress
        if last is None or last.batchId < 1:
            # The first batch pays for compiling the query.
            return
        report = json.loads(last.json)
        rows, millis = int(report.get("numInputRows") or 0), int(report.get("batchDuration") or 0)
        if rows < 0.9 * self._bite or not millis:
            return
        wanted = round(min(LARGEST_BITE, max(SMALLEST_BITE, rows / millis * 1000 * BITE_SECONDS)))
        if abs(math.log2(wanted / self._bite)) < 1 or self._books.lag(ends) < 2 * max(wanted, self._bite):
            return
        self._bite = wanted
        _write_bite(self._bite_file, wanted)
        self._query.stop()
        self._book()
        self._start_query()

    def fail(self, error: RiverrunError) -> None:
        """End it for what was found outside of it."""
        if not self.over:
            self._failed(error)

    # --- the end ------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop after what is being done is left in order; what was done is booked."""
        if self._query is not None:
            with contextlib.suppress(Exception):
                self._query.stop()
            with contextlib.suppress(Exception):
                self._book()
        self._sink.close()
        if not self.over:
            self.progress.phase = "stopped"

    def abandon(self) -> None:
        """Kafka is gone: `stop` is not to wait for it."""
        self._sink.abandon()

    # --- batches that somebody else plans (streams/replay.py, streams/handover.py) ------------------------------------

    def rest(self) -> None:
        """Stop as `stop` does, and stay so until `start` is called."""
        if self._batch is None and self.progress.phase != "failed":
            self.stop()
            self._query = None
            self._again_at = math.inf
            self.progress.phase = "restarting"

    def plan_first(self) -> None:
        """Let Spark plan the first batch of a new checkpoint, and compute nothing."""
        log = logging.getLogger("py4j.clientserver")
        self._start_query(_refuse)
        assert self._query is not None  # noqa: S101
        try:
            # It would tell of what is meant to happen, with the stack.
            log.disabled = True
            self._query.awaitTermination()
        except Exception as error:
            if not (self.checkpoint / "offsets" / "0").exists():
                self._failed(error)
                raise (self.error or explain(self._compiled.stream, error, self._files)) from error
        finally:
            log.disabled = False
            self._query = None

    def run_planned(self, wait: Callable[[], bool]) -> None:
        """Run the one batch that is planned, and its like again when something around it failed. `wait` lets a moment pass;
        when it gives False, the batch is left as it is. Raises what ended the stream for good."""
        lane = self.lane
        self.lane = replace(lane, once=True)
        # What it failed of before is another matter.
        self.error = None
        try:
            self.start()
            while not self.over:
                if not wait():
                    self.rest()
                    return
                self.look({})
            if self.error is not None:
                raise self.error
            self.rest()
        finally:
            self.lane = lane

    @property
    def checkpoint(self) -> Path | HadoopFolder:
        return checkpoint_folder(self._around.done.spark, self.lane.checkpoint)

    @property
    def is_cut_off(self) -> bool:
        """Whether rows of a batch that has not ended are in its topic. It must be at rest; nobody writes them after this."""
        if not is_cut_off(self.checkpoint):
            return False
        generation = query_id(self.checkpoint)
        # This fences its own writers too.
        self._sink.failed()
        return is_written(self._around.admin, self._sink.target, generation, planned(self.checkpoint))

    def close(self) -> None:
        """Another takes its place."""
        self.mirror()
        self._sink.close()

    def mirror(self) -> None:
        """Bring the consumer group up to where the stream is."""
        with contextlib.suppress(RiverrunError):
            self._books.mirror()

    @property
    def _files(self) -> Files:
        return Files(self._around.log, self.lane.checkpoint, str(Path(self._around.log).parent))

    def _failed(self, error: BaseException) -> None:
        if not is_alive():
            # Spark itself is gone, and whoever looks after the streams says so: what this one saw of it is not the cause.
            return
        if self._query is not None:
            # What failed may be our own looking: the query must not go on beside the one that is started next.
            with contextlib.suppress(Exception):
                self._query.stop()
            self._query = None
        self._sink.failed()
        found = explain(self._compiled.stream, error, self._files)
        self.progress.error = str(found)
        if not found.retryable:
            self.error = found
            self.progress.phase = "failed"
            self._around.notice(str(found))
            return
        wait = BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS) - 1)]
        self._failures += 1
        self._again_at = time.monotonic() + wait
        self.progress.phase = "restarting"
        self._around.notice(f"{found} It is started again in {wait:g} s.")


def needs_stream(done: Compilation, name: str) -> bool:
    """Operators that Spark has for streams only: at the speed batch too it runs as one, with a checkpoint."""
    return "DeduplicateWithinWatermark" in done.streams[name].query.nodes


def _refuse(frame: "DataFrame", batch: int) -> None:
    raise NotImplementedError(f"batch {batch} is planned only")


def _read_bite(file: Path) -> int:
    try:
        return min(LARGEST_BITE, max(SMALLEST_BITE, int(file.read_text())))
    except (OSError, ValueError):
        return FIRST_BITE


def _write_bite(file: Path, rows: int) -> None:
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(rows))
