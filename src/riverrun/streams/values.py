"""Between the bytes of Kafka records and typed columns, in plain Spark SQL: real-time mode refuses Python functions.

`Shape.parse` tells good records from bad ones as the project's own decoder does (model/event.py). These it takes and the
decoder does not, because Spark's JSON parser shows less than msgspec's:

- null for a list, dict or struct that has a default: it counts as missing;
- a field twice, the first time with a bad time, date, text, UUID, bytes or Decimal: the last is taken;
- a number for text, when the field's name is written with escapes and another of that name, deeper inside, has text.

These the decoder takes and it does not, because a column could not hold them or telling would cost too much: an integer
beyond 64 bits; a Decimal that DECIMAL(38,18) would round, that is no number, is written with spaces, underscores or digits
other than 0 to 9, or is a JSON number with an exponent and more than 15 digits; a time more than 18 hours from UTC, or in a
nested msgspec.Struct without a zone; bytes that are not UTF-8 in a field the event does not have, beside lists, dicts or
structs with text; any name twice, beside text that reads like a number; a value that only an Enum's `_missing_` knows; a
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
from riverrun.streams import kinds
from riverrun.streams.kinds import (
    Kind,
    Leaf,
    ListOf,
    MapOf,
    Member,
    ObjectOf,
    Slot,
    Test,
    both,
    ddl,
    literal,
    on_value,
    quote,
)
from riverrun.streams.pattern import java_pattern

_END, _BROKEN = "riverrun.end", "riverrun.broken"
_READING = {"columnNameOfCorruptRecord": _BROKEN, "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_WRITING = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
    "ignoreNullFields": "false",  # or an optional field with a default would come back as the default
}
_FIELDS = "str, int, float, bool, datetime, date, bytes, UUID, Decimal, an Enum or Literal of str or of int, list, \
dict with str keys, another event, and each of these or None"
_COLUMNS = (
    "string, the integers, float, double, decimal, boolean, timestamp, date, binary, and arrays, structs and maps \
with string keys of these"
)


@dataclass(frozen=True)
class Shape:
    """What the records of a topic look like to Spark. `columns` are what the user sees, in order."""

    columns: StructType
    _record: ObjectOf = field(repr=False)
    _only_these: bool = field(default=False, repr=False)

    @classmethod
    def of_event(cls, event: type[Event]) -> "Shape":
        """The shape of a topic of events: DeclarationError for a field that streams cannot carry."""
        schema_of(event)
        info = inspect.type_info(event)
        assert isinstance(info, inspect.StructType)  # noqa: S101  -- an event class is a struct
        record = _Fields(event.__name__).record(info, "", ())
        return cls(record.spark, record, info.forbid_unknown_fields)

    @classmethod
    def of_columns(cls, columns: StructType) -> "Shape":
        """The shape of a stream's output, as `write_value` writes it. A nullable column may be absent."""
        record = _of_struct(columns, "")
        return cls(columns, record)

    def parse(self, raw: DataFrame, value: str = "value") -> DataFrame:
        """All columns of `raw`, then those of this shape, then `_ok`: whether the record is good, true or false, never null.

        `raw` has the bytes in the column `value`. Columns of bad records hold anything. Put `observe()` or another barrier
        right after, or Spark's optimizer moves a filter on `_ok` below and parses every record several times. Name the
        columns of `raw` so that no field has the same name: DeclarationError otherwise.
        """
        clash = sorted({each.lower() for each in raw.columns} & {each.lower() for each in [*self.columns.names, "_ok"]})
        if clash:
            raise DeclarationError(
                "A record's own columns and those of its value have the same name",
                found=", ".join(clash),
                columns=clash,
            )
        # A column of its own, used below too: from_json is not compiled, and so would not be what stands inside it.
        ended = raw.select("*", F.expr(self._ended(quote(value))).alias("_text"))
        members = tuple(_at_the_top(each, "_text") for each in self._record.members)
        source = ObjectOf(members).source(exact=False)
        schema = StructType([*source.fields, StructField(_END, LongType()), StructField(_BROKEN, StringType())])
        kept = [quote(each) for each in raw.columns]
        read = ended.select(*kept, "_text", F.from_json("_text", schema, _READING).alias("_json"))
        values = [F.expr(each.slot.value(_place(each))).alias(each.name) for each in members]
        typed = read.select(*kept, "_text", "_json", *values)
        good = both([
            f"_json.{quote(_BROKEN)} is null",
            f"_json.{quote(_END)} = 1",
            *(each.slot.good(_place(each), quote(each.name)) for each in members),
            self._is_utf8("_text"),
            self._known_names(f"cast({quote(value)} as string)"),
        ])  # fmt: skip
        names = [quote(each.name) for each in members]
        return typed.select(*kept, *names, F.expr(f"coalesce({good}, false)").alias("_ok"))

    def _ended(self, value: str) -> str:
        """The record's text with one more field before its last brace; null when its last character is no brace.

        Spark stops reading at the end of the first value. When something follows it, the new field is not in it.
        """
        end = literal(f',"{_END}":1}}')

        def ended(binary: str) -> str:
            return f"cast(concat(substring({binary}, 1, length({binary}) - 1), cast({end} as binary)) as string)"

        text = f"cast({value} as string)"
        trimmed = f"regexp_replace({text}, '[ \\\\t\\\\r\\\\n]+\\\\z', '')"
        slow = f"if(endswith({trimmed}, '}}'), {ended(f'cast({trimmed} as binary)')}, null)"
        if not any(each.slot.default is None and not each.slot.nullable for each in self._record.members):
            empty = f"{trimmed} rlike '^[ \\\\t\\\\r\\\\n]*[{{][ \\\\t\\\\r\\\\n]*[}}]\\\\z'"
            alone = literal(f'{{"{_END}":1}}')
            return f"case when {empty} then {alone} when endswith({text}, '}}') then {ended(value)} else {slow} end"
        return f"if(endswith({text}, '}}'), {ended(value)}, {slow})"

    def _is_utf8(self, text: str) -> str:
        """Whether the record is UTF-8, asked only where it shows: Spark reads what is not as a replacement character."""
        kinds_of = {each.name: each.dataType for each in self.columns.fields}
        if any("string" in kind.simpleString() for kind in kinds_of.values() if not isinstance(kind, StringType)):
            return f"is_valid_utf8({text})"
        shown = [
            f"contains({quote(name)}, '\ufffd')" for name, kind in kinds_of.items() if isinstance(kind, StringType)
        ]
        return f"(not coalesce({' or '.join(shown)}, false) or is_valid_utf8({text}))" if shown else ""

    def _known_names(self, text: str) -> str:
        """For forbid_unknown_fields, which costs another look at the record."""
        if not self._only_these:
            return ""
        names = ", ".join(literal(each.encoded) for each in self._record.members)
        return f"forall(json_object_keys({text}), x -> x in ({names}))"


