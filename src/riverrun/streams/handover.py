"""How a running stream and a replay of it agree on the cut: a few small files, each put in its place in one step.

    request.json   the replay: I have caught up; stop between two batches. Taken away when it does not want to any more.
    answer.json    who runs the stream: it stands at these offsets, and stays there as long as this file is here.
    swap.json      the answer under another name: it was accepted. From here on there is only forward.

The replay accepts an answer by renaming it, and who runs the stream takes it back by removing it: one of the two finds the
file, the other does not. So it does not matter who dies when, or is slow. Each side sees whether the other lives by a lock.
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

from riverrun.config.run_state import is_locked, take_lock
from riverrun.errors import AlreadyRunningError, CheckpointError, RiverrunError, UsageError
from riverrun.kafka.admin.admin import Admin
from riverrun.store.catalog import publish_generations
from riverrun.streams.blueprint import FILE
from riverrun.streams.checkpoint import Offsets, Stand, offsets_of, read_stand
from riverrun.streams.generations import Generation, add_generation, current, read_generations, write_json
from riverrun.streams.running import RunningStream

# How long a stream may stand still for a replay that lives and does not get on.
HOLD_SECONDS = 300.0
# How long a swap that somebody else is finishing may take.
SWAP_SECONDS = 60.0
LOOK_SECONDS = 0.1
_INSTANT = 1.0


@dataclass(frozen=True)
class Answer:
    """Where a stream stands, all its batches ended: the cut. Or why it cannot be stopped there."""

    id: str
    query: str = ""
    batch: int = -1
    end: Offsets | None = None
    watermark_ms: int = 0
    error: str = ""

    @classmethod
    def at(cls, request: str, stand: Stand) -> "Answer":
        return cls(request, stand.generation, stand.batch, stand.end, stand.watermark_ms)


class ReplayFolder:
    """What a replay of a stream keeps, below the stream's own folder."""

    def __init__(self, folder: Path) -> None:
        self.stream = folder
        self.path = folder / "replay"
        self.state = self.path / "replay.json"
        self.request = self.path / "request.json"
        self.answer = self.path / "answer.json"
        self.swap = self.path / "swap.json"
        self.progress = self.path / "progress.json"
        self._lock = self.path / "lock"

    @property
    def is_alive(self) -> bool:
        """Whether a process is at work on the replay."""
        return is_locked(self._lock)

    @contextmanager
    def hold(self, seconds: float = _INSTANT) -> Iterator[None]:
        """Be the one who works on it."""
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            take_lock(
                descriptor,
                seconds,
                lambda: AlreadyRunningError(
                    f"A replay of {self.stream.name} is under way in another process",
                    hint="Wait for it, or stop it with Ctrl-C; `--cancel` then removes what it made",
                    stream=self.stream.name,
                ),
            )
            yield
        finally:
            os.close(descriptor)

    # --- the agreement ------------------------------------------------------------------------------------------------

    def ask(self, request: str, code: str) -> None:
        write_json(self.request, {"id": request, "code": code})

    def asked(self) -> tuple[str, str]:
        """The id of the request that is there, and the code of the replay; empty when there is none."""
        content = _read(self.request)
        return str(content.get("id", "")), str(content.get("code", ""))

    def say(self, answer: Answer) -> None:
        write_json(self.answer, asdict(answer))

    def heard(self, request: str) -> Answer | None:
        """The answer to this request, when it is there."""
        content = _read(self.answer)
        if content.get("id") != request:
            return None
        end = content.get("end")
        return Answer(**{**content, "end": offsets_of(end) if end is not None else None})

    def accept(self) -> bool:
        """Take the answer: the swap will happen. False when it was taken back."""
        try:
            self.answer.rename(self.swap)
        except FileNotFoundError:
            return False
        return True

    def take_back(self) -> bool:
        """Take the answer away: the swap will not happen. False when it was accepted, or is not there."""
        try:
            self.answer.unlink()
        except FileNotFoundError:
            return False
        return True

    # --- the swap -----------------------------------------------------------------------------------------------------

    def finish(self, admin: Admin, group: str) -> Generation | None:
        """Do what is left of a swap that was accepted; None when there is nothing to do. Needs `hold`."""
        if not self.swap.exists():
            return None
        content = _read(self.state)
        made: Generation | None = None
        if content:
            made = Generation.of(content["made"])
            self._tell_stores(admin, made)
            add_generation(self.stream, made)
            self._move_account(made.number - 1)
            forget_replay(admin, group)
        # In this order: without its state a swap is done, and without `swap` everybody knows.
        for each in (self.request, self.progress, self.state, self.swap):
            each.unlink(missing_ok=True)
        return made

    def _tell_stores(self, admin: Admin, made: Generation) -> None:
        """The tables of the stream change with it. Before its first row behind the cut can be written: so no store takes
        such a row for one of the generation before."""
        known = [each for each in read_generations(self.stream) if each.number != made.number]
        told = [each.as_told() for each in [*known, made]]
        publish_generations(admin.connection, self.stream.parent.name, made.target, told)

    def _move_account(self, old: int) -> None:
        """Its account, and what code it was made by, are the stream's now."""
        mine, theirs = self.path / "account.json", self.stream / "account.json"
        if mine.exists():
            if theirs.exists():
                theirs.replace(self.stream / f"account.{old}.json")
            mine.replace(theirs)
        if (made_by := self.path / FILE).exists():
            made_by.replace(self.stream / FILE)
        for each in self.path.glob("bite.json"):
            each.unlink()

    def remove(self) -> None:
        """Everything but the lock."""
        for each in self.path.iterdir():
            if each != self._lock:
                shutil.rmtree(each) if each.is_dir() else each.unlink(missing_ok=True)


