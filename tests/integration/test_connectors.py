"""The connector process on a real broker: each item once, its position with it, bad ones beside, one process at a time."""

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import riverrun as rr
from riverrun.connectors.process import sink_lag
from riverrun.connectors.state_topic import read_connector_state
from riverrun.errors import ConnectorRefusedError, ProducerFencedError, RetryLaterError
from riverrun.testing import KafkaUnderTest
from support.connecting import (
    Numbers,
    NumbersReader,
    Reading,
    header_of,
    records_in,
    running,
    values_in,
    wait_until,
)

Topics = Callable[..., str]


def app_of(topic: str, name: str = "") -> tuple[rr.App, rr.Topic[Reading]]:
    app = rr.App(name or f"app-{topic}")
    return app, app.topic(topic, Reading)


def test_each_item_is_there_once_and_the_source_is_told(
    kafka: KafkaUnderTest, kafka_topic: Topics, tmp_path: Path
) -> None:
    app, topic = app_of(kafka_topic())
    source = Numbers(1000, parts=("a", "b"), bite=70)
    app.source(topic, source)
    with running(app, kafka.connection, tmp_path) as process:
        wait_until(lambda: [standing.state for standing in process.statuses] == ["finished"] * 2)
    found = [each["house_id"] for each in values_in(kafka.connection, topic.name)]
    assert sorted(found) == sorted(f"{part}-{n}" for part in "ab" for n in range(1000))
    assert source.acknowledged.count(1000) == 2
    assert {each.key() for each in records_in(kafka.connection, topic.name)} == {each.encode() for each in found}
    assert {
        part: kept.position for (_, part), kept in read_connector_state(kafka.connection, app.name).positions.items()
    } == {
        "a": 1000,
        "b": 1000,
    }


def test_it_goes_on_where_it_was(kafka: KafkaUnderTest, kafka_topic: Topics, tmp_path: Path) -> None:
    app, topic = app_of(kafka_topic())
    source = Numbers(100, last=False)
    app.source(topic, source)
    with running(app, kafka.connection, tmp_path):
        wait_until(lambda: 100 in source.acknowledged)
    source.count = 150
    with running(app, kafka.connection, tmp_path) as process:
        wait_until(lambda: 150 in source.acknowledged)
        assert wait_until(lambda: process.statuses[0].state == "waiting" and process.statuses[0]).records == 150
    assert source.opened == [None, 100]
    assert [each["load_kw"] for each in values_in(kafka.connection, topic.name)] == list(map(float, range(150)))


class Odd(Numbers):
    """Some of its items are wrong."""

    def open(self, part: str, position: Any) -> rr.Reader:
        return OddReader(self, part, position or 0)


class OddReader(NumbersReader):
    def read(self) -> rr.Items | None:
        given = super().read()
        if given is None:
            return None
        extra = [
            {"house_id": "bad", "load_kw": -1},
            b"no json",
            rr.Item(b"x", problem="line 3 has 4 columns, not 5", location="a.csv@17"),
            rr.Item({"house_id": "h", "load_kw": "2.5"}, loose=True),
            rr.Item({"house_id": "large", "load_kw": 1, "note": "x" * 2_000_000}),
        ]
        return rr.Items([*given.items, *extra], given.position, last=given.last)


def test_what_does_not_fit_goes_to_the_dead_letters_with_its_reason(
    kafka: KafkaUnderTest, kafka_topic: Topics, tmp_path: Path
) -> None:
    app, topic = app_of(kafka_topic())
    app.source(topic, Odd(10))
    with running(app, kafka.connection, tmp_path) as process:
        standing = wait_until(
            lambda: process.statuses and process.statuses[0].state == "finished" and process.statuses[0]
        )
    assert (standing.records, standing.dead_letters) == (15, 4)
    assert len(records_in(kafka.connection, topic.name)) == 11
    letters = records_in(kafka.connection, f"{topic.name}.dead")
    reasons = [header_of(letter, "riverrun.dead.message") for letter in letters]
    assert len(letters) == 4
    assert "load_kw" in reasons[0]
    assert "malformed" in reasons[1] or "invalid" in reasons[1].lower()
    assert reasons[2] == "line 3 has 4 columns, not 5."
    assert header_of(letters[2], "riverrun.dead.source") == "a.csv@17"
    assert "too large" in reasons[3]
    assert len(letters[3].value() or b"") == 65_536


