"""What people read of the ledger."""

import msgspec
import pytest

from riverrun.alerts.channels.contract import AlertMessage, DeliveryStatus
from riverrun.alerts.formatting import (
    describe_notifications,
    describe_problems,
    incident_details,
    incident_row,
    incident_state,
)
from riverrun.alerts.state_topic import (
    Ack,
    AlertProcessLease,
    AlertState,
    ChannelHealthRecord,
    DeliveryRecord,
    Incident,
    Notification,
    NotificationKind,
    NotificationStage,
    Silence,
)
from support.watching import MINUTE, NOON


class Book:
    """A ledger with one case, h1 of overload, and its letters."""

    def __init__(self) -> None:
        self.ledger = AlertState()
        self.case = Incident(
            rule="overload", key="h1", number=1, record_location="house_now[0]@7", since=NOON - MINUTE, fired_at=NOON,
            record_time=NOON, created_at=NOON, row={"house_id": "h1", "load_kw": 3.0},
        )  # fmt: skip
        self.ledger.put(self.case)

    def letter(
        self,
        delivery: DeliveryStatus | None = None,
        *,
        kind: NotificationKind = "fired",
        stage: NotificationStage = "out",
        note: str = "",
    ) -> str:
        id_ = f"{len(self.ledger.notifications)}"
        message = AlertMessage(id=id_, channel="sms", receiver="+353861234567", text=f"text {id_}")
        self.ledger.put(Notification(
            message=message, rule="overload", key="h1", number=1, kind=kind, created_at=NOON, stage=stage, note=note,
            release_at=NOON + MINUTE,
        ))  # fmt: skip
        if delivery is not None:
            self.ledger.put(DeliveryRecord(id=id_, delivery=delivery))
        self.case.notifications.append(id_)
        return id_


@pytest.fixture
def book() -> Book:
    return Book()


def test_how_a_case_stands(book: Book) -> None:
    ledger, case = book.ledger, book.case
    assert incident_state(ledger, case, NOON) == "firing"
    ledger.put(Silence(id="1", until=NOON + MINUTE, key="h1"))
    assert incident_state(ledger, case, NOON) == "silenced"
    assert incident_state(ledger, case, NOON + MINUTE) == "firing"
    ledger.put(Ack(rule="overload", key="h1", number=1, at=NOON, by="ann"))
    assert incident_state(ledger, case, NOON) == "acknowledged"
    assert incident_state(ledger, msgspec.structs.replace(case, state="resolved"), NOON) == "resolved"
    assert incident_row(ledger, case, NOON)["acknowledged_by"] == "ann"


@pytest.mark.parametrize(
    ("delivery", "stage", "note", "words"),
    [
        (None, "out", "", "waits to be sent"),
        (DeliveryStatus(reason="the provider is busy", tries=2), "out", "", "waits to be sent: the provider is busy"),
        (DeliveryStatus(state="trying"), "out", "", "is being sent"),
        (DeliveryStatus(state="sent"), "out", "", "sent"),
        (DeliveryStatus(state="delivered"), "out", "", "delivered"),
        (DeliveryStatus(state="undelivered", reason="phone off"), "out", "", "not delivered: phone off"),
        (DeliveryStatus(state="refused", reason="no such number"), "out", "", "refused: no such number"),
        (None, "held", "quiet hours", "held until 2026-01-15 12:01:00Z"),
        (None, "gathering", "", "waits for a digest"),
        (None, "silenced", "silenced by ann", "not sent: silenced by ann"),
        (None, "expired", "the row was 2 hours old", "not sent: the row was 2 hours old"),
        (None, "cancelled", "it was over before it was sent", "not sent: it was over before"),
    ],
)
def test_the_way_of_a_letter(
    book: Book, delivery: DeliveryStatus | None, stage: NotificationStage, note: str, words: str
) -> None:
    book.letter(delivery, stage=stage, note=note)
    assert describe_notifications(book.ledger, book.case) == words


def test_the_ways_of_many_letters(book: Book) -> None:
    book.letter(DeliveryStatus(state="sent"))
    book.letter(DeliveryStatus(state="sent"))
    book.letter(DeliveryStatus(state="refused", reason="no number"))
    book.letter(DeliveryStatus(state="delivered"), kind="escalated")
    assert describe_notifications(book.ledger, book.case) == "2 sent, refused: no number; escalated: delivered"


def test_a_letter_that_was_listed_goes_the_digests_way(book: Book) -> None:
    digest = book.letter(DeliveryStatus(state="delivered", tries=3), kind="digest")
    book.case.notifications.clear()
    book.letter(stage="listed", note=digest)
    assert describe_notifications(book.ledger, book.case) == "in a digest, delivered"
    [letter] = incident_details(book.ledger, book.case, NOON)["messages"]
    assert (letter["state"], letter["tries"], letter["note"]) == ("delivered", 3, "")


def test_all_that_is_known_of_a_case(book: Book) -> None:
    book.letter(DeliveryStatus(state="sent", updated_at=NOON, parts=1))
    found = incident_details(book.ledger, book.case, NOON)
    assert found["row"] == {"house_id": "h1", "load_kw": 3.0}
    assert (found["place"], found["since"]) == ("house_now[0]@7", "2026-01-15T11:59:00.000Z")
    assert (found["ended"], found["escalated"], found["acknowledged"]) == (None, None, None)
    assert found["messages"][0]["receiver"] == "+353861234567"


def test_what_is_wrong_with_alerts_themselves() -> None:
    ledger = AlertState()

    def told(*, runs: bool = True) -> list[str]:
        return list(describe_problems(ledger, NOON, lambda _: runs))

    assert told() == ["The alert process has never run, and nobody is told. Start it with `riverrun run`."]
    ledger.put(AlertProcessLease(begun=NOON, pid=7, host="here"))
    ledger.put(ChannelHealthRecord(name="mail"))
    assert told() == []
    assert told(runs=False) == ["The alert process (pid 7) is gone, and nobody is told. Start it with `riverrun run`."]
    ledger.put(AlertProcessLease(begun=NOON, pid=7, host="here", ended=NOON))
    ledger.put(ChannelHealthRecord(name="sms", destination="xyz.api.infobip.com", problem="401", since=NOON))
    ledger.put(Silence(id="3fa07c", until=NOON + MINUTE))
    ledger.put(Silence(id="over", until=NOON))
    assert told() == [
        "The alert process was stopped at 2026-01-15 12:00:00Z, and nobody is told. Start it with `riverrun run`.",
        "The channel sms (xyz.api.infobip.com) is down since 2026-01-15 12:00:00Z, and its messages wait: 401.",
        "Everything is silenced until 2026-01-15 12:01:00Z: `riverrun alerts unsilence 3fa07c`.",
    ]
