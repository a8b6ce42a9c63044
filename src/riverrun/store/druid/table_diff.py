"""Which changes of an existing Druid table are allowed, and which are not."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from riverrun.model.table import TableSpec


@dataclass(frozen=True)
class TableChange:
    """The differences between a table and its declaration: sentences for what can be changed, problems for what cannot."""

    sentences: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def compare_tables(old: TableSpec | None, new: TableSpec, retired: Mapping[str, str]) -> TableChange:
    """`retired` are the table's former columns and their types: rows in Druid still have them."""
    if old is None or old == new:
        return TableChange()
    problems = [
        f"{new.name}: {what} was {_describe_value(before)} and is to be {_describe_value(now)}"
        for what, before, now in (
            ("its topic", old.topic, new.topic),
            ("its key", old.key, new.key),
            ("its time", old.time, new.time),
            ("what happens to a second record of a key", _describe_upserts(old), _describe_upserts(new)),
            ("its roll-up", dict(old.rollup), dict(new.rollup)),
        )
        if before != now
    ]
    types = {**retired, **{column.name: column.type for column in old.columns}}
    problems += [
        f"{new.name}.{column.name}: its type was {types[column.name]} and is to be {column.type}"
        for column in new.columns
        if types.get(column.name, column.type) != column.type
    ]
    before = {column.name: column for column in old.columns}
    now = {column.name: column for column in new.columns}
    sentences = [f"new column {name}" for name in now if name not in before]
    sentences += [f"no more column {name}; rows that have it keep it" for name in before if name not in now]
    sentences += [
        f"column {name} is read from {'.'.join(column.path) or 'the record itself'} now"
        for name, column in now.items()
        if name in before and before[name].path != column.path
    ]
    if old.retention_ms != new.retention_ms:
        sentences.append(f"rows are kept for {_describe_retention(new.retention_ms)} now")
    for what in ("segment_granularity", "query_granularity"):
        if getattr(old, what) != getattr(new, what):
            sentences.append(f"{what.replace('_', ' ')} of new rows is {getattr(new, what) or 'the default'} now")
    if old.generations != new.generations:
        made = new.generations[-1].topic if new.generations else ""
        sentences.append(
            f"a replay has corrected its history, which is in {made}; Druid cannot put that in the place of rows it has, "
            "and keeps those from before the cutover as they were"
            if made
            else "it has no replays any more"
        )
    if not sentences and not problems:
        sentences.append("its columns are in another order now")
    return TableChange(sentences, problems)


def retired_columns(old: TableSpec, new: TableSpec, before: Mapping[str, str]) -> dict[str, str]:
    """The columns that a table no longer has, and their types."""
    names = {column.name for column in new.columns}
    types = {**before, **{column.name: column.type for column in old.columns}}
    return {name: kind for name, kind in types.items() if name not in names}


def first_difference(ours: Any, theirs: Any, path: str = "") -> str:
    """The path of the first difference between our spec and Druid's; empty when there is none. What Druid adds is
    ignored."""
    if isinstance(ours, dict):
        if not isinstance(theirs, dict):
            return path or "all of it" if ours else ""
        for name, value in ours.items():
            if difference := first_difference(value, theirs.get(name), f"{path}.{name}" if path else name):
                return difference
        return ""
    if isinstance(ours, list):
        if not ours and not theirs:
            return ""
        if not isinstance(theirs, list) or len(ours) != len(theirs):
            return path
        return next(
            (
                difference
                for index, value in enumerate(ours)
                if (difference := first_difference(value, theirs[index], f"{path}[{index}]"))
            ),
            "",
        )
    return "" if _same(ours, theirs) else path


def _same(ours: Any, theirs: Any) -> bool:
    """Whether two values are equal; Druid returns a granularity or a period in another notation than it takes."""
    return bool(ours == theirs or _normalize(ours) == _normalize(theirs))


def _normalize(value: Any) -> Any:
    if isinstance(value, dict):
        return _normalize(value.get("period") or value.get("type") or "")
    if isinstance(value, str):
        word = _GRANULARITY_PERIODS.get(value.upper(), value.upper())
        period = _PERIOD.fullmatch(word)
        # Months and years have no fixed length.
        return (
            sum(int(number or 0) * size for number, size in zip(period.groups(), _PERIOD_SECONDS, strict=True))
            if period
            else word
        )
    return value


_PERIOD = re.compile(r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
_PERIOD_SECONDS = (604_800, 86_400, 3600, 60, 1)
_GRANULARITY_PERIODS = {
    "SECOND": "PT1S", "MINUTE": "PT1M", "FIVE_MINUTE": "PT5M", "FIFTEEN_MINUTE": "PT15M", "HOUR": "PT1H", "SIX_HOUR": "PT6H",
    "DAY": "P1D", "WEEK": "P1W", "MONTH": "P1M", "YEAR": "P1Y",
}  # fmt: skip


def _describe_upserts(table: TableSpec) -> str:
    return "it replaces the first" if table.upserts else "it is another row"


def _describe_value(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{how} of {name}" for name, how in value.items()) or "none"
    return str(value)


def _describe_retention(milliseconds: int) -> str:
    if milliseconds < 0:
        return "ever"
    for size, word in ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes")):
        if milliseconds >= size and milliseconds % size == 0:
            return f"{milliseconds // size} {word}"
    return f"{milliseconds // 1000} seconds"
