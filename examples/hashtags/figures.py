"""The same figures in plain Python, from the same posts: what the pipeline is held against.

python figures.py --seed 1 --events 50000        compare with what is in the project's Kafka, after source.py sent the same
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from app import Post
from source import events

from riverrun.demo.comparison import StreamCheck, compare

MINUTE = timedelta(minutes=1)
MOST, HALF_LIFE = 5, 5


def _minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)


class Figures:
    """What posts come to: a post counts once by its id, an author once in a minute, and a machine not at all."""

    def __init__(self, posts: Iterable[Post]) -> None:
        self.posts = list({post.post_id: post for post in posts}.values())

    def author_minutes(self) -> dict[tuple[datetime, str], tuple[int, list[str]]]:
        found: dict[tuple[datetime, str], list[Post]] = defaultdict(list)
        for post in self.posts:
            found[_minute(post.at), post.author].append(post)
        return {key: (len(posts), sorted({tag for post in posts for tag in post.tags})) for key, posts in found.items()}

    def tag_minutes(self) -> dict[tuple[datetime, str], int]:
        found: Counter[tuple[datetime, str]] = Counter()
        for (minute, _), (number, tags) in self.author_minutes().items():
            if number <= MOST:
                found.update((minute, tag) for tag in tags)
        return dict(found)

    def trending(self) -> dict[tuple[datetime, str], tuple[float, int, int, float, float]]:
        """By the end of a span and the hashtag: score, votes, those of the last minute, as usual, how many times that."""
        spans: dict[tuple[datetime, str], list[tuple[datetime, int]]] = defaultdict(list)
        for (minute, tag), authors in self.tag_minutes().items():
            for later in range(15):
                spans[minute + MINUTE + later * MINUTE, tag].append((minute + MINUTE, authors))
        found = {}
        for (end, tag), minutes in spans.items():
            votes = sum(authors for _, authors in minutes)
            now = sum(authors for minute, authors in minutes if minute == end)
            score = sum(authors * 0.5 ** ((end - minute) / MINUTE / HALF_LIFE) for minute, authors in minutes)
            usual = (votes - now) / 14
            found[end, tag] = (score, votes, now, usual, now / max(usual, 1.0))
        return found

    def firsts(self) -> dict[str, tuple[Any, ...]]:
        """By hashtag: authors in all, who was first and when, the highest minute and when it was."""
        used: dict[str, list[Post]] = defaultdict(list)
        for each in self.posts:
            for tag in each.tags:
                used[tag].append(each)
        found = {}
        for tag, posts in used.items():
            minutes: Counter[datetime] = Counter(
                minute for minute, _ in {(_minute(post.at), post.author) for post in posts}
            )
            first = min(posts, key=lambda each: (each.at, each.author))
            peak = min(minutes, key=lambda minute: (-minutes[minute], minute))
            authors = len({post.author for post in posts})
            if authors >= 50:
                found[tag] = (authors, first.author, first.at, minutes[peak], peak)
        return found


# --- comparing ---

CHECKS = (
    StreamCheck("author_minutes", ("minute.start", "author"), ("posts", "tags"),
                lambda good: Figures(good).author_minutes()),
    StreamCheck("tag_minutes", ("minute.start", "tag"), ("authors",), lambda good: Figures(good).tag_minutes(),
                final="minute.start"),
    StreamCheck("trending", ("span.end", "tag"), ("score", "votes", "now", "usual", "burst"),
                lambda good: Figures(good).trending(), final="span.end"),
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(compare(__doc__ or "", events, Post, CHECKS))
