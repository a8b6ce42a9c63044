"""Simple conditions on a JSON value: `load_kw>2`, `house.street=Main`, `note~fire`. All that are given must hold."""

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from riverrun.errors import UsageError

_FILTER = re.compile(r"\s*([^=!<>~\s]+)\s*(!=|>=|<=|=|>|<|~)\s*(.*?)\s*", re.DOTALL)
_ORDERED: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_MISSING = object()


@dataclass(frozen=True)
class FieldFilter:
    """One field, by its path, compared with one value. A field that is not there satisfies only `!=`."""

    path: tuple[str, ...]
    operator: str
    text: str
    value: Any

    def matches(self, record: Any) -> bool:
        actual = look_up(record, self.path)
        if self.operator == "=":
            return self._equal(actual)
        if self.operator == "!=":
            return not self._equal(actual)
        if actual is _MISSING or actual is None:
            return False
        if self.operator == "~":
            return self.text in (actual if isinstance(actual, str) else msgspec.json.encode(actual).decode())
        return self._ordered(actual)

    def _equal(self, actual: Any) -> bool:
        if isinstance(actual, str):
            # The shell ate the quotes: house_id=12 must find the text "12" as well as the number.
            return actual in (self.text, self.value)
        return (type(actual) is type(self.value) and actual == self.value) or _both_numbers(
            actual, self.value, operator.eq
        )

    def _ordered(self, actual: Any) -> bool:
        compare = _ORDERED[self.operator]
        if isinstance(actual, str):
            return compare(actual, self.value if isinstance(self.value, str) else self.text)
        return _both_numbers(actual, self.value, compare)


def _both_numbers(actual: Any, value: Any, compare: Callable[[Any, Any], bool]) -> bool:
    return _is_number(actual) and _is_number(value) and compare(actual, value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def look_up(record: Any, path: Iterable[str]) -> Any:
    """The value at a path of field names (and list positions), or a sentinel that equals nothing."""
    for name in path:
        if isinstance(record, dict) and name in record:
            record = record[name]
        elif isinstance(record, list) and name.isdecimal() and int(name) < len(record):
            record = record[int(name)]
        else:
            return _MISSING
    return record


def is_missing(value: Any) -> bool:
    return value is _MISSING


def parse_filter(text: str) -> FieldFilter:
    """`field=value` with = != > >= < <= or ~ (contains). The value is JSON where it is valid JSON, else text."""
    match = _FILTER.fullmatch(text)
    if match is None:
        raise UsageError(
            "A condition cannot be understood",
            expected="FIELD and VALUE with =, !=, >, >=, <, <= or ~ between them, such as load_kw>2",
            found=repr(text),
            hint="Put it in quotes: the shell takes > and < for itself",
        )
    field, sign, value = match[1], match[2], match[3]
    try:
        parsed = msgspec.json.decode(value.encode())
    except msgspec.DecodeError:
        parsed = value
    return FieldFilter(tuple(field.split(".")), sign, value, parsed)
