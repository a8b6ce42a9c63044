"""What is wrong with the values of a CSV file, before a stream stops at them.

Spark looks at a file's values when a stream joins the table, and then shows the row with a null where the value was. Here
the file is read once while the pipeline file is checked, and the first bad value is named with its row and its column.
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.model.pipeline import FileSource

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.types import StructType

# Reference data is small; a larger file is not read twice.
MAX_CHECKED_BYTES = 16_000_000
_BAD_ROW = "_riverrun_bad_row"


def csv_file(source: FileSource, folder: Path) -> Path | None:
    """The file of a CSV table, where it is one file of this machine. `folder` is what paths are looked up from."""
    if source.format != "csv" or "://" in source.path:
        return None
    path = folder / Path(source.path).expanduser()
    return path if path.is_file() else None


def is_empty_csv(path: Path) -> bool:
    """Whether a file has no line, not even the header."""
    with path.open("rb") as file:
        return not file.read(4096).strip()


def find_bad_row(spark: "SparkSession", source: FileSource, path: Path, schema: "StructType") -> str:
    """The first row of a file that its columns cannot take, in words; empty when there is none, or the table's options say
    what becomes of such rows."""
    options = {"header": "true", "mode": "FAILFAST"} | dict(source.options)
    if options["mode"].upper() != "FAILFAST" or path.stat().st_size > MAX_CHECKED_BYTES:
        return ""
    options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD_ROW, "inferSchema": "false"}
    from pyspark.sql.types import StringType, StructField, StructType

    columns = StructType([*schema.fields, StructField(_BAD_ROW, StringType())])
    frame = spark.read.format("csv").schema(columns).options(**options).load(str(path))
    row = frame.where(f"{_BAD_ROW} is not null").first()
    return _describe_row(row, schema, options, path) if row is not None else ""


def _describe_row(row: "Row", schema: "StructType", options: Mapping[str, str], path: Path) -> str:
    text = str(row[_BAD_ROW])
    delimiter = options.get("sep", options.get("delimiter", ","))
    cells = next(csv.reader([text], delimiter=delimiter if len(delimiter) == 1 else ","), [])
    where = f"row {number} of {path}" if (number := _line_number(path, text)) else f"a row of {path}"
    for field, cell in zip(schema.fields, cells, strict=False):
        if row[field.name] is None and cell.strip():
            return f"{where} has {cell.strip()!r} in the column {field.name}, which is {field.dataType.simpleString()}"
    if len(cells) != len(schema.fields):
        return f"{where} has {len(cells)} values, and the table has {len(schema.fields)} columns: {text}"
    return f"{where} is not what its columns say: {text}"


def _line_number(path: Path, text: str) -> int:
    """The line of the file that is this text, counted from 1 with the header; 0 when none is."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return next((number for number, line in enumerate(file, 1) if line.strip() == text.strip()), 0)


def find_cell(path: Path, value: str) -> str:
    """Which row and column of a CSV file have a value, in words; empty when none is found."""
    try:
        if path.stat().st_size > MAX_CHECKED_BYTES:
            return ""
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            for cells in reader:
                for name, cell in zip(header, cells, strict=False):
                    if cell.strip() == value.strip():
                        return f"row {reader.line_num} has {value!r} in the column {name.strip()}"
    except (OSError, csv.Error):
        pass
    return ""
