"""Types of a CSV file's columns are guessed by its values; what looks like a number and is none stays as it is written."""

from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

import riverrun as rr
from riverrun.config import KafkaSettings
from riverrun.kafka.connection import Connection
from riverrun.model.pipeline import FileSource, SourceLine, Table
from riverrun.streams.compile.compiler import compile_app
from riverrun.streams.compile.graph import build_graph
from riverrun.streams.compile.sources import KafkaRecordSource, RecordSource, read_table

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


def problems(spark: SparkSession, folder: Path, source: FileSource) -> list[str]:
    """What `riverrun validate` says of a stream that joins a CSV table."""
    app = rr.App("cold")
    app.folder = folder
    app.topic("readings", Reading)
    app.table("clinics", source, key="fridge_id")
    app.sql("named", "select r.fridge_id, max_c from readings r join clinics c on r.fridge_id = c.fridge_id")
    records = KafkaRecordSource(spark, Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1")))
    return [str(problem) for problem in compile_app(build_graph(app), spark, records).problems]


class Reading(rr.Event):
    fridge_id: str = rr.key()


def test_a_value_of_another_type_is_found_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "clinics.csv"
    file.write_text('fridge_id,name,max_c\nf1,"North, 2nd floor",8\nf2,"South, cellar",eight\nf3,East,7\n')
    typed = rr.csv("clinics.csv", columns="fridge_id string, name string, max_c double")
    (text,) = problems(spark, tmp_path, typed)
    assert f"row 3 of {file} has 'eight' in the column max_c, which is double" in text
    # Values of two kinds are text, where nobody says otherwise.
    assert problems(spark, tmp_path, rr.csv("clinics.csv")) == []
    file.write_text("fridge_id,name,max_c\nf1,North,8\nf2,South\n")
    (text,) = problems(spark, tmp_path, typed)
    assert f"row 3 of {file} has 2 values, and the table has 3 columns: f2,South" in text
    file.write_text("fridge_id,name,max_c\nf1,North,8\nf2,,\n")
    assert problems(spark, tmp_path, typed) == []
    file.write_text("")
    (text,) = problems(spark, tmp_path, rr.csv("clinics.csv"))
    assert f"The table clinics reads {file}, which is empty" in text
