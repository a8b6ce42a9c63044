"""Gives the times in the state of a `transformWithState` class a zone (UTC), like the times in its rows.

Spark passes times in rows with a zone and times in state without one, so that comparing the two raises TypeError. Users'
classes read their state through this module; in `transformWithStateInPandas` both have no zone, and are left alone.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

# Methods of state objects that return a value, and those that return an iterator.
_READERS = ("get", "getValue")
_ITERATORS = ("iterator", "keys", "values")
_STATES = ("getValueState", "getListState", "getMapState")


@contextmanager
def utc_state_times() -> Iterator[None]:
    """Context in which a class passed to `transformWithState` gets times with a zone."""
    from pyspark.sql.pandas.group_ops import PandasGroupedOpsMixin as Grouped

    original = Grouped.transformWithState

    @functools.wraps(original)
    def transform(self: Any, statefulProcessor: Any, *rest: Any, **more: Any) -> Any:  # noqa: N803  -- Spark's name
        # On the object, so that its class stays as it is: changes of a stream's code are detected by the class.
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
    """Wraps Spark's handle; the times in the state it returns have zones."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        return functools.partial(_make_state, attribute) if name in _STATES else attribute


def _make_state(make: Any, *arguments: Any, **more: Any) -> Any:
    schema_text = " ".join(
        argument if isinstance(argument, str) else argument.simpleString() for argument in [*arguments, *more.values()]
        if isinstance(argument, str) or hasattr(argument, "simpleString")
    )  # fmt: skip
    state = make(*arguments, **more)
    # A schema may ask for times without a zone.
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
    """The value with UTC for every time in it. A time without a zone is taken as local."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, tuple):
        items = [to_utc(item) for item in value]
        if names := getattr(value, "__fields__", None):
            from pyspark.sql.types import _create_row

            return _create_row(names, items)
        return tuple(items)
    if isinstance(value, list):
        return [to_utc(item) for item in value]
    if isinstance(value, dict):
        return {to_utc(key): to_utc(item) for key, item in value.items()}
    if isinstance(value, Iterator):
        return map(to_utc, value)
    return value