def _place(member: Member) -> str:
    return f"_json.{quote(member.encoded)}"


def _at_the_top(member: Member, record: str) -> Member:
    kind, slot = member.slot.kind, member.slot
    if not isinstance(kind, Leaf) or slot.exact:
        return member
    return replace(member, slot=replace(slot, kind=kind.at_the_top(member.encoded, record)))


class _Fields:
    """Makes kinds of msgspec's own description of an event class, constraints and all."""

    def __init__(self, event: str) -> None:
        self.event = event

    def record(self, info: inspect.StructType, path: str, outer: tuple[type, ...]) -> ObjectOf:
        if info.array_like or info.tag is not None or (path and info.forbid_unknown_fields):
            raise self._refused(path, "a class with array_like, tag or, inside another, forbid_unknown_fields")
        if info.cls in outer:
            raise self._refused(path, f"{info.cls.__name__} inside itself")
        outer = (*outer, info.cls)
        members = tuple(self._member(each, f"{path}.{each.name}" if path else each.name, outer) for each in info.fields)
        lower = [each.name.lower() for each in members]
        twice = sorted({each.name for each in members if lower.count(each.name.lower()) > 1})
        if twice:
            raise self._refused(path or twice[0], f"{' and '.join(twice)}: Spark's column names have no capitals")
        return ObjectOf(members)

    def _member(self, info: inspect.Field, path: str, outer: tuple[type, ...]) -> Member:
        slot = self._slot(info.type, path, outer)
        if info.required:
            return Member(info.encode_name, info.name, slot)
        default = info.default
        if info.default_factory is not msgspec.NODEFAULT:
            if info.default_factory not in (list, dict):
                raise self._refused(path, "a default that is made anew for each event")
            default = info.default_factory()
        return Member(info.encode_name, info.name, Slot(slot.kind, slot.nullable, self._default(slot, default, path)))

    def _default(self, slot: Slot, value: Any, path: str) -> str:
        """The default's SQL: its own JSON, read like a record's. Spark works it out once, before it runs."""
        if value is None:
            return "null"
        try:
            said = msgspec.json.encode({"v": value}).decode()
        except (TypeError, ValueError) as error:
            raise self._refused(path, f"the default {value!r}") from error
        read = f"from_json({literal(said)}, {literal('v ' + ddl(slot.kind.source(exact=True)))}).v"
        return slot.kind.value(read, exact=True, depth=0)

    def _slot(self, info: inspect.Type, path: str, outer: tuple[type, ...]) -> Slot:
        if isinstance(info, inspect.Metadata):
            return self._slot(info.type, path, outer)
        if isinstance(info, inspect.UnionType) and info.includes_none and len(info.types) == 2:
            inner = next(each for each in info.types if not isinstance(each, inspect.NoneType))
            return Slot(self._kind(inner, path, outer), nullable=True)
        if isinstance(info, inspect.LiteralType) and None in info.values:
            return Slot(self._choice([each for each in info.values if each is not None], path), nullable=True)
        return Slot(self._kind(info, path, outer))

    def _kind(self, info: inspect.Type, path: str, outer: tuple[type, ...]) -> Kind:  # noqa: C901, PLR0912  -- one case a type
        match info:
            case inspect.Metadata():
                return self._kind(info.type, path, outer)
            case inspect.StrType():
                return kinds.text(*self._text_tests(info, path))
            case inspect.IntType():
                return kinds.integer(*_limits(info))
            case inspect.FloatType():
                return kinds.number(*_limits(info))
            case inspect.BoolType():
                return kinds.boolean()
            case inspect.DateTimeType() if info.tz is not False:
                return kinds.instant()
            case inspect.DateType():
                return kinds.day()
            case inspect.BytesType():
                return kinds.binary(*_lengths(info, "octet_length"))
            case inspect.UUIDType():
                return kinds.uuid()
            case inspect.DecimalType():
                return kinds.Exact()
            case inspect.EnumType():
                return self._choice([each.value for each in info.cls], path)
            case inspect.LiteralType():
                return self._choice(info.values, path)
            case inspect.ListType():
                return ListOf(self._slot(info.item_type, f"{path}[]", outer), tuple(_lengths(info, "size")))
            case inspect.DictType(key_type=inspect.StrType() as text):
                key = kinds.text(*self._text_tests(text, path))
                return MapOf(key, self._slot(info.value_type, f"{path}{{}}", outer), tuple(_lengths(info, "size")))
            case inspect.StructType():
                return self.record(info, path, outer)
        raise self._refused(path, _said(info))

    def _choice(self, values: Iterable[Any], path: str) -> Leaf:
        listed = [each.value if isinstance(each, Enum) else each for each in values]
        if listed and all(isinstance(each, str) for each in listed):
            return kinds.text(kinds.among(listed), strict=any(map(kinds.could_be_other, listed)))
        if listed and all(type(each) is int and abs(each) < 2**63 for each in listed):
            return kinds.integer(kinds.among(listed))
        raise self._refused(path, f"a choice of {', '.join(map(repr, listed))}")

    def _text_tests(self, info: inspect.StrType, path: str) -> list[Test]:
        tests = list(_lengths(info, "char_length"))
        if info.pattern is not None:
            try:
                tests.append(kinds.matches(java_pattern(info.pattern)))
            except DeclarationError as error:
                raise DeclarationError(
                    f"{self.event}.{path}: {error.what}",
                    found=error.found,
                    hint=error.hint,
                    event=self.event,
                    field=path,
                ) from error
        return tests

    def _refused(self, path: str, found: str) -> DeclarationError:
        return DeclarationError(
            f"Streams cannot carry {self.event}.{path}" if path else f"Streams cannot carry {self.event}",
            expected=_FIELDS,
            found=found,
            event=self.event,
            field=path,
        )


