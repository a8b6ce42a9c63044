"""What Connect says of connectors, in words."""

import pytest

from riverrun.connectors.kafka_connect.state import parse_state, root_cause

DEBEZIUM = """\
org.apache.kafka.connect.errors.ConnectException: An exception occurred in the change event producer.
\tat io.debezium.pipeline.ErrorHandler.setProducerThrowable(ErrorHandler.java:67)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: io.debezium.DebeziumException: Creation of replication slot failed
\tat io.debezium.connector.postgresql.PostgresConnectorTask.start(PostgresConnectorTask.java:143)
\t... 5 more
Caused by: org.postgresql.util.PSQLException: ERROR: replication slot "shop" already exists
\tat org.postgresql.core.v3.QueryExecutorImpl.receiveErrorResponse(QueryExecutorImpl.java:2734)
\t... 9 more
"""
TOLERANCE = """\
org.apache.kafka.connect.errors.ConnectException: Tolerance exceeded in error handler
\tat org.apache.kafka.connect.runtime.errors.RetryWithToleranceOperator.execAndHandleError(X.java:260)
Caused by: org.apache.kafka.connect.errors.DataException: Converting byte[] to Kafka Connect data failed
\tat org.apache.kafka.connect.json.JsonConverter.toConnectData(JsonConverter.java:324)
\t... 17 more
Caused by: com.fasterxml.jackson.core.JsonParseException: Unexpected character ('b' (code 98)): was expecting double-quote
 at [Source: REDACTED; line: 1, column: 3]
\tat com.fasterxml.jackson.core.JsonParser._constructError(JsonParser.java:2477)
"""


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (DEBEZIUM, 'ERROR: replication slot "shop" already exists'),
        (TOLERANCE, "Unexpected character ('b' (code 98)): was expecting double-quote"),
        ("java.nio.file.NoSuchFileException: /no/out.txt\n\tat X.y(X.java:1)", "NoSuchFileException: /no/out.txt"),
        ("java.lang.NullPointerException\n\tat X.y(X.java:1)", "NullPointerException"),
        (
            "org.x.ConnectException: it is said here\n\tat X.y\nCaused by: java.lang.IllegalStateException\n\tat X.y",
            "it is said here",
        ),
        ("a.b.FooException: java.net.ConnectException: Connection to db refused", "Connection to db refused"),
        ("only a sentence", "only a sentence"),
        ("", ""),
    ],
)
def test_the_root_of_a_trace_without_the_stack(trace: str, words: str) -> None:
    assert root_cause(trace) == words


def answer(state: str, *tasks: tuple[str, str]) -> dict[str, object]:
    return {
        "name": "shop",
        "type": "source",
        "connector": {"state": state, "worker_id": "w"},
        "tasks": [
            {"id": n, "state": s, "worker_id": "w", "trace": t} for n, (s, t) in reversed(list(enumerate(tasks)))
        ],
    }


@pytest.mark.parametrize(
    ("content", "overall"),
    [
        (answer("RUNNING", ("RUNNING", "")), "running"),
        (answer("RUNNING"), "starting"),
        (answer("RUNNING", ("RUNNING", ""), ("UNASSIGNED", "")), "starting"),
        (answer("RUNNING", ("RUNNING", ""), ("FAILED", "x.YException: why it is so")), "failed"),
        (answer("PAUSED", ("PAUSED", "")), "paused"),
        (answer("STOPPED"), "stopped"),
        (answer("UNASSIGNED"), "unassigned"),
    ],
)
def test_one_word_for_all_of_it(content: dict[str, object], overall: str) -> None:
    assert parse_state(content).overall == overall


def test_the_reason_is_that_of_the_first_task_that_failed() -> None:
    state = parse_state(answer("RUNNING", ("RUNNING", ""), ("FAILED", "x.YException: why it is so")))
    assert state.reason == "why it is so (1 of 2 tasks failed)"
    assert [task.id for task in state.tasks] == [0, 1]
    assert state.running == 1
