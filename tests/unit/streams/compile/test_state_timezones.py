"""Times of state as a user's class sees them. Spark's handle is made by hand; docs/streams.md has it with Spark."""

import pickle
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.pandas.group_ops import PandasGroupedOpsMixin

from riverrun.streams.compile.state_timezones import to_utc, utc_state_times

# As Spark gives it: of this machine's zone, without saying so.
NAIVE = datetime.fromtimestamp(1_782_907_200)  # noqa: DTZ006
AWARE = datetime.fromtimestamp(1_782_907_200, UTC)


class State:
    def get(self) -> Iterator[tuple[Any, ...]] | tuple[Any, ...]:
        return (NAIVE, 1)

    def iterator(self) -> Iterator[Any]:
        return iter([((NAIVE,), (2,))])

    def exists(self) -> bool:
        return True


class Handle:
    def getValueState(self, _name: str, _schema: str) -> State:  # noqa: N802
        return State()

    def getMapState(self, _name: str, _key: str, _value: str) -> State:  # noqa: N802
        return State()

    def registerTimer(self, at: int) -> int:  # noqa: N802
        return at


class Processor:
    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("since", "at timestamp, n int")
        self.several = handle.getMapState("all", "at timestamp", "n int")
        self.without = handle.getValueState("local", "at timestamp_ntz")
        self.timer = handle.registerTimer(7)

    def handleExpiredTimer(self, key: Any, timers: Any, expired: Any) -> Any:  # noqa: N802
        return key, timers, expired


def test_state_has_the_zone_that_rows_have(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(PandasGroupedOpsMixin, "transformWithState", lambda _, each, **__: given.append(each))
    plain = PandasGroupedOpsMixin.transformWithState
    with utc_state_times():
        grouped: Any = PandasGroupedOpsMixin()
        grouped.transformWithState(statefulProcessor=Processor(), timeMode="None")
    assert PandasGroupedOpsMixin.transformWithState is plain
    # It goes to the workers.
    found = pickle.loads(pickle.dumps(given[0]))  # noqa: S301
    found.init(Handle())
    assert found.value.get() == (AWARE, 1)
    assert found.value.get()[0].tzinfo is UTC
    assert list(found.several.iterator()) == [((AWARE,), (2,))]
    assert found.without.get() == (NAIVE, 1)
    assert (found.value.exists(), found.timer) == (True, 7)
    assert found.handleExpiredTimer((NAIVE,), 1, expired=2) == ((AWARE,), 1, 2)


def test_whatever_holds_a_time() -> None:
    assert to_utc([{"at": NAIVE}, None, date(2026, 7, 1)]) == [{"at": AWARE}, None, date(2026, 7, 1)]
    row = to_utc(Row(at=NAIVE, n=1))
    assert (row.at, row.n) == (AWARE, 1)
    assert to_utc(AWARE) == AWARE
