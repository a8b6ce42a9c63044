"""Good and bad records by Spark's SQL are what they are by the project's own decoder,
and values come back as written."""

import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import riverrun as rr
from riverrun.errors import DeclarationError, RecordUnreadableError
from riverrun.model.event import Event, schema_of
from riverrun.streams.compile.java_regex import java_pattern
from riverrun.streams.compile.record_schema import RecordSchema, encode_key, encode_value

# A busy machine takes its time.
pytestmark = pytest.mark.timeout(600)


class Colour(Enum):
    RED = "red"
    ODD = 'it\'s \\ "odd"'


class Point(msgspec.Struct, frozen=True):
    x: int
    label: str = "none"
    seen: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class Rich(rr.Event):
    name: str = rr.key(pattern=r"^h-\w+$", min_length=3, max_length=8)
    load: float = rr.field(ge=0, lt=100)
    at: datetime = rr.event_time(late="2 minutes")
    count: int = rr.field(ge=-10, le=1000, multiple_of=5)
    on: bool
    day: date
    raw: bytes = rr.field(min_length=1, max_length=4)
    ident: UUID
    price: Decimal
    colour: Colour
    level: Literal[1, 2, 3]
    word: Literal["1", "true", "a"] | None = None
    big: int | None = None
    step: float = rr.field(default=0.5, multiple_of=0.25)
    note: str | None = "nothing"
    until: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    tags: list[str] = rr.field(default=[], max_length=3)
    counts: list[int] | None = None
    loads: list[float | None] = rr.field(default=[])
    limits: dict[str, int] = rr.field(default={})
    words: dict[str, str] | None = None
    point: Point | None = None
    points: list[Point] = rr.field(default=[])
    home: Point = Point(x=7)
    prices: list[Decimal] = rr.field(default=[])
    free: str | None = None


LEAST: dict[str, Any] = {
    "name": "h-1",
    "load": 1.5,
    "at": "2026-11-16T10:00:00Z",
    "count": 5,
    "on": True,
    "day": "2026-11-16",
    "raw": "YWI=",
    "ident": "12345678-1234-5678-1234-567812345678",
    "price": "12.50",
    "colour": "red",
    "level": 2,
}
MOST: dict[str, Any] = LEAST | {
    "at": "2026-11-16T10:00:00.123456+01:00",
    "colour": Colour.ODD.value,
    "word": "true",
    "big": 2**63 - 1,
    "step": 2,
    "note": "naïve 😀 \u2028 \x7f",
    "until": "2027-01-01 00:00:00-0530",
    "tags": ["a", "", "1"],
    "counts": [1, -(2**63)],
    "loads": [1, None, 2.5e300],
    "limits": {"a": 1, "": 2},
    "words": {"k": "v", "1": "2"},
    "point": {"x": 1, "label": "l", "seen": "2026-11-16T10:00:00Z"},
    "points": [{"x": 1}, {"x": 2, "label": "b", "seen": None}],
    "home": {"x": 0, "label": ""},
    "prices": ["1", 2, 2.5],
    "free": "4711",
}
GONE = object()


def record(**changes: Any) -> bytes:
    """A good record with some fields changed or gone. Bytes stand in it as they are."""
    fields = {name: value for name, value in (MOST | changes).items() if value is not GONE}
    parts = [
        json.dumps(name).encode() + b":" + (value if isinstance(value, bytes) else json.dumps(value).encode())
        for name, value in fields.items()
    ]
    return b"{" + b",".join(parts) + b"}"


LEAST_RECORD = json.dumps(LEAST).encode()

