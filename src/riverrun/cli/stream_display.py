"""Streams for people: the live table of `riverrun run`, its plain lines on a pipe, and the rows of `riverrun status`.

All of the board goes to stderr; a terminal that is gone does not stop the pipeline.
"""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self

from riverrun.cli.output import plural, room_on_screen
from riverrun.model.notices import notice_text
from riverrun.model.progress import PipelineProgress, StreamProgress
from riverrun.model.units import format_size

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table

DRAW_SECONDS = 0.25
LINE_SECONDS = 10.0
# An idle stream is reported again after this long: a silent log looks like a pipeline that hangs.
IDLE_LINE_SECONDS = 60.0
# From this width on the table has room for the speed and the state.
WIDE_COLUMNS = 110
MIN_NAME_WIDTH = 8
UNKNOWN = "-"

_COLOURS = {
    "starting": "yellow",
    "running": "green",
    "restarting": "yellow",
    "finished": "cyan",
    "stopped": "dim",
    "failed": "bold red",
}


def stream_table(progress: PipelineProgress, width: int, now: float | None = None) -> "Table":
    """All streams, one line each, in so many columns. A long name is cut; a number never is."""
    from rich.table import Table
    from rich.text import Text

    at = time.time() if now is None else now
    wide = width >= WIDE_COLUMNS
    rows = [_cells(stream, at, wide=wide) for stream in progress.streams]
    names = list(_cells(StreamProgress(""), at, wide=wide))
    widths = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in names}
    gap = 2 if sum(widths.values()) + 2 * (len(names) - 1) <= width else 1
    # rich would take from every column, and cut numbers in the middle; only the name may give way.
    room = width - sum(widths.values()) + widths["stream"] - gap * (len(names) - 1)
    widths["stream"] = min(widths["stream"], max(room, MIN_NAME_WIDTH))
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    for name in names:
        justify: Literal["left", "right"] = "left" if name in ("stream", "phase", "speed") else "right"
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis", width=widths[name])
    for row in rows:
        colour = _COLOURS.get(row["phase"], "")
        cells = [Text(value, style=_style(name, value, colour)) for name, value in row.items()]
        table.add_row(*cells)
    return table


def display_row(stream: StreamProgress, now: float) -> dict[str, Any]:
    """A stream in `riverrun status`."""
    return {
        "stream": stream.name,
        "phase": _first_batch(stream) or stream.phase,
        "speed": stream.speed,
        "in/s": short_number(stream.rows_in_per_second),
        "lag": short_count(stream.lag),
        "age": short_seconds(stream.age_seconds(now)),
        "batch": _batch(stream),
        "dead": stream.record_counts.dead_letters,
        "late": stream.record_counts.late,
        "state": _state(stream),
    }


