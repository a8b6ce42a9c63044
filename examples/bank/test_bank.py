"""The figures of the bank: what plain Python finds, the streams find. Run by `riverrun test`; needs no broker."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import figures
import pytest
from app import Transaction
from source import Faults, Sent, feed, row_of

from riverrun.demo.comparison import differences

HERE = Path(__file__).parent
AT = datetime(2026, 11, 16, 9, 0, tzinfo=UTC)
# None so late that it depends on the batches whether it counts, and more of the rest.
FAULTS = Faults(late=0.03, too_late=0.0, twice=0.01, broken=0.005, lost=0.02)
# How long one look at a stream may take: on a busy machine Spark does.
SECONDS = 600

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def sent() -> list[Sent]:
    """Days of a small bank, with everything that can go wrong."""
    return list(islice(feed(seed=50, people=60, faults=FAULTS), 2500))


def topic_of(table):
    return table if table == "transactions" else f"bank.{table}"


def put(t, records):
    for table in ("customers", "accounts", "transactions"):
        t.send(topic_of(table), *(row_of(record) for record in records if record.table == table))


def test_every_figure_is_what_plain_python_finds(stream_test, sent):
    t = stream_test(HERE / "app.py", seconds=SECONDS)
    for begin in range(0, len(sent), 1250):
        put(t, sent[begin : begin + 1250])
        t.rows("hours")
    # Long after all: every window is over.
    t.advance(sent[-1].due + timedelta(days=2))
    expected = figures.of(sent).all()
    for stream in t.app.streams:
        assert differences(expected[stream], figures.keyed(stream, t.rows(stream))) == [], stream
        assert expected[stream], stream
    counts = t.record_counts("balances")
    assert counts.dead_letters == len(t.dead("transactions")) == sum(each.odd == "broken" for each in sent) > 0


def test_history_tells_the_least_of_a_month(stream_test, sent):
    t = stream_test(HERE / "history.py", seconds=SECONDS)
    for table in ("accounts", "transactions"):
        t.send(topic_of(table), *(row_of(each) for each in sent if each.table == table))
    rows = {
        (row["account_id"], row["month"]): {name: row[name] for name in ("least_cents", "least_at", "last_cents")}
        for row in t.batch("months")
    }
    assert rows == figures.of(sent).months()


def transaction(number, **what):
    said = {"account_id": "acc-1", "ref": f"r{number}", "kind": "card", "cents": -500, "at": AT}
    return Transaction(**said | what)


@pytest.fixture
def bank(stream_test):
    t = stream_test(HERE / "app.py", seconds=SECONDS)
    t.send("bank.customers", {"customer_id": "cus-1", "name": "Ada", "phone": "+353 20 910 0001", "city": "Cork"})
    t.send(
        "bank.accounts",
        {"account_id": "acc-1", "customer_id": "cus-1", "opening_cents": 10_000, "overdraft_cents": 0},
    )
    return t


def test_a_changed_row_changes_the_join_from_then_on(bank):
    bank.send("transactions", transaction(1))
    [row] = bank.rows("balances")
    assert (row["cents"], row["name"], row["overdraft_cents"]) == (9500, "Ada", 0)
    bank.send(
        "bank.customers", {"customer_id": "cus-1", "name": "Ada Byrne", "phone": "+353 20 910 0002", "city": "Cork"}
    )
    bank.send(
        "bank.accounts",
        {"account_id": "acc-1", "customer_id": "cus-1", "opening_cents": 10_000, "overdraft_cents": 50_000},
    )
    # The same payment again, and another one.
    bank.send("transactions", transaction(1), transaction(2, cents=-1))
    [row] = bank.rows("balances")
    assert (row["cents"], row["name"], row["overdraft_cents"]) == (9499, "Ada Byrne", 50_000)


def test_money_counts_however_late_it_comes(bank):
    bank.send("transactions", transaction(1), transaction(2, at=AT + timedelta(days=2)))
    assert [row["cents"] for row in bank.rows("balances")] == [9000]
    # Two days late, and once more.
    bank.send("transactions", transaction(3, cents=-100), transaction(3, cents=-100))
    [row] = bank.rows("balances")
    assert (row["cents"], row["transactions"], row["at"]) == (8900, 3, AT + timedelta(days=2))
    assert bank.record_counts("balances").late == 0


def test_who_is_flagged_gets_a_message_on_the_phone_they_have(bank):
    bank.send(
        "transactions", transaction(0, city="Dublin"), transaction(1, city="Lisbon", at=AT + timedelta(minutes=20))
    )
    [told] = bank.alerts("card_in_two_places")
    assert told.receiver == "+353 20 910 0001"
    assert told.text == "Ada, your card was used in Lisbon, 20 minutes after Dublin. It is blocked. Call us."
    bank.send("bank.customers", {"customer_id": "cus-1", "name": "Ada", "phone": "+353 20 910 0002", "city": "Cork"})
    later = AT + timedelta(hours=3)
    bank.send("transactions", *(transaction(9 + n, at=later + timedelta(seconds=n)) for n in range(6)))
    [told] = bank.alerts("card_tried_out")
    assert told.receiver == "+353 20 910 0002"
    assert "paid 6 times within ten minutes" in told.text


def test_flags_of_a_day_are_counted_from_now(bank):
    bank.send(
        "transactions", transaction(0, city="Dublin"), transaction(1, city="Lisbon", at=AT + timedelta(minutes=20))
    )
    assert [list(row.values()) for row in bank.tile("Cards in two places")] == [[1]]
    # The card is in two places no more; the bank goes on.
    bank.send("transactions", transaction(2, at=AT + timedelta(days=3)))
    assert [list(row.values()) for row in bank.tile("Cards in two places")] == [[0]]


def test_a_transfer_is_told_only_when_its_other_leg_cannot_come(bank):
    legs = [transaction(n, kind="transfer", cents=sign * 700, transfer_id="t-1") for n, sign in ((1, -1), (2, 1))]
    bank.send("transactions", legs[0], transaction(3, kind="transfer", cents=-900, transfer_id="t-2"))
    assert [row["net_cents"] for row in bank.rows("transfers")] == [-700, -900]
    bank.advance(AT + timedelta(minutes=119))
    bank.send("transactions", legs[1])
    assert bank.rows("unmatched") == []
    assert sorted(row["net_cents"] for row in bank.rows("transfers")) == [-900, 0]
    # What was moved is what left accounts, not both legs of it.
    assert [(row["transactions"], row["cents"]) for row in bank.rows("hours")] == [(3, 1600)]
    bank.advance(AT + timedelta(hours=4))
    [row] = bank.rows("unmatched")
    assert (row["transfer_id"], row["legs"], row["net_cents"]) == ("t-2", 1, -900)
