"""For tests of the connector process: a source that counts, the process in a thread, what is in a topic."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import riverrun as rr
from riverrun.config import Project, load
from riverrun.connectors.contract import ConnectorContext
from riverrun.connectors.process import ConnectorProcess
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.reading.partition_reader import OffsetRange, PartitionReader
from riverrun.model.record import RawRecord


class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float = rr.field(ge=0)


class Numbers(rr.Source):
    """Gives `{"house_id": "h<n>", "load_kw": n}` for the numbers of each part, `bite` at a time."""

    def __init__(self, count: int, *, parts: Sequence[str] = ("all",), bite: int = 10, last: bool = True) -> None:
        self.count = count
        self._parts = parts
        self.bite = bite
        self.last = last
        self.acknowledged: list[Any] = []
        self.opened: list[Any] = []

    def parts(self) -> Sequence[str]:
        return self._parts

    def open(self, part: str, position: Any) -> rr.Reader:
        self.opened.append(position)
        return NumbersReader(self, part, position or 0)


class NumbersReader(rr.Reader):
    def __init__(self, source: Numbers, part: str, at: int) -> None:
        self._source = source
        self._part = part
        self._at = at

    def read(self) -> rr.Items | None:
        begin, self._at = self._at, min(self._at + self._source.bite, self._source.count)
        if begin == self._at and not self._source.last:
            return None
        items = [rr.Item({"house_id": f"{self._part}-{n}", "load_kw": float(n)}) for n in range(begin, self._at)]
        return rr.Items(items, self._at, last=self._source.last and self._at >= self._source.count)

    def acknowledged(self, position: Any) -> None:
        self._source.acknowledged.append(position)

    def lag(self) -> int | None:
        return self._source.count - self._at


@contextmanager
def running(
    app: rr.App, connection: Connection, folder: Path, *, notices: list[str] | None = None
) -> Iterator[ConnectorProcess]:
    """The connector process of an app, in a thread, until the block ends. What it raises is raised here."""
    said = notices if notices is not None else []
    process = ConnectorProcess(
        ConnectorContext(app, connection, folder, folder, said.append, settings=load(Project(folder)).settings)
    )
    stop = threading.Event()
    problems: list[BaseException] = []

    def run() -> None:
        try:
            process.run(stop)
        except BaseException as error:  # noqa: BLE001  -- raised below
            problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield process
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    if problems:
        raise problems[0]


def wait_until(true: Callable[[], Any], what: str = "it", seconds: float = 90.0) -> Any:
    """Until a condition holds; what it gave."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.02)
    return found


def records_in(connection: Connection, topic: str) -> list[RawRecord]:
    """All committed records that are in a topic, in the order of each partition. What is open is waited for: the marks of a
    transaction are written after its commit was confirmed."""
    admin = Admin(connection)
    state = admin.topics([topic], config=False).get(topic)
    if state is None:
        return []
    ends = admin.offsets(state.topic_partitions, "latest")
    with PartitionReader(
        connection, {place: OffsetRange(0, ends[place]) for place in state.topic_partitions}
    ) as reader:
        return [each for batch in reader for each in batch]


def values_in(connection: Connection, topic: str) -> list[Any]:
    return [json.loads(each.value() or b"null") for each in records_in(connection, topic)]


def header_of(record: RawRecord, name: str) -> str:
    return next((value.decode() for key, value in record.headers() or () if key == name), "")
