"""The types of JSON values in topics, each as Spark SQL: how it is read, the column's value, and whether it is valid.

Plain SQL expressions only, because Spark's real-time mode refuses Python functions. `from_json` itself is strict about
numbers, booleans, lists and objects (a mismatch marks the record as corrupt), but accepts anything as a string. So
text is read as VARIANT, which keeps the original type; or, at the top level of a record, where the record itself can be
checked, as a string with a check whether it could have been anything else, which is cheaper. A VARIANT also tells a null
from a missing field, which a field with a default needs.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

# Years 1 to 9999, as in Python. Spark would also accept a time of day alone, a missing zero, or the name of a zone.
_DAY = r"(?!0000)\d{4}-\d\d-\d\d"
_TIME = r"[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?"
_ZONE = r"(?:[Zz]|[+-]\d\d:?\d\d)"
# What DECIMAL(38,18) holds without rounding: written out, or with an exponent and few enough digits for a double.
_PLAIN_DECIMAL = r"^[+-]?(?:\d{1,20}(?:\.\d{0,18})?|\.\d{1,18})\z"
_SHORT_DECIMAL = r"^[+-]?(?=[\d.]{1,16}(?:[eE]|\z))\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?\z"
_DECIMAL = DecimalType(38, 18)
# The characters that a JSON number, list or object begins with.
_OPENING = ", ".join(str(ord(character)) for character in "-0123456789[{")


def quote(name: str) -> str:
    """A column name as SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A string literal as SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def ddl(spark_type: DataType) -> str:
    """A type as SQL."""
    match spark_type:
        case ArrayType():
            return f"array<{ddl(spark_type.elementType)}>"
        case MapType():
            return f"map<{ddl(spark_type.keyType)}, {ddl(spark_type.valueType)}>"
        case StructType():
            return f"struct<{', '.join(f'{quote(field.name)}: {ddl(field.dataType)}' for field in spark_type.fields)}>"
    return spark_type.simpleString()


def all_of(conditions: Sequence[str]) -> str:
    """All of the conditions, as SQL; "true" when there are none."""
    return " and ".join(condition for condition in conditions if condition) or "true"


class JsonType(ABC):
    """A type of JSON value. `spark_type` is the type of its column."""

    spark_type: DataType

    @abstractmethod
    def source_type(self, *, exact: bool) -> DataType:
        """The type from_json reads it as. `exact` asks for one that distinguishes null from a missing field, if there is
        one."""

    @abstractmethod
    def value_sql(self, raw: str, *, exact: bool, depth: int) -> str:
        """The column's value, as SQL over what was read. `depth` keeps the names of nested lambdas apart."""

    @abstractmethod
    def valid_sql(self, raw: str, value: str, *, exact: bool, depth: int) -> str:
        """Whether a value that is not null is valid, as SQL."""

    def is_null(self, raw: str, *, exact: bool) -> str:
        variant = isinstance(self.source_type(exact=exact), VariantType)
        return f"({raw} is null or is_variant_null({raw}))" if variant else f"{raw} is null"


@dataclass(frozen=True)
class JsonValueSpec:
    """A value in a field of an object or an element of a list.

    A missing field gets `default`, the SQL of its value; without one it is required. `nullable`: null is valid.
    """

    json_type: JsonType
    nullable: bool = False
    default: str | None = None

    @property
    def distinguishes_null(self) -> bool:
        return self.default not in (None, "null")

    @property
    def source_type(self) -> DataType:
        return self.json_type.source_type(exact=self.distinguishes_null)

    def value_sql(self, raw: str, depth: int = 0) -> str:
        value = self.json_type.value_sql(raw, exact=self.distinguishes_null, depth=depth)
        return f"if({raw} is null, {self.default}, {value})" if self.distinguishes_null else value

    def valid_sql(self, raw: str, value: str = "", depth: int = 0) -> str:
        """Whether what was read is valid, as SQL that is never null. `value` is the SQL of the value, if it has a column."""
        value = value or self.json_type.value_sql(raw, exact=self.distinguishes_null, depth=depth)
        valid = all_of(
            [f"{value} is not null", self.json_type.valid_sql(raw, value, exact=self.distinguishes_null, depth=depth)]
        )
        if self.nullable:
            return f"({self.json_type.is_null(raw, exact=self.distinguishes_null)} or ({valid}))"
        if self.default is not None:
            return f"({raw} is null or ({valid}))"
        return valid


