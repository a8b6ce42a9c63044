"""What people read of the ledger."""

import msgspec
import pytest

from riverrun.alerts.channels.contract import Delivery, Message
from riverrun.alerts.ledger import Ack, Case, Kind, Ledger, Letter, Life, Sent, Silence, Stage, Standing
from riverrun.alerts.words import case_details, case_row, state_of, told_of, troubles
from support.watching import MINUTE, NOON


class Book:
    """A ledger with one case, h1 of overload, and its letters."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.case = Case(
            rule="overload", key="h1", number=1, place="house_now[0]@7", since=NOON - MINUTE, at=NOON, recorded=NOON,
            made=NOON, row={"house_id": "h1", "load_kw": 3.0},
        )  # fmt: skip
        self.ledger.put(self.case)

    def letter(
        self, delivery: Delivery | None = None, *, kind: Kind = "fired", stage: Stage = "out", note: str = ""
    ) -> str:
        id_ = f"{len(self.ledger.letters)}"
        message = Message(id=id_, channel="sms", receiver="+353861234567", text=f"text {id_}")
        self.ledger.put(Letter(
            message=message, rule="overload", key="h1", number=1, kind=kind, made=NOON, stage=stage, note=note,
            until=NOON + MINUTE,
        ))  # fmt: skip
        if delivery is not None:
            self.ledger.put(Sent(id=id_, delivery=delivery))
        self.case.letters.append(id_)
        return id_


@pytest.fixture
def book() -> Book:
    return Book()


def test_how_a_case_stands(book: Book) -> None:
    ledger, case = book.ledger, book.case
    assert state_of(ledger, case, NOON) == "firing"
    ledger.put(Silence(id="1", until=NOON + MINUTE, key="h1"))
    assert state_of(ledger, case, NOON) == "silenced"
    assert state_of(ledger, case, NOON + MINUTE) == "firing"
    ledger.put(Ack(rule="overload", key="h1", number=1, at=NOON, by="ann"))
    assert state_of(ledger, case, NOON) == "acknowledged"
    assert state_of(ledger, msgspec.structs.replace(case, state="resolved"), NOON) == "resolved"
    assert case_row(ledger, case, NOON)["acknowledged_by"] == "ann"


@pytest.mark.parametrize(
    ("delivery", "stage", "note", "words"),
    [
        (None, "out", "", "waits to be sent"),
        (Delivery(reason="the provider is busy", tries=2), "out", "", "waits to be sent: the provider is busy"),
        (Delivery(state="trying"), "out", "", "is being sent"),
        (Delivery(state="sent"), "out", "", "sent"),
        (Delivery(state="delivered"), "out", "", "delivered"),
        (Delivery(state="undelivered", reason="phone off"), "out", "", "not delivered: phone off"),
        (Delivery(state="refused", reason="no such number"), "out", "", "refused: no such number"),
        (None, "held", "quiet hours", "held until 2026-01-15 12:01:00Z"),
        (None, "gathering", "", "waits for a digest"),
        (None, "silenced", "silenced by ann", "not sent: silenced by ann"),
        (None, "expired", "the row was 2 hours old", "not sent: the row was 2 hours old"),
        (None, "cancelled", "it was over before it was sent", "not sent: it was over before"),
    ],
)
def test_the_way_of_a_letter(book: Book, delivery: Delivery | None, stage: Stage, note: str, words: str) -> None:
    book.letter(delivery, stage=stage, note=note)
    assert told_of(book.ledger, book.case) == words


def test_the_ways_of_many_letters(book: Book) -> None:
    book.letter(Delivery(state="sent"))
    book.letter(Delivery(state="sent"))
    book.letter(Delivery(state="refused", reason="no number"))
    book.letter(Delivery(state="delivered"), kind="escalated")
    assert told_of(book.ledger, book.case) == "2 sent, refused: no number; escalated: delivered"


def test_a_letter_that_was_listed_goes_the_digests_way(book: Book) -> None:
    digest = book.letter(Delivery(state="delivered", tries=3), kind="digest")
    book.case.letters.clear()
    book.letter(stage="listed", note=digest)
    assert told_of(book.ledger, book.case) == "in a digest, delivered"
    [letter] = case_details(book.ledger, book.case, NOON)["messages"]
    assert (letter["state"], letter["tries"], letter["note"]) == ("delivered", 3, "")


def test_all_that_is_known_of_a_case(book: Book) -> None:
    book.letter(Delivery(state="sent", at=NOON, parts=1))
    found = case_details(book.ledger, book.case, NOON)
    assert found["row"] == {"house_id": "h1", "load_kw": 3.0}
    assert (found["place"], found["since"]) == ("house_now[0]@7", "2026-01-15T11:59:00.000Z")
    assert (found["ended"], found["escalated"], found["acknowledged"]) == (None, None, None)
    assert found["messages"][0]["receiver"] == "+353861234567"


def test_what_is_wrong_with_alerts_themselves() -> None:
    ledger = Ledger()

    def told(*, runs: bool = True) -> list[str]:
        return list(troubles(ledger, NOON, lambda _: runs))

    assert told() == ["The alert process has never run, and nobody is told. Start it with `riverrun run`."]
    ledger.put(Life(begun=NOON, pid=7, host="here"))
    ledger.put(Standing(name="mail"))
    assert told() == []
    assert told(runs=False) == ["The alert process (pid 7) is gone, and nobody is told. Start it with `riverrun run`."]
    ledger.put(Life(begun=NOON, pid=7, host="here", ended=NOON))
    ledger.put(Standing(name="sms", where="xyz.api.infobip.com", problem="401", since=NOON))
    ledger.put(Silence(id="3fa07c", until=NOON + MINUTE))
    ledger.put(Silence(id="over", until=NOON))
    assert told() == [
        "The alert process was stopped at 2026-01-15 12:00:00Z, and nobody is told. Start it with `riverrun run`.",
        "The channel sms (xyz.api.infobip.com) is down since 2026-01-15 12:00:00Z, and its messages wait: 401.",
        "Everything is silenced until 2026-01-15 12:01:00Z: `riverrun alerts unsilence 3fa07c`.",
    ]
