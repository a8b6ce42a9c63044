"""Converts the bytes of Kafka records to typed columns and back, in plain Spark SQL: real-time mode refuses Python
functions.

`RecordSchema.parse` tells valid records from bad ones as the project's own decoder does (model/event.py). It accepts these,
which the decoder rejects, because Spark's JSON parser shows less than msgspec's:

- null for a list, dict or struct that has a default: it counts as missing;
- a field twice, the first time with a bad time, date, text, UUID, bytes or Decimal: the last is taken;
- a number for text, when the field's name is written with escapes and another of that name, deeper inside, has text.

It rejects these, which the decoder accepts, because a column cannot hold them or the check would cost too much: an integer
beyond 64 bits; a Decimal that DECIMAL(38,18) would round, that is no number, is written with spaces, underscores or digits
other than 0 to 9, or is a JSON number with an exponent and more than 15 digits; a time more than 18 hours from UTC, or in a
nested msgspec.Struct without a zone; bytes that are not UTF-8 in a field the event does not have, beside lists, dicts or
structs with text; any name twice, beside text that reads like a number; a value that only an Enum's `_missing_` accepts; a
number of more than 1000 digits; objects 1000 deep.

A UUID is text in lower case with dashes, an Enum its value, an event inside another a struct, bytes binary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import msgspec
from msgspec import inspect
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  -- the name everybody knows
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from riverrun.errors import DeclarationError
from riverrun.model.event import Event, schema_of
from riverrun.streams.compile import json_types
from riverrun.streams.compile.java_regex import java_pattern
from riverrun.streams.compile.json_types import (
    JsonField,
    JsonList,
    JsonMap,
    JsonObject,
    JsonScalar,
    JsonType,
    JsonValueSpec,
    SqlCheck,
    all_of,
    ddl,
    literal,
    on_value,
    quote,
)

_END_FIELD, _CORRUPT_FIELD = "riverrun.end", "riverrun.broken"
_READ_OPTIONS = {
    "columnNameOfCorruptRecord": _CORRUPT_FIELD,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}
_WRITE_OPTIONS = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
    "ignoreNullFields": "false",  # or an optional field with a default would come back as the default
}
_FIELD_TYPES = (
    "str, int, float, bool, datetime, date, bytes, UUID, Decimal, an Enum or Literal of str or of int, list, \
dict with str keys, another event, and each of these or None"
)
_COLUMN_TYPES = (
    "string, the integers, float, double, decimal, boolean, timestamp, date, binary, and arrays, structs and maps \
with string keys of these"
)


@dataclass(frozen=True)
class RecordSchema:
    """The schema of a topic's records for Spark. `columns` are what the user sees, in order."""

    columns: StructType
    _object_type: JsonObject = field(repr=False)
    _forbids_unknown: bool = field(default=False, repr=False)

    @classmethod
    def from_event(cls, event: type[Event]) -> "RecordSchema":
        """The schema of a topic of events; DeclarationError for a field that streams cannot carry."""
        schema_of(event)
        info = inspect.type_info(event)
        assert isinstance(info, inspect.StructType)  # noqa: S101  -- an event class is a struct
        record = _EventSchemaBuilder(event.__name__).record(info, "", ())
        return cls(record.spark_type, record, info.forbid_unknown_fields)

    @classmethod
    def from_columns(cls, columns: StructType) -> "RecordSchema":
        """The schema of a stream's output, as `encode_value` writes it. A nullable column may be absent."""
        record = _struct_type(columns, "")
        return cls(columns, record)

    def parse(self, raw: DataFrame, value: str = "value") -> DataFrame:
        """All columns of `raw`, then those of this schema, then `_ok`: whether the record is valid, never null.

        `raw` has the bytes in the column `value`. Columns of bad records may have any value. Put `observe()` or another
        barrier right after, or Spark's optimizer moves a filter on `_ok` below and parses every record several times. Name
        the columns of `raw` so that no field has the same name: DeclarationError otherwise.
        """
        clash = sorted(
            {column.lower() for column in raw.columns} & {name.lower() for name in [*self.columns.names, "_ok"]}
        )
        if clash:
            raise DeclarationError(
                "A record's own columns and those of its value have the same name",
                found=", ".join(clash),
                columns=clash,
            )
        # A column of its own: Spark does not compile from_json, nor the expressions inside it.
        with_end = raw.select("*", F.expr(self._with_end_field(quote(value))).alias("_text"))
        fields_ = tuple(_top_level_field(member, "_text") for member in self._object_type.fields)
        source = JsonObject(fields_).source_type(exact=False)
        schema = StructType(
            [*source.fields, StructField(_END_FIELD, LongType()), StructField(_CORRUPT_FIELD, StringType())]
        )
        kept = [quote(column) for column in raw.columns]
        read = with_end.select(*kept, "_text", F.from_json("_text", schema, _READ_OPTIONS).alias("_json"))
        values = [F.expr(member.value_spec.value_sql(_json_path(member))).alias(member.name) for member in fields_]
        typed = read.select(*kept, "_text", "_json", *values)
        valid = all_of([
            f"_json.{quote(_CORRUPT_FIELD)} is null",
            f"_json.{quote(_END_FIELD)} = 1",
            *(member.value_spec.valid_sql(_json_path(member), quote(member.name)) for member in fields_),
            self._is_utf8("_text"),
            self._has_known_names(f"cast({quote(value)} as string)"),
        ])  # fmt: skip
        names = [quote(member.name) for member in fields_]
        return typed.select(*kept, *names, F.expr(f"coalesce({valid}, false)").alias("_ok"))

    def _with_end_field(self, value: str) -> str:
        """The record's text with one more field before its last brace; null if its last character is not a brace.

        Spark stops reading at the end of the first value. If something follows it, the new field is not found.
        """
        end = literal(f',"{_END_FIELD}":1}}')

        def ended(binary: str) -> str:
            return f"cast(concat(substring({binary}, 1, length({binary}) - 1), cast({end} as binary)) as string)"

        text = f"cast({value} as string)"
        trimmed = f"regexp_replace({text}, '[ \\\\t\\\\r\\\\n]+\\\\z', '')"
        slow = f"if(endswith({trimmed}, '}}'), {ended(f'cast({trimmed} as binary)')}, null)"
        if not any(
            member.value_spec.default is None and not member.value_spec.nullable for member in self._object_type.fields
        ):
            empty = f"{trimmed} rlike '^[ \\\\t\\\\r\\\\n]*[{{][ \\\\t\\\\r\\\\n]*[}}]\\\\z'"
            alone = literal(f'{{"{_END_FIELD}":1}}')
            return f"case when {empty} then {alone} when endswith({text}, '}}') then {ended(value)} else {slow} end"
        return f"if(endswith({text}, '}}'), {ended(value)}, {slow})"

    def _is_utf8(self, text: str) -> str:
        """Whether the record is UTF-8, checked only where Spark has read a replacement character or may have."""
        kinds_of = {column.name: column.dataType for column in self.columns.fields}
        if any("string" in kind.simpleString() for kind in kinds_of.values() if not isinstance(kind, StringType)):
            return f"is_valid_utf8({text})"
        shown = [
            f"contains({quote(name)}, '\ufffd')" for name, kind in kinds_of.items() if isinstance(kind, StringType)
        ]
        return f"(not coalesce({' or '.join(shown)}, false) or is_valid_utf8({text}))" if shown else ""

    def _has_known_names(self, text: str) -> str:
        """The check for forbid_unknown_fields, which parses the record again."""
        if not self._forbids_unknown:
            return ""
        names = ", ".join(literal(member.json_name) for member in self._object_type.fields)
        return f"forall(json_object_keys({text}), x -> x in ({names}))"


