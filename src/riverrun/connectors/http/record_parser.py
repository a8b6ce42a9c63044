"""From the body of a request to records: one JSON value, a list of them, or one a line. Each is checked by the same code as
lines of `riverrun produce`, and goes into the topic as it stands."""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from riverrun.config import RegistrySettings
from riverrun.connectors.http.request_body import BodyFormat
from riverrun.connectors.http.responses import RequestRejectedError
from riverrun.connectors.record_builder import byte_length
from riverrun.errors import EventInvalidError
from riverrun.kafka.registry.wire_format import WireFormat, wire_format_of
from riverrun.model.connectors.http import http
from riverrun.model.lines import BOM, RecordParseError, json_parser
from riverrun.model.topic import Topic

# Room in a batch for what is not the record: headers of Kafka's own.
OVERHEAD_BYTES = 256
MAX_KEY_BYTES = 4096
# A list is read into memory by element before it can be counted: `[1,1,1,…]` of 16 MiB would take 600 MB.
MAX_COMMAS = 1_000_000

# How much of a body is taken apart before others have their turn; cuts that are tried in it.
SLICE_BYTES = 64 * 1024
_TRIES = 8
# Between two elements of a list, most likely; else any comma.
_BETWEEN = re.compile(rb"[}\]]\s*(,)\s*(?=[{\[])")
_COMMA = re.compile(rb",")
_AT_BYTE = re.compile(r"\(byte (\d+)\)")

Values = Sequence[bytes | msgspec.Raw]
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A value that is no record of the topic, and why."""

    code: str
    reason: str


KeyValue = tuple[str | bytes | None, bytes]


class TopicRecordParser:
    """How one topic takes what is posted. `max_record_bytes`: the largest record it takes, in bytes."""

    def __init__(
        self, topic: Topic[Any], source: http, max_message_bytes: int, registry: RegistrySettings | None = None
    ) -> None:
        schema = topic.schema
        self._wire: WireFormat | None = None
        if topic.registered:
            self._wire = wire_format_of(topic, registry or RegistrySettings())
            self._wire.prepare()
        self.topic = topic.name
        self.headers: list[tuple[str, str | bytes | None]] = [schema.header] if schema is not None else []
        # Whether a request may say the key: no event and no declaration does.
        self.accepts_key = not source.key and (schema is None or schema.key_field is None)
        self.max_message_bytes = max_message_bytes
        self.max_record_bytes = (
            max_message_bytes - OVERHEAD_BYTES - sum(len(name) + len(value or b"") for name, value in self.headers)
        )
        self._parse: Callable[[bytes], KeyValue] = json_parser(schema, source.key)

    def split(
        self, body: bytes, body_format: BodyFormat, key: bytes | None, max_records: int
    ) -> tuple[bool, Iterator[Values]]:
        """Whether it is one record by itself, and the values, some at a time, so that others have their turn in between.
        Refused, also on the way: not JSON, nothing, too many."""
        if key is not None and not self.accepts_key:
            raise RequestRejectedError(
                400, "KEY_DECLARED", f"The key of a record of {self.topic} is in the record: leave X-Key and ?key out"
            )
        return _split(body, body_format, max_records)

    def records(self, values: Values, key: bytes | None) -> list[KeyValue | RejectedRecord]:
        """The records, each checked."""
        return [self._record(bytes(value), key) for value in values]

    def _record(self, value: bytes, key: bytes | None) -> KeyValue | RejectedRecord:
        try:
            parsed = self._parse(value)
        except RecordParseError as error:
            return RejectedRecord("RECORD_UNREADABLE", str(error))
        except RecursionError:
            return RejectedRecord("RECORD_UNREADABLE", "it is nested too deep")
        record = parsed if key is None else (key, value)
        if self._wire is not None:
            try:
                record = (record[0], self._wire.pack(value))
            except EventInvalidError as error:
                return RejectedRecord("EVENT_INVALID", error.found)
        size = len(record[1]) + byte_length(record[0])
        if size > self.max_record_bytes:
            return RejectedRecord("RECORD_TOO_LARGE", f"it has {size} bytes, and may have {self.max_record_bytes}")
        return record


def _split(body: bytes, body_format: BodyFormat, max_records: int) -> tuple[bool, Iterator[Values]]:
    body = body.removeprefix(BOM).strip()
    if not body:
        raise RequestRejectedError(400, "EMPTY", "The request has no records")
    if body_format == "lines":
        if body.count(b"\n") >= max_records:
            raise _too_many(max_records)
        return False, _lines(body)
    if not body.startswith(b"["):
        _check_json(body)
        return True, iter([[body]])
    if body.count(b",") > MAX_COMMAS:
        raise RequestRejectedError(
            413, "TOO_MANY", f"A list has at most {MAX_COMMAS} commas: send application/x-ndjson, one record a line"
        )
    return False, _elements(body, max_records)


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
        raise RequestRejectedError(400, "EMPTY", "The request has no records")


def _head(body: bytes, start: int, step: int) -> tuple[list[msgspec.Raw], int] | None:
    """The elements from `start` up to a cut before `start + step`, and where the next begin; None where no cut is found."""
    end = start + step
    if end >= len(body):
        try:
            values = _decode_list(b"[" + body[start:])
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
            if values := _decode_list(b"[%b]" % body[start:cut]):
                return values, cut + 1
    return None


_decode_value = msgspec.json.Decoder(msgspec.Raw).decode


def _check_json(body: bytes) -> None:
    """That it is JSON at all: what is not is no record of any topic, and is said so (400)."""
    try:
        _decode_value(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _not_json(error) from None


def _not_json(error: Exception, before: int = 0) -> RequestRejectedError:
    """`before`: how many bytes of the body come before what was read."""
    reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
    reason = _AT_BYTE.sub(lambda at: f"(byte {int(at[1]) + before})", reason)
    return RequestRejectedError(400, "INVALID_JSON", f"The request is not JSON: {reason[:200]}")


def _too_many(max_records: int) -> RequestRejectedError:
    return RequestRejectedError(413, "TOO_MANY", f"A request has at most {max_records} records")
