"""What only history answers: who had it first? The author of the first post of every hashtag that became large, and how long
it took to its highest minute.

riverrun run history.py --speed batch
riverrun query "select * from firsts order by authors desc"
"""

from app import Post

import riverrun as rr

app = rr.App("hashtags_history")
app.topic("posts", Post, partitions=4, retention="30 days")

FIRSTS = """
    with votes as (select distinct explode(tags) as tag, author, date_trunc('minute', at) as minute from posts),
    minutes as (select tag, minute, count(*) as authors from votes group by tag, minute),
    peaks as (select tag, min_by(minute, struct(-authors, minute)) as peak, max(authors) as most from minutes group by tag),
    whole as (
        select tag, min_by(author, struct(at, author)) as first_author, min(at) as began, count(distinct author) as authors
        from (select explode(tags) as tag, author, at from posts) group by tag)
    select tag, authors, first_author, began, most, peak, timestampdiff(minute, date_trunc('minute', began), peak) as minutes
    from whole join peaks using (tag) where authors >= 50"""
app.sql("firsts", FIRSTS, key="tag", time="began", speed="batch")

app.dashboard(
    rr.rows("Who had it first", "select * from firsts order by authors desc, tag limit 50", by="tag", width=12),
    title="Firsts",
)
