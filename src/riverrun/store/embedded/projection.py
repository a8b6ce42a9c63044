# ruff: noqa: S608  -- SQL is made here, of names and values that are quoted
"""SQL that turns a record's JSON into a table's columns, and finds the records that do not fit.

Every value is read as its text first, as it is written, and then cast: so that a number keeps all its digits, and an
invalid value is distinguished from a missing one. A DECIMAL among the fields is what makes DuckDB keep numbers as they
are written; without one it reads them as doubles. What fits: the type's own JSON and the same as text ("12", "1.50",
"NaN"). Whole numbers may be written 12.0; a decimal is not rounded; a time without a zone is UTC; years are 1 to 9999.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from riverrun.model.table import Column, TableSpec
from riverrun.store.embedded.schema import duckdb_type, quote_identifier, quote_literal

# Columns of a batch besides the record's value.
ROW, TIME, VALUE, IDENTITY, TOMBSTONE = '"~row"', '"~time"', '"~value"', '"~identity"', '"~dead"'
# The column that the projection adds: whether the row is valid.
VALID = '"~fits"'
_OBJECT, _JSON = '"~object"', '"~json"'
_KEEP_NUMBERS_AS_TEXT = {"_riverrun_as_written": "DECIMAL(1,0)"}
_SAMPLE_CHARACTERS = 80
# The years that every client can represent, 1 to 9999 in UTC; infinity is outside.
_YEARS = {
    "timestamp": ("TIMESTAMPTZ '0001-01-01 00:00:00+00'", "TIMESTAMPTZ '9999-12-31 23:59:59.999999+00'"),
    "date": ("DATE '0001-01-01'", "DATE '9999-12-31'"),
}


@dataclass(frozen=True)
class RowProjection:
    """The SQL that shapes records: `rows` gives all of a batch, typed, with `VALID`; `rejected` the number and the reason of
    those that do not fit."""

    rows: str
    rejected: str


def build_projection(table: TableSpec, batch: str) -> RowProjection:
    """The SQL for a table. `batch` is the table that holds its records, with the columns named above."""
    names = {column: quote_identifier(f"~{number}") for number, column in enumerate(table.columns)}
    fields = [(column, text) for column, text in names.items() if column.path]
    texts = ", ".join(f"{_extract_path(_JSON, column.path)} AS {text}" for column, text in fields)
    typed = ", ".join(
        f"{_cast_text(column, text) if column.path else TIME} AS {quote_identifier(column.name)}"
        for column, text in names.items()
    )
    schema = quote_literal(json.dumps(_json_structure(column for column, _ in fields), ensure_ascii=False))
    invalid = [
        (column, text, f"coalesce({_invalid_condition(column, text, quote_identifier(column.name))}, false)")
        for column, text in fields
    ]
    parents = sorted({column.path[:depth] for column, _ in fields for depth in range(1, len(column.path))} | {()})
    broken = [(parent, _not_object(parent, fields)) for parent in parents]
    any_invalid = " OR ".join([f"NOT {_OBJECT}", *(test for _, test in broken), *(test for *_, test in invalid)])
    batch_columns = f"{ROW}, {TIME}, {TOMBSTONE}, {VALUE}"
    source = f"""
        FROM (SELECT *, {typed}
              FROM (SELECT {batch_columns}, {_JSON} IS NOT NULL AS {_OBJECT}{", " if texts else ""}{texts}
                    FROM (SELECT *, TRY(from_json({VALUE}, {schema})) AS {_JSON} FROM {batch})))"""
    columns = ", ".join(quote_identifier(column.name) for column in table.columns)
    reasons = " ".join(
        [f"WHEN NOT {_OBJECT} THEN 'it is not a JSON object'"]
        + [f"WHEN {test} THEN {quote_literal(_path_name(parent) + ' is not a JSON object')}" for parent, test in broken]
        + [
            f"WHEN {test} THEN "
            f"concat({quote_literal(f'{column.name} is not {_type_with_article(column)}: ')}, {text}[:{_SAMPLE_CHARACTERS}])"
            for column, text, test in invalid
        ]
    )
    return RowProjection(
        rows=f"SELECT {columns}, {ROW}, {TOMBSTONE}, NOT ({any_invalid}) AS {VALID} {source}",
        rejected=f"SELECT {ROW}, CASE {reasons} END {source} WHERE {any_invalid}",
    )


def _path_name(path: tuple[str, ...]) -> str:
    return ".".join(path) or "it"


def _type_with_article(column: Column) -> str:
    return f"{'an' if column.type[0] in 'aeiou' else 'a'} {column.type}"


def _json_structure(columns: Iterable[Column]) -> dict[str, object]:
    structure: dict[str, object] = {}
    for column in columns:
        inside = structure
        for name in column.path[:-1]:
            inside = inside.setdefault(name, {})  # type: ignore[assignment]
        inside[column.path[-1]] = "JSON" if column.type == "json" else "VARCHAR"
    return structure | _KEEP_NUMBERS_AS_TEXT


def _extract_path(value: str, path: tuple[str, ...]) -> str:
    for name in path:
        value = f"struct_extract({value}, {quote_literal(name)})"
    return value


def _cast_text(column: Column, text: str) -> str:
    match column.type:
        case "text":
            return text
        case "json":
            return f"CAST({text} AS VARCHAR)"
        case "boolean":
            return f"CASE {text} WHEN 'true' THEN true WHEN 'false' THEN false END"
        case _:
            return f"TRY_CAST({text} AS {duckdb_type(column)})"


def _invalid_condition(column: Column, text: str, value: str) -> str:
    """Whether a text is there and is not valid for its column; null counts as no."""
    is_present = f"{text} IS NOT NULL AND "
    match column.type:
        case "text" | "json":
            return "false"
        case "boolean":
            return f"{is_present}{value} IS NULL"
        case "double":
            # 1e400 is not infinity.
            return f"{is_present}({value} IS NULL OR (isinf({value}) AND NOT contains(lower({text}), 'inf')))"
        case "timestamp" | "date":
            least, most = _YEARS[column.type]
            return f"{is_present}coalesce({value} NOT BETWEEN {least} AND {most}, true)"
        case "bigint":
            # DuckDB rounds 1.5. Numbers that are not written as whole numbers are checked again.
            whole = f"coalesce(TRY_CAST({text} AS DECIMAL(38,18)) <> {value}, true)"
            return f"{is_present}({value} IS NULL OR (CAST({value} AS VARCHAR) <> {text} AND {whole}))"
        case _:
            _, scale = column.decimal or (0, 0)
            point = f"strpos({text}, '.')"
            digits = f"length(rtrim({text}, '0')) - {point} > {scale} AND NOT contains(lower({text}), 'e')"
            return f"{is_present}({value} IS NULL OR ({point} > 0 AND length({text}) - {point} > {scale} AND {digits}))"


def _not_object(parent: tuple[str, ...], fields: list[tuple[Column, str]]) -> str:
    """Whether something other than an object is at this path: checked only for records that have nothing inside it."""
    inside = [text for column, text in fields if column.path[: len(parent)] == parent]
    nothing = " AND ".join([_OBJECT, *(f"{text} IS NULL" for text in inside)])
    pointer = "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in parent)
    kind = f"coalesce(json_type({VALUE}, {quote_literal(pointer)}), 'NULL') NOT IN ('NULL', 'OBJECT')"
    if not parent:
        kind = f"json_type({VALUE}) <> 'OBJECT'"
    return f"CASE WHEN {nothing} THEN {kind} ELSE false END"