class Blobs(rr.Source):
    """Bytes that cannot be compressed: 50 small ones, and one that is too large for the broker only with its headers."""

    def __init__(self, large: int) -> None:
        self.large = large

    def open(self, part: str, position: Any) -> rr.Reader:  # noqa: ARG002
        return BlobsReader(self.large)


class BlobsReader(rr.Reader):
    def __init__(self, large: int) -> None:
        self.large = large

    def read(self) -> rr.Items | None:
        items = [rr.Item(os.urandom(900)) for _ in range(50)]
        name = os.urandom(30_000).hex()
        items.append(rr.Item(os.urandom(self.large), headers={"mqtt.topic": name}, location=name))
        return rr.Items(items, 51, last=True)


@pytest.mark.parametrize(("limit", "large"), [(1_048_588, 1_020_000), (3000, 1000)])
def test_what_the_broker_would_refuse_is_a_dead_letter_and_no_retry_for_ever(
    kafka: KafkaUnderTest, kafka_topic: Topics, tmp_path: Path, limit: int, large: int
) -> None:
    app = rr.App("blobs")
    topic: rr.Topic[Any] = app.topic(kafka_topic(config={"max.message.bytes": str(limit)}))
    app.source(topic, Blobs(large))
    with running(app, kafka.connection, tmp_path) as process:
        standing = wait_until(
            lambda: process.statuses and process.statuses[0].state == "finished" and process.statuses[0]
        )
    assert (standing.records, standing.dead_letters) == (51, 1)
    assert len(records_in(kafka.connection, topic.name)) == 50
    (letter,) = records_in(kafka.connection, f"{topic.name}.dead")
    assert "too large" in header_of(letter, "riverrun.dead.message")


class Dated(rr.Source):
    """Many parts that end, of which those in `changed` have more to give."""

    reopens_finished = True

    def __init__(self, count: int) -> None:
        self.changed = {f"p{number}": 10 for number in range(count)}
        self.ended: list[str] = []

    def parts(self) -> Sequence[str]:
        return list(self.changed)

    def open(self, part: str, position: Any) -> rr.Reader:
        return DatedReader(self, part, position or 0)


class DatedReader(rr.Reader):
    def __init__(self, source: Dated, part: str, at: int) -> None:
        self.source, self.part, self.at = source, part, at

    def read(self) -> rr.Items | None:
        end = self.source.changed.pop(self.part, self.at)
        items = [rr.Item({"house_id": self.part, "load_kw": float(number)}) for number in range(self.at, end)]
        self.at = end
        return rr.Items(items, end, last=True)

    def acknowledged(self, position: Any) -> None:  # noqa: ARG002
        self.source.ended.append(self.part)


