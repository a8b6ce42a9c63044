"""Compacted topics of one partition, in which parts of riverrun keep what they know."""

import contextlib

from riverrun.errors import TopicExistsError
from riverrun.kafka.admin.admin import Admin


def make_compacted(admin: Admin, topic: str) -> None:
    """The topic, where it is not there yet."""
    if topic not in admin.topics([topic], config=False):
        with contextlib.suppress(TopicExistsError):
            admin.create_topic(topic, partitions=1, replicas=0, config={"cleanup.policy": "compact"})