def _said(info: inspect.Type) -> str:
    if isinstance(info, inspect.UnionType):
        return " | ".join(_said(each) for each in info.types)
    if isinstance(info, inspect.DateTimeType):
        return "datetime without a zone"
    return type(info).__name__.removesuffix("Type").lower()


def _limits(info: inspect.IntType | inspect.FloatType) -> list[Test]:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    given = {name: getattr(info, name) for name in (*signs, "multiple_of") if getattr(info, name) is not None}
    tests = []
    for name, limit in given.items():
        said = f"double('{float(limit)!r}')" if isinstance(info, inspect.FloatType) else f"{limit}"
        tests.append(on_value(f"{{}} % {said} = 0" if name == "multiple_of" else f"{{}} {signs[name]} {said}"))
    return tests


def _lengths(info: Any, function: str) -> list[Test]:
    tests = []
    if info.min_length is not None:
        tests.append(on_value(f"{function}({{}}) >= {info.min_length}"))
    if info.max_length is not None:
        tests.append(on_value(f"{function}({{}}) <= {info.max_length}"))
    return tests


def _of_struct(columns: StructType, path: str) -> ObjectOf:
    members = []
    for each in columns.fields:
        slot = _of_column(each.dataType, each.nullable, f"{path}.{each.name}" if path else each.name)
        members.append(Member(each.name, each.name, Slot(slot.kind, slot.nullable, "null" if slot.nullable else None)))
    return ObjectOf(tuple(members))


