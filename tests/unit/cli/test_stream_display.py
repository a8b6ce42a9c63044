"""Streams as people see them: a table that fits, a board that does not flicker, lines that are worth reading."""

import io
import re

import pytest
from rich.console import Console

from riverrun.cli.stream_display import (
    StreamDisplay,
    display_row,
    plain_line,
    printable,
    short_count,
    short_number,
    short_seconds,
    stream_table,
    stream_view,
)
from riverrun.model.progress import PHASES, PipelineProgress, RecordCounts, StreamProgress
from riverrun.streams.run.running_stream import first_batch_records

NOW = 1_000_000.0
COLUMNS = ["stream", "phase", "in/s", "out/s", "lag", "age", "batch", "dead", "late", "restarts"]


def stream(name: str = "house_load", **values: object) -> StreamProgress:
    made = StreamProgress(
        name, phase="running", speed="near-real-time", batch=3, batch_ms=850, rows_in_per_second=12345.6,
        rows_out_per_second=0.4, lag=17, last_record_at="1970-01-12T13:46:38.800Z", state_rows=10_000,
        state_bytes=3 << 20, restarts=1, record_counts=RecordCounts(read=100, dead_letters=3, late=4, out=93),
    )  # fmt: skip
    for field, value in values.items():
        setattr(made, field, value)
    return made


def pipeline(*streams: StreamProgress) -> PipelineProgress:
    return PipelineProgress("meters", "meters.py", 1, "", "http://127.0.0.1:9404", streams=list(streams))


def drawn(thing: object, width: int) -> list[str]:
    screen = io.StringIO()
    Console(file=screen, width=width, highlight=False).print(thing)
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def worst() -> StreamProgress:
    """Every cell as wide as it gets."""
    wide = stream("a_stream_with_quite_a_long_name_for_a_stream", phase="restarting", lag=99_999, batch_ms=59_000 * 60)
    wide.rows_in_per_second, wide.rows_out_per_second, wide.restarts = 99_940.0, 99_940.0, 12_345_678
    wide.last_record_at = "1970-01-11T14:59:00Z"
    wide.record_counts = RecordCounts(dead_letters=99_999, late=99_999)
    return wide


def test_eighty_columns() -> None:
    lines = drawn(stream_table(pipeline(stream()), 80, NOW), 80)
    assert lines[0].split() == COLUMNS
    assert lines[1].split() == ["house_load", "running", "12.3k", "0.4", "17", "1.2s", "850ms", "3", "4", "1"]
    assert len(lines) == 2


@pytest.mark.parametrize("width", [80, 120])
def test_the_widest_stream_fits_and_only_its_name_is_cut(width: int) -> None:
    lines = drawn(stream_table(pipeline(worst(), stream()), width, NOW), width)
    assert len(lines) == 3
    assert max(map(len, lines)) <= width
    cells = lines[1].split()
    assert cells[0].startswith("a_stream_with")
    for value in ("restarting", "99.9k", "99999", "22h47m", "59m00s", "12345678"):
        assert value in cells
    assert lines[1].count("99999") == 3


def test_a_hundred_and_twenty_columns_have_speed_and_state() -> None:
    lines = drawn(stream_table(pipeline(stream()), 120, NOW), 120)
    assert lines[0].split() == [*COLUMNS[:2], "speed", *COLUMNS[2:], "state"]
    assert "near-real-time" in lines[1]
    assert lines[1].endswith("10000 rows, 3 MiB")


def test_what_is_not_known_is_a_dash() -> None:
    row = drawn(stream_table(pipeline(StreamProgress("a")), 120, NOW), 120)[1].split()
    assert row == ["a", "starting", "-", "0", "0", "-", "-", "-", "0", "0", "0", "-"]


@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_is_a_word_and_a_colour(phase: str) -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=80, force_terminal=True, color_system="standard", highlight=False)
    console.print(stream_table(pipeline(stream(phase=phase)), 80, NOW))
    assert re.search(rf"\x1b\[[0-9;]+m{phase} *\x1b\[0m", screen.getvalue())


def test_no_streams() -> None:
    assert drawn(stream_table(pipeline(), 80, NOW), 80)[0].split() == COLUMNS


def test_errors_and_losses_stand_below() -> None:
    broken = stream(phase="failed", error="STREAM_CODE_FAILED  it divides by zero\nmeters.py:12\x1b[2J")
    behind = stream("behind", phase="restarting", error="no broker")
    fine = stream("fine", error="an old one", record_counts=RecordCounts(expired=12_345))
    lines = drawn(stream_view(pipeline(broken, behind, fine), 80), 80)
    assert lines[0] == "meters  http://127.0.0.1:9404/metrics  Ctrl-C stops it"
    assert lines[5:] == [
        "house_load: STREAM_CODE_FAILED  it divides by zero",
        "  meters.py:12�[2J",
        "behind: no broker",
        "fine: 12,345 records deleted by retention before being read",
    ]


