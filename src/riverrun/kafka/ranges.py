"""Reads a range of offsets once more, outside of any group."""

import time
from collections.abc import Iterator, Mapping

from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.errors import BrokerUnreachableError
from riverrun.kafka.border import client_log, translate
from riverrun.kafka.connection import Connection
from riverrun.model.state import Place

_AT_ONCE = 5000
_PATIENCE_SECONDS = 30.0


def read_ranges(connection: Connection, ranges: Mapping[Place, tuple[int, int]]) -> Iterator[list[Message]]:
    """All committed records from the first to before the last offset of each partition, in blocks. What retention has taken
    meanwhile is passed over. Ends with BrokerUnreachableError when nothing comes for a while."""
    wanted = {place: last for place, (first, last) in ranges.items() if last > first}
    if not wanted:
        return
    consumer = Consumer(
        connection.properties({
            "group.id": "riverrun-not-used",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 10,
        }),
        logger=client_log,
    )  # fmt: skip
    try:
        consumer.assign([ClientPartition(*place, ranges[place][0]) for place in wanted])
        quiet_since = time.monotonic()
        while wanted:
            messages = consumer.consume(_AT_ONCE, 0.2)
            block = [each for each in messages if each.error() is None and _within(each, wanted)]
            if messages:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > _PATIENCE_SECONDS:
                raise BrokerUnreachableError(
                    f"No records came for {_PATIENCE_SECONDS:.0f} s",
                    hint="Is the cluster up?",
                    bootstrap=connection.bootstrap_servers,
                )
            if block:
                yield block
            for each in consumer.position([ClientPartition(*place) for place in wanted]):
                if each.offset >= wanted[Place(each.topic, each.partition)]:
                    del wanted[Place(each.topic, each.partition)]
                    consumer.incremental_unassign([each])
    except KafkaException as error:
        raise translate(error, "reading a range of records again", bootstrap=connection.bootstrap_servers) from error
    finally:
        consumer.close()


def _within(message: Message, wanted: Mapping[Place, int]) -> bool:
    place = Place(message.topic() or "", message.partition() or 0)
    offset = message.offset()
    return place in wanted and offset is not None and offset < wanted[place]
