"""A hash of what Python code does: it sees every change of that, and nothing else."""

import functools
import types
from pathlib import Path
from typing import Any

import pytest

from riverrun.streams.compile.code_hash import code_hash


def made(source: str, name: str = "f") -> Any:
    """What a module of this source has under a name."""
    module = types.ModuleType("riverrun_app_test")
    exec(compile(source, "app.py", "exec"), module.__dict__)  # noqa: S102
    return module.__dict__[name]


FIRST = """
LIMIT = 3
KNOWN = {"a", "b", "c"}

def helper(x):
    return x > LIMIT

def note(x):
    log(x)

def f(x, more=1):
    note(x)
    return helper(x) and x in KNOWN
"""


@pytest.mark.parametrize(
    "edit",
    [
        ("\nLIMIT", "\n# A comment.\n\nLIMIT"),
        ("more=1):", 'more=1):\n    """It says what it does."""'),
        ("return helper(x) and x in KNOWN", "return (\n        helper(x)\n        and x\n        in KNOWN\n    )"),
        ("    note(x)", "    'A remark.'\n    note(x)\n    pass"),
        ("    log(x)", '    """Nothing comes back."""\n    log(x)'),
        ("def helper(x):", "def helper(x):\n    # Why."),
        ('{"a", "b", "c"}', '{"c", "b", "a"}'),
        ("KNOWN = ", "UNUSED = 7\nKNOWN = "),
        ("(x, more=1)", "(x: int, more: int = 1)"),
    ],
)  # fmt: skip
def test_how_it_is_written_does_not_matter(edit: tuple[str, str]) -> None:
    assert edit[0] in FIRST
    assert code_hash(made(FIRST.replace(*edit))) == code_hash(made(FIRST))


@pytest.mark.parametrize(
    "edit",
    [("LIMIT = 3", "LIMIT = 4"), ("x > LIMIT", "x >= LIMIT"), ('"c"}', '"d"}'), ("more=1", "more=2"),
     ("helper(x) and", "helper(x) or"), ("LIMIT = 3", "LIMIT = 3.0")],
)  # fmt: skip
def test_what_it_does_matters(edit: tuple[str, str]) -> None:
    assert edit[0] in FIRST
    assert code_hash(made(FIRST.replace(*edit))) != code_hash(made(FIRST))


CLASS = """
class Base:
    factor = 2

class Processor(Base):
    def __init__(self, most):
        self.most = most

    def handle(self, rows):
        return [row * self.factor for row in rows][: self.most]

f = Processor(3)
g = (lambda n: lambda x: x + n)(5)
"""


def test_classes_objects_and_closures() -> None:
    for name in ("f", "g", "Processor"):
        assert code_hash(made(CLASS, name)) == code_hash(made(f"\n\n{CLASS}", name))
    assert code_hash(made(CLASS)) != code_hash(made(CLASS.replace("Processor(3)", "Processor(4)")))
    assert code_hash(made(CLASS)) != code_hash(made(CLASS.replace("factor = 2", "factor = 3")))
    assert code_hash(made(CLASS)) != code_hash(made(CLASS.replace("row * self", "row + self")))
    assert code_hash(made(CLASS, "g")) != code_hash(made(CLASS.replace("(5)", "(6)"), "g"))


def test_what_is_tried_matters() -> None:
    first = "def f(x):\n    try:\n        x.a()\n    except ValueError:\n        return 1\n    x.b()\n"
    second = "def f(x):\n    try:\n        x.a()\n        x.b()\n    except ValueError:\n        return 1\n"
    assert code_hash(made(first)) != code_hash(made(second))


def test_what_calls_itself_ends() -> None:
    again = "def f(n):\n    return n and f(n - 1)\n"
    assert code_hash(made(again)) == code_hash(made(again))


def module_of(source: str, file: Path) -> types.ModuleType:
    """A module of the user's, as an import makes it."""
    module = types.ModuleType("helpers")
    module.__file__ = str(file)
    exec(compile(source, str(file), "exec"), module.__dict__)  # noqa: S102
    return module


@pytest.mark.parametrize(
    ("helpers", "same"),
    [
        ("RATE = 2\ndef scale(x):\n    return x * RATE\ndef other(x):\n    return 5", True),
        ("RATE = 3\ndef scale(x):\n    return x * RATE\ndef other(x):\n    return 0", False),
        ("RATE = 2\ndef scale(x):\n    return x + RATE\ndef other(x):\n    return 0", False),
    ],
)
def test_what_a_module_of_the_users_does_matters_as_far_as_it_is_used(helpers: str, same: bool, tmp_path: Path) -> None:
    source = "def f(x):\n    return helpers.scale(x)"

    def hash_with(text: str) -> str:
        made_here = made(source)
        made_here.__globals__["helpers"] = module_of(text, tmp_path / "helpers.py")
        return code_hash(made_here)

    first = "RATE = 2\ndef scale(x):\n    return x * RATE\ndef other(x):\n    return 0"
    assert (hash_with(helpers) == hash_with(first)) is same


def test_modules_that_know_each_other_come_to_an_end(tmp_path: Path) -> None:
    one, two = module_of("", tmp_path / "one.py"), module_of("", tmp_path / "two.py")
    one.two, two.one = two, one  # type: ignore[attr-defined]
    found = made("def f(x):\n    return one.two.one.two")
    found.__globals__["one"] = one
    assert code_hash(found) == code_hash(found)


def test_what_a_partial_holds_matters() -> None:
    first = made(FIRST)
    assert code_hash(functools.partial(first, more=2)) == code_hash(functools.partial(made(FIRST), more=2))
    assert code_hash(functools.partial(first, more=2)) != code_hash(functools.partial(first, more=3))
    assert code_hash(functools.partial(first, 1)) != code_hash(functools.partial(first, 2))


def test_what_is_in_slots_matters() -> None:
    source = "class Rate:\n    __slots__ = ('by',)\n    def __init__(self, by):\n        self.by = by"
    rate = made(source, "Rate")
    assert code_hash(rate(2)) == code_hash(made(source, "Rate")(2))
    assert code_hash(rate(2)) != code_hash(rate(3))
