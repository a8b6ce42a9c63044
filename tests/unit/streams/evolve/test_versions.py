"""All streams of an app judged at once: what is told, what is refused, what is written down. Blueprints are made by hand."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.errors import CheckpointError, StreamChangedError
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.progress import RecordCounts
from riverrun.streams.compile.fingerprint import HISTORY_FILE, StreamFingerprint, VersionHistory
from riverrun.streams.compile.plan_text import StatefulOperator
from riverrun.streams.evolve import versions
from riverrun.streams.evolve.versions import VersionChecker

COLUMNS = {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]}
FEWER = {"type": "struct", "fields": []}
SUMS = StreamFingerprint(
    name="sums",
    target="sums",
    columns=COLUMNS,
    sources=("readings",),
    operators=(StatefulOperator("groupBy().agg()", ("house",), ("sum(n)",), (), "f1"),),
    state_hash="s1",
    output_hash="r1",
    made_with="1",
)
BELOW = replace(SUMS, state_hash="s2")
AVERAGES = replace(
    SUMS, operators=(replace(SUMS.operators[0], computes=("avg(n)",), schema_hash="f2"),), state_hash="s2"
)


class Cluster:
    """Every topic has one partition, with so many records."""

    records = 30_000
    # Of all topics: how often they were made again.
    life = 1

    def topics(self, names: Collection[str], *, config: bool) -> dict[str, Any]:
        assert not config
        return {name: SimpleNamespace(partitions=[0], topic_id=f"{name}-{self.life}") for name in names}

    def offsets(self, places: Collection[TopicPartition], at: str) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 10 if at == "earliest" else 10 + self.records)


@dataclass
class World:
    """An app with streams of these blueprints, in a folder."""

    root: Path
    monkeypatch: pytest.MonkeyPatch
    said: list[str] = field(default_factory=list)
    cluster: Cluster = field(default_factory=Cluster)

    def judge(self, *blueprints: StreamFingerprint, once: Any = (), fresh: Any = (), keep: Any = ()) -> VersionChecker:
        made = {blueprint.name: blueprint for blueprint in blueprints}
        self.monkeypatch.setattr(versions, "compute_fingerprint", lambda _, name: made[name])
        streams = {
            name: SimpleNamespace(stream=SimpleNamespace(output_topic=each.target)) for name, each in made.items()
        }
        app = SimpleNamespace(file="meters.py", name="city", streams=streams)
        done: Any = SimpleNamespace(
            graph=SimpleNamespace(app=app), streams=streams, spark=None, sources=lambda name: list(made[name].sources)
        )
        cluster: Any = self.cluster
        self.said.clear()
        found = VersionChecker(
            done, cluster, self.root / "streams", str(self.root / "checkpoints"), self.said.append, 4
        )
        found.check(list(made), batch_only=once, fresh=fresh, keep_state=keep)
        return found

    def ran(self, name: str, batch: int) -> None:
        """The stream has ended this batch."""
        folder = self.root / "checkpoints" / name
        for each in ("offsets", "commits"):
            (folder / each).mkdir(parents=True, exist_ok=True)
        (folder / "metadata").write_text('{"id": "x"}')
        conf = json.dumps({"conf": {"spark.sql.shuffle.partitions": "4"}})
        (folder / "offsets" / str(batch)).write_text(f'v1\n{conf}\n{{"readings":{{"0":{batch + 1}}}}}')
        (folder / "commits" / str(batch)).write_text("v1\n{}")

    def started(self, blueprint: StreamFingerprint, batch: int = 0) -> "World":
        self.judge(blueprint).record_start(blueprint.name)
        self.ran(blueprint.name, batch)
        return self

    def history(self, name: str = "sums") -> VersionHistory:
        return VersionHistory.read(self.root / "streams" / name / HISTORY_FILE)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_a_stream_whose_counts_have_a_note_and_no_record_has_read_nothing(world: World) -> None:
    """A join with a table is counted with a note from the first look on, before any record came."""
    world.started(SUMS)
    folder = world.root / "checkpoints/sums"
    (folder / "sources/0").mkdir(parents=True)
    (folder / "sources/0/0").write_text('v1\n{"readings":{"0":1}}')
    counts = world.root / "streams/sums/record_counts.json"
    note = {"record_counts": {"note": "a join makes no row of a record, or many"}, "counted_offsets": {}}
    counts.write_text(json.dumps(note))
    assert world.judge(AVERAGES).changes["sums"].kind == "new"
    counts.write_text("{")
    with pytest.raises(StreamChangedError):
        world.judge(AVERAGES)


@pytest.mark.parametrize("batches", [0, 1])
def test_a_stream_that_has_read_nothing_begins_with_the_new_code(world: World, batches: int) -> None:
    """Whoever edits a stream before the first record came needs no fresh state: there is none."""
    world.started(SUMS)
    folder = world.root / "checkpoints/sums"
    (folder / "sources/0").mkdir(parents=True)
    (folder / "sources/0/0").write_text('v1\n{"readings":{"0":1}}')
    if not batches:
        (folder / "offsets/0").unlink()
    found = world.judge(AVERAGES)
    assert found.changes["sums"].kind == "new"
    assert folder.exists(), "nothing is removed before it starts"
    found.record_start("sums")
    assert not folder.exists()
    assert len(world.history().versions) == 2
    # One whose code is the same goes on, and one that has read something needs fresh state.
    world.ran("sums", 0)
    (folder / "sources/0").mkdir(parents=True)
    (folder / "sources/0/0").write_text('v1\n{"readings":{"0":0}}')
    with pytest.raises(StreamChangedError):
        world.judge(SUMS)


def test_a_stream_that_needs_fresh_state_says_how_much_and_how_long(world: World) -> None:
    world.started(SUMS)
    (world.root / "streams/sums/record_counts.json").write_text('{"rate": 1500.0}')
    with pytest.raises(StreamChangedError) as caught:
        world.judge(AVERAGES, keep=["sums"])
    (said,) = caught.value.problems
    assert said.startswith("sums needs fresh state: it computes avg(n), of which its state has nothing; ")
    assert "It reads up to 30,000 records again, from the first there is, in about 20 s at the 1,500 a second" in said
    assert "`riverrun replay meters.py sums`" in said
    assert "`riverrun run meters.py --fresh sums` sends all its rows to sums again" in said
    assert said.endswith("--keep-state does not help: Spark could not use the state, or would use it wrongly.")
    assert len(world.history().versions) == 1


def test_all_that_cannot_go_on_is_told_at_once(world: World) -> None:
    other = replace(SUMS, name="other", target="other")
    world.started(SUMS)
    world.started(other)
    with pytest.raises(StreamChangedError) as caught:
        world.judge(BELOW, replace(other, columns=FEWER))
    assert str(caught.value).startswith("2 streams cannot go on as edited, and no stream was started:\n  sums needs")
    first, second = caught.value.problems
    assert first.endswith(
        "`riverrun run meters.py --keep-state sums` goes on with what the old code has put into its state."
    )
    assert second.startswith(
        "other is refused, because readers of other have rows of another kind: the column n is gone."
    )
    assert caught.value.exit_code == 2


def test_versions_are_written_when_a_stream_starts(world: World) -> None:
    world.started(SUMS, batch=3)
    above = replace(SUMS, output_hash="r2")
    found = world.judge(above)
    assert world.said == ["sums has changed: its code has changed. Its state is kept, and it goes on from where it was"]
    assert len(world.history().versions) == 1
    found.record_start("sums")
    last = world.history().last
    assert last is not None
    assert (last.number, last.since_batch, last.after_batch, last.begin) == (2, 4, 3, {"readings": {0: 4}})
    # It has not run, so the first one counts again, and its number is free.
    world.judge(SUMS).record_start("sums")
    assert [version.number for version in world.history().versions] == [1]
    world.judge(BELOW, keep=["sums"]).record_start("sums")
    assert "its state is kept because you say so" in world.said[0]
    assert [version.number for version in world.history().versions] == [1, 2]


def test_fresh_keeps_the_history_and_the_type_of_the_rows(world: World) -> None:
    world.started(SUMS)
    world.judge(AVERAGES, fresh=["sums"]).record_start("sums")
    assert [version.fresh for version in world.history().versions] == [True, True]
    with pytest.raises(StreamChangedError, match="is refused"):
        world.judge(replace(AVERAGES, columns=FEWER), fresh=["sums"])
    with pytest.raises(StreamChangedError, match="is refused"):
        world.judge(replace(AVERAGES, columns=FEWER), once=["sums"])
    world.cluster.records = 0
    world.judge(replace(AVERAGES, columns=FEWER), fresh=["sums"])


def test_a_file_that_is_damaged_is_not_guessed(world: World) -> None:
    world.started(SUMS)
    (world.root / "streams/sums" / HISTORY_FILE).write_text("{")
    with pytest.raises(CheckpointError, match="--fresh sums"):
        world.judge(SUMS)
    world.judge(SUMS, fresh=["sums"]).record_start("sums")
    assert len(world.history().versions) == 1


@pytest.mark.parametrize("lost", [("code_versions.json", "topics.json"), ("topics.json",)])
def test_a_checkpoint_of_which_this_project_knows_nothing_is_refused(world: World, lost: tuple[str, ...]) -> None:
    """A driver on another host, with the checkpoint that both see: its code may be another, and the topics made again."""
    world.started(SUMS, batch=7)
    own = world.root / "streams/sums"
    for file in lost:
        (own / file).unlink()
    with pytest.raises(StreamChangedError) as caught:
        world.judge(AVERAGES if len(lost) == 2 else SUMS)
    (said,) = caught.value.problems
    assert said.startswith(
        f"sums is not started: it has a checkpoint, {world.root}/checkpoints/sums, and {own}/{lost[0]}"
    )
    assert f"Copy the folder {own} from the project that ran it last" in said
    assert not (own / lost[0]).exists(), "nothing is written down of what was refused"
    world.judge(SUMS, fresh=["sums"])


def test_a_checkpoint_without_a_blueprint_goes_on_if_the_user_says_so(world: World) -> None:
    world.ran("sums", 7)
    world.judge(SUMS, keep=["sums"]).record_start("sums")
    assert world.said == [
        "sums has changed: which code it ran as before is not known here; you say that it is this one. Its state is kept, "
        "and it goes on from where it was"
    ]
    last = world.history().last
    assert last is not None
    assert (last.since_batch, last.fresh) == (8, False)


def test_another_name_is_another_stream(world: World) -> None:
    world.started(SUMS)
    renamed = replace(SUMS, name="totals", target="totals")
    world.judge(renamed)
    assert world.said == [
        "totals does what sums did, which is not in meters.py any more: it is a new stream, and reads from the first "
        "record. To go on from where sums was, give it its name back"
    ]
    world.judge(replace(AVERAGES, name="averages", target="averages"))
    assert world.said[0].startswith("sums has run and is not in meters.py any more. What it left behind: its topic, ")


def test_a_topic_that_was_made_again_is_another_one(world: World) -> None:
    world.judge(SUMS).record_start("sums")
    world.ran("sums", 3)
    world.judge(SUMS)
    world.cluster.life = 2
    with pytest.raises(StreamChangedError) as caught:
        world.judge(SUMS)
    assert "readings, which it reads, was deleted and made again since" in str(caught.value)
    assert "`riverrun run meters.py --fresh sums` does" in str(caught.value)
    world.judge(SUMS, fresh=["sums"]).record_start("sums")
    world.judge(SUMS)


def test_a_log_that_ends_before_what_was_read_of_it_is_not_gone_on_in(world: World) -> None:
    world.started(SUMS, batch=99)
    world.cluster.records = 80
    with pytest.raises(StreamChangedError) as caught:
        world.judge(SUMS)
    (said,) = caught.value.problems
    assert said.startswith("sums cannot go on: it has read readings[0] up to 100, and its log ended at 90 after that.")
    assert said.endswith("`riverrun run meters.py --fresh sums` does.")
    world.judge(SUMS, fresh=["sums"])


def test_a_checkpoint_that_is_older_than_what_was_counted_is_not_gone_on_with(world: World) -> None:
    world.started(SUMS, batch=4)
    counted = {"record_counts": asdict(RecordCounts()), "counted_offsets": {"readings": {"0": 7}}, "streamed": True}
    (world.root / "streams/sums/record_counts.json").write_text(json.dumps(counted))
    with pytest.raises(StreamChangedError, match=r"readings\[0\] up to 7, .* or its checkpoint is an old one"):
        world.judge(SUMS)
    # A batch over everything reads past the checkpoint.
    (world.root / "streams/sums/record_counts.json").write_text(json.dumps(counted | {"streamed": False}))
    world.judge(SUMS)
    (world.root / "streams/sums/record_counts.json").write_text(json.dumps(counted))
    world.ran("sums", 6)
    world.judge(SUMS)
