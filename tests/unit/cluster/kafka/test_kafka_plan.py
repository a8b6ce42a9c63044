"""What a cluster is to be, and whether the data there is allows it."""

import dataclasses
from pathlib import Path

import pytest

from riverrun.cluster.kafka.plan import KafkaManifest, KafkaPlan
from riverrun.config import KafkaSettings
from riverrun.errors import ConfigError, DataDirectoryError


def plan(**settings: object) -> KafkaPlan:
    return KafkaPlan.of(KafkaSettings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "copies", "least"),
    [
        ({}, 1, 1),
        ({"brokers": 2}, 2, 1),
        ({"brokers": 3}, 3, 2),
        ({"brokers": 5}, 3, 2),
        ({"brokers": 3, "replication": 2}, 2, 1),
        ({"brokers": 3, "min_insync": 3}, 3, 3),
    ],
)
def test_copies_follow_the_brokers(settings: dict[str, object], copies: int, least: int) -> None:
    found = plan(**settings)
    assert (found.replication, found.min_insync) == (copies, least)


@pytest.mark.parametrize(
    ("settings", "nodes"),
    [
        ({}, [("broker-1", 1, "broker,controller")]),
        ({"brokers": 2}, [("broker-1", 1, "broker,controller"), ("broker-2", 2, "broker,controller")]),
        (
            {"brokers": 4},
            [
                ("broker-1", 1, "broker,controller"),
                ("broker-2", 2, "broker,controller"),
                ("broker-3", 3, "broker,controller"),
                ("broker-4", 4, "broker"),
            ],
        ),
        ({"controllers": 1}, [("controller-1", 1001, "controller"), ("broker-1", 1, "broker")]),
    ],
)
def test_nodes(settings: dict[str, object], nodes: list[tuple[str, int, str]]) -> None:
    found = plan(**settings)
    assert [(node.name, node.id, node.roles) for node in found.nodes(found.controller_ids)] == nodes


def test_properties_that_are_ours_are_refused_all_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(broker={"node.id": "7", "log.dirs": "/x", "num.io.threads": "2"})
    assert len(caught.value.problems) == 2


def test_a_record_survives_writing_and_reading(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    assert KafkaManifest.read(path) is None
    record = KafkaManifest.new(plan(brokers=3), "4.3.1")
    record.ports = {"broker-1": 9092}
    record.write(path)
    assert KafkaManifest.read(path) == record
    assert [each.name for each in tmp_path.iterdir()] == ["cluster.json"]


def test_a_record_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text("{")
    with pytest.raises(DataDirectoryError, match="cannot be read"):
        KafkaManifest.read(path)


@pytest.mark.parametrize(
    ("made", "wanted", "version", "complaint"),
    [
        ({}, {}, "4.3.1", ""),
        ({}, {"brokers": 3}, "4.3.1", ""),
        ({}, {}, "4.4.0", ""),
        ({}, {}, "4.2.0", "newer Kafka"),
        ({"brokers": 3}, {"brokers": 2}, "4.3.1", "spread over 3 brokers"),
        ({}, {"controllers": 1}, "4.3.1", "other controllers"),
        ({"controllers": 1}, {}, "4.3.1", "other controllers"),
        ({"controllers": 1}, {"controllers": 3}, "4.3.1", "other controllers"),
    ],
)
def test_a_plan_the_data_cannot_follow_is_refused(
    made: dict[str, object], wanted: dict[str, object], version: str, complaint: str, tmp_path: Path
) -> None:
    record = KafkaManifest.new(plan(**made), "4.3.1")
    if not complaint:
        record.check(plan(**wanted), version, tmp_path)
        return
    with pytest.raises(DataDirectoryError, match=complaint) as caught:
        record.check(plan(**wanted), version, tmp_path)
    assert caught.value.expected
    assert caught.value.found


def test_controllers_stay_what_they_were_when_brokers_are_added() -> None:
    record = KafkaManifest.new(plan(), "4.3.1")
    nodes = plan(brokers=3).nodes(record.controller_ids)
    assert [node.roles for node in nodes] == ["broker,controller", "broker", "broker"]


def test_a_plan_is_a_value() -> None:
    assert plan() == plan()
    assert dataclasses.replace(plan(), heap_mb=512) != plan()
