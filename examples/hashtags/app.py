"""Hashtags: what is talked about now, what bursts, and one author counts as one, however often they post."""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import riverrun as rr

app = rr.App("hashtags")


class Post(rr.Event):
    author: str = rr.key()
    post_id: str
    tags: list[str]
    at: datetime = rr.event_time(late="1 minute")


posts = app.topic("posts", Post, partitions=4, retention="30 days")

# More posts than this in a minute are a machine's.
SPAM = 5
# A vote counts half as much after so many minutes.
HALF_LIFE = 5


@app.stream
def author_minutes(posts: DataFrame) -> DataFrame:
    """What each author posts in a minute. A post that comes twice is one."""
    minute = F.window("at", "1 minute").alias("minute")
    sent = F.size(F.collect_set("post_id")).alias("posts")
    tags = F.array_sort(F.array_distinct(F.flatten(F.collect_set("tags")))).alias("tags")
    return posts.groupBy(minute, "author").agg(sent, tags)


@app.stream
def tag_minutes(author_minutes: DataFrame) -> DataFrame:
    """How many authors use each hashtag in a minute, those left out who post like machines."""
    votes = author_minutes.where(f"posts <= {SPAM}").select("minute", F.explode("tags").alias("tag"))
    return votes.groupBy("minute", "tag").agg(F.count("*").alias("authors"))


@app.stream(emit="final")
def trending(posts: DataFrame) -> DataFrame:
    """Every minute, the last quarter of an hour: fresh votes weigh more, and the last minute is held against the others."""
    votes = tag_minutes(author_minutes(posts))
    span = F.window("minute", "15 minutes", "1 minute").alias("span")
    minutes = F.array_sort(F.collect_list(F.struct("minute", "authors"))).alias("minutes")
    age = f"(unix_seconds(span.end) - unix_seconds(m.minute.end)) / 60D / {HALF_LIFE}"
    last = "aggregate(filter(minutes, m -> m.minute.end = span.end), 0L, (sum, m) -> sum + m.authors) as now"
    return (
        votes.groupBy(span, "tag")
        .agg(minutes, F.sum("authors").alias("votes"))
        .selectExpr("span", "tag", f"aggregate(minutes, 0D, (sum, m) -> sum + m.authors * pow(0.5, {age})) as score",
                    "votes", last)
        .selectExpr("*", "(votes - now) / 14D as usual")
        .selectExpr("*", "now / greatest(usual, 1D) as burst")
    )  # fmt: skip


@app.stream
def top_tags(trending: DataFrame) -> DataFrame:
    """The ten hashtags of each quarter of an hour."""
    best = F.sort_array(F.collect_list(F.struct("score", "tag")), asc=False)
    return trending.groupBy("span").agg(F.slice(best, 1, 10).alias("top"))


# --- what people hear ---

EDITORS, MODERATORS = ["+353 20 910 0001"], ["+353 20 910 0002"]
app.alert(
    "burst",
    trending,
    when="now >= 15 and burst >= 5",
    clear="burst < 2",
    by="tag",
    to=EDITORS,
    text="#{tag} bursts: {now} authors in a minute, {usual:.1f} is usual.",
    cooldown="1 hour",
    digest=rr.digest(most=3, within="1 minute"),
)
app.alert(
    "spam",
    author_minutes,
    when=f"posts > {SPAM}",
    by="author",
    to=MODERATORS,
    text="{author} sent {posts} posts in the minute of {minute:%H:%M}. None of them counts.",
    cooldown="1 hour",
    digest=rr.digest(most=3, within="1 minute"),
)

# --- what people see ---

NOW = "from trending where span = latest"
TOP = "(select tag from trending where span = latest order by score desc, tag limit 8)"
BURSTS = """
    select span_end as at, tag, now, usual, burst from trending
    where now >= 15 and burst >= 5 and span > latest - interval '1 hour' order by at desc, burst desc, tag limit 20"""
SPAMMERS = f"""
    select author, sum(posts) as posts, count(*) as minutes from author_minutes
    where posts > {SPAM} and minute > latest - interval '1 hour' group by author order by posts desc, author limit 20"""

app.dashboard(
    rr.number("Votes in a quarter of an hour", f"select sum(votes) {NOW}", width=3),
    rr.number("Hashtags", f"select count(*) {NOW}", width=3),
    rr.number("Highest burst", f"select max(burst) {NOW} and now >= 15", unit="times", decimals=1, width=3),
    rr.number("Posts that do not count", f"select sum(posts) from author_minutes where posts > {SPAM} "
              "and minute > latest - interval '15 minutes'", width=3),
    rr.leaderboard("Trending", f"select tag, score {NOW} order by score desc, tag limit 12", by="tag", decimals=0, width=4),
    rr.line("Authors a minute", f"select minute, tag, authors from tag_minutes where tag in {TOP} "
            "and minute > latest - interval '1 hour'", x="minute", y="authors", by="tag", width=8),
    rr.line("#{tag}: score", "trending", x="span", y="score", when="tag", width=12),
    rr.rows("Bursts", BURSTS, by="tag", width=7),
    rr.rows("Machines", SPAMMERS, by="author", width=5),
    title="Hashtags",
)  # fmt: skip
