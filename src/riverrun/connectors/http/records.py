"""From the body of a request to records: one JSON value, a list of them, or one a line. Each is checked by the same code as
lines of `riverrun produce`, and goes into the topic as it stands."""

from collections.abc import Callable, Sequence
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

    def split(
        self, body: bytes, kind: Kind, key: bytes | None, most: int
    ) -> tuple[bool, Sequence[bytes | msgspec.Raw]]:
        """Whether it is one record by itself, and the values. Refused: not JSON, nothing, too many."""
        if key is not None and not self.free_key:
            raise Refused(
                400, "KEY_DECLARED", f"The key of a record of {self.topic} is in the record: leave X-Key and ?key out"
            )
        return _split(body, kind, most)

    def records(self, values: Sequence[bytes | msgspec.Raw], key: bytes | None) -> list[Record | Bad]:
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


def _split(body: bytes, kind: Kind, most: int) -> tuple[bool, Sequence[bytes | msgspec.Raw]]:
    body = body.removeprefix(BOM).strip()
    if not body:
        raise Refused(400, "EMPTY", "The request has no records")
    if kind == "lines":
        if body.count(b"\n") >= most:
            raise _too_many(most)
        return False, [line for each in body.split(b"\n") if (line := each.strip())]
    if not body.startswith(b"["):
        _check(body)
        return True, [body]
    if body.count(b",") > MOST_COMMAS:
        raise Refused(
            413, "TOO_MANY", f"A list has at most {MOST_COMMAS} commas: send application/x-ndjson, one record a line"
        )
    try:
        values = _list(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _not_json(error) from None
    if not values:
        raise Refused(400, "EMPTY", "The request has no records")
    if len(values) > most:
        raise _too_many(most)
    return False, values


_value = msgspec.json.Decoder(msgspec.Raw).decode


def _check(body: bytes) -> None:
    """That it is JSON at all: what is not is no record of any topic, and is said so (400)."""
    try:
        _value(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _not_json(error) from None


def _not_json(error: Exception) -> Refused:
    reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
    return Refused(400, "INVALID_JSON", f"The request is not JSON: {reason[:200]}")


def _too_many(most: int) -> Refused:
    return Refused(413, "TOO_MANY", f"A request has at most {most} records")
