"""The source application: a game server that sends every hit of a cup, duel after duel, round after round.

python source.py                        cups of 64 players, ten times faster than life
python source.py --rate 500             500 records a second, whatever their times
python source.py --seed 7 --events 20000

The same seed gives the same cups. A duel lasts five minutes, and on until it is decided; the winner goes on. One player in
two hundred has help that no player should have. One hit in a hundred comes late, one in a hundred twice, and one record in
two thousand is broken.
"""

import heapq
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count

import msgspec
from app import Hit, hits

from riverrun.demo.source_program import run_source

START = datetime(2026, 9, 5, 18, 0, tzinfo=UTC)
LATE, TWICE, BROKEN, CHEATS = 1 / 100, 1 / 100, 1 / 2000, 1 / 200
PLAYERS, POOL = 64, 2000
DUEL, BREAK = timedelta(minutes=5), timedelta(minutes=7)
PREFIX = ["iron", "quiet", "lucky", "night", "paper", "river", "salty", "tiny", "urban", "velvet"]
NAME = ["badger", "comet", "dodo", "ember", "falcon", "goblin", "heron", "ibis", "jackal", "kraken"]


def name_of(number: int) -> str:
    return f"{PREFIX[number % 10]}_{NAME[number // 10 % 10]}_{number // 100}"


def skill_of(player: str, seed: int) -> tuple[float, bool]:
    """Seconds between two hits of a player, and whether somebody helps."""
    chance = random.Random(f"{seed}/player/{player}")
    cheats = chance.random() < CHEATS
    return (1.6 if cheats else max(5.0, chance.gauss(8, 1.2))), cheats


def duel(place: tuple[str, int, int], pair: tuple[str, str], start: datetime, seed: int) -> tuple[list[Hit], str]:
    """The hits of a duel (of a cup, round and number) in their order, and who won."""
    cup, round_no, number = place
    chance = random.Random(f"{seed}/{cup}/{round_no}/{number}")
    made: list[Hit] = []
    totals = dict.fromkeys(pair, 0)
    for player in pair:
        pace, _ = skill_of(player, seed)
        at = start + timedelta(seconds=chance.uniform(0, pace))
        while at < start + DUEL:
            points = chance.choices((10, 15, 25, 50), (60, 20, 15, 5))[0]
            hit_id = f"{cup}/{round_no}/{number}/{player}/{len(made)}"
            made.append(
                Hit(player=player, hit_id=hit_id, cup=cup, round_no=round_no, duel=number, points=points, at=at)
            )
            totals[player] += points
            at += timedelta(milliseconds=round(1000 * chance.uniform(0.4 * pace, 1.6 * pace)))
    if totals[pair[0]] == totals[pair[1]]:
        last = chance.choice(pair)
        at = start + DUEL + timedelta(seconds=chance.uniform(1, 60))
        hit_id = f"{cup}/{round_no}/{number}/{last}/sudden-death"
        made.append(Hit(player=last, hit_id=hit_id, cup=cup, round_no=round_no, duel=number, points=10, at=at))
        totals[last] += 10
    return sorted(made, key=lambda hit: hit.at), max(pair, key=lambda player: totals[player])


def events(seed: int = 1) -> Iterator[Hit | bytes]:
    """What comes in, in the order in which it does, cup after cup without an end. Bytes are records that are no hits."""
    start, order = START, count()
    for number in count(1):
        cup = f"cup-{number:05d}"
        chance = random.Random(f"{seed}/{cup}")
        players = [name_of(each) for each in chance.sample(range(POOL), PLAYERS)]
        round_no = 0
        while len(players) > 1:
            round_no += 1
            due: list[tuple[datetime, int, Hit | bytes]] = []
            winners = []
            for each in range(len(players) // 2):
                pair = (players[2 * each], players[2 * each + 1])
                made, winner = duel((cup, round_no, each + 1), pair, start, seed)
                winners.append(winner)
                for hit in made:
                    # Never later than `late` in app.py allows.
                    wait = timedelta(seconds=chance.uniform(2, 50)) if chance.random() < LATE else timedelta()
                    due.append((hit.at + wait, next(order), hit))
                    if chance.random() < TWICE:
                        due.append((hit.at + wait + timedelta(seconds=chance.uniform(0.1, 5)), next(order), hit))
                    if chance.random() < BROKEN:
                        due.append((hit.at, next(order), _broken(hit, chance)))
            heapq.heapify(due)
            while due:
                yield heapq.heappop(due)[2]
            players, start = winners, start + BREAK
        start += timedelta(minutes=30)


def _broken(hit: Hit, chance: random.Random) -> bytes:
    good = msgspec.json.decode(msgspec.json.encode(hit))
    return chance.choice([
        b"\x00\x01\x02",
        json.dumps(good | {"points": -50}).encode(),
        json.dumps(good | {"points": "lots"}).encode(),
        json.dumps({name: value for name, value in good.items() if name != "player"}).encode(),
        msgspec.json.encode(hit)[:-9],
    ])  # fmt: skip


if __name__ == "__main__":
    run_source(__doc__ or "", hits, events, speed_up=10, what="cups")
