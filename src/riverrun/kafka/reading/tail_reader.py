"""Read a small topic of one partition to its end, again and again: each `read` returns what came since the last."""

import time

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as ClientError

from riverrun.errors import BrokerUnreachableError
from riverrun.kafka.connection import Connection
from riverrun.kafka.error_mapping import client_log, translate


class TopicTailReader:
    """Follows one partition of a topic, read committed. Not safe to share between threads."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        self._position = 0
        self._topic_exists = False
        self._consumer: Consumer | None = None

    def read(self) -> list[tuple[bytes, bytes | None]]:
        """Key and value of every record up to the current end. TopicNotFoundError when there is no such topic."""
        consumer = self._consumer = self._consumer or self._open()
        seconds = float(self._connection.settings.request_timeout_seconds)
        deadline = time.monotonic() + seconds
        try:
            if not self._topic_exists:
                self._check_topic(consumer, seconds)
            # Asked of the broker: everything acknowledged before this call is below it.
            _, end = consumer.get_watermark_offsets(TopicPartition(self._topic, 0), seconds)
            return self._read_until(consumer, end, deadline)
        except KafkaException as error:
            raise self._translate(error) from error

    def _check_topic(self, consumer: Consumer, seconds: float) -> None:
        """Check that the topic exists. The client caches a missing topic for a moment, unless it is asked this way."""
        error = consumer.list_topics(self._topic, seconds).topics[self._topic].error
        if error is not None:
            raise self._translate(error)
        self._topic_exists = True

    def _read_until(self, consumer: Consumer, end: int, deadline: float) -> list[tuple[bytes, bytes | None]]:
        records: list[tuple[bytes, bytes | None]] = []
        if self._position < end:
            consumer.assign([TopicPartition(self._topic, 0, self._position)])
        while self._position < end:
            message = consumer.poll(0.5)
            if message is None:
                if time.monotonic() > deadline:
                    raise BrokerUnreachableError(
                        f"No broker answered while the topic {self._topic} was read", topic=self._topic
                    )
                continue
            error = message.error()
            if error is not None and error.code() == ClientError._PARTITION_EOF:
                # Not to `end`: records behind a transaction that is still open come with a later read.
                self._position = max(self._position, message.offset() or 0)
                break
            if error is not None:
                raise self._translate(error)
            records.append((message.key() or b"", message.value()))
            self._position = (message.offset() or 0) + 1
        return records

    def _open(self) -> Consumer:
        properties = {
            "group.id": f"{self._topic}.tail",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
        return Consumer(self._connection.properties(properties), logger=client_log)

    def _translate(self, error: "ClientError | KafkaException") -> Exception:
        bootstrap = self._connection.bootstrap_servers
        return translate(error, f"reading {self._topic}", topic=self._topic, bootstrap=bootstrap)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
