"""The real sets: they can be fetched, they are what the lock says, and what they are for starts, also without a network."""

import os
import subprocess
from pathlib import Path

import pytest

from riverrun.artifacts import Java, fetch, fetch_set, find_java, lock_names, read_lock, spark_java_home
from riverrun.config import ArtifactSettings, JavaSettings


@pytest.fixture(scope="module")
def package_java() -> Java:
    """The Java a user without one gets."""
    return find_java(JavaSettings(), {"PATH": "/nowhere"})


def run_java(java: Java, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([java.executable, *arguments], capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("name", lock_names())
def test_a_set_is_fetched_and_is_there_offline(name: str) -> None:
    """From this user's own cache when it has it, as every user does."""
    fetched = fetch_set(name, ArtifactSettings())
    assert [path.stat().st_size for path in fetched.paths] == [artifact.size for artifact in read_lock(name).artifacts]
    again = fetch_set(name, ArtifactSettings(offline=True))
    assert (again.paths, again.cached, again.downloaded) == (fetched.paths, fetched.files, 0)


def test_an_empty_cache_is_filled_from_the_repository(tmp_path: Path) -> None:
    """As on a new machine: no cache, no ~/.m2. The smallest set, so that the repository is asked for little."""
    environ = {**os.environ, "HOME": str(tmp_path / "home")}
    settings = ArtifactSettings(cache_dir=str(tmp_path / "cache"))
    fetched = fetch_set("kafka-tools", settings, environ=environ)
    assert (fetched.cached, fetched.reused, fetched.downloaded) == (0, 0, fetched.files)
    offline = ArtifactSettings(cache_dir=str(tmp_path / "cache"), offline=True)
    assert fetch_set("kafka-tools", offline, environ=environ).cached == fetched.files


def test_kafkas_own_tools_start_without_connect(package_java: Java) -> None:
    class_path = os.pathsep.join(
        str(path) for path in (*fetch("kafka", ArtifactSettings()), *fetch("kafka-tools", ArtifactSettings()))
    )
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    done = run_java(package_java, "-XX:TieredStopAtLevel=1", "-cp", class_path, tool, "--version")
    assert (done.returncode, done.stdout.strip()) == (0, "4.3.1"), done.stderr


def test_the_java_from_pypi_needs_a_home_of_its_own_for_spark(package_java: Java, tmp_path: Path) -> None:
    argument = "--add-modules=jdk.incubator.vector"
    assert "jdk.incubator.vector not found" in run_java(package_java, argument, "-version").stdout
    home = spark_java_home(package_java, tmp_path)
    done = subprocess.run(
        [home / "bin" / "java", argument, "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"java.home = {package_java.home}" in done.stderr
