"""A process of its own: a transformWithState on a Spark whose Python is given. Arguments: the Python, a folder, and of a
cluster its master and the settings for it (JSON)."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from riverrun.config import Settings, SparkSettings
from riverrun.streams.run.session import start_session, stop_session


class Counter(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        before = self.count.get()[0] if self.count.exists() else 0
        self.count.update((before + sum(1 for _ in rows),))
        yield Row(house_id=key[0], n=self.count.get()[0])

    def close(self) -> None:
        pass


def main(python: str, folder: Path, master: str = "", config: str = "{}") -> None:
    (folder / "in").mkdir()
    (folder / "in" / "1.json").write_text('{"house_id": "h1"}\n{"house_id": "h1"}\n{"house_id": "h2"}\n')
    spark_settings = SparkSettings(python=python, shuffle_partitions=1, master=master, config=json.loads(config))
    settings = Settings(spark=spark_settings)
    spark = start_session(settings, folder / "spark", name="slow", slots=1, brief=True)
    try:
        counted = (
            spark.readStream.schema("house_id string")
            .json(str(folder / "in"))
            .groupBy("house_id")
            .transformWithState(Counter(), "house_id string, n int", "Update", "None")
        )
        writer = counted.writeStream.format("memory").queryName("counted").outputMode("update")
        writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()
        print(*sorted(f"{row.house_id}={row.n}" for row in spark.table("counted").collect()))
    finally:
        stop_session(spark)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
