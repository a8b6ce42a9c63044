"""Compacted topics of one partition, in which parts of riverrun keep what they know.

They are read from the first record to the last at every start, so they have to stay short. Kafka compacts only segments that
are closed, and by default closes one after a gigabyte or a week: millions of records for a handful of keys. With the
settings below a start reads what is known, and at most about two megabytes of what was overwritten since.
"""

import contextlib
import logging

from riverrun.errors import AuthorizationError, DeclarationError, TopicExistsError
from riverrun.kafka.admin.admin import Admin

_LOG = logging.getLogger("riverrun.kafka")

COMPACTED_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    # The smallest that Kafka 4 takes: a segment that is written to is never compacted.
    "segment.bytes": str(1 << 20),
    # A quiet topic closes its segment too.
    "segment.ms": "600000",
    # From so much of it on that was written since the last time, a log is compacted; in any case after so long.
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": "600000",
    # How long deletions and the markers of transactions stay. A day by default; whoever follows such a topic is not so late.
    "delete.retention.ms": "3600000",
}


def ensure_compacted_topic(admin: Admin, topic: str) -> None:
    """The topic, made where it is not there yet, with the settings that keep it short where it has others."""
    try:
        existing = admin.topics([topic]).get(topic)
    except AuthorizationError:
        # Its settings are not ours to see (DescribeConfigs); whether it is there may be.
        if topic in admin.topics([topic], config=False):
            return
        existing = None
    if existing is None:
        with contextlib.suppress(TopicExistsError):
            _create(admin, topic)
        return
    current = {name: value.value for name, value in existing.config.items()}
    changes = {name: value for name, value in COMPACTED_TOPIC_CONFIG.items() if current.get(name, value) != value}
    if changes:
        try:
            admin.alter_config(topic, changes)
        except (AuthorizationError, DeclarationError) as error:
            # It works as it is, only its start takes longer as it grows.
            _LOG.warning("%s keeps its settings, and may take long to read: %s", topic, error)


def _create(admin: Admin, topic: str) -> None:
    try:
        admin.create_topic(topic, partitions=1, replicas=0, config=COMPACTED_TOPIC_CONFIG)
    except DeclarationError as error:
        # A cluster whose policy wants other segments.
        _LOG.warning("%s is made with the cluster's own settings: %s", topic, error)
        admin.create_topic(topic, partitions=1, replicas=0, config={"cleanup.policy": "compact"})
