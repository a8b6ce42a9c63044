"""Compacted topics of one partition, in which components of riverrun keep their state.

They are read from the first record to the last at every start, so they have to stay short. Kafka compacts only segments that
are closed, and by default closes one after a gigabyte or a week: millions of records for a handful of keys. With the
settings below a start reads the current state, and at most about two megabytes of what was overwritten since.
"""

import contextlib
import logging

from riverrun.errors import AuthorizationError, DeclarationError, TopicExistsError
from riverrun.kafka.admin.admin import Admin

_LOG = logging.getLogger("riverrun.kafka")

COMPACTED_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    # The smallest that Kafka 4 accepts: the active segment is never compacted.
    "segment.bytes": str(1 << 20),
    # A quiet topic closes its segment too.
    "segment.ms": "600000",
    # A log is compacted when this share of it is new since the last time; in any case after this time.
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": "600000",
    # How long tombstones and transaction markers stay. A day by default; readers of such a topic are not so late.
    "delete.retention.ms": "3600000",
}


def ensure_compacted_topic(admin: Admin, topic: str) -> None:
    """Create the topic if it is missing, and change settings that would not keep it short."""
    try:
        existing = admin.topics([topic]).get(topic)
    except AuthorizationError:
        # We may not see its settings (DescribeConfigs), but maybe whether it exists.
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
            # It works unchanged, only its start takes longer as it grows.
            _LOG.warning("%s keeps its settings, and may take long to read: %s", topic, error)


def _create(admin: Admin, topic: str) -> None:
    try:
        admin.create_topic(topic, partitions=1, replicas=0, config=COMPACTED_TOPIC_CONFIG)
    except DeclarationError as error:
        # The cluster's policy requires other segment settings.
        _LOG.warning("%s is made with the cluster's own settings: %s", topic, error)
        admin.create_topic(topic, partitions=1, replicas=0, config={"cleanup.policy": "compact"})
