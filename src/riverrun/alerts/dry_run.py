"""A dry run: the same rules over history, with the records' own times as the clock. Nothing is sent, and nothing kept."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from riverrun.alerts.channels.contract import Delivery
from riverrun.alerts.engine import Arrived, Watch
from riverrun.alerts.ledger import Ledger
from riverrun.alerts.manners import Desk
from riverrun.alerts.rules import Rule

_DAY_MS = 86_400_000


@dataclass
class DryRun:
    """What would have been. `sent` is by rule, day (UTC) and kind; `unsent` by rule and why not; `waiting` were held or
    gathered at the end."""

    records: int = 0
    misfits: int = 0
    first: int = -1
    last: int = -1
    sent: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    unsent: Counter[tuple[str, str]] = field(default_factory=Counter)
    waiting: int = 0

    @property
    def messages(self) -> int:
        return self.sent.total()

    def rows(self) -> list[dict[str, Any]]:
        """For a table: one row for each rule, day and kind."""
        return [
            {"alert": rule, "day": day, "kind": kind, "messages": count}
            for (rule, day, kind), count in sorted(self.sent.items())
        ]


def dry_run(rules: Sequence[Rule], history: Iterable[Arrived], *, until: int = -1) -> DryRun:
    """Judge a history. A record's own Kafka time is the moment at which it would have been read; after the last one, time
    passes until `until`. Nobody silences and nobody acknowledges."""
    found, ledger = DryRun(), Ledger()
    watch = Watch(rules, ledger)
    # Long enough for the longest episode's letters to be known when it is over, short enough for a year to fit.
    desk = Desk(rules, ledger, keep_ms=7 * _DAY_MS)
    now = 0
    for arrived in history:
        for moment, effects in watch.timed(arrived.records, arrived.behind):
            now = max(now, moment)
            found.first = now if found.first < 0 else found.first
            _pass_time(desk, now, found)
            for effect in [*watch.sweep(now, ledger.cases), *effects]:
                desk.take(effect, now)
            _send(desk, now, found)
            desk.drain()
        watch.drain()
        found.records += len(arrived.records)
    _pass_time(desk, max(now, until), found)
    found.last = now
    found.misfits = watch.counts.misfits
    waiting = [each for each in ledger.letters.values() if each.stage in ("held", "gathering")]
    found.waiting = len(waiting)
    found.unsent.update(desk.ended)
    return found


def _pass_time(desk: Desk, now: int, found: DryRun) -> None:
    for moment in desk.moments(now):
        _send(desk, moment, found)


def _send(desk: Desk, now: int, found: DryRun) -> None:
    desk.published()
    # That something is over follows at once: here every message is taken as soon as it is due.
    while due := desk.due(now):
        for message, _ in due:
            letter = desk.ledger.letters[message.id]
            day = datetime.fromtimestamp(now / 1000, UTC).date().isoformat()
            found.sent[letter.rule, day, letter.kind] += 1
        desk.moved({message.id: Delivery(state="sent", at=now) for message, _ in due})
