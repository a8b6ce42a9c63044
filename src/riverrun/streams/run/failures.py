"""Explains why a stream failed in one message: the user's own code, the environment, or the checkpoint."""

import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from riverrun import errors
from riverrun.app import app_module_name
from riverrun.errors import (
    BrokerUnreachableError,
    CheckpointError,
    DiskFullError,
    RiverrunError,
    SparkUnavailableError,
    StreamCodeError,
    StreamFailedError,
)
from riverrun.model.pipeline import Stream
from riverrun.streams.compile.csv_check import find_cell
from riverrun.streams.compile.diagnostics import TWO_EVENT_TIMES
from riverrun.streams.compile.query_analysis import readable_message

# Spark's error conditions for an expression that has no result for a value.
_CODE_CONDITIONS = (
    "ARITHMETIC_OVERFLOW", "ARROW_TYPE_MISMATCH", "CANNOT_PARSE_TIMESTAMP", "CAST_INVALID_INPUT", "CAST_OVERFLOW",
    "DIVIDE_BY_ZERO", "DUPLICATED_MAP_KEY", "FAILED_EXECUTE_UDF", "INVALID_ARRAY_INDEX", "INVALID_FRACTION_OF_SECOND",
    "MALFORMED_RECORD_IN_PARSING", "NULL_MAP_KEY", "NUMERIC_VALUE_OUT_OF_RANGE", "REMAINDER_BY_ZERO", "UDF_ERROR",
    "USER_RAISED_EXCEPTION",
)  # fmt: skip
_CHECKPOINT_SIGNS = (
    "CANNOT_LOAD_STATE_STORE", "INCOMPATIBLE", "MISSING_LOG", "STATE_STORE", "STREAMING_STATEFUL", "There are [",
    "checkpoint", "metadata log", "offset log",
)  # fmt: skip
# The exceptions that mean that a broker did not answer, by their full names: every stack of a stream mentions Kafka, and
# half of all libraries have a TimeoutException. The last one is from Spark's reader, which waited for a record.
_KAFKA_ERRORS = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(?:Timeout|Disconnect|Network|BrokerNotAvailable|LeaderNotAvailable|"
    r"NotLeaderOrFollower|CoordinatorNotAvailable|Retriable)Exception"
    r"|org\.apache\.kafka\.common\.KafkaException: Failed to construct kafka"
    r"|java\.util\.concurrent\.TimeoutException: Cannot fetch record"
)
# A worker that could not be started, or that lacks something: on a cluster this depends on its machines.
_SLOW_WORKER = re.compile(r"Python worker failed to connect back|waiting for the Python worker to connect back")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"[^\n]*(?:error=2\b|error: 2\b|No such file)')
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(pyspark|riverrun|pyarrow|confluent_kafka|msgspec)\b")
_NO_FILE = re.compile(
    r"Failed to load SSL \w+ (\S+) of type|java\.nio\.file\.NoSuchFileException: (\S+\.(?:pem|crt|key|jks|p12))"
)
_NO_TABLE = re.compile(r"FAILED_READ_FILE\.FILE_NOT_EXIST\][^\n]*? file (?:file:)?(\S+?)\.?\s")
# Where Spark's message changes from what happened to what to do.
_ADVICE = re.compile(r"\. (?=Use |If |Correct |To )")


@dataclass(frozen=True)
class StreamFiles:
    """Paths of a stream for messages: Spark's log, its checkpoint, and the folder of Spark's working files."""

    log: str
    checkpoint: str
    work: str


def explain_failure(stream: Stream, error: BaseException, files: StreamFiles) -> RiverrunError:
    """A stream's error as a RiverrunError that names the cause first."""
    if type(error) is errors.KafkaError:
        # A broker's error without a class of its own, such as for a producer that was idle for a week and is forgotten.
        # The next try has a new producer.
        return StreamFailedError(f"The stream {stream.name} could not write its rows: {error}", stream=stream.name)
    if isinstance(error, RiverrunError):
        return error
    text = _full_text(error)
    for classify in (
        _disk,
        _memory,
        _riverrun_error,
        _real_time,
        _worker,
        _two_event_times,
        _python_code,
        _expression,
        _broker,
        _checkpoint,
    ):
        explained = classify(stream, text, files)
        if explained is not None:
            return explained
    return StreamFailedError(
        f"The stream {stream.name} failed: {_first_cause(text)}", hint=f"Spark's log is {files.log}", stream=stream.name
    )


def _disk(stream: Stream, text: str, files: StreamFiles) -> RiverrunError | None:
    if "No space left on device" not in text:
        return None
    return DiskFullError(
        f"The stream {stream.name} failed: no space left on the disk for its checkpoint and state in {files.checkpoint}, "
        f"or for Spark's working files in {files.work}",
        hint="Make room there and start it again; it goes on from where it was. "
        "The setting streams.checkpoints names another folder",
        stream=stream.name,
        path=files.checkpoint,
        log=files.log,
    )


