"""Topics under running streams: which of them are others by now, and which logs went back."""

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.errors import BrokerUnreachableError
from riverrun.streams.run import topic_watch
from riverrun.streams.run.topic_watch import DELETED, RECREATED, TopicWatch, find_offset_regression, topic_lost_error


class Cluster:
    def __init__(self, **ids: str) -> None:
        self.ids: dict[str, str] = ids
        self.gone = False

    def topics(self, names: Collection[str], *, config: bool) -> dict[str, Any]:
        assert not config
        if self.gone:
            raise BrokerUnreachableError("No broker answers")
        return {name: SimpleNamespace(topic_id=self.ids[name]) for name in names if name in self.ids}


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watch, "POLL_SECONDS", 0.0)


def watch(cluster: Any) -> TopicWatch:
    return TopicWatch(cluster, dict(cluster.ids))


def test_a_topic_made_again_is_told_once() -> None:
    cluster = Cluster(readings="1", outages="1")
    watching = watch(cluster)
    assert watching.poll() == {}
    cluster.ids["readings"] = "2"
    assert watching.poll() == {"readings": RECREATED}
    assert watching.poll() == {}


def test_a_topic_that_stays_away_was_deleted_and_brokers_that_stay_away_say_nothing() -> None:
    cluster = Cluster(readings="1")
    watching = watch(cluster)
    cluster.gone = True
    assert [watching.poll() for _ in range(5)] == [{}] * 5
    cluster.gone = False
    del cluster.ids["readings"]
    assert [watching.poll() for _ in range(2)] == [{}, {}]
    assert watching.poll() == {"readings": DELETED}


def test_a_topic_that_is_away_for_a_moment_is_none_that_was_deleted() -> None:
    cluster = Cluster(readings="1")
    watching = watch(cluster)
    for _ in range(4):
        cluster.ids = {}
        assert watching.poll() == watching.poll() == {}
        cluster.ids = {"readings": "1"}
        assert watching.poll() == {}


def test_offsets_that_go_back_are_found() -> None:
    assert find_offset_regression({"a": {0: 5, 1: 9}}, {"a": {0: 5, 1: 9, 2: 0}, "b": {0: 1}}) == ""
    assert (
        find_offset_regression({"a": {0: 5, 1: 9}}, {"a": {0: 6, 1: 3}})
        == "a[1] up to 9, and its log ended at 3 after that"
    )


def test_what_to_do_is_said() -> None:
    said = str(topic_lost_error("load", "readings", RECREATED, "meters.py"))
    assert "load cannot go on: readings, which it reads, was deleted and made again while it ran" in said
    assert "`riverrun run meters.py --fresh load` begins at the first record of the new one" in said
