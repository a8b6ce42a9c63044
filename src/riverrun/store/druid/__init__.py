"""The store that is a real Druid: riverrun writes its supervisor specs, watches them and queries its SQL."""

from riverrun.store.druid.store import DruidStore

__all__ = ["DruidStore"]
