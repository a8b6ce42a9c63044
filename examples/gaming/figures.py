"""The same figures in plain Python, from the same hits: what the pipeline and its page are held against.

python figures.py --seed 1 --events 50000        compare with what is in the project's Kafka, after source.py sent the same
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from statistics import median

from app import Hit
from source import events

from riverrun.demo.comparison import StreamCheck, compare

GAP, HALF = timedelta(minutes=10), timedelta(seconds=150)


class Figures:
    """What hits come to. A hit that came twice is one."""

    def __init__(self, hits: Iterable[Hit]) -> None:
        self.hits = sorted({each.hit_id: each for each in hits}.values(), key=lambda hit: hit.at)

    def standings(self) -> dict[tuple[str, str], tuple[int, int]]:
        """By cup and player: points, and the round they reached."""
        points: Counter[tuple[str, str]] = Counter()
        reached: dict[tuple[str, str], int] = {}
        for hit in self.hits:
            points[hit.cup, hit.player] += hit.points
            reached[hit.cup, hit.player] = max(reached.get((hit.cup, hit.player), 0), hit.round_no)
        return {key: (points[key], reached[key]) for key in points}

    def places(self, cup: str) -> list[tuple[int, str, int]]:
        """Place, player and points; who has as many points has the same place, and the next one is left out."""
        points = {player: made for (each, player), (made, _) in self.standings().items() if each == cup}
        ordered = sorted(points, key=lambda player: (-points[player], player))
        return [
            (1 + sum(point > points[player] for point in points.values()), player, points[player]) for player in ordered
        ]

    def duels(self) -> dict[tuple[str, int, int, str], int]:
        found: Counter[tuple[str, int, int, str]] = Counter()
        for hit in self.hits:
            found[hit.cup, hit.round_no, hit.duel, hit.player] += hit.points
        return dict(found)

    def sessions(self) -> dict[tuple[str, datetime], tuple[datetime, int, int]]:
        """By player and when it began: when the last hit was, points, hits."""
        found: dict[tuple[str, datetime], tuple[datetime, int, int]] = {}
        opened: dict[str, datetime] = {}
        for hit in self.hits:
            began = opened.get(hit.player)
            if began is None or hit.at - found[hit.player, began][0] >= GAP:
                began = opened[hit.player] = hit.at
            _, points, number = found.get((hit.player, began), (hit.at, 0, 0))
            found[hit.player, began] = (hit.at, points + hit.points, number + 1)
        return found

    def outliers(self) -> dict[tuple[datetime, str], tuple[int, float]]:
        """By minute and player: points, and what the player in the middle made."""
        minutes: dict[datetime, Counter[str]] = defaultdict(Counter)
        for hit in self.hits:
            minutes[hit.at.replace(second=0, microsecond=0)][hit.player] += hit.points
        found = {}
        for minute, players in minutes.items():
            usual = median(players.values())
            if len(players) >= 20:
                found |= {(minute, player): (made, usual) for player, made in players.items() if made > 3 * usual}
        return found

    def leads(self) -> dict[int, tuple[int, float]]:
        """By the lead at half-time, in steps of 50: how many duels, and the share that the leader won."""
        sides: dict[tuple[str, int, int], list[Hit]] = defaultdict(list)
        for each in self.hits:
            sides[each.cup, each.round_no, each.duel].append(each)
        outcomes: dict[int, list[bool]] = defaultdict(list)
        for made in sides.values():
            half, whole = Counter[str](), Counter[str]()
            for each in made:
                whole[each.player] += each.points
                half[each.player] += each.points if each.at < made[0].at + HALF else 0
            if len(whole) == 2 and len({*half.values()}) == 2 and len({*whole.values()}) == 2:
                lead = max(half.values()) - min(half.values())
                outcomes[lead // 50 * 50].append(max(half, key=half.__getitem__) == max(whole, key=whole.__getitem__))
        return {lead: (len(each), sum(each) / len(each)) for lead, each in outcomes.items()}


# --- comparing ---

CHECKS = (
    StreamCheck("standings", ("cup", "player"), ("points", "reached"), lambda good: Figures(good).standings()),
    StreamCheck("duels", ("cup", "round_no", "duel", "player"), ("points",), lambda good: Figures(good).duels()),
    StreamCheck("sessions", ("player", "began"), ("ended", "points", "hits"), lambda good: Figures(good).sessions(),
          final="ended"),
    StreamCheck("outliers", ("minute.start", "player"), ("points", "usual"), lambda good: Figures(good).outliers(),
          final="minute.start"),
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(compare(__doc__ or "", events, Hit, CHECKS))
