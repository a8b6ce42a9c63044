"""The words of riverrun's SQL, for an editor with completion."""

from typing import Any

from riverrun.store.sql.functions import FUNCTIONS, TABLE_FUNCTIONS

# Keywords of several words are one entry, because that is how they are typed.
KEYWORDS = (
    "select", "distinct", "from", "where", "group by", "having", "order by", "limit", "offset", "with", "as", "join",
    "left join", "right join", "full join", "cross join", "on", "using", "union all", "union", "intersect", "except",
    "qualify", "over", "partition by", "filter", "rollup", "cube", "grouping sets", "all", "case", "when", "then",
    "else", "end", "and", "or", "not", "in", "exists", "between", "like", "ilike", "is null", "is not null", "asc",
    "desc", "nulls first", "nulls last", "interval", "at time zone", "cast", "try_cast", "extract", "true", "false",
    "null", "latest", "exclude", "values", "rows between", "unbounded preceding", "preceding", "current row",
)  # fmt: skip
TYPES = ("text", "boolean", "bigint", "double", "decimal", "timestamp", "date", "json")


def sql_vocabulary() -> dict[str, Any]:
    """Words, types and functions; of a function, how many arguments it takes and its result type where that is known."""
    functions = [
        {
            "name": name,
            "use": function.use,
            "least": function.min_args,
            "most": function.max_args,
            "result": function.result if isinstance(function.result, str) else "",
        }
        for name, function in FUNCTIONS.items()
    ]
    rows = [{"name": name, "use": "rows", "least": 1, "most": 3, "result": ""} for name in TABLE_FUNCTIONS]
    return {"words": KEYWORDS, "types": TYPES, "functions": [*functions, *rows]}
