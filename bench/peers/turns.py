"""One turn of one contender: over the backlog, from its start to its first row, or at a rate."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ClientPartition

from contenders import JOBS, Command, Contender, Turn
from load import (
    BEGIN,
    HOUSES,
    READINGS,
    ages_of_rows,
    fill,
    forget,
    key_of,
    memory_mb,
    places,
    producer,
    reading,
    send,
    worked,
)
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.model.cluster_state import TopicPartition

PARTS = 4
MINUTE_MS = 60_000
LOOK_SECONDS = 0.1
# All rows may be there when for so long none came, and the contender does next to nothing: then they are read and compared.
QUIET_SECONDS = 2.0
IDLE_CORES = 0.25
# Or when none came for so long, whatever it does.
LONG_QUIET_SECONDS = 20.0
# Nothing more will come.
DEAD_QUIET_SECONDS = 90.0
STOP_SECONDS = 15
FIRST_ROW_SECONDS = 150
FIRST_RUN_SECONDS = 300
START_READINGS = 200

Key = tuple[str, int]


class FailedError(Exception):
    """A turn that gave no figure, and why."""


@dataclass
class Row:
    """What a contender wrote; times in milliseconds since 1970."""

    house: str
    minute: int
    load_kw: float
    last: int


def row_of(value: bytes) -> Row | None:
    """A row in any contender's form. None when it takes an earlier one back, as Pathway does before each change."""
    content = json.loads(value)
    if content.get("diff", 1) < 0:
        return None
    minute = content["minute"]
    start = minute["start"] if isinstance(minute, dict) else minute
    return Row(content["house_id"], millis(start), content["load_kw"], millis(content["last"]))


def millis(moment: int | str) -> int:
    """Milliseconds since 1970 of a number or a text; a text without a zone is UTC."""
    if isinstance(moment, int):
        return moment
    found = datetime.fromisoformat(moment)
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def newest(value: bytes) -> float | None:
    row = row_of(value)
    return None if row is None else row.last / 1000


