"""Whether people can be told is checked before anything starts."""

from pathlib import Path
from typing import Any

import pytest

import riverrun as rr
from riverrun.cli import alert_supervisor
from riverrun.cli.alert_supervisor import check_channels
from riverrun.config import LoadedSettings, Project, load
from riverrun.errors import ConfigError

SMS = 'sms_url = "https://sms.example.org"\nsms_key = { env = "SMS_KEY" }\nsms_sender = "riverrun"\n'


def app_to(*channels: str) -> rr.App:
    app = rr.App("meters")
    for channel in channels:
        app.alert(f"to-{channel}", "house_now", when="load_kw > 2.0", to="phone", text="High", channel=channel)
    return app


def settings(folder: Path, alerts: str = "", **environ: str) -> LoadedSettings:
    (folder / "riverrun.toml").write_text(f"[alerts]\n{alerts}")
    return load(Project(folder), environ=environ)


def test_without_a_provider_there_are_phones_and_on_a_cluster_of_others_a_message(tmp_path: Path) -> None:
    check_channels(settings(tmp_path), app_to("sms"))
    check_channels(settings(tmp_path, SMS, SMS_KEY="k"), app_to("sms"))
    others = settings(tmp_path, RIVERRUN_KAFKA_BOOTSTRAP_SERVERS="kafka.example.org:9092")
    assert others.attached
    with pytest.raises(ConfigError, match=r"alerts\.sms_url is not set, and no phones run on this machine"):
        check_channels(others, app_to("sms"))


def test_a_channel_that_is_not_there_or_cannot_be_opened_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"alerts\.channels\.ops is not set: alerts go there"):
        check_channels(settings(tmp_path), app_to("sms", "ops"))
    monkeypatch.delenv("OPS_URL", raising=False)
    with pytest.raises(ConfigError, match="asks for the variable OPS_URL, which is not set"):
        check_channels(settings(tmp_path, '[alerts.channels]\nops = "env:OPS_URL"\n'), app_to("ops"))
    monkeypatch.setenv("OPS_URL", "json://127.0.0.1/ops")
    check_channels(settings(tmp_path, '[alerts.channels]\nops = "env:OPS_URL"\n'), app_to("ops"))


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        return None if name == "phonenumbers" else object()

    monkeypatch.setattr(alert_supervisor, "find_spec", absent)
    with pytest.raises(ConfigError, match=r'phonenumbers, which is not installed: pip install "riverrun\[alerts\]"'):
        check_channels(settings(tmp_path), app_to("sms"))
