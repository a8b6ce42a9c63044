"""Decodes values of topics with a schema registry to the JSON that streams parse (streams/compile/record_schema.py).

For JSON the registry's header is cut off in plain SQL, at every speed. Avro is read by the same code that consumers use, in
Spark's Python workers: a schema is fetched when a record names it, so records of schemas that are registered while the
stream runs are read as well. Real-time mode takes no Python functions, so such a stream runs in near real time.
A value that cannot be decoded becomes empty, which no event is: it is counted and dead-lettered as any other bad record.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from riverrun.config import RegistrySettings
from riverrun.errors import RecordUnreadableError
from riverrun.kafka.registry.wire_format import AvroDecoder
from riverrun.model.framing import HEADER_BYTES
from riverrun.model.topic import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def decode_values(
    frame: "DataFrame", topic: Topic[Any] | None, registry: RegistrySettings, column: str = "value"
) -> "DataFrame":
    """The frame with JSON in the column that has the topic's values; null stays null, which deletes a key."""
    from pyspark.sql import functions as F  # noqa: N812

    if topic is None or not topic.registered or topic.schema is None:
        return frame
    if topic.format == "avro":
        return frame.withColumn(column, _avro_udf(registry, topic.schema.name)(F.col(column)))
    framed = f"length({column}) >= {HEADER_BYTES} and substring({column}, 1, 1) = X'00'"
    payload = (
        f"case when {column} is null then null when {framed} then substring({column}, {HEADER_BYTES + 1}) else X'' end"
    )
    return frame.withColumn(column, F.expr(payload))


def _avro_udf(registry: RegistrySettings, name: str) -> Any:
    import pandas as pd  # type: ignore[import-untyped]
    from pyspark.sql.pandas.functions import pandas_udf
    from pyspark.sql.types import BinaryType

    def from_avro(values: Any) -> Any:
        reader = _reader(registry, name)
        return values.map(lambda value: _decode(reader, value))

    # Spark derives the kind of function from these. Not as type hints: pandas comes only with riverrun[spark].
    from_avro.__annotations__ = {"values": pd.Series, "return": pd.Series}
    return pandas_udf(from_avro, BinaryType())  # type: ignore[call-overload]


@lru_cache(maxsize=64)
def _reader(registry: RegistrySettings, name: str) -> AvroDecoder:
    """One decoder per worker, which caches the schemas it has fetched."""
    return AvroDecoder(registry, name)


def _decode(reader: AvroDecoder, value: bytes | None) -> bytes | None:
    if value is None:
        return None
    try:
        return reader.unpack(bytes(value))
    except RecordUnreadableError:
        return b""
