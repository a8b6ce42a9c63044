"""Records for display: values behind a registry's header as JSON, all others unchanged."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from riverrun.config import RegistrySettings
from riverrun.errors import SchemaUnknownError
from riverrun.kafka.registry.client import SCHEMA_TYPES, registry_of
from riverrun.kafka.registry.wire_format import avro_decoder
from riverrun.model.framing import decode_frame, is_framed
from riverrun.model.record import RawRecord

_dump = msgspec.json.Encoder().encode


def value_to_json(settings: RegistrySettings, value: bytes) -> bytes:
    """The JSON of a value; the value itself if it has no header, no registry is known, or it cannot be decoded.
    RegistryUnavailableError, RegistryRefusedError if the registry cannot be asked."""
    if not is_framed(value) or not settings.url:
        return value
    schema_id, payload = decode_frame(value)
    try:
        return _dump(_payload_decoder(settings, schema_id)(payload))
    except (SchemaUnknownError, ValueError, TypeError, EOFError, LookupError, ArithmeticError):
        return value


@lru_cache(maxsize=256)
def _payload_decoder(settings: RegistrySettings, schema_id: int) -> Callable[[bytes], Any]:
    schema_type, text = registry_of(settings).schema(schema_id)
    return avro_decoder(text) if schema_type == SCHEMA_TYPES["avro"] else msgspec.json.Decoder(msgspec.Raw).decode


class _JsonRecord:
    """A record whose value is decoded to JSON."""

    def __init__(self, record: RawRecord, value: bytes) -> None:
        self._record = record
        self._value = value

    def value(self) -> bytes | None:
        return self._value

    def topic(self) -> str | None:
        return self._record.topic()

    def partition(self) -> int | None:
        return self._record.partition()

    def offset(self) -> int | None:
        return self._record.offset()

    def key(self) -> bytes | None:
        return self._record.key()

    def timestamp(self) -> tuple[int, int]:
        return self._record.timestamp()

    def headers(self) -> Any:
        return self._record.headers()


def records_to_json(settings: RegistrySettings, records: Sequence[RawRecord]) -> Sequence[RawRecord]:
    """The records with framed values decoded to JSON; the very same ones if there are none."""
    if not settings.url or not any(is_framed(record.value()) for record in records):
        return records
    return [
        _JsonRecord(record, value_to_json(settings, value))
        if (value := record.value()) is not None and is_framed(value)
        else record
        for record in records
    ]