def test_parts_that_ended_hold_no_thread_and_are_begun_again_when_they_are_named_again(
    kafka: KafkaUnderTest, kafka_topic: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverrun.connectors.process.PART_DISCOVERY_SECONDS", 0.2)
    app, topic = app_of(kafka_topic())
    source = Dated(5)
    app.source(topic, source)
    with running(app, kafka.connection, tmp_path) as process:
        wait_until(lambda: len(source.ended) == 5)
        wait_until(lambda: not [thread for thread in process._threads if thread.is_alive()], "no thread is left")
        source.changed["p3"] = 15
        wait_until(lambda: len(source.ended) == 6)
        wait_until(lambda: sum(standing.records for standing in process.statuses) == 55)
    assert source.ended[-1] == "p3"
    assert len(records_in(kafka.connection, topic.name)) == 55


class Taking(rr.Sink):
    def write(self, records: Sequence[Any]) -> None:
        """They are taken."""


def test_the_counts_of_a_sink_go_on_after_a_restart(kafka: KafkaUnderTest, kafka_topic: Topics, tmp_path: Path) -> None:
    app, topic = app_of(kafka_topic())
    source = Numbers(100, last=False)
    app.source(topic, source)
    app.sink(topic, Taking(), name="out")

    def sink(process: Any) -> Any:
        return next((standing for standing in process.statuses if standing.kind == "sink"), None)

    with running(app, kafka.connection, tmp_path) as process:
        wait_until(lambda: (found := sink(process)) and found.records == 100)
    source.count = 150
    with running(app, kafka.connection, tmp_path) as process:
        wait_until(lambda: (found := sink(process)) and found.records == 150)
    assert read_connector_state(kafka.connection, app.name).statuses["sink", "out", "all"].records == 150


def test_a_second_process_takes_over_and_the_first_ends(
    kafka: KafkaUnderTest, kafka_topic: Topics, tmp_path: Path
) -> None:
    app, topic = app_of(kafka_topic())
    source = Numbers(100_000_000, last=False, bite=5)
    app.source(topic, source)

    def first() -> None:
        with (
            pytest.raises(ProducerFencedError, match="Another process runs the connectors"),
            running(app, kafka.connection, tmp_path) as process,
        ):
            wait_until(lambda: process._fenced_by is not None, "the first process is fenced")

    thread = threading.Thread(target=first)
    thread.start()
    wait_until(lambda: source.acknowledged)
    with running(app, kafka.connection, tmp_path):
        opened = wait_until(lambda: len(source.opened) > 1 and source.opened[-1])
        wait_until(lambda: source.acknowledged[-1] > opened + 50)
        thread.join(100)
    assert not thread.is_alive()
    numbers = [int(each["load_kw"]) for each in values_in(kafka.connection, topic.name)]
    assert numbers == list(range(len(numbers)))


class Failing(Numbers):
    """One part cannot be read, another only at the second attempt."""

    def open(self, part: str, position: Any) -> rr.Reader:
        if part == "never":
            raise ConnectorRefusedError("There is no such device", hint="Plug it in")
        if part == "later" and "later" not in self.opened:
            self.opened.append("later")
            raise OSError("the line is busy")
        return super().open(part, position)


def test_a_part_that_fails_for_good_is_said_and_the_others_go_on(
    kafka: KafkaUnderTest, kafka_topic: Topics, tmp_path: Path
) -> None:
    app, topic = app_of(kafka_topic())
    app.source(topic, Failing(50, parts=("never", "later", "fine")))
    notices: list[str] = []
    with running(app, kafka.connection, tmp_path, notices=notices) as process:
        wait_until(lambda: {standing.state for standing in process.statuses} == {"failed", "finished"})
        states = {standing.part: (standing.state, standing.error) for standing in process.statuses}
    assert states["never"] == ("failed", "There is no such device. Plug it in.")
    assert states["later"] == states["fine"] == ("finished", "")
    assert any("OSError: the line is busy" in notice for notice in notices)
    assert len(values_in(kafka.connection, topic.name)) == 100
    told = read_connector_state(kafka.connection, app.name).statuses
    assert told["source", topic.name, "never"].error == "There is no such device. Plug it in."


class Collected(rr.Sink):
    """Keeps what it is given; refuses 3, is away for a while at 5, stumbles over 7."""

    batch = 4

    def __init__(self) -> None:
        self.got: list[float] = []
        self.away = 2

    def write(self, records: Sequence[Any]) -> None:
        loads = [record.value.load_kw for record in records]
        if 3.0 in loads:
            raise ConnectorRefusedError("Threes are not taken")
        if 5.0 in loads and self.away:
            self.away -= 1
            raise RetryLaterError("Come back later", after_seconds=0.05)
        if 7.0 in loads:
            raise KeyError("seven")
        self.got += loads


def test_a_sink_gets_everything_it_takes(kafka: KafkaUnderTest, kafka_topic: Topics, tmp_path: Path) -> None:
    app, topic = app_of(kafka_topic())
    app.source(topic, Numbers(20))
    sink = Collected()
    Collected.retries = 1
    app.sink(topic, sink)
    with running(app, kafka.connection, tmp_path):
        wait_until(lambda: len(sink.got) >= 18)
        wait_until(lambda: len(records_in(kafka.connection, f"{topic.name}.dead")) == 2)
    assert sink.got == [float(n) for n in range(20) if n not in (3, 7)]
    letters = records_in(kafka.connection, f"{topic.name}.dead")
    assert {header_of(letter, "riverrun.dead.message") for letter in letters} == {"Threes are not taken.", "'seven'"}
    with running(app, kafka.connection, tmp_path) as process:
        wait_until(lambda: all(standing.lag == 0 for standing in process.statuses if standing.kind == "sink"))
        # The mark of the source's last transaction, too, which is no record.
        wait_until(lambda: sink_lag(kafka.connection, app, topic.name) == 0)
    assert len(sink.got) == 18
