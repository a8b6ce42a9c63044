"""The topics that streams read, watched while they run: one that is deleted, made again or cut is not read on as if nothing
had been.

Spark compares offsets only. Where a topic ends before the offset it has read to, it goes on from that end, with a line in
its log (`failOnDataLoss` is off, so that retention does not stop a stream): what the new topic had until then is never read.
"""

import time
from collections.abc import Mapping

from riverrun.errors import CheckpointError, RiverrunError
from riverrun.kafka.admin.admin import Admin
from riverrun.streams.checkpoint import Offsets

POLL_SECONDS = 2.0
# Not a moment in which a broker does not know it yet.
_MISSING_POLLS = 3

RECREATED = "was deleted and made again while it ran"
DELETED = "was deleted while it ran"


class TopicWatch:
    """Asks for the ids of topics now and then. `ids` are those that the streams began with."""

    def __init__(self, admin: Admin, ids: Mapping[str, str]) -> None:
        self._admin = admin
        self._ids = dict(ids)
        self._missing_polls = dict.fromkeys(ids, 0)
        self._next_poll = 0.0

    def poll(self) -> dict[str, str]:
        """What has become of topics since the last look, each told once: `RECREATED` or `DELETED`."""
        if not self._ids or time.monotonic() < self._next_poll:
            return {}
        self._next_poll = time.monotonic() + POLL_SECONDS
        try:
            topics = self._admin.topics(list(self._ids), config=False)
        except RiverrunError:
            # The streams themselves say what is wrong with the cluster.
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
    """Why a stream must not go on with a topic."""
    return CheckpointError(
        f"The stream {stream} cannot go on: {topic}, which it reads, {what}. The offset it stood at was in the old one",
        hint=f"`riverrun run {file} --fresh {stream}` begins at the first record of the new one"
        + (", when there is one" if what == DELETED else ""),
        stream=stream,
        topic=topic,
    )


def find_offset_regression(before: Offsets, after: Offsets) -> str:
    """The first partition in which `after` lies before `before`, with both offsets, in words; empty when none does."""
    for topic, parts in sorted(after.items()):
        for part, offset in sorted(parts.items()):
            if offset < before.get(topic, {}).get(part, offset):
                return f"{topic}[{part}] up to {before[topic][part]}, and its log ended at {offset} after that"
    return ""
