"""Topics as folders of files: what the streams of a `StreamTest` read instead of Kafka, and the decoding of values.

A stream has folders of its own, so that it can read the records one step at a time, whatever other streams have read.
"""

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.streams.compile.sources import RAW_SCHEMA, add_watermark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

# The column that marks rows which only carry a time.
_TICK = "_riverrun_tick"


@dataclass(frozen=True)
class SentRecord:
    """A record of a topic; topics of a `StreamTest` have one partition."""

    topic: str
    offset: int
    key: bytes | None
    value: bytes | None
    at: datetime

    def as_dict(self) -> dict[str, Any]:
        return {
            "key": _base64(self.key),
            "value": _base64(self.value),
            "topic": self.topic,
            "partition": 0,
            "offset": self.offset,
            "timestamp": self.at.isoformat(),
        }


class FolderRecordSource:
    """The records that one query reads, in a folder for each topic."""

    def __init__(self, spark: "SparkSession", root: Path) -> None:
        self._spark = spark
        self._root = root
        self._numbers = count()
        self._batch_frames: dict[str, list[DataFrame]] = {}

    def put(self, topic: str, records: Iterable[SentRecord]) -> None:
        """Add records, which the query reads in one batch and in this order."""
        self._write(self._folder("records", topic), [record.as_dict() for record in records])
        for frame in self._batch_frames.get(topic, []):
            _refresh(frame)

    def tick(self, topic: str, at: datetime) -> None:
        """Move the event time of a topic, as a record of that time would."""
        self._write(self._folder("ticks", topic), [{"at": at.isoformat()}])

    def read_stream(self, topic: str) -> "DataFrame":
        return self._spark.readStream.schema(RAW_SCHEMA).json(str(self._folder("records", topic)))

    def read_batch(self, topic: str) -> "DataFrame":
        frame = self._spark.read.schema(RAW_SCHEMA).json(str(self._folder("records", topic)))
        self._batch_frames.setdefault(topic, []).append(frame)
        return frame

    def with_watermark(self, frame: "DataFrame", topic: str, time: str, late_ms: int) -> "DataFrame":
        """Send rows and ticks through the watermark operator, then filter the ticks out again."""
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql.types import StructType

        ticks = self._spark.readStream.schema("at timestamp").json(str(self._folder("ticks", topic)))
        at = F.col("at")
        if isinstance(frame.schema[time].dataType, StructType):
            at = F.struct(at.alias("start"), at.alias("end"))
        ticks = ticks.select(at.alias(time), F.lit(True).alias(_TICK))
        rows_and_ticks = frame.withColumn(_TICK, F.lit(False)).unionByName(ticks, allowMissingColumns=True)
        watermarked_rows = add_watermark(rows_and_ticks, topic, time, late_ms)
        return watermarked_rows.where(~F.col(_TICK)).drop(_TICK)

    def _folder(self, kind: str, topic: str) -> Path:
        folder = self._root / kind / topic
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _write(self, folder: Path, lines: list[dict[str, Any]]) -> None:
        """Write a file under a hidden name and rename it, so that Spark, which skips names with a dot, never reads half of
        it."""
        name = f"{next(self._numbers):06d}.json"
        hidden = folder / f".{name}"
        hidden.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        hidden.rename(folder / name)


def _refresh(frame: "DataFrame") -> None:
    """Let Spark list the folder again: it does so only once, when a frame is made of it."""
    plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    plan.relation().location().refresh()


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def decode_value(value: bytes, columns: "DataType") -> Any:
    """A record's value as Python objects: datetimes with a time zone, dates, Decimals and bytes."""
    return _typed(json.loads(value, parse_float=Decimal), columns)


def _typed(value: Any, data_type: "DataType") -> Any:
    from pyspark.sql import types as T  # noqa: N812

    if value is None:
        return None
    match data_type:
        case T.StructType():
            return {field.name: _typed(value.get(field.name), field.dataType) for field in data_type.fields}
        case T.ArrayType():
            return [_typed(element, data_type.elementType) for element in value]
        case T.MapType():
            return {name: _typed(element, data_type.valueType) for name, element in value.items()}
        case T.FloatType() | T.DoubleType():
            return float(value)
        case T.DecimalType():
            return Decimal(value)
        case T.TimestampType():
            return datetime.fromisoformat(value).astimezone(UTC)
        case T.TimestampNTZType():
            return datetime.fromisoformat(value)
        case T.DateType():
            return date.fromisoformat(value)
        case T.BinaryType():
            return base64.b64decode(value)
    return value
