"""Which store the settings name, and what is said when it cannot be had."""

from pathlib import Path

import pytest

from riverrun.config import KafkaSettings, Project, Settings
from riverrun.config.spec import DruidSettings, StoreSettings
from riverrun.errors import StoreUnavailableError
from riverrun.kafka.connection import Connection
from riverrun.store.factory import create_store, not_installed_error

NOWHERE = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1"))


def told(settings: Settings, project: Project) -> str:
    with pytest.raises(StoreUnavailableError) as caught:
        create_store(settings, project, NOWHERE, "meters", lambda _: None)
    return str(caught.value)


def test_no_store(tmp_path: Path) -> None:
    assert "store.kind is none" in told(Settings(store=StoreSettings(kind="none")), Project(tmp_path))


def test_a_package_that_is_missing() -> None:
    error = ModuleNotFoundError("No module named 'duckdb'", name="duckdb")
    assert str(not_installed_error(error)) == 'duckdb is not installed. Install it: pip install "riverrun[store]".'


def test_nothing_is_made_before_it_is_opened(tmp_path: Path) -> None:
    told(Settings(store=StoreSettings(kind="none"), druid=DruidSettings(url="http://127.0.0.1:1")), Project(tmp_path))
    assert list(tmp_path.iterdir()) == []
