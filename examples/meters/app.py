"""Smart meters: every house reports its load each minute; the load of houses and streets, and who is above 2 kW."""

import os
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import riverrun as rr

app = rr.App("meters")


class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float = rr.field(ge=0)
    at: datetime = rr.event_time(late="2 minutes")


HOUSE = "house_id string, street string, owner string, phone string, tariff string, contract_kw double"
readings = app.topic("readings", Reading, partitions=4, retention="7 days")
houses = app.table("houses", rr.csv("houses.csv", HOUSE), key="house_id")


@app.stream
def house_load(readings: DataFrame, houses: DataFrame) -> DataFrame:
    known = readings.join(houses, "house_id", "left")
    minute = F.window("at", "1 minute").alias("minute")
    return known.groupBy(minute, "house_id", "street", "owner").agg(F.avg("load_kw").alias("load_kw"))


app.sql("street_load", "select minute, street, sum(load_kw) as load_kw from house_load group by minute, street")


@app.stream
def high_load(readings: DataFrame) -> DataFrame:
    return readings.where("load_kw > 2.0")


# There is a reading each minute: one and a half without one above 2 kW, and the episode is over.
EPISODES = """
    select house_id, street, owner, min(at) as began, max(at) + interval 1 minute as ended,
        timestampdiff(minute, min(at), max(at)) + 1 as minutes, max(load_kw) as peak_kw
    from readings left join houses using (house_id) where load_kw > 2.0
    group by session_window(at, '90 seconds'), house_id, street, owner"""
app.sql("episodes", EPISODES, key=("house_id", "began"), time="ended")

# --- what people hear ---

app.alert(
    "overload",
    house_load,
    when="load_kw > 2.0",
    clear="load_kw < 1.8",
    by="house_id",
    to=rr.column_of(houses, "phone"),
    text="{owner}, your home at {street} draws {load_kw:.1f} kW since {minute:%H:%M}, above the limit of 2 kW.",
    cooldown="1 hour",
)

# --- what people see ---

# The newest minute still fills; the one before it is whole, but for readings that come late.
NOW = "from house_load where minute = latest - interval '1 minute'"
# Whose newest reading is above 2 kW, and since when: after the last one that was not.
OPEN = """
    select h.house_id, h.owner, min(h.minute) as since, date_diff('minute', min(h.minute), max(h.minute)) + 1 as minutes,
        max(h.load_kw) as peak_kw
    from house_load h left join (
        select house_id, max(minute) as minute from house_load where load_kw <= 2.0 group by house_id
    ) low on low.house_id = h.house_id
    where low.minute is null or h.minute > low.minute
    group by h.house_id, h.owner order by since desc, peak_kw desc, h.house_id limit 100"""
ENDED = ("ended", "street", "house_id", "owner", "began", "minutes", "peak_kw")
ABOUT = "The city is made up: its houses, their owners and their phone numbers."
if speed := os.environ.get("METERS_SPEED"):
    ABOUT = f"City time runs **{float(speed):g} times faster** than ours. {ABOUT}"

app.dashboard(
    rr.number("City load", f"select sum(load_kw) {NOW}", unit="kW", width=3),
    rr.number("Above 2 kW", f"select count(*) {NOW} and load_kw > 2.0", unit="houses", width=2),
    rr.number("Highest house", f"select max(load_kw) {NOW}", unit="kW", width=2),
    rr.number("Overloads ended", "episodes", aggregate="count", range="1 hour", unit="in 1 h", width=2),
    rr.text(ABOUT, title="About", width=3),
    rr.line("Load by street", "street_load", x="minute", y="load_kw", by="street", unit="kW", limit=12, width=7),
    rr.leaderboard("Highest houses", f"select house_id, owner, load_kw {NOW} order by load_kw desc, house_id limit 12",
                   by="house_id", unit="kW", thresholds={"warn": 2.0, "bad": 5.0}, width=5),
    rr.line("Houses of {street}", "house_load", y="load_kw", by="house_id", unit="kW", when="street", width=7),
    rr.rows("Overloads of {street}", "episodes", columns=ENDED[2:], by="house_id", when="street", width=5),
    rr.line("Load of {house_id}", "house_load", y="load_kw", range="6 hours", unit="kW", when="house_id", width=12),
    rr.heat_map("Load through the hour", "street_load", x="minute", y="load_kw", by="street", unit="kW", width=7),
    rr.rows("Above 2 kW now", OPEN, by="house_id", range="6 hours", width=5),
    rr.rows("Overloads, newest first", "episodes", columns=ENDED, by="street", width=12),
    title="City power",
)  # fmt: skip
