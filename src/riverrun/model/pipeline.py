"""Streams and tables that a pipeline file declares, and where in the file. Declaring does nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from riverrun.errors import DeclarationError
from riverrun.model.units import parse_duration_ms

Speed = Literal["batch", "near-real-time", "real-time"]
SPEEDS: tuple[str, ...] = get_args(Speed)
Emit = Literal["updates", "final"]


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's file."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.number}"


@dataclass(frozen=True)
class Stream:
    """A query over topics, tables and other streams, whose rows go to a topic.

    Exactly one of `function` (takes one DataFrame per input, returns one) and `sql` is set. `key` names the columns
    that identify a row, `time` the column with its event time; both are inferred where they can be. `emit` says whether
    a window's row is sent whenever it changes ("updates") or once, when the window has closed ("final").
    """

    name: str
    line: SourceLine
    function: Callable[..., Any] | None = None
    sql: str = ""
    parameters: tuple[str, ...] = ()
    speed: Speed | None = None
    every: str | timedelta | None = None
    key: tuple[str, ...] = ()
    time: str = ""
    emit: Emit = "updates"
    topic: str = ""
    partitions: int = 0
    replicas: int = 0
    retention: str | timedelta | None = None
    # Whether its rows are a table of the store.
    store: bool = True

    def __post_init__(self) -> None:
        check_speed(self.speed, f"The stream {self.name}")
        if self.emit not in get_args(Emit):
            raise DeclarationError(
                f"The stream {self.name} cannot have emit={self.emit!r}",
                expected='"updates" or "final"',
                stream=self.name,
            )
        if self.every is not None:
            every_ms(self.every, f"every of {self.name}")

    @property
    def output_topic(self) -> str:
        """The topic its rows go to."""
        return self.topic or self.name

    def __call__(self, *frames: Any) -> Any:
        """The function itself, so that it can be called like any other."""
        if self.function is None:
            raise TypeError(f"{self.name} is SQL")
        return self.function(*frames)


@dataclass(frozen=True)
class FileSource:
    """Rows in a file or a folder of files. A path that is not absolute is looked up from the pipeline file's folder."""

    format: Literal["csv", "json", "parquet"]
    path: str
    # The columns in Spark's notation: "house_id string, street string". Empty: inferred from the file.
    columns: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TableOptions:
    """A stream or a topic as a table of the store, where the pipeline file sets options for it."""

    source: str  # The name of a stream or a topic of the app.
    line: SourceLine
    name: str = ""
    key: tuple[str, ...] = ()
    retention: str | timedelta | None = None
    segment: str = ""
    granularity: str = ""
    rollup: Mapping[str, str] = field(default_factory=dict)

    @property
    def table(self) -> str:
        return self.name or self.source


@dataclass(frozen=True)
class Table:
    """Reference data that streams look things up in: the rows of a file, or the newest row of each key of a topic."""

    name: str
    source: Any  # FileSource, or Topic
    key: tuple[str, ...]
    line: SourceLine


def check_speed(speed: str | None, whose: str) -> None:
    if speed is not None and speed not in SPEEDS:
        from riverrun.model.suggest import nearest

        near = nearest(speed, SPEEDS)
        raise DeclarationError(
            f"{whose} cannot have the speed {speed!r}",
            expected=", ".join(SPEEDS),
            hint=f"Did you mean {near!r}?" if near else "",
            speed=speed,
        )


def every_ms(every: str | timedelta, what: str) -> int:
    """How often a near-real-time stream polls for records, in milliseconds; 0 is as often as it can."""
    expected = 'a duration such as "1 second" or "500 ms"'
    try:
        wait = parse_duration_ms(every, what=what, allow_zero=True)
    except DeclarationError as error:
        raise DeclarationError(error.what, expected=expected, found=error.found) from error
    if wait < 0:
        raise DeclarationError(f"{what} cannot be for ever", expected=expected)
    return wait


def csv(path: str | Path, columns: str = "", **options: str) -> FileSource:
    """A CSV file with a header line. `columns` names and types them; without it, types are inferred from the values."""
    return FileSource("csv", str(path), columns, options)


def json(path: str | Path, columns: str = "", **options: str) -> FileSource:
    """A file with one JSON object a line."""
    return FileSource("json", str(path), columns, options)


def parquet(path: str | Path, **options: str) -> FileSource:
    """A Parquet file, or a folder of them."""
    return FileSource("parquet", str(path), "", options)
