"""The shape of a pipeline, and what its nodes show, over recorded figures."""

from dataclasses import replace
from typing import Any

import pytest

import riverrun as rr
from riverrun.dashboard.topology.builder import build_topology
from riverrun.dashboard.topology.live import diff_topology
from riverrun.dashboard.topology.node_metrics import NodeMetrics, PipelineSnapshot, RateTracker, TopicSnapshot
from riverrun.model.topology import topology_from_dict
from riverrun.store.contract import TableStatus
from support.topology import meters_app, progress, seen, shape_of_app, stream, words

SHAPE = shape_of_app(meters_app())


def figures(*moments: PipelineSnapshot, viewers: int = 0) -> dict[str, dict[str, Any]]:
    made = NodeMetrics()
    return [made.metrics_of(SHAPE, moment, {"main": viewers}) for moment in moments][-1]


# --- shape ---


def test_everything_declared_is_a_node_and_records_go_along_the_edges() -> None:
    assert {node.id for node in SHAPE.nodes} == {
        "source:readings", "source:houses file", "topic:readings", "lookup:houses", "stream:house_load",
        "topic:house_load", "stream:street_load", "topic:street_load", "stream:high_load", "topic:high_load",
        "table:house_load", "table:street_load", "table:high_load", "dashboard:main",
    }  # fmt: skip
    assert set(SHAPE.edges) == {
        ("source:readings", "topic:readings"),
        ("source:houses file", "lookup:houses"),
        ("topic:readings", "stream:house_load"),
        ("stream:house_load", "topic:house_load"),
        ("topic:house_load", "stream:street_load"),
        ("lookup:houses", "stream:street_load"),
        ("stream:street_load", "topic:street_load"),
        ("topic:readings", "stream:high_load"),
        ("stream:high_load", "topic:high_load"),
        ("topic:house_load", "table:house_load"),
        ("topic:street_load", "table:street_load"),
        ("topic:high_load", "table:high_load"),
        ("table:street_load", "dashboard:main"),
        ("table:high_load", "dashboard:main"),
    }
    found = SHAPE.find("source", "houses file")
    assert found is not None
    assert (found.title, found.about) == ("houses.csv", "csv")


def test_a_stream_that_computes_another_by_itself_reads_its_topics() -> None:
    app = meters_app()
    found = build_topology(app, {"street_load": ["house_load", "houses"]}, {"street_load": ["readings"]})
    assert ("topic:readings", "stream:street_load") in found.edges
    assert ("topic:house_load", "stream:street_load") not in found.edges


def test_what_is_kept_otherwise_is_a_table_by_its_name() -> None:
    app = rr.App("meters")
    source: Any = app.topic("readings", None)
    load = app.sql("house_load", "select * from readings", topic="loads")
    app.sql("unkept", "select * from readings", store=False)
    app.store(load, name="houses_now")
    app.store(source, name="raw")
    found = shape_of_app(app)
    assert {node.name: node.topic for node in found.nodes if node.kind == "table"} == {
        "houses_now": "loads",
        "raw": "readings",
    }


def test_a_shape_comes_back_from_a_file() -> None:
    assert topology_from_dict(SHAPE.as_dict()) == SHAPE
    newer = SHAPE.as_dict()
    newer["nodes"] = [{**each, "colour": "red"} for each in newer["nodes"]] + [{"kind": "robot", "name": "x"}]
    newer["edges"] = [*newer["edges"], ["robot:x", "topic:readings"]]
    assert topology_from_dict(newer) == SHAPE


@pytest.mark.parametrize("content", [{}, {"nodes": 3, "edges": []}, {"nodes": [{"kind": "topic"}], "edges": []}])
def test_what_is_no_shape_is_none(content: dict[str, Any]) -> None:
    assert topology_from_dict(content) is None


# --- figures ---


def test_everything_runs() -> None:
    before = seen()
    after = seen(5.0, topics={**before.topics, "readings": TopicSnapshot(100, 7100, 2)})
    made = figures(before, after, viewers=2)
    assert made["topic:readings"]["in"] == 1200.0
    assert made["topic:readings"]["records"] == 7000
    assert made["source:readings"] == {"state": "running", "word": "writing", "out": 1200.0}
    assert made["dashboard:main"] == {"state": "running", "word": "live", "viewers": 2}
    assert made["lookup:houses"]["state"] == ""
    assert made["stream:house_load"]["account"]["closes"] is True
    assert {state for state, _ in words(made).values()} == {"running", ""}


