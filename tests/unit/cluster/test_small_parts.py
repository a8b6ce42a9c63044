"""Deadlines, durations, logs, folders, Java's options, the class archive's bookkeeping."""

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from riverrun.artifacts import Java
from riverrun.cluster.class_archive import ClassArchive
from riverrun.cluster.home import ClusterHome, check_space, folder_error, make_folder
from riverrun.cluster.jvm import JavaRuntime, java_options
from riverrun.cluster.logs import follow, last_lines, log_names, log_path
from riverrun.cluster.server import Deadline, ManagedServer
from riverrun.cluster.usage import display_row, resident_mb, server_row, uptime_text
from riverrun.config import Project
from riverrun.config.run_state import ServerState
from riverrun.errors import ClusterError, DataDirectoryError, DiskFullError, UsageError
from support.cluster import wait_for


class Recorded(ManagedServer):
    """Writes its life down."""

    name = "recorded"
    start_timeout_seconds = 5.0

    def __init__(self, fail: str = "") -> None:
        self.life: list[str] = []
        self.fail = fail

    def _step(self, name: str) -> None:
        self.life.append(name)
        if name == self.fail:
            raise ClusterError(name)

    def start(self) -> None:
        self._step("start")

    def ready(self, deadline: Deadline) -> None:
        assert 0 < deadline.left <= 5
        self._step("ready")

    def stop(self) -> None:
        self._step("stop")


def test_a_server_in_a_with_is_ready_inside_and_stopped_after() -> None:
    server = Recorded()
    with server:
        assert server.life == ["start", "ready"]
    assert server.life == ["start", "ready", "stop"]


@pytest.mark.parametrize("fail", ["start", "ready"])
def test_a_server_that_does_not_start_is_stopped(fail: str) -> None:
    server = Recorded(fail)
    with pytest.raises(ClusterError), server:
        pytest.fail("it was entered")
    assert server.life[-1] == "stop"


def test_a_deadline_passes() -> None:
    assert Deadline(0).passed
    assert Deadline(-1).left == 0
    later = Deadline(60)
    assert not later.passed
    assert 59 < later.left <= 60


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (4.21, "4.2 s"), (185, "3 min 05 s"), (7620, "2 h 07 min"), (273600, "3 d 04 h")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert uptime_text(seconds) == text


def test_rows_for_programs_and_for_people() -> None:
    running = ServerState("broker-1", "broker", "ready", os.getpid(), "127.0.0.1:9092", "/x.log", time.time() - 65)
    row = server_row(running)
    assert 64 < row["uptime_seconds"] < 70
    assert row["memory_mb"] > 5
    assert display_row(row)["uptime"].startswith("1 min")
    stopped = server_row(ServerState("broker-1", "broker", "restarting", detail="it died"))
    assert (stopped["pid"], stopped["uptime_seconds"], stopped["memory_mb"]) == (None, None, None)
    assert resident_mb(2**22 + 1) is None


# --- folders ---


def test_home_makes_its_folders_and_leaves_no_trace_of_the_test(tmp_path: Path) -> None:
    home = ClusterHome(tmp_path / "home")
    home.make()
    assert sorted(path.name for path in home.root.rglob("*")) == ["data", "logs", "run"]


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataDirectoryError, match="file"):
            make_folder(folder)


def test_too_little_room_is_told_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError) as caught:
        check_space(tmp_path, min_mb=1 << 40)
    assert caught.value.fields["free_mb"] > 0
    check_space(tmp_path, min_mb=0)


@pytest.mark.parametrize(
    ("number", "cls", "words"),
    [
        (errno.ENOSPC, DiskFullError, "is full"),
        (errno.EDQUOT, DiskFullError, "is full"),
        (errno.EACCES, DataDirectoryError, "may not write"),
        (errno.EROFS, DataDirectoryError, "read-only"),
        (errno.EIO, DataDirectoryError, "Input/output error"),
    ],
)
def test_what_the_system_says_of_a_folder(number: int, cls: type[ClusterError], words: str, tmp_path: Path) -> None:
    error = folder_error(OSError(number, os.strerror(number)), tmp_path)
    assert type(error) is cls
    assert words in error.what


