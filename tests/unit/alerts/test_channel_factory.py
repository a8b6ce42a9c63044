"""Channels from settings: secrets by reference, and all problems at once."""

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest

from riverrun.alerts.channels.contract import AlertMessage
from riverrun.alerts.channels.factory import open_channels
from riverrun.alerts.channels.phone_number import parse_phone_number
from riverrun.config import Project, load
from riverrun.config.secret import Secret
from riverrun.config.spec import AlertSettings
from riverrun.errors import ConfigError

SMS = AlertSettings(sms_url="https://xyz.api.infobip.com", sms_key=Secret("key"), sms_sender="riverrun")


def test_settings_of_a_project_become_channels(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k1\n")
    (tmp_path / "mail").write_text("json://127.0.0.1/mail/{to}\n")
    (tmp_path / "riverrun.toml").write_text(
        '[alerts]\nsms_url = "https://xyz.api.infobip.com"\nsms_key = { file = "key" }\nsms_sender = "riverrun"\n'
        'sms_region = "IE"\nsms_daily_parts = 2\n[alerts.channels]\nops = "env:OPS"\nmail = "file:mail"\n'
    )
    settings = load(Project(tmp_path), environ={}).settings.alerts
    channels, limits = open_channels(settings, tmp_path, {"OPS": "json://127.0.0.1/ops"})
    assert sorted(channels) == ["mail", "ops", "sms"]
    assert sorted(limits) == ["sms"]
    assert limits["sms"].budget.max_parts == 2
    local = AlertMessage(id="m", channel="sms", receiver="085 012 3456", text="x")
    assert channels["sms"].check(local).problem == ""
    for channel in channels.values():
        channel.close()


def test_no_settings_no_channels(tmp_path: Path) -> None:
    assert open_channels(AlertSettings(), tmp_path, {}) == ({}, {})


def test_all_problems_are_told_at_once_and_no_secret(tmp_path: Path) -> None:
    settings = AlertSettings(
        sms_key=Secret("very secret"),
        sms_budget_zone="Mars/Olympus",
        channels={
            "a": "json://user:password@host/",
            "b": "env:NOT_SET",
            "c": "file:not-there",
            "sms": "env:X",
            "d": "env:WRONG",
        },
    )
    with pytest.raises(ConfigError) as caught:
        open_channels(settings, tmp_path, {"WRONG": "nonsense"})
    text = str(caught.value)
    for each in (
        "alerts.sms_url is empty",
        "alerts.sms_key has characters",
        "alerts.sms_sender is empty",
        "alerts.sms_budget_zone 'Mars/Olympus' is no time zone",
        'alerts.channels.a may hold a secret, which does not belong here: write "env:NAME"',
        "alerts.channels.b asks for the variable NOT_SET",
        "alerts.channels.c asks for the file",
        "alerts.channels.sms: this name",
        "alerts.channels.d is no address",
    ):
        assert each in text
    assert "password" not in text
    assert "very secret" not in text


@pytest.mark.parametrize("zone", ["../../etc/passwd", "", "Europe", "\0"])
def test_a_zone_that_is_none_is_told(tmp_path: Path, zone: str) -> None:
    import dataclasses

    with pytest.raises(ConfigError, match="is no time zone"):
        open_channels(dataclasses.replace(SMS, sms_budget_zone=zone), tmp_path, {})


def test_a_library_that_is_missing_is_named_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **others: Any) -> Any:
        if name.partition(".")[0] in {"apprise", "phonenumbers"}:
            raise ModuleNotFoundError(name=name)
        return real(name, *rest, **others)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "phonenumbers", raising=False)
    with pytest.raises(ConfigError, match=r'phonenumbers, which is not installed: pip install "riverrun\[alerts\]"'):
        parse_phone_number("+353850123456")
    with pytest.raises(ConfigError, match="alerts need apprise"):
        open_channels(AlertSettings(channels={"ops": "env:OPS"}), tmp_path, {"OPS": "json://127.0.0.1/"})
