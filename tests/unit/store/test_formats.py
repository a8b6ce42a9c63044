"""Rows in every format: no digit lost, times in ISO."""

import csv
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from riverrun.errors import QueryError
from riverrun.store.arrow_types import column_type_name, normalize_types
from riverrun.store.contract import QueryResult
from riverrun.store.formats import MEDIA_TYPES, display_rows, encode_result, encode_rows
from riverrun.store.sql import OutputColumn

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ROWS = pa.table(
    {
        "big": pa.array([9007199254740993, None], pa.int64()),
        "money": pa.array([Decimal("12345678901234567890.10"), None], pa.decimal128(38, 2)),
        "at": pa.array([AT, None], pa.timestamp("us", tz="UTC")),
        "day": pa.array([date(2026, 1, 2), None], pa.date32()),
        "load": pa.array([0.1, float("nan")], pa.float64()),
        "ok": pa.array([True, None], pa.bool_()),
        "text": pa.array(['a "b", ü\nc', ""], pa.string()),
    }
)
ANSWER = QueryResult(ROWS, more=True, seconds=0.25)


def test_json_has_every_digit() -> None:
    text = encode_rows(ANSWER, "json").decode()
    rows = json.loads(text, parse_float=Decimal)
    assert rows[0] == {
        "big": 9007199254740993,
        "money": Decimal("12345678901234567890.10"),
        "at": "2026-01-02T03:04:05.678901Z",
        "day": "2026-01-02",
        "load": Decimal("0.1"),
        "ok": True,
        "text": 'a "b", ü\nc',
    }
    assert rows[1] == {"big": None, "money": None, "at": None, "day": None, "load": None, "ok": None, "text": ""}


def test_lines_of_json() -> None:
    lines = encode_rows(ANSWER, "ndjson").decode().splitlines()
    assert [json.loads(line)["ok"] for line in lines] == [True, None]
    assert encode_rows(QueryResult(ROWS.slice(0, 0)), "ndjson") == b""


def test_csv() -> None:
    rows = list(csv.reader(io.StringIO(encode_rows(ANSWER, "csv").decode())))
    assert rows[0] == ["big", "money", "at", "day", "load", "ok", "text"]
    assert rows[1][:6] == [
        "9007199254740993", "12345678901234567890.10", "2026-01-02T03:04:05.678901Z", "2026-01-02", "0.1", "true",
    ]  # fmt: skip
    assert rows[1][6] == 'a "b", ü\nc'
    assert rows[2] == ["", "", "", "", "nan", "", ""]


def test_arrow_and_parquet_give_the_same_table_back() -> None:
    with pa.ipc.open_stream(encode_rows(ANSWER, "arrow")) as reader:
        assert reader.read_all().slice(0, 1) == ROWS.slice(0, 1)
    assert pq.read_table(io.BytesIO(encode_rows(ANSWER, "parquet"))).slice(0, 1) == ROWS.slice(0, 1)


def test_a_document_tells_its_columns_and_whether_there_is_more() -> None:
    content = json.loads(encode_result(ANSWER))
    assert content["more"] is True
    assert content["seconds"] == 0.25
    assert [each["type"] for each in content["columns"]] == [
        "bigint", "decimal(38,2)", "timestamp", "date", "double", "boolean", "text",
    ]  # fmt: skip
    assert len(content["rows"]) == 2


def test_a_table_for_people() -> None:
    row = display_rows(ROWS)[0]
    assert row["at"] == "2026-01-02 03:04:05.678901"
    assert row["load"] == "0.1"
    assert row["money"] == "12345678901234567890.10"


@pytest.mark.parametrize("kind", ["json", "ndjson", "csv"])
def test_a_year_that_only_arrow_and_parquet_know_is_said(kind: str) -> None:
    far = QueryResult(pa.table({"at": pa.array([2**58], pa.timestamp("us", tz="UTC"))}))
    with pytest.raises(QueryError, match="1 to 9999"):
        encode_rows(far, kind)
    with pytest.raises(QueryError, match="as text"):
        display_rows(far.rows)
    assert pq.read_table(io.BytesIO(encode_rows(far, "parquet"))) == far.rows


def test_no_other_format() -> None:
    assert set(MEDIA_TYPES) == {"json", "ndjson", "csv", "arrow", "parquet"}
    with pytest.raises(ValueError, match="xml"):
        encode_rows(ANSWER, "xml")


@pytest.mark.parametrize(
    ("given", "known", "promised"),
    [
        (pa.array([1], pa.int32()), "", pa.int64()),
        (pa.array([1], pa.uint8()), "", pa.int64()),
        (pa.array([Decimal(7)], pa.decimal128(38, 0)), "bigint", pa.int64()),
        (pa.array([Decimal(7)], pa.decimal128(38, 0)), "", pa.int64()),
        (pa.array([Decimal(7)], pa.decimal128(38, 0)), "decimal(38,0)", pa.decimal128(38, 0)),
        (pa.array([Decimal(10**30)], pa.decimal128(38, 0)), "bigint", pa.decimal128(38, 0)),
        (pa.array([Decimal("7.5")], pa.decimal128(10, 1)), "", pa.decimal128(10, 1)),
        (pa.array([1.5], pa.float32()), "", pa.float64()),
        (pa.array([AT.replace(tzinfo=None)], pa.timestamp("us")), "", pa.timestamp("us", tz="UTC")),
        (pa.array([1], pa.timestamp("ns", tz="Europe/Berlin")), "", pa.timestamp("us", tz="UTC")),
        (pa.array(["a"], pa.large_string()), "", pa.string()),
        (pa.array(["a"]).dictionary_encode(), "", pa.string()),
        (pa.array([None], pa.null()), "", pa.string()),
        (pa.array([None], pa.null()), "timestamp", pa.timestamp("us", tz="UTC")),
        (pa.array([[1, 2]]), "", pa.string()),
        (pa.array([date(2026, 1, 1)], pa.date64()), "", pa.date32()),
    ],
)
def test_types_are_those_that_are_promised(given: pa.Array, known: str, promised: pa.DataType) -> None:
    made = normalize_types(pa.table({"x": given}), [OutputColumn("x", known)])
    assert made.schema.field("x").type == promised
    assert made.num_rows == 1
    assert column_type_name(promised)


def test_a_list_is_json() -> None:
    assert normalize_types(pa.table({"x": [[1, 2]]})).column("x").to_pylist() == ["[1, 2]"]
