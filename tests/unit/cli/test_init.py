"""`riverrun init`: the files of a new project, which work, and nothing overwritten."""

import json
from pathlib import Path

import pytest

from riverrun.app import load_app
from riverrun.cli.main import run
from riverrun.config import Project, load


def test_a_project_is_made_and_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my meters"
    assert run(["init", str(folder)]) == 0
    app = load_app(folder / "app.py")
    assert (app.name, list(app.topics)) == ("my-meters", ["readings"])
    assert load(Project(folder), environ={}).settings.project.app == "app.py"
    assert (folder / ".gitignore").read_text(encoding="utf-8") == ".riverrun/\n"
    told = capsys.readouterr()
    assert "riverrun up --detach" in told.err
    assert told.out == ""


@pytest.mark.parametrize("name", ["riverrun.toml", "app.py"])
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
    assert [Path(each).name for each in found["files"]] == ["riverrun.toml", "app.py", ".gitignore"]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert run(["init", str(tmp_path / "file" / "inside")]) == 2
    assert "cannot be written" in capsys.readouterr().err
