"""What a page is told of the ledger. Nothing here reads a clock or the network.

Who is told is personal: lists have receivers masked, and only one case's details have them whole.
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

# Nobody was told, and it is somebody's or something's wish.
_WITHHELD_STAGES = frozenset({"held", "gathering", "silenced", "dropped"})
_WAITING_STAGES = frozenset({"held", "gathering"})
_FAILED_STATES = frozenset({"refused", "undelivered"})
_STATE_LABELS = {"due": "waiting", "trying": "sending"}
_NO_DELIVERY = DeliveryStatus()
# Country codes of one and two digits; all others have three.
_SHORT_CODES = re.compile(r"\+?(1|7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58])")

IncidentId = tuple[str, str, int]


def state_of(ledger: AlertState, now: int, *, declared: Iterable[str] = ()) -> dict[str, Any]:
    """The whole page: `cases` and `dead` by an id, each case with the list it is in, and how many there are in all."""
    silences = _ActiveSilences(ledger.silences.values(), now)
    lists = _group_by_list(ledger, silences)
    shown = {
        "firing": heapq.nlargest(MAX_FIRING, lists["firing"], key=_urgency),
        "held": heapq.nlargest(MAX_FIRING, lists["held"], key=_urgency),
        "history": heapq.nlargest(MAX_HISTORY, lists["history"], key=lambda each: each.created_at),
    }
    cases = {
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
            {"name": incident.name, "where": incident.destination, "problem": incident.problem, "since": incident.since}
            for incident in sorted(ledger.channels.values(), key=lambda each: each.name)
        ],
        "silences": [_silence(incident) for incident in sorted(silences.active, key=lambda each: (each.until, each.id))],
        "cases": cases,
        "dead": {_id(incident.message.id): _failed_notification(ledger, incident) for incident in dead[:MAX_DEAD]},
    }  # fmt: skip


def _group_by_list(ledger: AlertState, silences: "_ActiveSilences") -> dict[str, list[Incident]]:
    """Every case, by the list it is in."""
    lists: dict[str, list[Incident]] = {"firing": [], "held": [], "history": []}
    waiting = {
        (letter.rule, letter.key, letter.number)
        for letter in ledger.notifications.values()
        if letter.stage in _WAITING_STAGES
    }
    for incident_id, case in ledger.incidents.items():
        if case.state != "firing":
            lists["held" if incident_id in waiting else "history"].append(case)
        elif silences.matching(case.rule, case.key) is not None:
            lists["held"].append(case)
        else:
            notification_stages = {letter.stage for letter in _notifications(ledger, case)}
            lists["held" if notification_stages and notification_stages <= _WITHHELD_STAGES else "firing"].append(case)
    return lists


class _ActiveSilences:
    """Those that hold now, found by rule and key."""

    def __init__(self, silences: Iterable[Silence], now: int) -> None:
        self.active = [silence for silence in silences if now < silence.until]
        self._by_rule_and_key: dict[tuple[str, str], Silence] = {}
        for each in sorted(self.active, key=lambda each: each.until):
            self._by_rule_and_key[each.rule, each.key] = each

    def matching(self, rule: str, key: str) -> Silence | None:
        for rule_and_key in ((rule, key), (rule, ""), ("", key), ("", "")):
            if (silence := self._by_rule_and_key.get(rule_and_key)) is not None:
                return silence
        return None


def _incident_id(case: Incident) -> IncidentId:
    return case.rule, case.key, case.number


def _id(name: object) -> str:
    """A name for a page: that of a letter holds its receiver."""
    return hashlib.blake2b(msgspec.json.encode(name), digest_size=9).hexdigest()


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else -1


def _urgency(case: Incident) -> tuple[int, int]:
    return _rank(case.severity), case.created_at


def _notifications(ledger: AlertState, case: Incident) -> list[Notification]:
    return [notification for id_ in case.notifications if (notification := ledger.notifications.get(id_)) is not None]


def _delivery(ledger: AlertState, letter: Notification) -> DeliveryStatus:
    """Where it stands at the provider; of one that is in a digest, where that does."""
    sent = ledger.deliveries.get(letter.note if letter.stage == "listed" else letter.message.id)
    return sent.delivery if sent is not None else _NO_DELIVERY


def _delivery_state(ledger: AlertState, letter: Notification) -> str:
    if letter.stage not in ("out", "listed"):
        return letter.stage
    state = _delivery(ledger, letter).state
    return _STATE_LABELS.get(state, state)


# --- lists ---


def _incident(ledger: AlertState, case: Incident, silences: _ActiveSilences) -> dict[str, Any]:
    notifications = _notifications(ledger, case)
    receivers = list(
        dict.fromkeys(notification.message.receiver for notification in notifications if notification.message.receiver)
    )
    waiting = [notification for notification in notifications if notification.stage in _WAITING_STAGES]
    silence = silences.matching(case.rule, case.key)
    return {
        "rule": case.rule,
        "key": case.key,
        "number": case.number,
        "severity": case.severity,
        "state": case.state,
        "made": case.created_at,
        "ended": case.ended,
        "escalated": case.escalated > 0,
        # What is over is known by what it began with.
        "text": notifications[-1 if case.state == "firing" else 0].message.text if notifications else "",
        "to": [masked(notification) for notification in receivers[:MAX_RECEIVERS]],
        "others": max(0, len(receivers) - MAX_RECEIVERS),
        "sent": dict(Counter(_delivery_state(ledger, notification) for notification in notifications)),
        "reason": next((reason for notification in notifications if (reason := _reason(ledger, notification))), ""),
        "until": min((notification.release_at for notification in waiting), default=0),
        "ack": _ack(ledger, case),
        "silence": _silence(silence) if silence is not None and case.state == "firing" else None,
    }


def _reason(ledger: AlertState, letter: Notification) -> str:
    """Why it is not there yet, or never will be, without the number it was for."""
    if letter.stage not in ("out", "listed"):
        return letter.note
    delivery = _delivery(ledger, letter)
    if delivery.state in ("sent", "delivered"):
        return ""
    to = letter.message.receiver
    return delivery.reason.replace(to, masked(to)) if to else delivery.reason


def _ack(ledger: AlertState, case: Incident) -> dict[str, Any] | None:
    ack = ledger.acks.get(_incident_id(case))
    return {"by": ack.by, "at": ack.at} if ack is not None else None


def _silence(silence: Silence) -> dict[str, Any]:
    return {
        "id": silence.id, "rule": silence.rule, "key": silence.key, "begun": silence.begun, "until": silence.until,
        "by": silence.by, "why": silence.why,
    }  # fmt: skip


def _failed_notifications(ledger: AlertState) -> list[Notification]:
    notifications = (
        ledger.notifications.get(id_)
        for id_, each in ledger.deliveries.items()
        if each.delivery.state in _FAILED_STATES
    )
    return sorted(
        (each for each in notifications if each is not None), key=lambda each: _sent_at(ledger, each), reverse=True
    )


def _sent_at(ledger: AlertState, letter: Notification) -> int:
    return _delivery(ledger, letter).updated_at or letter.created_at


def _failed_notification(ledger: AlertState, letter: Notification) -> dict[str, Any]:
    delivery = _delivery(ledger, letter)
    return {
        "rule": letter.rule,
        "key": letter.key,
        "number": letter.number,
        "kind": letter.kind,
        "to": masked(letter.message.receiver),
        "channel": letter.message.channel,
        "state": delivery.state,
        "reason": _reason(ledger, letter),
        "at": _sent_at(ledger, letter),
        "text": letter.message.text,
    }


def masked(receiver: str) -> str:
    """A receiver that one recognises and cannot call: country and last digits of a number, the host of an address."""
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


# --- one case ---


def details_of(ledger: AlertState, incident_id: IncidentId, now: int) -> dict[str, Any] | None:
    """One case whole; None when there is none."""
    case = ledger.incidents.get(incident_id)
    if case is None:
        return None
    silence = _ActiveSilences(ledger.silences.values(), now).matching(case.rule, case.key)
    return {
        "id": _id(incident_id),
        "rule": case.rule,
        "key": case.key,
        "number": case.number,
        "severity": case.severity,
        "state": case.state,
        "place": case.record_location,
        "since": case.since,
        "at": case.fired_at,
        "recorded": case.record_time,
        "made": case.created_at,
        "ended": case.ended,
        "escalated": case.escalated,
        "row": [{"name": name, **_value(value)} for name, value in case.row.items()],
        "letters": [_notification(ledger, notification) for notification in _notifications(ledger, case)],
        "ack": _ack(ledger, case),
        "silence": _silence(silence) if silence is not None else None,
    }


def _value(value: Any) -> dict[str, Any]:
    if value is None:
        return {"value": None, "cut": False}
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return {"value": text[:MAX_VALUE], "cut": len(text) > MAX_VALUE}


def _notification(ledger: AlertState, letter: Notification) -> dict[str, Any]:
    delivery = _delivery(ledger, letter)
    digest = ledger.notifications.get(letter.note) if letter.stage == "listed" else None
    note = (
        letter.note
        if letter.stage != "listed"
        else f"in a digest of {len(digest.digest_ids)}"
        if digest
        else "in a digest"
    )
    return {
        "to": letter.message.receiver,
        "channel": letter.message.channel,
        "kind": letter.kind,
        "text": letter.message.text,
        "stage": letter.stage,
        "note": note,
        "state": _delivery_state(ledger, letter),
        "reason": delivery.reason,
        "tries": delivery.tries,
        "parts": delivery.parts,
        "made": letter.created_at,
        "until": letter.release_at,
        "again": delivery.retry_at if not delivery.is_final else 0,
        "at": delivery.updated_at,
        "expires": letter.message.expires,
    }


# --- the process ---


def process_of(life: AlertProcessLease | None, alive: bool | None) -> dict[str, Any]:
    """How the process is that judges and sends. `alive`: whether its pid lives, where that can be known."""
    if life is None:
        return {"state": "never", "since": 0, "pid": 0, "host": ""}
    state = "ended" if life.ended else "died" if alive is False else "running"
    return {"state": state, "since": life.ended or life.begun, "pid": life.pid, "host": life.host}


def diff_state(before: Mapping[str, Any], now: Mapping[str, Any], keyed: Sequence[str]) -> dict[str, Any]:
    """What a page has to be told: what changed; of the keyed parts, the items that did, None for one that is gone."""
    change = {name: value for name, value in now.items() if name not in keyed and before.get(name, ...) != value}
    for name in keyed:
        old, new = before.get(name, {}), now[name]
        items = {id_: item for id_, item in new.items() if old.get(id_) != item}
        items |= dict.fromkeys(old.keys() - new.keys())
        if items:
            change[name] = items
    return change
