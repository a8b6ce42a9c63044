"""Leaderboard, bracket, sessions and outliers are what plain Python finds, hits that come twice or late included."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest
from app import Hit
from figures import Figures
from source import events

HERE = Path(__file__).parent
BEGIN = datetime(2026, 9, 5, 18, 0, tzinfo=UTC)

# How long one look at a stream may take: on a busy machine Spark does.
SECONDS = 600

pytestmark = pytest.mark.timeout(1200)


def hit(number, player, points, minute=0):
    return Hit(
        player=player,
        hit_id=f"h{number}",
        cup="c",
        round_no=1,
        duel=1,
        points=points,
        at=BEGIN + timedelta(minutes=minute),
    )


def same(found, expected):
    assert found.keys() == expected.keys()
    for key, figures in expected.items():
        assert found[key] == pytest.approx(figures), key


def test_the_pipeline_is_right_at_every_speed(stream_test):
    records = list(islice(events(seed=4), 2800))
    good = [record for record in records if isinstance(record, Hit)]
    expected = Figures(good)
    t = stream_test(HERE / "app.py", seconds=SECONDS)
    for begin in range(0, len(records), 1400):
        t.send("hits", *records[begin : begin + 1400])
    t.advance(max(each.at for each in good) + timedelta(hours=1))

    rows = t.rows("standings")
    assert {(row["cup"], row["player"]): (row["points"], row["reached"]) for row in rows} == expected.standings()
    assert t.batch("standings") == rows
    rows = t.rows("duels")
    assert {
        (row["cup"], row["round_no"], row["duel"], row["player"]): row["points"] for row in rows
    } == expected.duels()
    rows = t.rows("sessions")
    assert expected.sessions() == {
        (row["player"], row["began"]): (row["ended"], row["points"], row["hits"]) for row in rows
    }
    rows = t.rows("outliers")
    assert {
        (row["minute"]["start"], row["player"]): (row["points"], row["usual"]) for row in rows
    } == expected.outliers()
    assert t.batch("outliers") == rows
    assert rows
    assert {alert.key for alert in t.alerts("too_good")} == {row["player"] for row in rows}

    places = expected.places("cup-00001")[:12]
    assert [(row["place"], row["player"], row["points"]) for row in t.tile("Leaderboard")] == [
        (f"{place}.", player, points) for place, player, points in places
    ]
    final = t.tile("Bracket")[0]
    assert final["points"] > final["points_behind"] >= 0


def test_who_has_as_many_points_has_the_same_place(stream_test):
    t = stream_test(HERE / "app.py", seconds=SECONDS)
    t.send("hits", hit(1, "ada", 50), hit(2, "eve", 50), hit(3, "kim", 25), hit(4, "lou", 75), hit(4, "lou", 75))
    assert [(row["place"], row["player"]) for row in t.tile("Leaderboard")] == [
        ("1.", "lou"), ("2.", "ada"), ("2.", "eve"), ("4.", "kim"),
    ]  # fmt: skip


def test_history_tells_what_a_lead_is_worth(stream_test):
    records = list(islice(events(seed=4), 6000))
    t = stream_test(HERE / "history.py", seconds=SECONDS)
    t.send("hits", *records)
    rows = {row["lead"]: (row["duels"], row["won"]) for row in t.batch("leads")}
    same(rows, Figures(record for record in records if isinstance(record, Hit)).leads())
    assert sum(duels for duels, _ in rows.values()) > 20
