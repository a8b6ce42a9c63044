"""Records from lines: JSON, text or CSV, with the line number of every one that is not a record.

A stream of any length is read in bounded memory: one line at a time, and of a line that is longer than a record may be, no
more than that.
"""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import msgspec

from riverrun.errors import RecordUnreadableError, UsageError
from riverrun.model.event import Event, EventSchema
from riverrun.model.suggest import nearest

BOM = b"\xef\xbb\xbf"
_TRUNCATED = "\udfff"
_DOCUMENT_HINT = "; this looks like one JSON document over many lines: jq -c makes lines of it (of a list: jq -c '.[]')"


class LineRecord(NamedTuple):
    """A record as it is to be sent, and the line it came from."""

    number: int
    key: str | bytes | None
    value: bytes


@dataclass(frozen=True)
class BadLine:
    """A line that is not a record, why, and as much of it as was kept."""

    number: int
    reason: str
    data: bytes


class RecordParseError(Exception):
    """Why one line is not a record."""


KeyAndValue = tuple[str | bytes | None, bytes]
RecordParser = Callable[[bytes], KeyAndValue]


def json_lines(
    stream: BinaryIO,
    *,
    schema: EventSchema[Event] | None = None,
    key: str = "",
    separator: bytes = b"",
    limit: int,
) -> Iterator[LineRecord | BadLine]:
    """One record a line, sent as it stands. With a schema each is checked and keyed by it; else `key` names the field
    (dots lead inside) whose value is the key, or `separator` divides the line into key and value."""
    return _lines(stream, _with_separator(json_parser(schema, key), separator), limit)


def text_lines(stream: BinaryIO, *, separator: bytes = b"", limit: int) -> Iterator[LineRecord | BadLine]:
    """One record a line, whatever it holds, white space included."""
    return _lines(stream, _with_separator(lambda line: (None, line), separator), limit, b"\r\n")


def _lines(
    stream: BinaryIO, parse: RecordParser, limit: int, blank: bytes | None = None
) -> Iterator[LineRecord | BadLine]:
    for number, raw, whole in _raw_lines(stream, limit):
        line = raw.strip(blank)
        if not line or line.isspace():
            continue
        if not whole or len(line) > limit:
            yield BadLine(number, f"it is longer than a record may be ({limit} bytes)", line)
            continue
        try:
            if not line.isascii():
                line.decode()
            key, value = parse(line)
        except UnicodeDecodeError as error:
            yield BadLine(number, f"it is not UTF-8 text (byte {error.start + 1} of the line)", line)
        except RecordParseError as error:
            hint = _DOCUMENT_HINT if number == 1 and line in (b"{", b"[") else ""
            yield BadLine(number, f"{error}{hint}", line)
        else:
            yield LineRecord(number, key, value)


def _raw_lines(stream: BinaryIO, limit: int) -> Iterator[tuple[int, bytes, bool]]:
    """Numbered lines, and whether each is whole: of one that is much longer than `limit` only the beginning is kept."""
    read = stream.readline
    number = 0
    bound = limit + len(BOM) + 2
    while line := read(bound):
        number += 1
        if number == 1:
            line = line.removeprefix(BOM)
        whole = len(line) < bound - len(BOM) or line.endswith(b"\n")
        if not whole:
            while (rest := read(bound)) and not rest.endswith(b"\n"):
                pass
        yield number, line, whole


def _with_separator(parse: RecordParser, separator: bytes) -> RecordParser:
    if not separator:
        return parse

    def split(line: bytes) -> KeyAndValue:
        key, separated, rest = line.partition(separator)
        if not separated:
            raise RecordParseError(f"there is no {separator.decode()!r} between key and value")
        return key, parse(rest)[1]

    return split


def json_parser(schema: EventSchema[Event] | None, key: str) -> RecordParser:
    """Parses the bytes of one JSON value into key and value; raises RecordParseError when it is no record. See
    `json_lines`."""
    if schema is not None:
        decode, key_of = schema.decode, schema.key_of

        def typed(line: bytes) -> KeyAndValue:
            try:
                return key_of(decode(line)), line
            except RecordUnreadableError as error:
                raise RecordParseError(str(error.fields["reason"])) from error

        return typed
    if key:
        get = key_getter(key)
        return lambda line: (get(line), line)
    check = msgspec.json.Decoder(msgspec.Raw).decode

    def untyped(line: bytes) -> KeyAndValue:
        try:
            check(line)
        except msgspec.DecodeError as error:
            raise RecordParseError(_json_reason(error)) from error
        return None, line

    return untyped


def key_getter(field: str) -> Callable[[bytes], bytes]:
    """Finds the value of a field in JSON bytes, as a key. Reads no other field into memory."""
    path = field.split(".")
    shape: Any = msgspec.UnsetType | Any
    for depth, name in enumerate(reversed(path)):
        shape = msgspec.defstruct(f"Key{depth}", [("inner", shape)], rename={"inner": name})
    decode = msgspec.json.Decoder(shape).decode

    def get(line: bytes) -> bytes:
        try:
            value = decode(line)
        except msgspec.ValidationError as error:
            raise RecordParseError(f"it has no key field {field}: {_json_reason(error)}") from error
        except msgspec.DecodeError as error:
            raise RecordParseError(_json_reason(error)) from error
        for _ in path:
            value = value.inner
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, int | float) and not isinstance(value, bool):
            return msgspec.json.encode(value)
        raise RecordParseError(f"its key field {field} is {msgspec.json.encode(value).decode()}, which cannot be a key")

    return get


