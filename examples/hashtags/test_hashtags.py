"""Trends, bursts and firsts are what plain Python finds, posts that come twice or late and machines included."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest
from app import Post
from figures import Figures
from source import events

HERE = Path(__file__).parent
BEGIN = datetime(2026, 6, 1, 18, 0, tzinfo=UTC)

# How long one look at a stream may take: on a busy machine Spark does.
SECONDS = 600

pytestmark = pytest.mark.timeout(1200)


def post(number, author, *tags, second=0, minute=0):
    return Post(
        author=author, post_id=f"p{number}", tags=list(tags), at=BEGIN + timedelta(minutes=minute, seconds=second)
    )


def same(found, expected):
    assert found.keys() == expected.keys()
    for key, figures in expected.items():
        assert found[key] == pytest.approx(figures), key


def spans(rows):
    names = ("score", "votes", "now", "usual", "burst")
    return {(row["span"]["end"], row["tag"]): tuple(row[name] for name in names) for row in rows}


def test_the_pipeline_is_right_at_every_speed(stream_test):
    records = list(islice(events(seed=3, per_minute=60), 1200))
    good = [record for record in records if isinstance(record, Post)]
    expected = Figures(good)
    t = stream_test(HERE / "app.py", seconds=SECONDS)
    for begin in range(0, len(records), 700):
        t.send("posts", *records[begin : begin + 700])
    t.advance(max(each.at for each in good) + timedelta(hours=1))

    rows = spans(t.rows("trending"))
    same(rows, expected.trending())
    minutes = {(row["minute"]["start"], row["tag"]): row["authors"] for row in t.rows("tag_minutes")}
    assert minutes == expected.tag_minutes()
    same(spans(t.batch("trending")), rows)
    assert t.record_counts("tag_minutes").late == 0

    # The ten of the last full quarter of an hour.
    top = t.rows("top_tags")[-1]
    best = sorted(
        ((figures[0], tag) for (end, tag), figures in rows.items() if end == top["span"]["end"]), reverse=True
    )
    assert [each["tag"] for each in top["top"]] == [tag for _, tag in best[:10]]


def test_one_author_is_one_and_a_machine_is_none(stream_test):
    t = stream_test(HERE / "app.py", seconds=SECONDS)
    loud = [post(each, "deals", "river", second=each) for each in range(6)]
    t.send("posts", *loud, post(10, "ada", "river"), post(11, "ada", "river", second=9), post(10, "ada", "river"))
    t.send("posts", post(12, "eve", "river", "rain", second=50))
    t.advance(BEGIN + timedelta(minutes=3))
    assert {row["tag"]: row["authors"] for row in t.rows("tag_minutes")} == {"river": 2, "rain": 1}
    assert [alert.text for alert in t.alerts("spam")] == [
        "deals sent 6 posts in the minute of 18:00. None of them counts."
    ]


def test_a_burst_is_told(stream_test):
    t = stream_test(HERE / "app.py", seconds=SECONDS)
    calm = [post(f"c{minute}", "ada", "goal", minute=minute) for minute in range(10)]
    wild = [post(f"w{each}", f"fan{each}", "goal", minute=10) for each in range(20)]
    t.send("posts", *calm, *wild)
    t.advance(BEGIN + timedelta(minutes=12, seconds=30))
    assert [alert.text for alert in t.alerts("burst")] == ["#goal bursts: 20 authors in a minute, 0.7 is usual."]
    assert [row["tag"] for row in t.tile("Bursts")] == ["goal"]
    assert t.tile("Trending")[0]["tag"] == "goal"


def test_history_tells_who_had_it_first(stream_test):
    records = list(islice(events(seed=3), 6000))
    t = stream_test(HERE / "history.py", seconds=SECONDS)
    t.send("posts", *records)
    names = ("authors", "first_author", "began", "most", "peak")
    rows = {row["tag"]: tuple(row[name] for name in names) for row in t.batch("firsts")}
    assert rows == Figures(record for record in records if isinstance(record, Post)).firsts()
    assert len(rows) > 20
