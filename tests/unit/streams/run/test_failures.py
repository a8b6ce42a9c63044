"""Which kind of failure a stream had, from what Spark says of it."""

from pathlib import Path

import pytest

from riverrun.errors import (
    BrokerUnreachableError,
    CheckpointError,
    DiskFullError,
    KafkaError,
    ProducerFencedError,
    RiverrunError,
    SparkUnavailableError,
    StreamCodeError,
    StreamFailedError,
)
from riverrun.model.pipeline import SourceLine, Stream
from riverrun.streams.run.failures import StreamFiles, explain_failure

STREAM = Stream("load", SourceLine("/home/ann/meters.py", 20))
FILES = StreamFiles("/home/ann/.riverrun/spark/spark.log", "/data/checkpoints/meters/load", "/home/ann/.riverrun/spark")

PYTHON = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/pyspark/worker.py", line 1830, in main
    process()
  File "/home/ann/meters.py", line 31, in to_kw
    return 1000 / watts
ZeroDivisionError: division by zero
	at org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)"""


# As Spark 4.3 said it on a machine whose workers got three percent of a core; the plan above it names the topic's reader.
SLOW_WORKER = """[STREAM_FAILED] Query [id = e86c0438] terminated with exception: Python worker failed to connect back
=== Streaming Query ===
Current Committed Offsets: {KafkaV2[Subscribe[passages]]: {"passages":{"0":0}}}
\tat org.apache.spark.sql.kafka010.KafkaMicroBatchStream.planInputPartitions(KafkaMicroBatchStream.scala:1)
org.apache.spark.SparkException: Python worker failed to connect back.
\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(PythonWorkerFactory.scala:328)
Caused by: java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back
\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(PythonWorkerFactory.scala:310)"""
NO_PYTHON = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times: (10.9.0.2 executor 0):
java.io.IOException: Cannot run program "/home/ann/venv/bin/python": error=2, No such file or directory
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)"""
NO_MODULE = PYTHON.replace("ZeroDivisionError: division by zero", "ModuleNotFoundError: No module named 'pyarrow'")
NO_CA = """Caused by: org.apache.kafka.common.KafkaException: Failed to load SSL keystore /etc/ours/ca.pem of type PEM
Caused by: java.nio.file.NoSuchFileException: /etc/ours/ca.pem"""
NO_TABLE = """[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:///home/ann/houses.csv. File does
not exist. It is possible the underlying files have been updated. SQLSTATE: KD001"""
LOST = """[STREAM_FAILED] Query [id = 1] terminated with exception: Timed out waiting for a node assignment
Caused by: java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.TimeoutException: Timed out waiting"""
TWO_TIMES = """[MULTIPLE_EVENT_TIME_COLUMNS] More than one event time columns are available. Please ensure there is at
most one event time column per stream. SQLSTATE: 42K09 \tat org.apache.spark.sql.execution.streaming.checkpointing.X"""


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
                "ZeroDivisionError: division by zero",
                "riverrun.errors.ProducerFencedError: A newer producer took over.",
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
        (LOST, BrokerUnreachableError, "lost Kafka"),
        (
            "java.util.concurrent.TimeoutException: Cannot fetch record for offset 7 in 120000 milliseconds",
            BrokerUnreachableError,
            "lost Kafka",
        ),
        (SLOW_WORKER, StreamFailedError, "did not get a Python worker in the time"),
        (NO_PYTHON, SparkUnavailableError, "there is no /home/ann/venv/bin/python on the machine"),
        (NO_MODULE, SparkUnavailableError, "the Python of Spark's workers has no pyarrow"),
        (NO_CA, SparkUnavailableError, "a worker of Spark's cannot read /etc/ours/ca.pem"),
        (NO_TABLE, SparkUnavailableError, "on one of Spark's workers: ///home/ann/houses.csv"),
        (TWO_TIMES, StreamCodeError, "meters.py:20: the stream load keeps state over rows with two event times"),
        ("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred", CheckpointError, "--fresh load"),
        (
            "Caused by: org.apache.spark.memory.SparkOutOfMemoryError: [UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 4 bytes",
            StreamFailedError,
            "Give it more: on this machine by the setting spark.driver_memory_mb",
        ),
    ],
)
def test_the_cause_is_on_top(text: str, kind: type[RiverrunError], said: str) -> None:
    found = explain_failure(STREAM, RuntimeError(text), FILES)
    assert type(found) is kind
    assert said in str(found)
    assert "\tat org.apache" not in str(found)


def test_only_what_may_work_later_is_tried_again() -> None:
    assert explain_failure(STREAM, RuntimeError(LOST), FILES).retryable
    assert explain_failure(STREAM, RuntimeError(SLOW_WORKER), FILES).retryable
    assert not explain_failure(STREAM, RuntimeError(NO_PYTHON), FILES).retryable
    assert explain_failure(STREAM, RuntimeError("anything else"), FILES).retryable
    assert not explain_failure(STREAM, RuntimeError(PYTHON), FILES).retryable


def test_the_word_kafka_and_a_timeout_are_not_a_lost_kafka() -> None:
    elsewhere = (
        "java.util.concurrent.TimeoutException: Futures timed out after [300 seconds] in the plan of KafkaV2[load]"
    )
    assert type(explain_failure(STREAM, RuntimeError(elsewhere), FILES)) is StreamFailedError


def test_a_brokers_answer_that_nobody_knows_is_tried_again_with_a_new_writer() -> None:
    forgotten = KafkaError("The broker refused adding partitions: INVALID_PRODUCER_ID_MAPPING")
    found = explain_failure(STREAM, forgotten, FILES)
    assert found.retryable
    assert "INVALID_PRODUCER_ID_MAPPING" in str(found)
    # These have a class of their own, and no later try changes them.
    fenced = ProducerFencedError("Another writer has taken over")
    assert explain_failure(STREAM, fenced, FILES) is fenced


def test_a_full_disk_is_told_with_the_folders_that_may_be_on_it() -> None:
    found = explain_failure(STREAM, RuntimeError("Caused by: java.io.IOException: No space left on device"), FILES)
    assert "its checkpoint and state in /data/checkpoints/meters/load" in found.what
    assert "working files in /home/ann/.riverrun/spark" in found.what
    assert found.fields["path"] == "/data/checkpoints/meters/load"
    assert "streams.checkpoints" in found.hint


BAD_ROW = """[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file://{}.  SQLSTATE: KD001
Caused by: org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records are detected in record parsing: [f2,"x, y",null].
Parse Mode: FAILFAST. To process malformed records as null result, try setting the option 'mode' as 'PERMISSIVE'.
Caused by: java.lang.NumberFormatException: For input string: "eight"
"""  # noqa: E501


def test_a_value_of_another_type_in_a_csv_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "clinics.csv"
    file.write_text('fridge_id,name,max_c\nf1,x,8\nf2,"x, y", eight\n')
    text = str(explain_failure(STREAM, RuntimeError(BAD_ROW.format(file)), FILES))
    assert f"cannot read a row of {file}: row 3 has 'eight' in the column max_c" in text
    # When the file is another by now, Spark's row is all there is.
    file.write_text("fridge_id,max_c\n")
    text = str(explain_failure(STREAM, RuntimeError(BAD_ROW.format(file)), FILES))
    assert "where null was 'eight'" in text
