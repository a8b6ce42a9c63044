"""What the documentation shows is run: Python blocks in one namespace per page, commands in one project per page."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/guide.md", "docs/postgres.md", "docs/registry.md")
BLOCK = re.compile(r"^```(python|console|toml)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One block of code. `note` is the word after the language: a file's name, or `skip-output`."""

    language: str
    note: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(found[1], found[2] or "", found[3], text.count("\n", 0, found.start()) + 1)
        for found in BLOCK.finditer(text)
    ]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty project that is the current folder; what a page starts there is stopped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "app", raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    yield tmp_path
    shell("riverrun down", tmp_path)


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def run_console(page: str, block: Block, folder: Path) -> None:
    """Every `$ ` line works; what stands below it is what it prints, up to a line that is only `…`."""
    commands = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
    for each in commands:
        command, _, expected = each.partition("\n")
        if shlex.split(command, comments=True)[:2] == ["pip", "install"]:
            continue
        done = shell(command, folder)
        place = f"{page}:{block.line}: {command}"
        assert done.returncode == 0, f"{place}\n{done.stdout}{done.stderr}"
        shown, cut, _ = expected.partition("…")
        if shown.strip():
            found = done.stdout.strip()
            assert found.startswith(shown.strip()) if cut else found == shown.strip(), f"{place}\n{found}"


def run_page(page: str, folder: Path) -> int:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for block in blocks(page):
        if block.language == "console":
            run_console(page, block, folder)
        elif block.note:
            (folder / block.note).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            code = compile("\n" * block.line + block.text, str(ROOT / page), "exec")
            exec(code, namespace)  # noqa: S102  -- our own documentation
        count += 1
    return count


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_works(page: str, project: Path) -> None:
    assert run_page(page, project) > 0


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        broken += [f"{page.relative_to(ROOT)} → {target}" for target in targets if not (page.parent / target).exists()]
    assert broken == []
