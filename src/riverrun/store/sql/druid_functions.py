"""Druid's forms of functions that have another name or another meaning there."""

from collections.abc import Callable, Sequence

from sqlglot import exp

from riverrun.errors import QueryError
from riverrun.store.sql.ast_nodes import call, is_integer_literal, kind_of, number, paren, text, with_kind
from riverrun.store.sql.intervals import divides_day, iso_period
from riverrun.store.sql.value_types import TIME_TYPES

# Enough to be exact to a fraction of a percent, and small enough for a group-by of thousands.
_QUANTILE_SIZE = 1024
# Druid truncates texts that it carries through an aggregate at this many bytes.
TEXT_BYTES = 1024
_LIST_BYTES = 65536
_FORMATS = {
    "Y": "yyyy", "m": "MM", "d": "dd", "H": "HH", "M": "mm", "S": "ss", "y": "yy", "j": "DDD", "I": "hh", "p": "a",
    "a": "EEE", "A": "EEEE", "b": "MMM", "B": "MMMM", "g": "SSS", "%": "%",
}  # fmt: skip
_WEEK_ORIGIN = "TIMESTAMP '2000-01-03 00:00:00'"
_MONTH_ORIGIN = "TIMESTAMP '2000-01-01 00:00:00'"
Arguments = Sequence[exp.Expr]


def unsupported_error(what: str, hint: str = "") -> QueryError:
    return QueryError(f"Druid has no {what}", hint=hint or "The embedded store has it", store="druid", missing=what)


def raw_sql(sql: str, kind: str) -> exp.Expr:
    """SQL text that we made ourselves, unchanged."""
    return with_kind(exp.Var(this=sql), kind)


def cast(node: exp.Expr, to: exp.DType, kind: str) -> exp.Expr:
    return with_kind(exp.Cast(this=node, to=exp.DataType(this=to)), kind)


def as_double(node: exp.Expr) -> exp.Expr:
    return node if kind_of(node) == "double" else cast(node, exp.DType.DOUBLE, "double")


def to_millis(node: exp.Expr) -> exp.Expr:
    return call("TIMESTAMP_TO_MILLIS", node, kind="bigint")


def from_millis(node: exp.Expr) -> exp.Expr:
    return call("MILLIS_TO_TIMESTAMP", node, kind="timestamp")


def druid_period(span: exp.Expr) -> str:
    period = iso_period(span.name)
    if period is None:
        raise unsupported_error(
            f"interval of {span.name}", "It counts milliseconds, and days, months and years as wholes"
        )
    return period


def case(*pairs: tuple[exp.Expr, exp.Expr], default: exp.Expr | None = None, kind: str) -> exp.Expr:
    made = exp.Case(ifs=[exp.If(this=when, true=then) for when, then in pairs], default=default)
    return with_kind(made, kind)


def date_part(unit: str, of: exp.Expr) -> exp.Expr:
    """A part of a time, numbered as in DuckDB."""
    if unit == "epoch":
        return with_kind(exp.Div(this=to_millis(of), expression=raw_sql("1000.0", "double")), "double")
    name = "ISODOW" if unit == "dow" else unit.upper()
    extracted = with_kind(exp.Extract(this=exp.Var(this=name), expression=of), "bigint")
    # Sunday is 0 in DuckDB and 7 in ISO.
    return call("MOD", extracted, number(7), kind="bigint") if unit == "dow" else extracted


def pick_value(name: str, value: exp.Expr, *by: exp.Expr) -> exp.Expr:
    """A value that an aggregate picks from a row: Druid picks numbers and texts only."""
    kind = kind_of(value)
    if kind in ("text", "json", ""):
        return call(name, value, *by, number(TEXT_BYTES), kind=kind)
    if kind in ("timestamp", "local"):
        return with_kind(from_millis(call(name, to_millis(value), *by)), kind)
    if kind in ("boolean", "date"):
        raise unsupported_error(f"{name} of a {kind}")
    return call(name, value, *by, kind=kind)


def _picked(name: str) -> Callable[[Arguments], exp.Expr]:
    def made(given: Arguments) -> exp.Expr:
        if kind_of(given[1]) not in TIME_TYPES:
            raise unsupported_error("arg_max and arg_min by what is not a time", "Use a window: row_number() over (…)")
        # A row without a value does not count, as in DuckDB: it has no time then.
        is_present = exp.Not(this=exp.Is(this=paren(given[0].copy()), expression=exp.Null()))
        return pick_value(name, given[0], case((is_present, given[1]), kind=kind_of(given[1])))

    return made


def _quantile(given: Arguments) -> exp.Expr:
    share = given[1] if len(given) > 1 else raw_sql("0.5", "double")
    return call("APPROX_QUANTILE_DS", given[0], share, number(_QUANTILE_SIZE), kind="double")


