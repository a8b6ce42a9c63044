"""Reads a range of offsets once more, outside of any group."""

import time
from collections.abc import Iterator, Mapping

from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.errors import BrokerUnreachableError
from riverrun.kafka.connection import Connection
from riverrun.kafka.error_mapping import client_log, translate
from riverrun.model.cluster_state import TopicPartition

_CONSUME_RECORDS = 5000
_IDLE_TIMEOUT_SECONDS = 30.0


def read_offset_ranges(
    connection: Connection, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> Iterator[list[Message]]:
    """All committed records from the first to before the last offset of each partition, in blocks. What retention has
    removed meanwhile is skipped. Ends with BrokerUnreachableError when nothing comes for a while."""
    end_offsets = {partition: last for partition, (first, last) in ranges.items() if last > first}
    if not end_offsets:
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
        consumer.assign([ClientPartition(*partition, ranges[partition][0]) for partition in end_offsets])
        quiet_since = time.monotonic()
        while end_offsets:
            messages = consumer.consume(_CONSUME_RECORDS, 0.2)
            block = [message for message in messages if message.error() is None and _in_range(message, end_offsets)]
            if messages:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > _IDLE_TIMEOUT_SECONDS:
                raise BrokerUnreachableError(
                    f"No records came for {_IDLE_TIMEOUT_SECONDS:.0f} s",
                    hint="Is the cluster up?",
                    bootstrap=connection.bootstrap_servers,
                )
            if block:
                yield block
            for position in consumer.position([ClientPartition(*partition) for partition in end_offsets]):
                if position.offset >= end_offsets[TopicPartition(position.topic, position.partition)]:
                    del end_offsets[TopicPartition(position.topic, position.partition)]
                    consumer.incremental_unassign([position])
    except KafkaException as error:
        raise translate(error, "reading a range of records again", bootstrap=connection.bootstrap_servers) from error
    finally:
        consumer.close()


def _in_range(message: Message, end_offsets: Mapping[TopicPartition, int]) -> bool:
    partition = TopicPartition(message.topic() or "", message.partition() or 0)
    offset = message.offset()
    return partition in end_offsets and offset is not None and offset < end_offsets[partition]
