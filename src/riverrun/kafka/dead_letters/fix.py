"""The user's function that fixes dead letters, loaded from a file: `fix(value, letter)` returns the new bytes, or None."""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from riverrun.errors import HandlerError, UsageError
from riverrun.kafka.consumer.dead_letter import DeadLetter
from riverrun.kafka.dead_letters.reader import DeadLetterRecord

DEFAULT_FUNCTION = "fix"

_SIGNATURE = "def fix(value: bytes, letter: riverrun.DeadLetter) -> bytes | None"


class FixFunction:
    """Calls the user's function. If it raises, or returns no bytes, the error names the dead letter."""

    def __init__(self, function: Callable[[bytes, DeadLetter], Any], path: Path) -> None:
        self._function = function
        self._path = path

    def __call__(self, letter: DeadLetterRecord, json_value: bytes | None = None) -> bytes | None:
        """`json_value` is the letter's value as the function is to see it, where that is not as it lies in the topic."""
        value = letter.record.raw if json_value is None else json_value
        if value is None:
            return None
        try:
            fixed = self._function(value, letter.details)
        except Exception as error:
            raise self._failed(letter, f"{_source_line(self._path, error)}: {type(error).__name__}: {error}") from error
        if fixed is not None and not isinstance(fixed, bytes):
            raise self._failed(letter, f"it gave {type(fixed).__name__}, not bytes or None")
        return fixed

    def _failed(self, dead_letter: DeadLetterRecord, found: str) -> HandlerError:
        return HandlerError(
            f"{self._function.__name__} of {self._path.name} failed on the dead letter {dead_letter}",
            found=found,
            hint=f"Look at it: riverrun dlq show {dead_letter.record.topic} --partition {dead_letter.record.partition} "
            f"--offset {dead_letter.record.offset}",
            letter=str(dead_letter.record),
        )


def load_fix(text: str) -> FixFunction:
    """`SCRIPT.py:function`, or `SCRIPT.py` for its function `fix`. UsageError when there is no such function."""
    file, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        file, name = text, DEFAULT_FUNCTION
    path = Path(file).resolve()
    if not path.is_file() or path.suffix != ".py":
        raise UsageError(
            f"--fix names no Python file: {file}",
            expected="SCRIPT.py:function",
            found="nothing there" if not path.exists() else "something else",
        )
    function = getattr(_load_module(path), name, None)
    if not callable(function):
        raise UsageError(f"{path.name} has no function {name}", expected=_SIGNATURE.replace("fix", name, 1))
    if inspect.iscoroutinefunction(function):
        raise UsageError(
            f"{name} of {path.name} is async, and is called as it is", expected=_SIGNATURE.replace("fix", name, 1)
        )
    return FixFunction(function, path)


def _load_module(path: Path) -> Any:
    module_name = f"riverrun_fix_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UsageError(f"{path.name}:{error.lineno}: this is not Python: {error.msg}") from error
    except Exception as error:
        raise UsageError(
            f"{_source_line(path, error)}: {type(error).__name__}: {error}",
            hint="The file raised this while it was read",
        ) from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def _source_line(path: Path, error: BaseException) -> str:
    """The line of the user's file that led to the error: the last of its frames."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path.name}:{frames[-1].lineno}" if frames else path.name
