"""How records are printed: lines, and a table that grows."""

import io
import os
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from riverrun.cli.record_printers import LinePrinter, TablePrinter, check_pipe, make_printer


@dataclass
class Record:
    """A record as the client library would give it."""

    a_value: bytes
    an_offset: int = 0
    a_topic: str = "t"

    def topic(self) -> str:
        return self.a_topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.an_offset

    def key(self) -> bytes | None:
        return b"k"

    def value(self) -> bytes | None:
        return self.a_value

    def timestamp(self) -> tuple[int, int]:
        return (1, 0)

    def headers(self) -> Any:
        return None


def test_a_table_waits_for_its_columns_and_then_flows(capsys: pytest.CaptureFixture[str]) -> None:
    table = TablePrinter(with_topic=False)
    table.print([Record(b'{"a": 1}'), Record(b'{"a": 22, "b": "x"}', 1)])
    assert capsys.readouterr().out == ""
    table.flush()
    assert capsys.readouterr().out.splitlines() == [
        "PARTITION  OFFSET  TIME                      KEY   A  B",
        "        0       0  1970-01-01T00:00:00.000Z  k     1  -",
        "        0       1  1970-01-01T00:00:00.000Z  k    22  x",
    ]
    table.print([Record(b'{"a": 3, "late": true}', 2)])
    assert capsys.readouterr().out.splitlines() == [
        '        0       2  1970-01-01T00:00:00.000Z  k     3  -  {"late": true}'
    ]


def test_a_table_does_not_wait_for_ever(capsys: pytest.CaptureFixture[str]) -> None:
    table = TablePrinter(with_topic=True)
    table.print([Record(b"1", number) for number in range(500)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 501
    assert lines[0].startswith("TOPIC  PARTITION")


def test_lines_are_written_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", out)
    lines = LinePrinter(lambda record: record.value() or b"")
    lines.print([Record(b"\xff"), Record(b"2")])
    assert out.buffer.getvalue() == b"\xff\n2\n"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"as_json": True}, b'{"topic":"t","partition":0,"offset":0,"timestamp":"1970-01-01T00:00:00.000Z",'),
        ({"with_key": True}, b"k\t1\n"),
        ({}, b"1\n"),
    ],
)
def test_the_flags_choose(flags: dict[str, bool], expected: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", out)
    chosen = {"as_json": False, "as_table": False, "with_key": False, "several_topics": False, **flags}
    make_printer(**chosen).print([Record(b"1")])
    assert out.buffer.getvalue().startswith(expected)


def test_a_pipe_that_nobody_reads_is_noticed_without_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        check_pipe()
        os.close(reading)
        with pytest.raises(BrokenPipeError):
            check_pipe()
        monkeypatch.undo()
