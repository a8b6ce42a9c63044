"""The parts of a replay that need neither Spark nor Kafka: planned batches, the agreement, and the swap."""

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.app import App
from riverrun.cli.pipeline import without_fresh
from riverrun.cli.replay import progress_line
from riverrun.config import Project, Settings, StreamSettings
from riverrun.errors import AlreadyRunningError, CheckpointError, SparkUnavailableError, UsageError
from riverrun.model.table import Column, TableGeneration, TableSpec, table_from_dict
from riverrun.streams.checkpoint import read_checkpoint_status
from riverrun.streams.evolve import cutover
from riverrun.streams.evolve import replay as replaying
from riverrun.streams.evolve.cutover import CutoverHandler, CutoverPoint, ReplayFolder, prepare_start
from riverrun.streams.evolve.replay import Replay, ReplayProgress
from riverrun.streams.evolve.replay_request import make_replay_request
from riverrun.streams.generations import (
    Generation,
    add_generation,
    checkpoint_path,
    current_generation,
    read_generations,
    with_generations,
)
from riverrun.streams.run.offset_log import (
    batch_end_offsets,
    count_offsets_between,
    has_uncommitted_batch,
    last_committed_batch,
    last_planned_batch,
    min_offsets,
    plan_batch,
    planned_offsets,
    reached_watermark,
)

# As Spark 4.3 writes them; the list of settings is shorter here.
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1794815309228,"conf":{"spark.sql.shuffle.partitions":"2"}}'
OFFSETS = f'v1\n{METADATA}\n{{"in":{{"0":428,"1":572}}}}\n-\n{{"other":{{"0":7}}}}'
COMMIT = 'v2\n{{"nextBatchWatermarkMs":{},"stateUniqueIds":{{"0":[["b59c"]]}}}}'


def checkpoint(folder: Path, *, ended: bool) -> Path:
    for each in ("offsets", "commits", "sources/0"):
        (folder / each).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"c52bb928"}')
    (folder / "sources/0/0").write_bytes(b'\0v1\n{"in":{"0":10,"1":20}}')
    (folder / "offsets/0").write_text(OFFSETS)
    (folder / "offsets/.0.crc").write_bytes(b"crc of the file above")
    if ended:
        (folder / "commits/0").write_text(COMMIT.format(5000))
    return folder


def test_a_planned_batch_is_cut_to_size(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, ended=False)
    assert (last_planned_batch(folder), last_committed_batch(folder), has_uncommitted_batch(folder)) == (0, -1, True)
    plan_batch(folder, 0, {"in": {0: 100, 1: 50}}, 0)
    assert planned_offsets(folder, 0) == {"in": {0: 100, 1: 50}, "other": {0: 7}}
    version, head, *sources = (folder / "offsets/0").read_text().splitlines()
    assert version == "v1"
    assert json.loads(head)["conf"] == {"spark.sql.shuffle.partitions": "2"}
    # A source that had nothing stays as it was, in its place.
    assert sources[1] == "-"
    # The checksum of the old file would make Spark refuse the new one.
    assert sorted(each.name for each in (folder / "offsets").iterdir()) == ["0"]


def test_the_next_batch_is_made_of_the_last(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, ended=True)
    assert not has_uncommitted_batch(folder)
    assert reached_watermark(folder) == 5000
    plan_batch(folder, 1, {"in": {0: 500, 1: 572, 2: 3}}, 4000)
    assert has_uncommitted_batch(folder)
    assert planned_offsets(folder, 1)["in"] == {0: 500, 1: 572, 2: 3}
    assert planned_offsets(folder, 0)["in"] == {0: 428, 1: 572}
    (folder / "commits/1").write_text(COMMIT.format(4000))
    stand = read_checkpoint_status(folder, "s")
    assert stand is not None
    assert (stand.batch, stand.watermark_ms, stand.end["in"][2]) == (1, 4000, 3)
    # A batch that ran with a clock that was held back does not make it forget how far the events are.
    assert reached_watermark(folder) == 5000


@pytest.mark.parametrize("rows", [1, 7, 100, 149, 150, 10_000])
def test_a_bite_stays_between_its_ends_and_gets_on(rows: int) -> None:
    begin, cap = {"in": {0: 100, 1: 40}}, {"in": {0: 150, 1: 140, 2: 0, 3: 1}}
    found = batch_end_offsets(begin, cap, rows)
    assert set(found["in"]) == set(cap["in"])
    for part, offset in found["in"].items():
        assert begin["in"].get(part, 0) <= offset <= cap["in"][part]
    assert 1 <= count_offsets_between(begin, found) <= rows + len(cap["in"])
    assert (found == cap) == (rows >= 150)


