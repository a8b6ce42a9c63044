"""The use cases that come with riverrun: found, copied, in the wheel; and what each has to have."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from riverrun.app import load_app
from riverrun.cli.main import run
from riverrun.config import Project, load
from riverrun.config.sample import minimal_toml
from riverrun.demo.runner import open_in_browser, source_arguments
from riverrun.demo.use_cases import UseCase, prepare_demo_folder, use_cases
from riverrun.errors import UsageError

ROOT = Path(__file__).parents[3]
CASES = use_cases()


@pytest.fixture
def case(tmp_path: Path) -> UseCase:
    """A small one, with what a run leaves behind."""
    folder = tmp_path / "mine"
    for name in ("app.py", "source.py", "demo.py", ".riverrun/state.json", "__pycache__/app.pyc", "data/houses.csv"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('"""A use case."""\n' if name == "app.py" else "", encoding="utf-8")
    return UseCase("mine", folder)


@pytest.mark.parametrize("name", CASES)
def test_each_has_what_a_use_case_has(name: str) -> None:
    found = CASES[name]
    assert found.about.endswith(".")
    files = {str(file) for file in found.files()}
    assert {"README.md", "app.py", "source.py", "figures.py", f"test_{name}.py"} <= files
    assert not {file for file in files if "riverrun" in file or file == "demo.py"}


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo"]) == 0
    told = capsys.readouterr().out
    assert all(each.about in told for each in CASES.values())
    assert run(["demo", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == list(CASES)


@pytest.mark.parametrize("command", [["demo", "stokcs"], ["new", "x", "--from", "stokcs"]])
def test_one_that_is_not_there(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command) == 2
    assert "Did you mean stocks?" in capsys.readouterr().err


@pytest.mark.parametrize("name", CASES)
def test_a_copy_is_a_project(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my own"
    assert run(["new", str(folder), "--from", name]) == 0
    told = capsys.readouterr().err
    assert "my own' && riverrun test" in told
    assert load(Project(folder), environ={}).settings.project.app == "app.py"
    assert load_app(folder / "app.py").name == name
    assert (folder / ".gitignore").read_text(encoding="utf-8") == ".riverrun/\n"


def test_a_use_case_may_have_settings_of_its_own(tmp_path: Path) -> None:
    """The mall's: whoever posts needs a key."""
    assert run(["new", str(tmp_path / "mine"), "--from", "mall"]) == 0
    assert load(Project(tmp_path / "mine"), environ={}).settings.ingest.require_key
    assert Path("riverrun.toml") not in CASES["mall"].files()
    assert CASES["stocks"].settings == minimal_toml("app.py")


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "figures.py").write_text("mine", encoding="utf-8")
    assert run(["new", str(tmp_path), "--from", "stocks"]) == 2
    assert "figures.py" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["figures.py"]


def test_what_a_run_left_behind_is_not_copied(case: UseCase) -> None:
    assert [str(file) for file in case.files()] == ["app.py", "data/houses.csv", "source.py"]


def test_a_demo_has_a_folder_that_is_its_own(case: UseCase, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    prepare_demo_folder(case, folder)
    (folder / "app.py").write_text("changed", encoding="utf-8")
    prepare_demo_folder(case, folder)
    assert (folder / "app.py").read_text(encoding="utf-8") == (case.folder / "app.py").read_text(encoding="utf-8")
    other = tmp_path / "project"
    other.mkdir()
    (other / "notes.txt").touch()
    with pytest.raises(UsageError, match="not a folder of a demo"):
        prepare_demo_folder(case, other)
    assert [path.name for path in other.iterdir()] == ["notes.txt"]


def test_only_what_was_asked_for_reaches_the_source() -> None:
    assert source_arguments((("rate", 50.0), ("seed", None), ("speed-up", 2))) == ["--rate", "50.0", "--speed-up", "2"]


def test_a_browser_is_opened_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert open_in_browser("http://127.0.0.1:1/") is None
    monkeypatch.setenv("DISPLAY", ":0")
    opening = open_in_browser("http://127.0.0.1:1/")
    assert opening is not None
    opening.join(10)
    assert opened == ["http://127.0.0.1:1/"]


def test_the_wheel_has_them(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=170)
    [wheel] = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "riverrun/cli/main.py" in names
    for case in CASES.values():
        assert {f"riverrun/examples/{case.name}/{file}" for file in case.files()} <= names
    assert "riverrun/examples/mall/riverrun.toml" in names
    assert not [name for name in names if ".riverrun" in name or name.startswith(("src/", "examples/"))]
