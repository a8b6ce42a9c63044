"""A Postgres of one's own: whether the machine has one, and where its files can be."""

import os
import tempfile
from pathlib import Path

import pytest

from riverrun.app import App, load_app
from riverrun.cluster.postgres import binaries, data_folder_for, make_private_folder, unavailable_reason
from riverrun.config import Project, Settings
from riverrun.config.spec import PostgresSettings
from riverrun.demo.database import database_unavailable_reason
from riverrun.demo.use_cases import examples_folder
from riverrun.errors import ClusterError
from riverrun.streams.pipeline_file import load_pipeline

BANK = examples_folder() / "bank" / "app.py"


def installed(root: Path, *versions: str) -> None:
    for version in versions:
        (root / "usr/lib/postgresql" / version / "bin").mkdir(parents=True)
        (root / "usr/lib/postgresql" / version / "bin/initdb").touch()


def test_the_newest_of_the_machine_is_taken(tmp_path: Path) -> None:
    assert binaries(tmp_path) is None
    assert "No Postgres is installed" in unavailable_reason(tmp_path)
    installed(tmp_path, "9.6", "15", "8.4")
    # Only the client's programs.
    (tmp_path / "usr/lib/postgresql/17/bin").mkdir(parents=True)
    assert binaries(tmp_path) == tmp_path / "usr/lib/postgresql/15/bin"
    assert unavailable_reason(tmp_path) == ""


def test_root_has_its_files_where_the_server_can_reach_them(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Path("/root/demo/postgres")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert data_folder_for(wanted) == wanted
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert data_folder_for(wanted).parent == Path(tempfile.gettempdir())
    assert data_folder_for(wanted) == data_folder_for(wanted) != data_folder_for(Path("/root/other"))


def test_a_folder_that_somebody_else_put_there_is_refused(tmp_path: Path) -> None:
    """In the machine's temporary folder anybody can: a link lets root write elsewhere, data there would be run."""
    other, folder = tmp_path / "other", tmp_path / "postgres"
    other.mkdir()
    (other / "precious").touch()
    folder.symlink_to(other)
    with pytest.raises(ClusterError, match="it is a link"):
        make_private_folder(folder)
    folder.unlink()
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ClusterError, match="others may write to it"):
        make_private_folder(folder)
    folder.chmod(0o755)
    (folder / "data").mkdir()
    (folder / "data" / "PG_VERSION").touch()
    (folder / "postgres.log").symlink_to(other / "precious")
    make_private_folder(folder)
    assert list(folder.iterdir()) == []
    assert (other / "precious").exists()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_demo_says_why_it_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RIVERRUN_POSTGRES_FOLLOW", raising=False)
    monkeypatch.setattr("riverrun.demo.database.unavailable_reason", lambda: "No Postgres is installed")
    assert database_unavailable_reason(App("mine")) == ""
    bank = load_app(BANK)
    assert database_unavailable_reason(bank) == "No Postgres is installed"
    monkeypatch.setattr("riverrun.demo.database.unavailable_reason", str)
    assert database_unavailable_reason(bank) == ""
    monkeypatch.setenv("RIVERRUN_POSTGRES_FOLLOW", "false")
    assert database_unavailable_reason(bank) == "RIVERRUN_POSTGRES_FOLLOW is false"


def test_the_topics_are_the_same_where_nothing_is_followed(tmp_path: Path) -> None:
    followed = load_pipeline(BANK, Settings(), Project(tmp_path))
    alone = load_pipeline(BANK, Settings(postgres=PostgresSettings(follow=False)), Project(tmp_path))
    assert set(followed.sources) == {"transactions", "customers", "accounts"}
    assert alone.sources == {}
    assert list(alone.topics) == list(followed.topics) == ["transactions", "bank.customers", "bank.accounts"]