def test_places_are_compared_partition_by_partition() -> None:
    assert count_offsets_between({"a": {0: 5}}, {"a": {0: 7, 1: 2}, "b": {0: 1}}) == 5
    assert count_offsets_between({"a": {0: 9}}, {"a": {0: 7}}) == 0
    assert min_offsets({"a": {0: 5, 1: 5}, "b": {0: 9}}, {"a": {0: 3, 1: 8}}) == {"a": {0: 3, 1: 5}, "b": {0: 9}}


# --- the agreement --------------------------------------------------------------------------------------------------------

MADE = Generation(2, "new", "old", "out.2", "beginning", {"in": {0: 0}}, {"in": {0: 9}}, {0: 12}, 0, 9, "2026-01-01")


class NoKafka:
    """An admin of a cluster without topics and groups."""

    connection = None

    def topics(self, names: list[str], *, config: bool = True) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def group_names(self) -> list[str]:
        return []


ADMIN: Any = NoKafka()


Publication = tuple[str, str, list[int], int, list[TableSpec]]


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Publication]:
    """What stores were told of: app, topic, generations, which generation ran the stream at that moment, and the tables."""
    found: list[Publication] = []

    def publish(_: object, app: str, topic: str, generations: list[TableGeneration], tables: list[TableSpec]) -> None:
        numbers = [generation.number for generation in generations]
        found.append((app, topic, numbers, current_generation(tmp_path / "checked"), tables))

    monkeypatch.setattr(cutover, "publish_generations", publish)
    return found


@pytest.fixture
def replay(tmp_path: Path) -> ReplayFolder:
    found = ReplayFolder(tmp_path / "checked")
    found.path.mkdir(parents=True)
    (found.stream_folder / "record_counts.json").write_text('"of the old"')
    (found.path / "record_counts.json").write_text('"of the new"')
    found.state.write_text(json.dumps({"number": 2, "made": asdict(MADE)}))
    return found


def test_an_answer_is_accepted_or_taken_back_never_both(replay: ReplayFolder) -> None:
    replay.write_answer(CutoverPoint("r1", "old", 4, {"in": {0: 9}}))
    assert replay.read_answer("another") is None
    assert replay.read_answer("r1") == CutoverPoint("r1", "old", 4, {"in": {0: 9}})
    assert replay.withdraw_answer()
    assert not replay.accept()
    replay.write_answer(CutoverPoint("r2", "old", 4, {"in": {0: 9}}))
    assert replay.accept()
    assert not replay.withdraw_answer()


def test_one_process_at_a_time(replay: ReplayFolder) -> None:
    with replay.lock():
        assert replay.is_alive
        with pytest.raises(AlreadyRunningError, match="checked"), replay.lock(0):
            pass
    assert not replay.is_alive


def kill_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, nth: int) -> None:
    """What is called the nth time does not happen, and nothing after it."""
    real: Callable[..., Any] = getattr(owner, name)
    calls = []

    def killed(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        if len(calls) >= nth:
            raise KeyboardInterrupt
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, killed)


@pytest.mark.parametrize(
    ("owner", "name", "nth"),
    [(cutover, "publish_generations", 1), (cutover, "add_generation", 1),
     (Path, "replace", 1), (Path, "replace", 2), (Path, "replace", 3),
     (cutover, "delete_replay_group", 1), (Path, "unlink", 1), (Path, "unlink", 3), (Path, "unlink", 4)],
)  # fmt: skip
def test_a_swap_that_is_cut_off_anywhere_is_finished(
    replay: ReplayFolder, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, nth: int
) -> None:
    replay.write_answer(CutoverPoint("r", "old", 4, {"in": {0: 9}}))
    assert replay.accept()
    with monkeypatch.context() as patched:
        kill_at(patched, owner, name, nth)
        with pytest.raises(KeyboardInterrupt):
            replay.finish_swap(ADMIN, "app.checked.replay")
    assert replay.swap.exists()
    # Whoever runs the stream next does what is left before anything else.
    prepare_start(replay, ADMIN, "app.checked.replay", fresh=False)
    assert read_generations(replay.stream_folder) == [MADE]
    assert checkpoint_path("/c", replay.stream_folder) == "/c/checked.2"
    assert json.loads((replay.stream_folder / "record_counts.json").read_text()) == "of the new"
    assert json.loads((replay.stream_folder / "record_counts.1.json").read_text()) == "of the old"
    assert {each.name for each in replay.path.iterdir()} <= {"lock"}


def test_stores_are_told_before_the_new_generation_can_write(replay: ReplayFolder, told: list[Publication]) -> None:
    replay.write_answer(CutoverPoint("r", "old", 4, {"in": {0: 9}}))
    assert replay.accept()
    replay.finish_swap(ADMIN, "app.checked.replay")
    assert told == [(replay.stream_folder.parent.name, MADE.target, [MADE.number], 1, [])]
    assert current_generation(replay.stream_folder) == MADE.number