def _memory(stream: Stream, text: str, files: StreamFiles) -> RiverrunError | None:
    if "OutOfMemoryError" not in text:
        return None
    return StreamFailedError(
        f"The stream {stream.name} failed: Spark has too little memory for it ({_first_cause(text)})",
        hint="Give it more: on this machine by the setting spark.driver_memory_mb, on a cluster by "
        f"spark.executor_memory_mb; Spark's log is {files.log}",
        stream=stream.name,
    )


def _riverrun_error(stream: Stream, text: str, files: StreamFiles) -> RiverrunError | None:  # noqa: ARG001
    """A RiverrunError raised in one of Spark's workers while it wrote rows or decoded records with a schema registry."""
    raised = re.search(r"^riverrun\.errors\.(?:[a-z_]+\.)?(\w+): (.+)$", text, re.MULTILINE)
    if raised is None:
        return None
    kind, message = getattr(errors, raised[1], RiverrunError), raised[2].removesuffix(".")
    permanent = (
        errors.BatchChangedError,
        errors.CheckpointError,
        errors.StreamTakenOverError,
        errors.AuthenticationError,
        errors.AuthorizationError,
        errors.RecordTooLargeError,
    )
    if issubclass(kind, permanent):
        return kind(f"The stream {stream.name} cannot write its rows: {message}", stream=stream.name)
    if issubclass(kind, errors.RegistryError):
        return StreamFailedError(f"The stream {stream.name} could not read its records: {message}", stream=stream.name)
    return StreamFailedError(f"The stream {stream.name} could not write its rows: {message}", stream=stream.name)


def _real_time(stream: Stream, text: str, files: StreamFiles) -> RiverrunError | None:  # noqa: ARG001
    """An operator that real-time mode refuses: only the physical plan shows it, and a restart does not help."""
    if "STREAMING_REAL_TIME_MODE" not in text:
        return None
    named = re.search(r"The operator\(s\): (.+?) (?:is|are) not in the operator allowlist", text)
    operators = [name.rpartition(".")[2].removesuffix("Exec") for name in named[1].split(", ")] if named else []
    joins = any("Join" in operator for operator in operators)
    return StreamCodeError(
        f"The stream {stream.name} cannot run in real time: Spark's real-time mode does not take "
        f"{', '.join(operators) or _first_cause(text)}",
        hint=("Join tables to the stream one after another, not to each other before, or wrap what is joined in "
              "F.broadcast(…); or give the stream " if joins else "Give the stream ") + 'speed="near-real-time"',
        stream=stream.name,
    )  # fmt: skip


def _worker(stream: Stream, text: str, files: StreamFiles) -> RiverrunError | None:
    """Something that keeps Spark's workers from running, whatever the stream does."""
    if _SLOW_WORKER.search(text):
        return StreamFailedError(
            f"The stream {stream.name} did not get a Python worker in the time that Spark gives one to start",
            hint=f"The machine has too much to do, or too little memory; Spark's log is {files.log}",
            stream=stream.name,
        )
    if missing := _NO_PYTHON.search(text):
        return SparkUnavailableError(
            f"The stream {stream.name} cannot start a Python worker: there is no {missing[1]} on the machine that should",
            hint="Spark's workers start Python by one path on all of them: let the setting spark.python name one that "
            "every worker has, with riverrun[spark] installed",
            stream=stream.name,
        )
    if missing := _NO_MODULE.search(text):
        return SparkUnavailableError(
            f"The stream {stream.name} cannot run: the Python of Spark's workers has no {missing[1]}",
            hint='`pip install "riverrun[spark]"` for the Python that the setting spark.python names, on every worker',
            stream=stream.name,
        )
    if missing := _NO_FILE.search(text):
        return SparkUnavailableError(
            f"The stream {stream.name} cannot log in to Kafka: a worker of Spark's cannot read {missing[1] or missing[2]}",
            hint="Put the file at the same path on every worker",
            stream=stream.name,
        )
    if missing := _NO_TABLE.search(text):
        return SparkUnavailableError(
            f"The stream {stream.name} cannot read a file of a table on one of Spark's workers: {missing[1]}",
            hint="Every worker reads it by that path: put it where all of them see it: a mounted folder, or hdfs://…",
            stream=stream.name,
        )
    return None


def _two_event_times(stream: Stream, text: str, files: StreamFiles) -> RiverrunError | None:  # noqa: ARG001
    """Rows with two event-time columns."""
    if "MULTIPLE_EVENT_TIME_COLUMNS" not in text:
        return None
    message, hint = TWO_EVENT_TIMES
    return StreamCodeError(f"{stream.line}: the stream {stream.name} {message}", hint=hint, stream=stream.name)