def _of_column(spark: DataType, nullable: bool, path: str) -> Slot:  # noqa: C901  -- one case a type
    match spark:
        case StringType():
            return Slot(kinds.text(), nullable)
        case ByteType() | ShortType() | IntegerType() | LongType():
            return Slot(kinds.integer(spark=spark), nullable)
        case FloatType() | DoubleType():
            return Slot(kinds.number(spark=spark), nullable=True)  # NaN and the infinities are written as null
        case BooleanType():
            return Slot(kinds.boolean(), nullable)
        case DecimalType():
            return Slot(Leaf(spark, spark, "DECIMAL"), nullable)
        case TimestampType():
            return Slot(kinds.instant(), nullable)
        case TimestampNTZType():
            return Slot(kinds.local_time(), nullable)
        case DateType():
            return Slot(kinds.day(), nullable)
        case BinaryType():
            return Slot(kinds.binary(), nullable)
        case ArrayType():
            return Slot(ListOf(_of_column(spark.elementType, spark.containsNull, f"{path}[]")), nullable)
        case MapType(keyType=StringType()):
            item = _of_column(spark.valueType, spark.valueContainsNull, f"{path}{{}}")
            return Slot(MapOf(kinds.text(), item), nullable)
        case StructType():
            return Slot(_of_struct(spark, path), nullable)
    raise DeclarationError(
        f"A topic cannot carry the column {path}",
        expected=_COLUMNS,
        found=spark.simpleString(),
        hint="Cast it, or leave it out of the stream's result",
        column=path,
    )


