"""Pathway, free edition. `pathway spawn --threads 2`: one process, its engine (Rust) works on two threads.

Promise: at least once when persistence is on; here it is off, as in its Kafka tutorial: a run that is killed starts anew.
Emission: every change of a row is two records, the old row taken back (`diff` -1) and the new one (`diff` 1), at each commit
of the input (every 100 ms here; its default is 1.5 s). No cutoff: windows are kept, so nothing can be late.
"""

import os
from datetime import timedelta

import pathway as pw


class Reading(pw.Schema):
    house_id: str
    load_kw: float
    at: str


servers = {"bootstrap.servers": os.environ["BENCH_SERVERS"]}
readings = pw.io.kafka.read(
    servers | {"group.id": os.environ["BENCH_ID"], "auto.offset.reset": "earliest", "enable.auto.commit": "true"},
    topic="readings",
    format="json",
    schema=Reading,
    autocommit_duration_ms=100,
    # Its docs ask for a bound where there is a backlog; without one it reads all of it into memory first.
    max_backlog_size=100_000,
)
timed = readings.with_columns(at=pw.this.at.dt.strptime("%Y-%m-%dT%H:%M:%S%.fZ", contains_timezone=False))
rows = timed.windowby(
    timed.at, window=pw.temporal.tumbling(duration=timedelta(minutes=1)), instance=timed.house_id
).reduce(
    house_id=pw.this._pw_instance,  # noqa: SLF001  as its docs have it
    minute=pw.this._pw_window_start,  # noqa: SLF001
    load_kw=pw.reducers.avg(pw.this.load_kw),
    last=pw.reducers.max(pw.this.at),
)
pw.io.kafka.write(rows, servers, os.environ["BENCH_OUTPUT"], format="json")
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
