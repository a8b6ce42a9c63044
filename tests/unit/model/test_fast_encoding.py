"""The quick look may only pass what the decoder would take: held against the decoder with values meant to break it."""

import itertools
import math
import random
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Any, Literal
from zoneinfo import ZoneInfo

import msgspec
import pytest

from riverrun.errors import EventInvalidError
from riverrun.model.event import Event, EventMeta, field, key, schema_of
from riverrun.model.fast_encoding import encoder_for


class MyStr(str):
    __slots__ = ()


class MyInt(int):
    pass


class MyFloat(float):
    __slots__ = ()


class MyDatetime(datetime):
    pass


class NoZone(timezone.__base__):  # type: ignore[misc,name-defined]
    """A time zone that does not know its offset."""

    def utcoffset(self, _: datetime | None) -> None:
        return None


NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 5, 10, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63),
    -(2**63) - 1, 10**30,
    0.0, -0.0, 0.5, 1.0, 1.5, -1.5, 5e-324, 1e308, 1e309, -1e309, math.nan, math.inf, -math.inf, math.nextafter(1, 2),
    math.nextafter(1, 0), sys.float_info.max, -sys.float_info.max, 9007199254740993.0,
    "", "a", "ab", "abc", "abcdef", "é", "𝄞", "𝄞𝄞𝄞", "\ud800", "\x00", '"\\', "x" * 1000, "red", "blue", "5", "true",
    "2026-01-01T00:00:00Z", b"", b"a", b"\xff", bytearray(b"a"), memoryview(b"a"),
    NOW, NOW.replace(tzinfo=None), datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC),
    NOW.replace(tzinfo=NoZone()), NOW.astimezone(ZoneInfo("Asia/Kolkata")), NOW.replace(tzinfo=ZoneInfo("UTC")),
    NOW.astimezone(timezone(timedelta(hours=-23, minutes=-59))), NOW.astimezone(timezone(timedelta(seconds=17))),
    MyDatetime(2026, 1, 1, tzinfo=UTC), uuid.uuid4(), uuid.UUID(int=0), str(uuid.uuid4()), MyStr("a"), MyInt(3),
    MyFloat(1.5), [], ["a"], {}, object(), Ellipsis, 1j,
]  # fmt: skip

KINDS: dict[str, tuple[Any, Any]] = {
    "str": (str, ...),
    "str, lengths": (str, field(min_length=2, max_length=3)),
    "str, min": (str, field(min_length=1)),
    "str, max": (str, field(max_length=1)),
    "int": (int, ...),
    "int, ge le": (int, field(ge=0, le=5)),
    "int, gt lt": (int, field(gt=0, lt=5)),
    "int, beyond 64 bits": (int, field(ge=-5, le=2**63 - 1)),
    "float": (float, ...),
    "float, ge": (float, field(ge=0)),
    "float, gt lt": (float, field(gt=1, lt=1.5)),
    "float, le": (float, field(le=2.0**53)),
    "bool": (bool, ...),
    "datetime": (datetime, ...),
    "uuid": (uuid.UUID, ...),
    "bytes": (bytes, ...),
    "literal": (Literal["red", "blue"], ...),
    "optional str": (str | None, ...),
    "optional float, ge": (float | None, field(ge=0.5)),
    "optional datetime": (datetime | None, ...),
    "optional int, gt": (int | None, field(gt=2)),
}


def make(name: str, annotation: Any, mark: Any) -> Any:
    body: dict[str, Any] = {"__module__": __name__, "__annotations__": {"x": annotation}}
    if mark is not ...:
        body["x"] = mark
    return EventMeta(name, (Event,), body)


