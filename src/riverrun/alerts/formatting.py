"""The alert state for people: the state of incidents, what became of their messages, and problems of alerts themselves."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from riverrun.alerts.channels.contract import DeliveryStatus
from riverrun.alerts.state_topic import AlertProcessLease, AlertState, Incident, Notification, Silence
from riverrun.errors.base import sentence
from riverrun.model.record import format_timestamp

_STAGE_TEXTS = {
    "gathering": "waits for a digest",
    "cancelled": "not sent: it was over before",
    "dropped": "not sent: quiet hours",
}
_DELIVERY_TEXTS = {
    "due": "waits to be sent",
    "trying": "is being sent",
    "sent": "sent",
    "delivered": "delivered",
    "undelivered": "not delivered",
    "refused": "refused",
    "expired": "too late to be sent",
}
# Why a notification was never sent, as dry runs count it.
UNSENT_REASONS = {
    "cancelled": "it was over before quiet hours were",
    "dropped": "quiet hours",
    "expired": "it was too old",
    "silenced": "silenced",
    "unaddressed": "nobody to send it to",
}


def format_time(ms: int) -> str:
    """A moment as a table shows it."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def incident_state(alert_state: AlertState, incident: Incident, now: int) -> str:
    """firing, acknowledged, silenced or resolved; once: it fired at a single row, and there is nothing to resolve."""
    if incident.state != "firing":
        return incident.state
    if (incident.rule, incident.key, incident.number) in alert_state.acks:
        return "acknowledged"
    return (
        "silenced"
        if any(silence.covers(incident.rule, incident.key, now) for silence in alert_state.silences.values())
        else "firing"
    )


def incident_notifications(alert_state: AlertState, incident: Incident) -> list[Notification]:
    return [alert_state.notifications[id_] for id_ in incident.notifications if id_ in alert_state.notifications]


def notification_delivery(alert_state: AlertState, notification: Notification) -> DeliveryStatus | None:
    """The delivery status of a notification; of one that is listed in a digest, the digest's."""
    id_ = notification.note if notification.stage == "listed" else notification.message.id
    record = alert_state.deliveries.get(id_)
    return record.delivery if record is not None else None


def describe_notification(alert_state: AlertState, notification: Notification) -> str:
    """What became of a notification, in a few words."""
    if notification.stage in ("out", "listed"):
        delivery = notification_delivery(alert_state, notification) or DeliveryStatus()
        words = _DELIVERY_TEXTS[delivery.state] + (f": {delivery.reason}" if delivery.reason else "")
        return f"in a digest, {words}" if notification.stage == "listed" else words
    if notification.stage == "held":
        return f"held until {format_time(notification.release_at)}"
    return _STAGE_TEXTS.get(notification.stage) or f"not sent: {notification.note or notification.stage}"


def describe_notifications(alert_state: AlertState, incident: Incident) -> str:
    """What became of all notifications of an incident."""
    counts_by_kind: dict[str, Counter[str]] = {}
    for notification in incident_notifications(alert_state, incident):
        counts_by_kind.setdefault(notification.kind, Counter())[describe_notification(alert_state, notification)] += 1
    parts = []
    for kind, counted in counts_by_kind.items():
        words = ", ".join(f"{count} {text}" if count > 1 else text for text, count in counted.items())
        parts.append(words if kind == "fired" else f"{kind}: {words}")
    return "; ".join(parts)


def incident_text(alert_state: AlertState, incident: Incident) -> str:
    """The text of its first notification."""
    return next((notification.message.text for notification in incident_notifications(alert_state, incident)), "")


def incident_row(alert_state: AlertState, incident: Incident, now: int) -> dict[str, Any]:
    """An incident for programs: one row."""
    ack = alert_state.acks.get((incident.rule, incident.key, incident.number))
    return {
        "severity": incident.severity,
        "alert": incident.rule,
        "key": incident.key,
        "number": incident.number,
        "state": incident_state(alert_state, incident, now),
        "since": format_timestamp(incident.since),
        "fired": format_timestamp(incident.fired_at),
        "judged": format_timestamp(incident.created_at),
        "ended": format_timestamp(incident.ended) if incident.ended >= 0 else None,
        "acknowledged_by": (ack.by or "somebody") if ack is not None else None,
        "told": describe_notifications(alert_state, incident),
        "text": incident_text(alert_state, incident),
    }


def incident_details(alert_state: AlertState, incident: Incident, now: int) -> dict[str, Any]:
    """An incident for programs: all details."""
    ack = alert_state.acks.get((incident.rule, incident.key, incident.number))
    return {
        **incident_row(alert_state, incident, now),
        "acknowledged": format_timestamp(ack.at) if ack is not None else None,
        "place": incident.record_location,
        "recorded": format_timestamp(incident.record_time),
        "escalated": format_timestamp(incident.escalated) if incident.escalated >= 0 else None,
        "row": incident.row,
        "messages": [
            _notification_row(alert_state, notification)
            for notification in incident_notifications(alert_state, incident)
        ],
    }


def _notification_row(alert_state: AlertState, notification: Notification) -> dict[str, Any]:
    delivery = notification_delivery(alert_state, notification) or DeliveryStatus()
    return {
        "kind": notification.kind,
        "channel": notification.message.channel,
        "receiver": notification.message.receiver,
        "text": notification.message.text,
        "way": describe_notification(alert_state, notification),
        "stage": notification.stage,
        "note": "" if notification.stage == "listed" else notification.note,
        "made": format_timestamp(notification.created_at),
        "until": format_timestamp(notification.release_at) if notification.release_at > 0 else None,
        "state": delivery.state if notification.stage in ("out", "listed") else None,
        "at": format_timestamp(delivery.updated_at) if delivery.updated_at > 0 else None,
        "reason": delivery.reason,
        "tries": delivery.tries,
        "parts": delivery.parts,
        "provider_id": delivery.provider_id,
    }


def silence_row(silence: Silence) -> dict[str, Any]:
    return {
        "id": silence.id,
        "alert": silence.rule or None,
        "key": silence.key or None,
        "begun": format_timestamp(silence.begun),
        "until": format_timestamp(silence.until),
        "by": silence.by,
        "why": silence.why,
    }


def describe_problems(
    alert_state: AlertState, now: int, is_running: Callable[[AlertProcessLease], bool]
) -> Iterator[str]:
    """Why notifications are not sent at the moment: a sentence each. `is_running` says whether a process is alive."""
    lease = alert_state.lease
    hint = "Start it with `riverrun run`"
    if lease is None:
        yield f"The alert process has never run, and nobody is told. {hint}."
    elif lease.ended:
        yield f"The alert process was stopped at {format_time(lease.ended)}, and nobody is told. {hint}."
    elif not is_running(lease):
        yield f"The alert process (pid {lease.pid}) is gone, and nobody is told. {hint}."
    for channel in alert_state.channels.values():
        if channel.problem:
            where = f" ({channel.destination})" if channel.destination else ""
            since = f" since {format_time(channel.since)}" if channel.since else ""
            yield f"The channel {channel.name}{where} is down{since}, and its messages wait: {sentence(channel.problem)}"
    for silence in alert_state.silences.values():
        if silence.covers("", "", now):
            yield f"Everything is silenced until {format_time(silence.until)}: `riverrun alerts unsilence {silence.id}`."
