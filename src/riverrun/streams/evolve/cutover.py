"""How a running stream and a replay of it agree on the cutover: through a few small files, each written atomically.

    request.json   from the replay: I have caught up; stop between two batches. Removed to cancel the request.
    answer.json    from the pipeline: the stream is stopped at these offsets, as long as this file exists.
    swap.json      the renamed answer: the replay has accepted it, and the swap can no longer be cancelled.

The replay accepts an answer by renaming it, and the pipeline withdraws it by removing it: only one of the two finds the
file. So it does not matter which process dies when, or is slow. Each side sees by a lock whether the other one is alive.
"""

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from riverrun.config.run_state import acquire_lock, is_locked
from riverrun.config.stream_state import replay_command
from riverrun.errors import AlreadyRunningError, CheckpointError, RiverrunError, UsageError
from riverrun.kafka.admin.admin import Admin
from riverrun.model.table import TableSpec, table_from_dict
from riverrun.store.catalog import publish_generations
from riverrun.streams.checkpoint import CheckpointStatus, Offsets, parse_offsets, read_checkpoint_status
from riverrun.streams.compile.fingerprint import HISTORY_FILE
from riverrun.streams.generations import Generation, add_generation, current_generation, read_generations, write_json
from riverrun.streams.run.running_stream import RunningStream

# How long a stream stays stopped for a replay that is alive but does not take over.
HOLD_SECONDS = 300.0
# How long a swap that somebody else is finishing may take.
SWAP_SECONDS = 60.0
POLL_SECONDS = 0.1
_LOCK_SECONDS = 1.0


@dataclass(frozen=True)
class CutoverPoint:
    """The offsets at which a stream is stopped, all its batches committed. Or why it cannot be stopped."""

    id: str
    query: str = ""
    batch: int = -1
    end: Offsets | None = None
    watermark_ms: int = 0
    error: str = ""

    @classmethod
    def from_status(cls, request_id: str, status: CheckpointStatus) -> "CutoverPoint":
        return cls(request_id, status.query_id, status.batch, status.end, status.watermark_ms)


