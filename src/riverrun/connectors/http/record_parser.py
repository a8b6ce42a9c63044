"""Parse the body of a request into records: one JSON value, a list of them, or one per line. Each is checked by the same
code as lines of `riverrun produce`, and is sent to the topic unchanged."""

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

# Room in a batch for what is not the record: Kafka's own headers.
OVERHEAD_BYTES = 256
MAX_KEY_BYTES = 4096
# A list is parsed into elements before they can be counted: `[1,1,1,…]` of 16 MiB would take 600 MB.
MAX_COMMAS = 1_000_000

# How much of a body is parsed before other requests get their turn, and how many split positions are tried in it.
SLICE_BYTES = 64 * 1024
_TRIES = 8
# Most likely between two elements of a list; else any comma.
_BETWEEN = re.compile(rb"[}\]]\s*(,)\s*(?=[{\[])")
_COMMA = re.compile(rb",")
_AT_BYTE = re.compile(r"\(byte (\d+)\)")

Values = Sequence[bytes | msgspec.Raw]
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A value that is not a record of the topic, and why."""

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
        # Whether a request may set the key: neither the event nor the declaration does.
        self.accepts_key = not source.key and (schema is None or schema.key_field is None)
        self.max_message_bytes = max_message_bytes
        self.max_record_bytes = (
            max_message_bytes - OVERHEAD_BYTES - sum(len(name) + len(value or b"") for name, value in self.headers)
        )
        self._parse: Callable[[bytes], KeyValue] = json_parser(schema, source.key)

    def split(
        self, body: bytes, body_format: BodyFormat, key: bytes | None, max_records: int
    ) -> tuple[bool, Iterator[Values]]:
        """Whether it is a single record, and the values in slices, so that other requests get their turn in between. Raises,
        also while iterating: not JSON, empty, too many."""
        if key is not None and not self.accepts_key:
            raise RequestRejectedError(
                400, "KEY_DECLARED", f"The key of a record of {self.topic} is in the record: leave X-Key and ?key out"
            )
        return _split(body, body_format, max_records)

    def records(self, values: Values, key: bytes | None) -> list[KeyValue | RejectedRecord]:
        """The parsed records, each checked."""
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
        newline = body.find(b"\n", start + SLICE_BYTES)
        end = newline if newline >= 0 else len(body)
        yield [line for raw_line in body[start:end].split(b"\n") if (line := raw_line.strip())]
        start = end + 1


def _elements(body: bytes, max_records: int) -> Iterator[Values]:
    """The elements of a list, in slices of about SLICE_BYTES. A split is right if everything before it parses as a list:
    nothing that follows can change that. If no split is found, the slice grows, at last to the whole rest."""
    start, step, count = 1, SLICE_BYTES, 0
    while start < len(body):
        head = _head(body, start, step)
        if head is None:
            step *= 2
            yield []
            continue
        values, start = head
        step = SLICE_BYTES
        count += len(values)
        if count > max_records:
            raise _too_many(max_records)
        yield values
    if not count:
        raise RequestRejectedError(400, "EMPTY", "The request has no records")


def _head(body: bytes, start: int, step: int) -> tuple[list[msgspec.Raw], int] | None:
    """The elements from `start` to a split before `start + step`, and where the next begin; None if no split is found."""
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
    splits = [match.start(1) for match in _BETWEEN.finditer(body, half, end)]
    splits = splits or [match.start() for match in _COMMA.finditer(body, half, end)]
    # Fewer tries for longer slices, so that they cost about the same.
    for split in reversed(splits[-max(1, _TRIES * SLICE_BYTES // step) :]):
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            if values := _decode_list(b"[%b]" % body[start:split]):
                return values, split + 1
    return None


_decode_value = msgspec.json.Decoder(msgspec.Raw).decode


def _check_json(body: bytes) -> None:
    """Raise 400 if it is not JSON at all: then it is no record of any topic."""
    try:
        _decode_value(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _not_json(error) from None


def _not_json(error: Exception, before: int = 0) -> RequestRejectedError:
    """`before`: how many bytes of the body come before the parsed slice."""
    reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
    reason = _AT_BYTE.sub(lambda at: f"(byte {int(at[1]) + before})", reason)
    return RequestRejectedError(400, "INVALID_JSON", f"The request is not JSON: {reason[:200]}")


def _too_many(max_records: int) -> RequestRejectedError:
    return RequestRejectedError(413, "TOO_MANY", f"A request has at most {max_records} records")