def test_whoever_finishes_a_swap_publishes_the_columns_of_the_replay(
    replay: ReplayFolder, told: list[Publication]
) -> None:
    """The process that computed the generation may be dead by then, and this one may run older code."""
    table = TableSpec("kept", MADE.target, (Column("id", "bigint", ("id",)), Column("more", "text", ("more",))))
    replay.state.write_text(json.dumps({"number": 2, "made": asdict(MADE), "tables": [table.as_dict()]}))
    replay.write_answer(CutoverPoint("r", "old", 4, {"in": {0: 9}}))
    assert replay.accept()
    prepare_start(replay, ADMIN, "app.checked.replay", fresh=False)
    assert [published[-1] for published in told] == [[table]]


def test_tables_know_the_generations_of_their_stream(tmp_path: Path) -> None:
    add_generation(tmp_path / "checked", MADE)
    table = TableSpec("kept", MADE.target, (Column("id", "bigint", ("id",)),))
    told, other = with_generations([table, replace(table, topic="another")], [tmp_path / "checked", tmp_path / "none"])
    assert told.generations == (TableGeneration(MADE.number, MADE.topic, MADE.first, MADE.since_ms),)
    assert other.generations == ()
    assert table_from_dict(json.loads(json.dumps(told.as_dict()))) == told


def test_without_an_accepted_answer_there_is_no_swap(replay: ReplayFolder) -> None:
    replay.write_request("r", "code")
    replay.write_answer(CutoverPoint("r", "old", 4, {"in": {0: 9}}))
    prepare_start(replay, ADMIN, "g", fresh=False)
    assert current_generation(replay.stream_folder) == 1
    assert not replay.answer.exists()
    assert not replay.accept()
    # Its request is gone too: an answer to it could only be to another place.
    assert replay.read_request() == ("", "")
    with pytest.raises(UsageError, match="--fresh"):
        prepare_start(replay, ADMIN, "g", fresh=True)


def test_generations_are_added_once(tmp_path: Path) -> None:
    assert (current_generation(tmp_path), checkpoint_path("/c", tmp_path / "s")) == (1, "/c/s")
    add_generation(tmp_path, MADE)
    add_generation(tmp_path, MADE)
    assert read_generations(tmp_path) == [MADE]
    add_generation(tmp_path, replace(MADE, number=3))
    assert current_generation(tmp_path) == 3
    (tmp_path / "generations.json").write_text("[{]")
    with pytest.raises(CheckpointError, match="generation"):
        current_generation(tmp_path)


class Stream:
    """A running stream, as far as a handover knows it."""

    def __init__(self) -> None:
        self.name = "checked"
        self.plan = SimpleNamespace(speed="near-real-time")
        self.has_ended = False
        self.starts = 0

    def start(self) -> None:
        self.starts += 1


def looked(side: CutoverHandler, stream: Any) -> str:
    """Until it has done what it does beside."""
    found = side.poll(stream)
    while side._thread is not None:
        side._thread.join()
        found = side.poll(stream)
    return found


@pytest.fixture
def side(replay: ReplayFolder, monkeypatch: pytest.MonkeyPatch) -> CutoverHandler:
    def settled(stream: Any, request: str, wait: Callable[[], bool]) -> CutoverPoint:
        if stream.name == "broken":
            raise CheckpointError("It cannot stop")
        return CutoverPoint(request, "old", 4, {"in": {0: 9}})

    monkeypatch.setattr(cutover, "stop_after_batch", settled)
    return CutoverHandler(replay, ADMIN, "app.checked.replay", lambda _: None)


def test_a_replay_takes_over(replay: ReplayFolder, side: CutoverHandler) -> None:
    stream: Any = Stream()
    assert side.poll(stream) == "run"
    with replay.lock():
        replay.write_request("r", "its code")
        assert looked(side, stream) == "wait"
        assert side.busy
        assert replay.read_answer("r") is not None
        assert replay.accept()
        assert looked(side, stream) == "wait"
        replay.finish_swap(ADMIN, "g")
    assert looked(side, stream) == "swapped"
    assert (side.busy, side.code, stream.starts) == (False, "its code", 0)
    assert side.poll(stream) == "run"


def test_a_replay_that_dies_before_it_accepts_is_given_up(replay: ReplayFolder, side: CutoverHandler) -> None:
    stream: Any = Stream()
    with replay.lock():
        replay.write_request("r", "c")
        assert looked(side, stream) == "wait"
    assert looked(side, stream) == "run"
    assert (stream.starts, side.busy, replay.accept()) == (1, False, False)
    assert side.poll(stream) == "run"
    assert stream.starts == 1