# Records whose verdict must be the decoder's, by name.
RECORDS: dict[str, bytes] = {
    "all fields": record(),
    "required fields only": LEAST_RECORD,
    "spaces around": b" \r\n\t" + record() + b" \n",
    "fields it does not know": record(zzz={"a": [1, {"b": None}]}, yyy="x"),
    "not JSON": b"hello",
    "empty": b"",
    "blank": b"  ",
    "null": b"null",
    "a number": b"5",
    "a text": b'"{}"',
    "an array of it": b"[" + record() + b"]",
    "an empty object": b"{}",
    "cut short": record()[:-1],
    "cut in the middle": record()[:99],
    "words after it": record() + b" xyz",
    "a brace after it": record() + b" }",
    "two of them": record() + b"\n" + record(),
    "two of them with a comma": record() + b"," + record(),
    "another field after it": record() + b',"more":{}',
    "a zero byte after it": record() + b"\0",
    "a byte order mark": b"\xef\xbb\xbf" + record(),
    "a trailing comma": record()[:-1] + b",}",
    "single quotes": record().replace(b'"', b"'"),
    "not UTF-8": record(note=b'"\xff"'),
    "a lone surrogate": record(note=b'"\\ud800"'),
    "a surrogate in bytes": record(note=b'"\xed\xa0\x80"'),
    "a control character": record(note=b'"a\x01"'),
    "an escaped zero": record(note=b'"\\u0000"'),
    "a bad escape": record(note=b'"\\x"'),
    "an escaped name": record().replace(b'"count"', b'"\\u0063ount"'),
    "a name in capitals": record().replace(b'"count"', b'"Count"'),
    "the same name twice": record()[:-1] + b',"count":10}',
    "the same name twice, first bad": b'{"count":"x",' + record()[1:],
    "the same name twice, last bad": record()[:-1] + b',"count":"x"}',
    **{f"without {name}": record(**{name: GONE}) for name in MOST},
}

NO_NULL = ("tags", "loads", "limits", "points", "home", "prices")
RECORDS |= {f"{name} is null": record(**{name: None}) for name in MOST if name not in NO_NULL}
WRONG: list[Any] = ["5", 5, 5.5, True, "true", [], [5], {}, {"x": "y"}]
RECORDS |= {f"{name} is {wrong!r}": record(**{name: wrong}) for name in MOST for wrong in WRONG}
RECORDS |= {f"note of least is {wrong!r}": json.dumps(LEAST | {"note": wrong}).encode() for wrong in WRONG}