def _python_code(stream: Stream, text: str, files: StreamFiles) -> RiverrunError | None:  # noqa: ARG001
    """A Python function that raised in one of Spark's workers: the last line of its traceback, and the user's own lines."""
    if "PythonException" not in text and "Traceback (most recent call last)" not in text:
        return None
    _, traced, traceback_text = text.partition("Traceback (most recent call last):")
    lines = traceback_text.splitlines()
    # The first line that is not indented ends the traceback; classes of the user's file have its module name in front.
    exception_line = next((line for line in lines if line and not line[0].isspace()), "") if traced else ""
    exception_line = exception_line.removeprefix(f"{app_module_name(Path(stream.line.file))}.").strip()
    user_lines = [line.strip() for line in lines if f'File "{stream.line.file}"' in line]
    line_match = re.search(r"line (\d+), in (\S+)", user_lines[-1]) if user_lines else None
    where = f"{str(stream.line).rpartition(':')[0]}:{line_match[1]}" if line_match else str(stream.line)
    function = f" in {line_match[2]}()" if line_match else ""
    return StreamCodeError(
        f"{where}: the stream {stream.name} stopped{function}: {exception_line or 'its Python function failed on a record'}",
        hint="The record is read again at the next start: make the function take it, or filter such records before it",
        stream=stream.name,
    )


def _expression(stream: Stream, text: str, files: StreamFiles) -> RiverrunError | None:  # noqa: ARG001
    """An expression that has no result for a value of a record, or of a table's row."""
    for condition in _CODE_CONDITIONS:
        if match := re.search(rf"\[({condition}[A-Z0-9_.]*)\] ([^\n]*)", text):
            message = readable_message(match[2])
            file = re.search(r"while reading file (?:file://)?(\S+?)\.?\s", text)
            if condition == "MALFORMED_RECORD_IN_PARSING" and file:
                return _bad_row(stream, file[1], message, text)
            # Spark's advice to leave ANSI mode would turn the mistake into NULLs in every other place too.
            tried = re.search(r"`(try_\w+)`", message)
            instead = f"Use {tried[1]}(), which gives NULL then, or filter" if tried else "Filter"
            return StreamCodeError(
                f"{_expression_line(stream, text)}: the stream {stream.name} stopped on a record: "
                f"{_ADVICE.split(message)[0]}",
                hint=f"The record is read again at the next start. {instead} such records before it",
                stream=stream.name,
            )
    return None


def _bad_row(stream: Stream, file: str, message: str, text: str) -> StreamCodeError:
    row = message.partition("parsing: ")[2]
    hint = "A null in it is a value that is not of its column's type: correct the file, or the columns of its table"
    # Java's words for a number and a time that it cannot read.
    if value := re.search(r"""For input string: "([^"]+)"|Text '([^']+)' could not be parsed""", text):
        row = find_cell(Path(unquote(file)), value[1] or value[2]) or f"{row}, where null was {value[1] or value[2]!r}"
        hint = "It is not of the column's type: correct the file, or the columns of its table"
    return StreamCodeError(
        f"{stream.line}: the stream {stream.name} cannot read a row of {file}: {row}",
        hint=hint,
        stream=stream.name,
        file=file,
    )


def _expression_line(stream: Stream, text: str) -> str:
    """The line of the expression, where Spark knows it."""
    match = re.search(rf"was called from\n\s*{re.escape(stream.line.file)}:(\d+)", text)
    return f"{str(stream.line).rpartition(':')[0]}:{match[1]}" if match else str(stream.line)


def _broker(stream: Stream, text: str, files: StreamFiles) -> RiverrunError | None:
    if not _KAFKA_ERRORS.search(text):
        return None
    return BrokerUnreachableError(
        f"The stream {stream.name} lost Kafka: {_first_cause(text)}",
        hint=f"Spark's log is {files.log}",
        stream=stream.name,
    )


def _checkpoint(stream: Stream, text: str, files: StreamFiles) -> RiverrunError | None:
    if not any(sign in text for sign in _CHECKPOINT_SIGNS):
        return None
    other = re.search(r"STATE_STORE_(KEY|VALUE)_SCHEMA_NOT_COMPATIBLE", text)
    why = "its code keeps other columns in its state now" if other else _first_cause(text)
    return CheckpointError(
        f"The stream {stream.name} cannot go on from where it was: {why}",
        hint=f"Begin again with `riverrun run FILE --fresh {stream.name}`, which reads everything again; "
        f"Spark's log is {files.log}",
        stream=stream.name,
    )


def _full_text(error: BaseException) -> str:
    return "\n".join(dict.fromkeys([str(error), *_causes(error)]))


def _causes(error: BaseException) -> Iterator[str]:
    """The messages of the Java exceptions behind it, outermost first."""
    cause = getattr(error, "_cause", None)
    while cause is not None:
        yield str(cause)
        stack = getattr(cause, "_stackTrace", None)
        if stack:
            yield str(stack)
        cause = getattr(cause, "_cause", None)
    stack = getattr(error, "_stackTrace", None)
    if stack:
        yield str(stack)
    if error.__cause__ is not None:
        yield "".join(traceback.format_exception_only(error.__cause__))


def _first_cause(text: str) -> str:
    """The innermost cause in a stack trace, or the text itself."""
    causes = re.findall(r"Caused by: ([^\n]+)", text)
    return readable_message(re.sub(r"^[\w.$]+(Exception|Error): ", "", causes[-1] if causes else text))[:400]
