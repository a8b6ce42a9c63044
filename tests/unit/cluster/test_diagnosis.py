"""From the end of a log to an error that names the cause. The log lines are real ones."""

import os
import socket
from pathlib import Path

import pytest

from riverrun.cluster.diagnosis import TAIL_LINES, describe_exit, explain, read_from, tail
from riverrun.errors import ClusterError, DataDirectoryError, DiskFullError, PortTakenError, ServerDiedError

STAMP = "2026-11-15 22:15:56.458"


def died(tmp_path: Path, log: str = "", output: str = "", code: int = 1, ports: tuple[int, ...] = (1,)) -> ClusterError:
    (tmp_path / "broker-1.log").write_text("an earlier start: No space left on device\n" + log)
    (tmp_path / "broker-1.out").write_text(output)
    return explain(
        "broker-1",
        exit_code=code,
        seconds=4.24,
        log=tmp_path / "broker-1.log",
        log_start=len("an earlier start: No space left on device\n"),
        output=tmp_path / "broker-1.out",
        output_start=0,
        ports=ports,
        folder=tmp_path,
        heap_mb=256,
    )


@pytest.mark.parametrize(
    ("log", "cls", "words"),
    [
        (
            f"{STAMP} ERROR Exiting Kafka due to fatal exception (Kafka$)\n"
            "java.io.IOException: No space left on device\n\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native)",
            DiskFullError,
            "is full",
        ),
        (
            f"{STAMP} ERROR Exiting Kafka due to fatal exception during startup. (Kafka$)\n"
            "org.apache.kafka.common.config.ConfigException: Invalid value many for configuration num.io.threads: Not a "
            "number of type INT",
            ServerDiedError,
            "Kafka refuses its configuration",
        ),
        (
            f"{STAMP} ERROR Disk error while locking directory /x (LogManager)\n"
            "org.apache.kafka.common.KafkaException: Failed to acquire lock on file .lock in /x. A Kafka instance in "
            "another process or thread is using this directory.",
            DataDirectoryError,
            "another Kafka process uses",
        ),
        ("java.nio.file.AccessDeniedException: /x/recovery-point-offset-checkpoint.tmp", DataDirectoryError, "may not"),
        (
            "java.lang.RuntimeException: Invalid cluster.id in: /x/meta.properties. Expected a, but read b",
            DataDirectoryError,
            "cannot be used",
        ),
        ("java.lang.IllegalArgumentException: No MetadataVersion with feature level 99", DataDirectoryError, "cannot"),
        ("java.lang.NoClassDefFoundError: scala/collection/Seq", ServerDiedError, "a jar is missing or broken"),
    ],
)
def test_causes_in_the_log(log: str, cls: type[ClusterError], words: str, tmp_path: Path) -> None:
    error = died(tmp_path, log)
    assert type(error) is cls
    assert words in error.what
    assert error.what.startswith("broker-1 exited with code 1 after 4.2 s: ")
    assert error.hint
    assert error.lines[0] == f"{tmp_path / 'broker-1.log'} ends with:"


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("Terminating due to java.lang.OutOfMemoryError: Java heap space", "heap of 256 MiB is too small"),
        ("Error occurred during initialization of VM\nToo small maximum heap", "heap of 256 MiB is too small"),
        (
            "Error occurred during initialization of VM\nCould not reserve enough space for 9437184KB object heap",
            "cannot give it a heap",
        ),
        ("Unrecognized VM option 'NoSuch'\nError: Could not create the Java Virtual Machine.", "refuses an option"),
        (
            "java.lang.UnsupportedClassVersionError: kafka/Kafka has been compiled by a more recent",
            "not one that Kafka",
        ),
    ],
)
def test_causes_that_java_itself_tells(output: str, words: str, tmp_path: Path) -> None:
    error = died(tmp_path, output=output)
    assert type(error) is ServerDiedError
    assert words in error.what
    assert error.lines[0] == f"{tmp_path / 'broker-1.out'} ends with:"


def test_a_port_that_is_taken_names_its_holder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = f"KafkaException: Socket server failed to bind to 127.0.0.1:{port}: Address already in use."
        error = died(tmp_path, text)
        by_search = died(tmp_path, "java.net.BindException: Address already in use", ports=(1, port))
    for each in (error, by_search):
        assert isinstance(each, PortTakenError)
        assert (each.fields["port"], each.fields["pid"]) == (port, os.getpid())


def test_an_unknown_cause_shows_the_log(tmp_path: Path) -> None:
    error = died(tmp_path, f"{STAMP} ERROR it went wrong (Somewhere)\n", code=1)
    assert type(error) is ServerDiedError
    assert str(error).splitlines() == [
        "broker-1 exited with code 1 after 4.2 s. See its log.",
        f"  {tmp_path / 'broker-1.log'} ends with:",
        f"    {STAMP} ERROR it went wrong (Somewhere)",
    ]


def test_an_earlier_start_is_not_blamed(tmp_path: Path) -> None:
    error = died(tmp_path)
    assert type(error) is ServerDiedError
    assert error.lines == (f"{tmp_path / 'broker-1.out'} is empty",)


@pytest.mark.parametrize(
    ("code", "words", "hint"),
    [(137, "was ended by signal 9", "killed"), (139, "signal 11", "crashed"), (3, "exited with code 3", "log")],
)
def test_exit_codes(code: int, words: str, hint: str, tmp_path: Path) -> None:
    assert words in describe_exit(code)
    assert hint in died(tmp_path, code=code).hint


def test_the_tail_leaves_out_stack_frames_and_shows_the_error() -> None:
    closing = "".join(f"{STAMP} INFO  closing part {number} (Server)\n" for number in range(40))
    text = (
        f"{STAMP} INFO  starting (Server)\n{STAMP} ERROR it failed (Server)\njava.lang.Exception: because\n"
        "\tat a.b.C.d(C.java:1)\n\t... 12 more\n" + closing
    )
    shown = tail(text)
    assert shown[:2] == [f"{STAMP} ERROR it failed (Server)", "java.lang.Exception: because"]
    assert len(shown) == TAIL_LINES
    assert not any("at a.b.C.d" in line for line in shown)


def test_the_tail_of_a_log_without_errors_is_its_end() -> None:
    text = "".join(f"{STAMP} INFO  line {number} (Server)\n" for number in range(40))
    assert tail(text)[-1] == f"{STAMP} INFO  line 39 (Server)"
    assert tail("") == []


def test_reading_goes_on_when_the_log_was_rolled(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("short")
    assert read_from(path, 3) == "rt"
    assert read_from(path, 5000) == "short"
    assert read_from(tmp_path / "none", 0) == ""


def test_a_very_long_line_is_no_hindrance(tmp_path: Path) -> None:
    """ZooKeeper logs its class path. The test's own time limit is what this is about."""
    paths = ":".join(f"/cache/maven/org/example/some-name-{number}.jar" for number in range(1000))
    error = died(tmp_path, f"{STAMP} INFO  environment:java.class.path={paths} (ZooKeeper)\n", code=137)
    assert "was ended by signal 9" in error.what
    assert all(len(line) < 500 for line in error.lines)
