"""The gateway as a process of its own: started, killed, and started again on the same book."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from riverrun.alerts.channels.contract import AlertMessage
from riverrun.alerts.channels.sms import SmsChannel, SmsConfig
from riverrun.alerts.gateway.message_store import MessageStore
from riverrun.alerts.sender import NotificationSender, RetryPolicy, SendScheduler
from riverrun.config.secret import Secret
from support.alerting import MemoryOutbox, wait_for

COUNT = 150
COMMAND = [sys.executable, "-m", "riverrun", "--project"]


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen([*COMMAND, str(folder), "phone", *arguments], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = [process.stderr.readline() for _ in range(2)]
            address = said[0].removeprefix("Phones: ").partition("/ ")[0]
            assert f'sms_url = "{address}"' in said[1]
            yield process, address
        finally:
            process.kill()


def test_a_gateway_that_is_killed_under_load_has_each_message_once(tmp_path: Path) -> None:
    outbox = MemoryOutbox(
        AlertMessage(id=f"overload/{each}", channel="sms", receiver="+353850123456", text=f"alert {each}")
        for each in range(COUNT)
    )
    book = tmp_path / ".riverrun" / "gateway" / "messages.sqlite"
    with running(tmp_path, "--fault", "error after=0.1", "--seed", "3") as (process, address):
        key = Secret(book.with_name("key.txt").read_text().strip())
        channel = SmsChannel(SmsConfig(address, key, "riverrun", timeout_seconds=2))
        policy = RetryPolicy(initial_backoff_ms=20, max_backoff_ms=100, max_in_flight=4)
        sender = NotificationSender(
            SendScheduler(outbox, {"sms": channel}, policy=policy), {"sms": channel}, idle_seconds=0.01
        )
        thread = threading.Thread(target=sender.run, daemon=True)
        thread.start()
        wait_for(lambda: outbox.states().get("sent", 0) >= 30)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        assert outbox.states().get("sent", 0) < COUNT
    with running(tmp_path) as (process, again):
        assert again == address
        wait_for(lambda: outbox.states() == {"sent": COUNT})
        sender.stop()
        thread.join(30)
        channel.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    judge = MessageStore(book)
    assert sorted(each.text for each in judge.newest(10_000)) == sorted(f"alert {each}" for each in range(COUNT))
    judge.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fault", "busy"], "--fault cannot be understood. Expected such as \"busy=0.1\"; found 'busy'."),
        (["--fault", "storm=0.5"], "These faults cannot be"),
        (["--port", "99999"], "99999 is not in the range"),
    ],
)
def test_a_wrong_argument_is_one_message(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = subprocess.run([*COMMAND, str(tmp_path), "phone", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_used_is_one_message(tmp_path: Path) -> None:
    (tmp_path / ".riverrun").mkdir()
    (tmp_path / ".riverrun" / "gateway").write_text("a file")
    done = subprocess.run([*COMMAND, str(tmp_path), "phone"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "gateway cannot be used" in done.stderr
    assert "Traceback" not in done.stderr


def test_one_gateway_at_a_time(tmp_path: Path) -> None:
    with running(tmp_path) as (process, address):
        done = subprocess.run([*COMMAND, str(tmp_path), "phone"], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert f"shown already, by the process {process.pid}. Look at {address}/" in done.stderr
