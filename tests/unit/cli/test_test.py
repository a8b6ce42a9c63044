"""`riverrun test`: whose tests, whose arguments, whose exit code."""

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p no:cacheprovider"}


def riverrun(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RIVERRUN_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, "-m", "riverrun", *arguments],
        cwd=folder,
        env=kept | NO_PLUGINS | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "riverrun.toml").write_text("", encoding="utf-8")
    (tmp_path / "app.py").write_text("LIMIT = 2.0\n", encoding="utf-8")
    (tmp_path / "test_app.py").write_text(
        "import app\n\ndef test_one(): assert app.LIMIT == 2.0\n\ndef test_two(): assert app.LIMIT == 3.0\n",
        encoding="utf-8",
    )
    (tmp_path / "deeper").mkdir()
    return tmp_path


def test_the_tests_of_the_project_run_from_anywhere_in_it(project: Path) -> None:
    done = riverrun(project / "deeper", "test", "-q")
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout


def test_arguments_are_pytests(project: Path) -> None:
    done = riverrun(project, "test", "-q", "-k", "one", "--maxfail=1", "test_app.py")
    assert (done.returncode, "1 passed, 1 deselected" in done.stdout) == (0, True)
    assert riverrun(project, "test", "--no-such-flag").returncode == 4


def test_the_project_may_be_elsewhere(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    done = riverrun(tmp_path_factory.mktemp("elsewhere"), "--project", str(project), "test", "-q", "-k", "one")
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_tests_it_says_what_a_test_is(tmp_path: Path) -> None:
    done = riverrun(tmp_path, "test")
    assert done.returncode == 5
    assert f"There are no tests in {tmp_path}." in done.stderr
    assert "def test_what_is_sent_is_read(kafka, kafka_topic):" in done.stderr
    assert "There are no tests" not in riverrun(tmp_path, "test", "-k", "x").stderr


def test_without_pytest_it_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pytest'] = None\n", encoding="utf-8")
    done = riverrun(tmp_path, "test", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert f"Install it: {sys.executable} -m pip install pytest" in done.stderr


def test_what_brings_all_brings_pytest() -> None:
    extras = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "riverrun[test]" in extras["optional-dependencies"]["all"]
    assert any(each.startswith("pytest") for each in extras["optional-dependencies"]["test"])


def test_ctrl_c_is_for_pytest_and_it_ends_in_its_own_way(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    (tmp_path / "test_long.py").write_text(
        f"import pathlib, time\n\ndef test_long():\n    pathlib.Path({str(ready)!r}).touch()\n    time.sleep(60)\n",
        encoding="utf-8",
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "riverrun", "test"],
        cwd=tmp_path,
        env={**os.environ, **NO_PLUGINS},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while not ready.exists():
        assert time.monotonic() < deadline
        assert child.poll() is None
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 2, err
    assert "KeyboardInterrupt" in out
    assert "Traceback" not in err
