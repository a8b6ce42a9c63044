"""Records from lines, and the lines that are none."""

import io
from collections.abc import Iterator
from datetime import datetime

import pytest

from riverrun.errors import UsageError
from riverrun.model.event import Event, event_time, field, key, schema_of
from riverrun.model.lines import BadLine, LineRecord, csv_lines, json_lines, text_lines


class Reading(Event):
    """What the typed tests send."""

    house_id: str = key()
    load_kw: float = field(ge=0)
    at: datetime = event_time()
    note: str | None = field(default=None)


LIMIT = 200
GOOD = '{"house_id":"h1","load_kw":1.5,"at":"2026-07-01T10:00:00Z"}'
SCHEMA = schema_of(Reading)


def parsed(data: str | bytes, **options: object) -> list[LineRecord | BadLine]:
    stream = io.BytesIO(data.encode() if isinstance(data, str) else data)
    return list(json_lines(stream, limit=LIMIT, **options))  # type: ignore[arg-type]


def reason(found: list[LineRecord | BadLine]) -> str:
    (bad,) = (each for each in found if isinstance(each, BadLine))
    return bad.reason


def text_key(found: LineRecord | BadLine) -> str:
    assert isinstance(found, LineRecord)
    return found.key.decode() if isinstance(found.key, bytes) else str(found.key)


def test_lines_are_sent_as_they_stand_and_numbered() -> None:
    assert parsed('{"b": 1, "a":2}\n\n  \n[1]\r\n"text"\n7') == [
        LineRecord(1, None, b'{"b": 1, "a":2}'),
        LineRecord(4, None, b"[1]"),
        LineRecord(5, None, b'"text"'),
        LineRecord(6, None, b"7"),
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_record() -> None:
    assert parsed(b"\xef\xbb\xbf1\n") == [LineRecord(1, None, b"1")]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"not json", "invalid character"),
        (b'{"a":1', "truncated"),
        (b'{"a":1} trailing', "trailing characters"),
        (b"NaN", "invalid character"),
        (b'{"a":"\xff"}', "not UTF-8 text (byte 7 of the line)"),
        (b'"' + b"x" * LIMIT + b'"', "longer than a record may be (200 bytes)"),
        (b"1" + b" " * LIMIT + b"2", "longer than a record may be (200 bytes)"),
        (b"{", "jq -c"),
    ],
)
def test_a_line_that_is_not_json_is_named_and_the_next_is_read(line: bytes, why: str) -> None:
    found = parsed(line + b"\n1\n")
    assert isinstance(found[0], BadLine)
    assert found[0].number == 1
    assert why in found[0].reason
    assert found[1] == LineRecord(2, None, b"1")


