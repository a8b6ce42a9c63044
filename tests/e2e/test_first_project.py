"""The first ten minutes: `riverrun init`, its test, `riverrun run` until figures move, and Ctrl-C."""

import json
import signal
from pathlib import Path

import pytest

from support.cluster import ProjectDriver, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

README = Path(__file__).parents[2] / "README.md"
FIGURES = "select sum(readings) as n, count(distinct sensor) as sensors from averages"


def test_a_new_project_is_tested_and_runs_and_its_figures_move(tmp_path: Path) -> None:
    page = README.read_text(encoding="utf-8")
    assert "\nriverrun init sensors && cd sensors " in page, "the page shows something else"
    assert "\nriverrun run " in page
    made = ProjectDriver(tmp_path).run("init", "sensors")
    assert made.code == 0, made.err
    project = ProjectDriver(tmp_path / "sensors")
    tested = project.run("test", "-q", timeout=240)
    assert tested.code == 0, tested.out + tested.err
    assert "1 passed" in tested.out
    seen: list[int] = []

    def moved() -> bool:
        answer = project.run("query", FIGURES, "--format", "json")
        if answer.code == 0:
            [row] = json.loads(answer.out)
            if row["sensors"] == 3:
                seen.append(row["n"])
        return len(set(seen)) > 1

    running = project.start("run")
    try:
        wait_for(lambda: moved() or running.poll() is not None, 300, "no figure moves")
    finally:
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=120)
    assert seen, out + err
    assert sorted(seen) == seen
    assert running.returncode == 0, err
    assert "Traceback" not in err
