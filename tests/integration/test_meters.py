"""The meters pipeline over its own city, readings late, twice and broken among them: what plain Python finds, it finds."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice

import pytest

from riverrun.testing import StreamTest
from support.meters import METERS, MINUTE, Example, example

BEGIN = datetime(2026, 11, 16, 18, 30, tzinfo=UTC)
HOUSES, MINUTES = 250, 30
# A batch of the stream holds so many minutes.
BITE = 15

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def meters() -> Iterator[Example]:
    with example() as found:
        yield found


def test_streets_and_episodes_are_what_plain_python_finds(
    stream_test: Callable[..., StreamTest], meters: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None so late that it depends on the batches whether it counts.
    monkeypatch.setattr(meters.city, "TOO_LATE", 0.0)
    houses = {each.house_id: each for each in meters.houses.read(HOUSES)}
    radio = meters.city.Radio()
    sent = [radio.send(each) for each in islice(meters.city.minutes(list(houses.values()), BEGIN), MINUTES)]
    truth = meters.figures.Truth(
        (reading for minute in sent for reading in minute.readings), {name: houses[name].street for name in houses}
    )

    t = stream_test(METERS / "app.py")
    for begin in range(0, MINUTES, BITE):
        for minute in sent[begin : begin + BITE]:
            t.send("readings", *minute.readings, *minute.broken)
        t.advance(BEGIN + (begin + BITE - 1) * MINUTE)
    t.advance(truth.last + 10 * MINUTE)

    streets = {(row["minute"]["start"], row["street"]): row["load_kw"] for row in t.rows("street_load")}
    assert streets == pytest.approx(truth.street_load)
    assert len({street for _, street in streets}) == len(meters.houses.STREETS)
    over = [episode for episode in truth.episodes if episode.ended is not None]
    # Those that were above to the end are over for the pipeline too: time has gone on without a reading.
    last = [episode for episode in truth.episodes if episode.ended is None]
    expected = {(each.house_id, each.began, each.ended or truth.last + MINUTE, each.peak_kw) for each in over + last}
    rows = t.rows("episodes")
    assert {(row["house_id"], row["began"], row["ended"], row["peak_kw"]) for row in rows} == expected
    assert len(rows) == len(expected)
    assert all(row["minutes"] == round((row["ended"] - row["began"]) / MINUTE) for row in rows)
    assert all(row["owner"] == houses[row["house_id"]].owner for row in rows)
    assert len(over) > 20
    account = t.record_counts("episodes")
    assert (account.dead_letters, account.late) == (sum(len(each.broken) for each in sent), 0)
    assert account.dead_letters > 0
    assert t.batch("episodes") == rows