class ReplayFolder:
    """What a replay of a stream keeps, below the stream's own folder."""

    def __init__(self, folder: Path) -> None:
        self.stream_folder = folder
        self.path = folder / "replay"
        self.state = self.path / "replay.json"
        self.request = self.path / "request.json"
        self.answer = self.path / "answer.json"
        self.swap = self.path / "swap.json"
        self.progress = self.path / "progress.json"
        self._lock_file = self.path / "lock"

    @property
    def is_alive(self) -> bool:
        """Whether a process is at work on the replay."""
        return is_locked(self._lock_file)

    @contextmanager
    def lock(self, seconds: float = _LOCK_SECONDS) -> Iterator[None]:
        """Hold the lock of the process that works on the replay."""
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            acquire_lock(
                descriptor,
                seconds,
                lambda: AlreadyRunningError(
                    f"A replay of {self.stream_folder.name} is under way in another process",
                    hint="Wait for it, or stop it with Ctrl-C; `--cancel` then removes what it made",
                    stream=self.stream_folder.name,
                ),
            )
            yield
        finally:
            os.close(descriptor)

    # --- the agreement ------------------------------------------------------------------------------------------------

    def write_request(self, request_id: str, code: str) -> None:
        write_json(self.request, {"id": request_id, "code": code})

    def read_request(self) -> tuple[str, str]:
        """The id of the request that is there, and the code of the replay; empty when there is none."""
        content = _read_json(self.request)
        return str(content.get("id", "")), str(content.get("code", ""))

    def write_answer(self, answer: CutoverPoint) -> None:
        write_json(self.answer, asdict(answer))

    def read_answer(self, request_id: str) -> CutoverPoint | None:
        """The answer to this request, when it is there."""
        content = _read_json(self.answer)
        if content.get("id") != request_id:
            return None
        end = content.get("end")
        return CutoverPoint(**{**content, "end": parse_offsets(end) if end is not None else None})

    def accept(self) -> bool:
        """Take the answer: the swap will happen. False when it was taken back."""
        try:
            self.answer.rename(self.swap)
        except FileNotFoundError:
            return False
        return True

    def withdraw_answer(self) -> bool:
        """Take the answer away: the swap will not happen. False when it was accepted, or is not there."""
        try:
            self.answer.unlink()
        except FileNotFoundError:
            return False
        return True

    # --- the swap -----------------------------------------------------------------------------------------------------

    def finish_swap(self, admin: Admin, group: str) -> Generation | None:
        """Do what is left of a swap that was accepted; None when there is nothing to do. Needs `lock`."""
        if not self.swap.exists():
            return None
        content = _read_json(self.state)
        generation: Generation | None = None
        if content:
            generation = Generation.from_dict(content["made"])
            self._publish_generation(admin, generation, [table_from_dict(table) for table in content.get("tables", ())])
            add_generation(self.stream_folder, generation)
            self._move_record_counts(generation.number - 1)
            delete_replay_group(admin, group)
        # In this order: without the state file the swap is done, and without `swap` the other side knows.
        for each in (self.request, self.progress, self.state, self.swap):
            each.unlink(missing_ok=True)
        return generation

    def _publish_generation(self, admin: Admin, generation: Generation, tables: list[TableSpec]) -> None:
        """The tables of the stream change with it, their columns too. Before its first row behind the cut can be written: so
        no store takes such a row for one of the generation before."""
        known = [
            read_generation
            for read_generation in read_generations(self.stream_folder)
            if read_generation.number != generation.number
        ]
        table_generations = [each.as_table_generation() for each in [*known, generation]]
        app = self.stream_folder.parent.name
        publish_generations(admin.connection, app, generation.target, table_generations, tables)

    def _move_record_counts(self, old: int) -> None:
        """Make the replay's record counts and code versions the stream's own."""
        replay_counts, stream_counts = self.path / "record_counts.json", self.stream_folder / "record_counts.json"
        if replay_counts.exists():
            if stream_counts.exists():
                stream_counts.replace(self.stream_folder / f"record_counts.{old}.json")
            replay_counts.replace(stream_counts)
        if (history_file := self.path / HISTORY_FILE).exists():
            history_file.replace(self.stream_folder / HISTORY_FILE)
        for each in self.path.glob("batch_size.json"):
            each.unlink()

    def remove(self) -> None:
        """Remove everything but the lock."""
        for each in self.path.iterdir():
            if each != self._lock_file:
                shutil.rmtree(each) if each.is_dir() else each.unlink(missing_ok=True)


def delete_replay_group(admin: Admin, group: str) -> None:
    """Delete what a replay has in Kafka besides its topic."""
    marks = f"{group}.marks"
    if admin.topics([marks], config=False):
        admin.delete_topics([marks])
    if group in admin.group_names():
        admin.delete_group(group)


def prepare_start(replay: ReplayFolder, admin: Admin, group: str, *, fresh: bool) -> None:
    """Before a stream is run: finish an interrupted swap, and withdraw the answer of an earlier run."""
    if fresh and replay.state.exists():
        command = replay_command(str(_read_json(replay.state).get("file", "")), replay.stream_folder.name)
        raise UsageError(
            f"A replay of {replay.stream_folder.name} is not finished, and --fresh would take away what it stands on",
            hint=f"Finish it with `{command}`, or remove it with `{command} --cancel`",
            stream=replay.stream_folder.name,
        )
    replay.request.unlink(missing_ok=True)
    replay.withdraw_answer()
    if replay.swap.exists():
        with replay.lock(SWAP_SECONDS):
            replay.finish_swap(admin, group)


def stop_after_batch(stream: RunningStream, request_id: str, wait: Callable[[], bool]) -> CutoverPoint:
    """Stop a stream after every batch that has sent rows is committed, and return its offsets."""
    stream.pause()
    if stream.has_written_uncommitted:
        stream.run_planned_batch(wait)
    status = read_checkpoint_status(stream.checkpoint, stream.name)
    if status is None:
        raise CheckpointError(f"The stream {stream.name} has not finished a batch yet", stream=stream.name)
    return CutoverPoint.from_status(request_id, status)