def _json_path(field_: JsonField) -> str:
    return f"_json.{quote(field_.json_name)}"


def _top_level_field(field_: JsonField, record: str) -> JsonField:
    json_type, value_spec = field_.value_spec.json_type, field_.value_spec
    if not isinstance(json_type, JsonScalar) or value_spec.distinguishes_null:
        return field_
    return replace(field_, value_spec=replace(value_spec, json_type=json_type.for_top_level(field_.json_name, record)))


class _EventSchemaBuilder:
    """Builds JSON types from msgspec's description of an event class, including constraints."""

    def __init__(self, event: str) -> None:
        self.event = event

    def record(self, info: inspect.StructType, path: str, outer: tuple[type, ...]) -> JsonObject:
        if info.array_like or info.tag is not None or (path and info.forbid_unknown_fields):
            raise self._unsupported(path, "a class with array_like, tag or, inside another, forbid_unknown_fields")
        if info.cls in outer:
            raise self._unsupported(path, f"{info.cls.__name__} inside itself")
        outer = (*outer, info.cls)
        members = tuple(
            self._field(member, f"{path}.{member.name}" if path else member.name, outer) for member in info.fields
        )
        lower = [member.name.lower() for member in members]
        twice = sorted({member.name for member in members if lower.count(member.name.lower()) > 1})
        if twice:
            raise self._unsupported(path or twice[0], f"{' and '.join(twice)}: Spark's column names have no capitals")
        return JsonObject(members)

    def _field(self, info: inspect.Field, path: str, outer: tuple[type, ...]) -> JsonField:
        value_spec = self._value_spec(info.type, path, outer)
        if info.required:
            return JsonField(info.encode_name, info.name, value_spec)
        default = info.default
        if info.default_factory is not msgspec.NODEFAULT:
            if info.default_factory not in (list, dict):
                raise self._unsupported(path, "a default that is made anew for each event")
            default = info.default_factory()
        return JsonField(
            info.encode_name,
            info.name,
            JsonValueSpec(value_spec.json_type, value_spec.nullable, self._default(value_spec, default, path)),
        )

    def _default(self, value_spec: JsonValueSpec, value: Any, path: str) -> str:
        """The SQL of a default: its JSON, parsed like a record's. Spark evaluates it once, before the query runs."""
        if value is None:
            return "null"
        try:
            encoded = msgspec.json.encode({"v": value}).decode()
        except (TypeError, ValueError) as error:
            raise self._unsupported(path, f"the default {value!r}") from error
        read = f"from_json({literal(encoded)}, {literal('v ' + ddl(value_spec.json_type.source_type(exact=True)))}).v"
        return value_spec.json_type.value_sql(read, exact=True, depth=0)

    def _value_spec(self, info: inspect.Type, path: str, outer: tuple[type, ...]) -> JsonValueSpec:
        if isinstance(info, inspect.Metadata):
            return self._value_spec(info.type, path, outer)
        if isinstance(info, inspect.UnionType) and info.includes_none and len(info.types) == 2:
            inner = next(type_ for type_ in info.types if not isinstance(type_, inspect.NoneType))
            return JsonValueSpec(self._json_type(inner, path, outer), nullable=True)
        if isinstance(info, inspect.LiteralType) and None in info.values:
            return JsonValueSpec(
                self._choice_type([value for value in info.values if value is not None], path), nullable=True
            )
        return JsonValueSpec(self._json_type(info, path, outer))

    def _json_type(self, info: inspect.Type, path: str, outer: tuple[type, ...]) -> JsonType:  # noqa: C901, PLR0912  -- one case a type
        match info:
            case inspect.Metadata():
                return self._json_type(info.type, path, outer)
            case inspect.StrType():
                return json_types.text(*self._text_checks(info, path))
            case inspect.IntType():
                return json_types.integer(*_limit_checks(info))
            case inspect.FloatType():
                return json_types.number(*_limit_checks(info))
            case inspect.BoolType():
                return json_types.boolean()
            case inspect.DateTimeType() if info.tz is not False:
                return json_types.timestamp()
            case inspect.DateType():
                return json_types.date()
            case inspect.BytesType():
                return json_types.binary(*_length_checks(info, "octet_length"))
            case inspect.UUIDType():
                return json_types.uuid()
            case inspect.DecimalType():
                return json_types.JsonDecimal()
            case inspect.EnumType():
                return self._choice_type([member.value for member in info.cls], path)
            case inspect.LiteralType():
                return self._choice_type(info.values, path)
            case inspect.ListType():
                return JsonList(
                    self._value_spec(info.item_type, f"{path}[]", outer), tuple(_length_checks(info, "size"))
                )
            case inspect.DictType(key_type=inspect.StrType() as text):
                key = json_types.text(*self._text_checks(text, path))
                return JsonMap(
                    key, self._value_spec(info.value_type, f"{path}{{}}", outer), tuple(_length_checks(info, "size"))
                )
            case inspect.StructType():
                return self.record(info, path, outer)
        raise self._unsupported(path, _type_name(info))

    def _choice_type(self, values: Iterable[Any], path: str) -> JsonScalar:
        choices = [value.value if isinstance(value, Enum) else value for value in values]
        if choices and all(isinstance(choice, str) for choice in choices):
            return json_types.text(json_types.one_of(choices), strict=any(map(json_types.looks_like_non_text, choices)))
        if choices and all(type(choice) is int and abs(choice) < 2**63 for choice in choices):
            return json_types.integer(json_types.one_of(choices))
        raise self._unsupported(path, f"a choice of {', '.join(map(repr, choices))}")

    def _text_checks(self, info: inspect.StrType, path: str) -> list[SqlCheck]:
        checks = list(_length_checks(info, "char_length"))
        if info.pattern is not None:
            try:
                checks.append(json_types.matches(java_pattern(info.pattern)))
            except DeclarationError as error:
                raise DeclarationError(
                    f"{self.event}.{path}: {error.what}",
                    found=error.found,
                    hint=error.hint,
                    event=self.event,
                    field=path,
                ) from error
        return checks

    def _unsupported(self, path: str, found: str) -> DeclarationError:
        return DeclarationError(
            f"Streams cannot carry {self.event}.{path}" if path else f"Streams cannot carry {self.event}",
            expected=_FIELD_TYPES,
            found=found,
            event=self.event,
            field=path,
        )