def test_a_topic_flows_as_its_stream_says_for_offsets_count_marks_of_transactions_too() -> None:
    before = seen()
    more = stream("house_load", rows_out_per_second=10.0)
    moved = {**before.topics, "house_load": TopicSnapshot(100, 1250, 2)}
    after = seen(10.0, progress=progress(more), topics=moved)
    made = figures(before, after)
    assert made["stream:house_load"]["out"] == made["topic:house_load"]["in"] == made["table:house_load"]["in"] == 10.0
    # A real-time stream has no transactions.
    fast = seen(10.0, progress=progress(replace(more, speed="real-time")), topics=moved)
    made = figures(before, fast)
    assert made["stream:house_load"]["out"] == 10.0
    assert made["topic:house_load"]["in"] == 15.0


def test_the_page_shows_the_rates_that_riverrun_status_shows() -> None:
    """One place computes them: streams/run/rate.py."""
    given = stream("house_load", rows_in_per_second=1.154, rows_out_per_second=0.5)
    more = replace(given, record_counts=replace(given.record_counts, out=5000))
    made = figures(seen(progress=progress(given)), seen(1.0, progress=progress(more)))
    assert (made["stream:house_load"]["in"], made["stream:house_load"]["out"]) == (1.15, 0.5)


@pytest.mark.parametrize(
    ("given", "state", "word"),
    [
        ({}, "running", "running"),
        ({"phase": "starting"}, "waiting", "starting"),
        ({"phase": "restarting"}, "waiting", "restarting"),
        ({"phase": "failed"}, "failed", "failed"),
        ({"phase": "finished"}, "stopped", "finished"),
        ({"phase": "stopped"}, "stopped", "stopped"),
        ({"rows_in_per_second": 0.0, "lag": 0, "last_record_at": ""}, "waiting", "waiting"),
        ({"rows_in_per_second": 0.0, "lag": 4, "last_record_at": ""}, "running", "running"),
    ],
)
def test_a_streams_state(given: dict[str, Any], state: str, word: str) -> None:
    made = figures(seen(progress=progress(stream("house_load", **given))))
    assert words(made)["stream:house_load"] == (state, word)


@pytest.mark.parametrize(
    ("pipeline", "told", "state", "word"),
    [
        (None, False, "stopped", "not run yet"),
        ("starting", False, "waiting", "starting"),
        ("running", False, "stopped", "not chosen"),
        ("died", False, "stopped", "died"),
        ("ended", True, "stopped", "stopped"),
    ],
)
def test_a_stream_of_a_pipeline_that_does_not_run(pipeline: str | None, told: bool, state: str, word: str) -> None:
    about = None if pipeline is None else {"state": pipeline, "detail": ""}
    streams = [stream("house_load")] if told else []
    made = figures(seen(pipeline=about, progress=progress(*streams)))
    assert words(made)["stream:house_load"] == (state, word)
    assert not made["stream:house_load"].get("in")


def test_topics_and_tables_that_are_not_there_or_not_well() -> None:
    topics: dict[str, TopicSnapshot | None] = {
        "readings": TopicSnapshot(0, 5, 2, "1 without leader"),
        "house_load": None,
    }
    tables = {
        "house_load": TableStatus("house_load", 1, "failing", "the disk is full"),
        "street_load": TableStatus("street_load", 1, "behind", lag=40),
    }
    made = words(figures(seen(topics=topics, table_statuses=tables)))
    assert made["topic:readings"] == ("failed", "1 without leader")
    assert made["topic:house_load"] == ("stopped", "not made yet")
    assert made["topic:high_load"] == ("stopped", "not reached")
    assert made["table:house_load"] == ("failed", "failing")
    assert made["table:street_load"] == ("running", "behind")
    assert made["table:high_load"] == ("stopped", "no table yet")


def test_a_rate_begins_anew_when_the_count_does_or_nobody_looked() -> None:
    rates = RateTracker()
    assert rates.rate_of("a", 0, 100) is None
    assert rates.rate_of("a", 2, 300) == 100.0
    assert rates.rate_of("a", 3, 5) is None
    assert rates.rate_of("a", 4, 15) == 10.0
    assert rates.rate_of("a", 60, 99) is None
    # An average of the last seconds, not of all.
    found = [rates.rate_of("a", second, 99 + (second - 60) * 7) for second in range(61, 90)]
    assert found[-1] == 7.0


# --- what is sent ---


def test_only_what_changed_is_sent() -> None:
    before = {"shape": {"nodes": []}, "troubles": [], "nodes": {"a": {"in": 1, "lag": 2}, "b": {"in": 1}}}
    now = {"shape": {"nodes": []}, "troubles": ["x"], "nodes": {"a": {"in": 3}, "b": {"in": 1}, "c": {"in": 0}}}
    assert diff_topology(before, now) == {"troubles": ["x"], "nodes": {"a": {"in": 3, "lag": None}, "c": {"in": 0}}}
    assert diff_topology(now, now) == {}
