"""When a handler is tried again."""

import pytest

from riverrun.errors import UsageError
from riverrun.kafka.consumer.retry import Retry


def test_waits_grow_up_to_the_longest_and_then_it_gives_up() -> None:
    retry = Retry(times=5, first_seconds=0.5, factor=2, longest_seconds=3, jitter=0.5)
    waits = [retry.wait_after(attempts, ValueError(), chance=0.0) for attempts in range(1, 7)]
    assert waits == [0.5, 1.0, 2.0, 3.0, 3.0, None]


def test_jitter_shortens_by_up_to_its_part() -> None:
    retry = Retry(times=1, first_seconds=10, jitter=0.5)
    assert retry.wait_after(1, ValueError(), chance=1.0) == 5.0
    drawn = {retry.wait_after(1, ValueError()) for _ in range(50)}
    assert len(drawn) > 40
    assert all(5.0 <= (each or 0) <= 10.0 for each in drawn)


def test_only_the_classes_named_are_worth_another_try() -> None:
    retry = Retry(on=(ConnectionError,))
    assert retry.wait_after(1, ConnectionResetError()) is not None
    assert retry.wait_after(1, ValueError()) is None


def test_no_retries() -> None:
    assert Retry(times=0).wait_after(1, ValueError()) is None


def test_many_retries_do_not_overflow() -> None:
    assert Retry(times=10**6, longest_seconds=7, jitter=0).wait_after(10**5, ValueError()) == 7


@pytest.mark.parametrize(("name", "value"), [("times", -1), ("factor", 0.5), ("jitter", 1.5), ("first_seconds", -1)])
def test_nonsense_is_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError) as caught:
        Retry(**{name: value})  # type: ignore[arg-type]
    assert caught.value.fields["option"] == name
