"""Use cases for tests and pictures: the modules of one, imported by their names as its own programs do."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"


class Modules:
    """The modules of a use case, by their names."""

    def __getattr__(self, name: str) -> Any:
        return importlib.import_module(name)


@contextmanager
def modules_of(name: str) -> Iterator[Modules]:
    """Nobody else's `app` is taken for its own, and afterwards nobody else sees its."""
    folder = EXAMPLES / name
    names = [each.stem for each in folder.glob("*.py")]
    others = {each: sys.modules.pop(each) for each in names if each in sys.modules}
    sys.path.insert(0, str(folder))
    try:
        yield Modules()
    finally:
        sys.path.remove(str(folder))
        for each in names:
            sys.modules.pop(each, None)
        sys.modules.update(others)
