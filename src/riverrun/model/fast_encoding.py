"""A fast check that spares most events being read back before they are sent.

Reading an event's own bytes back proves that a consumer can read them, and costs more than making them. For a class of
plain fields (text, literals, numbers, booleans, times in UTC, UUIDs, bytes, and optional ones) the same follows from
the exact types and limits of the values, which a few comparisons can see. The check may only ever say "certainly
readable"; whatever it does not know is read back. tests/unit/model/test_fast_encoding.py compares it with the decoder.
"""

import math
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1


def encoder_for(cls: type, dump: Callable[[Any], bytes], careful: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """`dump` for instances of `cls` that are certainly readable, `careful` for all others and for what `dump` refuses."""
    names: dict[str, Any] = {
        "cls": cls,
        "dump": dump,
        "careful": careful,
        "datetime": datetime,
        "UTC": UTC,
        "UUID": uuid.UUID,
    }
    tests = _field_checks(cls)
    if tests is None:
        return careful
    source = (
        "def encode(event):\n"
        f"    if {' and '.join(['type(event) is cls', *tests])}:\n"
        "        try:\n"
        "            return dump(event)\n"
        "        except Exception:\n"
        "            pass\n"
        "    return careful(event)\n"
    )
    exec(source, names)  # noqa: S102  -- made of field names, which are identifiers, and of numbers
    encode: Callable[[Any], bytes] = names["encode"]
    return encode


def _field_checks(cls: type) -> list[str] | None:
    """One expression per field, or None when the class has something only the decoder can judge."""
    if hasattr(cls, "__post_init__"):
        return None
    info = msgspec.inspect.type_info(cls)
    if not isinstance(info, msgspec.inspect.StructType):
        return None
    tests = []
    for field in info.fields:
        test = _field_check(field.type, f"(x := event.{field.name})")
        if test is None:
            return None
        tests.append(test)
    return tests


def _field_check(kind: msgspec.inspect.Type, value: str) -> str | None:
    """An expression that is true only for values the decoder takes. `value` binds x and is evaluated once."""
    match kind:
        case msgspec.inspect.StrType(pattern=None):
            return _type_check("str", value, _length_check(kind))
        case msgspec.inspect.IntType(multiple_of=None):
            return _type_check("int", value, _range_check(kind, _INT_MIN, _INT_MAX, 1))
        case msgspec.inspect.FloatType(multiple_of=None):
            # The comparison is false for NaN and beyond the largest finite number: JSON has neither.
            return _type_check("float", value, _range_check(kind, -sys.float_info.max, sys.float_info.max, 0))
        case msgspec.inspect.BoolType():
            return _type_check("bool", value, "")
        case msgspec.inspect.DateTimeType(tz=True):
            return _type_check("datetime", value, "x.tzinfo is UTC")
        case msgspec.inspect.UUIDType():
            return _type_check("UUID", value, "")
        case msgspec.inspect.BytesType(min_length=None, max_length=None):
            return _type_check("bytes", value, "")
        case msgspec.inspect.LiteralType(values=values) if all(type(value) is str for value in values):
            return _type_check("str", value, f"x in {set(values)!r}")
        case msgspec.inspect.UnionType(types=types) if len(types) == 2:
            return _optional_check(types, value)
        case _:
            return None


def _type_check(name: str, value: str, more: str) -> str:
    test = f"type({value}) is {name}"
    return f"{test} and {more}" if more else test


def _optional_check(types: tuple[msgspec.inspect.Type, ...], value: str) -> str | None:
    others = [type_ for type_ in types if not isinstance(type_, msgspec.inspect.NoneType)]
    if len(others) != 1:
        return None
    test = _field_check(others[0], "x")
    return f"({value} is None or {test})" if test is not None else None


def _length_check(kind: msgspec.inspect.StrType) -> str:
    if kind.min_length is None and kind.max_length is None:
        return ""
    low = kind.min_length or 0
    return f"{low} <= len(x)" if kind.max_length is None else f"{low} <= len(x) <= {kind.max_length}"


def _range_check(kind: Any, low: float, high: float, step: int) -> str:
    """`low <= x <= high` with the field's own limits; `step` is the distance of neighbours, 0 for floats."""
    if kind.ge is not None:
        low = max(low, kind.ge)
    if kind.gt is not None:
        low = max(low, kind.gt + step if step else math.nextafter(kind.gt, math.inf))
    if kind.le is not None:
        high = min(high, kind.le)
    if kind.lt is not None:
        high = min(high, kind.lt - step if step else math.nextafter(kind.lt, -math.inf))
    if not step and float(low) == low and float(high) == high:
        low, high = float(low), float(high)  # comparing a float with an int takes nearly twice as long
    return f"{low!r} <= x <= {high!r}"
