"""The gateway as a process of its own: started, killed, and started again on the same book."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from riverrun.alerts.channels.contract import Message
from riverrun.alerts.channels.sms import SmsChannel, SmsConfig
from riverrun.alerts.gateway.__main__ import main
from riverrun.alerts.gateway.book import Book
from riverrun.alerts.sender import Policy, Sender, Sending
from riverrun.config.secret import Secret
from support.alerting import MemoryOutbox, wait_for

COUNT = 150


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "riverrun.alerts.gateway", "--folder", str(folder), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        try:
            assert process.stdout is not None
            said = [process.stdout.readline() for _ in range(6)]
            assert said[3] == f'sms_url = "{said[0].removeprefix("Phones: ").strip().rstrip("/")}"\n'
            yield process, said[0].removeprefix("Phones: ").strip().rstrip("/")
        finally:
            process.kill()


def test_a_gateway_that_is_killed_under_load_has_each_message_once(tmp_path: Path) -> None:
    outbox = MemoryOutbox(
        Message(id=f"overload/{each}", channel="sms", receiver="+353850123456", text=f"alert {each}")
        for each in range(COUNT)
    )
    book = tmp_path / "messages.sqlite"
    with running(tmp_path, "--fault", "error after=0.1", "--seed", "3") as (process, address):
        key = Secret((tmp_path / "key.txt").read_text().strip())
        channel = SmsChannel(SmsConfig(address, key, "riverrun", timeout_seconds=2))
        policy = Policy(first_wait=20, most_wait=100, at_once=4)
        sender = Sender(Sending(outbox, {"sms": channel}, policy=policy), {"sms": channel}, idle_seconds=0.01)
        thread = threading.Thread(target=sender.run, daemon=True)
        thread.start()
        wait_for(lambda: outbox.states().get("sent", 0) >= 30)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        assert outbox.states().get("sent", 0) < COUNT
    port = address.rpartition(":")[2]
    with running(tmp_path, "--port", port) as (process, _):
        wait_for(lambda: outbox.states() == {"sent": COUNT})
        sender.stop()
        thread.join(30)
        channel.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    judge = Book(book)
    assert sorted(each.text for each in judge.newest(10_000)) == sorted(f"alert {each}" for each in range(COUNT))
    judge.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fault", "busy"], "--fault cannot be understood. Expected such as \"busy=0.1\"; found 'busy'."),
        (["--fault", "storm=0.5"], "These faults cannot be"),
        (["--folder", "/dev/null/x"], "cannot be used: Not a directory"),
    ],
)
def test_a_wrong_argument_is_one_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], message: str
) -> None:
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert main(["--folder", str(tmp_path), *arguments]) in {1, 2}
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    said = capsys.readouterr().err
    assert message in said
    assert re.fullmatch(r"[^\n]+\n", said)
