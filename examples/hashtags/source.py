"""The source application: posts with hashtags, as people and a few machines write them.

python source.py                        a minute of theirs in six seconds
python source.py --rate 500             500 records a second, whatever their times
python source.py --seed 7 --events 20000

The same seed gives the same days. Few hashtags have most of the posts; nights are quieter; about every twenty minutes one
bursts, as after a goal; machines post the same hashtag forty times a minute. One post in two hundred comes late, one in two
hundred twice, one in two thousand is broken.
"""

import heapq
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate, count

import msgspec
from app import Post, posts

from riverrun.demo.source_program import run_source

START = datetime(2026, 6, 1, 17, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LATE, TWICE, BROKEN = 1 / 200, 1 / 200, 1 / 2000
PER_MINUTE, TAGS, AUTHORS = 1200, 300, 20_000
FIRST = [
    "river",
    "city",
    "night",
    "goal",
    "rain",
    "train",
    "vote",
    "music",
    "heat",
    "film",
    "code",
    "sea",
    "bread",
    "match",
]
LAST = [
    "now",
    "live",
    "day",
    "week",
    "talk",
    "watch",
    "news",
    "2026",
    "talks",
    "people",
    "fans",
    "time",
    "dublin",
    "loop",
]
WORDS = [first + last for last in LAST for first in FIRST] + [
    f"{word}{number}" for number in range(2, 12) for word in FIRST
]


@dataclass(frozen=True)
class Burst:
    """A hashtag that all at once is everywhere, and is forgotten as fast."""

    tag: str
    began: int
    authors: float

    def at(self, minute: int) -> float:
        age = minute - self.began
        return self.authors * math.exp(-age / 6) if 0 <= age < 40 else 0.0


def busy(at: datetime) -> float:
    """How many are awake: most at eight in the evening, few at five."""
    return 0.35 + 0.65 * (0.5 + 0.5 * math.cos((at.hour + at.minute / 60 - 20) * math.pi / 12))


def minute_of(number: int, seed: int, per_minute: int = PER_MINUTE) -> Iterator[Post]:
    """The posts of one minute, as they were written."""
    chance = random.Random(f"{seed}/minute/{number}")
    begin = START + number * MINUTE
    ids = (f"{number}-{each}" for each in count())

    def post(author: str, *tags: str) -> Post:
        at = begin + timedelta(milliseconds=chance.randrange(60_000))
        return Post(author=author, post_id=next(ids), tags=list(dict.fromkeys(tags)), at=at)

    for _ in range(round(per_minute * busy(begin))):
        tags = chance.choices(WORDS[:TAGS], cum_weights=_WEIGHTS, k=chance.choices((0, 1, 2, 3), (10, 60, 22, 8))[0])
        yield post(_author(chance), *tags)
    for burst in bursts(number, seed):
        for _ in range(round(burst.at(number) * per_minute / PER_MINUTE)):
            yield post(_author(chance), burst.tag)
    for machine in range(3):
        bot = random.Random(f"{seed}/machine/{machine}/{number // 10}")
        if bot.random() < 0.5:
            for _ in range(40):
                yield post(f"deals_{machine}_{number // 10 % 7}", f"win{bot.randrange(5)}", WORDS[bot.randrange(20)])


_WEIGHTS = list(accumulate(1 / (rank + 3) for rank in range(TAGS)))


def _author(chance: random.Random) -> str:
    """Some write a lot, most write little."""
    return f"user_{int(AUTHORS * chance.random() ** 1.5):05d}"


def bursts(minute: int, seed: int) -> Iterator[Burst]:
    """Those that go on in a minute: one begins in every twenty."""
    for turn in range(max(0, minute // 20 - 2), minute // 20 + 1):
        chance = random.Random(f"{seed}/burst/{turn}")
        yield Burst(WORDS[chance.randrange(60, TAGS)], turn * 20 + chance.randrange(5, 20), chance.uniform(60, 200))


def events(seed: int = 1, per_minute: int = PER_MINUTE) -> Iterator[Post | bytes]:
    """What comes in, in the order in which it does, without an end. Bytes are records that are no posts."""
    order = count()
    due: list[tuple[datetime, int, Post | bytes]] = []
    for number in count():
        chance = random.Random(f"{seed}/way/{number}")
        for post in minute_of(number, seed, per_minute):
            # Never later than `late` in app.py allows.
            wait = timedelta(seconds=chance.uniform(3, 55)) if chance.random() < LATE else timedelta()
            due.append((post.at + wait, next(order), post))
            if chance.random() < TWICE:
                due.append((post.at + wait + timedelta(seconds=chance.uniform(0.1, 1)), next(order), post))
            if chance.random() < BROKEN:
                due.append((post.at, next(order), _broken(post, chance)))
        heapq.heapify(due)
        while due and due[0][0] < START + (number + 1) * MINUTE:
            yield heapq.heappop(due)[2]


def _broken(post: Post, chance: random.Random) -> bytes:
    good = msgspec.json.decode(msgspec.json.encode(post))
    return chance.choice([
        b"<html><body>502 Bad Gateway</body></html>",
        json.dumps(good | {"tags": "river,city"}).encode(),
        json.dumps(good | {"at": "just now"}).encode(),
        json.dumps({name: value for name, value in good.items() if name != "author"}).encode(),
        msgspec.json.encode(post)[:-9],
    ])  # fmt: skip


if __name__ == "__main__":
    run_source(__doc__ or "", posts, events, speed_up=10, what="posts")
