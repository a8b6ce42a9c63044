"""From the body of a request to records: one JSON value, a list of them, or one a line. Each is checked by the same code as
lines of `riverrun produce`, and goes into the topic as it stands."""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from riverrun.config import RegistrySettings
from riverrun.connectors.http.answers import Refused
from riverrun.connectors.http.body import Kind
from riverrun.connectors.shaping import byte_length
from riverrun.errors import EventInvalidError
from riverrun.kafka.registry.wire import Wire, wire_of
from riverrun.model.connectors.http import http
from riverrun.model.lines import BOM, Unfit, json_parser
from riverrun.model.topic import Topic

# Room in a batch for what is not the record: headers of Kafka's own.
OVERHEAD_BYTES = 256
MOST_KEY_BYTES = 4096
# A list is read into memory by element before it can be counted: `[1,1,1,…]` of 16 MiB would take 600 MB.
MOST_COMMAS = 1_000_000

# How much of a body is taken apart before others have their turn; cuts that are tried in it.
SLICE_BYTES = 64 * 1024
_TRIES = 8
# Between two elements of a list, most likely; else any comma.
_BETWEEN = re.compile(rb"[}\]]\s*(,)\s*(?=[{\[])")
_COMMA = re.compile(rb",")
_AT_BYTE = re.compile(r"\(byte (\d+)\)")

Values = Sequence[bytes | msgspec.Raw]
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class Bad:
    """A value that is no record of the topic, and why."""

    code: str
    reason: str


Record = tuple[str | bytes | None, bytes]


class Taker:
    """How one topic takes what is posted. `limit`: the largest record it takes, in bytes."""

    def __init__(self, topic: Topic[Any], source: http, limit: int, registry: RegistrySettings | None = None) -> None:
        schema = topic.schema
        self._wire: Wire | None = None
        if topic.registered:
            self._wire = wire_of(topic, registry or RegistrySettings())
            self._wire.prepare()
        self.topic = topic.name
        self.headers: list[tuple[str, str | bytes | None]] = [schema.header] if schema is not None else []
        # Whether a request may say the key: no event and no declaration does.
        self.free_key = not source.key and (schema is None or schema.key_field is None)
        self.topic_limit = limit
        self.limit = limit - OVERHEAD_BYTES - sum(len(name) + len(value or b"") for name, value in self.headers)
        self._parse: Callable[[bytes], Record] = json_parser(schema, source.key)

    def split(self, body: bytes, kind: Kind, key: bytes | None, most: int) -> tuple[bool, Iterator[Values]]:
        """Whether it is one record by itself, and the values, some at a time, so that others have their turn in between.
        Refused, also on the way: not JSON, nothing, too many."""
        if key is not None and not self.free_key:
            raise Refused(
                400, "KEY_DECLARED", f"The key of a record of {self.topic} is in the record: leave X-Key and ?key out"
            )
        return _split(body, kind, most)

    def records(self, values: Values, key: bytes | None) -> list[Record | Bad]:
        """The records, each checked."""
        return [self._record(bytes(each), key) for each in values]

    def _record(self, value: bytes, key: bytes | None) -> Record | Bad:
        try:
            found = self._parse(value)
        except Unfit as error:
            return Bad("RECORD_UNREADABLE", str(error))
        except RecursionError:
            return Bad("RECORD_UNREADABLE", "it is nested too deep")
        made = found if key is None else (key, value)
        if self._wire is not None:
            try:
                made = (made[0], self._wire.pack(value))
            except EventInvalidError as error:
                return Bad("EVENT_INVALID", error.found)
        size = len(made[1]) + byte_length(made[0])
        if size > self.limit:
            return Bad("RECORD_TOO_LARGE", f"it has {size} bytes, and may have {self.limit}")
        return made


def _split(body: bytes, kind: Kind, most: int) -> tuple[bool, Iterator[Values]]:
    body = body.removeprefix(BOM).strip()
    if not body:
        raise Refused(400, "EMPTY", "The request has no records")
    if kind == "lines":
        if body.count(b"\n") >= most:
            raise _too_many(most)
        return False, _lines(body)
    if not body.startswith(b"["):
        _check(body)
        return True, iter([[body]])
    if body.count(b",") > MOST_COMMAS:
        raise Refused(
            413, "TOO_MANY", f"A list has at most {MOST_COMMAS} commas: send application/x-ndjson, one record a line"
        )
    return False, _elements(body, most)


def _lines(body: bytes) -> Iterator[Values]:
    start = 0
    while start < len(body):
        cut = body.find(b"\n", start + SLICE_BYTES)
        end = cut if cut >= 0 else len(body)
        yield [line for each in body[start:end].split(b"\n") if (line := each.strip())]
        start = end + 1


def _elements(body: bytes, most: int) -> Iterator[Values]:
    """The elements of a list, in slices of about SLICE_BYTES. A cut is right where all before it is a list: whether it is
    depends on nothing that follows. Where no cut is found, the slice grows, at last to all that is left."""
    start, step, count = 1, SLICE_BYTES, 0
    while start < len(body):
        found = _head(body, start, step)
        if found is None:
            step *= 2
            yield []
            continue
        values, start = found
        step = SLICE_BYTES
        count += len(values)
        if count > most:
            raise _too_many(most)
        yield values
    if not count:
        raise Refused(400, "EMPTY", "The request has no records")


def _head(body: bytes, start: int, step: int) -> tuple[list[msgspec.Raw], int] | None:
    """The elements from `start` up to a cut before `start + step`, and where the next begin; None where no cut is found."""
    end = start + step
    if end >= len(body):
        try:
            values = _list(b"[" + body[start:])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise _not_json(error, start - 1) from None
        if not values and start > 1:
            raise _not_json(ValueError("it has a comma at its end"))
        return values, len(body)
    half = start + step // 2
    cuts = [match.start(1) for match in _BETWEEN.finditer(body, half, end)]
    cuts = cuts or [match.start() for match in _COMMA.finditer(body, half, end)]
    # As many tries as cost about the same, however long the slice has become.
    for cut in reversed(cuts[-max(1, _TRIES * SLICE_BYTES // step) :]):
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            if values := _list(b"[%b]" % body[start:cut]):
                return values, cut + 1
    return None


_value = msgspec.json.Decoder(msgspec.Raw).decode


def _check(body: bytes) -> None:
    """That it is JSON at all: what is not is no record of any topic, and is said so (400)."""
    try:
        _value(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _not_json(error) from None


def _not_json(error: Exception, before: int = 0) -> Refused:
    """`before`: how many bytes of the body come before what was read."""
    reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
    reason = _AT_BYTE.sub(lambda at: f"(byte {int(at[1]) + before})", reason)
    return Refused(400, "INVALID_JSON", f"The request is not JSON: {reason[:200]}")


def _too_many(most: int) -> Refused:
    return Refused(413, "TOO_MANY", f"A request has at most {most} records")
