"""Alerts in a test: the app's own rules over the rows of a `StreamTest`, with event time as the clock. Nothing is sent.

Between two rows the clock stops at every time something is due (the end of quiet hours, a digest, an escalation, a key
that was silent for too long), as it would while the process runs.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from riverrun.alerts.channels.contract import DeliveryStatus
from riverrun.alerts.engine import InputRecord, RuleEvaluator
from riverrun.alerts.incidents import NEVER, IncidentEvent
from riverrun.alerts.notifications import Notifier
from riverrun.alerts.rows import RejectedRowError, RowReader
from riverrun.alerts.rules import Rule
from riverrun.alerts.state_topic import Ack, AlertState, Notification, NotificationKind, Silence
from riverrun.errors import UsageError
from riverrun.model.positions import epoch_ms
from riverrun.model.suggest import nearest
from riverrun.model.table import RECORD_TIME
from riverrun.testing.topics import SentRecord

_TEST_USER = "the test"


@dataclass(frozen=True)
class AlertNotification:
    """A notification of an alert. `stage` is "sent"; else "held", "gathering" or "listed" (for, or in, a digest),
    "silenced", "dropped" or "cancelled" (quiet hours), "expired", "refused" (nobody to send it to), with the reason in
    `note`. `at` is when it was sent, or when it was created if it was not sent."""

    alert: str
    kind: NotificationKind
    key: str
    receiver: str
    text: str
    at: datetime
    stage: str = "sent"
    note: str = ""


class AlertSimulator:
    """Evaluates the app's alert rules over the steps of a test, one after another."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._readers = {rule.table.topic: RowReader(rule.table) for rule in rules}
        self._ledger = AlertState()
        self._watch = RuleEvaluator(rules, self._ledger)
        self._notifier = Notifier(rules, self._ledger, retention_ms=NEVER)
        self._offsets: Counter[str] = Counter()
        self._sent_at: dict[str, int] = {}
        self._now = -1
        self.topics = sorted(self._readers)
        self.steps_done = 0

    def step(
        self,
        records: Mapping[str, Sequence[SentRecord]],
        reached: Mapping[str, datetime | None],
        times: Iterable[datetime],
    ) -> None:
        """Process the records of each topic, then advance each topic to its time, and the clock to the latest of `times`."""
        for record in self._sorted_records(records):
            self._process_record(record)
        timeouts = [(at, effects) for topic, to in reached.items() if to for at, effects in self._advance(topic, to)]
        for at, effects in sorted(timeouts, key=lambda timeout: timeout[0]):
            self._pass_time(at)
            self._apply_effects(effects)
        self._pass_time(max(map(epoch_ms, times), default=-1))
        self.steps_done += 1

    def _advance(self, topic: str, to: datetime) -> Iterator[tuple[int, list[IncidentEvent]]]:
        return self._watch.advance_time(topic, epoch_ms(to))

    def _sorted_records(self, records: Mapping[str, Sequence[SentRecord]]) -> Iterator[SentRecord]:
        """Records by time across topics, and within each topic in the order they were sent."""

        def marked(topic_records: Sequence[SentRecord]) -> Iterator[tuple[int, SentRecord]]:
            newest_ms = -1
            for record in topic_records:
                newest_ms = max(newest_ms, self._time_of(record))
                yield newest_ms, record

        return (record for _, record in heapq.merge(*map(marked, records.values()), key=lambda mark: mark[0]))

    def _time_of(self, record: SentRecord) -> int:
        """The event time of a record's row; -1 if the record is not a row."""
        try:
            return self._readers[record.topic].read(0, 0, epoch_ms(record.at), record.value or b"").event_time
        except RejectedRowError:
            return -1

    def _process_record(self, record: SentRecord) -> None:
        at = self._time_of(record)
        self._pass_time(at)
        self._offsets[record.topic] += 1
        # A late row reached Kafka late, that is now. A row without a time of its own has only Kafka's timestamp.
        timeless = self._readers[record.topic].table.time == RECORD_TIME
        recorded = epoch_ms(record.at) if timeless else self._now
        incoming = InputRecord(record.topic, 0, self._offsets[record.topic], recorded, record.value)
        for _, effects in self._watch.evaluate_timed([incoming]):
            self._apply_effects(effects)

    def _pass_time(self, to: int) -> None:
        self._now = max(self._now, to)
        for moment in self._notifier.tick_until(self._now):
            self._send_due(moment)

    def _apply_effects(self, effects: Iterable[IncidentEvent]) -> None:
        for effect in effects:
            self._notifier.handle(effect, self._now)
        self._send_due(self._now)

    def _send_due(self, now: int) -> None:
        self._notifier.mark_committed()
        while due := self._notifier.due(now):
            self._sent_at |= {message.id: now for message, _ in due}
            self._notifier.apply_deliveries(
                {message.id: DeliveryStatus(state="sent", updated_at=now) for message, _ in due}
            )
        self._notifier.drain()

    # --- called by the test ---

    def silence(self, alert: str, key: str, length_ms: int, why: str) -> None:
        if self._now < 0:
            raise UsageError("Nobody knows what time it is: no row has come yet", hint="Move the time with advance()")
        number = len(self._ledger.silences) + 1
        until = self._now + length_ms if length_ms >= 0 else NEVER
        self._notifier.apply_user_action(
            Silence(id=str(number), until=until, rule=alert, key=key, begun=self._now, by=_TEST_USER, why=why)
        )  # fmt: skip

    def acknowledge(self, alert: str, key: str) -> None:
        firing = {
            incident_key: incident
            for (rule, incident_key, _), incident in self._ledger.incidents.items()
            if (rule, incident.state) == (alert, "firing")
        }
        if key not in firing:
            suggestion = nearest(key, firing)
            raise UsageError(
                f"{alert} does not fire for {key!r}",
                expected=", ".join(firing) or "a key that it fires for, of which there is none",
                hint=f"Did you mean {suggestion}?" if suggestion else "",
            )
        self._notifier.apply_user_action(
            Ack(rule=alert, key=key, number=firing[key].number, at=self._now, by=_TEST_USER)
        )

    def notifications(self, *, unsent: bool) -> list[AlertNotification]:
        """The notifications in the order in which they were sent, or created."""
        notifications = [
            self._notification(notification)
            for notification in self._ledger.notifications.values()
            if unsent or notification.message.id in self._sent_at
        ]
        return sorted(notifications, key=lambda notification: notification.at)

    def _notification(self, notification: Notification) -> AlertNotification:
        message, at = notification.message, self._sent_at.get(notification.message.id)
        stage, note = ("sent", "") if at is not None else (str(notification.stage), notification.note)
        if at is None and stage == "out":
            sent = self._ledger.deliveries.get(message.id)
            stage, note = "refused", sent.delivery.reason if sent is not None else ""
        if stage == "listed":
            note = "in a digest"
        when = datetime.fromtimestamp((notification.created_at if at is None else at) / 1000, UTC)
        return AlertNotification(
            notification.rule, notification.kind, notification.key, message.receiver, message.text, when, stage, note
        )
