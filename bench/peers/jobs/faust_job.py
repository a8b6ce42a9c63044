"""Faust (the community's fork). Two workers, which share the partitions as one consumer group.

Promise: at least once (its default), with a changelog topic: when partitions move, readings that were not committed are
added to the state again. The table is in memory, its default store. Emission: a row for each reading.
"""

import os
from datetime import UTC, datetime, timedelta
from typing import Any

import faust


# Its own parser takes the .250 of a second for 250 microseconds.
class Reading(faust.Record, coerce=True, date_parser=datetime.fromisoformat):
    house_id: str
    load_kw: float
    at: datetime


app = faust.App(
    os.environ["BENCH_ID"],
    broker=f"kafka://{os.environ['BENCH_SERVERS']}",
    datadir=os.environ["BENCH_FOLDER"],
    topic_partitions=4,
    topic_replication_factor=1,
    web_enabled=False,
)
readings = app.topic("readings", key_type=str, key_serializer="raw", value_type=Reading)
output = app.topic(os.environ["BENCH_OUTPUT"], key_type=str, key_serializer="raw", value_serializer="json")
averages = (
    app.Table("averages", default=lambda: [0.0, 0, 0.0])
    .tumbling(timedelta(minutes=1), expires=timedelta(minutes=3))
    .relative_to_field(Reading.at)
)


@app.agent(readings)
async def average(stream: Any) -> None:
    async for reading in stream:
        house, at = reading.house_id, reading.at.timestamp()
        # `current()` would look by the time of the Kafka record.
        total, count, last = averages[house].value()
        state = [total + reading.load_kw, count + 1, max(last, at)]
        averages[house] = state
        start = datetime.fromtimestamp(at // 60 * 60, UTC)
        row = {
            "house_id": house,
            "minute": start.isoformat(),
            "load_kw": state[0] / state[1],
            "last": round(state[2] * 1000),
        }
        await output.send(key=house, value=row)
