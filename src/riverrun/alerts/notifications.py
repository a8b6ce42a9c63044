"""Turns incidents into notifications, and decides when each of them may be sent.

Nothing here reads a clock or sends: the caller passes `now`, decisions go into the `AlertState`, and `drain` returns the
records to write. A message's id is made of its rule, key, incident number, kind and receiver, so the same incident never
makes a second one.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import msgspec

from riverrun.alerts.channels.contract import AlertMessage, DeliveryStatus
from riverrun.alerts.incidents import (
    MAX_SWEPT,
    NEVER,
    RETENTION_MS,
    IncidentEvent,
    IncidentExpired,
    IncidentFired,
    IncidentResolved,
)
from riverrun.alerts.rows import row_from_json, row_to_json
from riverrun.alerts.rules import Rule
from riverrun.alerts.state_topic import (
    Ack,
    AlertChange,
    AlertRecord,
    AlertState,
    DeliveryRecord,
    Incident,
    Notification,
    NotificationKind,
    NotificationStage,
    Silence,
    encode_tombstone,
    encode_upsert,
)
from riverrun.alerts.template import MAX_CHARACTERS, truncate
from riverrun.model.alert import SEVERITIES, ColumnLookup, QuietHours, parse_clock_time
from riverrun.model.units import format_duration

_SWEEP_MS = 60_000
_DIGEST_LINE_LENGTH = 120
_NEW_DELIVERY = DeliveryStatus()
# Stages of a notification that was sent to its receiver, or will be.
_SENT_STAGES = frozenset({"out", "listed", "gathering"})


@dataclass(frozen=True)
class _NotificationContext:
    """Why a notification is made: the incident, its row with the lookup columns, and that record's Kafka timestamp."""

    rule: Rule
    incident: Incident
    enriched_row: Mapping[str, Any]
    record_time: int
    now: int


