"""What only history answers: ten overs are left in a chase, so many runs an over are needed; how often is it won?

riverrun run history.py --speed batch
riverrun query "select * from chases order by needed_an_over"
"""

from app import Delivery

import riverrun as rr

app = rr.App("cricket_history")
app.topic("deliveries", Delivery, partitions=4, retention="365 days")

CHASES = """
    with balls as (
        select match_id, innings, over_no, ball_no, max_by(struct(runs + extras as runs, extra, wicket), version) as said
        from deliveries group by match_id, innings, over_no, ball_no),
    targets as (select match_id, sum(said.runs) + 1 as target from balls where innings = 1 group by match_id),
    chases as (
        select match_id, sum(said.runs) as runs, sum(if(over_no <= 10, said.runs, 0)) as at_ten, max(over_no) as overs,
            count_if(said.wicket <> '') as wickets, count_if(said.extra not in ('wide', 'no-ball')) as legal
        from balls where innings = 2 group by match_id)
    select (target - at_ten) div 10 as needed_an_over, count(*) as chases, avg(int(runs >= target)) as won
    from chases join targets using (match_id)
    where overs > 10 and (runs >= target or wickets = 10 or legal = 120)
    group by (target - at_ten) div 10"""
app.sql("chases", CHASES, key="needed_an_over", speed="batch")

app.dashboard(
    rr.bar(
        "Chases won, by runs an over needed with ten to go",
        "select needed_an_over, won * 100 as won from chases order by needed_an_over",
        x="needed_an_over",
        y="won",
        unit="%",
        width=12,
    ),
    title="Chases",
)
