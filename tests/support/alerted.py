"""Alerts for tests of their page: a ledger in memory that is followed like the real one, and cases to put there."""

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from riverrun.alerts.channels.contract import AlertMessage, DeliveryState, DeliveryStatus
from riverrun.alerts.notifications import message_id
from riverrun.alerts.state_topic import (
    Ack,
    AlertChange,
    AlertProcessLease,
    AlertRecord,
    AlertState,
    DeliveryRecord,
    Incident,
    Notification,
    NotificationKind,
    NotificationStage,
    Silence,
    StateMetadata,
    encode_upsert,
)
from riverrun.alerts.state_topic import ChannelHealthRecord as Channel
from riverrun.dashboard.alerts.live import AlertsBroadcast
from riverrun.dashboard.alerts.state_follower import AlertLag, FollowerStatus

T = TypeVar("T")
MINUTE = 60_000
PHONE = "+353861234567"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class MemoryFollowing:
    """Follows a ledger in memory. Records go in as bytes, as they would come from the topic."""

    def __init__(self, *records: AlertRecord, there: bool = True) -> None:
        self._lock = threading.Lock()
        self._ledger = AlertState()
        self._on_change: Callable[[], None] = lambda: None
        self._standing = FollowerStatus(1, ready=True, topic_exists=there)
        self.started = 0
        self.looks = 0
        self.told: list[AlertChange] = []
        self.late: AlertLag | None = None
        self.closed = False
        self.put(*records)

    def start(self, on_change: Callable[[], None]) -> None:
        self.started += 1
        self._on_change = on_change

    def status(self) -> FollowerStatus:
        return self._standing

    def read(self, at: Callable[[AlertState], T]) -> T:
        with self._lock:
            self.looks += 1
            return at(self._ledger)

    def lag(self) -> AlertLag | None:
        return self.late

    def publish(self, changes: Sequence[AlertChange]) -> None:
        self.told += changes
        self.take(changes)

    def close(self) -> None:
        self.closed = True

    # --- for tests ---

    def put(self, *records: AlertRecord) -> None:
        self.take([encode_upsert(record) for record in records])

    def take(self, changes: Sequence[AlertChange]) -> None:
        with self._lock:
            for key, value in changes:
                self._ledger.apply_change(key, value)
        self.change()

    def change(self, **standing: Any) -> None:
        before = self._standing
        self._standing = FollowerStatus(
            before.version + 1,
            standing.get("ready", before.ready),
            standing.get("there", before.topic_exists),
            standing.get("trouble", before.error),
        )
        self._on_change()


def life(**given: Any) -> AlertProcessLease:
    """This very process."""
    born = {"begun": now_ms() - 60 * MINUTE, "pid": os.getpid(), "host": socket.gethostname()}
    return AlertProcessLease(**{**born, "rules": ["overload", "silent"], **given})


def fired(
    key: str = "house-0042",
    *,
    rule: str = "overload",
    number: int = 1,
    ago: float = 4,
    to: Sequence[str] = (PHONE,),
    text: str = "",
    load: float = 2.4,
    stage: NotificationStage = "out",
    until: int = 0,
    note: str = "",
    delivery: DeliveryState = "delivered",
    reason: str = "",
    resolved: float = -1,
    **case: Any,
) -> list[AlertRecord]:
    """A case that fired so many minutes ago, with its messages; `resolved`: and was over so many minutes ago."""
    made = now_ms() - round(ago * MINUTE)
    said = text or f"Your home draws {load} kW, and the limit is 2.0 kW. House {key}."
    letters: list[Notification] = []

    def write(kind: NotificationKind, at: int, words: str) -> None:
        for receiver in to:
            id_ = message_id(rule, key, number, kind, receiver)
            message = AlertMessage(id=id_, channel="sms", receiver=receiver, text=words)
            letters.append(
                Notification(
                    message=message,
                    rule=rule,
                    key=key,
                    number=number,
                    kind=kind,
                    created_at=at,
                    stage=stage,
                    release_at=until or at,
                    note=note,
                )
            )

    write("fired", made, said)
    ended = -1
    if resolved >= 0:
        ended = now_ms() - round(resolved * MINUTE)
        # Who could not be told that it began is not told that it is over.
        if delivery != "refused":
            write("resolved", ended, f"Your home is back at 1.6 kW. House {key}.")
    moment = datetime.fromtimestamp((made - 300) / 1000, UTC).isoformat(timespec="milliseconds")
    row = {"house_id": key, "load_kw": load, "phone": to[0] if to else None, "owner": "Ada Byrne", "at": moment}
    one = Incident(
        **{
            "rule": rule, "key": key, "number": number, "record_location": f"house_now[1]@{4100 + number}",
            "since": made - 2 * MINUTE, "fired_at": made - 300, "record_time": made - 200, "created_at": made,
            "row": row, "severity": "warning", "state": "firing" if ended < 0 else "resolved", "ended": ended,
            "notifications": [letter.message.id for letter in letters], **case,
        }
    )  # fmt: skip
    sent: list[AlertRecord] = [
        DeliveryRecord(
            id=letter.message.id,
            delivery=DeliveryStatus(
                state=delivery, tries=1, updated_at=letter.created_at + 900, parts=1, provider_id="x", reason=reason
            ),
        )
        for letter in letters
        if stage == "out"
    ]
    return [*letters, one, *sent]


