"""`riverrun phone`: where it listens, and what it prints to be copied elsewhere."""

import os
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

from riverrun.alerts.channels.factory import open_channels
from riverrun.config import Project, load


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_its_port_is_a_setting_and_what_it_prints_is_all_that_is_needed(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "riverrun.toml").write_text(f"[alerts]\nphone_port = {port}\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RIVERRUN_")}
    command = [sys.executable, "-m", "riverrun", "phone"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = [process.stderr.readline(), process.stderr.readline()]
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert said[0].startswith(f"Phones: http://127.0.0.1:{port}/ ")
    settings = said[1].partition("[alerts] ")[2].strip().replace(", sms_", "\nsms_")
    assert tomllib.loads(settings)["sms_sender"] == "riverrun"
    # As another project would have it: nothing else is missing.
    other = tmp_path / "other"
    other.mkdir()
    (other / "riverrun.toml").write_text(f"[alerts]\n{settings}\n")
    found = load(Project(other), environ={})
    channels, _ = open_channels(found.settings.alerts, other)
    assert "sms" in channels
