"""The kinds of JSON values a topic may carry, each as Spark SQL: what is read, the column's value, whether it is good.

Plain SQL expressions only, because Spark's real-time mode refuses Python functions. `from_json` itself is strict about
numbers, booleans, lists and objects (whatever does not fit marks the record as broken), but takes anything at all for a
string. So text is read as VARIANT, which remembers what it was; or, at the top of a record, where the record itself can be
asked, as a string with a look at whether it could have been anything else, which is cheaper. A VARIANT also tells a null
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

# Years 1 to 9999, as Python has them. Spark would also take a time of day alone, a missing zero, or a zone's name.
_DAY = r"(?!0000)\d{4}-\d\d-\d\d"
_CLOCK = r"[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?"
_ZONE = r"(?:[Zz]|[+-]\d\d:?\d\d)"
# What DECIMAL(38,18) holds without rounding: written out, or with an exponent and few enough digits for a double.
_PLAIN_DECIMAL = r"^[+-]?(?:\d{1,20}(?:\.\d{0,18})?|\.\d{1,18})\z"
_SHORT_DECIMAL = r"^[+-]?(?=[\d.]{1,16}(?:[eE]|\z))\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?\z"
_DECIMAL = DecimalType(38, 18)
# The characters that a JSON number, list or object begins with.
_OPENING = ", ".join(str(ord(each)) for each in "-0123456789[{")


def quote(name: str) -> str:
    """A name as SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text as SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def ddl(spark: DataType) -> str:
    """A type as SQL."""
    match spark:
        case ArrayType():
            return f"array<{ddl(spark.elementType)}>"
        case MapType():
            return f"map<{ddl(spark.keyType)}, {ddl(spark.valueType)}>"
        case StructType():
            return f"struct<{', '.join(f'{quote(each.name)}: {ddl(each.dataType)}' for each in spark.fields)}>"
    return spark.simpleString()


def both(conditions: Sequence[str]) -> str:
    """All of the conditions, as SQL; "true" when there are none."""
    return " and ".join(each for each in conditions if each) or "true"


class Kind(ABC):
    """A kind of JSON value. `spark` is the type of its column."""

    spark: DataType

    @abstractmethod
    def source(self, *, exact: bool) -> DataType:
        """What from_json reads it as. `exact` asks for one that tells a null from a missing field, where there is one."""

    @abstractmethod
    def value(self, raw: str, *, exact: bool, depth: int) -> str:
        """The column's value, as SQL over what was read. `depth` keeps the names of nested lambdas apart."""

    @abstractmethod
    def good(self, raw: str, value: str, *, exact: bool, depth: int) -> str:
        """Whether a value that is not null is good, as SQL."""

    def is_null(self, raw: str, *, exact: bool) -> str:
        variant = isinstance(self.source(exact=exact), VariantType)
        return f"({raw} is null or is_variant_null({raw}))" if variant else f"{raw} is null"


@dataclass(frozen=True)
class Slot:
    """A place for a value: a field of an object, an element of a list.

    A missing field takes `default`, the SQL of its value; without one it must be there. `nullable`: null is a good value.
    """

    kind: Kind
    nullable: bool = False
    default: str | None = None

    @property
    def exact(self) -> bool:
        return self.default not in (None, "null")

    @property
    def source(self) -> DataType:
        return self.kind.source(exact=self.exact)

    def value(self, raw: str, depth: int = 0) -> str:
        value = self.kind.value(raw, exact=self.exact, depth=depth)
        return f"if({raw} is null, {self.default}, {value})" if self.exact else value

    def good(self, raw: str, value: str = "", depth: int = 0) -> str:
        """Whether what was read is good, as SQL that is never null. `value` names the value where it has a name."""
        value = value or self.kind.value(raw, exact=self.exact, depth=depth)
        good = both([f"{value} is not null", self.kind.good(raw, value, exact=self.exact, depth=depth)])
        if self.nullable:
            return f"({self.kind.is_null(raw, exact=self.exact)} or ({good}))"
        if self.default is not None:
            return f"({raw} is null or ({good}))"
        return good


