"""The error tree: codes, parts, and that the drawing in its docstring is true."""

import re

import pytest

from riverrun import errors
from riverrun.model.notices import notice_text


def tree(cls: type[errors.RiverrunError]) -> list[type[errors.RiverrunError]]:
    return [cls, *(each for child in cls.__subclasses__() for each in tree(child))]


ALL = tree(errors.RiverrunError)


def test_codes_are_unique_and_shouted() -> None:
    codes = [each.code for each in ALL]
    assert len(codes) == len(set(codes))
    assert all(re.fullmatch(r"[A-Z][A-Z_]+", code) for code in codes)


def test_names_end_in_error() -> None:
    assert [each.__name__ for each in ALL if not each.__name__.endswith("Error")] == []


def test_the_drawing_names_every_error_and_its_code() -> None:
    drawn = dict(re.findall(r"(\w+Error)(?: +([A-Z_]{4,}))?", errors.__doc__ or ""))
    assert set(drawn) == {each.__name__ for each in ALL}
    for each in ALL:
        assert drawn[each.__name__] in {"", each.code}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "It failed."),
        ({"expected": "a", "found": "b"}, "It failed. Expected a; found b."),
        ({"expected": "a"}, "It failed. Expected a."),
        ({"found": "b", "hint": "Do c"}, "It failed. Found b. Do c."),
    ],
)
def test_a_message_has_up_to_four_parts(parts: dict[str, str], message: str) -> None:
    assert str(errors.RiverrunError("It failed", **parts)) == message


def test_an_error_for_programs() -> None:
    error = errors.PortTakenError("Port 9092 is taken", hint="Free it", port=9092, holder="java")
    assert error.as_dict() == {
        "code": "PORT_TAKEN",
        "message": "Port 9092 is taken. Free it.",
        "retryable": False,
        "fields": {"port": 9092, "holder": "java"},
    }
    assert repr(error) == "PortTakenError('Port 9092 is taken', port=9092, holder='java')"


def test_all_problems_of_a_configuration_are_listed() -> None:
    assert str(errors.ConfigError(["a: x", "b: y"])) == "2 problems in the configuration:\n  a: x\n  b: y"
    assert str(errors.ConfigError(["a: x"])) == "1 problem in the configuration:\n  a: x"


def test_no_message_ends_in_two_full_stops() -> None:
    inner = errors.UsageError("A file is not there", found="nothing", hint="Put it there")
    outer = errors.UsageError(str(inner), expected="a file.", found="It is not JSON.", hint=f"Mend it: {inner}")
    assert ".." not in str(outer)
    assert str(outer).endswith("Put it there.")
    assert str(errors.UsageError("What", hint="Did you mean x?")).endswith("x?")
    assert notice_text(f"gates is tried again in 1 s: {inner}") == f"Gates is tried again in 1 s: {inner}"
    assert notice_text("records are taken") == "Records are taken."
