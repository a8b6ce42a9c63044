"""Where a table stands, told from a supervisor's status."""

from typing import Any

import pytest

from riverrun.store.druid.supervisor_monitor import explain_errors, read_status


def status(**changed: Any) -> dict[str, Any]:
    task = {"id": "t", "startingOffsets": {"0": 5, "1": 0}, "currentOffsets": {"0": 120, "1": 30}}
    usual = {
        "activeTasks": [task],
        "publishingTasks": [],
        "suspended": False,
        "state": "RUNNING",
        "detailedState": "RUNNING",
        "recentErrors": [],
    }
    return {**usual, **changed}


def test_a_running_supervisor_follows() -> None:
    seen = read_status(status(), {0: 100}, now=0)
    assert (seen.state, seen.positions, seen.detail) == ("following", {0: 120, 1: 30}, "")


def test_positions_that_went_back_are_settling() -> None:
    seen = read_status(status(), {0: 150, 1: 30}, now=0)
    assert seen.state == "settling"
    assert "30 records are read again" in seen.detail


def test_a_task_that_says_nothing_yet_is_starting() -> None:
    starting = [{"id": "t", "startingOffsets": {"0": 5}}]
    assert read_status(status(activeTasks=starting), {}, now=0).state == "behind"
    seen = read_status(status(activeTasks=starting), {0: 150}, now=0)
    assert (seen.state, seen.positions) == ("settling", {0: 5})


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (None, "somebody terminated it"),
        (status(suspended=True, state="SUSPENDED"), "suspended"),
        (
            status(
                state="UNHEALTHY_SUPERVISOR",
                detailedState="UNABLE_TO_CONNECT_TO_STREAM",
                recentErrors=[{"message": "TimeoutException: Timeout expired while fetching topic metadata"}],
            ),
            "Druid does not reach Kafka",
        ),
        (status(state="UNHEALTHY_TASKS", detailedState="UNHEALTHY_TASKS"), "unhealthy tasks"),
    ],
)
def test_a_failure_is_told_with_its_reason(payload: dict[str, Any] | None, said: str) -> None:
    seen = read_status(payload, {}, now=0)
    assert seen.state == "failing"
    assert said in seen.detail


def test_an_error_of_druids_is_explained() -> None:
    assert "retention" in explain_errors(["OffsetOutOfRangeException: Fetch position 3"])
    assert explain_errors(["something new"]) == "Druid says: something new"
    assert explain_errors([], "LOST_CONTACT") == "lost contact"


def test_partitions_may_have_their_topics_name() -> None:
    task = {"currentOffsets": {"loads:0": 7}}
    assert read_status(status(activeTasks=[task]), {}, now=0).positions == {0: 7}