# Bytes stand in the record as they are, all else is written as JSON.
VALUES: dict[str, list[Any]] = {
    "load": [b"0", b"-0.0", b"-1e-300", b"100", b"99.99", b"1e400", b"-1e400", b"NaN", b'"NaN"', b"Infinity",
             b"1e-400", b"01",
             b"1.", b".5", b"+1", b"1e", b"9" * 30],
    "count": [b"-10", b"-15", b"1000", b"1005", b"7", b"5.0", b"5e0", b"-0", b"05"],
    "step": [b"0.75", b"0.8", b"-0.25", b"1e2", b"null", b"1e400", b"9223372036854775808"],
    "level": [b"1", b"4", b"1.0", b'"1"'],
    "word": [b'"1"', b"1", b"true", b'"true"', b'"b"', b'""'],
    "name": ["h-", "h-1", "xh-1", "h-1\n", "h-1\r", "h-1\u2028", "h-é", "h-٣", "h-123456", "h-1234567", "h- 1",
             b'"h-\xff"'],
    "free": ["5", 5, b"5.0", b"-1", "-1", b"1e5", "1e5", "[]", [], "{}", {}, "true", True, False, "false", None, "",
             "5a", "-",
             b'"\xff"', b'"\xef\xbf\xbd"', b"12345678901234567890", "12345678901234567890"],
    "at": [
        "2026-11-16T10:00:00Z", "2026-11-16T10:00:00.000Z", "2026-11-16t10:00:00z", "2026-11-16 10:00:00Z",
        "2026-11-16T10:00:00",
        "2026-11-16T10:00Z", "2026-11-16", "10:00:00Z", "T10:00:00Z", "2026-11-16T10:00:00+01",
        "2026-11-16T10:00:00+0100",
        "2026-11-16T10:00:00 UTC", "2026-11-16T10:00:00 Z", "2026-11-16T10:00:00Z ", " 2026-11-16T10:00:00Z",
        "2026-1-16T10:00:00Z", "2026-11-16T1:00:00Z", "2026-1-1T10:00:00.0Z", "2026-11-16T10:00:5.Z",
        "2026-11-1T10:00:00.12Z",
        " 2026-1-16T10:00:00.1Z", "12026-1-16T10:00:00.1Z", "12026-1-16T10:00:00Z", "2026-11-16T10:00:00.5 Z",
        "2026-02-30T10:00:00Z", "2026-11-16T24:00:00Z", "2026-11-16T23:59:60Z", "0000-01-01T00:00:00Z",
        "0100-01-01T00:00:00Z",
        "12026-11-16T10:00:00Z", "+2026-11-16T10:00:00Z", "+2026-1-16T10:00:00Z", "2026-11-16T10:00:00.Z",
        "2026-11-16T10:00:00.1Z", "2026-11-16T10:00:00.1234564Z", "2026-11-16T10:00:00.1234565Z",
        "2026-11-16T10:00:00.9999999Z", "2026-11-16T10:00:00.1234567890123+05:30", "2026-11-16T10:00:00,5Z",
        "2026-11-16T10:00:00+18:00", "2026-11-16T10:00:00+24:00", "2026-11-16T10:00:00-00:00",
        "2026-11-16T10:00:00+00:60",
        "2026-11-16T10:00:00Europe/Paris", "now", "epoch", "1700000000", "",
    ],
    "day": ["2026-02-29", "2024-02-29", "2026-1-1", "2026-11-16T00:00:00Z", "2026-11-16 ", " 2026-11-16", "0000-01-01",
            "0100-01-01", "20261116", "today", "2026-11", ""],
    "raw": ["YQ==", "YWJjZA==", "YWJjZGU=", "", "YWI", "YW I=", "YWI=\n", "-_8=", "====", "Y===", "YWI=YWI=", "YX==",
            "YWJ=",
            "1234", 1234, "true", True],
    "ident": ["ABCDEF78-1234-5678-1234-567812345678", "ABCDEF78123456781234567812345678",
              "12345678-1234-5678-1234-56781234567",
              "{12345678-1234-5678-1234-567812345678}", "1234567812345678-1234567812345678", "",
              b"12345678123456781234567812345678", "12345678123456781234567812345678"],
    "price": ["1", "-1.50", "+5", ".5", "5.", "1e5", "1E-7", "1.5e+3", "-0", "abc", "", "1e", "0x10", "1,5", "1.2.3",
              "99999999999999999999.999999999999999999", "0.000000000000000001", b"1", b"-1.50", b"1e5", b"1.5E-7",
              b"0.1",
              b"1234567890123456789.12", b"9223372036854775808", b"0.000000000000000001"],
    "prices": [["1", 1, 1.5], ["x"], [None], [True], ["1e5"]],
    "tags": [[], ["a"] * 3, ["a"] * 4, [1], [None], ["a", 1], [["a"]], "a", {"a": "b"}],
    "counts": [[], [1, None], [1.0], ["1"], [True], [[1]]],
    "loads": [[None], ["1"], b"[1e400]"],
    "limits": [{}, {"a": None}, {"a": 1.5}, {"a": "1"}, {"a": {}}, [1], b'{"a":1,"a":2}'],
    "words": [{}, {"a": 1}, {"a": None}, {"a": {}}, [["a", "b"]]],
    "point": [{}, {"x": None}, {"x": "1"}, {"x": 1, "label": 5}, {"x": 1, "label": None}, {"x": 1, "more": []}, [1],
              {"x": 1, "seen": "2026-11-16T10:00:00"}, {"x": 1, "seen": "2026-11-16T10:00:00.5Z"}],
    "points": [[], [{}], [None], [{"x": 1}, {"x": 1, "label": 2}], {"x": 1}],
}  # fmt: skip
RECORDS |= {f"{name} is {said!r}": record(**{name: said}) for name, several in VALUES.items() for said in several}
RECORDS |= {f"until is {said!r}": record(until=said) for said in VALUES["at"]}
RECORDS |= {
    f"free is {said!r} beside another": record(free=said, zzz={"free": "5"}) for said in VALUES["free"]
}  # fmt: skip


Judged = Mapping[bytes | None, dict[str, Any] | None]


