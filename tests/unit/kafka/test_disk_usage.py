"""Sizes of topics, from the brokers' folders."""

from pathlib import Path

from riverrun.config import Project, load
from riverrun.kafka.admin.disk_usage import topic_sizes, topic_sizes_in


def segment(folder: Path, name: str, size: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"x" * size)


def test_sizes_add_up_over_partitions_segments_and_brokers(tmp_path: Path) -> None:
    for broker in ("kafka/broker-1", "kafka/broker-2"):
        root = tmp_path / broker
        root.mkdir(parents=True)
        (root / "meta.properties").write_text("", encoding="utf-8")
        segment(root / "my-topic-0", "00000000000000000000.log", 100)
        segment(root / "my-topic-0", "00000000000000000100.log", 10)
        segment(root / "my-topic-0", "00000000000000000000.index", 10_000_000 // 1000)
        segment(root / "my-topic-11", "00000000000000000000.log", 1)
        segment(root / "other-0", "00000000000000000000.log", 7)
        (root / "recovery-point-offset-checkpoint").write_text("", encoding="utf-8")
    segment(tmp_path / "elsewhere" / "my-topic-0", "00000000000000000000.log", 1000)
    assert topic_sizes_in(tmp_path) == {"my-topic": 222, "other": 14}


def test_a_cluster_elsewhere_has_no_sizes(tmp_path: Path) -> None:
    loaded = load(Project(tmp_path), flags={"kafka.bootstrap_servers": "broker.example:9092"}, environ={})
    assert topic_sizes(loaded) is None
