"""The alert state as the alerts page shows it. Nothing here reads a clock or the network.

Receivers are personal data: lists mask them, and only the details of one incident show them in full.
"""

import hashlib
import heapq
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from riverrun.alerts.channels.contract import DeliveryStatus
from riverrun.alerts.state_topic import AlertProcessLease, AlertState, Incident, Notification, Silence
from riverrun.model.alert import SEVERITIES

MAX_FIRING = 500
MAX_HISTORY = 300
MAX_DEAD = 100
MAX_RECEIVERS = 3
MAX_VALUE = 4000

# Not sent on purpose: quiet hours, a digest or a silence.
_WITHHELD_STAGES = frozenset({"held", "gathering", "silenced", "dropped"})
_WAITING_STAGES = frozenset({"held", "gathering"})
_FAILED_STATES = frozenset({"refused", "undelivered"})
_STATE_LABELS = {"due": "waiting", "trying": "sending"}
_NO_DELIVERY = DeliveryStatus()
# Country codes of one and two digits; all others have three.
_SHORT_CODES = re.compile(r"\+?(1|7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58])")

IncidentId = tuple[str, str, int]


def state_of(ledger: AlertState, now: int, *, declared: Iterable[str] = ()) -> dict[str, Any]:
    """The state of the whole page: `cases` and `dead` by id, each incident with its list, and the totals."""
    silences = _ActiveSilences(ledger.silences.values(), now)
    lists = _group_by_list(ledger, silences)
    shown = {
        "firing": heapq.nlargest(MAX_FIRING, lists["firing"], key=_urgency),
        "held": heapq.nlargest(MAX_FIRING, lists["held"], key=_urgency),
        "history": heapq.nlargest(MAX_HISTORY, lists["history"], key=lambda incident: incident.created_at),
    }
    incident_items = {
        _id(_incident_id(incident)): {"list": name, **_incident(ledger, incident, silences)}
        for name, incidents in shown.items()
        for incident in incidents
    }
    unanswered = [incident for incident in lists["firing"] if _incident_id(incident) not in ledger.acks]
    dead = _failed_notifications(ledger)
    return {
        "rules": sorted(
            {*declared, *(ledger.lease.rules if ledger.lease else ()), *(rule for rule, _, _ in ledger.incidents)}
        ),
        "count": len(unanswered),
        "worst": max((incident.severity for incident in unanswered), key=_rank, default=""),
        "totals": {**{name: len(incidents) for name, incidents in lists.items()}, "dead": len(dead)},
        "channels": [
            {"name": channel.name, "where": channel.destination, "problem": channel.problem, "since": channel.since}
            for channel in sorted(ledger.channels.values(), key=lambda channel: channel.name)
        ],
        "silences": [
            _silence(silence) for silence in sorted(silences.active, key=lambda silence: (silence.until, silence.id))
        ],
        "cases": incident_items,
        "dead": {
            _id(notification.message.id): _failed_notification(ledger, notification) for notification in dead[:MAX_DEAD]
        },
    }  # fmt: skip


def _group_by_list(alert_state: AlertState, silences: "_ActiveSilences") -> dict[str, list[Incident]]:
    """All incidents, by the list they are in."""
    lists: dict[str, list[Incident]] = {"firing": [], "held": [], "history": []}
    waiting = {
        (notification.rule, notification.key, notification.number)
        for notification in alert_state.notifications.values()
        if notification.stage in _WAITING_STAGES
    }
    for incident_id, incident in alert_state.incidents.items():
        if incident.state != "firing":
            lists["held" if incident_id in waiting else "history"].append(incident)
        elif silences.matching(incident.rule, incident.key) is not None:
            lists["held"].append(incident)
        else:
            notification_stages = {notification.stage for notification in _notifications(alert_state, incident)}
            lists["held" if notification_stages and notification_stages <= _WITHHELD_STAGES else "firing"].append(
                incident
            )
    return lists


class _ActiveSilences:
    """The silences that are active now, found by rule and key."""

    def __init__(self, silences: Iterable[Silence], now: int) -> None:
        self.active = [silence for silence in silences if now < silence.until]
        self._by_rule_and_key: dict[tuple[str, str], Silence] = {}
        for silence in sorted(self.active, key=lambda silence: silence.until):
            self._by_rule_and_key[silence.rule, silence.key] = silence

    def matching(self, rule: str, key: str) -> Silence | None:
        for rule_and_key in ((rule, key), (rule, ""), ("", key), ("", "")):
            if (silence := self._by_rule_and_key.get(rule_and_key)) is not None:
                return silence
        return None


