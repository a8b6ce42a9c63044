"""Living members of consumer groups, of both protocols, in threads of the test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from confluent_kafka import Consumer

from riverrun.kafka.connection import Connection


@contextmanager
def member(
    connection: Connection,
    group: str,
    topic: str,
    *,
    protocol: Literal["classic", "consumer"],
    read: int,
    name: str = "",
) -> Iterator[None]:
    """A member that has joined, read `read` records, committed them, and stays until the end of the `with`."""
    properties = {
        "group.id": group,
        "group.protocol": protocol,
        "client.id": name or f"member-{protocol}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    ready, leave = threading.Event(), threading.Event()
    problems: list[BaseException] = []

    def live() -> None:
        consumer = Consumer(connection.properties(properties))
        try:
            consumer.subscribe([topic])
            seen = 0
            while not leave.is_set():
                for message in consumer.consume(num_messages=max(1, read - seen), timeout=0.1) if seen < read else []:
                    assert message.error() is None
                    seen += 1
                    consumer.commit(message=message, asynchronous=False)
                if seen >= read:
                    ready.set()
                    consumer.pause(consumer.assignment())
                    consumer.poll(0.1)
        except BaseException as error:  # noqa: BLE001  -- told by the test's own thread
            problems.append(error)
            ready.set()
        finally:
            consumer.close()

    thread = threading.Thread(target=live)
    thread.start()
    try:
        assert ready.wait(60), "the member did not get its records"
        assert problems == []
        yield
    finally:
        leave.set()
        thread.join(60)
