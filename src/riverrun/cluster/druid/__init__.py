"""A Druid on this machine: ZooKeeper and the five roles, as small as they go (docs/decisions/0010-druid.md)."""

from riverrun.cluster.druid.jars import DruidRuntime
from riverrun.cluster.druid.local import LocalDruid
from riverrun.cluster.druid.plan import DruidPlan

__all__ = ["DruidPlan", "DruidRuntime", "LocalDruid"]
