"""Watches the topics that streams read: a stream must not read on if one was deleted, created again or truncated.

Spark compares offsets only. If a topic ends before the offset it has read to, it continues from that end, with a line in its
log (`failOnDataLoss` is off, so that retention does not stop a stream): the earlier records of the new topic are never read.
"""

import time
from collections.abc import Mapping

from riverrun.errors import CheckpointError, RiverrunError
from riverrun.kafka.admin.admin import Admin
from riverrun.streams.checkpoint import Offsets

POLL_SECONDS = 2.0
# More than one, because a broker may not know a topic for a moment.
_MISSING_POLLS = 3

RECREATED = "was deleted and made again while it ran"
DELETED = "was deleted while it ran"


class TopicWatch:
    """Compares the ids of topics with `ids`, those that the streams began with."""

    def __init__(self, admin: Admin, ids: Mapping[str, str]) -> None:
        self._admin = admin
        self._ids = dict(ids)
        self._missing_polls = dict.fromkeys(ids, 0)
        self._next_poll = 0.0

    def poll(self) -> dict[str, str]:
        """Topics that changed since the last poll, each returned once: `RECREATED` or `DELETED`."""
        if not self._ids or time.monotonic() < self._next_poll:
            return {}
        self._next_poll = time.monotonic() + POLL_SECONDS
        try:
            topics = self._admin.topics(list(self._ids), config=False)
        except RiverrunError:
            # The streams report what is wrong with the cluster.
            return {}
        changes: dict[str, str] = {}
        for topic, known_id in list(self._ids.items()):
            state = topics.get(topic)
            self._missing_polls[topic] = 0 if state is not None else self._missing_polls[topic] + 1
            if state is not None and state.topic_id != known_id:
                changes[topic] = RECREATED
            elif self._missing_polls[topic] >= _MISSING_POLLS:
                changes[topic] = DELETED
        for topic in changes:
            del self._ids[topic]
        return changes


def topic_lost_error(stream: str, topic: str, what: str, file: str) -> CheckpointError:
    """The error of a stream that must not read on in a topic."""
    return CheckpointError(
        f"The stream {stream} cannot go on: {topic}, which it reads, {what}. The offset it stood at was in the old one",
        hint=f"`riverrun run {file} --fresh {stream}` begins at the first record of the new one"
        + (", when there is one" if what == DELETED else ""),
        stream=stream,
        topic=topic,
    )


def find_offset_regression(before: Offsets, after: Offsets) -> str:
    """The first partition in which `after` lies before `before`, with both offsets, as text; empty if there is none."""
    for topic, partitions in sorted(after.items()):
        for partition, offset in sorted(partitions.items()):
            if offset < before.get(topic, {}).get(partition, offset):
                return (
                    f"{topic}[{partition}] up to {before[topic][partition]}, and its log ended at {offset} after that"
                )
    return ""