def _json_reason(error: Exception) -> str:
    text = str(error)
    return text[:1].lower() + text[1:] if not text.startswith("JSON") else text


def csv_lines(
    stream: BinaryIO, *, schema: EventSchema[Event] | None = None, key: str = "", limit: int, delimiter: str = ","
) -> Iterator[LineRecord | BadLine]:
    """One record a row, after a row of names. With a schema its types are read from the cells (an empty cell is a field
    that is not given); without one all are text."""
    csv.field_size_limit(limit)
    reader = csv.reader(_decoded(stream, limit), delimiter=delimiter, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise UsageError("The first row is not CSV", found=str(error)) from error
    if not header:
        return
    _check_header(header, schema, key)
    make = _typed_row(header, schema) if schema is not None else _text_row(header, key)
    last = reader.line_num
    while True:
        start = last + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            last = reader.line_num
            yield BadLine(start, f"it is not CSV: {error}", b"")
            continue
        last = reader.line_num
        if cells:
            yield _row(start, cells, header, make, limit)


def _row(
    number: int,
    cells: list[str],
    header: list[str],
    make: Callable[[list[str]], KeyAndValue],
    limit: int,
) -> LineRecord | BadLine:
    try:
        if cells[-1].endswith(_TRUNCATED):
            raise RecordParseError(f"it is longer than a record may be ({limit} bytes)")
        if len(cells) != len(header):
            raise RecordParseError(f"it has {len(cells)} cells, and the first row names {len(header)}")
        key, value = make(cells)
    except UnicodeEncodeError:
        return BadLine(number, "it is not UTF-8 text", _joined(cells))
    except RecordParseError as error:
        return BadLine(number, str(error), _joined(cells))
    if len(value) > limit:
        return BadLine(number, f"its record would be {len(value)} bytes, and may be {limit}", _joined(cells))
    return LineRecord(number, key, value)


def _joined(cells: list[str]) -> bytes:
    quoted = ('"' + cell.replace('"', '""') + '"' if any(c in cell for c in ',"\n') else cell for cell in cells)
    return ",".join(quoted).removesuffix(_TRUNCATED).encode(errors="surrogateescape")


def _decoded(stream: BinaryIO, limit: int) -> Iterator[str]:
    # Bytes that are not UTF-8 pass as surrogates, and the cut of a truncated line as one they never make, so that the
    # row they are in can be named.
    for _, line, whole in _raw_lines(stream, limit):
        text = line.decode(errors="surrogateescape")
        yield text if whole else f"{text}{_TRUNCATED}\n"


def _check_header(header: list[str], schema: EventSchema[Event] | None, key: str) -> None:
    duplicates = sorted({name for name in header if header.count(name) > 1})
    if duplicates:
        raise UsageError(
            f"The first row names {', '.join(duplicates)} twice", hint="Each column needs a name of its own"
        )
    if schema is None:
        if key and key not in header:
            near = nearest(key, header)
            raise UsageError(
                f"There is no column {key} for the key",
                found=", ".join(header),
                hint=f"Did you mean {near}?" if near else "The first row must name the columns",
            )
        return
    fields = {field.encode_name: field for field in msgspec.structs.fields(schema.event)}
    for name in header:
        if name not in fields:
            near = nearest(name, fields)
            raise UsageError(
                f"The column {name!r} is no field of {schema.name}",
                expected=", ".join(fields),
                hint=f"Did you mean {near}?" if near else "Take the column out, or add the field",
            )
    missing = [name for name, schema_field in fields.items() if schema_field.required and name not in header]
    if missing:
        raise UsageError(f"There is no column for {', '.join(missing)} of {schema.name}", found=", ".join(header))


def _text_row(header: list[str], key: str) -> Callable[[list[str]], KeyAndValue]:
    key_index = header.index(key) if key else -1

    def make(cells: list[str]) -> KeyAndValue:
        value = msgspec.json.encode(dict(zip(header, cells, strict=True)))
        return (cells[key_index].encode() if key_index >= 0 else None), value

    return make


def _typed_row(header: list[str], schema: EventSchema[Event]) -> Callable[[list[str]], KeyAndValue]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(schema.event)}
    keep_empty = {name for name in header if fields[name].required and _is_text(fields[name].type)}

    def make(cells: list[str]) -> KeyAndValue:
        given = {name: cell for name, cell in zip(header, cells, strict=True) if cell or name in keep_empty}
        try:
            event = msgspec.convert(given, schema.event, strict=False)
        except msgspec.ValidationError as error:
            text, _, path = str(error).partition(" - at `$.")
            where = f"{path.rstrip('`')}: " if path else ""
            raise RecordParseError(f"{where}{text[:1].lower()}{text[1:]}") from error
        return schema.key_of(event), schema.encode(event)

    return make


def _is_text(kind: Any) -> bool:
    while getattr(kind, "__metadata__", None):
        kind = kind.__origin__
    return kind is str
