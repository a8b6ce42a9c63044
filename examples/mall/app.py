"""A shopping mall: how many people are in it and in each of its zones, how long they stay, and when a zone is full."""

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

import riverrun as rr

app = rr.App("mall")


class Count(rr.Event):
    """What a sensor over a door counted in one minute. Its `number` begins with 1 again when the sensor restarts: it is the
    minute that tells its records apart."""

    sensor: str = rr.key()
    number: int = rr.field(ge=1)
    entered: int = rr.field(ge=0, le=1000)
    exited: int = rr.field(ge=0, le=1000)
    at: datetime = rr.event_time(late="10 minutes")


counts = app.topic("counts", Count, partitions=4, retention="365 days")
# The sensors post: POST /topics/counts.
app.source(counts, rr.http())

# Which zones one is in behind a door, and which one was in before it; several with spaces between them.
DOORS = "sensor string, door string, enters string, leaves string"
doors = app.table("doors", rr.csv("doors.csv", DOORS), key="sensor")
areas = app.table("areas", rr.csv("zones.csv", "zone string, name string, unit string, capacity bigint"), key="zone")


def once(counts: DataFrame) -> DataFrame:
    """Each minute of a sensor once: what was not acknowledged is sent again."""
    return counts.dropDuplicates(["sensor", "at"])


def passages(counts: DataFrame, doors: DataFrame) -> DataFrame:
    """Who goes through a door enters the zones behind it, and leaves those before it."""
    behind = "transform(split(enters, ' '), z -> struct(z as zone, entered, exited))"
    before = "transform(split(coalesce(leaves, ''), ' '), z -> struct(z as zone, exited as entered, entered as exited))"
    known = once(counts).join(doors, "sensor")
    return known.selectExpr("at", f"explode(concat({behind}, {before})) as p").select("at", "p.*").where("zone <> ''")


def day() -> Column:
    """From four to four. Then nobody is inside, so each day begins with nobody: what sensors missed is forgotten."""
    return F.window("at", "1 day", startTime="4 hours").alias("day")


# Minutes since four o'clock.
MINUTE = "(unix_seconds({at}) - 14400) % 86400 / 60"
# Little's law. Everybody together has spent as many minutes inside as the exits lie after the entrances.
STAYED = f"sum((exited - entered) * ({MINUTE.format(at='at')} + 0.5)) as stayed"
SPENT = f"stayed + (entered - exited) * ({MINUTE.format(at='at')} + 1)"


@app.stream
def zone_minutes(counts: DataFrame, doors: DataFrame) -> DataFrame:
    minute = F.window("at", "1 minute").alias("minute")
    return passages(counts, doors).groupBy(minute, "zone").agg(
        F.sum("entered").alias("entered"), F.sum("exited").alias("exited"))  # fmt: skip


@app.stream(time="at")
def zones(counts: DataFrame, doors: DataFrame, areas: DataFrame) -> DataFrame:
    """Each zone as it is now: in minus out since the day began."""
    sums = passages(counts, doors).groupBy(day(), "zone").agg(
        F.max("at").alias("at"), F.sum("entered").alias("entered"), F.sum("exited").alias("exited"),
        F.expr(STAYED))  # fmt: skip
    now = sums.selectExpr("* except (stayed)", "greatest(entered - exited, 0) as people",
                          f"({SPENT}) / nullif(entered, 0) as stay_minutes")  # fmt: skip
    return now.join(areas, "zone", "left").withColumn("full_percent", F.expr("100D * people / capacity"))


@app.stream
def sensors(counts: DataFrame) -> DataFrame:
    """What each sensor did today: minutes that it counted, and how often it began anew."""
    return once(counts).groupBy(day(), "sensor").agg(
        F.count("*").alias("minutes"), F.expr("count_if(number = 1) as restarts"), F.max("at").alias("at"))  # fmt: skip


# --- what people hear ---

SAFETY, TECHNICIAN = ["+353 20 910 0007"], ["+353 20 910 0008"]
app.alert(
    "full",
    zones,
    when="full_percent >= 95",
    clear="full_percent < 85",
    by="zone",
    to=SAFETY,
    text="{name} is {full_percent:.0f} % full at {at:%H:%M}: {people} of {capacity} {unit}. Let nobody in.",
    resolved="{name} has room again at {at:%H:%M}: {people} of {capacity} {unit}.",
    severity="critical",
)
app.alert(
    "silent",
    counts,
    silent="15 minutes",
    to=TECHNICIAN,
    text="The sensor {sensor} has counted nothing since {at:%H:%M}.",
    resolved="The sensor {sensor} counts again.",
)

# --- what people see ---

TODAY = "from zones where day = (select max(day) from zones)"
ZONES = f"""
    select zone, name, people, capacity, unit, full_percent, stay_minutes, entered, exited {TODAY}
    order by full_percent desc, zone"""
# The newest minute still fills.
SINCE_FOUR = "minute >= date_trunc('day', latest - interval '4 hours') + interval '4 hours' and minute < latest"
BUILDING = f"from zone_minutes where zone = 'building' and {SINCE_FOUR}"
# From minute to minute: in minus out since the day began. Sensors miss some, but nowhere are fewer than nobody.
PEOPLE = f"""
    select minute, zone, greatest(sum(entered - exited) over (partition by zone order by minute), 0) as people
    from zone_minutes where {SINCE_FOUR} and zone not in ('building', 'cars')"""
LATELY = "minute > latest - interval '4 hours' and minute < latest"
FLOW = f"select minute, entered, exited from zone_minutes where zone = 'building' and {LATELY}"
CINEMA = f"select minute, exited from zone_minutes where zone = 'cinema' and {LATELY}"
SENSORS = """
    select sensor, restarts, (select max(minutes) from sensors where day = (select max(day) from sensors)) - minutes
        as silent_minutes, at as last_heard
    from sensors where day = (select max(day) from sensors) and restarts > 0 order by silent_minutes desc, sensor limit 12"""


def one(column: str, zone: str) -> str:
    return f"select max({column}) {TODAY} and zone = '{zone}'"


app.dashboard(
    rr.number("In the building", f"select greatest(sum(entered - exited), 0) {BUILDING}", unit="people", width=3),
    rr.number("Visitors today", f"select sum(entered) {BUILDING}", width=3),
    rr.number("They stay", one("stay_minutes", "building"), unit="minutes", decimals=0, width=2),
    rr.number("Fullest zone", f"select max(full_percent) {TODAY}", unit="%", decimals=0,
              thresholds={"warn": 85, "bad": 95}, width=2),
    rr.number("Free in the car park", one("capacity - people", "cars"), unit="of 1,150", width=2),
    rr.leaderboard("How full", f"select name, full_percent {TODAY} order by full_percent desc, name", by="name",
                   y="full_percent", unit="%", decimals=0, thresholds={"warn": 85, "bad": 95}, width=4, height=5),
    rr.area("People by zone", PEOPLE, x="minute", y="people", by="zone", range="18 hours", width=8, height=5),
    rr.line("Through the doors, a minute", FLOW, x="minute", y=("entered", "exited"), range="4 hours", width=6),
    rr.bar("Out of the cinema, a minute: films end", CINEMA, x="minute", y="exited", range="4 hours", width=6),
    rr.rows("Zones", ZONES, by="zone", width=8),
    rr.rows("Sensors that began anew today", SENSORS, by="sensor", width=4),
    rr.line("{zone}, minute by minute", "zone_minutes", x="minute", y=("entered", "exited"), range="4 hours", when="zone",
            width=12),
    title="The mall",
)  # fmt: skip
