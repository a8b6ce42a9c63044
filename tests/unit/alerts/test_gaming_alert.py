"""The referee of the gaming example hears of an outlier, at most once in half an hour for each player."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from riverrun.alerts.rules import build_rule
from riverrun.app import load_app
from riverrun.model.table import Column, TableSpec
from riverrun.testing.alerts import AlertSimulator
from riverrun.testing.topics import SentRecord

APP = Path(__file__).parents[3] / "examples" / "gaming" / "app.py"
BEGIN = datetime(2026, 9, 5, 18, 0, tzinfo=UTC)
# The rows of `outliers`, as the stream writes them.
OUTLIERS = TableSpec(
    "outliers",
    "outliers",
    (
        Column("minute", "timestamp", ("minute", "start")),
        Column("player", "text", ("player",)),
        Column("cup", "text", ("cup",)),
        Column("points", "bigint", ("points",)),
        Column("usual", "double", ("usual",)),
        Column("times", "double", ("times",)),
    ),
    key=("minute", "player"),
    time="minute",
)


def outlier(minute: int, player: str = "ada") -> SentRecord:
    at = BEGIN + timedelta(minutes=minute)
    row = {"minute": {"start": at.isoformat()}, "player": player, "cup": "c", "points": 90, "usual": 20.0, "times": 4.5}
    return SentRecord("outliers", minute, None, json.dumps(row).encode(), at)


def test_an_outlier_half_an_hour_later_is_told_too() -> None:
    judge = AlertSimulator([build_rule(load_app(APP).alerts["too_good"], OUTLIERS, {})])
    judge.step({"outliers": [outlier(0), outlier(1), outlier(1, "eve"), outlier(29), outlier(31)]}, {}, [])
    assert [(each.key, (each.at - BEGIN) // timedelta(minutes=1)) for each in judge.notifications(unsent=False)] == [
        ("ada", 0), ("eve", 1), ("ada", 31),
    ]  # fmt: skip
