"""What `riverrun up` shows while it runs."""

import io
import re

import pytest

from riverrun.cli.server_display import LiveServerDisplay, PlainServerDisplay, server_list_text
from riverrun.config.run_state import RunState, ServerState


def state(name: str, server: str, detail: str = "") -> RunState:
    broker = ServerState("broker-1", "broker", server, 1, "127.0.0.1:9092", detail=detail)
    return RunState(1, name, "0", "127.0.0.1:9092" if name == "ready" else "", servers=[broker])


def lines(text: str) -> list[str]:
    return [re.sub(r"^\d\d:\d\d:\d\d  ", "", line) for line in text.splitlines()]


def test_plain_lines_tell_each_change_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown = PlainServerDisplay()
    for each in (state("starting", "starting"), state("starting", "starting"), state("ready", "ready")):
        shown.on_change(each)
        shown.on_poll(each)
    shown.notice("broker-1 died; starting it again in 1 s")
    shown.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert lines(err) == [
        "broker-1 is starting (pid 1)",
        "broker-1 is ready on 127.0.0.1:9092 (pid 1)",
        "Broker-1 died; starting it again in 1 s.",
    ]


def test_a_terminal_gets_a_table() -> None:
    from rich.console import Console

    shown = LiveServerDisplay()
    screen = io.StringIO()
    shown._console = Console(file=screen, force_terminal=True, width=120, highlight=False)
    shown.on_change(state("starting", "starting"))
    shown.on_change(state("ready", "ready"))
    shown.notice("a remark")
    shown.on_poll(state("degraded", "restarting", detail="it died"))
    shown.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "Kafka is ready on 127.0.0.1:9092" in text
    assert "A remark." in text
    assert "broker-1: it died" in text


def test_a_terminal_says_where_druid_is() -> None:
    from rich.console import Console

    shown = LiveServerDisplay()
    screen = io.StringIO()
    shown._console = Console(file=screen, force_terminal=True, width=120, highlight=False)
    both = state("ready", "ready")
    both.settings, both.druid_url = {"druid": 1}, "http://127.0.0.1:8888"
    shown.on_change(both)
    shown.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "Kafka with Druid is ready on 127.0.0.1:9092, http://127.0.0.1:8888" in text
    assert server_list_text(connect=False, druid=False) == "Kafka"
    assert server_list_text(connect=True, druid=True) == "Kafka with Connect and Druid"


def test_a_terminal_that_is_gone_does_not_stop_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("click.echo", gone)
    shown = PlainServerDisplay()
    shown.notice("stopping")
    shown.on_change(state("stopping", "stopping"))