def test_a_replay_that_dies_after_it_accepted_is_finished(replay: ReplayFolder, side: CutoverHandler) -> None:
    stream: Any = Stream()
    with replay.lock():
        replay.write_request("r", "c")
        assert looked(side, stream) == "wait"
        assert replay.accept()
    assert looked(side, stream) == "wait"
    assert looked(side, stream) == "swapped"
    assert current_generation(replay.stream_folder) == 2
    assert stream.starts == 0


def test_a_replay_that_hangs_is_given_up(
    replay: ReplayFolder, side: CutoverHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutover, "HOLD_SECONDS", -1.0)
    stream: Any = Stream()
    with replay.lock():
        replay.write_request("r", "c")
        assert looked(side, stream) == "wait"
        assert looked(side, stream) == "run"
        assert not replay.accept()
    assert stream.starts == 1


def test_a_request_of_a_process_that_is_gone_stops_nothing(replay: ReplayFolder, side: CutoverHandler) -> None:
    replay.write_request("r", "c")
    stream: Any = Stream()
    assert looked(side, stream) == "run"
    assert not replay.request.exists()


@pytest.mark.parametrize("how", ["broken", "real-time"])
def test_a_stream_that_cannot_stop_says_why_and_goes_on(replay: ReplayFolder, side: CutoverHandler, how: str) -> None:
    stream: Any = Stream()
    if how == "broken":
        stream.name = how
    else:
        stream.plan.speed = how
    with replay.lock():
        replay.write_request("r", "c")
        assert looked(side, stream) == "run"
        heard = replay.read_answer("r")
    assert heard is not None
    assert ("cannot stop" if how == "broken" else "--speed near-real-time") in heard.error
    assert stream.starts == 1


# --- what people see ------------------------------------------------------------------------------------------------------


def test_what_a_run_forgot_once_it_does_not_forget_again() -> None:
    line = ["-m", "riverrun", "run", "app.py", "--fresh", "a", "--every", "1 s", "--fresh=b", "--fresh", "--fresh"]
    assert without_fresh(line) == ["-m", "riverrun", "run", "app.py", "--every", "1 s"]


def test_the_line_of_a_replay() -> None:
    last = progress_line(ReplayProgress("kept", "taking over", 2, 0, 0.0))
    assert last == "taking over, 2 records read, none to go"
    assert progress_line(ReplayProgress("kept", "replaying", 1, 0, 0.0)) == "1 record read, none to go"
    text = progress_line(ReplayProgress("kept", "replaying", 50_000, 30_000, 10_000.0))
    assert text == "50,000 records read at 10,000/s, about 30,000 to go, about 3 s left"


def test_a_spark_that_dies_while_a_cut_off_batch_is_ended_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream whose Spark is gone says nothing of it itself, and is never over."""
    looks: list[int] = []

    def settling(_: object, request: str, wait: Callable[[], bool]) -> None:
        while wait():
            looks.append(1)
            assert len(looks) < 3, "it waits for a Spark that is gone"

    def gone(_: Path) -> None:
        raise SparkUnavailableError("Spark's process has ended")

    for name in ("ProgressTracker", "StreamRun", "RunningStream", "consumer_group"):
        monkeypatch.setattr(replaying, name, lambda *_, **__: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(replaying, "stop_after_batch", settling)
    monkeypatch.setattr(replaying, "check_spark_alive", gone)
    monkeypatch.setattr(replaying, "POLL_SECONDS", 0.001)
    mine: Any = Replay.__new__(Replay)
    mine._stop, mine._project = threading.Event(), SimpleNamespace(home=tmp_path)
    mine._request = SimpleNamespace(stream="kept", app=None, live_checkpoint=tmp_path)
    mine._compilation = SimpleNamespace(sources=lambda _: [])
    mine._compiled = SimpleNamespace(stream=SimpleNamespace(output_topic="kept"))
    mine._folder, mine._admin, mine._context, mine._plan = SimpleNamespace(stream_folder=tmp_path), None, None, None
    with pytest.raises(SparkUnavailableError):
        mine._stop_offline_stream("asked")


def test_a_checkpoint_of_another_file_system_is_refused_with_what_to_do(tmp_path: Path) -> None:
    app = App("meters")
    app.topic("readings", None)
    app.sql("load", "SELECT * FROM readings")
    far = Settings(streams=StreamSettings(checkpoints="hdfs://namenode/riverrun"))
    with pytest.raises(
        UsageError, match=r"of this machine.*A mounted folder does; or `riverrun run FILE --fresh load`"
    ):
        make_replay_request(app, far, Project(tmp_path), "load", "")
    page = (Path(__file__).parents[4] / "docs" / "replay.md").read_text(encoding="utf-8")
    assert "The checkpoint must be on this machine's file system" in page
