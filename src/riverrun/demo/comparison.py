"""Compares what streams wrote with what plain Python computes from the same events: at the end of a demo, and in tests."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from riverrun.config import find_project
from riverrun.config.stream_state import last_progress
from riverrun.demo.source_program import source_options
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.consumer import Consumer
from riverrun.model.event import schema_of

# The key values of a row, and the other values by their names.
Key = tuple[Any, ...]
Row = Mapping[str, Any]

MAX_SHOWN = 5
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d")


@dataclass(frozen=True)
class StreamCheck:
    """A stream: the columns that identify its rows, those that are compared, and the same computed by plain Python from
    the good events, a value or a tuple for each key. `a.b` is a nested field of a column.

    `final` is the column with a row's time, where a stream sends each row once, when its window has closed. That is at
    the latest `after` that time: the length of its windows, or of its gaps. A smaller value compares more rows.
    """

    stream: str
    key: tuple[str, ...]
    figures: tuple[str, ...]
    expected: Callable[[Sequence[Any]], Mapping[Any, Any]]
    final: str = ""
    after: timedelta = timedelta(minutes=15)

    def rows(self, records: Iterable[Row]) -> dict[Key, Row]:
        """The newest row of each key, from a consumer's records."""
        return {
            _columns(row, self.key): dict(zip(self.figures, _columns(row, self.figures), strict=True))
            for row in records
        }

    def expected_rows(self, good: Sequence[Any]) -> dict[Key, Row]:
        """What plain Python computes, in the form of those rows."""
        return {
            _tuple(key): dict(zip(self.figures, _tuple(figures), strict=True))
            for key, figures in self.expected(good).items()
        }

    def not_final(self, expected: Mapping[Key, Row], actual: Mapping[Key, Row], clock: datetime | None) -> set[Key]:
        """Rows that need not be there yet. Those whose window is closed by the stream's `clock` must be. All rows of a
        time are sent together, so all must be there up to the newest time received."""
        if not self.final or clock is None:
            return set()
        over = max([clock - self.after, *(self._time(key, row) for key, row in actual.items())])
        return {key for key, row in expected.items() if self._time(key, row) > over}

    def _time(self, key: Key, row: Row) -> Any:
        return row[self.final] if self.final in row else key[self.key.index(self.final)]


def _columns(row: Row, names: tuple[str, ...]) -> Key:
    return tuple(_column(row, name) for name in names)


def _column(row: Row, name: str) -> Any:
    outer, _, inner = name.partition(".")
    value = row[outer][inner] if inner else row[outer]
    return datetime.fromisoformat(value) if isinstance(value, str) and _TIME.match(value) else value


def _tuple(value: Any) -> Key:
    return value if isinstance(value, tuple) else (value,)


def rows_of(stream: str, connection: Connection | None = None) -> Iterator[Row]:
    """All rows that a stream has written, in the order of each partition."""
    with Consumer(stream, connection=connection, isolation="committed", follow=False) as consumer:
        for record in consumer:
            if record.raw:
                yield json.loads(record.raw)


def differences(expected: Mapping[Key, Row], actual: Mapping[Key, Row]) -> list[str]:
    """The differences. Fractions are compared to a billionth, because Spark adds up in any order."""
    problems = [f"{_name(key)} is missing" for key in expected.keys() - actual.keys()]
    problems += [f"{_name(key)} should not be there" for key in actual.keys() - expected.keys()]
    for key in expected.keys() & actual.keys():
        for column, value in expected[key].items():
            other = actual[key].get(column)
            same = abs(other - value) <= 1e-9 * abs(value) if isinstance(value, float) and other else other == value
            if not same:
                problems.append(f"{_name(key)} has {column} {other} instead of {value}")
    return sorted(problems)


def _name(key: Key) -> str:
    return " ".join(f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else str(value) for value in key)


def report(
    stream: str,
    expected: Mapping[Key, Row],
    actual: Mapping[Key, Row],
    *,
    left_out: Collection[Key] = (),
    why: str = "",
) -> int:
    """Print how a stream's rows compare, and return how many differ. Those in `left_out` are not compared."""
    right = {key: row for key, row in expected.items() if key not in left_out}
    problems = differences(right, {key: row for key, row in actual.items() if key not in left_out})
    rest = len(expected) - len(right)
    besides = f"; {rest:,} not compared, because {why}" if rest else ""
    lines = [
        f"{stream:12} {len(right):,} rows, {len(problems)} differ{besides}",
        *(f"  {problem}" for problem in problems[:MAX_SHOWN]),
    ]
    print(*lines, sep="\n")  # noqa: T201  -- results of a program: stdout
    return len(problems)


def clock_of(stream: str, event: type, good: Sequence[Any]) -> datetime:
    """A stream's watermark, as its pipeline reports it: a stream may be stopped after it has read all events, and
    before it has sent the rows that the last of them made final. Without a report it is computed from the events."""
    progress = last_progress(find_project())
    for stream_progress in progress.streams if progress is not None else ():
        if stream_progress.name == stream and stream_progress.watermark:
            return datetime.fromisoformat(stream_progress.watermark)
    schema = schema_of(event)
    newest: datetime = max(getattr(stream_progress, schema.time_field or "") for stream_progress in good)
    return newest - timedelta(milliseconds=schema.late_ms)


def compare(about: str, events: Callable[[int], Iterator[Any]], event: type, checks: Iterable[StreamCheck]) -> int:
    """The program figures.py of a use case: computes the figures of the events that its source has sent, prints where
    those of the streams differ, and returns the exit code."""
    parser = source_options(about)
    options = parser.parse_args()
    if options.events < 1:
        parser.error("--events is needed: how many records the source has sent, as it says at its end")
    good = [sent_event for sent_event in islice(events(options.seed), options.events) if isinstance(sent_event, event)]
    wrong = 0
    for check in checks:
        # The clock first: everything closed by it has been sent.
        clock = clock_of(check.stream, event, good) if check.final else None
        expected, actual = check.expected_rows(good), check.rows(rows_of(check.stream))
        left_out = check.not_final(expected, actual, clock)
        wrong += report(check.stream, expected, actual, left_out=left_out, why="they are not final yet")
    return 1 if wrong else 0
