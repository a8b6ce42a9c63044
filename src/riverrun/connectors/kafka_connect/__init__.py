"""Kafka Connect from Python: its REST API, secrets by reference, and connectors kept equal to a pipeline file."""

from riverrun.connectors.kafka_connect.client import ConnectClient
from riverrun.connectors.kafka_connect.reconcile import (
    ReconcileResult,
    dead_letter_config,
    reconcile_connectors,
    remove_connector,
    wait_until_running,
)
from riverrun.connectors.kafka_connect.state import ConnectorState, Plugin, TaskState
from riverrun.connectors.kafka_connect.vault import Vault

__all__ = [
    "ConnectClient",
    "ConnectorState",
    "Plugin",
    "ReconcileResult",
    "TaskState",
    "Vault",
    "dead_letter_config",
    "reconcile_connectors",
    "remove_connector",
    "wait_until_running",
]