def _type_name(info: inspect.Type) -> str:
    if isinstance(info, inspect.UnionType):
        return " | ".join(_type_name(type_) for type_ in info.types)
    if isinstance(info, inspect.DateTimeType):
        return "datetime without a zone"
    return type(info).__name__.removesuffix("Type").lower()


def _limit_checks(info: inspect.IntType | inspect.FloatType) -> list[SqlCheck]:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    limits = {name: getattr(info, name) for name in (*signs, "multiple_of") if getattr(info, name) is not None}
    checks = []
    for name, limit in limits.items():
        limit_sql = f"double('{float(limit)!r}')" if isinstance(info, inspect.FloatType) else f"{limit}"
        checks.append(
            on_value(f"{{}} % {limit_sql} = 0" if name == "multiple_of" else f"{{}} {signs[name]} {limit_sql}")
        )
    return checks


def _length_checks(info: Any, function: str) -> list[SqlCheck]:
    checks = []
    if info.min_length is not None:
        checks.append(on_value(f"{function}({{}}) >= {info.min_length}"))
    if info.max_length is not None:
        checks.append(on_value(f"{function}({{}}) <= {info.max_length}"))
    return checks


def _struct_type(columns: StructType, path: str) -> JsonObject:
    fields_ = []
    for column in columns.fields:
        value_spec = _column_spec(column.dataType, column.nullable, f"{path}.{column.name}" if path else column.name)
        fields_.append(
            JsonField(
                column.name,
                column.name,
                JsonValueSpec(value_spec.json_type, value_spec.nullable, "null" if value_spec.nullable else None),
            )
        )
    return JsonObject(tuple(fields_))


