"""All functions of riverrun's SQL. What is not in this table is refused, whatever a store knows.

Names mean what they mean in DuckDB. `druid` is the function in Druid: "=" by the same name, another name, "*"
translated by riverrun.store.sql.druid_functions, "" not available.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from riverrun.store.sql import value_types

FunctionUse = Literal["scalar", "aggregate", "window"]


def _first(given: Sequence[str]) -> str:
    return given[0] if given else value_types.UNKNOWN


def _last_two(given: Sequence[str]) -> str:
    return value_types.common_type(given[1:])


def _whole(given: Sequence[str]) -> str:
    """The result type of rounding to a whole number."""
    parts = value_types.precision_and_scale(given[0]) if given and value_types.is_decimal(given[0]) else None
    return value_types.decimal_type(parts[0], 0) if parts else _first(given)


def _sum(given: Sequence[str]) -> str:
    return value_types.aggregate_sum_type(_first(given))


def _truncated(given: Sequence[str]) -> str:
    return "local" if given[-1] == "local" else "timestamp"


@dataclass(frozen=True)
class SqlFunction:
    """How many arguments it takes, its result type, and its form in Druid."""

    min_args: int
    max_args: int
    result: str | Callable[[Sequence[str]], str]
    druid: str = "="
    use: FunctionUse = "scalar"

    def result_type(self, argument_types: Sequence[str]) -> str:
        return self.result if isinstance(self.result, str) else self.result(argument_types)


_MAX_ARGS = 100
_NUMBERS = {
    "abs": SqlFunction(1, 1, _first),
    "ceil": SqlFunction(1, 1, _whole),
    "ceiling": SqlFunction(1, 1, _whole, "CEIL"),
    "floor": SqlFunction(1, 1, _whole),
    "round": SqlFunction(1, 2, _first),
    "trunc": SqlFunction(1, 1, _whole),
    "sqrt": SqlFunction(1, 1, "double"),
    "exp": SqlFunction(1, 1, "double"),
    "ln": SqlFunction(1, 1, "double"),
    "log": SqlFunction(1, 1, "double", "LOG10"),
    "log10": SqlFunction(1, 1, "double"),
    "log2": SqlFunction(1, 1, "double", "*"),
    "power": SqlFunction(2, 2, "double"),
    "pow": SqlFunction(2, 2, "double", "POWER"),
    "mod": SqlFunction(2, 2, value_types.common_type, "*"),
    "sign": SqlFunction(1, 1, "bigint", "*"),
    "pi": SqlFunction(0, 0, "double", "*"),
    "sin": SqlFunction(1, 1, "double"),
    "cos": SqlFunction(1, 1, "double"),
    "tan": SqlFunction(1, 1, "double"),
    "asin": SqlFunction(1, 1, "double"),
    "acos": SqlFunction(1, 1, "double"),
    "atan": SqlFunction(1, 1, "double"),
    "atan2": SqlFunction(2, 2, "double"),
    "degrees": SqlFunction(1, 1, "double"),
    "radians": SqlFunction(1, 1, "double"),
    "greatest": SqlFunction(1, _MAX_ARGS, value_types.common_type),
    "least": SqlFunction(1, _MAX_ARGS, value_types.common_type),
    "isnan": SqlFunction(1, 1, "boolean", ""),
}
_CONDITIONALS = {
    "coalesce": SqlFunction(1, _MAX_ARGS, value_types.common_type),
    "ifnull": SqlFunction(2, 2, value_types.common_type, "COALESCE"),
    "nullif": SqlFunction(2, 2, _first),
    "if": SqlFunction(3, 3, _last_two, "*"),
}
_TEXT = {
    "lower": SqlFunction(1, 1, "text"),
    "upper": SqlFunction(1, 1, "text"),
    "length": SqlFunction(1, 1, "bigint", "CHAR_LENGTH"),
    "char_length": SqlFunction(1, 1, "bigint"),
    "trim": SqlFunction(1, 2, "text", "BTRIM"),
    "ltrim": SqlFunction(1, 2, "text"),
    "rtrim": SqlFunction(1, 2, "text"),
    "replace": SqlFunction(3, 3, "text"),
    "reverse": SqlFunction(1, 1, "text"),
    "left": SqlFunction(2, 2, "text"),
    "right": SqlFunction(2, 2, "text"),
    "lpad": SqlFunction(3, 3, "text"),
    "rpad": SqlFunction(3, 3, "text"),
    "substring": SqlFunction(2, 3, "text"),
    "substr": SqlFunction(2, 3, "text", "SUBSTRING"),
    "strpos": SqlFunction(2, 2, "bigint"),
    "instr": SqlFunction(2, 2, "bigint", "STRPOS"),
    "contains": SqlFunction(2, 2, "boolean", "CONTAINS_STRING"),
    "starts_with": SqlFunction(2, 2, "boolean", "*"),
    "ends_with": SqlFunction(2, 2, "boolean", "*"),
    "concat": SqlFunction(1, _MAX_ARGS, "text", "*"),
    "concat_ws": SqlFunction(2, _MAX_ARGS, "text", ""),
    "split_part": SqlFunction(3, 3, "text", ""),
    "regexp_matches": SqlFunction(2, 2, "boolean", "REGEXP_LIKE"),
    "regexp_extract": SqlFunction(2, 3, "text", "*"),
    "regexp_replace": SqlFunction(3, 4, "text", ""),
    "json_extract_string": SqlFunction(2, 2, "text", "*"),
    "json_extract": SqlFunction(2, 2, "json", ""),
    "json_array_length": SqlFunction(1, 2, "bigint", ""),
}
_TIME = {
    "now": SqlFunction(0, 0, "timestamp", "*"),
    "current_timestamp": SqlFunction(0, 0, "timestamp", "*"),
    "current_date": SqlFunction(0, 0, "date", "*"),
    "today": SqlFunction(0, 0, "date", "*"),
    "date_trunc": SqlFunction(2, 2, _truncated, "*"),
    "time_bucket": SqlFunction(2, 2, _truncated, "*"),
    "date_part": SqlFunction(2, 2, "bigint", "*"),
    "date_diff": SqlFunction(3, 3, "bigint", "*"),
    "datediff": SqlFunction(3, 3, "bigint", "*"),
    "date_sub": SqlFunction(3, 3, "bigint", "*"),
    "epoch": SqlFunction(1, 1, "double", "*"),
    "epoch_ms": SqlFunction(1, 1, "bigint", "*"),
    "to_timestamp": SqlFunction(1, 1, "timestamp", "*"),
    "strftime": SqlFunction(2, 2, "text", "*"),
    "strptime": SqlFunction(2, 2, "timestamp", ""),
    "last_day": SqlFunction(1, 1, "date", ""),
    "dayname": SqlFunction(1, 1, "text", "*"),
    "monthname": SqlFunction(1, 1, "text", "*"),
}
DATE_PARTS = ("year", "quarter", "month", "week", "day", "dow", "isodow", "doy", "hour", "minute", "second", "epoch")
# The function of a date part, where its name is not the part's.
DATE_PART_FUNCTIONS = {
    unit: unit for unit in ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
} | {
    "dayofweek": "dow",
    "isodow": "isodow",
    "dayofyear": "doy",
    "dayofmonth": "day",
}
_DATE_PART_SIGNATURES = {name: SqlFunction(1, 1, "bigint", "*") for name in DATE_PART_FUNCTIONS}


def _aggregate(least: int, most: int, result: str | Callable[[Sequence[str]], str], druid: str = "=") -> SqlFunction:
    return SqlFunction(least, most, result, druid, "aggregate")


_AGGREGATES = {
    "count": _aggregate(1, 1, "bigint"),
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
    "grouping": _aggregate(1, _MAX_ARGS, "bigint"),
}
_WINDOWS = {
    "row_number": SqlFunction(0, 0, "bigint", use="window"),
    "rank": SqlFunction(0, 0, "bigint", use="window"),
    "dense_rank": SqlFunction(0, 0, "bigint", use="window"),
    "percent_rank": SqlFunction(0, 0, "double", use="window"),
    "cume_dist": SqlFunction(0, 0, "double", use="window"),
    "ntile": SqlFunction(1, 1, "bigint", use="window"),
    "lag": SqlFunction(1, 3, _first, "*", "window"),
    "lead": SqlFunction(1, 3, _first, "*", "window"),
    "first_value": SqlFunction(1, 1, _first, use="window"),
    "last_value": SqlFunction(1, 1, _first, use="window"),
    "nth_value": SqlFunction(2, 2, _first, "", "window"),
}
FUNCTIONS: dict[str, SqlFunction] = {
    **_NUMBERS, **_CONDITIONALS, **_TEXT, **_TIME, **_DATE_PART_SIGNATURES, **_AGGREGATES, **_WINDOWS,
}  # fmt: skip
# Table functions, in FROM only.
TABLE_FUNCTIONS = ("range", "generate_series", "unnest")
TRUNCATIONS = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")