# --- logs ---


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = Project(tmp_path)
    found.logs.mkdir(parents=True)
    return found


def test_logs_by_name(project: Project) -> None:
    with pytest.raises(UsageError, match="no log"):
        log_path(project, "broker-1")
    for name in ("broker-1.log", "broker-1.log.1", "broker-1.out", "runner.log"):
        (project.logs / name).write_text("")
    assert log_names(project) == ["broker-1", "runner"]
    with pytest.raises(UsageError) as caught:
        log_path(project, "broker-2")
    assert caught.value.expected == "one of broker-1, runner"


@pytest.mark.parametrize("count", [0, 1, 3, 5000, 9999])
def test_last_lines(count: int, tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [f"line {number} " + "x" * 50 for number in range(5000)]
    path.write_text("\n".join(lines) + "\n")
    assert last_lines(path, count) == (lines[-count:] if count else [])


def test_following_goes_over_to_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntwo\n")
    lines = follow(path, 1)
    assert next(lines) == "two"
    with path.open("a") as file:
        file.write("three\nfo")
    assert next(lines) == "three"
    with path.open("a") as file:
        file.write("ur\n")
    assert next(lines) == "four"

    def roll() -> None:
        path.rename(tmp_path / "log.1")
        path.write_text("five\n")

    timer = threading.Timer(0.3, roll)
    timer.start()
    assert next(lines) == "five"
    timer.join()
    lines.close()  # type: ignore[attr-defined]


# --- Java ---


def runtime(tmp_path: Path) -> JavaRuntime:
    jar = tmp_path / "kafka-clients-4.3.1.jar"
    jar.write_text("jar")
    java = Java(tmp_path / "java", tmp_path / "java/bin/java", 21, "21.0.8", "test")
    return JavaRuntime(java, (jar,), tmp_path / "cache")


def test_the_users_options_come_last_and_a_collector_replaces_ours() -> None:
    assert java_options(256)[:3] == ["-Xms256m", "-Xmx256m", "-XX:+UseSerialGC"]
    found = java_options(512, ["-XX:+UseG1GC", "-Xmx1g"])
    assert found[-2:] == ["-XX:+UseG1GC", "-Xmx1g"]
    assert "-XX:+UseSerialGC" not in found


def test_the_version_is_in_the_jars(tmp_path: Path) -> None:
    assert runtime(tmp_path).kafka_version == "4.3.1"
    with pytest.raises(ClusterError, match="no kafka-clients"):
        _ = JavaRuntime(runtime(tmp_path).java, (), tmp_path).kafka_version


def test_an_archive_is_recorded_once_and_used_when_it_is_there(tmp_path: Path) -> None:
    archive = ClassArchive(runtime(tmp_path), tmp_path / "out", "kafka-4.3.1")
    (first,) = archive.options()
    assert first.startswith("-XX:DumpLoadedClassList=")
    assert archive.options() == []
    archive.path.write_bytes(b"archive")
    assert archive.options()[0] == f"-XX:SharedArchiveFile={archive.path}"
    archive.discard()
    assert not archive.path.exists()
    archive.close()
    assert list(archive.path.parent.iterdir()) == []


def test_an_archive_is_finished_after_the_run_that_began_it(tmp_path: Path) -> None:
    """Its maker gets little of the processor beside a busy pipeline: every short run cut it off."""
    found = runtime(tmp_path)
    java = tmp_path / "slow-java"
    java.write_text(
        '#!/bin/sh\nread go < "$GO"\n'
        'for flag; do case $flag in -XX:SharedArchiveFile=*) echo made > "${flag#*=}";; esac; done\n'
    )
    java.chmod(0o755)
    script = """
import sys
from pathlib import Path
from riverrun.artifacts.java import Java
from riverrun.cluster.class_archive import ClassArchive
from riverrun.cluster.jvm import JavaRuntime
cache, jar, java = map(Path, sys.argv[1:])
archive = ClassArchive(JavaRuntime(Java(java.parent, java, 17, "17.0.1", "test"), (jar,), cache), cache / "out", "spark")
(option,) = archive.options()
Path(option.partition("=")[2]).write_bytes(b"java/lang/Object id: 0\\n")
archive.start_build()
archive.close()
print(archive.path)
"""
    go = tmp_path / "go"
    os.mkfifo(go)
    found.cache.mkdir(exist_ok=True)
    command = [sys.executable, "-c", script, str(found.cache), str(found.class_path[0]), str(java)]
    done = subprocess.run(command, env=os.environ | {"GO": str(go)}, capture_output=True, text=True, check=True)
    path = Path(done.stdout.strip())
    assert not path.exists()
    go.write_text("now\n")
    wait_for(lambda: list(path.parent.iterdir()) == [path], 10, "the archive is not in its place")
    assert path.read_text() == "made\n"


def test_an_archive_is_built_by_one_run_at_a_time(tmp_path: Path) -> None:
    archive = ClassArchive(runtime(tmp_path), tmp_path / "out", "spark")
    (option,) = archive.options()
    Path(option.partition("=")[2]).write_bytes(b"java/lang/Object id: 0\n")
    other = archive.path.with_name(f"{archive.path.stem}.1.abcd.ready")
    other.write_bytes(b"")
    archive.start_build()
    assert not archive.has_recordings
    assert list(archive.path.parent.iterdir()) == [other]


def test_one_archive_of_several_servers_has_the_classes_of_all(tmp_path: Path) -> None:
    archive = ClassArchive(runtime(tmp_path), tmp_path / "out", "druid-33.0.0", recordings=2)
    lists = []
    for _ in range(2):
        (option,) = archive.options()
        lists.append(Path(option.partition("=")[2]))
    assert archive.options() == []
    lists[0].write_bytes(b"java/lang/Object id: 0\na/A id: 7\n@lambda-form-invoker x\nhalf a li")
    lists[1].write_bytes(b"java/lang/Object id: 0\nb/B id: 7\nc/C id: 8 super: 7 source: c.jar\n")
    assert archive._lines() == [b"java/lang/Object\n", b"a/A\n", b"b/B\n"]
    archive.close()
    assert list(archive.path.parent.iterdir()) == []


def test_another_java_or_jar_has_another_archive(tmp_path: Path) -> None:
    one = runtime(tmp_path)
    path = ClassArchive(one, tmp_path / "out", "kafka-4.3.1").path
    newer = Java(one.java.home, one.java.executable, 21, "21.0.9", "test")
    assert ClassArchive(JavaRuntime(newer, one.class_path, one.cache), tmp_path / "out", "kafka-4.3.1").path != path
    one.class_path[0].write_text("other")
    assert ClassArchive(one, tmp_path / "out", "kafka-4.3.1").path != path


def test_an_archive_without_a_cache_to_put_it_in_is_done_without(tmp_path: Path) -> None:
    found = runtime(tmp_path)
    found.cache.write_text("a file")
    archive = ClassArchive(found, tmp_path / "out", "kafka-4.3.1")
    assert archive.options() == []
    archive.start_build()
    archive.close()


def test_leftovers_of_killed_runners_are_removed(tmp_path: Path) -> None:
    archive = ClassArchive(runtime(tmp_path), tmp_path / "out", "kafka-4.3.1")
    archive.options()
    folder = archive.path.parent
    old = time.time() - 90000
    for name, kept in (
        (f"{archive.path.stem}.1.abcd.jsa", False),
        (f"{archive.path.stem}.1.abcd.classes", False),
        (archive.path.name, True),
    ):
        (folder / name).write_bytes(b"")
        os.utime(folder / name, (old, old))
        assert kept == (folder / name == archive.path)
    archive._prune()
    assert [path.name for path in folder.iterdir()] == [archive.path.name]
