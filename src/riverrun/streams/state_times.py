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
def with_zones() -> Iterator[None]:
    """Within it, a class that is given to `transformWithState` sees times with a zone."""
    from pyspark.sql.pandas.group_ops import PandasGroupedOpsMixin as Grouped

    plain = Grouped.transformWithState

    @functools.wraps(plain)
    def transform(self: Any, statefulProcessor: Any, *rest: Any, **more: Any) -> Any:  # noqa: N803  -- Spark's name
        # On the object, so that its class stays the user's: what has changed of a stream is judged by that.
        statefulProcessor.init = functools.partial(_init, statefulProcessor)
        statefulProcessor.handleExpiredTimer = functools.partial(_expired, statefulProcessor)
        return plain(self, statefulProcessor, *rest, **more)

    Grouped.transformWithState = transform  # type: ignore[method-assign]
    try:
        yield
    finally:
        Grouped.transformWithState = plain  # type: ignore[method-assign]


def _init(processor: Any, handle: Any) -> Any:
    return type(processor).init(processor, _Handle(handle))


def _expired(processor: Any, key: Any, *rest: Any, **more: Any) -> Any:
    return type(processor).handleExpiredTimer(processor, zoned(key), *rest, **more)


class _Handle:
    """Spark's handle; the state it gives has zones."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return functools.partial(_opened, found) if name in _STATES else found


def _opened(make: Any, *arguments: Any, **more: Any) -> Any:
    said = " ".join(
        each if isinstance(each, str) else each.simpleString() for each in [*arguments, *more.values()]
        if isinstance(each, str) or hasattr(each, "simpleString")
    )  # fmt: skip
    made = make(*arguments, **more)
    # A time without a zone, where somebody asks for one.
    return made if "timestamp_ntz" in said.lower() else _State(made)


class _State:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in _READERS or name in _ITERATORS:
            return lambda *arguments: zoned(found(*arguments))
        return found


def zoned(value: Any) -> Any:
    """The value with a zone for every time in it. Without one it is of this machine's."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, tuple):
        items = [zoned(each) for each in value]
        if names := getattr(value, "__fields__", None):
            from pyspark.sql.types import _create_row

            return _create_row(names, items)
        return tuple(items)
    if isinstance(value, list):
        return [zoned(each) for each in value]
    if isinstance(value, dict):
        return {zoned(key): zoned(each) for key, each in value.items()}
    if isinstance(value, Iterator):
        return map(zoned, value)
    return value
