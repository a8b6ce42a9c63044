"""The forms in which a record is shown."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from riverrun.model.record import (
    column_names,
    decode_json,
    format_timestamp,
    json_line,
    plain_line,
    safe_text,
    table_row,
)


@dataclass
class Record:
    """A record as the client library would give it."""

    a_value: bytes | None = b"1"
    a_key: bytes | None = None
    a_time: int = 1_782_900_000_123
    some_headers: Any = None

    def topic(self) -> str:
        return "readings"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 41

    def key(self) -> bytes | None:
        return self.a_key

    def value(self) -> bytes | None:
        return self.a_value

    def timestamp(self) -> tuple[int, int]:
        return (1, self.a_time)

    def headers(self) -> Any:
        return self.some_headers


def as_json(record: Record) -> dict[str, Any]:
    line = json_line(record)
    assert b"\n" not in line
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def test_a_json_record_is_one_object_with_its_place() -> None:
    assert as_json(Record(b'{"a": [1, 2]}', b"k", some_headers=[("h", b"v"), ("n", None)])) == {
        "topic": "readings",
        "partition": 3,
        "offset": 41,
        "timestamp": "2026-07-01T10:00:00.123Z",
        "key": "k",
        "value": {"a": [1, 2]},
        "headers": {"h": "v", "n": None},
    }


@pytest.mark.parametrize(
    ("value", "name", "shown"),
    [
        (None, "value", None),
        (b"null", "value", None),
        (b'{\n "a": 1\r\n}', "value", {"a": 1}),
        ('{"a":"é"}'.encode(), "value", {"a": "é"}),
        (b'plain "text"\n', "value_text", 'plain "text"\n'),
        (b"", "value_text", ""),
        (b"\xff\x00", "value_base64", "/wA="),
        (b'{"a":"\xff"}', "value_base64", "eyJhIjoi/yJ9"),
    ],
)
def test_any_value_is_shown_and_what_it_is_is_said(value: bytes | None, name: str, shown: Any) -> None:
    found = as_json(Record(value))
    assert found[name] == shown
    assert [each for each in found if each.startswith("value")] == [name]


def test_any_key_and_header_is_shown() -> None:
    assert as_json(Record(a_key=None))["key"] is None
    assert as_json(Record(a_key=b'"\n'))["key"] == '"\n'
    assert as_json(Record(a_key=b"\xff"))["key_base64"] == "/w=="
    assert as_json(Record(some_headers=[("h", b"\xff")]))["headers"] == {"h": "base64:/w=="}


def test_a_record_without_a_time_has_none() -> None:
    assert as_json(Record(a_time=-1))["timestamp"] is None
    assert table_row(Record(a_time=-1))["time"] is None


def test_a_plain_line_is_the_value_as_it_is() -> None:
    assert plain_line(Record(b"\x1b[31m\xff"), with_key=False, on_terminal=False) == b"\x1b[31m\xff"
    assert plain_line(Record(None, b"k"), with_key=True, on_terminal=False) == b"k\tnull"
    assert plain_line(Record(b"v"), with_key=True, on_terminal=False) == b"\tv"


def test_a_terminal_gets_no_control_characters() -> None:
    assert plain_line(Record(b"\x1b[31m\xff", b"\x07"), with_key=True, on_terminal=True) == b"\\x07\t\\x1b[31m\\xff"
    assert safe_text("é\u202e\n".encode()) == "é\\u202e\n".encode()


def test_a_row_has_a_column_for_each_field() -> None:
    assert table_row(Record(b'{"a":1,"key":"mine"}', b"k")) == {
        "partition": 3,
        "offset": 41,
        "time": "2026-07-01T10:00:00.123Z",
        "key": "k",
        "a": 1,
        "value.key": "mine",
    }
    assert table_row(Record(b"[1]"))["value"] == [1]
    assert table_row(Record(b"\xff"))["value"] == "\\xff"


def test_columns_are_all_names_in_order() -> None:
    assert column_names([{"a": 1, "b": 2}, {"c": 1, "a": 2}]) == ["a", "b", "c"]


def test_json_or_not() -> None:
    assert decode_json(b"1") == (True, 1)
    assert decode_json(None) == (True, None)
    assert decode_json(b"nope") == (False, None)
    assert decode_json(b'"\xff"') == (False, None)


def test_moments_are_utc() -> None:
    assert format_timestamp(0) == "1970-01-01T00:00:00.000Z"
