"""The figures of the exchange: what plain Python finds, the streams find. Run by `riverrun test`; needs no broker."""

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import figures
import pytest
from source import Faults, Sent, events

from riverrun.demo.comparison import differences
from riverrun.testing import StreamTest

APP = Path(__file__).with_name("app.py")
BEGIN = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
# None so late that it depends on the batches whether it counts.
FAULTS = Faults(late=0.01, too_late=0.0, twice=0.01, broken=0.005, corrected=0.01)
# All streams of the moving speeds.
LIVE = ("candles", "candles_5m", "movers", "halts", "blocks")


@pytest.fixture(scope="module")
def sent() -> list[Sent]:
    """The first minutes of a day, with everything that can be wrong with a feed."""
    return list(islice(events(seed=3, start=BEGIN, rate=1, faults=FAULTS), 3000))


def test_every_figure_is_what_plain_python_finds(stream_test: Callable[..., StreamTest], sent: list[Sent]) -> None:
    t = stream_test(APP, seconds=600)
    for begin in range(0, len(sent), 1500):
        for topic in ("trades", "correction_log"):
            t.send(topic, *(each.value for each in sent[begin : begin + 1500] if each.topic == topic))
        t.rows("candles")
    expected = figures.figures(sent)
    for stream in LIVE:
        assert differences(expected[stream], figures.keyed(stream, t.rows(stream))) == [], stream
        assert expected[stream], stream
    batch = figures.keyed("official", t.batch("official"))
    assert differences(expected["official"], batch) == []
    # Corrections make a difference, and only history has them all.
    assert differences(expected["official"], expected["movers"])


def test_every_record_is_accounted_for(stream_test: Callable[..., StreamTest], sent: list[Sent]) -> None:
    t = stream_test(APP, seconds=600)
    t.send("trades", *(each.value for each in sent if each.topic == "trades"))
    counts = t.record_counts("blocks")
    assert counts.read == counts.out + counts.filtered + counts.dead_letters + counts.late
    assert counts.dead_letters == len(t.dead("trades")) == sum(each.odd == "broken" for each in sent) > 0


def test_the_desk_hears_of_a_halt_once(stream_test: Callable[..., StreamTest]) -> None:
    t = stream_test(APP, seconds=600)
    for second in range(240):
        at = BEGIN.replace(minute=second // 60, second=second % 60)
        price = round(50 + second * 0.02, 2)
        t.send(
            "trades",
            {"symbol": "AVON", "trade_id": f"AVON-{second:09}", "price": price, "shares": 100, "at": at.isoformat()},
        )
        t.send(
            "trades",
            {"symbol": "ERNE", "trade_id": f"ERNE-{second:09}", "price": 35.5, "shares": 100, "at": at.isoformat()},
        )
    [told] = t.alerts("halt")
    assert told.key == "AVON"
    assert "moved 7.2 % within five minutes (50.00 to 53.58)" in told.text
