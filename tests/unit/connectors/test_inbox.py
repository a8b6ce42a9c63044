"""What is pushed to us: back pressure, and confirmations after the commit."""

import threading
from typing import Any

import pytest

from riverrun.connectors.inbox import MAX_READ_ITEMS, Inbox
from riverrun.errors import UsageError
from riverrun.model.connector import Item


def test_tokens_are_confirmed_when_their_items_are_committed_and_not_before() -> None:
    confirmed: list[Any] = []
    inbox = Inbox(confirmed.extend)
    for n in range(3):
        assert inbox.put(Item(n), token=f"t{n}")
    first = inbox.read()
    assert first is not None
    assert [item.value for item in first.items] == [0, 1, 2]
    inbox.put(Item(3), token="t3")
    second = inbox.read()
    assert second is not None
    assert confirmed == []
    inbox.acknowledged(first.position)
    assert confirmed == ["t0", "t1", "t2"]
    inbox.acknowledged(second.position)
    assert confirmed == ["t0", "t1", "t2", "t3"]


def test_a_full_inbox_makes_its_senders_wait() -> None:
    inbox = Inbox(max_items=2)
    assert inbox.put(Item(1), timeout=0)
    assert inbox.put(Item(2), timeout=0)
    assert not inbox.put(Item(3), timeout=0)
    taken = threading.Event()

    def send() -> None:
        inbox.put(Item(3))
        taken.set()

    sender = threading.Thread(target=send)
    sender.start()
    assert not taken.is_set()
    assert inbox.read() is not None
    assert taken.wait(10)
    sender.join()


def test_it_is_full_by_bytes_too_and_takes_one_that_is_larger_than_all_its_room() -> None:
    inbox = Inbox(max_bytes=10)
    assert inbox.put(Item(b"x" * 100), timeout=0)
    assert not inbox.put(Item(b"y"), timeout=0)
    inbox.read()
    assert inbox.put(Item(b"y"), timeout=0)


def test_closing_lets_those_go_who_wait() -> None:
    inbox = Inbox(max_items=1)
    inbox.put(Item(1))
    answers: list[bool] = []
    sender = threading.Thread(target=lambda: answers.append(inbox.put(Item(2))))
    sender.start()
    inbox.close()
    sender.join(10)
    assert answers == [False]
    assert not inbox.put(Item(3))
    inbox.close()


def test_a_problem_is_raised_by_the_next_read() -> None:
    inbox = Inbox()
    inbox.fail(OSError("the line is dead"))
    with pytest.raises(OSError, match="the line is dead"):
        inbox.read()
    assert inbox.read() is None


def test_one_read_is_bounded() -> None:
    inbox = Inbox()
    for n in range(MAX_READ_ITEMS + 5):
        inbox.put(Item(n))
    first = inbox.read()
    assert first is not None
    assert len(first.items) == MAX_READ_ITEMS
    assert inbox.lag() == 5


def test_an_inbox_without_room_is_refused() -> None:
    with pytest.raises(UsageError):
        Inbox(max_items=0)
