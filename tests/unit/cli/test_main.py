"""The command line itself: its table of commands, its exit codes, what it imports."""

import signal
import subprocess
import sys
from types import SimpleNamespace

import click
import pytest

from riverrun.cli import main
from riverrun.cli.main import COMMANDS, cli, run
from riverrun.cluster.signals import SignalInterrupt
from riverrun.errors import DeliveryError, SparkUnavailableError, UsageError


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_of_commands_is_true(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(1000)


def test_a_near_command_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topcis"]) == 2
    assert "Did you mean 'topics'?" in capsys.readouterr().err


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    @click.command()
    def broken() -> None:
        raise error

    monkeypatch.setattr(main.LazyGroup, "get_command", lambda *_: broken)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (DeliveryError("it broke", hint="Mend it"), 1, "DELIVERY_FAILED  it broke. Mend it."),
        (UsageError("so not"), 2, "USAGE  so not."),
        (KeyboardInterrupt(), 130, "Stopped."),
        (click.Abort(), 130, "Stopped."),
        (click.exceptions.Exit(3), 3, ""),
        (RuntimeError("oops"), 1, "This is a bug in riverrun"),
    ],
)
def test_every_end_has_its_exit_code_and_one_message(
    error: BaseException, code: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, error)
    assert run(["topics"]) == code
    told = capsys.readouterr().err
    assert text in told
    assert "Traceback" not in told


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, DeliveryError("it broke"))
    with pytest.raises(DeliveryError):
        run(["--debug", "topics"])


def test_a_closed_pipe_is_no_failure() -> None:
    """As in `riverrun … | head`: click alone would make exit code 1 of it."""
    with subprocess.Popen(
        [sys.executable, "-m", "riverrun", "config", "reference"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        child.stdout.close()
        assert child.stderr is not None
        assert child.stderr.read() == ""
        assert child.wait(60) == 0


def test_help_imports_nothing_heavy() -> None:
    heavy = ("confluent_kafka", "msgspec", "httpx", "psutil", "rich")
    code = (
        "import sys; from riverrun.cli.main import run; run(['--help']); "
        f"print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip() == "[]"


def test_what_had_failed_is_told_though_somebody_stopped_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C while a run that lost its Spark stops Kafka: the cause is not to be lost."""

    def failing(*_: object, **__: object) -> None:
        try:
            raise SparkUnavailableError("Spark's process has ended")
        finally:
            raise SignalInterrupt(signal.SIGTERM)

    monkeypatch.setattr(main, "cli", SimpleNamespace(main=failing))
    assert main.run(["run"]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "SPARK_UNAVAILABLE  Spark's process has ended.\nStopped.\n"