def write_value(columns: StructType) -> Column:
    """The record's value: one JSON object of all columns, as text.

    Times are RFC 3339 in UTC with microseconds, those without a zone stay without; dates are ISO; binary is base64. A NaN or
    an infinity, which JSON does not have, is written as null. Years beyond 9999 give a record that nobody reads.
    """
    Shape.of_columns(columns)
    parts = [F.expr(_writable(each.dataType, quote(each.name), 0)).alias(each.name) for each in columns.fields]
    return F.to_json(F.struct(*parts), _WRITING)


def _writable(spark: DataType, value: str, depth: int) -> str:
    """The value with nulls for what JSON cannot say, as SQL; the value itself where there is no such thing in its type."""
    each = f"x{depth}"
    match spark:
        case FloatType() | DoubleType():
            return f"if({kinds.finite(value)}, {value}, null)"
        case ArrayType():
            inner = _writable(spark.elementType, each, depth + 1)
            return value if inner == each else f"transform({value}, {each} -> {inner})"
        case MapType():
            inner = _writable(spark.valueType, each, depth + 1)
            return value if inner == each else f"transform_values({value}, (k{depth}, {each}) -> {inner})"
        case StructType():
            places = {part.name: f"{value}.{quote(part.name)}" for part in spark.fields}
            inners = {part.name: _writable(part.dataType, places[part.name], depth) for part in spark.fields}
            if inners == places:
                return value
            parts = ", ".join(f"{literal(name)}, {inner}" for name, inner in inners.items())
            return f"if({value} is null, null, named_struct({parts}))"
    return value


def key_text(columns: StructType, names: Sequence[str]) -> Column:
    """The record's key, of the columns that tell rows apart.

    Of one column, its text: what a producer's key of the same value is. Of several, a compact JSON array of them. A time is
    RFC 3339 in UTC without needless digits, a window its start.
    """
    if len(names) == 1:
        return F.expr(_key_part(columns[names[0]].dataType, quote(names[0]))[0])
    parts = [_key_part(columns[each].dataType, quote(each)) for each in names]
    said = [
        part if bare else _quoted(part, columns[each].dataType) for each, (part, bare) in zip(names, parts, strict=True)
    ]
    listed = ", ',', ".join(f"coalesce({each}, 'null')" for each in said)
    return F.expr(f"concat('[', {listed}, ']')")


def _quoted(text: str, spark: DataType) -> str:
    """Text as JSON, as SQL. Spark takes a microsecond to make JSON: it is asked for only where something must be escaped."""
    plain = f"concat('\"', {text}, '\"')"
    if isinstance(spark, TimestampType | TimestampNTZType | DateType | StructType):
        return plain
    escaped = f"substring(to_json(array({text})), 2, length(to_json(array({text}))) - 2)"
    if isinstance(spark, BinaryType):
        # Bytes that are not UTF-8 show as such in JSON only.
        return escaped
    return f"if({text} rlike '[\\\\x00-\\\\x1f\"\\\\\\\\]', {escaped}, {plain})"


def _key_part(spark: DataType, value: str) -> tuple[str, bool]:
    """A column's text in a key, as SQL, and whether it stands in JSON without quotes."""
    match spark:
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
        case StructType() if spark.names == ["start", "end"] and isinstance(spark["start"].dataType, TimestampType):
            return _key_part(spark["start"].dataType, f"{value}.start")
        case StructType() | ArrayType() | MapType():
            options = ", ".join(f"{literal(name)}, {literal(said)}" for name, said in _WRITING.items())
            return f"to_json({_writable(spark, value, 0)}, map({options}))", True
    return f"cast({value} as string)", True
