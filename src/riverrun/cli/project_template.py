"""The files of a new project: a source, a stream, a dashboard and a test, small enough to read in a minute."""

APP = '''\
"""A first pipeline: three sensors, their average of every ten seconds, and a live page."""

import random
import time
from datetime import UTC, datetime

from pyspark.sql import functions as F

import riverrun as rr

app = rr.App("{name}")


class Reading(rr.Event):
    """What a sensor sends. What does not fit goes to the topic's dead letters, with the reason (`rr.http()` refuses it and
    tells its sender instead)."""

    sensor: str = rr.key()
    celsius: float = rr.field(ge=-60, le=120)
    at: datetime = rr.event_time(late="10 seconds")


readings = app.topic("readings", Reading, partitions=2, retention="7 days")


class Sensors(rr.Source):
    """Made-up readings, so that something moves. Yours come by `rr.http()`, `rr.mqtt(…)`, `rr.tail(…)`, `rr.folder(…)`."""

    def open(self, part, position):
        return SensorReader()


class SensorReader(rr.Reader):
    usual = {{"attic": 27.0, "kitchen": 21.0, "cellar": 12.0}}
    next = 0.0

    def read(self):
        if time.time() < self.next:
            return None  # nothing yet: asked again in a moment
        self.next = time.time() + 0.5
        now = datetime.now(UTC)
        made = [Reading(sensor=name, celsius=random.gauss(usual, 1), at=now) for name, usual in self.usual.items()]
        return rr.Items(made, self.next)  # the readings, and the position after them


app.source(readings, Sensors())


@app.stream
def averages(readings):
    """What each sensor measures in ten seconds. This is Spark: `readings` is a DataFrame that never ends."""
    span = F.window("at", "10 seconds").alias("span")
    return readings.groupBy(span, "sensor").agg(F.avg("celsius").alias("celsius"), F.count("*").alias("readings"))


app.dashboard(
    rr.number("Warmest", "select max(celsius) from averages where span = latest", unit="°C", decimals=1, width=4),
    rr.number("Readings so far", "select sum(readings) from averages", width=4),
    rr.number("Sensors", "select count(*) from averages where span = latest", compare=None, width=4),
    rr.line("Temperature", "averages", x="span", y="celsius", by="sensor", unit="°C", width=8),
    rr.leaderboard("Now", "averages", by="sensor", y="celsius", unit="°C", decimals=1, width=4),
    title="Sensors",
)
'''

TEST = '''\
"""`riverrun test` runs this: the stream on a real Spark; no Kafka needed."""

from pathlib import Path

APP = Path(__file__).with_name("app.py")


def reading(sensor, celsius, second):
    return {"sensor": sensor, "celsius": celsius, "at": f"2026-07-01T10:00:{second:02}Z"}


def test_readings_of_ten_seconds_become_one_average(stream_test):
    t = stream_test(APP)
    t.send("readings", reading("attic", 26.0, 1), reading("attic", 28.0, 9), reading("attic", 20.0, 11))
    t.send("readings", reading("attic", 9000.0, 2))
    found = sorted((row["span"]["start"].second, row["celsius"], row["readings"]) for row in t.rows("averages"))
    assert found == [(0, 27.0, 2), (10, 20.0, 1)]
    [dead] = t.dead("readings")
    assert "celsius" in dead.reason
'''