SqlCheck = Callable[[str, str], str]  # (SQL of the text or number read, SQL of the value) -> SQL of a condition


@dataclass(frozen=True)
class JsonScalar(JsonType):
    """A scalar value. `variant_types` is a regular expression of the types a VARIANT may have for it.

    `convert` makes the value from the text or number; without it they are the same. `strict`: always read as VARIANT.
    """

    spark_type: DataType
    plain_type: DataType
    variant_types: str
    convert: Callable[[str], str] | None = None
    checks: tuple[SqlCheck, ...] = ()
    strict: bool = False

    def for_top_level(self, name: str, record: str) -> "JsonScalar":
        """The same for a top-level field of a record whose whole text is `record`: text without VARIANT."""
        return replace(self, strict=False, checks=(_is_text_check(name, record), *self.checks)) if self.strict else self

    def source_type(self, *, exact: bool) -> DataType:
        return VariantType() if exact or self.strict else self.plain_type

    def _plain_sql(self, raw: str, *, exact: bool) -> str:
        return f"try_variant_get({raw}, '$', '{self.plain_type.simpleString()}')" if exact or self.strict else raw

    def value_sql(self, raw: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        plain = self._plain_sql(raw, exact=exact)
        return self.convert(plain) if self.convert else plain

    def valid_sql(self, raw: str, value: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        plain = self._plain_sql(raw, exact=exact) if self.convert else value
        conditions = [test(plain, value) for test in self.checks]
        if exact or self.strict:
            conditions.insert(0, _has_variant_type(raw, self.variant_types))
        return all_of(conditions)


def _has_variant_type(raw: str, kinds: str) -> str:
    kind = f"schema_of_variant({raw})"
    return f"{kind} rlike '^({kinds})'" if "|" in kinds else f"{kind} = '{kinds}'"


@dataclass(frozen=True)
class JsonDecimal(JsonType):
    """A decimal number, as text (as Python writes it) or as a JSON number, that DECIMAL(38,18) holds without rounding."""

    spark_type: DataType = _DECIMAL

    def source_type(self, *, exact: bool) -> DataType:  # noqa: ARG002
        return VariantType()

    def value_sql(self, raw: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        # A VARIANT also gives the text of a number: its digits, or for a double the shortest that identify it.
        return f"try_cast(try_variant_get({raw}, '$', 'string') as decimal(38,18))"

    def valid_sql(self, raw: str, value: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        text = f"try_variant_get({raw}, '$', 'string')"
        same = f"cast({value} as double) = try_cast({text} as double)"
        # A JSON number with too many digits for a decimal is read as a double.
        plain = f"schema_of_variant({raw}) <> 'DOUBLE' and {text} rlike {literal(_PLAIN_DECIMAL)}"
        short = f"{text} rlike {literal(_SHORT_DECIMAL)} and {same}"
        return all_of([_has_variant_type(raw, "STRING|BIGINT|DECIMAL|DOUBLE"), f"(({plain}) or ({short}))"])


@dataclass(frozen=True)
class JsonList(JsonType):
    item: JsonValueSpec
    checks: tuple[SqlCheck, ...] = ()

    @property
    def spark_type(self) -> DataType:  # type: ignore[override]
        return ArrayType(self.item.json_type.spark_type, self.item.nullable)

    def source_type(self, *, exact: bool) -> DataType:  # noqa: ARG002
        return ArrayType(self.item.source_type)

    def value_sql(self, raw: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        variable = f"x{depth}"
        value = self.item.value_sql(variable, depth + 1)
        return raw if value == variable else f"transform({raw}, {variable} -> {value})"

    def valid_sql(self, raw: str, value: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        variable = f"x{depth}"
        items = self.item.valid_sql(variable, depth=depth + 1)
        return all_of([*(test(raw, value) for test in self.checks), f"forall({raw}, {variable} -> {items})"])


@dataclass(frozen=True)
class JsonMap(JsonType):
    key: JsonScalar
    item: JsonValueSpec
    checks: tuple[SqlCheck, ...] = ()

    @property
    def spark_type(self) -> DataType:  # type: ignore[override]
        return MapType(StringType(), self.item.json_type.spark_type, self.item.nullable)

    def source_type(self, *, exact: bool) -> DataType:  # noqa: ARG002
        return MapType(StringType(), self.item.source_type)

    def value_sql(self, raw: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        variable = f"x{depth}"
        value = self.item.value_sql(variable, depth + 1)
        return raw if value == variable else f"transform_values({raw}, (k{depth}, {variable}) -> {value})"

    def valid_sql(self, raw: str, value: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        variable = f"x{depth}"
        items = self.item.valid_sql(variable, depth=depth + 1)
        conditions = [*(test(raw, value) for test in self.checks), f"forall(map_values({raw}), {variable} -> {items})"]
        if self.key.checks:
            keys = all_of([test(variable, variable) for test in self.key.checks])
            conditions.append(f"forall(map_keys({raw}), {variable} -> {keys})")
        return all_of(conditions)


@dataclass(frozen=True)
class JsonField:
    """A field of an object: its name in JSON and its name as a column."""

    json_name: str
    name: str
    value_spec: JsonValueSpec

    @property
    def column(self) -> StructField:
        return StructField(
            self.name,
            self.value_spec.json_type.spark_type,
            self.value_spec.nullable or self.value_spec.default == "null",
        )


@dataclass(frozen=True)
class JsonObject(JsonType):
    fields: tuple[JsonField, ...]

    @property
    def spark_type(self) -> StructType:  # type: ignore[override]
        return StructType([member.column for member in self.fields])

    def source_type(self, *, exact: bool) -> StructType:  # noqa: ARG002
        return StructType([StructField(member.json_name, member.value_spec.source_type) for member in self.fields])

    def value_sql(self, raw: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        parts = ", ".join(
            f"{literal(member.name)}, {member.value_spec.value_sql(f'{raw}.{quote(member.json_name)}', depth)}"
            for member in self.fields
        )
        return f"if({raw} is null, null, named_struct({parts}))"

    def valid_sql(self, raw: str, value: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        return all_of(
            [member.value_spec.valid_sql(f"{raw}.{quote(member.json_name)}", depth=depth) for member in self.fields]
        )


def _is_text_check(name: str, record: str) -> SqlCheck:
    """Whether a field's text was text in the record too, and not a number, true, false, a list or an object.

    Its first character nearly always decides. If not, the field is looked up in the record: by search if its name occurs
    once, else by parsing the record again.
    """
    key = json.dumps(name, ensure_ascii=False)
    once = f"locate({literal(key)}, {record}, locate({literal(key)}, {record}) + 1) = 0"
    starts = (literal(f'{key}:"'), literal(f'{key}: "'))
    quoted = f"(contains({record}, {starts[0]}) or contains({record}, {starts[1]}))"
    # Not from_json: Spark does not compile it, nor the expressions around it, which would slow down every record.
    path = literal(f"$['{name}']")
    again = f"schema_of_variant(try_variant_get(try_parse_json({record}), {path}, 'variant')) = 'STRING'"

    def test(text: str, _: str) -> str:
        other = f"ascii({text}) in ({_OPENING}) or {text} in ('true', 'false')"
        word = f"ascii({text}) not in (91, 123) and {text} rlike '[^0-9eE.+-]' and {text} not in ('true', 'false')"
        return f"(not ({other}) or ({word}) or ({quoted} and {once}) or {again})"

    return test


def looks_like_non_text(text: str) -> bool:
    """Whether a JSON value that is not text could read like this."""
    return text[:1] in {*"-0123456789[{"} or text in {"true", "false"}


def matches(pattern: str) -> SqlCheck:
    return lambda text, _: f"{text} rlike {literal(pattern)}"


def one_of(values: Sequence[str | int]) -> SqlCheck:
    listed = ", ".join(literal(choice) if isinstance(choice, str) else str(choice) for choice in values)
    return lambda _, value: f"{value} in ({listed})"


def on_value(template: str) -> SqlCheck:
    """A condition on the value, which is {} in the template."""
    return lambda _, value: template.format(value)


def is_finite(double: str) -> str:
    return f"abs({double}) < double('Infinity')"


def _parse_timestamp(text: str) -> str:
    # Spark needs a capital T and Z, and truncates after the sixth digit of a second where Python rounds.
    cast = f"coalesce(try_cast({text} as timestamp), try_cast(upper({text}) as timestamp))"
    rounds_up = f"octet_length({text}) > 27 and {text} rlike '\\\\.[0-9]{{6}}[5-9]'"
    return f"if({rounds_up}, {cast} + interval 1 microsecond, {cast})"


def _is_common_timestamp(text: str) -> str:
    """Whether text that Spark accepts as a time is 2026-11-16T10:00:00Z or …00.123Z: the same as the pattern, but faster.

    A year has at least four digits, so a dash at position five comes after four. Then the point or the second colon can only
    be at its position if month, day, hour and minute have two digits each. Bytes, because positions in text are slow.
    """

    def byte(position: int | str) -> str:
        return f"substring(cast({text} as binary), {position}, 1)"

    size = f"octet_length({text})"
    position = f"({byte(20)} = X'2E' or ({size} = 20 and {byte(17)} = X'3A'))"
    end = f"endswith({text}, 'Z') and {byte(f'{size} - 1')} between X'30' and X'39'"
    return f"({end} and {byte(5)} = X'2D' and {position} and {text} >= '0001')"


def text(*checks: SqlCheck, strict: bool = True) -> JsonScalar:
    return JsonScalar(StringType(), StringType(), "STRING", checks=checks, strict=strict)


def integer(*checks: SqlCheck, spark_type: DataType | None = None) -> JsonScalar:
    spark_type = spark_type or LongType()
    return JsonScalar(spark_type, spark_type, "BIGINT", checks=checks)


def number(*checks: SqlCheck, spark_type: DoubleType | FloatType | None = None) -> JsonScalar:
    spark_type = spark_type or DoubleType()
    return JsonScalar(
        spark_type, spark_type, "BIGINT|DECIMAL|DOUBLE", checks=(lambda _, value: is_finite(value), *checks)
    )


def boolean() -> JsonScalar:
    return JsonScalar(BooleanType(), BooleanType(), "BOOLEAN")


def timestamp() -> JsonScalar:
    """A time with a zone, as in RFC 3339. No number or object looks like one, so plain text is enough."""
    pattern = literal(rf"^{_DAY}{_TIME}{_ZONE}\z")
    return JsonScalar(
        TimestampType(),
        StringType(),
        "STRING",
        _parse_timestamp,
        (lambda text, _: f"({_is_common_timestamp(text)} or {text} rlike {pattern})",),
    )


def timestamp_ntz() -> JsonScalar:
    """A time without a zone."""
    read = "try_cast({} as timestamp_ntz)".format
    return JsonScalar(TimestampNTZType(), StringType(), "STRING", read, (matches(rf"^{_DAY}{_TIME}\z"),))


def date() -> JsonScalar:
    return JsonScalar(DateType(), StringType(), "STRING", "try_cast({} as date)".format, (matches(rf"^{_DAY}\z"),))


def binary(*checks: SqlCheck) -> JsonScalar:
    # Full groups of four, without the line breaks Spark would allow. Not a repeated group: Java would overflow its stack.
    is_base64: SqlCheck = lambda text, _: f"length({text}) % 4 = 0 and {text} rlike '^[A-Za-z0-9+/]*={{0,2}}\\\\z'"  # noqa: E731
    read = "try_to_binary({}, 'base64')".format
    return JsonScalar(BinaryType(), StringType(), "STRING", read, (is_base64, *checks), strict=True)


def uuid() -> JsonScalar:
    """A UUID, with or without its dashes, as text in lower case with them."""
    plain = r"^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\z"
    bare = r"^[0-9a-fA-F]{32}\z"

    def read(text: str) -> str:
        dashed = f"regexp_replace({text}, '^(.{{8}})(.{{4}})(.{{4}})(.{{4}})(.{{12}})$', '$1-$2-$3-$4-$5')"
        return f"lower(if(length({text}) = 32, {dashed}, {text}))"

    return JsonScalar(StringType(), StringType(), "STRING", read, (matches(f"{plain}|{bare}"),), strict=True)
