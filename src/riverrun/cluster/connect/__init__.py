"""A Kafka Connect on this machine: one worker in distributed mode (docs/decisions/0014-kafka-connect.md)."""

from riverrun.cluster.connect.jars import PLUGIN_SETS, ConnectRuntime
from riverrun.cluster.connect.local import LocalConnect
from riverrun.cluster.connect.plan import ConnectPlan, connect_settings, secrets_folder

__all__ = ["PLUGIN_SETS", "ConnectPlan", "ConnectRuntime", "LocalConnect", "connect_settings", "secrets_folder"]
