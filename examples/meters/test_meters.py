"""The city's figures: what plain Python finds, the streams find. Run by `riverrun test`; needs no broker."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import city
import houses
import pytest
from figures import Truth

APP = Path(__file__).with_name("app.py")
BEGIN = datetime(2026, 11, 16, 18, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def test_streets_and_episodes_are_what_plain_python_finds(stream_test, monkeypatch):
    # None so late that it depends on the batches whether it counts.
    monkeypatch.setattr(city, "TOO_LATE", 0.0)
    monkeypatch.setattr(city, "BROKEN", 0.005)
    some = houses.read(60)
    radio = city.Radio()
    sent = [radio.send(each) for each in islice(city.minutes(some, BEGIN), 20)]
    truth = Truth(
        (reading for minute in sent for reading in minute.readings), {each.house_id: each.street for each in some}
    )

    t = stream_test(APP, seconds=600)
    for minute in sent:
        t.send("readings", *minute.readings, *minute.broken)
    t.advance(truth.last + 10 * MINUTE)

    streets = {(row["minute"]["start"], row["street"]): row["load_kw"] for row in t.rows("street_load")}
    assert streets == pytest.approx(truth.street_load)
    episodes = {(row["house_id"], row["began"], row["ended"], row["peak_kw"]) for row in t.rows("episodes")}
    ended = {
        (episode.house_id, episode.began, episode.ended or truth.last + MINUTE, episode.peak_kw)
        for episode in truth.episodes
    }
    assert episodes == ended != set()
    assert (
        t.record_counts("episodes").dead_letters
        == len(t.dead("readings"))
        == sum(len(each.broken) for each in sent)
        > 0
    )


def test_the_owner_is_told_once_an_hour(stream_test):
    t = stream_test(APP, seconds=600)
    for minute, load in enumerate((1.0, 2.4, 2.6, 1.0, 2.5)):
        t.send("readings", {"house_id": "house-00001", "load_kw": load, "at": (BEGIN + minute * MINUTE).isoformat()})
    [sms] = t.alerts("overload")
    assert sms.text == "Lea Malone, your home at Iron Bridge draws 2.4 kW since 18:31, above the limit of 2 kW."
