"""Items become records: what is too large for its topic, and dead letters that always fit theirs."""

from typing import Any

import pytest

import riverrun as rr
from riverrun.connectors.record_builder import DEAD_LETTER_VALUE_BYTES, RecordBuilder
from riverrun.model.topic import Topic

LIMIT = 100_000


def shaper() -> RecordBuilder:
    topic: Topic[Any] = Topic("gates")
    return RecordBuilder(topic, "gates.dead", group="app.gates", max_bytes=LIMIT, max_dead_letter_bytes=LIMIT + 16_384)


def test_headers_count_toward_the_limit() -> None:
    fits = rr.Item(b"x" * 60_000, headers={"mqtt.topic": "t" * 30_000})
    record, dead = shaper().build(fits)
    assert (dead, record.topic) == (False, "gates")
    record, dead = shaper().build(rr.Item(b"x" * 60_000, headers={"mqtt.topic": "t" * 45_000}))
    assert (dead, record.topic) == (True, "gates.dead")


def test_a_key_counts_by_its_bytes() -> None:
    record, dead = shaper().build(rr.Item(b"x" * 60_000, key="ä" * 30_000))
    assert dead
    assert record.topic == "gates.dead"


@pytest.mark.parametrize(
    "item",
    [
        rr.Item(b"x" * LIMIT, headers={"mqtt.topic": "t" * 65_535}, location="t" * 65_535),
        rr.Item(b"x" * 5_000_000, location="a.csv@17"),
        rr.Item(b"x", headers={"h": "v" * 200_000}),
        rr.Item(b"x", key="k" * 200_000),
        rr.Item(b"x", headers={f"h{number}" * 500: b"v" * 3000 for number in range(100)}),
        rr.Item(b"x" * 99_000, headers={"h": "v" * 20_000}, problem="ä" * 5000),
    ],
    ids=["long topic", "large value", "large header", "large key", "many headers", "long reason"],
)
def test_a_dead_letter_is_never_larger_than_its_topic_takes(item: rr.Item) -> None:
    letter, dead = shaper().build(item)
    assert dead
    assert letter.topic == "gates.dead"
    assert letter.size <= LIMIT + 16_384
    told: dict[str, Any] = dict(letter.headers or ())
    assert told["riverrun.dead.message"]
    assert letter.value == item.value or int(told["riverrun.dead.cut"]) == len(item.value)


def test_a_large_value_is_kept_in_part() -> None:
    letter, _ = shaper().build(rr.Item(b"x" * 5_000_000))
    assert letter.value == b"x" * DEAD_LETTER_VALUE_BYTES
    assert dict(letter.headers or ())["riverrun.dead.cut"] == b"5000000"
