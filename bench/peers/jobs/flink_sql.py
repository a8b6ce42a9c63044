"""PyFlink, SQL: `flink_sql.py close|updates`. A cluster inside one process, parallelism 2; no Python in the data's way.

`close`: the window function of its docs, a row when the window closes. `updates`: a plain GROUP BY into an upsert table,
with the mini-batches its tuning guide recommends (100 ms), a row for each key that changed in one.
Promise: at least once, a checkpoint every 10 s (rows are visible before it; exactly once shows them with it).
"""

import os
import sys

from pyflink.table import EnvironmentSettings, TableEnvironment

kind, jar = sys.argv[1:]
table = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
settings = {
    "parallelism.default": "2",
    "pipeline.jars": f"file://{jar}",
    "execution.checkpointing.interval": "10 s",
    "execution.checkpointing.storage": "filesystem",
    "execution.checkpointing.dir": f"file://{os.environ['BENCH_FOLDER']}/checkpoints",
    "table.local-time-zone": "UTC",
    "table.exec.state.ttl": "1 h",
}
if kind == "updates":
    settings |= {
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "100 ms",
        "table.exec.mini-batch.size": "5000",
    }
for name, setting in settings.items():
    table.get_config().set(name, setting)
servers, output = os.environ["BENCH_SERVERS"], os.environ["BENCH_OUTPUT"]
table.execute_sql(f"""
    CREATE TABLE readings (
        house_id STRING, load_kw DOUBLE, `at` TIMESTAMP_LTZ(3),
        WATERMARK FOR `at` AS `at` - INTERVAL '2' MINUTE
    ) WITH (
        'connector' = 'kafka', 'topic' = 'readings', 'properties.bootstrap.servers' = '{servers}',
        'properties.group.id' = '{os.environ["BENCH_ID"]}', 'scan.startup.mode' = 'earliest-offset',
        'format' = 'json', 'json.timestamp-format.standard' = 'ISO-8601'
    )
""")
columns = "house_id STRING, `minute` TIMESTAMP_LTZ(3), load_kw DOUBLE, `last` TIMESTAMP_LTZ(3)"
common = f"'topic' = '{output}', 'properties.bootstrap.servers' = '{servers}'"
iso = "json.timestamp-format.standard' = 'ISO-8601'"
if kind == "updates":
    table.execute_sql(f"""
        CREATE TABLE averages ({columns}, PRIMARY KEY (house_id, `minute`) NOT ENFORCED) WITH (
            'connector' = 'upsert-kafka', {common}, 'key.format' = 'json', 'key.{iso}, 'value.format' = 'json', 'value.{iso}
        )
    """)
    query = """
        SELECT house_id, FLOOR(`at` TO MINUTE), AVG(load_kw), MAX(`at`)
        FROM readings GROUP BY house_id, FLOOR(`at` TO MINUTE)
    """
else:
    table.execute_sql(f"""
        CREATE TABLE averages ({columns}) WITH (
            'connector' = 'kafka', {common}, 'key.format' = 'raw', 'key.fields' = 'house_id',
            'value.format' = 'json', 'value.{iso}
        )
    """)
    query = """
        SELECT house_id, CAST(window_start AS TIMESTAMP_LTZ(3)), AVG(load_kw), MAX(`at`)
        FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(`at`), INTERVAL '1' MINUTE))
        GROUP BY house_id, window_start, window_end
    """
table.execute_sql(f"INSERT INTO averages {query}").wait()
