"""What a consumer reads, and its requests to the cluster about that: topics, partitions, offsets."""

import re
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaException
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.errors import TopicNotFoundError, UsageError
from riverrun.kafka.error_mapping import RETRIABLE_CODES, translate
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.event import EventSchema
from riverrun.model.suggest import nearest
from riverrun.model.topic import Topic, check_topic_name

UNKNOWN_TOPIC_CODES = frozenset({
    ClientError.UNKNOWN_TOPIC_OR_PART, ClientError._UNKNOWN_TOPIC, ClientError._UNKNOWN_PARTITION,
    ClientError.UNKNOWN_TOPIC_ID,
})  # fmt: skip
# A topic created a moment ago may not be known to every broker yet.
_GRACE_SECONDS = 1.0
# Worth another try: a partition has no leader yet, or the connection was lost.
_TRANSIENT_CODES = RETRIABLE_CODES | {
    ClientError._TRANSPORT,
    ClientError.NETWORK_EXCEPTION,
    ClientError.REQUEST_TIMED_OUT,
}
_RETRY_SECONDS = 0.1


@dataclass(frozen=True)
class TopicSelection:
    """What is read: topics by name, topics by pattern, or exactly these partitions; by a group or alone."""

    names: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...] = ()
    partitions: Collection[int | TopicPartition] | None = None
    group: str = ""

    def __str__(self) -> str:
        return ", ".join([*self.names, *(f"/{pattern.pattern}/" for pattern in self.patterns)])

    @property
    def group_managed(self) -> bool:
        """Whether a group assigns the partitions."""
        return bool(self.group) and self.partitions is None

    def matching_topics(self, existing: Iterable[str]) -> list[str]:
        """The topics to read: those named, and those whose whole name matches a pattern.

        Kafka's own topics, dead-letter topics and re-drive logs are only read when they are named.
        """
        matching = (
            topic
            for topic in existing
            if not topic.startswith("__")
            and not topic.endswith((".dead", ".dead.redriven"))
            and any(pattern.fullmatch(topic) for pattern in self.patterns)
        )
        return sorted({*self.names, *matching})


def select_topics(
    topics: Any, group: str, partitions: Collection[int | TopicPartition] | None
) -> tuple[TopicSelection, dict[str, EventSchema[Any] | None]]:
    """What to read, and its event types."""
    given_topics = [topics] if isinstance(topics, Topic | str | re.Pattern) else list(topics)
    schemas: dict[str, EventSchema[Any] | None] = {}
    patterns = []
    for given_topic in given_topics:
        if isinstance(given_topic, Topic):
            schemas[given_topic.name] = given_topic.schema
        elif isinstance(given_topic, re.Pattern):
            patterns.append(given_topic)
        else:
            schemas[check_topic_name(given_topic)] = None
    if not given_topics:
        raise UsageError("A consumer needs a topic", expected="a Topic, a name, a pattern, or several of them")
    if (
        partitions is not None
        and (patterns or len(schemas) > 1)
        and not all(isinstance(given_partition, TopicPartition) for given_partition in partitions)
    ):
        raise UsageError(
            "Partitions of which topic?", hint="Give riverrun.TopicPartition(topic, partition)", option="partitions"
        )
    return TopicSelection(tuple(schemas), tuple(patterns), partitions, group), schemas


