"""Types of a CSV file's columns are guessed by its values; what looks like a number and is none stays as it is written."""

from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

import riverrun as rr
from riverrun.model.pipeline import SourceLine, Table
from riverrun.streams.compile.sources import RecordSource, read_table

pytestmark = pytest.mark.slow


def test_a_phone_number_keeps_its_plus_and_an_article_its_zeros(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "depots.csv").write_text(
        "depot,capacity,phone,article,share\nDUB1,20,+353850000001,0042,0.5\nCRK1,30,353850000002,17,-1\n"
    )
    table = Table("depots", rr.csv("depots.csv"), ("depot",), SourceLine("app.py", 1))
    frame = read_table(spark, table, cast("RecordSource", None), tmp_path)
    assert [(each.name, each.dataType.simpleString()) for each in frame.schema] == [
        ("depot", "string"), ("capacity", "int"), ("phone", "string"), ("article", "string"), ("share", "double"),
    ]  # fmt: skip
    rows: list[Any] = frame.orderBy("depot").collect()
    assert [tuple(row) for row in rows] == [
        ("CRK1", 30, "353850000002", "17", -1.0), ("DUB1", 20, "+353850000001", "0042", 0.5),
    ]  # fmt: skip
