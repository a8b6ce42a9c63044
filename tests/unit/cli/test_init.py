"""`riverrun init`: the files of a new project, which work, and nothing overwritten."""

import json
import re
from pathlib import Path

import pytest

import riverrun as rr
from riverrun.app import load_app
from riverrun.cli import project_template
from riverrun.cli.init import NEXT_STEPS
from riverrun.cli.main import run
from riverrun.config import Project, load
from riverrun.config.sample import sample_toml


def test_a_project_is_made_and_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my meters"
    assert run(["init", str(folder)]) == 0
    app = load_app(folder / "app.py")
    assert (app.name, list(app.topics), list(app.streams)) == ("my-meters", ["readings"], ["averages"])
    assert list(app.sources) == ["readings"]
    assert len(app.dashboards) == 1
    assert load(Project(folder), environ={}).settings.project.app == "app.py"
    assert len((folder / "riverrun.toml").read_text(encoding="utf-8").splitlines()) == 5
    assert (folder / ".gitignore").read_text(encoding="utf-8") == ".riverrun/\n"
    told = capsys.readouterr()
    assert f"cd '{folder}' && riverrun run" in told.err
    assert told.out == ""


def test_every_name_of_riverrun_in_the_files_and_in_what_is_said_exists() -> None:
    text = project_template.APP + project_template.TEST + NEXT_STEPS
    names = set(re.findall(r"\brr\.(\w+)", text))
    assert {"App", "http", "mqtt", "tail", "folder"} <= names
    assert sorted(name for name in names if not hasattr(rr, name)) == []
    # A new project has no docs of its own.
    assert "docs/" not in project_template.APP
    assert "docs/guide.md in riverrun's repository" in NEXT_STEPS


@pytest.mark.parametrize(
    ("folder", "name"), [("größe", "gro-e"), ("日本", "app"), ("Ünlü", "Unlu"), ("a" * 255, "a" * 100), ("-é-", "e")]
)
def test_the_app_has_a_name_that_kafka_takes(tmp_path: Path, folder: str, name: str) -> None:
    assert run(["init", str(tmp_path / folder)]) == 0
    assert load_app(tmp_path / folder / "app.py").name == name


def test_its_source_keeps_the_contract(tmp_path: Path) -> None:
    assert run(["init", str(tmp_path)]) == 0
    [fed] = load_app(tmp_path / "app.py").sources.values()
    reader = fed.source.open("", None)
    first = reader.read()
    assert first is not None
    assert {reading.sensor for reading in first.items} == {"attic", "kitchen", "cellar"}
    assert reader.read() is None, "it waits before the next ones"


def test_all_settings_are_explained_on_request(tmp_path: Path) -> None:
    assert run(["init", str(tmp_path), "--all-settings"]) == 0
    assert (tmp_path / "riverrun.toml").read_text(encoding="utf-8") == sample_toml("app.py")


@pytest.mark.parametrize("name", ["riverrun.toml", "app.py", "test_app.py"])
def test_nothing_is_overwritten(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_text("mine", encoding="utf-8")
    assert run(["init", str(tmp_path)]) == 2
    assert name in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


@pytest.mark.parametrize(
    ("before", "after"),
    [("*.pyc", "*.pyc\n.riverrun/\n"), ("*.pyc\n", "*.pyc\n.riverrun/\n"), (".riverrun/\n", ".riverrun/\n")],
)
def test_a_gitignore_is_added_to(before: str, after: str, tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text(before, encoding="utf-8")
    assert run(["init", str(tmp_path)]) == 0
    assert (tmp_path / ".gitignore").read_text(encoding="utf-8") == after


def test_programs_get_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", str(tmp_path / "p"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [Path(each).name for each in found["files"]] == [
        "app.py", "test_app.py", "riverrun.toml", ".gitignore",
    ]  # fmt: skip


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert run(["init", str(tmp_path / "file" / "inside")]) == 2
    assert "cannot be written" in capsys.readouterr().err
