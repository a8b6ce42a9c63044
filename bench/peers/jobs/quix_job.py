"""Quix Streams. Started twice: processes share the partitions as one consumer group, each with its RocksDB.

Promise: at least once, a checkpoint every 5 s (its default). Emission: `current()`, a row for each reading.
"""

import os
from datetime import datetime, timedelta
from typing import Any

from quixstreams import Application
from quixstreams.dataframe.windows import Max, Mean


def event_time(reading: Any, _headers: Any, _timestamp: float, _kind: Any) -> int:
    return round(datetime.fromisoformat(reading["at"]).timestamp() * 1000)


app = Application(
    broker_address=os.environ["BENCH_SERVERS"],
    consumer_group=os.environ["BENCH_ID"],
    auto_offset_reset="earliest",
    state_dir=os.environ["BENCH_FOLDER"],
)
readings = app.topic("readings", key_deserializer="str", timestamp_extractor=event_time)
output = app.topic(os.environ["BENCH_OUTPUT"], key_serializer="str")
rows = (
    app.dataframe(readings)
    .tumbling_window(timedelta(minutes=1), grace_ms=timedelta(minutes=2))
    # Times are texts of one form: the greatest is the newest.
    .agg(load_kw=Mean("load_kw"), last=Max("at"))
    .current()
    .apply(
        lambda row, house, _timestamp, _headers: {
            "house_id": house,
            "minute": row["start"],
            "load_kw": row["load_kw"],
            "last": row["last"],
        },
        metadata=True,
    )
    .to_topic(output)
)

if __name__ == "__main__":
    app.run()