def plain(value: Any) -> Any:
    """A decoded value or a collected one, so that both can be compared."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Row):
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def raw_frame(spark: SparkSession, values: Sequence[bytes | None]) -> DataFrame:
    rows = [(at, None if value is None else bytearray(value)) for at, value in enumerate(values)]
    return spark.createDataFrame(rows, "id int, value binary")


def parsed(spark: SparkSession, event: type[Event], values: Sequence[bytes | None]) -> list[dict[str, Any] | None]:
    """The values of good records, None for bad ones, in order."""
    frame = RecordSchema.from_event(event).parse(raw_frame(spark, values))
    # Bad records may hold times that Python has no datetime for.
    kept = F.when(F.col("_ok"), F.struct(*event.__struct_fields__))
    rows = frame.select("id", "_ok", kept.alias("kept")).collect()
    rows.sort(key=lambda row: int(row["id"]))
    assert [row["id"] for row in rows] == list(range(len(values)))
    assert {row["_ok"] for row in rows} <= {True, False}
    return [plain(row["kept"]) for row in rows]


def decoded(event: type[Event], value: bytes) -> dict[str, Any] | None:
    try:
        found = plain(schema_of(event).decode(value))
    except RecordUnreadableError:
        return None
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def judged(spark: SparkSession) -> Judged:
    """What Spark makes of each record of this file: all at once, because planning takes longer than parsing."""
    values = list(dict.fromkeys([None, *RECORDS.values(), *BAD_HERE_RECORDS, *GOOD_HERE_RECORDS, *mutations()]))
    return dict(zip(values, parsed(spark, Rich, values), strict=True))


def test_a_record_is_good_when_the_decoder_says_so_and_has_the_same_values(judged: Judged) -> None:
    wanted = {name: decoded(Rich, value) for name, value in RECORDS.items()}
    found = {name: judged[value] for name, value in RECORDS.items()}
    assert {name: (found[name], wanted[name]) for name in RECORDS if found[name] != wanted[name]} == {}
    good = sum(each is not None for each in wanted.values())
    assert good > 100
    assert len(wanted) - good > 200


def test_a_record_without_a_value_is_bad(judged: Judged) -> None:
    assert judged[None] is None


class Loose(rr.Event):
    """Every record that is an object is one of these."""

    note: str = "x"
    count: int | None = None


class Closed(rr.Event, forbid_unknown_fields=True, rename="camel"):
    first_name: str
    last_name: str = ""


def test_events_that_need_nothing_and_events_that_allow_nothing_else(spark: SparkSession) -> None:
    values = [b"null", b"{}", b"[]", b"", b'{"a":1}', b'{"count":null,"note":""}', b'{"note":null}', b"{} {}", b"{}}"]
    assert parsed(spark, Loose, values) == [decoded(Loose, value) for value in values]
    values = [
        b'{"firstName":"a"}',
        b'{"first_name":"a"}',
        b'{"firstName":"a","x":1}',
        b'{"lastName":"","firstName":"b"}',
    ]
    assert parsed(spark, Closed, values) == [decoded(Closed, value) for value in values]


TEXTS = [
    "",
    "a",
    "A",
    "é",
    "٣",
    "a\n",
    "\n",
    "a\r",
    "a b",
    "[",
    "]",
    "&",
    "a&&b",
    "{a}",
    "aaa",
    "aaaa",
    "ab",
    "_",
    "-",
    "h-1",
    "ß",
    "İ",
]
PATTERNS = [
    r"^\w+$", r"\d", r"^\S*\Z", r"^[]a[&]+$", r"[^&]", r"^a{,3}$", r"^a{2,}", r"^{a}$", r"(?i)^A$", r"^.$",
    r"(?P<first_one>a)b",
    r"^(?:a|h-\d)$", r"\bb", r"^(?!a)", r"a$", r"^[\w-]+$", r"(?s)^a.$", r"(?m)^a$",
]  # fmt: skip


def test_a_pattern_means_in_spark_what_it_means_in_python(spark: SparkSession) -> None:
    frame = spark.createDataFrame(list(enumerate(TEXTS)), "id int, text string").orderBy("id")
    found = frame.select(*(F.col("text").rlike(java_pattern(each)) for each in PATTERNS)).collect()
    for at, pattern in enumerate(PATTERNS):
        here = [text for text, row in zip(TEXTS, found, strict=True) if row[at]]
        assert here == [text for text in TEXTS if re.search(pattern, text)], pattern


def far_from_utc(value: bytes, event: dict[str, Any] | None) -> bool:
    try:
        found = msgspec.json.decode(value, type=Rich)
    except (msgspec.MsgspecError, ValueError):
        return False
    times = [found.at, found.until, *(each.seen for each in [*found.points, found.home] if each.seen)]
    return event is not None and any(abs(time.utcoffset() or timedelta()) > timedelta(hours=18) for time in times)


def numbers_in(value: Any) -> Iterator[int | Decimal]:
    if isinstance(value, Decimal) or type(value) is int:
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from numbers_in(each)


def wide_integer(_: bytes, event: dict[str, Any] | None) -> bool:
    return event is not None and any(
        not -(2**63) <= each < 2**63 for each in numbers_in(event) if isinstance(each, int)
    )  # fmt: skip


def odd_decimal(value: bytes, event: dict[str, Any] | None) -> bool:
    """One that is no number, does not fit, or is not written in plain digits."""
    if event is None:
        return False
    for each in numbers_in(event):
        if isinstance(each, Decimal):
            step = Decimal(1).scaleb(-18)
            if not each.is_finite() or abs(each) >= 10**20 or (each % step if abs(each) >= step else each):
                return True
    return b"_" in value or any(quoted in value for quoted in (b'" ', b' "'))


# Good for the decoder, bad here: the docstring of riverrun.streams.compile.record_schema names each.
BAD_HERE: dict[str, Callable[[bytes, dict[str, Any] | None], bool]] = {
    "an integer beyond 64 bits": wide_integer,
    "a Decimal that a column cannot hold": odd_decimal,
    "a time far from UTC": far_from_utc,
    "text that is not UTF-8 where nobody looks": lambda value, _: not _is_utf8(value),
    "a name twice, and text that looks like a number": lambda value, _: twice(value, None),
}


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def with_names(value: bytes) -> list[tuple[str, Any]]:
    return json.loads(value, object_pairs_hook=list) if _is_utf8(value) else []


def null_for_a_default(value: bytes, _: dict[str, Any] | None) -> bool:
    """Without its null lists, dicts and structs, the decoder takes it."""
    fields = json.loads(value)
    for name in NO_NULL:
        if fields.get(name, 0) is None:
            del fields[name]
    return decoded(Rich, json.dumps(fields).encode()) is not None


def twice(value: bytes, _: dict[str, Any] | None) -> bool:
    names = [name for name, _ in with_names(value)]
    return len(names) > len(set(names))


# Bad for the decoder, good here.
GOOD_HERE: dict[str, Callable[[bytes, dict[str, Any] | None], bool]] = {
    "null for a list, dict or struct with a default": null_for_a_default,
    "a name twice, the first bad": twice,
}

TOKENS: list[bytes] = [
    b"null", b"true", b"1", b"-1", b"5", b"1.5", b"1e400", b"1e2", b"0", b"9223372036854775808", b'""', b'"x"',
    b'"1"', b"[]", b"{}",
    b"[null]", b'["a"]', b"[1]", b'{"a":1}', b'{"x":1}', b'"2026-11-16T10:00:00Z"', b'"2026-11-16"', b'"red"',
    b'"1.5"', b'"YWI="',
    b'"\xff"', b"NaN", b"tru", b"'a'", b'[{"x":1}]', b'{"x":null}',
]  # fmt: skip
BYTES = b'{}[]",:\\0123456789.eE+-TZz nulltrue/=ax_\xc3\xff\x00\n'


def mutated(luck: random.Random) -> bytes:
    value = record(**{luck.choice(list(MOST)): luck.choice(TOKENS) for _ in range(luck.choice([0, 0, 0, 0, 1, 2]))})
    if luck.random() < 0.3:
        value = record(**{luck.choice(list(MOST)): GONE})
    for _ in range(luck.choice([0, 1, 1, 1, 1, 2])):
        at = luck.randrange(len(value))
        piece = bytes([luck.choice(BYTES if luck.random() < 0.5 else b"0123456789")])
        match luck.randrange(7):
            case 0:
                value = value[:at] + piece + value[at:]
            case 1:
                value = value[:at] + value[at + 1 :]
            case 2 | 3 | 6:
                value = value[:at] + piece + value[at + 1 :]
            case 4:
                value = value[:at] + luck.choice(TOKENS) + value[at:]
            case 5:
                value = value[: max(1, at)] if luck.random() < 0.1 else value + piece
    return value


def mutations() -> list[bytes]:
    luck = random.Random(20261116)
    return list(dict.fromkeys(mutated(luck) for _ in range(4000)))


def test_mutated_records_are_judged_as_the_decoder_judges_them(judged: Judged) -> None:
    values = mutations()
    excused: Counter[str] = Counter()
    wrong = []
    verdicts: Counter[bool] = Counter()
    for value in values:
        here, there = judged[value], decoded(Rich, value)
        verdicts[there is not None] += 1
        if here == there:
            continue
        excuses = BAD_HERE if here is None else GOOD_HERE if there is None else {}
        excuse = next((name for name, holds in excuses.items() if holds(value, there)), None)
        if excuse is None:
            wrong.append((value, here, there))
        else:
            excused[excuse] += 1
    assert wrong == []
    assert min(verdicts.values()) > 300
    assert sum(excused.values()) < len(values) // 20, excused


BAD_HERE_RECORDS = [
    record(big=2**63), record(counts=[-(2**63) - 1]), record(price="NaN"), record(price="Infinity"),
    record(price="1e30"),
    record(price="1.0000000000000000001"), record(price="1e-19"), record(price=" 1"), record(price="1_0"),
    record(price=b"1.00000000000000000000000001"), record(price=b"0." + b"12345" * 9),
    record(at="2026-11-16T10:00:00+18:01"),
    record(zzz=b'"\xff"'), record(zzz=b"1" * 1001),
]  # fmt: skip
GOOD_HERE_RECORDS = [
    *(record(**{name: None}) for name in NO_NULL),
    b'{"at":"x",' + record()[1:],
    b'{"name":5,' + record()[1:],
]


def test_the_exceptions_are_as_documented(judged: Judged) -> None:
    for value in BAD_HERE_RECORDS:
        assert judged[value] is None, value
        assert decoded(Rich, value) is not None, value
    for value in GOOD_HERE_RECORDS:
        assert judged[value] is not None, value
        assert decoded(Rich, value) is None, value


def test_columns_with_the_names_of_the_records_own_are_refused(spark: SparkSession) -> None:
    class Sample(rr.Event):
        Value: int

    raw = raw_frame(spark, [b'{"Value":1}'])
    with pytest.raises(DeclarationError) as caught:
        RecordSchema.from_event(Sample).parse(raw)
    assert caught.value.fields["columns"] == ["value"]
    found = RecordSchema.from_event(Sample).parse(raw.withColumnRenamed("value", "_value"), "_value").collect()
    assert [(row["Value"], row["_ok"]) for row in found] == [(1, True)]


def test_what_is_written_is_read_back_by_the_decoder_and_by_spark(spark: SparkSession) -> None:
    values = [record(), LEAST_RECORD, record(note=None, until="0100-01-01T00:00:00.000001+01:00")]
    rows = (
        RecordSchema.from_event(Rich)
        .parse(raw_frame(spark, values))
        .where("_ok")
        .orderBy("id")
        .select(*Rich.__struct_fields__)
        .cache()
    )
    assert rows.count() == len(values)
    written = rows.select(encode_value(rows.schema).alias("value"))
    events = [plain(schema_of(Rich).decode(row["value"].encode())) for row in written.collect()]
    assert events == [decoded(Rich, value) for value in values]
    back = RecordSchema.from_columns(rows.schema).parse(written.select(F.col("value").cast("binary")))
    assert [plain(row) | {"value": ""} for row in back.collect()] == [
        plain(row) | {"_ok": True, "value": ""} for row in rows.collect()
    ]
    assert [(field.name, field.dataType) for field in back.schema.fields[1:-1]] == [
        (field.name, field.dataType) for field in rows.schema.fields
    ]


COLUMNS = """
select window(timestamp'2026-11-16 10:00:30Z', '1 minute') as minute, 'h "1"\\n😀' as house, 5Y as tiny, 6S as small,
7 as number,
  8L as big, 1.5F as half, 2.5D as load, cast('12.340' as decimal(10,3)) as price,
  cast('1E-20' as decimal(38,30)) as little,
  true as yes, timestamp'2026-11-16 10:00:00.000001Z' as at, timestamp_ntz'2026-11-16 10:00:00.12' as there,
  date'2026-11-16' as day, X'00ff61' as raw, array(1D, null, double('NaN')) as loads, map('a', double('Infinity'),
  'b', 2D) as most,
  array(named_struct('x', 1, 'y', float('-Infinity'))) as points, double('NaN') as nothing,
  cast(null as string) as gone,
  named_struct('a b', 'c.d') as `odd name`