class Notifier:
    """Decides about the incidents and notifications of an `AlertState`."""

    def __init__(self, rules: Iterable[Rule], state: AlertState, *, retention_ms: int = RETENTION_MS) -> None:
        self._rules = {rule.name: rule for rule in rules}
        self.state = state
        self._retention_ms = retention_ms
        self._changes: dict[bytes, bytes | None] = {}
        self._swept_at = 0
        # Held or gathering notifications, when the first of them is released, and when each receiver's digest is.
        self._waiting: set[str] = set()
        self._next_release = NEVER
        self._digest_releases: dict[tuple[str, str], int] = {}
        for notification in state.notifications.values():
            self._schedule(notification)
        # Released to the sender, in the order of release.
        out = sorted(
            (notification for notification in state.notifications.values() if notification.stage == "out"),
            key=_release_order,
        )
        self._outbox = {
            notification.message.id: notification
            for notification in out
            if not self._is_settled(notification.message.id)
        }
        self._unsent_counts: Counter[tuple[str, str]] = Counter()
        # Decided, and not committed to the state topic yet.
        self._uncommitted: set[str] = set()
        self._ids_by_provider_id = {
            record.delivery.provider_id: id_ for id_, record in state.deliveries.items() if record.delivery.provider_id
        }
        self._unacknowledged = {
            incident_key for incident_key, incident in state.incidents.items() if self._may_escalate(incident)
        }
        # No incident escalates before this time.
        self._next_escalation = self._earliest_escalation()
        # When notifications were released to each receiver, for digests.
        self._recent_sends: dict[tuple[str, str], deque[int]] = {}
        for notification in out:
            self._record_send(notification.message, notification.release_at)

    @property
    def unsent_counts(self) -> Counter[tuple[str, str]]:
        """How many notifications were never sent, by rule and stage ("unaddressed": no receiver), since this was made."""
        return self._unsent_counts

    def drain(self) -> list[AlertChange]:
        """Return the records to write since the last call."""
        changes = list(self._changes.items())
        self._changes.clear()
        return changes

    @property
    def changed(self) -> bool:
        return bool(self._changes)

    def mark_committed(self) -> bool:
        """Note that the drained records are committed and may be sent; return whether anything new is to be sent."""
        new = bool(self._uncommitted)
        self._uncommitted.clear()
        return new

    def _put(self, record: AlertRecord) -> None:
        self.state.put(record)
        if isinstance(record, Notification) and record.stage in ("out", "listed") and record.rule in self._rules:
            escalate = self._rules[record.rule].alert.escalate
            after = escalate.after_ms if escalate is not None else NEVER
            self._next_escalation = min(self._next_escalation, record.release_at + after)
        key, value = encode_upsert(record)
        self._changes[key] = value

    # --- incident events ---

    def handle(self, event: IncidentEvent, now: int) -> None:
        if isinstance(event, IncidentFired):
            self._handle_fired(self._rules[event.rule], event, now)
        elif isinstance(event, IncidentResolved):
            self._handle_resolved(self._rules[event.rule], event, now)
        else:
            self._handle_expired(event, now)

    def _handle_fired(self, rule: Rule, event: IncidentFired, now: int) -> None:
        enriched = rule.enrich(event.row)
        incident = Incident(
            rule=event.rule, key=event.key, number=event.number, record_location=event.record_location,
            since=event.since, fired_at=event.event_time, record_time=event.record_time, created_at=now,
            row=row_to_json(enriched), severity=rule.alert.severity, state="once" if rule.alert.every_row else "firing",
        )  # fmt: skip
        text = rule.text.render(enriched, rule.zone(enriched))
        receivers = rule.receivers(event.row)
        context = _NotificationContext(rule, incident, enriched, event.record_time, now)
        incident.notifications = [self._create_notification(context, "fired", to, text) for to in receivers]
        if not receivers:
            incident.notifications = [self._create_unaddressed(rule, incident, text, now)]
        self._put(incident)
        if self._may_escalate(incident):
            self._unacknowledged.add((incident.rule, incident.key, incident.number))

    def _handle_resolved(self, rule: Rule, event: IncidentResolved, now: int) -> None:
        incident = self._close_incident(event, now)
        if incident is None:
            return
        notifications = [
            self.state.notifications[id_] for id_ in incident.notifications if id_ in self.state.notifications
        ]
        notified = [
            notification.message.receiver
            for notification in notifications
            if notification.stage in _SENT_STAGES
            and self._delivery(notification.message.id).state not in ("refused", "expired")
        ]
        if rule.resolved is not None:
            enriched = rule.enrich(event.row)
            text = rule.resolved.render(enriched, rule.zone(enriched))
            context = _NotificationContext(rule, incident, enriched, event.record_time, now)
            incident.notifications += [
                self._create_notification(context, "resolved", to, text) for to in dict.fromkeys(notified)
            ]
        self._put(incident)

    def _handle_expired(self, event: IncidentExpired | Incident, now: int) -> None:
        """Close the incident without a notification: nobody knows when it ended."""
        incident = self._close_incident(event, now)
        if incident is not None:
            self._put(incident)

    def _close_incident(self, event: IncidentResolved | IncidentExpired | Incident, now: int) -> Incident | None:
        """Return the closed incident, None when it was closed before. Its held notifications are cancelled."""
        incident_key = (event.rule, event.key, event.number)
        incident = self.state.incidents.get(incident_key)
        self._unacknowledged.discard(incident_key)
        if incident is None or incident.state != "firing":
            return None
        for id_ in incident.notifications:
            notification = self.state.notifications.get(id_)
            if notification is not None and notification.stage == "held":
                self._finish(notification, "cancelled", "it was over before it was sent")
        return msgspec.structs.replace(
            incident, state="resolved", ended=now, notifications=list(incident.notifications)
        )

    def _create_notification(self, context: _NotificationContext, kind: NotificationKind, to: str, text: str) -> str:
        """Make a notification, release it if it may be sent now, and return its id."""
        alert, incident, now = context.rule.alert, context.incident, context.now
        stage, release_at, note = self._initial_stage(context, kind)
        # The time held for quiet hours does not count towards a message's expiry.
        valid_from = release_at if stage == "held" else context.record_time
        message = AlertMessage(
            id=message_id(incident.rule, incident.key, incident.number, kind, to),
            channel=alert.channel,
            receiver=to,
            text=text,
            severity=alert.severity,
            expires=valid_from + alert.expires_ms if alert.expires_ms >= 0 else 0,
        )
        if message.id in self.state.notifications:
            return message.id
        notification = Notification(
            message=message, rule=incident.rule, key=incident.key, number=incident.number, kind=kind, created_at=now,
            stage=stage, release_at=release_at, note=note,
        )  # fmt: skip
        self._release(notification, now) if stage == "out" else self._store(notification)
        return message.id

    def _initial_stage(
        self, context: _NotificationContext, kind: NotificationKind
    ) -> tuple[NotificationStage, int, str]:
        alert, now, age = context.rule.alert, context.now, context.now - context.record_time
        if 0 <= alert.expires_ms < age:
            return "expired", now, f"the row was {format_duration(_whole_seconds(age))} old"
        if (silence := self._find_silence(context.incident.rule, context.incident.key, now)) is not None:
            return "silenced", now, _silence_text(silence)
        if alert.quiet is not None and kind != "escalated":
            until = quiet_until(alert.quiet, context.rule.zone(context.enriched_row), now)
            if until is not None:
                dropped = alert.quiet.then == "drop"
                return ("dropped" if dropped else "held"), (now if dropped else until), "quiet hours"
        return "out", now, ""

    def _find_silence(self, rule: str, key: str, now: int) -> Silence | None:
        return next((silence for silence in self.state.silences.values() if silence.covers(rule, key, now)), None)

    def _create_unaddressed(self, rule: Rule, incident: Incident, text: str, now: int) -> str:
        self._unsent_counts[incident.rule, "unaddressed"] += 1
        to = rule.alert.to
        name = to.column if isinstance(to, ColumnLookup) else to
        id_ = message_id(incident.rule, incident.key, incident.number, "fired", "")
        message = AlertMessage(id=id_, channel=rule.alert.channel, receiver="", text=text, severity=rule.alert.severity)
        self._put(
            Notification(
                message=message,
                rule=incident.rule,
                key=incident.key,
                number=incident.number,
                kind="fired",
                created_at=now,
                release_at=now,
            )
        )
        self._put(
            DeliveryRecord(
                id=id_,
                delivery=DeliveryStatus(
                    state="refused", updated_at=now, reason=f"nobody to send it to: {name} is empty"
                ),
            )
        )
        return id_

    # --- notifications ---

    def _store(self, notification: Notification) -> None:
        self._put(notification)
        self._schedule(notification)
        if notification.stage not in _SENT_STAGES and notification.stage != "held":
            self._unsent_counts[notification.rule, notification.stage] += 1

    def _schedule(self, notification: Notification) -> None:
        if notification.stage in ("held", "gathering"):
            self._waiting.add(notification.message.id)
            self._next_release = min(self._next_release, notification.release_at)
        if notification.stage == "gathering":
            self._digest_releases[notification.message.channel, notification.message.receiver] = notification.release_at

    def _finish(self, notification: Notification, stage: NotificationStage, note: str) -> None:
        self._waiting.discard(notification.message.id)
        self._store(msgspec.structs.replace(notification, stage=stage, note=note))

    def _release(self, notification: Notification, now: int) -> None:
        """Send it at once, or in a digest when the receiver got many."""
        message, rule = notification.message, self._rules.get(notification.rule)
        digest = rule.alert.digest if rule is not None else None
        if digest is not None and notification.kind in ("fired", "resolved"):
            until = self._digest_releases.get((message.channel, message.receiver))
            if until is not None or self._count_recent(message, now, digest.within_ms) >= digest.most:
                until = now + digest.within_ms if until is None else until
                self._store(msgspec.structs.replace(notification, stage="gathering", release_at=until))
                return
        self._enqueue(notification, now)

    def _enqueue(self, notification: Notification, now: int) -> None:
        self._waiting.discard(notification.message.id)
        notification = msgspec.structs.replace(notification, stage="out", release_at=now)
        self._outbox[notification.message.id] = notification
        self._uncommitted.add(notification.message.id)
        self._put(notification)
        self._record_send(notification.message, now)

    def _record_send(self, message: AlertMessage, at: int) -> None:
        self._recent_sends.setdefault((message.channel, message.receiver), deque(maxlen=1000)).append(at)

    def _count_recent(self, message: AlertMessage, now: int, within: int) -> int:
        recent = self._recent_sends.get((message.channel, message.receiver), ())
        return sum(1 for at in recent if at > now - within)

    # --- as time passes ---

    def tick(self, now: int) -> None:
        """Do what is due at `now`: the end of quiet hours, digests, escalations, and removing old records."""
        if now >= self._next_release:
            self._release_due(now)
        if now >= self._next_escalation:
            for incident_key in [
                key for key in self._unacknowledged if self._escalates_at(self.state.incidents[key]) <= now
            ]:
                self._escalate(self.state.incidents[incident_key], now)
            self._next_escalation = self._earliest_escalation()
        if now - self._swept_at >= _SWEEP_MS:
            self._sweep(now)

    def tick_until(self, now: int) -> Iterator[int]:
        """Let the time until `now` pass, for a simulated clock. Yields each moment at which something was due, and
        `now`."""
        while (due := min(self._next_release, self._next_escalation)) < now:
            self.tick(due)
            yield due
        self.tick(now)
        yield now

    def _earliest_escalation(self) -> int:
        return min((self._escalates_at(self.state.incidents[key]) for key in self._unacknowledged), default=NEVER)

    def _release_due(self, now: int) -> None:
        waiting = [self.state.notifications[id_] for id_ in self._waiting]
        due = sorted((notification for notification in waiting if notification.release_at <= now), key=_release_order)
        self._next_release = min(
            (notification.release_at for notification in waiting if notification.release_at > now), default=NEVER
        )
        digests: dict[tuple[str, str], list[Notification]] = {}
        for notification in due:
            if notification.stage == "gathering":
                digests.setdefault((notification.message.channel, notification.message.receiver), []).append(
                    notification
                )
                continue
            self._waiting.discard(notification.message.id)
            silence = self._find_silence(notification.rule, notification.key, now)
            self._finish(notification, "silenced", _silence_text(silence)) if silence else self._release(
                notification, now
            )
        for recipient, notifications in digests.items():
            self._digest_releases.pop(recipient, None)
            self._send_digest(notifications, now)

    def _send_digest(self, notifications: Sequence[Notification], now: int) -> None:
        if len(notifications) == 1:
            self._enqueue(notifications[0], now)
            return
        first = notifications[0].message
        worst = max((notification.message.severity for notification in notifications), key=_severity_rank)
        message = AlertMessage(
            id=_encode_id(["digest", *_id_fields(first.id)]),
            channel=first.channel,
            receiver=first.receiver,
            text=_digest_text([notification.message.text for notification in notifications]),
            severity=worst,
            expires=max(notification.message.expires for notification in notifications)
            if all(notification.message.expires for notification in notifications)
            else 0,
        )
        digest = Notification(
            message=message, rule=notifications[0].rule, key=notifications[0].key, number=notifications[0].number,
            kind="digest", created_at=now, digest_ids=[notification.message.id for notification in notifications],
        )  # fmt: skip
        for notification in notifications:
            self._finish(notification, "listed", message.id)
        self._enqueue(digest, now)

    def _may_escalate(self, incident: Incident) -> bool:
        rule = self._rules.get(incident.rule)
        return (
            rule is not None and rule.alert.escalate is not None and incident.state == "firing" and incident.escalated < 0
            and (incident.rule, incident.key, incident.number) not in self.state.acks
        )  # fmt: skip

    def _escalates_at(self, incident: Incident) -> int:
        """When the incident escalates; `NEVER` while no notification of it was released."""
        escalate = self._rules[incident.rule].alert.escalate
        notifications = [
            self.state.notifications[id_] for id_ in incident.notifications if id_ in self.state.notifications
        ]
        sent_times = [
            notification.release_at for notification in notifications if notification.stage in ("out", "listed")
        ]
        return min(sent_times) + escalate.after_ms if escalate is not None and sent_times else NEVER

    def _escalate(self, incident: Incident, now: int) -> None:
        rule = self._rules[incident.rule]
        escalate = rule.alert.escalate
        self._unacknowledged.discard((incident.rule, incident.key, incident.number))
        if escalate is None:
            return
        columns = [*rule.table.columns, *(rule.lookup.columns if rule.lookup else ())]
        enriched = row_from_json(columns, incident.row)
        prefix = f"Nobody acknowledged this for {format_duration(escalate.after_ms)}: "
        text = truncate(prefix + rule.text.render(enriched, rule.zone(enriched)), MAX_CHARACTERS)
        context = _NotificationContext(rule, incident, enriched, now, now)
        notification_ids = [self._create_notification(context, "escalated", to, text) for to in escalate.to]
        self._put(
            msgspec.structs.replace(incident, escalated=now, notifications=[*incident.notifications, *notification_ids])
        )

    def _sweep(self, now: int) -> None:
        """Close incidents whose rule is gone, and remove what ended long ago, at most `MAX_SWEPT` records at a time."""
        self._swept_at = now
        cutoff = now - self._retention_ms
        for incident in [orphan for orphan in self.state.incidents.values() if orphan.rule not in self._rules]:
            self._handle_expired(incident, now)
        recent_incidents = {
            incident_key
            for incident_key, incident in self.state.incidents.items()
            if incident.state == "firing" or max(incident.created_at, incident.ended) >= cutoff
        }
        old_notifications = {
            id_: notification
            for id_, notification in self.state.notifications.items()
            if notification.created_at < cutoff
            and id_ not in self._waiting
            and (notification.stage != "out" or self._is_settled(id_))
            and (notification.rule, notification.key, notification.number) not in recent_incidents
        }
        # Notifications go first, then their incident, then its instance: no id is used again while a notification has it.
        old_incidents = [
            incident
            for incident_key, incident in self.state.incidents.items()
            if incident_key not in recent_incidents
            and all(id_ in old_notifications or id_ not in self.state.notifications for id_ in incident.notifications)
        ]
        silences = [silence for silence in self.state.silences.values() if silence.until < cutoff]
        expired: list[AlertRecord] = [*old_notifications.values(), *old_incidents, *silences]
        for record in expired[:MAX_SWEPT]:
            removed: list[AlertRecord | None] = [record]
            if isinstance(record, Incident):
                removed.append(self.state.acks.get((record.rule, record.key, record.number)))
            elif isinstance(record, Notification):
                removed.append(self.state.deliveries.get(record.message.id))
                self._outbox.pop(record.message.id, None)
                self._ids_by_provider_id.pop(self._delivery(record.message.id).provider_id, None)
            for removed_record in removed:
                if removed_record is None:
                    continue
                key, value = encode_tombstone(removed_record)
                self.state.apply_change(key, value)
                self._changes[key] = value
        self._recent_sends = {
            recipient: at for recipient, at in self._recent_sends.items() if at and at[-1] > now - 86_400_000
        }

    # --- user actions, and the sender's side ---

    def apply_user_action(self, record: AlertRecord) -> None:
        """Apply a silence or an acknowledgement that is already in the state topic."""
        if isinstance(record, Silence | Ack):
            self.state.put(record)
        if isinstance(record, Ack):
            self._unacknowledged.discard((record.rule, record.key, record.number))

    def due(self, now: int) -> list[tuple[AlertMessage, DeliveryStatus]]:
        """Messages the sender should try, oldest first. A "resolved" message waits until its "fired" one is sent."""
        due_messages = []
        for id_, notification in self._outbox.items():
            delivery = self._delivery(id_)
            if (
                id_ in self._uncommitted
                or delivery.retry_at > now
                or (notification.kind == "resolved" and self._awaits_fired(notification))
            ):
                continue
            due_messages.append((notification.message, delivery))
        return due_messages

    def _awaits_fired(self, notification: Notification) -> bool:
        first = message_id(
            notification.rule, notification.key, notification.number, "fired", notification.message.receiver
        )
        return first in self._outbox or first in self._waiting

    def encode_deliveries(self, changes: Mapping[str, DeliveryStatus]) -> list[AlertChange]:
        """Encode delivery statuses as records of the state topic."""
        return [encode_upsert(DeliveryRecord(id=id_, delivery=delivery)) for id_, delivery in changes.items()]

    def apply_deliveries(self, changes: Mapping[str, DeliveryStatus]) -> None:
        """Apply delivery statuses that are written to the state topic."""
        for id_, delivery in changes.items():
            self.state.put(DeliveryRecord(id=id_, delivery=delivery))
            if delivery.provider_id:
                self._ids_by_provider_id[delivery.provider_id] = id_
            if self._is_settled(id_):
                self._outbox.pop(id_, None)

    def sent_messages(self) -> list[tuple[AlertMessage, DeliveryStatus]]:
        """All messages that went to a channel and are not removed yet, with their delivery status."""
        return [
            (self.state.notifications[id_].message, record.delivery)
            for id_, record in self.state.deliveries.items()
            if id_ in self.state.notifications
        ]

    def find_by_provider_id(self, provider_id: str) -> tuple[str, DeliveryStatus] | None:
        """The id and delivery status of the message that the provider knows by this id."""
        id_ = self._ids_by_provider_id.get(provider_id)
        return (id_, self._delivery(id_)) if id_ is not None else None

    def _delivery(self, id_: str) -> DeliveryStatus:
        record = self.state.deliveries.get(id_)
        return record.delivery if record is not None else _NEW_DELIVERY

    def _is_settled(self, id_: str) -> bool:
        """Whether the sender is done with it: it is sent, or never will be."""
        delivery = self._delivery(id_)
        return delivery.is_final or delivery.state == "sent"


