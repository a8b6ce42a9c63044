"""`riverrun config`: values, origins, secrets, all problems at once; and the texts made from the declarations."""

import json
import tomllib
from pathlib import Path

import pytest

from riverrun.cli.main import run
from riverrun.config import Project, Settings, load
from riverrun.config.sample import reference_page, sample_toml
from riverrun.config.spec import setting_specs


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RIVERRUN_KAFKA_BOOTSTRAP_SERVERS", "RIVERRUN_PROJECT", "RIVERRUN_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[object, str]]:
    return {row["setting"]: (row["value"], row["origin"]) for row in json.loads(capsys.readouterr().out)}


@pytest.mark.parametrize("command", [["config", "--json"], ["config", "show", "--json"]])
def test_each_value_has_its_origin_and_secrets_are_starred(
    command: list[str], project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "riverrun.toml").write_text("[kafka]\nbrokers = 3\n", encoding="utf-8")
    monkeypatch.setenv("RIVERRUN_KAFKA_SASL_PASSWORD", "hunter2")
    assert run(command) == 0
    found = rows(capsys)
    assert found["kafka.brokers"] == (3, "riverrun.toml:2")
    assert found["kafka.port"] == (0, "default")
    assert found["kafka.sasl_password"] == ("******", "environment RIVERRUN_KAFKA_SASL_PASSWORD")


def test_all_problems_are_told_at_once(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "riverrun.toml").write_text('[kafka]\nbrokrs = 3\nport = "x"\n[jva]\n', encoding="utf-8")
    assert run(["config"]) == 2
    told = capsys.readouterr().err
    assert "riverrun.toml:2: unknown setting kafka.brokrs; did you mean brokers?" in told
    assert "riverrun.toml:3: kafka.port must be a whole number" in told
    assert "riverrun.toml:4: unknown section [jva]; did you mean java?" in told


def test_the_sample_is_a_file_that_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "riverrun.toml").write_text(sample_toml(), encoding="utf-8")
    assert load(Project(tmp_path), environ={}).settings == Settings()


def test_every_line_of_the_sample_is_valid_without_its_comment_sign() -> None:
    settings = [line[2:] for line in sample_toml().splitlines() if line.startswith("# ") and " = " in line]
    assert len(settings) > 15
    for line in settings:
        tomllib.loads(line)


def test_the_sample_has_every_common_setting_and_the_page_has_all() -> None:
    sample, page = sample_toml(), reference_page()
    for spec in setting_specs():
        assert f"| `{spec.name}` |" in page
        assert spec.advanced or f"\n# {spec.name} = " in sample


def test_the_sample_and_the_page_are_printed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "sample"]) == 0
    assert capsys.readouterr().out == sample_toml()
    assert run(["config", "reference"]) == 0
    assert capsys.readouterr().out == reference_page()