def fast_and_slow(cls: Any) -> tuple[Callable[[Any], bool], Callable[[Any], bool]]:
    """Whether the shortcut passes an event without the decoder, and whether the decoder takes it."""
    schema = schema_of(cls)

    class CarefulError(Exception):
        pass

    def careful(_: Any) -> bytes:
        raise CarefulError

    encode = encoder_for(cls, msgspec.json.Encoder().encode, careful)
    assert encode is not careful, "this class should have a shortcut"

    def passes(event: Any) -> bool:
        try:
            encode(event)
        except CarefulError:
            return False
        return True

    def readable(event: Any) -> bool:
        try:
            schema._encode_and_read_back(event)
        except EventInvalidError:
            return False
        return True

    return passes, readable


@pytest.mark.parametrize("kind", KINDS)
def test_what_passes_can_be_read(kind: str) -> None:
    cls = make("Probe", *KINDS[kind])
    passes, readable = fast_and_slow(cls)
    events = [cls(x=value) for value in HOSTILE]
    wrong = [event for event in events if passes(event) and not readable(event)]
    assert not wrong
    assert any(passes(event) for event in events), "a look that never passes anything would be useless"
    assert not all(passes(event) for event in events)


def test_what_passes_can_be_read_with_random_limits() -> None:
    dice = random.Random(4)
    numbers = [value for value in HOSTILE if type(value) in (int, float) and abs(value) < 1e300]
    for turn in range(300):
        annotation = dice.choice([int, float, int | None, float | None])
        pool = [n for n in numbers if float in getattr(annotation, "__args__", (annotation,)) or type(n) is int]
        pool = [n for n in pool if not math.isnan(n) and abs(n) < 2**62]
        limits = {dice.choice(["ge", "gt"]): dice.choice(pool), dice.choice(["le", "lt"]): dice.choice(pool)}
        cls = make(f"Probe{turn}", annotation, field(**limits))
        try:
            passes, readable = fast_and_slow(cls)
        except Exception as error:  # noqa: BLE001  -- limits msgspec itself refuses
            assert "Only one of" in str(error) or "cannot be carried" in str(error)  # noqa: PT017
            continue
        near = [n + d for n, d in itertools.product(limits.values(), (-1, -0.5, 0, 0.5, 1))]
        near += [math.nextafter(n, to) for n in limits.values() for to in (-math.inf, math.inf)]
        for value in [*HOSTILE, *near]:
            event = cls(x=value)
            assert readable(event) or not passes(event), (annotation, limits, value)


def test_several_fields_are_all_looked_at() -> None:
    class Both(Event):
        a: str = key()
        b: float = field(ge=0)

    passes, _ = fast_and_slow(Both)
    assert passes(Both(a="x", b=1.0))
    assert not passes(Both(a="x", b=-1.0))
    assert not passes(Both(a=1, b=1.0))  # type: ignore[arg-type]


def test_other_objects_do_not_pass() -> None:
    class Base(Event):
        a: str

    class Derived(Base):
        b: str = ""

    passes, _ = fast_and_slow(Base)
    assert passes(Base(a="x"))
    assert not passes(Derived(a="x"))
    assert not passes({"a": "x"})
    assert not passes(None)


def test_classes_only_the_decoder_can_judge_have_no_shortcut() -> None:
    class Colour(Enum):
        RED = "red"

    class Checked(Event):
        a: str

        def __post_init__(self) -> None:
            if self.a == "no":
                raise ValueError("not that")

    def careful(_: Any) -> bytes:
        return b"careful"

    kinds: list[tuple[Any, Any]] = [
        (str, field(pattern="^a")), (int, field(multiple_of=2)), (list[str], ...), (dict[str, int], ...),
        (Colour, ...), (int | str, ...), (Any, ...), (bytes, field(max_length=2)), (Literal[1, 2], ...),
    ]  # fmt: skip
    for number, (annotation, mark) in enumerate(kinds):
        assert encoder_for(make(f"Slow{number}", annotation, mark), lambda _: b"", careful) is careful
    assert encoder_for(Checked, lambda _: b"", careful) is careful
    with pytest.raises(EventInvalidError):
        schema_of(make("Even", int, field(multiple_of=2))).encode(make("Even", int, field(multiple_of=2))(x=3))