def test_memory_is_bounded_by_the_limit_and_not_by_the_line() -> None:
    class Endless(io.RawIOBase):
        """A line of ten million bytes that is never in memory at once."""

        left = 10_000_000
        largest = 0

        def readable(self) -> bool:
            return True

        def readline(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            assert size > 0
            self.largest = max(self.largest, size)
            count = min(size, self.left)
            self.left -= count
            return b"x" * count

    stream = Endless()
    found = list(json_lines(stream, limit=LIMIT))  # type: ignore[arg-type]
    assert [type(each) for each in found] == [BadLine]
    assert stream.left == 0
    assert stream.largest < LIMIT + 10


def test_a_schema_checks_every_line_and_gives_the_key() -> None:
    found = parsed(f'{GOOD}\n{{"house_id":"h2"}}\n{GOOD.replace("1.5", "-1")}\n', schema=SCHEMA)
    assert text_key(found[0]) == "h1"
    assert [each.reason for each in found if isinstance(each, BadLine)] == [
        "object missing required field `load_kw`",
        "$.load_kw: expected `float` >= 0.0",
    ]


@pytest.mark.parametrize(
    ("line", "field_name", "expected"),
    [
        ('{"id":"a"}', "id", "a"),
        ('{"id":12}', "id", "12"),
        ('{"id":1.50}', "id", "1.5"),
        ('{"house":{"id":"é"}}', "house.id", "é"),
        ('{"house-id":"x"}', "house-id", "x"),
    ],
)
def test_a_key_field_is_found(line: str, field_name: str, expected: str) -> None:
    (found,) = parsed(line, key=field_name)
    assert text_key(found) == expected
    assert isinstance(found, LineRecord)
    assert found.value == line.encode()


@pytest.mark.parametrize("line", ['{"id":null}', '{"id":true}', '{"id":{}}', '{"other":1}', "[1]", "3", '{"id":'])
def test_a_line_without_the_key_field_is_no_record(line: str) -> None:
    (found,) = parsed(line, key="id")
    assert isinstance(found, BadLine)


def test_a_separator_divides_key_and_value() -> None:
    assert parsed('k1\t{"a":1}\n{"a":1}\n', separator=b"\t") == [
        LineRecord(1, b"k1", b'{"a":1}'),
        BadLine(2, "there is no '\\t' between key and value", b'{"a":1}'),
    ]
    assert "malformed" in reason(parsed("k1\tnope\n", separator=b"\t"))


def test_text_is_whatever_it_is() -> None:
    assert list(text_lines(io.BytesIO(b"one: two\nthree\n"), separator=b":", limit=LIMIT)) == [
        LineRecord(1, b"one", b" two"),
        BadLine(2, "there is no ':' between key and value", b"three"),
    ]


def rows(data: str | bytes, typed: bool = False, key_field: str = "") -> Iterator[LineRecord | BadLine]:
    stream = io.BytesIO(data.encode() if isinstance(data, str) else data)
    return csv_lines(stream, schema=SCHEMA if typed else None, key=key_field, limit=LIMIT)


def test_csv_without_a_type_is_text() -> None:
    assert list(rows('id, name\r\n1,"Ann, ""A"""\n\n2,\n', key_field="id")) == [
        LineRecord(2, b"1", b'{"id":"1","name":"Ann, \\"A\\""}'),
        LineRecord(4, b"2", b'{"id":"2","name":""}'),
    ]


def test_csv_with_a_type_reads_its_cells() -> None:
    found = list(rows("house_id,load_kw,at,note\nh1,2,2026-07-01T10:00:00Z,\n", typed=True))
    assert isinstance(found[0], LineRecord)
    assert text_key(found[0]) == "h1"
    assert SCHEMA.decode(found[0].value).load_kw == 2.0
    assert SCHEMA.decode(found[0].value).note is None


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("h1,much,2026-07-01T10:00:00Z", "load_kw: expected `float`"),
        ("h1,-1,2026-07-01T10:00:00Z", "load_kw: expected `float` >= 0.0"),
        ("h1,,2026-07-01T10:00:00Z", "missing required field `load_kw`"),
        ("h1,1", "it has 2 cells, and the first row names 3"),
    ],
)
def test_a_row_that_is_no_event_is_named(row: str, why: str) -> None:
    found = list(rows(f"house_id,load_kw,at\n{row}\nh2,1,2026-07-01T10:00:00Z\n", typed=True))
    assert isinstance(found[0], BadLine)
    assert found[0].number == 2
    assert why in found[0].reason
    assert isinstance(found[1], LineRecord)


def test_a_row_over_several_lines_counts_from_its_first() -> None:
    found = list(rows('a,b\n"one\ntwo",1\nshort\n'))
    assert isinstance(found[0], LineRecord)
    assert (found[0].number, found[1].number) == (2, 4)


def test_bytes_that_are_no_text_are_named_in_their_row() -> None:
    found = list(rows(b"a,b\n1,\xff\n2,3\n"))
    assert found[0] == BadLine(2, "it is not UTF-8 text", b"1,\xff")
    assert isinstance(found[1], LineRecord)


def test_a_row_that_is_too_long_is_not_cut_and_sent() -> None:
    found = list(rows("a,b\n1" + ",x" * 500 + "\n2,3\n"))
    assert isinstance(found[0], BadLine)
    assert found[0].reason == "it is longer than a record may be (200 bytes)"
    assert found[1] == LineRecord(3, None, b'{"a":"2","b":"3"}')


def test_a_quote_that_never_ends_is_one_bad_row() -> None:
    found = list(rows('a,b\n"' + "x\n" * 300))
    assert isinstance(found[0], BadLine)
    assert found[0].number == 2


@pytest.mark.parametrize(
    ("header", "typed", "key_field", "what"),
    [
        ("a,b,a", False, "", "The first row names a twice"),
        ("a,b", False, "c", "There is no column c for the key"),
        ("house_id,load", True, "", "The column 'load' is no field of Reading"),
        ("house_id,load_kw", True, "", "There is no column for at of Reading"),
    ],
)
def test_a_wrong_header_stops_before_the_first_row(header: str, typed: bool, key_field: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        list(rows(f"{header}\n1,2\n", typed, key_field))
    assert caught.value.what == what


def test_nothing_is_no_records() -> None:
    assert list(rows("")) == []
    assert parsed("") == []
