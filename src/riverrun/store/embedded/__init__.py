"""The embedded store: DuckDB in one process, which reads the topics itself and answers queries meanwhile."""

from riverrun.store.embedded.store import EmbeddedStore

__all__ = ["EmbeddedStore"]
