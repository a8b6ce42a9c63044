"""Times in a `transformWithState` class: those of its state as those of its rows, with a zone (UTC).

Spark hands rows to Python with a zone and what is kept in state without one, so that comparing the two raises TypeError. The
classes of users get their state through this module; `transformWithStateInPandas` has both without a zone, and is left so.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

# What reads state, and what of that gives one after the other.
_READERS = ("get", "getValue")
_ITERATORS = ("iterator", "keys", "values")
_STATES = ("getValueState", "getListState", "getMapState")


@contextmanager
def utc_state_times() -> Iterator[None]:
    """Within it, a class that is given to `transformWithState` sees times with a zone."""
    from pyspark.sql.pandas.group_ops import PandasGroupedOpsMixin as Grouped

    original = Grouped.transformWithState

    @functools.wraps(original)
    def transform(self: Any, statefulProcessor: Any, *rest: Any, **more: Any) -> Any:  # noqa: N803  -- Spark's name
        # On the object, so that its class stays the user's: what has changed of a stream is judged by that.
        statefulProcessor.init = functools.partial(_init, statefulProcessor)
        statefulProcessor.handleExpiredTimer = functools.partial(_handle_expired_timer, statefulProcessor)
        return original(self, statefulProcessor, *rest, **more)

    Grouped.transformWithState = transform  # type: ignore[method-assign]
    try:
        yield
    finally:
        Grouped.transformWithState = original  # type: ignore[method-assign]


def _init(processor: Any, handle: Any) -> Any:
    return type(processor).init(processor, _UtcStateHandle(handle))


def _handle_expired_timer(processor: Any, key: Any, *rest: Any, **more: Any) -> Any:
    return type(processor).handleExpiredTimer(processor, to_utc(key), *rest, **more)


class _UtcStateHandle:
    """Spark's handle; the state it gives has zones."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        return functools.partial(_make_state, attribute) if name in _STATES else attribute


def _make_state(make: Any, *arguments: Any, **more: Any) -> Any:
    schema_text = " ".join(
        each if isinstance(each, str) else each.simpleString() for each in [*arguments, *more.values()]
        if isinstance(each, str) or hasattr(each, "simpleString")
    )  # fmt: skip
    state = make(*arguments, **more)
    # A time without a zone, where somebody asks for one.
    return state if "timestamp_ntz" in schema_text.lower() else _UtcState(state)


class _UtcState:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name in _READERS or name in _ITERATORS:
            return lambda *arguments: to_utc(attribute(*arguments))
        return attribute


def to_utc(value: Any) -> Any:
    """The value with a zone for every time in it. Without one it is of this machine's."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, tuple):
        items = [to_utc(each) for each in value]
        if names := getattr(value, "__fields__", None):
            from pyspark.sql.types import _create_row

            return _create_row(names, items)
        return tuple(items)
    if isinstance(value, list):
        return [to_utc(each) for each in value]
    if isinstance(value, dict):
        return {to_utc(key): to_utc(each) for key, each in value.items()}
    if isinstance(value, Iterator):
        return map(to_utc, value)
    return value