def test_status_row() -> None:
    assert display_row(stream(), NOW) == {
        "stream": "house_load",
        "phase": "running",
        "speed": "near-real-time",
        "in/s": "12.3k",
        "lag": "17",
        "age": "1.2s",
        "batch": "850ms",
        "dead": 3,
        "late": 4,
        "state": "10000 rows, 3 MiB",
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.04, "0.0"), (0.44, "0.4"), (9.96, "10"), (950, "950"), (999.4, "999"), (999.7, "1.0k"),
        (12_345, "12.3k"), (999_400, "999k"), (999_700, "1.0M"), (4_560_000, "4.6M"), (2e12, "2T"), (float("nan"), "-"),
        (float("inf"), "-"),
    ],
)  # fmt: skip
def test_short_numbers(value: float, text: str) -> None:
    assert short_number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(-1, "-"), (0, "0"), (99_999, "99999"), (100_000, "100k"), (10**7, "10.0M")]
)
def test_short_counts(value: int, text: str) -> None:
    assert short_count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0, "0ms"), (0.85, "850ms"), (0.9996, "1.0s"), (9.96, "10s"), (59.4, "59s"), (59.6, "1m00s"),
        (185, "3m05s"), (3599.7, "1h00m"), (7620, "2h07m"), (86_400, "1d00h"), (273_600, "3d04h"), (8_640_000, "100d"),
    ],
)  # fmt: skip
def test_short_seconds(value: float | None, text: str) -> None:
    assert short_seconds(value) == text


def test_tabs_are_kept_as_room() -> None:
    assert printable("a\tb\r\nc\x07") == "a    b\nc�"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Screen:
    """A board on a screen or on a pipe, with a clock set by hand."""

    def __init__(self, *, terminal: bool) -> None:
        self.clock = Clock()
        self.out = io.StringIO()
        console = Console(
            file=self.out, force_terminal=terminal, width=100, highlight=False, _environ={"TERM": "xterm"}
        )
        self.board = StreamDisplay(10, console=console, clock=self.clock)

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.out.getvalue())

    def lines(self) -> list[str]:
        """The lines since last asked, without the time of day."""
        lines = self.text.splitlines()
        self.out.seek(0)
        self.out.truncate()
        return [re.sub(r"^\d\d:\d\d:\d\d  ", "", line) for line in lines]


def test_a_terminal_is_drawn_four_times_a_second_at_most() -> None:
    screen = Screen(terminal=True)
    with screen.board as shown:
        for step in range(100):
            screen.clock.now = 100 + step / 100
            shown.show(pipeline(stream(restarts=step)))
        drawn_so_far = screen.text.count("house_load")
        assert drawn_so_far == 4
        shown.notice("streets failed; starting it again in 1 s")
    assert "Streets failed; starting it again in 1 s." in screen.text
    # The last progress is what stays, though it came too soon after another.
    assert re.search(r"house_load .* 99\s*$", screen.text.rstrip())


def test_a_pipe_is_not_silent_while_a_stream_starts_or_does_nothing() -> None:
    screen = Screen(terminal=False)
    starting, idle = stream("streets", phase="starting"), stream()
    screen.board.show(pipeline(idle, starting))
    assert len(screen.lines()) == 2
    told = []
    for _ in range(210):
        screen.clock.now += 1
        screen.board.show(pipeline(idle, starting))
        told += screen.lines()
    # Three and a half minutes: the one that starts is told every ten seconds, the one that is idle every minute.
    assert sum(each.startswith("streets is starting") for each in told) == 21
    assert sum(each.startswith("house_load is running") for each in told) == 3


def test_a_pipe_gets_a_line_per_stream_when_something_happened() -> None:
    screen = Screen(terminal=False)
    screen.board.show(pipeline(stream(phase="starting"), stream("streets", phase="finished")))
    assert len(screen.lines()) == 2
    screen.board.show(pipeline(stream(), stream("streets", phase="finished")))
    first = screen.lines()
    assert len(first) == 1
    assert first[0].startswith("house_load is running: 12.3k/s in, 0.4/s out, lag 17, age ")
    screen.clock.now += 9.9
    screen.board.show(pipeline(stream(record_counts=RecordCounts(read=200)), stream("streets", phase="finished")))
    assert screen.lines() == []
    screen.clock.now += 0.2
    screen.board.show(pipeline(stream(record_counts=RecordCounts(read=200)), stream("streets", phase="finished")))
    assert len(screen.lines()) == 1
    screen.clock.now += 40
    screen.board.show(
        pipeline(
            stream(record_counts=RecordCounts(read=200), rows_in_per_second=99.0), stream("streets", phase="finished")
        )
    )
    assert screen.lines() == []


