"""docs/security.md names tests that are there, and leaves no row without one."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_threat_has_a_test_that_is_there() -> None:
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    files = dict(re.findall(r"`(\w+)`: (tests/[\w/]+\.py)", page))
    assert len(files) >= 8
    rows = [line for line in page.splitlines() if line.startswith("| ") and "---" not in line][1:]
    assert len(rows) >= 25
    for row in rows:
        named = re.findall(r"`(\w+)::(\w+)`", row)
        assert named, row
        for short, test in named:
            text = (ROOT / files[short]).read_text(encoding="utf-8")
            assert re.search(rf"^def {test}\(", text, re.MULTILINE), f"{files[short]}: {test}"
