"""Cricket, ball by ball: who needs what, scorecards, partnerships; a corrected ball corrects every figure."""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import riverrun as rr

app = rr.App("cricket")

EXTRAS, WICKETS = "|wide|no-ball|bye|leg-bye", "|bowled|caught|lbw|run out|stumped"


class Delivery(rr.Event):
    """A ball as the scorer sends it. Sent again with a higher version, it replaces what was said before."""

    match_id: str = rr.key()
    innings: int = rr.field(ge=1, le=2)
    over_no: int = rr.field(ge=1, le=20)
    ball_no: int = rr.field(ge=1)  # wides and no-balls count too
    version: int = rr.field(ge=1)
    batting: str
    bowling: str
    striker: str
    partner: str
    bowler: str
    at: datetime = rr.event_time(late="30 minutes")
    runs: int = rr.field(ge=0, le=6, default=0)  # off the bat
    extras: int = rr.field(ge=0, default=0)
    extra: str = rr.field(pattern=f"^({EXTRAS})$", default="")
    wicket: str = rr.field(pattern=f"^({WICKETS})$", default="")
    dismissed: str = ""


# All balls of a match are in one partition, in the order in which the scorer sent them.
deliveries = app.topic("deliveries", Delivery, partitions=4, retention="365 days")

BALL = ("match_id", "innings", "over_no", "ball_no")
SAID = (
    "version",
    "batting",
    "bowling",
    "striker",
    "partner",
    "bowler",
    "runs",
    "extras",
    "extra",
    "wicket",
    "dismissed",
    "at",
)


@app.stream
def balls(deliveries: DataFrame) -> DataFrame:
    """Every ball as it stands: of all that was said of it the highest version, whenever it came."""
    newest = F.max_by(F.struct(*SAID), "version").alias("said")
    return deliveries.groupBy(*BALL).agg(newest).select(*BALL, "said.*")


# From ball to ball: what stands on the board, and what the first innings came to.
BOARD = """aggregate(balls, named_struct('innings', 1L, 'first', 0L, 'runs', 0L, 'wickets', 0L, 'balls', 0L), (t, b) ->
    named_struct(
        'innings', b.innings,
        'first', if(b.innings > t.innings, t.runs, t.first),
        'runs', if(b.innings > t.innings, 0L, t.runs) + b.runs,
        'wickets', if(b.innings > t.innings, 0L, t.wickets) + b.out,
        'balls', if(b.innings > t.innings, 0L, t.balls) + b.legal))"""
RESULT = """case
    when innings = 1 or needed > 0 and wickets < 10 and balls < 120 then ''
    when needed = 0 then concat(batting, ' won by ', 10 - wickets, if(wickets = 9, ' wicket', ' wickets'))
    when needed = 1 then 'tied'
    else concat(bowling, ' won by ', needed - 1, if(needed = 2, ' run', ' runs')) end"""


@app.stream
def scoreboard(deliveries: DataFrame) -> DataFrame:
    """Every match as it stands, counted anew from its balls (some 250) whenever one is said or corrected."""
    ball = F.expr("""struct(innings * 10000 + over_no * 100 + ball_no as no, version, innings, runs + extras as runs,
        bigint(wicket <> '') as out, bigint(extra not in ('wide', 'no-ball')) as legal, batting, bowling)""")
    said = deliveries.groupBy("match_id").agg(F.array_sort(F.collect_set(ball)).alias("said"), F.max("at").alias("at"))
    return (
        # Sorted by ball and version: the last of each ball counts.
        said.selectExpr("*", "filter(said, (b, i) -> get(said, i + 1).no is distinct from b.no) as balls")
        .selectExpr("match_id", "at", f"{BOARD} as board", "balls[size(balls) - 1] as now")
        .selectExpr("match_id", "at", "now.batting", "now.bowling", "board.*")
        .selectExpr("*", "if(innings = 2, first + 1, null) as target", "if(innings = 2, 120 - balls, null) as balls_left")
        .selectExpr("*", "if(innings = 2, greatest(target - runs, 0), null) as needed")
        .selectExpr("* except (first)", "runs * 6D / nullif(balls, 0) as run_rate",
                    "if(balls_left > 0, needed * 6D / balls_left, null) as required_rate", f"{RESULT} as result")
    )  # fmt: skip


# --- what people hear ---

DESK = ["+353 20 910 0001"]
app.alert(
    "wicket",
    balls,
    when="wicket <> ''",
    by=BALL,
    to=DESK,
    text="{dismissed} is out, {wicket}, bowling {bowler}: {batting} against {bowling}, over {over_no}.",
    resolved="Correction: {striker} of {batting} was not out in over {over_no}.",
)
app.alert(
    "close_finish",
    scoreboard,
    when="innings = 2 and result = '' and balls_left <= 12 and needed <= 20 and wickets < 10",
    to=DESK,
    text="{batting} need {needed} off {balls_left} balls with {wickets} down.",
)