def _release_order(notification: Notification) -> tuple[int, int, str]:
    return notification.release_at, notification.created_at, notification.message.id


def _silence_text(silence: Silence) -> str:
    return f"silenced{f' by {silence.by}' if silence.by else ''}{f': {silence.why}' if silence.why else ''}"


def message_id(rule: str, key: str, number: int, kind: str, to: str) -> str:
    return _encode_id([rule, key, number, kind, to])


def _encode_id(parts: Sequence[Any]) -> str:
    return msgspec.json.encode(parts).decode()


def _id_fields(id_: str) -> list[Any]:
    return msgspec.json.decode(id_, type=list[Any])


def _severity_rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else 0


def _digest_text(texts: Sequence[str]) -> str:
    """The text of a digest: as many messages as fit, one per line."""
    head = f"{len(texts)} alerts:"
    lines: list[str] = []
    for number, text in enumerate(texts):
        line = f"- {truncate(text.replace(chr(10), ' '), _DIGEST_LINE_LENGTH)}"
        more = f"and {len(texts) - number} more"
        if len("\n".join([head, *lines, line, more])) > MAX_CHARACTERS:
            lines.append(more)
            break
        lines.append(line)
    return "\n".join([head, *lines])


def _whole_seconds(ms: int) -> int:
    return max(1000, ms // 1000 * 1000)


def quiet_until(quiet: QuietHours, zone: tzinfo, now: int) -> int | None:
    """When the current quiet hours end; None outside quiet hours."""
    local = datetime.fromtimestamp(now / 1000, UTC).astimezone(zone)
    begin, end, time = parse_clock_time(quiet.begin), parse_clock_time(quiet.end), local.time()
    inside = begin <= time < end if begin < end else time >= begin or time < end
    if not inside:
        return None
    day = local.date() if time < end else local.date() + timedelta(days=1)
    return round(datetime.combine(day, end, zone).timestamp() * 1000)