def ack(key: str = "house-0042", *, rule: str = "overload", number: int = 1, by: str = "ada") -> Ack:
    return Ack(rule=rule, key=key, number=number, at=now_ms() - MINUTE, by=by)


def quiet(id_: str = "s1", *, minutes: float = 60, **given: Any) -> Silence:
    now = now_ms()
    return Silence(**{"id": id_, "begun": now, "until": now + round(minutes * MINUTE), "by": "ada", "why": "", **given})


def evening() -> list[AlertRecord]:
    """An evening of the meters: some houses over the limit, one silenced, a number that is none, and what was before."""
    streets = ("Howth Road", "Elm Street", "Canal Row", "Harbour Walk", "Garden Square")
    records: list[AlertRecord] = [
        StateMetadata(namespace="evening"),
        life(),
        Channel(name="sms", destination="127.0.0.1:8450"),
    ]

    def words(house: int, load: float) -> str:
        return f"Your home in {streets[house % 5]} draws {load:.1f} kW: over the limit of 2.0 kW."

    records += fired(
        "house-00417", ago=11, text=words(417, 4.6), load=4.6, severity="critical", to=(PHONE, "+353871112222"),
        escalated=now_ms() - MINUTE,
    )  # fmt: skip
    records += fired("house-00042", ago=4.2, text=words(42, 2.4), to=("+353861230042",))
    records += [ack("house-00042", by="ada@example.org")]
    records += fired("house-01180", ago=1.1, text=words(1180, 2.9), to=("+353851231180",), delivery="sent")
    records += fired("house-00093", ago=0.2, text=words(93, 2.1), to=("+353861230093",), delivery="trying")
    records += fired(
        "house-00555", rule="silent", ago=34, severity="info", text="Meter house-00555 was last heard at 18:12.",
        stage="held", until=now_ms() + 11 * 60 * MINUTE, note="quiet hours",
    )  # fmt: skip
    records += fired("house-00777", ago=22, text=words(777, 3.3))
    records += [
        quiet("s1", rule="overload", key="house-00777", minutes=95, by="ada@example.org", why="Sauna is being tested")
    ]
    records += fired(
        "house-01333", ago=51, resolved=40, text=words(1333, 2.2), to=("+35316",), delivery="refused",
        reason="the receiver cannot get an SMS: it is too short",
    )  # fmt: skip
    records += fired(
        "house-00808", ago=95, resolved=92, text=words(808, 2.6), to=("+353861230808",), delivery="undelivered",
        reason="the phone was switched off",
    )  # fmt: skip
    for number in range(1, 26):
        house = f"house-{(number * 379) % 2000:05}"
        records += fired(
            house, number=number % 3 + 1, ago=60 + number * 17, resolved=60 + number * 17 - 3 - number % 11,
            text=words(number * 379 % 2000, 2 + number % 7 / 5), to=(f"+35386{1230000 + number}",),
            severity="critical" if number % 8 == 0 else "warning",
        )  # fmt: skip
    return records


def evening_alerts() -> AlertsBroadcast:
    return AlertsBroadcast("meters", MemoryFollowing(*evening()), declared=("overload", "silent"))
