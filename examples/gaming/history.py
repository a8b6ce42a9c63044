"""What only history answers: who is ahead at half-time, and by so much; how often do they win?

riverrun run history.py --speed batch
riverrun query "select * from leads order by lead"
"""

from app import Hit

import riverrun as rr

app = rr.App("gaming_history")
app.topic("hits", Hit, partitions=4, retention="30 days")

LEADS = """
    with once as (
        select hit_id, any_value(struct(cup, round_no, duel, player, points, at)) as hit from hits group by hit_id),
    begun as (select hit.*, min(hit.at) over (partition by hit.cup, hit.round_no, hit.duel) as began from once),
    sides as (
        select cup, round_no, duel, player, sum(points) as points,
            sum(if(at < began + interval 150 seconds, points, 0)) as half
        from begun group by cup, round_no, duel, player),
    played as (
        select max(half) - min(half) as lead, max_by(player, half) = max_by(player, points) as won
        from sides group by cup, round_no, duel
        having count(*) = 2 and max(half) > min(half) and max(points) > min(points))
    select lead div 50 * 50 as lead, count(*) as duels, avg(int(won)) as won from played group by lead div 50 * 50"""
app.sql("leads", LEADS, key="lead", speed="batch")

app.dashboard(
    rr.bar(
        "Duels won, by the lead at half-time",
        "select lead, won * 100 as won from leads order by lead",
        x="lead",
        y="won",
        unit="%",
        width=12,
    ),
    title="Half-time",
)