class StreamDisplay:
    """What `riverrun run` shows, in a `with`. Pass it every progress update: it redraws as often as is useful.

    On a terminal: a table that is redrawn at most four times a second. Elsewhere: a line per stream at most every
    `line_seconds` while it does something or starts, and every minute while it does not; a change of phase is reported
    at once.
    """

    def __init__(
        self,
        line_seconds: float = LINE_SECONDS,
        *,
        console: "Console | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.console import Console

        # Whether there is a screen to draw on is not for FORCE_COLOR to say.
        self._console = console or Console(stderr=True, highlight=False, force_terminal=sys.stderr.isatty())
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._clock = clock
        self._live: Live | None = None
        self._newest: PipelineProgress | None = None
        self._drawn_at = -math.inf
        self._lines = _PlainLines(line_seconds)
        # Names of streams, topics and tables: a sentence that begins with one keeps its spelling.
        self.names: frozenset[str] = frozenset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def notice(self, text: str) -> None:
        """A sentence without capital and full stop, above the table."""
        line = printable(notice_text(text, self.names))
        if self._is_live:
            self._print(line, style="dim")
        else:
            self._line(line)

    def addresses(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Where the pages are, as (what, address): in a box that stays on the screen, or a line each."""
        if not self._is_live:
            for what, address in rows:
                self._line(f"{what}: {address}")
            return
        from rich.panel import Panel
        from rich.text import Text

        width = max(len(what) for what, _ in rows)
        lines = [
            Text.assemble((f"{what:<{width}}  ", ""), (address, "bold" if number == 0 else ""))
            for number, (what, address) in enumerate(rows)
        ]
        with contextlib.suppress(OSError), room_on_screen():
            self._console.print(
                Panel(Text("\n").join(lines), title=title, title_align="left", border_style="green", expand=False)
            )

    def show(self, progress: PipelineProgress) -> None:
        self._newest = progress
        if not self._is_live:
            self._print_lines(progress, last=False)
        elif self._clock() - self._drawn_at >= DRAW_SECONDS:
            self._drawn_at = self._clock()
            self._draw(progress)

    def close(self) -> None:
        """Show the last progress, whenever it came, and leave it on the screen."""
        progress, self._newest = self._newest, None
        if progress is None:
            return
        if not self._is_live:
            self._print_lines(progress, last=True)
            return
        self._draw(progress)
        if self._live is not None:
            try:
                self._live.stop()
            except OSError:
                return

    def _draw(self, progress: PipelineProgress) -> None:
        from rich.live import Live

        try:
            if self._live is None:
                # What user code prints goes above the table; where stdout is a pipe, it stays the user's.
                self._live = Live(
                    console=self._console, auto_refresh=False, transient=False, redirect_stdout=sys.stdout.isatty()
                )
                self._live.start()
            self._live.update(stream_view(progress, self._console.width), refresh=True)
        except OSError:
            return

    def _print_lines(self, progress: PipelineProgress, *, last: bool) -> None:
        for line in self._lines.due(progress, self._clock(), last=last):
            self._line(line)

    def _line(self, text: str) -> None:
        self._print(f"{datetime.now().astimezone():%H:%M:%S}  {text}")

    def _print(self, text: str, style: str = "") -> None:
        with contextlib.suppress(OSError), room_on_screen():
            self._console.print(text, style=style or None, markup=False, highlight=False, soft_wrap=True)


class _PlainLines:
    """Which plain lines are due: what was last printed of each stream, and when."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._printed: dict[str, tuple[tuple[Any, ...], str, float]] = {}

    def due(self, progress: PipelineProgress, now: float, *, last: bool) -> list[str]:
        lines: list[str] = []
        for stream in progress.streams:
            key, phase, at = self._printed.get(stream.name, ((), "", -math.inf))
            fresh = _change_key(stream)
            busy = fresh != key or stream.phase in ("starting", "restarting") or bool(stream.first_batch_records)
            due = now - at >= (self._seconds if busy else IDLE_LINE_SECONDS)
            if (fresh != key and (last or stream.phase != phase)) or due:
                self._printed[stream.name] = (fresh, stream.phase, now)
                lines.append(plain_line(stream))
                lines += [f"  {line}" for line in error_lines(stream)]
        return lines


def _change_key(stream: StreamProgress) -> tuple[Any, ...]:
    """What makes a line worth printing again. Ages and exact speeds change by themselves."""
    account = stream.record_counts
    counts = (account.read, account.out, account.dead_letters, account.late, account.expired)
    under_way = stream.first_batch_records > 0
    return (stream.phase, stream.error, stream.restarts, stream.lag, under_way, stream.rows_in_per_second > 0, *counts)


def plain_line(stream: StreamProgress, now: float | None = None) -> str:
    """A stream in one line of text."""
    if first_batch := _first_batch(stream):
        return f"{stream.name} is {stream.phase}: {first_batch}, lag {short_count(stream.lag)}"
    account = stream.record_counts
    age = stream.age_seconds(time.time() if now is None else now)
    parts = [
        f"{short_number(stream.rows_in_per_second)}/s in",
        f"{short_number(stream.rows_out_per_second)}/s out",
        f"lag {short_count(stream.lag)}",
        f"age {short_seconds(age)}",
        f"batch {_batch(stream)}",
        f"read {account.read}",
        f"dead {account.dead_letters}",
        f"late {account.late}",
    ]
    if account.expired:
        parts.append(f"gone {account.expired}")
    if stream.restarts:
        parts.append(f"restarts {stream.restarts}")
    return f"{stream.name} is {stream.phase}: {', '.join(parts)}"


def _first_batch(stream: StreamProgress) -> str:
    """While nothing has been counted yet, that something is done; empty otherwise."""
    if stream.phase != "running" or not stream.first_batch_records:
        return ""
    return f"first batch: {plural(stream.first_batch_records, 'record')} under way"


def stream_view(progress: PipelineProgress, width: int) -> "RenderableType":
    """The table, a line about the pipeline above it, and the errors below."""
    from rich.console import Group
    from rich.text import Text

    head = Text(printable(progress.app), style="bold")
    if progress.address:
        head.append(f"  {progress.address}/metrics", style="dim")
    head.append("  Ctrl-C stops it", style="dim")
    below: list[Text] = []
    for stream in progress.streams:
        errors = error_lines(stream)
        if errors:
            below.append(Text(f"{stream.name}: " + "\n  ".join(errors), style=_COLOURS[stream.phase]))
        if stream.record_counts.expired:
            below.append(Text(expired_line(stream), style="yellow"))
    return Group(head, stream_table(progress, width), *below)


def error_lines(stream: StreamProgress) -> list[str]:
    """Why a stream failed, or is being restarted."""
    return printable(stream.error).splitlines() if stream.phase in ("failed", "restarting") else []


def expired_line(stream: StreamProgress) -> str:
    return f"{stream.name}: {plural(stream.record_counts.expired, 'record')} deleted by retention before being read"


def _cells(stream: StreamProgress, now: float, *, wide: bool) -> dict[str, str]:
    cells = {"stream": stream.name, "phase": "first batch" if _first_batch(stream) else stream.phase}
    if wide:
        cells["speed"] = stream.speed or UNKNOWN
    cells |= {
        "in/s": short_number(stream.rows_in_per_second),
        "out/s": short_number(stream.rows_out_per_second),
        "lag": short_count(stream.lag),
        "age": short_seconds(stream.age_seconds(now)),
        "batch": _batch(stream),
        "dead": short_count(stream.record_counts.dead_letters),
        "late": short_count(stream.record_counts.late),
        "restarts": str(stream.restarts),
    }
    if wide:
        cells["state"] = _state(stream)
    return cells


def _style(name: str, value: str, colour: str) -> str:
    if name == "phase":
        return colour
    return "red" if name == "dead" and value != "0" else ""


def _batch(stream: StreamProgress) -> str:
    return short_seconds(stream.batch_ms / 1000 if stream.batch >= 0 else None)


def _state(stream: StreamProgress) -> str:
    if not stream.state_rows and not stream.state_bytes:
        return UNKNOWN
    return f"{short_count(stream.state_rows)} rows, {format_size(stream.state_bytes)}"


def short_number(value: float) -> str:
    """A number in at most five characters: 0, 0.4, 950, 12.3k, 4.56M, 1.2G."""
    if not math.isfinite(value):
        return UNKNOWN
    if 0 < value < 9.95:
        return f"{value:.1f}"
    for unit in ("", "k", "M", "G"):
        # Rounded up, 999.7 would be a thousand of the unit.
        if round(value) < 1000:
            return f"{value:.0f}{unit}" if not unit or value >= 100 else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.0f}T"


def short_count(value: int) -> str:
    """A whole number likewise; up to 99 999 as it is, for the difference of one matters most where there are few."""
    if value < 0:
        return UNKNOWN
    return str(value) if value < 100_000 else short_number(value)


def short_seconds(seconds: float | None) -> str:
    """A time in at most six characters: 850ms, 1.2s, 12s, 3m05s, 2h07m, 3d04h."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 59.5:
        return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    days = whole // 86_400
    return f"{days}d{whole % 86_400 // 3600:02d}h" if days < 100 else f"{days}d"


def printable(text: str) -> str:
    """Text without what would steer a terminal: an error may quote a record's bytes."""
    plain = text.replace("\r\n", "\n").replace("\t", "    ")
    return "".join(
        character if character.isprintable() or character == "\n" else "\N{REPLACEMENT CHARACTER}"
        for character in plain
    )