def _column_spec(spark_type: DataType, nullable: bool, path: str) -> JsonValueSpec:  # noqa: C901  -- one case a type
    match spark_type:
        case StringType():
            return JsonValueSpec(json_types.text(), nullable)
        case ByteType() | ShortType() | IntegerType() | LongType():
            return JsonValueSpec(json_types.integer(spark_type=spark_type), nullable)
        case FloatType() | DoubleType():
            return JsonValueSpec(
                json_types.number(spark_type=spark_type), nullable=True
            )  # NaN and the infinities are written as null
        case BooleanType():
            return JsonValueSpec(json_types.boolean(), nullable)
        case DecimalType():
            return JsonValueSpec(JsonScalar(spark_type, spark_type, "DECIMAL"), nullable)
        case TimestampType():
            return JsonValueSpec(json_types.timestamp(), nullable)
        case TimestampNTZType():
            return JsonValueSpec(json_types.timestamp_ntz(), nullable)
        case DateType():
            return JsonValueSpec(json_types.date(), nullable)
        case BinaryType():
            return JsonValueSpec(json_types.binary(), nullable)
        case ArrayType():
            return JsonValueSpec(
                JsonList(_column_spec(spark_type.elementType, spark_type.containsNull, f"{path}[]")), nullable
            )
        case MapType(keyType=StringType()):
            item = _column_spec(spark_type.valueType, spark_type.valueContainsNull, f"{path}{{}}")
            return JsonValueSpec(JsonMap(json_types.text(), item), nullable)
        case StructType():
            return JsonValueSpec(_struct_type(spark_type, path), nullable)
    raise DeclarationError(
        f"A topic cannot carry the column {path}",
        expected=_COLUMN_TYPES,
        found=spark_type.simpleString(),
        hint="Cast it, or leave it out of the stream's result",
        column=path,
    )


