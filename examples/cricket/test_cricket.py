"""The scoreboard and the scorecards are what plain Python finds, corrections, copies and late ones included."""

from itertools import islice
from pathlib import Path

import pytest
from app import Delivery
from figures import Figures
from source import events

HERE = Path(__file__).parent

# How long one look at a stream may take: on a busy machine Spark does.
SECONDS = 600

pytestmark = pytest.mark.timeout(1200)


def played(number=1400, seed=5):
    """Records, the deliveries among them, and what those come to."""
    records = list(islice(events(seed), number))
    good = [record for record in records if isinstance(record, Delivery)]
    return records, good, Figures().add(good)


@pytest.fixture
def match(stream_test):
    records, good, expected = played()
    t = stream_test(HERE / "app.py", seconds=SECONDS)
    # In two batches: what is corrected was said in an earlier one.
    for begin in range(0, len(records), 700):
        t.send("deliveries", *records[begin : begin + 700])
        t.advance(good[0].at)
    return t, expected


def same(found, expected):
    assert found.keys() == expected.keys()
    for key, figures in expected.items():
        assert found[key] == pytest.approx(figures), key


def scores(rows):
    return {row["match_id"]: {name: row[name] for name in row if name not in ("match_id", "at")} for row in rows}


def test_the_pipeline_is_right_at_every_speed(match):
    t, expected = match
    same(scores(t.rows("scoreboard")), expected.scoreboard())
    assert scores(t.batch("scoreboard")) == scores(t.rows("scoreboard"))
    assert any(row["result"] for row in t.rows("scoreboard"))
    ball = ("match_id", "innings", "over_no", "ball_no")
    rows = {tuple(row[name] for name in ball): row for row in t.rows("balls")}
    assert {key: Delivery(**row) for key, row in rows.items()} == expected.balls
    assert t.batch("balls") == t.rows("balls")
    assert t.record_counts("balls").dead_letters == len(t.dead("deliveries")) > 0


def test_the_page_shows_what_the_balls_come_to(match):
    t, expected = match
    for match_id in ("match-00001", "match-00003"):
        batting = t.tile("Batting", match_id=match_id)
        assert expected.batting(match_id) == {
            (row["innings"], row["batter"]): tuple(row[name] for name in ("runs", "balls", "fours", "sixes", "how_out"))
            for row in batting
        }
        bowling = t.tile("Bowling", match_id=match_id)
        assert expected.bowling(match_id) == {
            (row["innings"], row["bowler"]): tuple(row[name] for name in ("overs", "maidens", "runs", "wickets"))
            for row in bowling
        }
        pairs = t.tile("Partnerships", match_id=match_id)
        assert expected.partnerships(match_id) == {
            (row["innings"], row["wicket"]): (row["runs"], row["balls"]) for row in pairs
        }
        fall = t.tile("Fall of wickets", match_id=match_id)
        fell = [tuple(row[name] for name in ("innings", "wicket", "score", "dismissed")) for row in fall]
        assert sorted(fell) == expected.fall(match_id)


def ball(number, version=1, **what):
    said = {"match_id": "m", "innings": 1, "over_no": 1, "ball_no": number, "version": version, "batting": "A",
            "bowling": "B", "striker": "Ada", "partner": "Eve", "bowler": "Bo",
            "at": f"2026-04-01T14:0{number}:00Z"}  # fmt: skip
    return said | what


def test_a_correction_counts_whenever_the_first_word_comes(stream_test):
    t = stream_test(HERE / "app.py", seconds=SECONDS)
    t.send("deliveries", ball(1, runs=4), ball(2, version=2, runs=6))
    [row] = t.rows("scoreboard")
    assert (row["runs"], row["balls"]) == (10, 2)
    # The first version of the second ball was late, and the first ball was a six too.
    t.send("deliveries", ball(2, runs=1), ball(1, version=2, runs=6))
    [row] = t.rows("scoreboard")
    assert (row["runs"], row["balls"]) == (12, 2)
    [number] = t.tile("{match_id}: run rate", match_id="m")
    assert list(number.values()) == [36.0]


def test_who_never_faced_a_ball_is_on_the_card(stream_test):
    t = stream_test(HERE / "app.py", seconds=SECONDS)
    t.send("deliveries", ball(1, wicket="run out", dismissed="Eve"), ball(2, runs=4, partner="Fay"))
    names = ("batter", "runs", "balls", "strike_rate", "how_out")
    assert [tuple(row[name] for name in names) for row in t.tile("Batting", match_id="m")] == [
        ("Ada", 4, 2, 200.0, "not out"),
        ("Eve", 0, 0, None, "run out"),
        ("Fay", 0, 0, None, "not out"),
    ]


def test_a_wicket_is_told_and_taken_back(stream_test):
    t = stream_test(HERE / "app.py", seconds=SECONDS)
    t.send("deliveries", ball(1, wicket="lbw", dismissed="Ada"))
    [told] = t.alerts("wicket")
    assert told.text == "Ada is out, lbw, bowling Bo: A against B, over 1."
    t.send("deliveries", ball(1, version=2))
    assert [alert.text for alert in t.alerts("wicket")][1:] == ["Correction: Ada of A was not out in over 1."]


def test_history_tells_how_often_a_chase_is_won(stream_test):
    records, _, expected = played(12_000)
    t = stream_test(HERE / "history.py", seconds=SECONDS)
    t.send("deliveries", *records)
    rows = {row["needed_an_over"]: (row["chases"], row["won"]) for row in t.batch("chases")}
    same(rows, expected.chases())
    assert sum(chases for chases, _ in rows.values()) > 10
