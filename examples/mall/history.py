"""What only history answers: how far are the sensors wrong? At four in the morning nobody is inside, so whatever a day's
entrances are above its exits was not counted. Only when all have gone home is it known.

riverrun run history.py --speed batch
riverrun query "select * from misses order by day, zone"
"""

from app import DOORS, Count

import riverrun as rr

app = rr.App("mall_history")
app.topic("counts", Count, partitions=4, retention="365 days")
app.table("doors", rr.csv("doors.csv", DOORS), key="sensor")

# Sensors count through the night: a day is over when its last minutes are there.
MISSES = """
    with once as (
        select sensor, at - interval 4 hours as at, max(entered) as entered, max(exited) as exited
        from counts group by sensor, at),
    passed as (
        select at, explode(split(enters, ' ')) as zone, entered, exited from once join doors using (sensor)
        union all
        select at, explode(split(leaves, ' ')), exited, entered from once join doors using (sensor) where leaves <> '')
    select string(date(at)) as day, zone, sum(entered) as entered, sum(exited) as exited,
        sum(entered) - sum(exited) as left_over, 100D * (sum(entered) - sum(exited)) / nullif(sum(entered), 0) as percent
    from passed group by date(at), zone
    having max(at) >= date(at) + interval '23:55' hour to minute"""
app.sql("misses", MISSES, key=["day", "zone"], speed="batch")

app.dashboard(
    rr.bar(
        "People whom nobody saw leave (or, below zero, come), by zone",
        "select zone, sum(left_over) as left_over from misses group by zone order by zone",
        by="zone",
        y="left_over",
        width=5,
    ),
    rr.rows("By day", "select * from misses order by day desc, zone", width=7),
    title="What the sensors miss",
)