def _incident_id(incident: Incident) -> IncidentId:
    return incident.rule, incident.key, incident.number


def _id(name: object) -> str:
    """A hashed id for a page: a notification's own id contains its receiver."""
    return hashlib.blake2b(msgspec.json.encode(name), digest_size=9).hexdigest()


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else -1


def _urgency(incident: Incident) -> tuple[int, int]:
    return _rank(incident.severity), incident.created_at


def _notifications(alert_state: AlertState, incident: Incident) -> list[Notification]:
    return [
        notification
        for id_ in incident.notifications
        if (notification := alert_state.notifications.get(id_)) is not None
    ]


def _delivery(alert_state: AlertState, notification: Notification) -> DeliveryStatus:
    """The delivery status; for a notification in a digest, the digest's."""
    record = alert_state.deliveries.get(
        notification.note if notification.stage == "listed" else notification.message.id
    )
    return record.delivery if record is not None else _NO_DELIVERY


def _delivery_state(alert_state: AlertState, notification: Notification) -> str:
    if notification.stage not in ("out", "listed"):
        return notification.stage
    state = _delivery(alert_state, notification).state
    return _STATE_LABELS.get(state, state)


# --- lists ---


def _incident(alert_state: AlertState, incident: Incident, silences: _ActiveSilences) -> dict[str, Any]:
    notifications = _notifications(alert_state, incident)
    receivers = list(
        dict.fromkeys(notification.message.receiver for notification in notifications if notification.message.receiver)
    )
    waiting = [notification for notification in notifications if notification.stage in _WAITING_STAGES]
    silence = silences.matching(incident.rule, incident.key)
    return {
        "rule": incident.rule,
        "key": incident.key,
        "number": incident.number,
        "severity": incident.severity,
        "state": incident.state,
        "made": incident.created_at,
        "ended": incident.ended,
        "escalated": incident.escalated > 0,
        # A resolved incident shows its first text.
        "text": notifications[-1 if incident.state == "firing" else 0].message.text if notifications else "",
        "to": [masked(receiver) for receiver in receivers[:MAX_RECEIVERS]],
        "others": max(0, len(receivers) - MAX_RECEIVERS),
        "sent": dict(Counter(_delivery_state(alert_state, notification) for notification in notifications)),
        "reason": next(
            (reason for notification in notifications if (reason := _reason(alert_state, notification))), ""
        ),
        "until": min((notification.release_at for notification in waiting), default=0),
        "ack": _ack(alert_state, incident),
        "silence": _silence(silence) if silence is not None and incident.state == "firing" else None,
    }


def _reason(alert_state: AlertState, notification: Notification) -> str:
    """Why it is not delivered yet, or never will be, with the receiver masked."""
    if notification.stage not in ("out", "listed"):
        return notification.note
    delivery = _delivery(alert_state, notification)
    if delivery.state in ("sent", "delivered"):
        return ""
    to = notification.message.receiver
    return delivery.reason.replace(to, masked(to)) if to else delivery.reason


def _ack(alert_state: AlertState, incident: Incident) -> dict[str, Any] | None:
    ack = alert_state.acks.get(_incident_id(incident))
    return {"by": ack.by, "at": ack.at} if ack is not None else None


def _silence(silence: Silence) -> dict[str, Any]:
    return {
        "id": silence.id, "rule": silence.rule, "key": silence.key, "begun": silence.begun, "until": silence.until,
        "by": silence.by, "why": silence.why,
    }  # fmt: skip


def _failed_notifications(alert_state: AlertState) -> list[Notification]:
    notifications = (
        alert_state.notifications.get(id_)
        for id_, record in alert_state.deliveries.items()
        if record.delivery.state in _FAILED_STATES
    )
    return sorted(
        (notification for notification in notifications if notification is not None),
        key=lambda notification: _sent_at(alert_state, notification),
        reverse=True,
    )


def _sent_at(alert_state: AlertState, notification: Notification) -> int:
    return _delivery(alert_state, notification).updated_at or notification.created_at