"""


def columns_frame(spark: SparkSession) -> DataFrame:
    return spark.sql(COLUMNS + "from range(1)")


def test_any_columns_are_written_and_read_back(spark: SparkSession) -> None:
    rows = columns_frame(spark)
    written = rows.select(encode_value(rows.schema).alias("value"))
    said = json.loads(written.collect()[0]["value"], parse_constant=pytest.fail)
    assert said["minute"] == {"start": "2026-11-16T10:00:00.000000Z", "end": "2026-11-16T10:01:00.000000Z"}
    assert said["at"] == "2026-11-16T10:00:00.000001Z"
    assert (said["there"], said["day"], said["raw"]) == ("2026-11-16T10:00:00.120000", "2026-11-16", "AP9h")
    assert (said["loads"], said["most"], said["nothing"]) == ([1.0, None, None], {"a": None, "b": 2.0}, None)
    back = RecordSchema.from_columns(rows.schema).parse(written.select(F.col("value").cast("binary"))).collect()[0]
    assert back["_ok"]
    expected = plain(rows.collect()[0])
    changed = {
        "loads": [1.0, None, None],
        "most": {"a": None, "b": 2.0},
        "points": [{"x": 1, "y": None}],
        "nothing": None,
    }
    assert math.isnan(expected["nothing"])
    assert {name: plain(back[name]) for name in rows.columns} == expected | changed


def test_the_session_s_time_zone_changes_nothing_that_is_written(spark: SparkSession) -> None:
    rows = columns_frame(spark).selectExpr("at", "minute", "day")
    texts = [encode_value(rows.schema), encode_key(rows.schema, ["at"]), encode_key(rows.schema, ["minute", "day"])]
    before = rows.select(*texts).collect()
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        assert [list(row) for row in rows.select(*texts).collect()] == [list(row) for row in before]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_a_stream_s_record_may_lack_its_nullable_columns_and_no_others(spark: SparkSession) -> None:
    columns = spark.sql("select 'a' as house, cast(null as int) as count, cast(1 as double) as load").schema
    assert [field.nullable for field in columns.fields] == [False, True, False]
    values = [b'{"house":"a"}', b'{"house":"a","count":null}', b'{"count":1}', b'{"house":"a","count":"1"}',
              b'{"house":5}', b'{"house":"a","count":2147483648}', b"{}", b"x", None]  # fmt: skip
    found = RecordSchema.from_columns(columns).parse(raw_frame(spark, values)).orderBy("id").collect()
    assert [row["_ok"] for row in found] == [True, True] + [False] * 7


@pytest.mark.parametrize(
    ("names", "key"),
    [
        (["house"], 'h "1"\n😀'),
        (["number"], "7"),
        (["big"], "8"),
        (["yes"], "true"),
        (["price"], "12.340"),
        (["at"], "2026-11-16T10:00:00.000001Z"),
        (["there"], "2026-11-16T10:00:00.12"),
        (["day"], "2026-11-16"),
        (["minute"], "2026-11-16T10:00:00Z"),
        (["gone"], None),
        (["points"], '[{"x":1,"y":null}]'),
        (["minute", "house"], '["2026-11-16T10:00:00Z","h \\"1\\"\\n😀"]'),
        (["number", "gone", "yes", "day", "odd name"], '[7,null,true,"2026-11-16",{"a b":"c.d"}]'),
        (["minute", "number"], '["2026-11-16T10:00:00Z",7]'),
    ],
)
def test_the_key_of_a_row(spark: SparkSession, names: list[str], key: str | None) -> None:
    rows = columns_frame(spark)
    assert rows.select(encode_key(rows.schema, names)).collect()[0][0] == key


def test_a_binary_key_keeps_its_bytes(spark: SparkSession) -> None:
    rows = columns_frame(spark)
    assert rows.select(encode_key(rows.schema, ["raw"]).cast("binary")).collect()[0][0] == b"\x00\xffa"


def test_whatever_is_in_the_texts_of_a_key_it_is_json(spark: SparkSession) -> None:
    texts = [f"a{chr(each)}b" for each in (*range(0x80), 0x85, 0xA0, 0x2028, 0xFEFF, 0x1F600)] + ["", "\\", '"', "\n"]
    rows = spark.createDataFrame([(text, number) for number, text in enumerate(texts)], "text string, number int")
    keys = rows.select("text", encode_key(rows.schema, ["text", "number"]).alias("key")).collect()
    assert [json.loads(row["key"]) for row in keys] == [[text, number] for number, text in enumerate(texts)]
