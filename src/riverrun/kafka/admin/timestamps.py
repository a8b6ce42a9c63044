"""When the first record at or after an offset was written: the basis of lag in seconds."""

import time
from collections.abc import Mapping

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaException
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.kafka.connection import Connection
from riverrun.kafka.error_mapping import client_log, translate
from riverrun.model.cluster_state import TopicPartition

# Enough for a few batches: only one record of each partition is needed.
_FETCH_PROPERTIES = {"fetch.message.max.bytes": 262_144, "queued.max.messages.kbytes": 4096, "fetch.wait.max.ms": 100}


def first_timestamps(connection: Connection, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Milliseconds since 1970 of the first readable record at or after each offset.

    A partition is left out if there is none (its end is transaction markers, or a transaction is open), if the offset has
    expired, or if nothing came within `kafka.request_timeout_seconds`.
    """
    if not positions:
        return {}
    consumer = Consumer(
        connection.properties(
            {
                "group.id": "riverrun-peek",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                **_FETCH_PROPERTIES,
            }
        ),
        logger=client_log,
    )
    try:
        return _read_timestamps(consumer, positions, time.monotonic() + connection.settings.request_timeout_seconds)
    except KafkaException as error:
        raise translate(error, "reading timestamps", bootstrap=connection.bootstrap_servers) from error
    finally:
        consumer.close()


def _read_timestamps(
    consumer: Consumer, positions: Mapping[TopicPartition, int], deadline: float
) -> dict[TopicPartition, int]:
    consumer.assign([ClientPartition(*topic_partition, offset) for topic_partition, offset in positions.items()])
    waiting = set(positions)
    timestamps: dict[TopicPartition, int] = {}
    while waiting and time.monotonic() < deadline:
        for message in consumer.consume(num_messages=500, timeout=0.2):
            topic, partition, error = message.topic(), message.partition(), message.error()
            if topic is None or partition is None:
                continue
            topic_partition = TopicPartition(topic, partition)
            if topic_partition not in waiting or (error is not None and error.code() != ClientError._PARTITION_EOF):
                continue
            waiting.discard(topic_partition)
            consumer.pause([ClientPartition(*topic_partition)])
            kind, stamp = message.timestamp()
            if error is None and kind != TIMESTAMP_NOT_AVAILABLE:
                timestamps[topic_partition] = stamp
    return timestamps
