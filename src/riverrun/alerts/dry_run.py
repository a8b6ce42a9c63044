"""A dry run: the same rules over history, with the records' own times as the clock. Nothing is sent or saved."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from riverrun.alerts.channels.contract import DeliveryStatus
from riverrun.alerts.engine import PollResult, RuleEvaluator
from riverrun.alerts.notifications import Notifier
from riverrun.alerts.rules import Rule
from riverrun.alerts.state_topic import AlertState

_DAY_MS = 86_400_000


@dataclass
class DryRunResult:
    """What would have been sent. `sent` is by rule, day (UTC) and kind; `unsent` by rule and reason; `waiting` were held or
    gathering at the end."""

    records: int = 0
    rejected_rows: int = 0
    first: int = -1
    last: int = -1
    sent: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    unsent: Counter[tuple[str, str]] = field(default_factory=Counter)
    waiting: int = 0

    @property
    def messages(self) -> int:
        return self.sent.total()

    def rows(self) -> list[dict[str, Any]]:
        """Rows for a table: one for each rule, day and kind."""
        return [
            {"alert": rule, "day": day, "kind": kind, "messages": count}
            for (rule, day, kind), count in sorted(self.sent.items())
        ]


def dry_run(rules: Sequence[Rule], history: Iterable[PollResult], *, until: int = -1) -> DryRunResult:
    """Evaluate a history. A record counts as read at its Kafka timestamp; after the last one, time passes until `until`.
    Nothing is silenced or acknowledged."""
    result, state = DryRunResult(), AlertState()
    evaluator = RuleEvaluator(rules, state)
    # Long enough to know the longest incident's notifications when it resolves, short enough for a year to fit.
    notifier = Notifier(rules, state, retention_ms=7 * _DAY_MS)
    now = 0
    for polled in history:
        for moment, effects in evaluator.evaluate_timed(polled.records, polled.lagging):
            now = max(now, moment)
            result.first = now if result.first < 0 else result.first
            _pass_time(notifier, now, result)
            for effect in [*evaluator.sweep(now, state.incidents), *effects]:
                notifier.handle(effect, now)
            _send(notifier, now, result)
            notifier.drain()
        evaluator.drain()
        result.records += len(polled.records)
    _pass_time(notifier, max(now, until), result)
    result.last = now
    result.rejected_rows = evaluator.counts.rejected_rows
    waiting = [
        notification for notification in state.notifications.values() if notification.stage in ("held", "gathering")
    ]
    result.waiting = len(waiting)
    result.unsent.update(notifier.unsent_counts)
    return result


def _pass_time(notifier: Notifier, now: int, result: DryRunResult) -> None:
    for moment in notifier.tick_until(now):
        _send(notifier, moment, result)


def _send(notifier: Notifier, now: int, result: DryRunResult) -> None:
    notifier.mark_committed()
    # A "resolved" message follows its "fired" one at once: here every message is accepted as soon as it is due.
    while due := notifier.due(now):
        for message, _ in due:
            notification = notifier.state.notifications[message.id]
            day = datetime.fromtimestamp(now / 1000, UTC).date().isoformat()
            result.sent[notification.rule, day, notification.kind] += 1
        notifier.apply_deliveries({message.id: DeliveryStatus(state="sent", updated_at=now) for message, _ in due})