class CutoverHandler:
    """One stream's side of the agreement, in the process that runs it. `poll` never blocks."""

    def __init__(self, replay: ReplayFolder, admin: Admin, group: str, notice: Callable[[str], None]) -> None:
        self._replay = replay
        self._admin = admin
        self._group = group
        self._notice = notice
        self._generation = current_generation(replay.stream_folder)
        self._request = ""
        # The code of the replay that asked.
        self.code = ""
        self._thread: threading.Thread | None = None
        self._answer: CutoverPoint | None = None
        self._deadline = 0.0
        self._closing = threading.Event()

    @property
    def busy(self) -> bool:
        return bool(self._request)

    def poll(self, stream: RunningStream) -> Literal["run", "wait", "swapped"]:
        """Whether the stream may be polled as usual, is stopped, or has another generation now."""
        if not self._request:
            return self._take_request(stream) if self._replay.request.exists() else "run"
        if self._thread is not None:
            if self._thread.is_alive():
                return "wait"
            self._thread = None
            return self._send_answer(stream)
        return self._await_swap(stream)

    def _take_request(self, stream: RunningStream) -> Literal["run", "wait"]:
        request_id, code = self._replay.read_request()
        if not request_id:
            return "run"
        if not self._replay.is_alive:
            self._replay.request.unlink(missing_ok=True)
            return "run"
        self._request, self.code = request_id, code
        self._thread = threading.Thread(
            target=self._stop_stream, args=(stream,), name=f"cut {stream.name}", daemon=True
        )
        self._thread.start()
        return "wait"

    def _stop_stream(self, stream: RunningStream) -> None:
        try:
            if stream.plan.speed != "near-real-time":
                raise UsageError(
                    f"The stream {stream.name} runs {stream.plan.speed}, and has no end of a batch to cut at",
                    hint="Run it with `--speed near-real-time` while it is replayed",
                )
            self._answer = stop_after_batch(stream, self._request, lambda: not self._closing.wait(POLL_SECONDS))
        except Exception as error:  # noqa: BLE001  -- sent to the replay; the stream goes on
            self._answer = CutoverPoint(self._request, error=str(error))

    def _send_answer(self, stream: RunningStream) -> Literal["wait", "run"]:
        assert self._answer is not None  # noqa: S101
        if self._closing.is_set():
            return "wait"
        if self._answer.error or self._replay.read_request()[0] != self._request:
            if self._answer.error:
                self._replay.request.unlink(missing_ok=True)
                self._replay.write_answer(self._answer)
            return self._resume(stream)
        self._deadline = time.monotonic() + HOLD_SECONDS
        self._replay.write_answer(self._answer)
        self._notice(f"{stream.name} stands still at batch {self._answer.batch} for its replay to take over")
        return "wait"

    def _await_swap(self, stream: RunningStream) -> Literal["wait", "run", "swapped"]:
        replay = self._replay
        # In the order in which these files come and go, so that none is missed in between.
        if replay.answer.exists():
            if not replay.is_alive or time.monotonic() > self._deadline or replay.read_request()[0] != self._request:
                # The request first: it must not be answered a second time, with other offsets.
                replay.request.unlink(missing_ok=True)
                if replay.withdraw_answer():
                    self._notice(f"{stream.name} goes on as it was: its replay did not take over")
                    return self._resume(stream)
            return "wait"
        if replay.swap.exists():
            if not replay.is_alive:
                # The replay that accepted it has died; any process can finish the swap.
                with contextlib.suppress(RiverrunError), replay.lock():
                    replay.finish_swap(self._admin, self._group)
            return "wait"
        self._request = ""
        if current_generation(replay.stream_folder) == self._generation:
            return self._resume(stream)
        self._generation = current_generation(replay.stream_folder)
        return "swapped"

    def _resume(self, stream: RunningStream) -> Literal["run"]:
        self._request = ""
        if not stream.has_ended:
            stream.start()
        return "run"

    def close(self) -> None:
        """Wait when the process ends. An answer stays valid, because nothing runs the stream then."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read", found=f"{type(error).__name__}: {error}") from error
    return content if isinstance(content, dict) else {}


def read_replay_state(replay: ReplayFolder) -> dict[str, Any]:
    """The state of an unfinished replay; empty when there is none."""
    return _read_json(replay.state)
