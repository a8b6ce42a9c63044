"""What a consumer is to read, and what it asks the cluster about that: which topics there are, which partitions, offsets."""

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
from riverrun.kafka.border import SETTLING, translate
from riverrun.model.event import EventSchema
from riverrun.model.near import nearest
from riverrun.model.state import Place
from riverrun.model.topic import Topic, check_topic_name

MISSING = frozenset({
    ClientError.UNKNOWN_TOPIC_OR_PART, ClientError._UNKNOWN_TOPIC, ClientError._UNKNOWN_PARTITION,
    ClientError.UNKNOWN_TOPIC_ID,
})  # fmt: skip
# A topic made a moment ago may not be known to every broker yet.
_GRACE_SECONDS = 1.0
# Worth another try: who leads a partition is not settled, or the connection went away.
_PASSING = SETTLING | {ClientError._TRANSPORT, ClientError.NETWORK_EXCEPTION, ClientError.REQUEST_TIMED_OUT}
_AGAIN_SECONDS = 0.1


@dataclass(frozen=True)
class Choice:
    """What is read: topics by name, topics by pattern, or exactly these partitions; by a group or alone."""

    names: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...] = ()
    partitions: Collection[int | Place] | None = None
    group: str = ""

    def __str__(self) -> str:
        return ", ".join([*self.names, *(f"/{each.pattern}/" for each in self.patterns)])

    @property
    def shared(self) -> bool:
        """Whether a group shares the partitions out."""
        return bool(self.group) and self.partitions is None

    def topics(self, there: Iterable[str]) -> list[str]:
        """The topics to read: those named, and those whose whole name matches a pattern.

        Kafka's own topics, dead letters and what is noted about them are only meant when they are named.
        """
        matching = (
            topic
            for topic in there
            if not topic.startswith("__")
            and not topic.endswith((".dead", ".dead.redriven"))
            and any(each.fullmatch(topic) for each in self.patterns)
        )
        return sorted({*self.names, *matching})


def choose(
    topics: Any, group: str, partitions: Collection[int | Place] | None
) -> tuple[Choice, dict[str, EventSchema[Any] | None]]:
    """What to read, and the types of what is read."""
    several = [topics] if isinstance(topics, Topic | str | re.Pattern) else list(topics)
    schemas: dict[str, EventSchema[Any] | None] = {}
    patterns = []
    for each in several:
        if isinstance(each, Topic):
            schemas[each.name] = each.schema
        elif isinstance(each, re.Pattern):
            patterns.append(each)
        else:
            schemas[check_topic_name(each)] = None
    if not several:
        raise UsageError("A consumer needs a topic", expected="a Topic, a name, a pattern, or several of them")
    if partitions is not None and (patterns or len(schemas) > 1) and not all(isinstance(p, Place) for p in partitions):
        raise UsageError(
            "Partitions of which topic?", hint="Give riverrun.Place(topic, partition)", option="partitions"
        )
    return Choice(tuple(schemas), tuple(patterns), partitions, group), schemas


class Lookup:
    """Asks the cluster over a consumer's own client. `on_wait` is called while it does not answer, and may raise why."""

    def __init__(
        self, client: Consumer, choice: Choice, *, where: str, timeout: float, on_wait: Callable[[], None]
    ) -> None:
        self._client: Any = client  # its types do not know that the topic of list_topics can be left out
        self._choice = choice
        self._where = where
        self._timeout = timeout
        self._on_wait = on_wait

    def topics(self) -> list[str]:
        """The topics to read now; TopicNotFoundError for one that is named and not there."""
        deadline = time.monotonic() + self._timeout
        grace = min(deadline, time.monotonic() + _GRACE_SECONDS)
        while True:
            metadata = self._metadata(deadline)
            missing = [name for name in self._choice.names if not _exists(metadata, name)]
            if not missing:
                return self._choice.topics(metadata.topics)
            if time.monotonic() > grace:
                raise self.no_topic(missing[0])
            self._client.poll(0.1)

    def partitions(self, topics: list[str]) -> list[Place]:
        """The partitions to read when no group shares them out: those chosen, else all."""
        metadata = self._metadata(time.monotonic() + self._timeout)
        there = [Place(name, number) for name in topics for number in sorted(metadata.topics[name].partitions)]
        if self._choice.partitions is None:
            return there
        wanted = [each if isinstance(each, Place) else Place(topics[0], each) for each in self._choice.partitions]
        for place in wanted:
            if place not in there:
                raise TopicNotFoundError(
                    f"There is no partition {place}",
                    found=", ".join(str(each) for each in there),
                    topic=place.topic,
                    partition=place.partition,
                )
        return wanted

    def _metadata(self, deadline: float) -> Any:
        # Of one topic, where one is enough: a cluster may have thousands.
        only = [self._choice.names[0]] if len(self._choice.names) == 1 and not self._choice.patterns else []
        while True:
            left = deadline - time.monotonic()
            try:
                return self._client.list_topics(*only, timeout=max(0.05, min(1.0, left)))
            except KafkaException as error:
                self._on_wait()
                if left <= 0:
                    raise translate(error, f"reading {self._choice}", bootstrap=self._where) from error

    def all_topics(self, seconds: float) -> list[str] | None:
        """All topics of the cluster; None when it does not answer in that time."""
        try:
            return list(self._client.list_topics(timeout=seconds).topics)
        except KafkaException:
            return None

    def no_topic(self, name: str, *, any_more: bool = False) -> TopicNotFoundError:
        near = nearest(name, [each for each in self.all_topics(1.0) or [] if each != name])
        if any_more:
            what, hint = f"The cluster has no topic {name} any more: it was deleted while it was read", ""
        else:
            what = f"The cluster has no topic {name}"
            hint = f"Did you mean {near}?" if near else f"Create it: riverrun topics create {name}"
        return TopicNotFoundError(what, hint=hint, topic=name, bootstrap=self._where)

    def offsets_at(self, places: Collection[Place], when: datetime | int) -> dict[Place, int]:
        """The offset of the first record at or after a time, the end where there is none.

        `when` may be OFFSET_BEGINNING or OFFSET_END as well: the oldest record, and where the next one will be.
        """
        stamp = round(when.timestamp() * 1000) if isinstance(when, datetime) else when
        if not places:
            return {}
        found = self._asked_for([ClientPartition(*place, stamp) for place in places])
        offsets = {Place(each.topic, each.partition): each.offset for each in found}
        beyond = [place for place, offset in offsets.items() if offset < 0]
        return offsets | (self.offsets_at(beyond, OFFSET_END) if beyond and stamp != OFFSET_END else {})

    def _asked_for(self, times: list[ClientPartition]) -> list[ClientPartition]:
        """The client's answer. A topic that was made a moment ago, or a broker that starts, may have no leader yet."""
        begun = time.monotonic()
        while True:
            left = begun + self._timeout - time.monotonic()
            try:
                found: list[ClientPartition] = self._client.offsets_for_times(times, timeout=max(0.05, left))
                for each in found:
                    if each.error is not None:
                        raise KafkaException(each.error)
            except KafkaException as error:
                code, new = error.args[0].code(), time.monotonic() < begun + _GRACE_SECONDS
                if left <= 0 or not (code in _PASSING or (code in MISSING and new)):
                    raise translate(error, f"looking up offsets of {self._choice}", bootstrap=self._where) from error
                time.sleep(min(_AGAIN_SECONDS, left))
            else:
                return found


def _exists(metadata: Any, topic: str) -> bool:
    found = metadata.topics.get(topic)
    return found is not None and (found.error is None or found.error.code() not in MISSING)