def _extreme(name: str) -> Callable[[Arguments], exp.Expr]:
    def made(given: Arguments) -> exp.Expr:
        kind = kind_of(given[0])
        if kind in ("json", "boolean"):
            raise unsupported_error(f"{name} of {kind}", "It has them of numbers, times and text")
        return _extreme_text(name, given[0]) if kind == "text" else call(name.upper(), given[0], kind=kind)

    return made


def _extreme_text(name: str, value: exp.Expr) -> exp.Expr:
    """Druid has no max of texts, but a set of texts, which it keeps sorted, a null first."""

    def texts() -> exp.Expr:
        return call("ARRAY_AGG", exp.Distinct(expressions=[value.copy()]), number(_LIST_BYTES))

    if name == "max":
        last = exp.Sub(this=call("ARRAY_LENGTH", texts()), expression=number(1))
        return call("ARRAY_OFFSET", texts(), last, kind="text")
    return call("COALESCE", *(call("ARRAY_OFFSET", texts(), number(at)) for at in (0, 1)), kind="text")


def _bucket(given: Arguments) -> exp.Expr:
    span, at = given
    written = druid_period(span)
    if divides_day(span.name):
        return call("TIME_FLOOR", at, text(written), kind=kind_of(at))
    months = "M" in written.partition("T")[0] or "Y" in written
    begin = raw_sql(_MONTH_ORIGIN if months else _WEEK_ORIGIN, "timestamp")
    return call("TIME_FLOOR", at, text(written), begin, kind=kind_of(at))


def _difference(given: Arguments) -> exp.Expr:
    unit = given[0].name.upper()
    # Weeks count as whole weeks; for all other units, the boundaries between the two times count.
    ends = [argument if unit == "WEEK" else truncate_time(argument, unit) for argument in given[1:]]
    return call("TIMESTAMPDIFF", exp.Var(this=unit), *ends, kind="bigint")


def truncate_time(node: exp.Expr, unit: str) -> exp.Expr:
    return call("DATE_TRUNC", text(unit.lower()), node, kind=kind_of(node))


def joda_pattern(pattern: str) -> str:
    """A strftime pattern in the notation of Druid's time functions."""
    made, literal, at = "", "", 0
    while at < len(pattern):
        sign = pattern[at]
        if sign == "%":
            at += 1
            word = _FORMATS.get(pattern[at : at + 1])
            if word is None:
                raise unsupported_error(
                    f"strftime with %{pattern[at : at + 1]}", f"It has {' '.join('%' + letter for letter in _FORMATS)}"
                )
        else:
            word = ""
        if sign == "%" and word != "%":
            made += (f"'{literal}'" if literal else "") + word
            literal = ""
        else:
            literal += "%" if sign == "%" else "''" if sign == "'" else sign
        at += 1
    return made + (f"'{literal}'" if literal else "")


def _format(given: Arguments) -> exp.Expr:
    if not isinstance(given[1], exp.Literal):
        raise unsupported_error("strftime with a pattern that is not written out")
    return call("TIME_FORMAT", given[0], text(joda_pattern(given[1].name)), text("UTC"), kind="text")


def _time_name(pattern: str) -> Callable[[Arguments], exp.Expr]:
    return lambda given: call("TIME_FORMAT", given[0], text(pattern), text("UTC"), kind="text")


def _boolean_as_number(node: exp.Expr) -> exp.Expr:
    """1 where it is true, 0 where it is false, NULL where that is unknown."""
    return case((node, number(1)), (exp.Not(this=paren(node.copy())), number(0)), kind="bigint")


def _all_or_any(name: str) -> Callable[[Arguments], exp.Expr]:
    return lambda given: with_kind(
        exp.EQ(this=call(name, _boolean_as_number(given[0])), expression=number(1)), "boolean"
    )


def _concat(given: Arguments) -> exp.Expr:
    """NULL is skipped, as in DuckDB."""
    texts = [
        argument if kind_of(argument) == "text" else cast(argument, exp.DType.VARCHAR, "text") for argument in given
    ]
    return call(
        "CONCAT", *(part if isinstance(part, exp.Literal) else call("COALESCE", part, text("")) for part in texts)
    )


def _lag_or_lead(name: str) -> Callable[[Arguments], exp.Expr]:
    def made(given: Arguments) -> exp.Expr:
        if len(given) > 2:
            raise unsupported_error(
                f"{name.lower()} with a default", f"Use coalesce({name.lower()}(…) over (…), default)"
            )
        return call(name, *given, kind=kind_of(given[0]))

    return made


