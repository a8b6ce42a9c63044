"""The plugin is loaded in every pytest run of everybody who has riverrun installed."""

import subprocess
import sys
from pathlib import Path

HEAVY = (
    "confluent_kafka",
    "riverrun.cluster",
    "riverrun.kafka",
    "riverrun.config",
    "psutil",
    "httpx",
    "rich",
    "pyspark",
    "pandas",
)


def test_importing_it_imports_nothing_heavy() -> None:
    code = f"import sys, riverrun.testing.pytest_plugin; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_named_cluster_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(
        "def test_it(kafka):\n"
        "    assert kafka.bootstrap_servers == 'example:1'\n"
        "    assert kafka.settings.bootstrap_servers == 'example:1'\n"
        "    assert kafka.local is None\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--bootstrap-servers", "example:1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
