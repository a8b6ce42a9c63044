"""The same figures in plain Python, from the same deliveries: what the pipeline and its page are held against.

python figures.py --seed 1 --events 50000        compare with what is in the project's Kafka, after source.py sent the same
"""

import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from app import Delivery
from source import events

from riverrun.demo.comparison import StreamCheck, compare

Ball = tuple[str, int, int, int]
Innings = tuple[str, int]


@dataclass
class Figures:
    """What deliveries come to. Of several versions of a ball the highest counts."""

    balls: dict[Ball, Delivery] = field(default_factory=dict)

    def add(self, deliveries: Iterable[Delivery]) -> "Figures":
        for delivery in deliveries:
            ball = (delivery.match_id, delivery.innings, delivery.over_no, delivery.ball_no)
            if ball not in self.balls or self.balls[ball].version < delivery.version:
                self.balls[ball] = delivery
        return self

    def innings(self) -> dict[Innings, list[Delivery]]:
        """The balls of every innings, in their order."""
        found: dict[Innings, list[Delivery]] = defaultdict(list)
        for ball in sorted(self.balls):
            found[ball[:2]].append(self.balls[ball])
        return dict(found)

    def scoreboard(self) -> dict[str, dict[str, Any]]:
        """By match: the innings that is on, and what is needed."""
        innings, found = self.innings(), {}
        for match_id in {match_id for match_id, _ in innings}:
            first, second = innings.get((match_id, 1), []), innings.get((match_id, 2), [])
            now = second or first
            runs, wickets, balls = _runs(now), sum(bool(each.wicket) for each in now), sum(map(_legal, now))
            row: dict[str, Any] = {
                "innings": now[-1].innings, "batting": now[-1].batting, "bowling": now[-1].bowling, "runs": runs,
                "wickets": wickets, "balls": balls, "run_rate": runs * 6 / balls if balls else None, "result": "",
            } | dict.fromkeys(("target", "needed", "balls_left", "required_rate"))  # fmt: skip
            if second:
                row |= _chase(_runs(first) + 1, row)
            found[match_id] = row
        return found

    def batting(self, match_id: str) -> dict[tuple[int, str], tuple[Any, ...]]:
        """Innings and batter, of all who have been in: runs, balls, fours, sixes, how out."""
        found = {}
        for (match, number), balls in self.innings().items():
            for batter in {who for ball in balls if match == match_id for who in (ball.striker, ball.partner)}:
                faced = [ball for ball in balls if ball.striker == batter]
                out = [ball.wicket for ball in balls if ball.wicket and ball.dismissed == batter]
                runs = [each.runs for each in faced]
                balls_faced = sum(each.extra != "wide" for each in faced)
                how = max(out, default="not out")
                found[number, batter] = (sum(runs), balls_faced, runs.count(4), runs.count(6), how)
        return found

    def bowling(self, match_id: str) -> dict[tuple[int, str], tuple[Any, ...]]:
        """Innings and bowler: overs, maidens, runs, wickets."""
        found = {}
        for (match, number), balls in self.innings().items():
            for bowler in {ball.bowler for ball in balls if match == match_id}:
                overs: dict[int, list[Delivery]] = defaultdict(list)
                for ball in balls:
                    if ball.bowler == bowler:
                        overs[ball.over_no].append(ball)
                bowled = [each for over in overs.values() for each in over]
                legal = sum(map(_legal, bowled))
                maidens = sum(sum(map(_legal, each)) == 6 and _conceded(each) == 0 for each in overs.values())
                wickets = sum(each.wicket not in ("", "run out") for each in bowled)
                found[number, bowler] = (f"{legal // 6}.{legal % 6}", maidens, _conceded(bowled), wickets)
        return found

    def partnerships(self, match_id: str) -> dict[tuple[int, int], tuple[int, int]]:
        """Innings and wicket: the runs of the pair that it ended, or that is in; and their balls."""
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for (match, number), balls in self.innings().items():
            down = 0
            for ball in balls if match == match_id else []:
                runs, faced = found.get((number, down + 1), (0, 0))
                found[number, down + 1] = (runs + ball.runs + ball.extras, faced + _legal(ball))
                down += bool(ball.wicket)
        return found

    def fall(self, match_id: str) -> list[tuple[int, int, int, str]]:
        """Innings, wicket, the score at which it fell, and who."""
        found = []
        for (match, number), balls in self.innings().items():
            score = down = 0
            for ball in balls if match == match_id else []:
                score += ball.runs + ball.extras
                if ball.wicket:
                    down += 1
                    found.append((number, down, score, ball.dismissed))
        return found

    def chases(self) -> dict[int, tuple[int, float]]:
        """Of the matches that are over: runs an over that were needed when ten overs were left, how many, how many won."""
        outcomes: dict[int, list[bool]] = defaultdict(list)
        innings, board = self.innings(), self.scoreboard()
        for (match_id, number), balls in innings.items():
            row = board[match_id]
            if number == 2 and row["result"] and balls[-1].over_no > 10 and (match_id, 1) in innings:
                ten = _runs([ball for ball in balls if ball.over_no <= 10])
                outcomes[(row["target"] - ten) // 10].append(row["needed"] == 0)
        return {rate: (len(each), sum(each) / len(each)) for rate, each in outcomes.items()}


def _runs(balls: Iterable[Delivery]) -> int:
    return sum(ball.runs + ball.extras for ball in balls)


def _legal(ball: Delivery) -> bool:
    return ball.extra not in ("wide", "no-ball")


def _conceded(balls: Iterable[Delivery]) -> int:
    return sum(ball.runs + (ball.extras if not _legal(ball) else 0) for ball in balls)


def _chase(target: int, row: dict[str, Any]) -> dict[str, Any]:
    needed, left = max(target - row["runs"], 0), 120 - row["balls"]
    over = row["wickets"] >= 10 or left <= 0
    result = ""
    if not needed:
        result = f"{row['batting']} won by {_many(10 - row['wickets'], 'wicket')}"
    elif over:
        result = "tied" if needed == 1 else f"{row['bowling']} won by {_many(needed - 1, 'run')}"
    rate = needed * 6 / left if left > 0 else None
    return {"target": target, "needed": needed, "balls_left": left, "required_rate": rate, "result": result}


def _many(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)


# --- comparing ---

SCORE = ("innings", "batting", "runs", "wickets", "balls", "run_rate", "target", "needed", "balls_left", "required_rate",
         "result")  # fmt: skip
SAID = ("version", "striker", "bowler", "runs", "extras", "wicket", "dismissed", "at")


def _boards(good: Iterable[Delivery]) -> dict[str, tuple[Any, ...]]:
    board = Figures().add(good).scoreboard()
    return {match_id: tuple(row[name] for name in SCORE) for match_id, row in board.items()}


def _said(good: Iterable[Delivery]) -> dict[Ball, tuple[Any, ...]]:
    balls = Figures().add(good).balls
    return {ball: tuple(getattr(each, name) for name in SAID) for ball, each in balls.items()}


CHECKS = (
    StreamCheck("scoreboard", ("match_id",), SCORE, _boards),
    StreamCheck("balls", ("match_id", "innings", "over_no", "ball_no"), SAID, _said),
)


if __name__ == "__main__":
    sys.exit(compare(__doc__ or "", events, Delivery, CHECKS))
