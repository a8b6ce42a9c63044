"""Which library events are made of: msgspec (ours), pydantic, and plain dicts with orjson or the standard library.

    python bench/events.py [--repeats 7]

Two events: three fields as in the design's example, and fifteen as in a row of a database. What a producer pays is making
the event, checking it and writing JSON; what a consumer pays is reading it into the event, checked. Nanoseconds each, the
best and the median of several turns; contenders take turns. Needs the extra `bench`.
"""

import argparse
import json
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import orjson
import pydantic

import riverrun as rr
from measure import machine
from riverrun.model.event import schema_of

NOON = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)


class Small(rr.Event):
    """Ours."""

    house_id: str = rr.key()
    load_kw: float = rr.field(ge=0)
    at: datetime = rr.event_time(late="2 minutes")


class SmallModel(pydantic.BaseModel):
    """The same in pydantic."""

    house_id: str
    load_kw: float = pydantic.Field(ge=0)
    at: pydantic.AwareDatetime


class Wide(rr.Event):
    """Ours."""

    order_id: uuid.UUID = rr.key()
    customer: str = rr.field(min_length=1)
    street: str
    city: str
    country: str = rr.field(min_length=2, max_length=2)
    zip_code: str | None = None
    amount: float = rr.field(ge=0)
    tax: float = rr.field(ge=0)
    discount: float | None = None
    items: int = rr.field(ge=1)
    weight: int = rr.field(ge=0)
    express: bool = False
    gift: bool = False
    placed: datetime = rr.event_time()
    paid: datetime | None = None


class WideModel(pydantic.BaseModel):
    """The same in pydantic."""

    order_id: uuid.UUID
    customer: str = pydantic.Field(min_length=1)
    street: str
    city: str
    country: str = pydantic.Field(min_length=2, max_length=2)
    zip_code: str | None = None
    amount: float = pydantic.Field(ge=0)
    tax: float = pydantic.Field(ge=0)
    discount: float | None = None
    items: int = pydantic.Field(ge=1)
    weight: int = pydantic.Field(ge=0)
    express: bool = False
    gift: bool = False
    placed: pydantic.AwareDatetime
    paid: pydantic.AwareDatetime | None = None


SMALL: dict[str, Any] = {"house_id": "house-4711", "load_kw": 1.234, "at": NOON}
WIDE: dict[str, Any] = {
    "order_id": uuid.UUID(int=7), "customer": "Ann Example", "street": "1 High Street", "city": "Cork", "country": "IE",
    "zip_code": "T12", "amount": 99.5, "tax": 19.9, "discount": 5.0, "items": 3, "weight": 1200, "express": True,
    "gift": False, "placed": NOON, "paid": NOON,
}  # fmt: skip


def contenders(event: Any, model: Any, fields: dict[str, Any]) -> dict[str, dict[str, Callable[[], object]]]:
    schema = schema_of(event)
    made, modelled = event(**fields), model(**fields)
    data = schema.encode(made)
    plain = orjson.loads(data)
    return {
        "make": {
            "msgspec": lambda: event(**fields),
            "pydantic (checks)": lambda: model(**fields),
            "dict": lambda: dict(fields),
        },
        "write JSON": {
            "msgspec": lambda: schema._dump(made),  # noqa: SLF001
            "pydantic": modelled.model_dump_json,
            "dict, orjson": lambda: orjson.dumps(fields),
            "dict, json": lambda: json.dumps(plain).encode(),
        },
        "make, check, write": {
            "ours": lambda: schema.encode(event(**fields)),
            "msgspec, read back": lambda: schema._encode_and_read_back(event(**fields)),  # noqa: SLF001
            "pydantic": lambda: model(**fields).model_dump_json(),
        },
        "read JSON, check": {
            "msgspec": lambda: schema.decode(data),
            "pydantic": lambda: model.model_validate_json(data),
            "dict, orjson (no check)": lambda: orjson.loads(data),
            "dict, json (no check)": lambda: json.loads(data),
        },
    }


def nanoseconds(work: Callable[[], object], count: int) -> float:
    begun = time.perf_counter_ns()
    for _ in range(count):
        work()
    return (time.perf_counter_ns() - begun) / count


def first_use(imports: Iterable[str]) -> float:
    """Seconds to import, in a process of its own."""
    import subprocess

    code = f"import time; t = time.perf_counter(); import {', '.join(imports)}; print(time.perf_counter() - t)"
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--count", type=int, default=20_000)
    given = parser.parse_args()
    print(f"Nanoseconds, best and median of {given.repeats}  ({machine()})")
    for name, event, model, fields in (("3 fields", Small, SmallModel, SMALL), ("15 fields", Wide, WideModel, WIDE)):
        for step, works in contenders(event, model, fields).items():
            figures: dict[str, list[float]] = {each: [] for each in works}
            for _ in range(given.repeats):
                for each, work in works.items():
                    figures[each].append(nanoseconds(work, given.count))
            for each, found in figures.items():
                print(f"{name:<11}{step:<20}{each:<26}{min(found):>8.0f}{statistics.median(found):>8.0f}")
    print(f"import: msgspec {first_use(['msgspec']) * 1000:.0f} ms, pydantic {first_use(['pydantic']) * 1000:.0f} ms")


if __name__ == "__main__":
    main()