def encode_value(columns: StructType) -> Column:
    """The record's value: one JSON object of all columns, as text.

    Times are RFC 3339 in UTC with microseconds, those without a zone stay without; dates are ISO; binary is base64. A NaN or
    an infinity, which JSON does not have, is written as null. A record with a year beyond 9999 cannot be read.
    """
    RecordSchema.from_columns(columns)
    parts = [F.expr(_writable(column.dataType, quote(column.name), 0)).alias(column.name) for column in columns.fields]
    return F.to_json(F.struct(*parts), _WRITE_OPTIONS)


def _writable(spark_type: DataType, value: str, depth: int) -> str:
    """The value with nulls for what JSON cannot express, as SQL; unchanged if its type has no such values."""
    variable = f"x{depth}"
    match spark_type:
        case FloatType() | DoubleType():
            return f"if({json_types.is_finite(value)}, {value}, null)"
        case ArrayType():
            inner = _writable(spark_type.elementType, variable, depth + 1)
            return value if inner == variable else f"transform({value}, {variable} -> {inner})"
        case MapType():
            inner = _writable(spark_type.valueType, variable, depth + 1)
            return value if inner == variable else f"transform_values({value}, (k{depth}, {variable}) -> {inner})"
        case StructType():
            paths = {part.name: f"{value}.{quote(part.name)}" for part in spark_type.fields}
            inners = {part.name: _writable(part.dataType, paths[part.name], depth) for part in spark_type.fields}
            if inners == paths:
                return value
            parts = ", ".join(f"{literal(name)}, {inner}" for name, inner in inners.items())
            return f"if({value} is null, null, named_struct({parts}))"
    return value


def encode_key(columns: StructType, names: Sequence[str]) -> Column:
    """The record's key, from the key columns.

    For one column its text, like a producer's key of the same value. For several, a compact JSON array of them. A time is
    RFC 3339 in UTC without trailing zeros, a window its start.
    """
    if len(names) == 1:
        return F.expr(_key_part(columns[names[0]].dataType, quote(names[0]))[0])
    parts = [_key_part(columns[name].dataType, quote(name)) for name in names]
    json_parts = [
        part if bare else _quoted(part, columns[name].dataType) for name, (part, bare) in zip(names, parts, strict=True)
    ]
    listed = ", ',', ".join(f"coalesce({part}, 'null')" for part in json_parts)
    return F.expr(f"concat('[', {listed}, ']')")


def _quoted(text: str, spark_type: DataType) -> str:
    """Text as JSON, as SQL. to_json takes a microsecond, so it is used only if something must be escaped."""
    plain = f"concat('\"', {text}, '\"')"
    if isinstance(spark_type, TimestampType | TimestampNTZType | DateType | StructType):
        return plain
    escaped = f"substring(to_json(array({text})), 2, length(to_json(array({text}))) - 2)"
    if isinstance(spark_type, BinaryType):
        # Only to_json handles bytes that are not UTF-8.
        return escaped
    return f"if({text} rlike '[\\\\x00-\\\\x1f\"\\\\\\\\]', {escaped}, {plain})"


def _key_part(spark_type: DataType, value: str) -> tuple[str, bool]:
    """A column's text in a key, as SQL, and whether it is written in JSON without quotes."""
    match spark_type:
        case StringType():
            return value, False
        case TimestampType():
            # Not date_format, which writes in the session's zone.
            utc = f"timestampadd(MICROSECOND, unix_micros({value}), timestamp_ntz'1970-01-01 00:00:00')"
            return f"concat(replace(cast({utc} as string), ' ', 'T'), 'Z')", False
        case TimestampNTZType():
            return f"replace(cast({value} as string), ' ', 'T')", False
        case DateType() | BinaryType():
            return f"cast({value} as string)", False
        case StructType() if spark_type.names == ["start", "end"] and isinstance(
            spark_type["start"].dataType, TimestampType
        ):
            return _key_part(spark_type["start"].dataType, f"{value}.start")
        case StructType() | ArrayType() | MapType():
            options = ", ".join(
                f"{literal(name)}, {literal(option_value)}" for name, option_value in _WRITE_OPTIONS.items()
            )
            return f"to_json({_writable(spark_type, value, 0)}, map({options}))", True
    return f"cast({value} as string)", True