def forget_replay(admin: Admin, group: str) -> None:
    """What a replay has in Kafka besides its topic."""
    marks = f"{group}.marks"
    if admin.topics([marks], config=False):
        admin.delete_topics([marks])
    if group in admin.group_names():
        admin.delete_group(group)


def before_start(replay: ReplayFolder, admin: Admin, group: str, *, fresh: bool) -> None:
    """Before a stream is run: finish a swap that was cut off, and take back what an earlier run has promised."""
    if fresh and replay.state.exists():
        raise UsageError(
            f"A replay of {replay.stream.name} is not finished, and --fresh would take away what it stands on",
            hint="Finish it with `riverrun replay`, or remove it with `riverrun replay --cancel`",
            stream=replay.stream.name,
        )
    replay.request.unlink(missing_ok=True)
    replay.take_back()
    if replay.swap.exists():
        with replay.hold(SWAP_SECONDS):
            replay.finish(admin, group)


def settled(stream: RunningStream, request: str, wait: Callable[[], bool]) -> Answer:
    """Where a stream stands when every batch that has sent rows has ended. It is at rest afterwards."""
    stream.rest()
    if stream.is_cut_off:
        stream.run_planned(wait)
    stand = read_stand(stream.checkpoint, stream.name)
    if stand is None:
        raise CheckpointError(f"The stream {stream.name} has not finished a batch yet", stream=stream.name)
    return Answer.at(request, stand)


class Handover:
    """One stream's side of the agreement, in the process that runs it. `look` never blocks."""

    def __init__(self, replay: ReplayFolder, admin: Admin, group: str, notice: Callable[[str], None]) -> None:
        self._replay = replay
        self._admin = admin
        self._group = group
        self._notice = notice
        self._generation = current(replay.stream)
        self._request = ""
        # The code of the replay that asked.
        self.code = ""
        self._thread: threading.Thread | None = None
        self._found: Answer | None = None
        self._until = 0.0
        self._leaving = threading.Event()

    @property
    def busy(self) -> bool:
        return bool(self._request)

    def look(self, stream: RunningStream) -> Literal["run", "wait", "swapped"]:
        """Whether the stream may be looked after as ever, stands still, or has another generation now."""
        if not self._request:
            return self._begin(stream) if self._replay.request.exists() else "run"
        if self._thread is not None:
            if self._thread.is_alive():
                return "wait"
            self._thread = None
            return self._say(stream)
        return self._wait(stream)

    def _begin(self, stream: RunningStream) -> Literal["run", "wait"]:
        request, code = self._replay.asked()
        if not request:
            return "run"
        if not self._replay.is_alive:
            self._replay.request.unlink(missing_ok=True)
            return "run"
        self._request, self.code = request, code
        self._thread = threading.Thread(target=self._settle, args=(stream,), name=f"cut {stream.name}", daemon=True)
        self._thread.start()
        return "wait"

    def _settle(self, stream: RunningStream) -> None:
        try:
            if stream.plan.speed != "near-real-time":
                raise UsageError(
                    f"The stream {stream.name} runs {stream.plan.speed}, and has no end of a batch to cut at",
                    hint="Run it with `--speed near-real-time` while it is replayed",
                )
            self._found = settled(stream, self._request, lambda: not self._leaving.wait(LOOK_SECONDS))
        except Exception as error:  # noqa: BLE001  -- told to the replay; the stream goes on
            self._found = Answer(self._request, error=str(error))

    def _say(self, stream: RunningStream) -> Literal["wait", "run"]:
        assert self._found is not None  # noqa: S101
        if self._leaving.is_set():
            return "wait"
        if self._found.error or self._replay.asked()[0] != self._request:
            if self._found.error:
                self._replay.request.unlink(missing_ok=True)
                self._replay.say(self._found)
            return self._go_on(stream)
        self._until = time.monotonic() + HOLD_SECONDS
        self._replay.say(self._found)
        self._notice(f"{stream.name} stands still at batch {self._found.batch} for its replay to take over")
        return "wait"

    def _wait(self, stream: RunningStream) -> Literal["wait", "run", "swapped"]:
        replay = self._replay
        # In the order in which these files come and go, so that none is missed in between.
        if replay.answer.exists():
            if not replay.is_alive or time.monotonic() > self._until or replay.asked()[0] != self._request:
                # The request first: nobody may answer it a second time, with another place.
                replay.request.unlink(missing_ok=True)
                if replay.take_back():
                    self._notice(f"{stream.name} goes on as it was: its replay did not take over")
                    return self._go_on(stream)
            return "wait"
        if replay.swap.exists():
            if not replay.is_alive:
                # Who accepted it has died; what is left can be done by anybody.
                with contextlib.suppress(RiverrunError), replay.hold():
                    replay.finish(self._admin, self._group)
            return "wait"
        self._request = ""
        if current(replay.stream) == self._generation:
            return self._go_on(stream)
        self._generation = current(replay.stream)
        return "swapped"

    def _go_on(self, stream: RunningStream) -> Literal["run"]:
        self._request = ""
        if not stream.over:
            stream.start()
        return "run"

    def close(self) -> None:
        """When the process leaves: what was answered stays true, since nobody runs the stream then."""
        self._leaving.set()
        if self._thread is not None:
            self._thread.join()


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read", found=f"{type(error).__name__}: {error}") from error
    return content if isinstance(content, dict) else {}


def read_state(replay: ReplayFolder) -> dict[str, Any]:
    """What the replay that is not finished is of; empty when there is none."""
    return _read(replay.state)
