"""The functions of riverrun's SQL: all of them. What is not in this table is refused, whatever a store knows.

Names mean what they mean in DuckDB. `druid` says how Druid has it: "=" by the same name, another name, "*" in a way of
its own (riverrun.store.sql.druid_functions), "" not at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from riverrun.store.sql import kinds

Use = Literal["scalar", "aggregate", "window"]


def _first(given: Sequence[str]) -> str:
    return given[0] if given else kinds.UNKNOWN


def _last_two(given: Sequence[str]) -> str:
    return kinds.wider(given[1:])


def _whole(given: Sequence[str]) -> str:
    """Of what has no fraction any more."""
    parts = kinds.digits(given[0]) if given and kinds.is_decimal(given[0]) else None
    return kinds.decimal(parts[0], 0) if parts else _first(given)


def _sum(given: Sequence[str]) -> str:
    return kinds.summed(_first(given))


def _truncated(given: Sequence[str]) -> str:
    return "local" if given[-1] == "local" else "timestamp"


@dataclass(frozen=True)
class Function:
    """How many arguments it takes, what it gives, and how Druid has it."""

    least: int
    most: int
    result: str | Callable[[Sequence[str]], str]
    druid: str = "="
    use: Use = "scalar"

    def kind(self, given: Sequence[str]) -> str:
        return self.result if isinstance(self.result, str) else self.result(given)


_MANY = 100
_NUMBERS = {
    "abs": Function(1, 1, _first),
    "ceil": Function(1, 1, _whole),
    "ceiling": Function(1, 1, _whole, "CEIL"),
    "floor": Function(1, 1, _whole),
    "round": Function(1, 2, _first),
    "trunc": Function(1, 1, _whole),
    "sqrt": Function(1, 1, "double"),
    "exp": Function(1, 1, "double"),
    "ln": Function(1, 1, "double"),
    "log": Function(1, 1, "double", "LOG10"),
    "log10": Function(1, 1, "double"),
    "log2": Function(1, 1, "double", "*"),
    "power": Function(2, 2, "double"),
    "pow": Function(2, 2, "double", "POWER"),
    "mod": Function(2, 2, kinds.wider, "*"),
    "sign": Function(1, 1, "bigint", "*"),
    "pi": Function(0, 0, "double", "*"),
    "sin": Function(1, 1, "double"),
    "cos": Function(1, 1, "double"),
    "tan": Function(1, 1, "double"),
    "asin": Function(1, 1, "double"),
    "acos": Function(1, 1, "double"),
    "atan": Function(1, 1, "double"),
    "atan2": Function(2, 2, "double"),
    "degrees": Function(1, 1, "double"),
    "radians": Function(1, 1, "double"),
    "greatest": Function(1, _MANY, kinds.wider),
    "least": Function(1, _MANY, kinds.wider),
    "isnan": Function(1, 1, "boolean", ""),
}
_CHOICES = {
    "coalesce": Function(1, _MANY, kinds.wider),
    "ifnull": Function(2, 2, kinds.wider, "COALESCE"),
    "nullif": Function(2, 2, _first),
    "if": Function(3, 3, _last_two, "*"),
}
_TEXT = {
    "lower": Function(1, 1, "text"),
    "upper": Function(1, 1, "text"),
    "length": Function(1, 1, "bigint", "CHAR_LENGTH"),
    "char_length": Function(1, 1, "bigint"),
    "trim": Function(1, 2, "text", "BTRIM"),
    "ltrim": Function(1, 2, "text"),
    "rtrim": Function(1, 2, "text"),
    "replace": Function(3, 3, "text"),
    "reverse": Function(1, 1, "text"),
    "left": Function(2, 2, "text"),
    "right": Function(2, 2, "text"),
    "lpad": Function(3, 3, "text"),
    "rpad": Function(3, 3, "text"),
    "substring": Function(2, 3, "text"),
    "substr": Function(2, 3, "text", "SUBSTRING"),
    "strpos": Function(2, 2, "bigint"),
    "instr": Function(2, 2, "bigint", "STRPOS"),
    "contains": Function(2, 2, "boolean", "CONTAINS_STRING"),
    "starts_with": Function(2, 2, "boolean", "*"),
    "ends_with": Function(2, 2, "boolean", "*"),
    "concat": Function(1, _MANY, "text", "*"),
    "concat_ws": Function(2, _MANY, "text", ""),
    "split_part": Function(3, 3, "text", ""),
    "regexp_matches": Function(2, 2, "boolean", "REGEXP_LIKE"),
    "regexp_extract": Function(2, 3, "text", "*"),
    "regexp_replace": Function(3, 4, "text", ""),
    "json_extract_string": Function(2, 2, "text", "*"),
    "json_extract": Function(2, 2, "json", ""),
    "json_array_length": Function(1, 2, "bigint", ""),
}
_TIME = {
    "now": Function(0, 0, "timestamp", "*"),
    "current_timestamp": Function(0, 0, "timestamp", "*"),
    "current_date": Function(0, 0, "date", "*"),
    "today": Function(0, 0, "date", "*"),
    "date_trunc": Function(2, 2, _truncated, "*"),
    "time_bucket": Function(2, 2, _truncated, "*"),
    "date_part": Function(2, 2, "bigint", "*"),
    "date_diff": Function(3, 3, "bigint", "*"),
    "datediff": Function(3, 3, "bigint", "*"),
    "date_sub": Function(3, 3, "bigint", "*"),
    "epoch": Function(1, 1, "double", "*"),
    "epoch_ms": Function(1, 1, "bigint", "*"),
    "to_timestamp": Function(1, 1, "timestamp", "*"),
    "strftime": Function(2, 2, "text", "*"),
    "strptime": Function(2, 2, "timestamp", ""),
    "last_day": Function(1, 1, "date", ""),
    "dayname": Function(1, 1, "text", "*"),
    "monthname": Function(1, 1, "text", "*"),
}
PARTS = ("year", "quarter", "month", "week", "day", "dow", "isodow", "doy", "hour", "minute", "second", "epoch")
# The function of a part, where its name is not the part's.
PART_FUNCTIONS = {each: each for each in ("year", "quarter", "month", "week", "day", "hour", "minute", "second")} | {
    "dayofweek": "dow",
    "isodow": "isodow",
    "dayofyear": "doy",
    "dayofmonth": "day",
}
_PARTS = {name: Function(1, 1, "bigint", "*") for name in PART_FUNCTIONS}


def _aggregate(least: int, most: int, result: str | Callable[[Sequence[str]], str], druid: str = "=") -> Function:
    return Function(least, most, result, druid, "aggregate")


_AGGREGATES = {
    "count": _aggregate(0, 1, "bigint"),
    "count_if": _aggregate(1, 1, "bigint", "*"),
    "sum": _aggregate(1, 1, _sum),
    "avg": _aggregate(1, 1, "double", "*"),
    "mean": _aggregate(1, 1, "double", "*"),
    "min": _aggregate(1, 1, _first, "*"),
    "max": _aggregate(1, 1, _first, "*"),
    "any_value": _aggregate(1, 1, _first, "*"),
    "arg_max": _aggregate(2, 2, _first, "*"),
    "arg_min": _aggregate(2, 2, _first, "*"),
    "max_by": _aggregate(2, 2, _first, "*"),
    "min_by": _aggregate(2, 2, _first, "*"),
    "bool_and": _aggregate(1, 1, "boolean", "*"),
    "bool_or": _aggregate(1, 1, "boolean", "*"),
    "median": _aggregate(1, 1, "double", "*"),
    "quantile_cont": _aggregate(2, 2, "double", "*"),
    "quantile_disc": _aggregate(2, 2, _first, ""),
    "percentile_cont": _aggregate(1, 1, "double", "*"),
    "approx_quantile": _aggregate(2, 2, "double", "*"),
    "approx_count_distinct": _aggregate(1, 1, "bigint", "APPROX_COUNT_DISTINCT_DS_HLL"),
    "string_agg": _aggregate(2, 2, "text", "*"),
    "stddev": _aggregate(1, 1, "double", ""),
    "stddev_samp": _aggregate(1, 1, "double", ""),
    "stddev_pop": _aggregate(1, 1, "double", ""),
    "variance": _aggregate(1, 1, "double", ""),
    "var_samp": _aggregate(1, 1, "double", ""),
    "var_pop": _aggregate(1, 1, "double", ""),
    "corr": _aggregate(2, 2, "double", ""),
    "covar_pop": _aggregate(2, 2, "double", ""),
    "covar_samp": _aggregate(2, 2, "double", ""),
    "mode": _aggregate(1, 1, _first, ""),
    "grouping": _aggregate(1, _MANY, "bigint"),
}
_WINDOWS = {
    "row_number": Function(0, 0, "bigint", use="window"),
    "rank": Function(0, 0, "bigint", use="window"),
    "dense_rank": Function(0, 0, "bigint", use="window"),
    "percent_rank": Function(0, 0, "double", use="window"),
    "cume_dist": Function(0, 0, "double", use="window"),
    "ntile": Function(1, 1, "bigint", use="window"),
    "lag": Function(1, 3, _first, "*", "window"),
    "lead": Function(1, 3, _first, "*", "window"),
    "first_value": Function(1, 1, _first, use="window"),
    "last_value": Function(1, 1, _first, use="window"),
    "nth_value": Function(2, 2, _first, "", "window"),
}
FUNCTIONS: dict[str, Function] = {
    **_NUMBERS, **_CHOICES, **_TEXT, **_TIME, **_PARTS, **_AGGREGATES, **_WINDOWS,
}  # fmt: skip
# Those that give as many values as they have rows, in FROM only.
TABLE_FUNCTIONS = ("range", "generate_series", "unnest")
TRUNCATIONS = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")
