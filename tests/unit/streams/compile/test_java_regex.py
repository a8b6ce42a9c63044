"""Patterns in Java's words; that Java reads them the same way is checked in tests/integration/test_stream_values.py."""

import re

import pytest

from riverrun.errors import DeclarationError
from riverrun.streams.compile.java_regex import java_pattern


@pytest.mark.parametrize(
    ("python", "java"),
    [
        ("^h[0-9]+$", "(?d)^h[0-9]+$"),
        (r"^\d{3}\Z", r"(?dU)^\d{3}\z"),
        ("(?P<first_name>a)b", "(?d)(a)b"),
        ("[a[&]", r"(?d)[a\[\&]"),
        ("[]a]", r"(?d)[\]a]"),
        ("[^]a]", r"(?d)[^\]a]"),
        (r"[\]a]", r"(?d)[\]a]"),
        ("a{,3}b{2,}c{4}", "(?d)a{0,3}b{2,}c{4}"),
        ("{a}", r"(?d)\{a\}"),
        ("(?i)abc", "(?d)(?iu)abc"),
        ("(?:a|b)(?=c)(?!d)(?<=e)(?<!f)", "(?d)(?:a|b)(?=c)(?!d)(?<=e)(?<!f)"),
        ("", "(?d)"),
    ],
)
def test_a_pattern_is_said_in_javas_words(python: str, java: str) -> None:
    re.compile(python)
    assert java_pattern(python) == java


@pytest.mark.parametrize("python", [r"(?P<a>b)(?P=a)", r"(a)?(?(1)b|c)", r"\N{BULLET}", "(?a)b", "(?x) a", "\\0"])
def test_what_java_cannot_say_is_refused(python: str) -> None:
    re.compile(python)
    with pytest.raises(DeclarationError) as caught:
        java_pattern(python)
    assert caught.value.fields == {"pattern": python}
