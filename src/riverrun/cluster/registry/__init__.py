"""A schema registry on this machine: Apicurio's, with its schemas in our Kafka (docs/decisions/0019-schema-registry.md)."""

from riverrun.cluster.registry.jars import RegistryRuntime
from riverrun.cluster.registry.local import LocalRegistry

__all__ = ["LocalRegistry", "RegistryRuntime"]