def test_a_failure_is_told_on_a_pipe_at_once_with_its_error() -> None:
    screen = Screen(terminal=False)
    screen.board.show(pipeline(stream()))
    screen.lines()
    screen.board.show(pipeline(stream(phase="failed", error="first\nsecond")))
    lines = screen.lines()
    assert lines[0].startswith("house_load is failed: ")
    assert lines[1:] == ["  first", "  second"]


def test_a_pipe_hears_the_last_state_at_the_end() -> None:
    screen = Screen(terminal=False)
    with screen.board as shown:
        shown.notice("the pipeline meters.py runs")
        shown.show(pipeline(stream()))
        shown.show(pipeline(stream(record_counts=RecordCounts(read=777))))
    lines = screen.lines()
    assert lines[0] == "The pipeline meters.py runs."
    assert len(lines) == 3
    assert "read 777" in lines[2]
    screen.board.close()
    assert screen.lines() == []


def test_a_long_line_is_not_broken_on_a_pipe() -> None:
    screen = Screen(terminal=False)
    screen.board.show(pipeline(stream("n" * 200)))
    assert len(screen.lines()) == 1


def test_losses_and_restarts_are_in_the_plain_line() -> None:
    text = plain_line(stream(record_counts=RecordCounts(read=5, expired=9)), NOW)
    assert text.endswith("age 1.2s, batch 850ms, read 5, dead 0, late 0, gone 9, restarts 1")


class Gone(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_that_is_gone_does_not_stop_the_pipeline(*, terminal: bool) -> None:
    shown = StreamDisplay(console=Console(file=Gone(), force_terminal=terminal, width=80, _environ={"TERM": "xterm"}))
    shown.notice("a remark")
    shown.show(pipeline(stream()))
    shown.close()


def test_force_color_does_not_make_a_pipe_a_screen(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with StreamDisplay() as shown:
        shown.show(pipeline(stream()))
    out, err = capfd.readouterr()
    assert out == ""
    assert "\x1b" not in err
    assert "house_load is running" in err


def test_a_dumb_terminal_gets_lines() -> None:
    out = io.StringIO()
    dumb = Console(file=out, force_terminal=True, width=80, _environ={"TERM": "dumb"})
    with StreamDisplay(console=dumb) as shown:
        shown.show(pipeline(stream()))
        assert "house_load is running" in out.getvalue()


ADDRESSES = [("Dashboard", "http://127.0.0.1:8480/"), ("Pipeline", "http://127.0.0.1:8480/pipeline")]


def test_addresses_are_in_a_box_on_a_terminal_the_dashboard_first() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    StreamDisplay(console=console).addresses("meters runs", ADDRESSES)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].startswith("╭─ meters runs ─")
    assert lines[1].startswith("│ Dashboard  http://127.0.0.1:8480/ ")
    assert lines[2].startswith("│ Pipeline   http://127.0.0.1:8480/pipeline ")
    assert lines[3].startswith("╰─")


def test_addresses_are_plain_lines_elsewhere() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=20)
    StreamDisplay(console=console).addresses("meters runs", ADDRESSES)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line[10:] for line in lines] == [
        "Dashboard: http://127.0.0.1:8480/",
        "Pipeline: http://127.0.0.1:8480/pipeline",
    ]


def test_a_first_batch_that_is_under_way_is_no_row_of_zeros() -> None:
    begun = stream(batch=-1, lag=2338, rows_in_per_second=0.0, record_counts=RecordCounts(), first_batch_records=2338)
    assert plain_line(begun, NOW) == "house_load is running: first batch: 2,338 records under way, lag 2338"
    assert display_row(begun, NOW)["phase"] == "first batch: 2,338 records under way"
    assert "first batch" in drawn(stream_table(pipeline(begun), 80, NOW), 80)[1]
    assert "first batch" not in plain_line(stream(), NOW)


@pytest.mark.parametrize(
    ("lag", "size", "records"), [(2338, 100_000, 2338), (2_000_000, 100_000, 100_000), (2338, None, 2338), (0, 100, 0)]
)
def test_a_first_batch_has_what_waits_up_to_a_batchs_size(lag: int, size: int | None, records: int) -> None:
    assert first_batch_records(stream(batch=-1, lag=lag), size) == records
    assert first_batch_records(stream(batch=0, lag=lag), size) == 0
    assert first_batch_records(stream(batch=-1, lag=lag, phase="starting"), size) == 0


def test_lines_of_a_long_first_batch_come_every_ten_seconds() -> None:
    screen, now = io.StringIO(), [0.0]
    display = StreamDisplay(10.0, console=Console(file=screen, width=200), clock=lambda: now[0])
    for second in range(41):
        now[0] = float(second)
        display.show(pipeline(stream(batch=-1, lag=2338, first_batch_records=2338)))
    assert screen.getvalue().count("first batch: 2,338 records under way") == 5
