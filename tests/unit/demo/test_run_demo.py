"""A demo is stopped in order, however often Ctrl-C comes."""

import contextlib
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from riverrun.demo.runner import run_demo


def test_one_more_ctrl_c_does_not_cut_off_what_stops_the_parts(tmp_path: Path) -> None:
    stopped: list[str] = []

    def stop(name: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        stopped.append(name)

    def make(stack: contextlib.ExitStack) -> Any:
        for name in ("kafka", "pipeline"):
            stack.callback(stop, name)
        return SimpleNamespace(
            options=SimpleNamespace(folder=tmp_path),
            app=SimpleNamespace(name="meters"),
            start=lambda _: None,
            show=show,
            report_final_counts=lambda _, asked: 0 if asked else 1,
        )

    def show(asked: threading.Event) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.wait(30)

    assert run_demo(Console(quiet=True), make) == 0
    assert stopped == ["pipeline", "kafka"]