def _regexp_extract(given: Arguments) -> exp.Expr:
    return call("COALESCE", call("REGEXP_EXTRACT", *given), text(""), kind="text")


def _json_text(given: Arguments) -> exp.Expr:
    return call("JSON_VALUE", call("TRY_PARSE_JSON", given[0]), given[1], kind="text")


def _string_agg(given: Arguments) -> exp.Expr:
    if any(isinstance(argument, exp.Order) for argument in given):
        raise unsupported_error("string_agg in an order")
    return call("STRING_AGG", *given, number(_LIST_BYTES), kind="text")


def _starts(given: Arguments) -> exp.Expr:
    start = call("LEFT", given[0], call("CHAR_LENGTH", given[1].copy()))
    return with_kind(exp.EQ(this=start, expression=given[1]), "boolean")


def _ends(given: Arguments) -> exp.Expr:
    if isinstance(given[1], exp.Literal) or is_integer_literal(given[1]):
        end = call("RIGHT", given[0], number(len(given[1].name)))
        return with_kind(exp.EQ(this=end, expression=given[1]), "boolean")
    end = call("RIGHT", given[0], call("CHAR_LENGTH", given[1].copy()))
    return with_kind(exp.EQ(this=end, expression=given[1]), "boolean")


def _from_epoch(given: Arguments) -> exp.Expr:
    product = exp.Mul(this=paren(given[0]), expression=number(1000))
    return from_millis(cast(product, exp.DType.BIGINT, "bigint"))


def _sign(given: Arguments) -> exp.Expr:
    zero = number(0)
    return case(
        (exp.GT(this=paren(given[0]), expression=zero), number(1)),
        (exp.LT(this=paren(given[0].copy()), expression=zero.copy()), number(-1)),
        (exp.EQ(this=paren(given[0].copy()), expression=zero.copy()), number(0)),
        kind="bigint",
    )


TRANSLATIONS: dict[str, Callable[[Arguments], exp.Expr]] = {
    "now": lambda _: raw_sql("CURRENT_TIMESTAMP", "timestamp"),
    "current_timestamp": lambda _: raw_sql("CURRENT_TIMESTAMP", "timestamp"),
    "current_date": lambda _: raw_sql("CURRENT_DATE", "date"),
    "today": lambda _: raw_sql("CURRENT_DATE", "date"),
    "pi": lambda _: raw_sql("PI", "double"),
    "log2": lambda given: with_kind(
        exp.Div(this=call("LN", given[0]), expression=raw_sql("0.6931471805599453", "double")), "double"
    ),
    "mod": lambda given: call("MOD", given[0], call("NULLIF", given[1], number(0))),
    "sign": _sign,
    "if": lambda given: case((given[0], given[1]), default=given[2], kind=kind_of(given[1])),
    "starts_with": _starts,
    "ends_with": _ends,
    "concat": _concat,
    "regexp_extract": _regexp_extract,
    "json_extract_string": _json_text,
    "date_trunc": lambda given: call("DATE_TRUNC", *given, kind=kind_of(given[1])),
    "time_bucket": _bucket,
    "date_part": lambda given: date_part(given[0].name, given[1]),
    "date_diff": _difference,
    "datediff": _difference,
    "date_sub": lambda given: call("TIMESTAMPDIFF", exp.Var(this=given[0].name.upper()), *given[1:], kind="bigint"),
    "epoch": lambda given: date_part("epoch", given[0]),
    "epoch_ms": lambda given: to_millis(given[0]),
    "to_timestamp": _from_epoch,
    "strftime": _format,
    "dayname": _time_name("EEEE"),
    "monthname": _time_name("MMMM"),
    "count_if": lambda given: call(
        "COALESCE", call("SUM", case((given[0], number(1)), default=number(0), kind="bigint")), number(0)
    ),
    "avg": lambda given: call("AVG", as_double(given[0]), kind="double"),
    "mean": lambda given: call("AVG", as_double(given[0]), kind="double"),
    "min": _extreme("min"),
    "max": _extreme("max"),
    "any_value": lambda given: pick_value("ANY_VALUE", given[0]),
    "arg_max": _picked("LATEST_BY"),
    "max_by": _picked("LATEST_BY"),
    "arg_min": _picked("EARLIEST_BY"),
    "min_by": _picked("EARLIEST_BY"),
    "bool_and": _all_or_any("MIN"),
    "bool_or": _all_or_any("MAX"),
    "median": _quantile,
    "quantile_cont": _quantile,
    "percentile_cont": _quantile,
    "approx_quantile": _quantile,
    "string_agg": _string_agg,
    "lag": _lag_or_lead("LAG"),
    "lead": _lag_or_lead("LEAD"),
}