@dataclass
class Expected:
    """The right answer: sum, count and newest time for each house and minute of the backlog."""

    rows: dict[Key, list[float]] = field(default_factory=dict)

    def add(self, text: str, at_ms: int) -> None:
        at = round(BEGIN.timestamp() * 1000) + at_ms
        row = self.rows.setdefault((key_of(text), at // MINUTE_MS * MINUTE_MS), [0.0, 0, 0])
        row[0] += float(text[37:43])
        row[1] += 1
        row[2] = max(row[2], at)

    def wrong(self, found: dict[Key, Row]) -> int:
        """How many of them are not there, or not as they must be."""
        return sum(not self._right(key, found.get(key)) for key in self.rows)

    def _right(self, key: Key, row: Row | None) -> bool:
        total, count, last = self.rows[key]
        return row is not None and abs(row.load_kw - total / count) < 1e-6 and row.last == last


class Running:
    """The processes of a contender, each the head of a group of its own."""

    def __init__(self, commands: Iterable[Command], turn: Turn) -> None:
        self.logs: list[Path] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        outer = {name: text for name, text in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
        for number, command in enumerate(commands, 1):
            base = outer if command.own_python else dict(os.environ)
            log = turn.folder / f"out-{number}.log"
            self.logs.append(log)
            log.unlink(missing_ok=True)
            with log.open("ab") as target:  # Appended: what it starts may write beside it, and neither over the other.
                self.processes.append(
                    subprocess.Popen(
                        command.words,
                        stdout=target,
                        stderr=subprocess.STDOUT,
                        stdin=subprocess.DEVNULL,
                        env=base | turn.environment | command.environment,
                        cwd=turn.folder,
                        start_new_session=True,
                    )
                )

    def alive(self) -> bool:
        """Whether all of them run: with one gone, the others would do its work, and be measured for it."""
        return all(process.poll() is None for process in self.processes)

    def failed(self) -> bool:
        return any(process.poll() not in {None, 0} for process in self.processes)

    def memory_mb(self) -> float:
        return sum(memory_mb(process.pid) for process in self.processes)

    def worked(self) -> float:
        return sum(worked(process.pid) for process in self.processes)

    def last_line(self) -> str:
        """The last thing it said: of the process that failed, if one did."""
        states = zip(self.processes, self.logs, strict=True)
        for _, log in sorted(states, key=lambda each: each[0].poll() in {None, 0}):
            lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
            if lines:
                return lines[-1][:300]
        return "it said nothing"

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + STOP_SECONDS
        for process in self.processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            finally:
                # Also what is left below a process that ended.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class Rows:
    """Reads what a contender wrote, from where its output ended when the turn began."""

    def __init__(self, connection: Connection, group: str, begin: dict[TopicPartition, int]) -> None:
        self.found: dict[Key, Row] = {}
        self.count = 0
        self.reader = Consumer(connection.properties({"group.id": group, "enable.partition.eof": True}))
        self.parts = len(begin)
        self.at = [ClientPartition(place.topic, place.partition, offset) for place, offset in begin.items()]

    def read(self) -> None:
        """All there is now. The newest row of a key counts; where two are as new, the later one."""
        self.reader.assign(self.at)
        ended: dict[int, int] = {}
        while len(ended) < self.parts:
            for message in self.reader.consume(5000, 0.5):
                error = message.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  librdkafka's own name
                        ended[message.partition()] = message.offset()
                    continue
                self.count += 1
                # A table's topic may have deletions.
                value = message.value()
                row = row_of(value) if value else None
                if row is None:
                    continue
                before = self.found.get((row.house, row.minute))
                if before is None or before.last <= row.last:
                    self.found[row.house, row.minute] = row
        self.at = [ClientPartition(each.topic, each.partition, ended[each.partition]) for each in self.at]


@dataclass
class Drained:
    """What a turn over the backlog gave. Seconds since the start of its processes."""

    seconds: float
    memory_mb: float
    rows: int
    wrong: int


class Arena:
    """A cluster with the backlog, and what is needed to let contenders at it."""

    def __init__(self, root: Path, connection: Connection) -> None:
        self.root = root
        self.connection = connection
        self.admin = Admin(connection)
        self.expected = Expected()
        self.events = 0
        self.turns = 0

    def make_topics(self, outputs: Iterable[str]) -> None:
        # Some give their rows the time of the window, and the broker would delete them as old.
        for topic in {*outputs, "out-bare"}:
            self.admin.create_topic(topic, partitions=PARTS, replicas=0, config={"retention.ms": "-1"})

    def fill(self, events: int) -> None:
        """The backlog, and behind it a reading of each house an hour later: it closes the windows of those that write then,
        and all read it."""
        self.expected = Expected()
        fill(self.connection, events, self.expected.add)
        self._close(f"house-{number:06d}" for number in range(HOUSES))
        self.events = events + HOUSES

    def _close(self, houses: Iterable[str]) -> None:
        sender = producer(self.connection)
        for house in houses:
            send(sender, reading(house, 1.0, BEGIN + timedelta(hours=1)))
        sender.flush()

    def _turn(self, name: str, output: str, *, forever: bool) -> Turn:
        self.turns += 1
        folder = self.root / f"turn-{self.turns}-{name}"
        folder.mkdir()
        return Turn(folder, self.connection.bootstrap_servers, output, f"{name}-{self.turns}", forever)

    def _ends(self, output: str) -> dict[TopicPartition, int]:
        """Where readers of committed records stop: asked often, so with one request."""
        parts = [TopicPartition(output, part) for part in range(PARTS)]
        return self.admin.offsets(parts, "latest", committed_only=True)

    def _clean(self, turn: Turn) -> None:
        """As before the turn: no rows, and none of the topics it made for itself."""
        forget(self.admin, turn.output)
        if made := [topic for topic in self.admin.topic_names() if turn.name in topic]:
            self.admin.delete_topics(made)

    def backlog(self, contender: Contender, limit: float) -> Drained:
        """From the start of the processes until the last row of the right answer can be read."""
        turn = self._turn(contender.name, contender.output, forever=False)
        commands = contender.commands(turn)
        begin = self._ends(contender.output)
        rows = Rows(self.connection, f"check-{turn.name}", begin)
        seen = read = sum(begin.values())
        begun = time.perf_counter()
        running = Running(commands, turn)
        changed = peak = 0.0
        quiet, wrong = Quiet(running), len(self.expected.rows)
        try:
            while True:
                time.sleep(LOOK_SECONDS)
                now = time.perf_counter() - begun
                peak = max(peak, running.memory_mb())
                alive = running.alive()
                end = sum(self._ends(contender.output).values())
                if end != seen:
                    seen, changed = end, now
                if running.failed():
                    raise FailedError(f"it ended: {running.last_line()}")
                if seen != read and (not alive or quiet.long_enough(now, changed)):
                    rows.read()
                    read, wrong = seen, self.expected.wrong(rows.found)
                if wrong == 0 or not alive:
                    break
                if changed and now - changed > DEAD_QUIET_SECONDS:
                    break
                if now > limit:
                    raise FailedError(f"not done after {limit:.0f} s: {running.last_line()}")
            return Drained(changed, peak, rows.count, wrong)
        finally:
            running.stop()
            rows.reader.close()
            self._clean(turn)

    def prepare_start(self) -> None:
        """Next to nothing to read, with windows that close."""
        forget(self.admin, READINGS)
        houses: list[str] = []
        fill(self.connection, START_READINGS, lambda text, _: houses.append(key_of(text)))
        self._close(houses)

    def settle(self, contender: Contender) -> None:
        """Let it run, with next to nothing to do, until its first run has left what it leaves for later ones."""
        turn = self._turn(contender.name, contender.output, forever=True)
        running = Running(contender.commands(turn), turn)
        deadline = time.monotonic() + FIRST_RUN_SECONDS
        try:
            while not contender.settled():
                if not running.alive() or time.monotonic() > deadline:
                    raise FailedError(f"its first run did not come to an end: {running.last_line()}")
                time.sleep(LOOK_SECONDS)
        finally:
            running.stop()
            self._clean(turn)

    def start_up(self, contender: Contender) -> float:
        """Seconds from the start of the processes until the first row can be read."""
        turn = self._turn(contender.name, contender.output, forever=True)
        commands = contender.commands(turn)
        begin = sum(self._ends(contender.output).values())
        begun = time.perf_counter()
        running = Running(commands, turn)
        try:
            while sum(self._ends(contender.output).values()) == begin:
                if not running.alive():
                    raise FailedError(f"it ended: {running.last_line()}")
                if time.perf_counter() - begun > FIRST_ROW_SECONDS:
                    raise FailedError(f"no row after {FIRST_ROW_SECONDS} s: {running.last_line()}")
                time.sleep(LOOK_SECONDS / 2)
            return time.perf_counter() - begun
        finally:
            running.stop()
            self._clean(turn)

    def latency(self, contender: Contender, rate: int, seconds: float) -> list[float]:
        """Ages in milliseconds of rows as a reader gets them, sorted."""
        forget(self.admin, READINGS)
        turn = self._turn(contender.name, contender.output, forever=True)
        running = Running(contender.commands(turn), turn)
        try:
            ages = ages_of_rows(
                self.admin,
                contender.output,
                rate=rate,
                seconds=seconds,
                alive=running.alive,
                group=f"ages-{turn.name}",
                newest=newest,
                patience=FIRST_ROW_SECONDS,
            )
        except (ChildProcessError, TimeoutError) as error:
            raise FailedError(f"{error}: {running.last_line()}") from error
        finally:
            running.stop()
            self._clean(turn)
        if not ages:
            raise FailedError("no row came in the measured time")
        return ages

    def bare(self, what: str, processes: int, limit: float) -> float:
        """Records a second of a loop of the bare client, in one process or in two with half of the partitions each."""
        turn = self._turn(f"bare-{what}", "out-bare", forever=False)
        parts = [place.partition for place in places(self.admin, READINGS)]
        commands = []
        for number in range(processes):
            share = ",".join(str(part) for part in parts[number::processes])
            words = [sys.executable, str(JOBS / "bare.py"), what, share, str(processes)]
            commands.append(Command(words, own_python=False))
        running = Running(commands, turn)
        try:
            for process in running.processes:
                process.wait(limit)
            found = [json.loads(log.read_text()) for log in running.logs]
        except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
            raise FailedError(f"the bare loop failed: {running.last_line()}") from error
        finally:
            running.stop()
            self._clean(turn)
        count = sum(each["count"] for each in found)
        return float(count / (max(each["ended"] for each in found) - min(each["begun"] for each in found)))


class Quiet:
    """Whether a contender has nothing more to do, by its output and the processor time it takes."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.looked = self.had = 0.0
        self.cores = IDLE_CORES + 1

    def long_enough(self, now: float, changed: float) -> bool:
        if now - self.looked >= 1.0:
            had = self.running.worked()
            self.cores = (had - self.had) / (now - self.looked)
            self.looked, self.had = now, had
        if now - changed < QUIET_SECONDS:
            return False
        return self.cores < IDLE_CORES or now - changed > LONG_QUIET_SECONDS
