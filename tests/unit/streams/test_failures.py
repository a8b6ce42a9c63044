"""Which kind of failure a stream had, from what Spark says of it."""

import pytest

from riverrun.errors import (
    BrokerUnreachableError,
    CheckpointError,
    DiskFullError,
    FencedError,
    KafkaError,
    RiverrunError,
    StreamCodeError,
    StreamFailedError,
)
from riverrun.model.pipeline import Line, Stream
from riverrun.streams.failures import Files, explain

STREAM = Stream("load", Line("/home/ann/meters.py", 20))
FILES = Files("/home/ann/.riverrun/spark/spark.log", "/data/checkpoints/meters/load", "/home/ann/.riverrun/spark")

PYTHON = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/pyspark/worker.py", line 1830, in main
    process()
  File "/home/ann/meters.py", line 31, in to_kw
    return 1000 / watts
ZeroDivisionError: division by zero
	at org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)"""


REAL_TIME = (
    "[STREAM_FAILED] Query [id = 1] terminated with exception: [STREAMING_REAL_TIME_MODE.OPERATOR_OR_SINK_NOT_IN_ALLOWLIST] "
    "Streaming real-time mode has the following limitation: The operator(s): org.apache.spark.sql.execution.SortExec, "
    "org.apache.spark.sql.execution.joins.SortMergeJoinExec are not in the operator allowlist for Real-Time Mode. To bypass"
)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (
            REAL_TIME,
            StreamCodeError,
            "The stream load cannot run in real time: Spark's real-time mode does not take Sort, SortMergeJoin. Join tables",
        ),
        (
            PYTHON,
            StreamCodeError,
            "meters.py:31: the stream load stopped in to_kw(): ZeroDivisionError: division by zero",
        ),
        (
            PYTHON.replace(
                "ZeroDivisionError: division by zero", "riverrun.errors.FencedError: A newer producer took over."
            ),
            StreamFailedError,
            "load could not write its rows: A newer producer took over",
        ),
        (
            PYTHON.replace(
                "ZeroDivisionError: division by zero", "riverrun.errors.CheckpointError: Part 0 is elsewhere."
            ),
            CheckpointError,
            "load cannot write its rows: Part 0 is elsewhere",
        ),
        ("[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. SQLSTATE: 22012", StreamCodeError, "meters.py:20"),
        ("Caused by: java.io.IOException: No space left on device", DiskFullError, "no space left"),
        ("org.apache.kafka.common.errors.TimeoutException: Timed out", BrokerUnreachableError, "lost Kafka"),
        ("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred", CheckpointError, "--fresh load"),
        ("Caused by: java.lang.OutOfMemoryError: Java heap space", StreamFailedError, "Java heap space"),
    ],
)
def test_the_cause_is_on_top(text: str, kind: type[RiverrunError], said: str) -> None:
    found = explain(STREAM, RuntimeError(text), FILES)
    assert type(found) is kind
    assert said in str(found)
    assert "\tat org.apache" not in str(found)


def test_only_what_may_work_later_is_tried_again() -> None:
    assert explain(STREAM, RuntimeError("TimeoutException from kafka"), FILES).retryable
    assert explain(STREAM, RuntimeError("anything else"), FILES).retryable
    assert not explain(STREAM, RuntimeError(PYTHON), FILES).retryable


def test_a_brokers_answer_that_nobody_knows_is_tried_again_with_a_new_writer() -> None:
    forgotten = KafkaError("The broker refused adding partitions: INVALID_PRODUCER_ID_MAPPING")
    found = explain(STREAM, forgotten, FILES)
    assert found.retryable
    assert "INVALID_PRODUCER_ID_MAPPING" in str(found)
    # These have a class of their own, and no later try changes them.
    fenced = FencedError("Another writer has taken over")
    assert explain(STREAM, fenced, FILES) is fenced


def test_a_full_disk_is_told_with_the_folders_that_may_be_on_it() -> None:
    found = explain(STREAM, RuntimeError("Caused by: java.io.IOException: No space left on device"), FILES)
    assert "its checkpoint and state in /data/checkpoints/meters/load" in found.what
    assert "working files in /home/ann/.riverrun/spark" in found.what
    assert found.fields["path"] == "/data/checkpoints/meters/load"
    assert "streams.checkpoints" in found.hint
