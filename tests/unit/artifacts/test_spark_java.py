"""The JAVA_HOME for Spark, with Javas that are shell scripts which print their arguments (a real one: tests/integration)."""

import subprocess
from pathlib import Path

import pytest

from riverrun.artifacts.java import Java
from riverrun.artifacts.spark_java import has_module, spark_java_home
from riverrun.errors import CacheError, JavaError

ARGUMENT = "--add-modules=jdk.incubator.vector"
PRINTS_ARGUMENTS = '#!/bin/sh\nfor each do printf "<%s>" "$each"; done\n'


def make(folder: Path, modules: str, script: str = PRINTS_ARGUMENTS) -> Java:
    home = folder / "a Java's home"
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    executable = home / "bin" / "java"
    executable.write_text(script, encoding="utf-8")
    executable.chmod(0o755)
    (home / "bin" / "keytool").write_text("", encoding="utf-8")
    release = f'JAVA_VERSION="21"\nMODULES="{modules}"\n' if modules else 'JAVA_VERSION="21"\n'
    (home / "release").write_text(release, encoding="utf-8")
    return Java(home, executable, 21, "21", "JAVA_HOME")


def run(home: Path, *arguments: str) -> str:
    return subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout


def test_a_java_with_the_module_is_used_as_it_is(tmp_path: Path) -> None:
    java = make(tmp_path, "java.base jdk.incubator.vector")
    assert spark_java_home(java, tmp_path / "cache") == java.home
    assert not (tmp_path / "cache").exists()


def test_a_java_without_it_gets_a_home_that_drops_the_argument(tmp_path: Path) -> None:
    java = make(tmp_path, "java.base")
    home = spark_java_home(java, tmp_path / "cache")
    assert run(home, ARGUMENT, "-Dx=a b", "", "--add-modules=java.se", "Main", "*") == (
        "<-Dx=a b><><--add-modules=java.se><Main><*>"
    )
    assert run(home) == ""
    assert (home / "lib").samefile(java.home / "lib")
    assert (home / "bin" / "keytool").samefile(java.home / "bin" / "keytool")
    assert (home / "release").read_text(encoding="utf-8").startswith('JAVA_VERSION="21"')


def test_it_is_made_once(tmp_path: Path) -> None:
    java = make(tmp_path, "java.base")
    home = spark_java_home(java, tmp_path / "cache")
    before = (home / "bin" / "java").stat().st_ino
    assert spark_java_home(java, tmp_path / "cache") == home
    assert (home / "bin" / "java").stat().st_ino == before
    assert list((tmp_path / "cache" / "java").iterdir()) == [home]


def test_one_that_was_changed_is_made_right(tmp_path: Path) -> None:
    java = make(tmp_path, "java.base")
    home = spark_java_home(java, tmp_path / "cache")
    (home / "bin" / "java").write_text("#!/bin/sh\n", encoding="utf-8")
    assert run(spark_java_home(java, tmp_path / "cache"), ARGUMENT, "x") == "<x>"


def test_another_java_gets_another_home(tmp_path: Path) -> None:
    first = spark_java_home(make(tmp_path / "1", "java.base"), tmp_path / "cache")
    assert spark_java_home(make(tmp_path / "2", "java.base"), tmp_path / "cache") != first


def test_a_java_that_does_not_list_its_modules_is_asked(tmp_path: Path) -> None:
    java = make(tmp_path, "", "#!/bin/sh\necho java.base@21\necho jdk.incubator.vector@21\n")
    assert has_module(java, "jdk.incubator.vector")
    assert not has_module(java, "jdk.incubator")


def test_a_java_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match="does not answer --list-modules"):
        spark_java_home(make(tmp_path, "", "#!/bin/sh\nexit 1\n"), tmp_path / "cache")


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("", encoding="utf-8")
    with pytest.raises(CacheError, match="could not be made"):
        spark_java_home(make(tmp_path, "java.base"), tmp_path / "cache")