def _failed_notification(alert_state: AlertState, notification: Notification) -> dict[str, Any]:
    delivery = _delivery(alert_state, notification)
    return {
        "rule": notification.rule,
        "key": notification.key,
        "number": notification.number,
        "kind": notification.kind,
        "to": masked(notification.message.receiver),
        "channel": notification.message.channel,
        "state": delivery.state,
        "reason": _reason(alert_state, notification),
        "at": _sent_at(alert_state, notification),
        "text": notification.message.text,
    }


def masked(receiver: str) -> str:
    """Mask a receiver so that it can be recognised but not called: country and last digits, or the host of an address."""
    digits = re.sub(r"\D", "", receiver)
    name, separator, host = receiver.rpartition("@")
    if separator and name:
        return f"{name[0]}•••@{host}"
    if len(digits) < 5:
        return receiver
    last = digits[-4:] if len(digits) > 8 else digits[-2:]
    if not receiver.lstrip().startswith("+"):
        return f"••• {last}"
    code = _SHORT_CODES.match(digits)
    return f"+{code[1] if code else digits[:3]} ••• {last}"


# --- one incident ---


def details_of(ledger: AlertState, incident_id: IncidentId, now: int) -> dict[str, Any] | None:
    """All details of one incident; None when it does not exist."""
    incident = ledger.incidents.get(incident_id)
    if incident is None:
        return None
    silence = _ActiveSilences(ledger.silences.values(), now).matching(incident.rule, incident.key)
    return {
        "id": _id(incident_id),
        "rule": incident.rule,
        "key": incident.key,
        "number": incident.number,
        "severity": incident.severity,
        "state": incident.state,
        "place": incident.record_location,
        "since": incident.since,
        "at": incident.fired_at,
        "recorded": incident.record_time,
        "made": incident.created_at,
        "ended": incident.ended,
        "escalated": incident.escalated,
        "row": [{"name": name, **_value(value)} for name, value in incident.row.items()],
        "letters": [_notification(ledger, notification) for notification in _notifications(ledger, incident)],
        "ack": _ack(ledger, incident),
        "silence": _silence(silence) if silence is not None else None,
    }


def _value(value: Any) -> dict[str, Any]:
    if value is None:
        return {"value": None, "cut": False}
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return {"value": text[:MAX_VALUE], "cut": len(text) > MAX_VALUE}


def _notification(alert_state: AlertState, notification: Notification) -> dict[str, Any]:
    delivery = _delivery(alert_state, notification)
    digest = alert_state.notifications.get(notification.note) if notification.stage == "listed" else None
    note = (
        notification.note
        if notification.stage != "listed"
        else f"in a digest of {len(digest.digest_ids)}"
        if digest
        else "in a digest"
    )
    return {
        "to": notification.message.receiver,
        "channel": notification.message.channel,
        "kind": notification.kind,
        "text": notification.message.text,
        "stage": notification.stage,
        "note": note,
        "state": _delivery_state(alert_state, notification),
        "reason": delivery.reason,
        "tries": delivery.tries,
        "parts": delivery.parts,
        "made": notification.created_at,
        "until": notification.release_at,
        "again": delivery.retry_at if not delivery.is_final else 0,
        "at": delivery.updated_at,
        "expires": notification.message.expires,
    }


# --- the process ---


def process_of(life: AlertProcessLease | None, alive: bool | None) -> dict[str, Any]:
    """The status of the alert process. `alive`: whether its pid is alive, where that can be known."""
    if life is None:
        return {"state": "never", "since": 0, "pid": 0, "host": ""}
    state = "ended" if life.ended else "died" if alive is False else "running"
    return {"state": state, "since": life.ended or life.begun, "pid": life.pid, "host": life.host}


def diff_state(before: Mapping[str, Any], now: Mapping[str, Any], keyed: Sequence[str]) -> dict[str, Any]:
    """The update for a page: what changed; of the keyed parts, the items that changed, None for removed ones."""
    change = {name: value for name, value in now.items() if name not in keyed and before.get(name, ...) != value}
    for name in keyed:
        old, new = before.get(name, {}), now[name]
        items = {id_: item for id_, item in new.items() if old.get(id_) != item}
        items |= dict.fromkeys(old.keys() - new.keys())
        if items:
            change[name] = items
    return change
