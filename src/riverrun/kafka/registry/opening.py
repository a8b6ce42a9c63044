"""Records for people who look: what is behind a registry's header shown as JSON, all else as it lies in the topic."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from riverrun.config import RegistrySettings
from riverrun.errors import SchemaUnknownError
from riverrun.kafka.registry.client import KINDS, registry_of
from riverrun.kafka.registry.wire import avro_reader
from riverrun.model.framing import is_framed, unframed
from riverrun.model.record import RawRecord

_dump = msgspec.json.Encoder().encode


def open_value(settings: RegistrySettings, value: bytes) -> bytes:
    """The JSON in a value; the value itself where it has no header, no registry is known, or it cannot be read.
    RegistryUnavailableError, RegistryRefusedError where the registry cannot be asked."""
    if not is_framed(value) or not settings.url:
        return value
    schema_id, payload = unframed(value)
    try:
        return _dump(_reader(settings, schema_id)(payload))
    except (SchemaUnknownError, ValueError, TypeError, EOFError, LookupError, ArithmeticError):
        return value


@lru_cache(maxsize=256)
def _reader(settings: RegistrySettings, schema_id: int) -> Callable[[bytes], Any]:
    kind, text = registry_of(settings).schema(schema_id)
    return avro_reader(text) if kind == KINDS["avro"] else msgspec.json.Decoder(msgspec.Raw).decode


class _Opened:
    """A record whose value is shown opened."""

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


def opened(settings: RegistrySettings, records: Sequence[RawRecord]) -> Sequence[RawRecord]:
    """The records with what can be opened opened; the very same ones where there is nothing to open."""
    if not settings.url or not any(is_framed(each.value()) for each in records):
        return records
    return [
        _Opened(each, open_value(settings, value)) if (value := each.value()) is not None and is_framed(value) else each
        for each in records
    ]