Test = Callable[[str, str], str]  # (what was read as text or number, the value) to a condition


@dataclass(frozen=True)
class Leaf(Kind):
    """A value that is not made of others. `kinds` are the types a VARIANT may name for it, by a regular expression.

    `read` makes the value of the text or number; without it they are the same. `strict`: always read as VARIANT.
    """

    spark: DataType
    plain: DataType
    kinds: str
    read: Callable[[str], str] | None = None
    tests: tuple[Test, ...] = ()
    strict: bool = False

    def at_the_top(self, name: str, record: str) -> "Leaf":
        """The same for a field of a record whose whole text is `record`: no VARIANT for text."""
        return replace(self, strict=False, tests=(_surely_text(name, record), *self.tests)) if self.strict else self

    def source(self, *, exact: bool) -> DataType:
        return VariantType() if exact or self.strict else self.plain

    def _plain(self, raw: str, *, exact: bool) -> str:
        return f"try_variant_get({raw}, '$', '{self.plain.simpleString()}')" if exact or self.strict else raw

    def value(self, raw: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        plain = self._plain(raw, exact=exact)
        return self.read(plain) if self.read else plain

    def good(self, raw: str, value: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        plain = self._plain(raw, exact=exact) if self.read else value
        conditions = [test(plain, value) for test in self.tests]
        if exact or self.strict:
            conditions.insert(0, _is_one_of(raw, self.kinds))
        return both(conditions)


def _is_one_of(raw: str, kinds: str) -> str:
    kind = f"schema_of_variant({raw})"
    return f"{kind} rlike '^({kinds})'" if "|" in kinds else f"{kind} = '{kinds}'"


@dataclass(frozen=True)
class Exact(Kind):
    """A decimal number, as text (as Python writes it) or as a JSON number, that DECIMAL(38,18) holds without rounding."""

    spark: DataType = _DECIMAL

    def source(self, *, exact: bool) -> DataType:  # noqa: ARG002
        return VariantType()

    def value(self, raw: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        # The text of a VARIANT is that of a number too: its digits, or for a double the fewest that name it.
        return f"try_cast(try_variant_get({raw}, '$', 'string') as decimal(38,18))"

    def good(self, raw: str, value: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        text = f"try_variant_get({raw}, '$', 'string')"
        same = f"cast({value} as double) = try_cast({text} as double)"
        # A JSON number of too many digits for a decimal has become a double.
        plain = f"schema_of_variant({raw}) <> 'DOUBLE' and {text} rlike {literal(_PLAIN_DECIMAL)}"
        short = f"{text} rlike {literal(_SHORT_DECIMAL)} and {same}"
        return both([_is_one_of(raw, "STRING|BIGINT|DECIMAL|DOUBLE"), f"(({plain}) or ({short}))"])


@dataclass(frozen=True)
class ListOf(Kind):
    item: Slot
    tests: tuple[Test, ...] = ()

    @property
    def spark(self) -> DataType:  # type: ignore[override]
        return ArrayType(self.item.kind.spark, self.item.nullable)

    def source(self, *, exact: bool) -> DataType:  # noqa: ARG002
        return ArrayType(self.item.source)

    def value(self, raw: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        each = f"x{depth}"
        value = self.item.value(each, depth + 1)
        return raw if value == each else f"transform({raw}, {each} -> {value})"

    def good(self, raw: str, value: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        each = f"x{depth}"
        items = self.item.good(each, depth=depth + 1)
        return both([*(test(raw, value) for test in self.tests), f"forall({raw}, {each} -> {items})"])


@dataclass(frozen=True)
class MapOf(Kind):
    key: Leaf
    item: Slot
    tests: tuple[Test, ...] = ()

    @property
    def spark(self) -> DataType:  # type: ignore[override]
        return MapType(StringType(), self.item.kind.spark, self.item.nullable)

    def source(self, *, exact: bool) -> DataType:  # noqa: ARG002
        return MapType(StringType(), self.item.source)

    def value(self, raw: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        each = f"x{depth}"
        value = self.item.value(each, depth + 1)
        return raw if value == each else f"transform_values({raw}, (k{depth}, {each}) -> {value})"

    def good(self, raw: str, value: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        each = f"x{depth}"
        items = self.item.good(each, depth=depth + 1)
        conditions = [*(test(raw, value) for test in self.tests), f"forall(map_values({raw}), {each} -> {items})"]
        if self.key.tests:
            keys = both([test(each, each) for test in self.key.tests])
            conditions.append(f"forall(map_keys({raw}), {each} -> {keys})")
        return both(conditions)


@dataclass(frozen=True)
class Member:
    """A field of an object: its name in JSON and its name as a column."""

    encoded: str
    name: str
    slot: Slot

    @property
    def column(self) -> StructField:
        return StructField(self.name, self.slot.kind.spark, self.slot.nullable or self.slot.default == "null")


@dataclass(frozen=True)
class ObjectOf(Kind):
    members: tuple[Member, ...]

    @property
    def spark(self) -> StructType:  # type: ignore[override]
        return StructType([each.column for each in self.members])

    def source(self, *, exact: bool) -> StructType:  # noqa: ARG002
        return StructType([StructField(each.encoded, each.slot.source) for each in self.members])

    def value(self, raw: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        parts = ", ".join(
            f"{literal(each.name)}, {each.slot.value(f'{raw}.{quote(each.encoded)}', depth)}" for each in self.members
        )
        return f"if({raw} is null, null, named_struct({parts}))"

    def good(self, raw: str, value: str, *, exact: bool, depth: int) -> str:  # noqa: ARG002
        return both([each.slot.good(f"{raw}.{quote(each.encoded)}", depth=depth) for each in self.members])


def _surely_text(name: str, record: str) -> Test:
    """Whether a field's text was text in the record too, and not a number, true, false, a list or an object.

    Its first character tells nearly always. If not, the field is looked up in the record: by search where its name is there
    once, else by parsing it again.
    """
    key = json.dumps(name, ensure_ascii=False)
    once = f"locate({literal(key)}, {record}, locate({literal(key)}, {record}) + 1) = 0"
    starts = (literal(f'{key}:"'), literal(f'{key}: "'))
    quoted = f"(contains({record}, {starts[0]}) or contains({record}, {starts[1]}))"
    # Not from_json: Spark does not compile it, nor then what stands around it, which takes longer for every record.
    path = literal(f"$['{name}']")
    again = f"schema_of_variant(try_variant_get(try_parse_json({record}), {path}, 'variant')) = 'STRING'"

    def test(text: str, _: str) -> str:
        other = f"ascii({text}) in ({_OPENING}) or {text} in ('true', 'false')"
        word = f"ascii({text}) not in (91, 123) and {text} rlike '[^0-9eE.+-]' and {text} not in ('true', 'false')"
        return f"(not ({other}) or ({word}) or ({quoted} and {once}) or {again})"

    return test


def could_be_other(text: str) -> bool:
    """Whether a JSON value that is not text could read like this."""
    return text[:1] in {*"-0123456789[{"} or text in {"true", "false"}


def matches(pattern: str) -> Test:
    return lambda text, _: f"{text} rlike {literal(pattern)}"


def among(values: Sequence[str | int]) -> Test:
    listed = ", ".join(literal(each) if isinstance(each, str) else str(each) for each in values)
    return lambda _, value: f"{value} in ({listed})"


def on_value(template: str) -> Test:
    """A condition on the value, which the template calls {}."""
    return lambda _, value: template.format(value)


def finite(double: str) -> str:
    return f"abs({double}) < double('Infinity')"


def _instant(text: str) -> str:
    # Spark wants a capital T and Z, and cuts after the sixth digit of a second where Python rounds.
    cast = f"coalesce(try_cast({text} as timestamp), try_cast(upper({text}) as timestamp))"
    up = f"octet_length({text}) > 27 and {text} rlike '\\\\.[0-9]{{6}}[5-9]'"
    return f"if({up}, {cast} + interval 1 microsecond, {cast})"


def _is_usual(text: str) -> str:
    """Whether text that Spark takes for a time is 2026-11-16T10:00:00Z or …00.123Z: what the pattern says, for less time.

    A year has four digits at least, so a dash in fifth place comes after four. Then the point or the second colon can only
    be in its place when month, day, hour and minute have two digits each. Bytes, because places in text must be counted out.
    """

    def byte(place: int | str) -> str:
        return f"substring(cast({text} as binary), {place}, 1)"

    size = f"octet_length({text})"
    place = f"({byte(20)} = X'2E' or ({size} = 20 and {byte(17)} = X'3A'))"
    end = f"endswith({text}, 'Z') and {byte(f'{size} - 1')} between X'30' and X'39'"
    return f"({end} and {byte(5)} = X'2D' and {place} and {text} >= '0001')"


def text(*tests: Test, strict: bool = True) -> Leaf:
    return Leaf(StringType(), StringType(), "STRING", tests=tests, strict=strict)


def integer(*tests: Test, spark: DataType | None = None) -> Leaf:
    spark = spark or LongType()
    return Leaf(spark, spark, "BIGINT", tests=tests)


def number(*tests: Test, spark: DoubleType | FloatType | None = None) -> Leaf:
    spark = spark or DoubleType()
    return Leaf(spark, spark, "BIGINT|DECIMAL|DOUBLE", tests=(lambda _, value: finite(value), *tests))


def boolean() -> Leaf:
    return Leaf(BooleanType(), BooleanType(), "BOOLEAN")


def instant() -> Leaf:
    """A time with its zone, as RFC 3339 has it. No number or object looks like one, so plain text will do."""
    pattern = literal(rf"^{_DAY}{_CLOCK}{_ZONE}\z")
    return Leaf(
        TimestampType(),
        StringType(),
        "STRING",
        _instant,
        (lambda text, _: f"({_is_usual(text)} or {text} rlike {pattern})",),
    )


def local_time() -> Leaf:
    """A time without a zone."""
    read = "try_cast({} as timestamp_ntz)".format
    return Leaf(TimestampNTZType(), StringType(), "STRING", read, (matches(rf"^{_DAY}{_CLOCK}\z"),))


def day() -> Leaf:
    return Leaf(DateType(), StringType(), "STRING", "try_cast({} as date)".format, (matches(rf"^{_DAY}\z"),))


def binary(*tests: Test) -> Leaf:
    # Whole groups of four, without the line breaks Spark would allow. Not one repeated group: Java's would run out of stack.
    whole: Test = lambda text, _: f"length({text}) % 4 = 0 and {text} rlike '^[A-Za-z0-9+/]*={{0,2}}\\\\z'"  # noqa: E731
    read = "try_to_binary({}, 'base64')".format
    return Leaf(BinaryType(), StringType(), "STRING", read, (whole, *tests), strict=True)


def uuid() -> Leaf:
    """A UUID, with or without its dashes, as text in lower case with them."""
    plain = r"^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\z"
    bare = r"^[0-9a-fA-F]{32}\z"

    def read(text: str) -> str:
        dashed = f"regexp_replace({text}, '^(.{{8}})(.{{4}})(.{{4}})(.{{4}})(.{{12}})$', '$1-$2-$3-$4-$5')"
        return f"lower(if(length({text}) = 32, {dashed}, {text}))"

    return Leaf(StringType(), StringType(), "STRING", read, (matches(f"{plain}|{bare}"),), strict=True)
