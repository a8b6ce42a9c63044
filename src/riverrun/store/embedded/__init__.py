"""The embedded store: DuckDB in one process, which reads the topics by itself and answers questions beside that."""

from riverrun.store.embedded.store import EmbeddedStore

__all__ = ["EmbeddedStore"]
