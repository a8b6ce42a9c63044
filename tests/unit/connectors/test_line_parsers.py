"""What a line says."""

import pytest

from riverrun.connectors.files.line_parsers import line_parser_factory

COMBINED = (
    b'203.0.113.7 - frank [10/Oct/2026:13:55:36 -0700] "GET /a%20b?q=\\"x\\" HTTP/1.1" 200 2326 '
    b'"https://example.org/" "Mozilla/5.0 (X11)"'
)


def test_a_request_of_an_access_log() -> None:
    item = line_parser_factory("combined", field="", key="host", delimiter="")(())(COMBINED, "access.log@0")
    assert item.problem == ""
    assert item.key == "203.0.113.7"
    assert item.value == {
        "host": "203.0.113.7",
        "ident": None,
        "user": "frank",
        "time": "2026-10-10T13:55:36-07:00",
        "request": 'GET /a%20b?q=\\"x\\" HTTP/1.1',
        "method": "GET",
        "path": '/a%20b?q=\\"x\\"',
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": 2326,
        "referer": "https://example.org/",
        "agent": "Mozilla/5.0 (X11)",
    }


def test_the_common_format_and_a_request_that_is_none() -> None:
    line = b'::1 - - [01/Jan/2027:00:00:00 +0000] "\\x16\\x03\\x01" 400 -'
    item = line_parser_factory("common", field="", key="", delimiter="")(())(line, "")
    assert item.value["method"] is None
    assert item.value["request"] == "\\x16\\x03\\x01"
    assert item.value["bytes"] == 0
    assert item.value["time"] == "2027-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("format_", "line", "problem"),
    [
        ("combined", b"hello", "not of the combined log format"),
        ("common", b'h - - [01/Foo/2027:00:00:00 +0000] "" 400 -', "not of the common log format"),
        ("json", b'{"a": ', "not JSON"),
        ("json", b'{"a": "\xff"}', "not JSON"),
        ("text", b"\xff", "not UTF-8"),
        ("csv", b'1,"2', "not CSV"),
        ("csv", b"1", "1 columns, not 2"),
    ],
)
def test_a_line_that_cannot_be_read_says_why_and_is_kept(format_: str, line: bytes, problem: str) -> None:
    item = line_parser_factory(format_, field="line", key="", delimiter=",")(("a", "b"))(line, "f@3")
    assert problem in item.problem
    assert item.value == line
    assert item.location == "f@3"


def test_texts_of_csv_are_to_become_what_the_event_says() -> None:
    item = line_parser_factory("csv", field="", key="a", delimiter=";")(("a", "b"))(b"x;2.5", "")
    assert (item.value, item.loose, item.key) == ({"a": "x", "b": "2.5"}, True, "x")
