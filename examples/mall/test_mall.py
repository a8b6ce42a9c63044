"""People by zone, how long they stay and who is told are what plain Python finds, whatever sensors and lines do."""

import threading
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import gateway
import httpx
import pytest
from app import Count, counts
from figures import CHECKS, Figures
from source import events

from riverrun.demo.comparison import differences

HERE = Path(__file__).parent
BEGIN = datetime(2026, 10, 17, 10, 0, tzinfo=UTC)

# How long one look at a stream may take: on a busy machine Spark does.
SECONDS = 600

pytestmark = pytest.mark.timeout(1200)


def count(sensor, minute, entered=0, exited=0, number=100):
    return Count(sensor=sensor, number=number, entered=entered, exited=exited, at=BEGIN + timedelta(minutes=minute))


def test_the_pipeline_is_right_at_every_speed(stream_test):
    records = list(islice(events(seed=3), 2400))
    good = [record for record in records if isinstance(record, Count)]
    t = stream_test(HERE / "app.py", seconds=SECONDS)
    for begin in range(0, len(records), 1200):
        t.send("counts", *records[begin : begin + 1200])
        t.rows("zones")
    for check in CHECKS:
        right = check.expected_rows(good)
        assert differences(right, check.rows(t.rows(check.stream))) == [], check.stream
        assert differences(right, check.rows(t.batch(check.stream))) == [], check.stream
        assert t.record_counts(check.stream).late == 0
    assert len(t.dead("counts")) == len(records) - len(good) > 0
    # Everybody is in some zone.
    people = {row["zone"]: row["entered"] - row["exited"] for row in t.rows("zones")}
    assert people.pop("building") == sum(people.values()) - people["cars"] > 0


def test_in_minus_out_whatever_a_sensor_does(stream_test):
    t = stream_test(HERE / "app.py", seconds=SECONDS)
    # North: 30 come in. The sensor restarts, a minute is missing, its numbers begin again; a record comes twice.
    t.send("counts", count("north-1", 0, 30), count("north-1", 2, 5, number=1), count("north-1", 2, 5, number=1))
    # Ten go up to the gallery; that comes late.
    t.send("counts", count("escalator-1", 3), count("escalator-1", 1, 10))
    rows = {row["zone"]: row for row in t.rows("zones")}
    assert {zone: row["people"] for zone, row in rows.items()} == {"building": 35, "concourse": 25, "gallery": 10}
    [north] = [row for row in t.rows("sensors") if row["sensor"] == "north-1"]
    assert (north["minutes"], north["restarts"]) == (2, 1)
    # Of the 30, each has been inside for two minutes and a half, of the five for half a minute.
    assert rows["building"]["stay_minutes"] == pytest.approx((30 * 2.5 + 5 * 0.5) / 35)
    # Nobody is inside when the next day begins, whatever was missed.
    t.send("counts", count("north-1", 60 * 20, 3))
    assert max(t.rows("zones"), key=lambda row: (row["at"], row["zone"] == "building"))["people"] == 3


def test_nowhere_are_fewer_than_nobody(stream_test):
    t = stream_test(HERE / "app.py", seconds=SECONDS)
    # The sensor missed who came in.
    t.send("counts", count("north-1", 0, 2, 5), count("north-1", 1, 4, 0), count("north-1", 2))
    assert [list(row.values()) for row in t.tile("In the building")] == [[1]]
    assert [row["people"] for row in t.tile("People by zone")] == [0, 1]
    t.send("counts", count("north-1", 3, 0, 9), count("north-1", 4))
    assert [list(row.values()) for row in t.tile("In the building")] == [[0]]


def test_the_safety_officer_hears_when_a_zone_is_full_and_when_it_is_not(stream_test):
    t = stream_test(HERE / "app.py", seconds=SECONDS)
    t.send("counts", count("cinema-1", 0, 500))
    assert t.alerts("full") == []
    t.send("counts", count("cinema-1", 1, 40))
    [told] = t.alerts("full")
    assert told.text == "Cinema is 96 % full at 10:01: 540 of 560 people. Let nobody in."
    # A little below is not the end of it; a film's end is.
    t.send("counts", count("cinema-1", 3, 0, 30))
    assert len(t.alerts("full")) == 1
    t.send("counts", count("cinema-1", 4, 0, 200))
    assert t.alerts("full")[-1].text == "Cinema has room again at 10:04: 310 of 560 people."


def test_a_silent_sensor_is_told(stream_test):
    t = stream_test(HERE / "app.py", seconds=SECONDS)
    t.send("counts", count("north-1", 0), *(count("south-1", minute) for minute in range(20)))
    assert [alert.text for alert in t.alerts("silent")] == ["The sensor north-1 has counted nothing since 10:00."]


def test_history_tells_what_the_sensors_miss(stream_test):
    records = list(islice(events(seed=3), 38_000))
    t = stream_test(HERE / "history.py", seconds=SECONDS)
    t.send("counts", *records)
    names = ("entered", "exited", "left_over", "percent")
    rows = {(row["day"], row["zone"]): tuple(row[name] for name in names) for row in t.batch("misses")}
    expected = Figures(record for record in records if isinstance(record, Count)).misses()
    assert rows.keys() == expected.keys()
    for key, figures in expected.items():
        assert rows[key] == pytest.approx(figures), key
    assert 0 < abs(rows["2026-10-17", "building"][2]) < 0.03 * rows["2026-10-17", "building"][0]


# --- the gateway ---


class Server:
    """Answers as it is told to, and writes down what it was asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def __call__(self, request):
        self.asked.append((request.headers["idempotency-key"], request.content))
        status = self.answers.pop(0) if self.answers else 200
        if status == 0:
            raise httpx.ReadError("the line broke")
        lines = request.content.count(b"\n") + 1
        body = {"accepted": lines - 1, "refused": 1} if status == 207 else {"accepted": lines, "refused": 0}
        after = {"retry-after": "0"} if status == 429 else {}
        return httpx.Response(status, json=body if status < 400 else {"error": {"code": "BUSY"}}, headers=after)


@pytest.fixture
def posting(monkeypatch):
    monkeypatch.setattr(gateway, "find_ingest_endpoint", lambda _: SimpleNamespace(address="http://127.0.0.1:1"))
    monkeypatch.setattr(gateway, "FIRST_PAUSE", 0.001)

    def make(server):
        return gateway.Gateway(counts, threading.Event(), httpx.Client(transport=httpx.MockTransport(server)))

    return make


def test_what_is_not_acknowledged_is_posted_again_with_the_same_key(posting):
    server = Server(429, 503, 0, 200)
    with posting(server) as out:
        for minute in range(3):
            out.send(count("north-1", minute))
    assert len(server.asked) == 4
    assert len(set(server.asked)) == 1
    assert out.counts() == {"acknowledged": 3, "refused": 0, "posts": 1, "tried_again": 3}


def test_it_holds_so_many_and_no_more(posting):
    server = Server(207)
    with posting(server) as out:
        for minute in range(gateway.MOST + 1):
            out.send(count("north-1", minute))
    assert max(body.count(b"\n") + 1 for _, body in server.asked) <= gateway.MOST
    assert out.counts()["acknowledged"] == gateway.MOST
    assert out.counts()["refused"] == 1
    keys = [key for key, _ in server.asked]
    assert len(set(keys)) == len(keys) >= 2


def test_a_post_that_nobody_will_ever_take_ends_it(posting):
    with pytest.raises(SystemExit, match="refused with 401"), posting(Server(401)) as out:
        out.send(count("north-1", 0))
