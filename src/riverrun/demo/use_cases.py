"""The use cases that come with riverrun. Each is a folder with a pipeline file, its source application and its tests.

In an installed riverrun they are inside the package; from a checkout, in its `examples/`.
"""

import ast
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from riverrun.config.project import CONFIG_FILE, STATE_FOLDER
from riverrun.config.sample import minimal_toml
from riverrun.errors import UsageError
from riverrun.model.suggest import nearest

APP, SOURCE, FIGURES, OWN_DEMO = "app.py", "source.py", "figures.py", "demo.py"
# Not part of a copy: what was made by running it, and what only the demo of the meters in a checkout needs.
# Settings are written separately.
_EXCLUDED_FILES = ("__pycache__", STATE_FOLDER, ".pytest_cache", OWN_DEMO, "page.py", "account.py", CONFIG_FILE)
# Marks a folder that was made for a demo: its data may be deleted.
_MARKER_FILE = Path(STATE_FOLDER) / "demo"


@dataclass(frozen=True)
class UseCase:
    """One use case, and where its files are."""

    name: str
    folder: Path

    @property
    def about(self) -> str:
        """The first line of its pipeline file's docstring."""
        words = ast.get_docstring(ast.parse((self.folder / APP).read_text(encoding="utf-8"))) or self.name
        return words.splitlines()[0]

    @property
    def settings(self) -> str:
        """The riverrun.toml of a copy: its own where it needs some setting, else a short one."""
        own = self.folder / CONFIG_FILE
        return own.read_text(encoding="utf-8") if own.is_file() else minimal_toml(APP)

    def files(self) -> list[Path]:
        """The files of a copy, from the folder."""
        paths = (path.relative_to(self.folder) for path in self.folder.rglob("*") if path.is_file())
        return sorted(
            relative
            for relative in paths
            if not set(relative.parts) & set(_EXCLUDED_FILES) and relative.suffix != ".pyc"
        )


def examples_folder() -> Path:
    package = Path(__file__).parents[1]
    inside = package / "examples"
    return inside if inside.is_dir() else package.parents[1] / "examples"


def use_cases(folder: Path | None = None) -> Mapping[str, UseCase]:
    """All of them, by their names."""
    root = folder or examples_folder()
    folders = sorted(path.parent for path in root.glob(f"*/{APP}") if (path.parent / SOURCE).is_file())
    return {case_folder.name: UseCase(case_folder.name, case_folder) for case_folder in folders}


def find_use_case(name: str) -> UseCase:
    known = use_cases()
    if name in known:
        return known[name]
    near = nearest(name, known)
    raise UsageError(
        f"There is no use case {name}",
        expected=", ".join(known),
        hint=f"Did you mean {near}?" if near else "`riverrun demo` lists them",
    )


def copy_use_case(case: UseCase, folder: Path) -> list[Path]:
    """Copy a use case into a folder, with a riverrun.toml. Nothing is overwritten: if one of the files exists already,
    nothing is written at all."""
    files = case.files()
    existing = [str(folder / file) for file in (*files, Path(CONFIG_FILE)) if (folder / file).exists()]
    if existing:
        raise UsageError(
            f"There is something in {folder.resolve()} already",
            found=", ".join(existing),
            hint="Nothing was written. Choose another folder",
        )
    return _write(case, folder, files)


def prepare_demo_folder(case: UseCase, folder: Path) -> None:
    """Make a folder an up-to-date copy of the use case, for a demo. A folder with anything else is refused: a demo
    deletes data."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _MARKER_FILE).is_file():
        raise UsageError(
            f"{folder} is not a folder of a demo, and not empty",
            hint="A demo begins by deleting its data. Choose a folder that is empty or not there; "
            "to run a project of your own, `riverrun run`",
        )
    _write(case, folder, case.files())
    (folder / _MARKER_FILE).parent.mkdir(exist_ok=True)
    (folder / _MARKER_FILE).touch()


def _write(use_case: UseCase, folder: Path, files: list[Path]) -> list[Path]:
    try:
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(use_case.folder / file, folder / file)
        (folder / CONFIG_FILE).write_text(use_case.settings, encoding="utf-8")
        (folder / ".gitignore").write_text(f"{STATE_FOLDER}/\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{error.filename or folder} cannot be written: {error.strerror}") from error
    return [folder / file for file in (*files, Path(CONFIG_FILE), Path(".gitignore"))]
