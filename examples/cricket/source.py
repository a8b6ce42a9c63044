"""The source application: scorers of Twenty20 matches send every ball to Kafka, and correct what was wrong.

python source.py                        four matches at a time, sixty times faster than life
python source.py --rate 500             500 records a second, whatever their times
python source.py --seed 7 --events 20000

The same seed gives the same season. A scorer errs in one ball of forty and sends it again with the next version, soon or
some overs later; one record in a hundred comes late, one in two hundred twice, and one in two thousand is broken.
"""

import heapq
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count

import msgspec
from app import Delivery, deliveries

from riverrun.demo.source_program import run_source

START = datetime(2026, 4, 1, 14, 0, tzinfo=UTC)
AT_ONCE = 4
WRONG, LATE, TWICE, BROKEN = 1 / 40, 1 / 100, 1 / 200, 1 / 2000
BALLS, WICKETS = 120, 10
TEAMS = [
    "Anna Livia",
    "Bengal Tides",
    "Cape Gulls",
    "Deccan Kites",
    "Eden Larks",
    "Fremantle Docks",
    "Galle Forts",
    "Hobart Pines",
]
NAMES = ["Abbas", "Bhatt", "Cole", "Dube", "Easwaran", "Flynn", "Gomez", "Haider", "Imran", "Joshi", "Kane"]
OUTCOMES = {(0, ""): 33, (1, ""): 35, (2, ""): 7, (3, ""): 0.5, (4, ""): 11, (6, ""): 5.5, (1, "wide"): 3.5,
            (1, "no-ball"): 0.6, (1, "bye"): 0.8, (1, "leg-bye"): 1.6}  # fmt: skip
DISMISSALS = {"caught": 60, "bowled": 18, "lbw": 9, "run out": 9, "stumped": 4}


@dataclass
class Side:
    """A team at the crease: who faces, who waits at the other end, who is next."""

    team: str
    players: list[str] = field(default_factory=list)
    runs: int = 0
    wickets: int = 0

    def __post_init__(self) -> None:
        self.players = [f"{name} ({self.team})" for name in NAMES]
        self.striker, self.partner = self.players[0], self.players[1]

    def swap(self) -> None:
        self.striker, self.partner = self.partner, self.striker

    def lose(self, player: str) -> None:
        self.wickets += 1
        if self.wickets < WICKETS:
            new = self.players[self.wickets + 1]
            self.striker, self.partner = (new, self.partner) if player == self.striker else (self.striker, new)


def match(match_id: str, teams: tuple[str, str], start: datetime, chance: random.Random) -> Iterator[Delivery]:
    """The balls of a match as they truly were."""
    at, target = start, 10**6
    for innings, (batting, bowling) in enumerate((teams, teams[::-1]), 1):
        side, bowlers = Side(batting), Side(bowling).players[-5:]
        over, legal, number = 1, 0, 0
        while side.wickets < WICKETS and legal < BALLS and side.runs < target:
            number += 1
            at += timedelta(seconds=chance.randrange(28, 45))
            ball = Delivery(
                match_id=match_id, innings=innings, over_no=over, ball_no=number, version=1, batting=batting,
                bowling=bowling, striker=side.striker, partner=side.partner, bowler=bowlers[over % 5], at=at,
                **_outcome(side, chance),
            )  # fmt: skip
            yield ball
            side.runs += ball.runs + ball.extras
            legal += (counts := ball.extra not in ("wide", "no-ball"))
            if ball.wicket:
                side.lose(ball.dismissed)
            elif (ball.runs + ball.extras - (not counts)) % 2:
                side.swap()
            if counts and legal % 6 == 0:
                over, number = over + 1, 0
                side.swap()
        at, target = at + timedelta(minutes=15), side.runs + 1


def _outcome(side: Side, chance: random.Random) -> dict[str, object]:
    if chance.random() < 0.052:
        how = chance.choices(list(DISMISSALS), list(DISMISSALS.values()))[0]
        return {
            "wicket": how,
            "dismissed": side.partner if how == "run out" and chance.random() < 0.5 else side.striker,
        }
    runs, extra = chance.choices(list(OUTCOMES), list(OUTCOMES.values()))[0]
    return {"extras": runs, "extra": extra} if extra else {"runs": runs}


def said(ball: Delivery, chance: random.Random) -> Iterator[tuple[timedelta, Delivery]]:
    """What the scorer sends of a ball, and how long after it: at times something wrong first, and then a correction."""
    wait = timedelta(seconds=chance.randrange(60, 900)) if chance.random() < LATE else timedelta()
    if chance.random() >= WRONG:
        yield wait, ball
        return
    wrongs = 2 if chance.random() < 0.1 else 1
    for version in range(1, wrongs + 1):
        yield wait, msgspec.structs.replace(_mistaken(ball, chance), version=version)
        wait += timedelta(seconds=chance.choice((20, 25, 90, 300, 700)))
    yield wait, msgspec.structs.replace(ball, version=wrongs + 1)


def _mistaken(ball: Delivery, chance: random.Random) -> Delivery:
    if ball.wicket:  # not seen, or not given
        return msgspec.structs.replace(ball, wicket="", dismissed="")
    if ball.extra:  # off the bat, the scorer thought
        return msgspec.structs.replace(ball, runs=ball.extras, extras=0, extra="")
    if chance.random() < 0.3:  # given, and overturned on review
        return msgspec.structs.replace(ball, runs=0, wicket="lbw", dismissed=ball.striker)
    return msgspec.structs.replace(ball, runs={4: 6, 6: 4, 1: 2, 2: 1, 3: 2, 0: 1}[ball.runs])


def _broken(ball: Delivery, chance: random.Random) -> bytes:
    good = msgspec.json.decode(msgspec.json.encode(ball))
    return chance.choice([
        b"ball;;" + ball.striker.encode(),
        json.dumps(good | {"runs": 17}).encode(),
        json.dumps(good | {"wicket": "asleep"}).encode(),
        json.dumps({name: value for name, value in good.items() if name != "over_no"}).encode(),
        msgspec.json.encode(ball)[:-9],
    ])  # fmt: skip


def events(seed: int = 1) -> Iterator[Delivery | bytes]:
    """What the scorers send, in the order in which it comes: a season without an end, four matches at a time. Bytes are
    records that are no deliveries."""
    numbers, rounds, start = count(1), count(), START
    while True:
        due: list[tuple[datetime, int, Delivery | bytes]] = []
        ends, order = start, count()
        for _ in range(AT_ONCE):
            number = next(numbers)
            chance = random.Random(f"{seed}/match/{number}")
            teams = chance.sample(TEAMS, 2)
            began = start + timedelta(minutes=chance.randrange(0, 30))
            for ball in match(f"match-{number:05d}", (teams[0], teams[1]), began, chance):
                for wait, sent in said(ball, chance):
                    due.append((ball.at + wait, next(order), sent))
                    if chance.random() < TWICE:
                        due.append((ball.at + wait + timedelta(seconds=chance.randrange(1, 600)), next(order), sent))
                if chance.random() < BROKEN:
                    due.append((ball.at, next(order), _broken(ball, chance)))
                ends = max(ends, ball.at)
        heapq.heapify(due)
        while due:
            yield heapq.heappop(due)[2]
        # Two rounds a day.
        start = (
            ends + timedelta(hours=1)
            if next(rounds) % 2 == 0
            else (ends + timedelta(days=1)).replace(hour=14, minute=0)
        )


if __name__ == "__main__":
    run_source(__doc__ or "", deliveries, events, speed_up=60, what="matches")
