"""A gaming tournament: leaderboards, the bracket as it fills, players' sessions, and who is too good to be true."""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import riverrun as rr

app = rr.App("gaming")


class Hit(rr.Event):
    """Points that a player makes in a duel of a cup. What a flaky network sends twice has the same hit_id."""

    player: str = rr.key()
    hit_id: str
    cup: str
    round_no: int = rr.field(ge=1)  # the last one is the final
    duel: int = rr.field(ge=1)
    points: int = rr.field(ge=1, le=1000)
    at: datetime = rr.event_time(late="1 minute")


hits = app.topic("hits", Hit, partitions=4, retention="30 days")


# Each hit once, however often it came.
MADE = "collect_set(struct(hit_id, points))"
POINTS = f"aggregate({MADE}, 0L, (total, hit) -> total + hit.points) as points"


@app.stream
def standings(hits: DataFrame) -> DataFrame:
    return hits.groupBy("cup", "player").agg(
        F.expr(POINTS), F.max("round_no").alias("reached"), F.max("at").alias("at")
    )


@app.stream
def duels(hits: DataFrame) -> DataFrame:
    """Both sides of every duel of the bracket."""
    return hits.groupBy("cup", "round_no", "duel", "player").agg(F.expr(POINTS), F.max("at").alias("at"))


@app.stream
def sessions(hits: DataFrame) -> DataFrame:
    """From a player's first hit to the last one before ten minutes without any."""
    session = F.session_window("at", "10 minutes").alias("session")
    ends = (F.min("at").alias("began"), F.max("at").alias("ended"))
    played = hits.groupBy(session, "player").agg(F.expr(POINTS), F.expr(f"size({MADE}) as hits"), *ends)
    return played.withColumn("minutes", F.expr("(unix_millis(ended) - unix_millis(began)) / 60000D"))


@app.stream
def player_minutes(hits: DataFrame) -> DataFrame:
    return hits.groupBy(F.window("at", "1 minute").alias("minute"), "player").agg(
        F.expr(POINTS), F.max("cup").alias("cup")
    )


@app.stream(key=("minute", "player"))
def outliers(player_minutes: DataFrame) -> DataFrame:
    """Who makes more than three times what the player in the middle makes in the same minute, among twenty or more."""
    all_of_them = F.collect_list(F.struct("player", "cup", "points")).alias("players")
    usual = F.percentile("points", F.lit(0.5)).alias("usual")
    minutes = player_minutes.groupBy("minute").agg(all_of_them, usual).where("size(players) >= 20")
    each = minutes.select("minute", "usual", F.explode("players").alias("one")).where("one.points > 3 * usual")
    return each.select(
        "minute", "one.player", "one.cup", "one.points", "usual", F.expr("one.points / usual").alias("times")
    )


# --- what people hear ---

app.alert(
    "too_good",
    outliers,
    by="player",
    to=["+353 20 910 0003"],
    text="{player} made {points} points in the minute of {minute:%H:%M}, {times:.1f} times what is usual. Have a look.",
    cooldown="30 minutes",
)

# --- what people see ---

# The cup that is on.
CUP = "cup = (select max(cup) from standings)"
PLACES = f"""
    select place || '.' as place, player, points, reached
    from (select rank() over (order by points desc) as place, player, points, reached from standings where {CUP}) ranked
    order by points desc, player limit 12"""
BRACKET = f"""
    select round_no, duel, max(case when side = 1 then player end) as ahead, max(points) as points,
        max(case when side = 2 then player end) as behind, max(case when side = 2 then points end) as points_behind
    from (
        select *, row_number() over (partition by cup, round_no, duel order by points desc, player) as side
        from duels where {CUP}) sides
    group by round_no, duel order by round_no desc, duel limit 40"""
SUSPECTS = """
    select player, count(*) as minutes, max(times) as times, max(points) as points, max(minute) as last_seen
    from outliers where minute > latest - interval '2 hours' group by player order by minutes desc, player limit 10"""
LAST = "from player_minutes where minute = latest - interval '1 minute'"
PACE = """
    select minute, max(points) as most, median(points) as usual from player_minutes
    where minute > latest - interval '1 hour' group by minute"""

app.dashboard(
    rr.number("Players in the cup", f"select count(*) from standings where {CUP}", width=3),
    rr.number("Round", f"select max(round_no) from duels where {CUP}", width=3),
    rr.number("Points a minute", f"select sum(points) {LAST}", width=3),
    rr.number("Sessions in an hour", "sessions", aggregate="count", range="1 hour", width=3),
    rr.rows("Leaderboard", PLACES, by="player", width=5),
    rr.rows("Bracket", BRACKET, width=7),
    rr.line("Points a minute, most and usual", PACE, x="minute", y=("most", "usual"), width=7),
    rr.rows("Too good to be true", SUSPECTS, by="player", width=5),
    rr.line("Points of {player}", "player_minutes", x="minute", y="points", range="1 day", when="player", width=6),
    rr.rows("Sessions of {player}", "sessions", columns=("began", "minutes", "hits", "points"), range="1 day", when="player",
            width=6),
    title="The cup",
)  # fmt: skip
