"""The Avro schema of an event class, as stored in a registry. docs/registry.md has the table of types."""

import json
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
from msgspec import inspect

from riverrun.errors import DeclarationError

# As many digits as Spark and most databases hold.
PRECISION, SCALE = 38, 18
SUPPORTED_TYPES = (
    "str, int, float, bool, datetime with a time zone, date, bytes, UUID, Decimal, an Enum or Literal of str or of int, \
list, dict with str keys, another event, and each of these or None"
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_DEFAULT: Any = object()


def avro_schema(event: type[Any]) -> str:
    """The schema's text, always the same for the same class; DeclarationError for a field that Avro cannot represent."""
    info = inspect.type_info(event)
    assert isinstance(info, inspect.StructType)  # noqa: S101  -- an event class is a struct
    return json.dumps(_AvroSchemaBuilder(event.__name__).record(info, ""), ensure_ascii=False)


class _AvroSchemaBuilder:
    def __init__(self, event: str) -> None:
        self.event = event
        # A name is defined at its first use, and referred to by name from then on.
        self._defined: dict[str, object] = {}

    def record(self, info: inspect.StructType, path: str) -> Any:
        if info.array_like or info.tag is not None:
            raise self._unsupported(path, "a class with array_like or tag")
        name = info.cls.__name__
        if (known := self._reference(name, info.cls, path)) is not None:
            return known
        fields = [self._field(field, name, f"{path}.{field.name}" if path else field.name) for field in info.fields]
        return {"type": "record", "name": name, "fields": fields}

    def _reference(self, name: str, definition: object, path: str) -> str | None:
        if not _NAME.fullmatch(name):
            raise self._unsupported(path, f"the name {name!r}: Avro takes letters, digits and underscores")
        if name not in self._defined:
            self._defined[name] = definition
            return None
        if self._defined[name] != definition:
            raise self._unsupported(path, f"two types of the name {name}")
        return name

    def _field(self, info: inspect.Field, record: str, path: str) -> dict[str, Any]:
        if not _NAME.fullmatch(info.encode_name):
            raise self._unsupported(path, f"the name {info.encode_name!r}: Avro takes letters, digits and underscores")
        kind, nullable = _without_none(info.type)
        avro_type = self._avro_type(kind, f"{record}_{info.encode_name}", path)
        default = _default_of(info, kind)
        if not nullable:
            declared = {"type": avro_type}
        elif default in (None, _NO_DEFAULT):
            declared = {"type": ["null", avro_type]}
        else:
            # The default of a union has its first type.
            declared = {"type": [avro_type, "null"]}
        return {"name": info.encode_name, **declared, **({} if default is _NO_DEFAULT else {"default": default})}

    def _nullable_type(self, info: inspect.Type, name: str, path: str) -> Any:
        kind, nullable = _without_none(info)
        avro_type = self._avro_type(kind, name, path)
        return ["null", avro_type] if nullable else avro_type

    def _avro_type(self, info: inspect.Type, name: str, path: str) -> Any:  # noqa: C901, PLR0912  -- one case a type
        match info:
            case inspect.Metadata():
                return self._avro_type(info.type, name, path)
            case inspect.StrType():
                return "string"
            case inspect.IntType():
                return "long"
            case inspect.FloatType():
                return "double"
            case inspect.BoolType():
                return "boolean"
            case inspect.BytesType():
                return "bytes"
            case inspect.DateTimeType() if info.tz is True:
                return {"type": "long", "logicalType": "timestamp-micros"}
            case inspect.DateType():
                return {"type": "int", "logicalType": "date"}
            case inspect.UUIDType():
                return {"type": "string", "logicalType": "uuid"}
            case inspect.DecimalType():
                return {"type": "bytes", "logicalType": "decimal", "precision": PRECISION, "scale": SCALE}
            case inspect.EnumType():
                return self._enum_type([member.value for member in info.cls], info.cls.__name__, path)
            case inspect.LiteralType():
                return self._enum_type([value for value in info.values if value is not None], name, path)
            case inspect.ListType():
                return {"type": "array", "items": self._nullable_type(info.item_type, f"{name}_item", f"{path}[]")}
            case inspect.DictType(key_type=inspect.StrType()):
                return {"type": "map", "values": self._nullable_type(info.value_type, f"{name}_value", f"{path}{{}}")}
            case inspect.StructType():
                return self.record(info, path)
        raise self._unsupported(path, _type_name(info))

    def _enum_type(self, values: Iterable[Any], name: str, path: str) -> Any:
        choices = list(values)
        if all(type(choice) is int for choice in choices):
            return "long"
        if not all(isinstance(choice, str) for choice in choices):
            raise self._unsupported(path, f"a choice of {', '.join(map(repr, choices))}")
        if not all(_NAME.fullmatch(choice) for choice in choices):
            # An Avro enum has names; these are texts.
            return "string"
        return self._reference(name, tuple(choices), path) or {"type": "enum", "name": name, "symbols": choices}

    def _unsupported(self, path: str, found: str) -> DeclarationError:
        where = f"{self.event}.{path}" if path else self.event
        return DeclarationError(
            f"Avro cannot carry {where}",
            expected=SUPPORTED_TYPES,
            found=found,
            hint='Change the field, or use format="json-schema"',
            event=self.event,
            field=path,
        )


def _without_none(info: inspect.Type) -> tuple[inspect.Type, bool]:
    """The type of a field's value, and whether it may be None."""
    if isinstance(info, inspect.Metadata):
        return _without_none(info.type)
    if isinstance(info, inspect.UnionType) and info.includes_none and len(info.types) == 2:
        return next(type_ for type_ in info.types if not isinstance(type_, inspect.NoneType)), True
    if isinstance(info, inspect.LiteralType) and None in info.values:
        return info, True
    return info, False


def _default_of(info: inspect.Field, kind: inspect.Type) -> Any:
    """A field's default in the schema: what a reader fills in where an older record has no such field."""
    value = info.default
    if info.default_factory in (list, dict):
        value = info.default_factory()
    if value is msgspec.NODEFAULT:
        return _NO_DEFAULT
    return _avro_default(value, kind)


def _avro_default(value: Any, kind: inspect.Type) -> Any:
    match value:
        case Enum():
            return value.value
        case None | bool() | str():
            return value
        case int() | float():
            return float(value) if isinstance(kind, inspect.FloatType) else value
        case bytes():
            return value.decode("latin-1")
        case datetime():
            return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        case date():
            return (value - date(1970, 1, 1)).days
        case UUID():
            return str(value)
        case Decimal():
            unscaled = int(value.scaleb(SCALE))
            return unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True).decode("latin-1")
        case [] | {}:
            return value
    return _NO_DEFAULT


def _type_name(info: inspect.Type) -> str:
    if isinstance(info, inspect.UnionType):
        return " | ".join(_type_name(type_) for type_ in info.types)
    if isinstance(info, inspect.DateTimeType):
        return "a datetime that may have no time zone"
    return type(info).__name__.removesuffix("Type").lower()