# --- what people see ---

# All of it is asked of `balls`, where a corrected ball stands as corrected: nothing has to be taken back.
LIVE = """
    select match_id, batting, runs || '/' || wickets as score, balls // 6 || '.' || balls % 6 as overs, run_rate, needed,
        balls_left, required_rate, result
    from scoreboard where at > latest - interval '30 minutes' order by match_id"""
# Each ball is two rows, one for each end: who never faces a ball has been in, too, and may be run out.
BATTING = """
    select innings, batter, sum(runs) as runs, count_if(faced and extra <> 'wide') as balls, count_if(runs = 4) as fours,
        count_if(runs = 6) as sixes, round(100.0 * sum(runs) / count_if(faced and extra <> 'wide'), 1) as strike_rate,
        coalesce(max(case when dismissed = batter then wicket end), 'not out') as how_out
    from (
        select match_id, innings, extra, wicket, dismissed, side = 1 as faced, over_no * 1000 + ball_no * 2 + side as came,
            case when side = 1 then striker else partner end as batter, case when side = 1 then runs else 0 end as runs
        from balls cross join (values (1), (2)) as ends(side)) one
    group by match_id, innings, batter order by innings desc, min(came), batter"""
BOWLING = """
    select innings, bowler, sum(legal) // 6 || '.' || sum(legal) % 6 as overs,
        count_if(legal = 6 and conceded = 0) as maidens, sum(conceded) as runs,
        sum(wickets) as wickets, round(6.0 * sum(conceded) / sum(legal), 2) as economy
    from (
        select match_id, innings, over_no, bowler, count_if(extra not in ('wide', 'no-ball')) as legal,
            sum(runs + case when extra in ('wide', 'no-ball') then extras else 0 end) as conceded,
            count_if(wicket not in ('', 'run out')) as wickets
        from balls group by all) overs
    group by match_id, innings, bowler order by innings desc, wickets desc, runs, bowler"""
# How many were out before each ball, and what stood on the board after it.
RUNNING = """
    with running as (
        select *, sum(fell) over (partition by match_id, innings order by over_no, ball_no) - fell as down,
            sum(runs + extras) over (partition by match_id, innings order by over_no, ball_no) as total
        from (select *, case when wicket <> '' then 1 else 0 end as fell from balls) one)"""
PARTNERSHIPS = f"""{RUNNING}
    select innings, down + 1 as wicket, min(least(striker, partner)) || ', ' || max(greatest(striker, partner)) as pair,
        sum(runs + extras) as runs, count_if(extra not in ('wide', 'no-ball')) as balls
    from running group by match_id, innings, down order by innings desc, down"""
FALL = f"""{RUNNING}
    select innings, down + 1 as wicket, total as score, over_no, dismissed, wicket as how, bowler
    from running where wicket <> '' order by innings desc, down"""
WORM = """
    select over_no, batting, sum(runs) over (partition by match_id, batting order by over_no) as runs
    from (select match_id, batting, over_no, sum(runs + extras) as runs from balls group by all) overs"""
BATTERS = "select striker as batter, sum(runs) as runs from balls group by striker order by runs desc, batter limit 10"
BOWLERS = """select bowler, count(*) as wickets from balls where wicket not in ('', 'run out')
    group by bowler order by wickets desc, bowler limit 10"""

app.dashboard(
    rr.rows("Matches", LIVE, by="match_id", width=12, height=3),
    rr.number("{match_id}: run rate", "select max(run_rate) from scoreboard", when="match_id", decimals=2, width=3),
    rr.number("Required rate", "select max(required_rate) from scoreboard", when="match_id", decimals=2, width=3),
    rr.number("Needed", "select max(needed) from scoreboard", when="match_id", unit="runs", width=3),
    rr.number("Balls left", "select max(balls_left) from scoreboard", when="match_id", width=3),
    rr.rows("Batting", BATTING, when="match_id", width=7),
    rr.line("Runs by over", WORM, x="over_no", y="runs", by="batting", when="match_id", width=5),
    rr.rows("Bowling", BOWLING, when="match_id", width=7),
    rr.rows("Partnerships", PARTNERSHIPS, when="match_id", width=5),
    rr.rows("Fall of wickets", FALL, when="match_id", width=12),
    rr.leaderboard("Most runs", BATTERS, by="batter", unit="runs", width=6),
    rr.leaderboard("Most wickets", BOWLERS, by="bowler", unit="wickets", width=6),
    title="Twenty20",
)  # fmt: skip
