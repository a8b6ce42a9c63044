"""Compute a stream again from an earlier place, beside the one that runs, and let it take over in one clean cut.

The replay is a query of its own, with a checkpoint and a topic of its own. It goes from batch to batch by entries that are
written into its offset log (streams/cut.py), and none goes beyond what the running stream has committed, neither in its
inputs nor in its event-time clock. So when that one stands still between two batches, the replay ends at exactly the same
records, and what comes after them is the next batch of the new generation, in the stream's own topic. No record is on both
sides of the cut, and none on neither. Nothing that a replay writes goes to the stream's topic, so nobody is told twice.
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
from riverrun.config.run_state import take_lock
from riverrun.errors import (
    AlreadyRunningError,
    ChangedError,
    CheckpointError,
    OffsetGoneError,
    RiverrunError,
    SparkUnavailableError,
    StreamFailedError,
    TopicDiffersError,
    TopicExistsError,
    UsageError,
)
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.offsets import offsets_at
from riverrun.kafka.admin.peek import first_timestamps
from riverrun.kafka.connection import Connection
from riverrun.model.state import Place
from riverrun.streams.blueprint import FILE, History, blueprint_of
from riverrun.streams.books import Books
from riverrun.streams.change import judge_history
from riverrun.streams.checkpoint import Offsets, Stand, offsets_of, query_id, read_stand
from riverrun.streams.compiler import compile_app
from riverrun.streams.cut import (
    bite,
    committed,
    is_cut_off,
    lowest,
    missing,
    plan_batch,
    planned_offsets,
    reached_watermark,
)
from riverrun.streams.ending import Ending
from riverrun.streams.generations import Generation, checkpoint_name, current, write_json
from riverrun.streams.graph import Graph
from riverrun.streams.handover import Answer, settled
from riverrun.streams.pipeline import group_of, replay_group, slots_for_streams, surroundings
from riverrun.streams.planner import plan_streams
from riverrun.streams.running import FIRST_BITE, LARGEST_BITE, SMALLEST_BITE, Lane, RunningStream
from riverrun.streams.session import check_alive
from riverrun.streams.sources import KafkaRecords
from riverrun.streams.user_code import code_of
from riverrun.streams.versions import changes_of
from riverrun.streams.wish import Wish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A bite lasts about this long. Each is a start of the query, which takes one to three seconds.
BITE_SECONDS = 20.0
# What may be left to read while the running stream stands still: so many records, or what takes so long.
CUT_RECORDS, CUT_SECONDS = 20_000, 10.0
LOOK_SECONDS = 0.1
# How long the running stream may take to end its batch.
ANSWER_SECONDS = 600.0
TELL_SECONDS = 1.0
# Records that are no good are dead letters already: books whose topics have no type count them, and sweep nothing.
NO_SWEEPER: Any = None


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
    """One replay, from its beginning or from where an earlier process left it. Needs the lock of `wish.replay`."""

    def __init__(
        self,
        wish: Wish,
        graph: Graph,
        spark: "SparkSession",
        connection: Connection,
        *,
        settings: Settings,
        project: Project,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._wish = wish
        self._project = project
        self._notice = notice
        self._admin = Admin(connection)
        self._files = wish.replay
        self._group = replay_group(wish.app, wish.stream)
        self._done = compile_app(graph, spark, KafkaRecords(spark, connection, topics=wish.app.topics)).require()
        self._compiled = self._done.streams[wish.stream]
        self._around = surroundings(self._done, settings, project, connection, notice)
        slots = slots_for_streams(spark, settings)
        self._plan = plan_streams(self._done, settings, slots=slots, speed="near-real-time").of(wish.stream)
        self._speed: str = plan_streams(self._done, settings, slots=slots).of(wish.stream).speed
        self._told = 0.0
        # As it is loaded here, whatever becomes of the files meanwhile.
        self._code = code_of(wish.app)
        self._rows = FIRST_BITE
        self._rate = 0.0
        self._state: dict[str, Any] = {}
        # The stream itself, while it is settled here.
        self._old: RunningStream | None = None

    # --- before -------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Begin, or see where an earlier process has left it."""
        # What was agreed on with a process that is gone by now holds no more.
        self._files.request.unlink(missing_ok=True)
        self._files.take_back()
        self._state = self._wish.state
        if not self._state:
            self._begin()
        elif self._state["code"] != self._code:
            raise UsageError(
                f"The pipeline file has changed since the replay of {self._wish.stream} began",
                hint=f"Remove that one with `riverrun replay {self._named} --cancel` and begin anew",
                stream=self._wish.stream,
            )
        elif self._wish.asked not in ("", self._state["asked"]):
            raise UsageError(
                f"A replay of {self._wish.stream} from {self._state['asked']} is not finished",
                hint=f"Go on with it: `riverrun replay {self._named}`; or remove it with `--cancel`",
                stream=self._wish.stream,
            )
        else:
            self._save(**{**self._state, "resumed": True})
            self._notice(f"going on with the replay of {self._wish.stream} from {self._state['asked']}")
        self._write_version()
        self._make_topic()
        self._stream = self._running()

    def _write_version(self) -> None:
        """What the new generation is made by; the stream's own when it is swapped in. Readers of the stream's topic get its
        rows then, so they must be able to."""
        history = History.read(self._files.stream / FILE)
        blueprint = blueprint_of(self._done, self._wish.stream)
        change = judge_history(history, blueprint)
        if change.kind == "refused":
            topic = self._compiled.stream.target
            raise ChangedError(
                [
                    f"{self._wish.stream} cannot take over: readers of {topic} have rows of another kind, and "
                    f'{change.because}. Give it a topic of its own, `topic="{topic}_2"`, and `riverrun run --fresh`.'
                ],
                streams=self._wish.stream,
            )
        history.begin(blueprint, fresh=True).write(self._files.path / FILE)

    @property
    def _named(self) -> str:
        file = self._wish.app.path
        return f"{file.name} {self._wish.stream}" if file else self._wish.stream

    def _check_others(self) -> None:
        """Who runs the pipeline starts again with this file after the swap, with all its streams: they must be able to."""
        if not stream_state.is_running(self._project):
            return
        found = changes_of(self._done, self._files.stream.parent)
        stuck = [
            name for name, each in found.items() if each.kind in ("fresh", "refused") and name != self._wish.stream
        ]
        if stuck:
            raise ChangedError(
                [
                    f"{self._wish.stream} cannot be replayed beside the pipeline that runs: that starts again with this "
                    f"file at the swap, and {', '.join(stuck)} cannot go on with it ({found[stuck[0]].because}). Stop the "
                    f"pipeline, replay {' and '.join([self._wish.stream, *stuck])}, and run it again; or change one stream "
                    "at a time."
                ],
                streams=", ".join(stuck),
            )

    def _begin(self) -> None:
        self._check_speed()
        self._check_others()
        live = self._live()
        begin = self._starts(live)
        number = current(self._files.stream) + 1
        topic = f"{self._compiled.stream.target}.{number}"
        if self._admin.topics([topic], config=False):
            raise TopicExistsError(
                f"The rows of the replay would go to {topic}, and that topic is there already",
                hint=f"Is it of use to anybody? Else: `riverrun topics delete {topic}`",
                topic=topic,
            )
        # A checkpoint of that number is of a replay that nobody knows any more.
        shutil.rmtree(Path(self._wish.checkpoints) / checkpoint_name(self._wish.stream, number), ignore_errors=True)
        self._save(
            number=number,
            topic=topic,
            asked=self._wish.asked or "beginning",
            begin=begin,
            since_ms=self._since(begin),
            code=self._code,
            planned=False,
            began_at=_now(),
        )

    def _check_speed(self) -> None:
        progress = stream_state.read(self._project)
        running = [each.speed for each in progress.streams if each.name == self._wish.stream] if progress else []
        speed = running[0] if running else self._speed
        hints = {
            "real-time": "Real time has no batches to cut between: run it with `--speed near-real-time` meanwhile",
            "batch": "Run it again: a batch computes everything anew each time",
        }
        if speed in hints:
            raise UsageError(
                f"The stream {self._wish.stream} runs {speed}, and cannot be replayed",
                expected="near-real-time",
                hint=hints[speed],
                stream=self._wish.stream,
            )

    def _live(self) -> Stand:
        """Where the running stream stands."""
        found = read_stand(self._wish.live_checkpoint, self._wish.stream)
        if found is None:
            raise CheckpointError(
                f"The checkpoint of {self._wish.stream} is gone",
                expected=str(self._wish.live_checkpoint),
                hint="Was the stream begun anew with `--fresh`? Then there is nothing to replay: `--cancel`",
                stream=self._wish.stream,
            )
        return found

    def _starts(self, live: Stand) -> Offsets:
        """Where to begin in each input: as asked, and nowhere behind the place where the running stream is."""
        position = self._wish.position
        places = [place for name in self._done.sources(self._wish.stream) for place in self._admin.topic(name).places]
        earliest = self._admin.offsets(places, "earliest")
        if position.kind == "offset":
            gone = {place: first for place, first in earliest.items() if first > position.number}
            if gone:
                first = ", ".join(f"{place} from {offset}" for place, offset in sorted(gone.items())[:4])
                raise OffsetGoneError(
                    f"Records from offset {position.number} on are not there any more (retention)",
                    found=first,
                    hint="Begin with the first there are: --from beginning",
                    stream=self._wish.stream,
                )
        elif any(earliest.values()) and offsets_at(self._admin, places, position) == earliest:
            self._notice("older records are not there any more (retention): it begins with the first there are")
        found: Offsets = {}
        for place, offset in offsets_at(self._admin, places, position).items():
            found.setdefault(place.topic, {})[place.partition] = offset
        found = lowest(found, live.end)
        if not missing(found, {topic: parts for topic, parts in live.end.items() if topic in found}):
            raise UsageError(
                f"There is nothing to replay: {self._wish.stream} has read no record from {position} on",
                hint="Begin earlier, with --from",
                stream=self._wish.stream,
            )
        if self._compiled.query.aggregated and not self._compiled.query.windowed and position.kind != "earliest":
            self._notice(f"{self._wish.stream} counts over all time, and its new generation will know nothing older")
        return found

    def _since(self, begin: Offsets) -> int:
        """A time, in milliseconds since 1970, that no record before these places is newer than; 0 when there is none."""
        left = {Place(topic, part): at for topic, parts in begin.items() for part, at in parts.items() if at > 0}
        if not left:
            return 0
        if self._wish.position.kind == "time":
            return self._wish.position.number
        return max(first_timestamps(self._admin.connection, left).values(), default=0) or round(time.time() * 1000)

    def _make_topic(self) -> None:
        """A topic like the stream's own."""
        topic, own = str(self._state["topic"]), self._admin.topic(self._compiled.stream.target)
        there = self._admin.topics([topic], config=False).get(topic)
        if there is None:
            config = {name: each.value for name, each in own.config.items() if each.origin == "topic"}
            self._admin.create_topic(topic, partitions=len(own.partitions), replicas=own.replicas, config=config)
        elif len(there.partitions) != len(own.partitions):
            raise TopicDiffersError(
                f"{topic} has {len(there.partitions)} partitions, and {own.name} has {len(own.partitions)}",
                hint=f"Begin anew: `riverrun replay {self._named} --cancel`",
                topic=topic,
            )

    def _running(self) -> RunningStream:
        topics = dict.fromkeys(self._done.sources(self._wish.stream), False)
        file = self._files.path / "account.json"
        books = Books(self._compiled, topics, self._group, file, admin=self._admin, sweeper=NO_SWEEPER)
        checkpoint = f"{self._wish.checkpoints}/{checkpoint_name(self._wish.stream, int(self._state['number']))}"
        lane = Lane(
            f"{self._wish.stream}.replay",
            str(self._state["topic"]),
            checkpoint,
            starts=offsets_of(self._state["begin"]),
            once=True,
            replaying=True,
        )
        return RunningStream(self._around, self._plan, books, self._files.path, lane)

    # --- at work ------------------------------------------------------------------------------------------------------

    def run(
        self, stop: threading.Event, changed: Callable[[ReplayProgress], None] = lambda _: None
    ) -> Generation | None:
        """Until it has taken over, or `stop` is set: then None, and it can be gone on with."""
        self._stop, self._changed = stop, changed
        ending = Ending(self._admin.connection, stop, abandon=self._abandon, notice=self._notice)
        ending.start()
        try:
            while not stop.is_set():
                if self._catch_up() and (made := self._cut()) is not None:
                    return made
            return None
        except Exception:
            if stop.is_set() and not ending.begin():
                # Without Kafka, what is asked for meanwhile fails, Spark too.
                return None
            raise
        finally:
            self._files.request.unlink(missing_ok=True)
            if ending.stop([self._stream.stop]):
                self._stream.mirror()

    def _abandon(self) -> None:
        """Kafka is gone: nothing waits for it any more."""
        self._admin.give_up()
        for stream in (self._stream, self._old):
            if stream is not None:
                stream.abandon()

    def _catch_up(self) -> bool:
        """Read on up to where the running stream is at most; whether little is left by then."""
        live = self._live()
        self._step(self._cap(live), self._clock(live.watermark_ms))
        left = missing(self._mine, self._cap(self._live()))
        return not is_cut_off(self._stream.checkpoint) and left <= max(CUT_RECORDS, self._rate * CUT_SECONDS)

    @property
    def _mine(self) -> Offsets:
        found = read_stand(self._stream.checkpoint, self._wish.stream)
        return found.end if found is not None else offsets_of(self._state["begin"])

    def _cap(self, live: Stand) -> Offsets:
        """How far it may go: where the running stream is, and in topics that one does not read, to their ends."""
        found: Offsets = {}
        for topic in self._done.sources(self._wish.stream):
            if topic in live.end:
                found[topic] = live.end[topic]
            else:
                ends = self._admin.offsets(self._admin.topic(topic).places, "latest", committed_only=True)
                found[topic] = {place.partition: offset for place, offset in ends.items()}
        return found

    def _clock(self, watermark_ms: int) -> int | None:
        """How far its event-time clock may go, so that it sends no final row before the running stream does. One that keeps
        no state has no clock."""
        return watermark_ms if (self._wish.live_checkpoint / "state").exists() else None

    def _step(self, cap: Offsets, clock: int | None, *, last: bool = False) -> bool:
        """One batch: the one that was cut off, else the next. With `last` its clock is exactly the one given. False when
        there is nothing to do."""
        folder = Path(str(self._stream.checkpoint))
        before = self._mine
        self._tell("replaying" if not last else "taking over", before, cap)
        if not self._state["planned"]:
            self._plan_first(cap)
        elif not is_cut_off(folder):
            stand = read_stand(folder, self._wish.stream)
            assert stand is not None  # noqa: S101
            ends = bite(before, cap, self._rows)
            mine = reached_watermark(folder)
            if clock is not None:
                mine = clock if last and not missing(ends, cap) else min(mine, clock)
            mine = max(stand.watermark_ms, mine)
            if not missing(before, ends) and mine == stand.watermark_ms:
                return False
            plan_batch(folder, committed(folder) + 1, ends, mine)
        began = time.monotonic()
        self._stream.run_planned(lambda: self._wait(before, cap))
        rows, seconds = missing(before, self._mine), max(0.001, time.monotonic() - began)
        if rows:
            self._rate = rows / seconds
            self._rows = round(min(LARGEST_BITE, max(SMALLEST_BITE, self._rate * BITE_SECONDS)))
        self._tell("replaying" if not last else "taking over", self._mine, cap)
        return True

    def _plan_first(self, cap: Offsets) -> None:
        """Spark plans the first batch, with all it writes down for later; it is cut to size before it runs."""
        begin = offsets_of(self._state["begin"])
        folder = Path(str(self._stream.checkpoint))
        if not (folder / "offsets" / "0").exists():
            self._stream.plan_first()
        plan_batch(folder, 0, bite(begin, lowest(planned_offsets(folder, 0), cap), self._rows), 0)
        self._save(**{**self._state, "planned": True})

    def _wait(self, before: Offsets, cap: Offsets) -> bool:
        self._tell("replaying", before, cap)
        return self._wait_alive()

    def _wait_alive(self) -> bool:
        """A moment; False when it is to stop. A stream whose Spark is gone is never over, and does not say so itself."""
        check_alive(self._project.home / "spark")
        return not self._stop.wait(LOOK_SECONDS)

    def _tell(self, phase: str, mine: Offsets, cap: Offsets) -> None:
        passed, read = missing(offsets_of(self._state["begin"]), mine), self._stream.progress.account.read
        # A batch that a crash kept from being counted leaves fewer than were read, never more than there are.
        share = min(1.0, read / passed) if passed and read else 1.0
        found = ReplayProgress(
            self._wish.stream, phase, min(read, passed), round(missing(mine, cap) * share), self._rate * share
        )
        if time.monotonic() > self._told + TELL_SECONDS:
            self._told = time.monotonic()
            with contextlib.suppress(OSError):
                write_json(self._files.progress, asdict(found))
        self._changed(found)

    # --- the cut ------------------------------------------------------------------------------------------------------

    def _cut(self) -> Generation | None:
        """Take over from the running stream; None when that did not come about, and is to be tried again."""
        with self._agreed() as answer:
            if answer is None or answer.end is None:
                return None
            cap = {topic: parts for topic, parts in answer.end.items() if topic in self._mine}
            while self._step(cap, self._clock(answer.watermark_ms), last=True):
                if self._stop.is_set():
                    return None
            made = self._made(answer)
            self._save(**{**self._state, "made": asdict(made)})
            if not self._accept():
                return None
        return self._finish(made)

    def _accept(self) -> bool:
        return self._files.accept()

    def _finish(self, made: Generation) -> Generation:
        self._files.finish(self._admin, self._group)
        return made

    def _made(self, answer: Answer) -> Generation:
        target = self._compiled.stream.target
        first = self._admin.offsets(self._admin.topic(target).places, "latest")
        return Generation(
            number=int(self._state["number"]),
            query=query_id(self._stream.checkpoint),
            before=answer.query,
            topic=str(self._state["topic"]),
            asked=str(self._state["asked"]),
            begin=offsets_of(self._state["begin"]),
            cut=self._mine,
            first={place.partition: offset for place, offset in first.items()},
            watermark_ms=answer.watermark_ms,
            # A crash may have kept some from being counted.
            rows=-1 if self._state.get("resumed") else self._stream.progress.account.out,
            at=_now(),
            since_ms=int(self._state.get("since_ms", 0)),
        )

    @contextmanager
    def _agreed(self) -> Iterator[Answer | None]:
        """Where the running stream stands still, as long as this block lasts or until the answer is accepted."""
        request = secrets.token_hex(8)
        try:
            if stream_state.is_running(self._project):
                yield self._ask(request)
            else:
                with self._instead():
                    yield self._answer_myself(request)
        finally:
            if not self._files.swap.exists():
                self._files.request.unlink(missing_ok=True)
                self._files.take_back()

    def _ask(self, request: str) -> Answer | None:
        """Ask who runs the pipeline; None when that process ends meanwhile."""
        self._check_runner()
        self._files.ask(request, self._code)
        deadline = time.monotonic() + ANSWER_SECONDS
        while not self._stop.wait(LOOK_SECONDS):
            answer = self._files.heard(request)
            if answer is not None and answer.error:
                raise StreamFailedError(
                    f"The stream {self._wish.stream} cannot hand over: {answer.error}", stream=self._wish.stream
                )
            if answer is not None:
                return answer
            if not stream_state.is_running(self._project) or not self._files.request.exists():
                return None
            if time.monotonic() > deadline:
                raise StreamFailedError(
                    f"The pipeline did not stop {self._wish.stream} for {ANSWER_SECONDS:g} s",
                    hint="Look at it with `riverrun status`; the replay can be gone on with",
                    stream=self._wish.stream,
                )
        return None

    def _check_runner(self) -> None:
        progress = stream_state.read(self._project)
        if progress is None:
            return
        mine = [each for each in progress.streams if each.name == self._wish.stream]
        if progress.app != self._wish.app.name or not mine:
            raise AlreadyRunningError(
                f"A pipeline of this project runs without {self._wish.stream}, so nobody can hand it over",
                hint=f"Stop that one (pid {progress.pid}), or run the stream with it; the replay can be gone on with",
                stream=self._wish.stream,
            )

    @contextmanager
    def _instead(self) -> Iterator[None]:
        """Nobody runs the pipeline, and nobody may begin to."""
        path = stream_state.lock_path(self._project)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            take_lock(descriptor, 1.0, lambda: AlreadyRunningError("A pipeline was started meanwhile"))
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\nof the replay of {self._wish.stream}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def _answer_myself(self, request: str) -> Answer:
        """The stream does not run: it stands where its checkpoint says, once no batch is half sent."""
        books = Books(
            self._compiled,
            dict.fromkeys(self._done.sources(self._wish.stream), False),
            group_of(self._wish.app, self._wish.stream),
            self._files.stream / "account.json",
            admin=self._admin,
            sweeper=NO_SWEEPER,
        )
        lane = Lane(f"{self._wish.stream}.old", self._compiled.stream.target, str(self._wish.live_checkpoint))
        self._old = old = RunningStream(self._around, self._plan, books, self._files.stream, lane)
        try:
            answer = settled(old, request, self._wait_alive)
        except SparkUnavailableError:
            # The batch is as it was.
            raise
        except RiverrunError as error:
            raise CheckpointError(
                f"The last batch of {self._wish.stream} was cut off half sent, and could not be ended",
                found=str(error),
                hint="End it with the pipeline file it was begun with: `riverrun run --until-caught-up`",
                stream=self._wish.stream,
            ) from error
        finally:
            old.close()
        self._files.say(answer)
        return answer

    def _save(self, **state: Any) -> None:
        self._state = state
        write_json(self._files.state, state)
        # As the next process will read it.
        self._state = self._wish.state


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
