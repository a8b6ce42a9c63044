"""The tutorial is run as it stands: its commands, with what they print, and its changes, in order, in an empty folder."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(console|diff)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The tests start Spark, and so does the run.
COMMAND_SECONDS = 900


@dataclass
class Reader:
    """Somebody who does what the page says."""

    folder: Path

    def follow(self, page: str) -> list[str]:
        """What was done: commands, and files that were changed."""
        done = []
        for language, file, text in BLOCK.findall(page):
            if language == "diff":
                self.change(file, text)
                done.append(file)
                continue
            for each in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, expected = each.partition("\n")
                self.type(command, expected.strip())
                done.append(command)
        return done

    def change(self, file: str, diff: str) -> None:
        """A change is found by the lines it takes away and those around it."""
        lines = diff.splitlines()
        before = "\n".join(line[1:] for line in lines if line[:1] in ("-", " "))
        after = "\n".join(line[1:] for line in lines if line[:1] in ("+", " "))
        path = self.folder / file
        text = path.read_text(encoding="utf-8")
        assert text.count(before) == 1, f"{file} does not have, once:\n{before}"
        path.write_text(text.replace(before, after), encoding="utf-8")

    def type(self, command: str, expected: str) -> None:
        words = shlex.split(command, comments=True)
        if words[0] == "cd":
            self.folder /= words[1]
            return
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        told = f"{command}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, told
        shown, cut, _ = expected.partition("…")
        found = done.stdout.strip()
        assert found.startswith(shown.strip()) if cut else not shown or found == shown, told


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    found = Reader(tmp_path)
    yield found
    subprocess.run(
        [sys.executable, "-m", "riverrun", "down"], cwd=found.folder, check=False, capture_output=True, timeout=120
    )


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_tutorial_does_what_it_says(reader: Reader) -> None:
    done = reader.follow(PAGE.read_text(encoding="utf-8"))
    assert {"app.py", "figures.py", "riverrun test -q", "riverrun run --until-caught-up", "riverrun down"} <= set(done)


def test_a_change_that_does_not_fit_is_told(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("one\ntwo\n", encoding="utf-8")
    Reader(tmp_path).change("app.py", " one\n-two\n+three\n")
    assert (tmp_path / "app.py").read_text(encoding="utf-8") == "one\nthree\n"
    with pytest.raises(AssertionError, match=r"app\.py does not have"):
        Reader(tmp_path).change("app.py", "-two\n+three\n")
