"""A record of a topic, and the forms in which it is shown: as it is, as JSON, as a row of a table."""

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Protocol

import msgspec

_RAW = msgspec.json.Decoder(msgspec.Raw).decode
_ENCODE = msgspec.json.Encoder().encode


class RawRecord(Protocol):
    """A record as the client library returns it; `timestamp` is (kind, milliseconds since 1970)."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def headers(self) -> Any: ...


def decode_json(value: bytes | None) -> tuple[bool, Any]:
    """Whether these bytes are JSON, and the decoded value. No bytes at all are a tombstone: JSON's null."""
    if value is None:
        return True, None
    try:
        return True, msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False, None


def json_line(record: RawRecord) -> bytes:
    """The record as one line of JSON. A part that is not JSON is in `…_text`, one that is not text in `…_base64`."""
    stamp = record.timestamp()[1]
    time = f'"{format_timestamp(stamp)}"' if stamp >= 0 else "null"
    coordinates = f'"topic":"{record.topic()}","partition":{record.partition()},"offset":{record.offset()}'
    head = f'{{{coordinates},"timestamp":{time},'
    parts = [head.encode(), _key_part(record.key()), b",", _value_part(record.value())]
    if headers := record.headers():
        parts += [b',"headers":', _ENCODE({name: _readable(value) for name, value in headers})]
    parts.append(b"}")
    return b"".join(parts)


def _key_part(key: bytes | None) -> bytes:
    if key is None:
        return b'"key":null'
    try:
        return b'"key":' + _ENCODE(key.decode())
    except UnicodeDecodeError:
        return b'"key_base64":"' + base64.b64encode(key) + b'"'


def _value_part(value: bytes | None) -> bytes:
    if value is None:
        return b'"value":null'
    try:
        if not value.isascii():
            value.decode()
        _RAW(value)
    except UnicodeDecodeError:
        return b'"value_base64":"' + base64.b64encode(value) + b'"'
    except msgspec.DecodeError:
        return b'"value_text":' + _ENCODE(value.decode())
    # Line breaks in JSON are white space between its parts; an output line must not have them.
    return b'"value":' + (
        value.replace(b"\r", b" ").replace(b"\n", b" ") if b"\n" in value or b"\r" in value else value
    )


def _readable(value: bytes | str | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()


@lru_cache(maxsize=4096)
def format_timestamp(milliseconds: int) -> str:
    """A record's timestamp, in UTC."""
    text = datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def plain_line(record: RawRecord, *, with_key: bool, on_terminal: bool) -> bytes:
    """The value as it is, after its key and a tab if requested. A terminal gets no control characters from records."""
    value = record.value()
    shown = b"null" if value is None else value
    if on_terminal:
        shown = safe_text(shown)
    if not with_key:
        return shown
    key = record.key() or b""
    return (safe_text(key) if on_terminal else key) + b"\t" + shown


def safe_text(value: bytes) -> bytes:
    """Bytes made harmless for a terminal: what is not printable text is written as escapes."""
    text = value.decode(errors="backslashreplace")
    if text.isprintable():
        return text.encode()
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text).encode()


def table_row(record: RawRecord) -> dict[str, Any]:
    """The record as a row: its partition and offset, time and key, then the fields of a JSON object, or the value as it
    is."""
    value = record.value()
    row: dict[str, Any] = {
        "partition": record.partition(),
        "offset": record.offset(),
        "time": format_timestamp(record.timestamp()[1]) if record.timestamp()[1] >= 0 else None,
        "key": safe_text(record.key() or b"").decode(),
    }
    is_json, content = decode_json(value)
    if is_json and isinstance(content, Mapping):
        return row | {
            f"value.{name}" if name in row else str(name): field_value for name, field_value in content.items()
        }
    row["value"] = content if is_json else safe_text(value or b"").decode()
    return row


def column_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """All columns of these rows, in the order they first appear."""
    return list(dict.fromkeys(name for row in rows for name in row))