class TopicLookup:
    """Asks the cluster over a consumer's own client. `on_wait` is called while it does not answer, and may raise why."""

    def __init__(
        self,
        client: Consumer,
        selection: TopicSelection,
        *,
        bootstrap_servers: str,
        timeout: float,
        on_wait: Callable[[], None],
    ) -> None:
        self._client: Any = client  # its types do not know that the topic of list_topics can be left out
        self._selection = selection
        self._bootstrap_servers = bootstrap_servers
        self._timeout = timeout
        self._on_wait = on_wait

    def topics(self) -> list[str]:
        """The topics to read now; TopicNotFoundError for a named one that does not exist."""
        deadline = time.monotonic() + self._timeout
        grace = min(deadline, time.monotonic() + _GRACE_SECONDS)
        while True:
            metadata = self._metadata(deadline)
            missing = [name for name in self._selection.names if not _exists(metadata, name)]
            if not missing:
                return self._selection.matching_topics(metadata.topics)
            if time.monotonic() > grace:
                raise self.topic_not_found(missing[0])
            self._client.poll(0.1)

    def partitions(self, topics: list[str]) -> list[TopicPartition]:
        """The partitions to read when no group assigns them: those chosen, else all."""
        metadata = self._metadata(time.monotonic() + self._timeout)
        existing = [
            TopicPartition(name, number) for name in topics for number in sorted(metadata.topics[name].partitions)
        ]
        if self._selection.partitions is None:
            return existing
        requested = [
            partition if isinstance(partition, TopicPartition) else TopicPartition(topics[0], partition)
            for partition in self._selection.partitions
        ]
        for topic_partition in requested:
            if topic_partition not in existing:
                raise TopicNotFoundError(
                    f"There is no partition {topic_partition}",
                    found=", ".join(str(existing_partition) for existing_partition in existing),
                    topic=topic_partition.topic,
                    partition=topic_partition.partition,
                )
        return requested

    def _metadata(self, deadline: float) -> Any:
        # Of a single topic, if that is enough: a cluster may have thousands.
        only = [self._selection.names[0]] if len(self._selection.names) == 1 and not self._selection.patterns else []
        while True:
            left = deadline - time.monotonic()
            try:
                return self._client.list_topics(*only, timeout=max(0.05, min(1.0, left)))
            except KafkaException as error:
                self._on_wait()
                if left <= 0:
                    raise translate(error, f"reading {self._selection}", bootstrap=self._bootstrap_servers) from error

    def all_topics(self, seconds: float) -> list[str] | None:
        """All topics of the cluster; None when it does not answer in that time."""
        try:
            return list(self._client.list_topics(timeout=seconds).topics)
        except KafkaException:
            return None

    def topic_not_found(self, name: str, *, deleted: bool = False) -> TopicNotFoundError:
        suggestion = nearest(name, [topic for topic in self.all_topics(1.0) or [] if topic != name])
        if deleted:
            message, hint = f"The cluster has no topic {name} any more: it was deleted while it was read", ""
        else:
            message = f"The cluster has no topic {name}"
            hint = f"Did you mean {suggestion}?" if suggestion else f"Create it: riverrun topics create {name}"
        return TopicNotFoundError(message, hint=hint, topic=name, bootstrap=self._bootstrap_servers)

    def offsets_at(self, partitions: Collection[TopicPartition], when: datetime | int) -> dict[TopicPartition, int]:
        """The offset of the first record at or after a time, the end if there is none.

        `when` may be OFFSET_BEGINNING or OFFSET_END as well: the oldest record, and the offset of the next one.
        """
        stamp = round(when.timestamp() * 1000) if isinstance(when, datetime) else when
        if not partitions:
            return {}
        answers = self._offsets_for_times([ClientPartition(*partition, stamp) for partition in partitions])
        offsets = {TopicPartition(answer.topic, answer.partition): answer.offset for answer in answers}
        beyond = [partition for partition, offset in offsets.items() if offset < 0]
        return offsets | (self.offsets_at(beyond, OFFSET_END) if beyond and stamp != OFFSET_END else {})

    def _offsets_for_times(self, times: list[ClientPartition]) -> list[ClientPartition]:
        """The client's answer. A topic created a moment ago, or a starting broker, may have no leader yet."""
        started = time.monotonic()
        while True:
            left = started + self._timeout - time.monotonic()
            try:
                answers: list[ClientPartition] = self._client.offsets_for_times(times, timeout=max(0.05, left))
                for answer in answers:
                    if answer.error is not None:
                        raise KafkaException(answer.error)
            except KafkaException as error:
                code, in_grace = error.args[0].code(), time.monotonic() < started + _GRACE_SECONDS
                if left <= 0 or not (code in _TRANSIENT_CODES or (code in UNKNOWN_TOPIC_CODES and in_grace)):
                    raise translate(
                        error, f"looking up offsets of {self._selection}", bootstrap=self._bootstrap_servers
                    ) from error
                time.sleep(min(_RETRY_SECONDS, left))
            else:
                return answers


def _exists(metadata: Any, topic: str) -> bool:
    topic_metadata = metadata.topics.get(topic)
    return topic_metadata is not None and (
        topic_metadata.error is None or topic_metadata.error.code() not in UNKNOWN_TOPIC_CODES
    )
