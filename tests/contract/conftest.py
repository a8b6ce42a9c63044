"""The stores that the contract is held against. A store adds a kit here, not tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.kit import Kit
from riverrun.config.spec import StoreSettings
from riverrun.kafka.connection import Connection
from riverrun.store.contract import Store
from riverrun.testing.pytest_plugin import KafkaUnderTest


class EmbeddedKit(Kit):
    name = "embedded"

    def __init__(self, connection: Connection, folder: Path) -> None:
        self._folder = folder
        super().__init__(connection)

    def make(self) -> Store:
        from riverrun.store.embedded.store import EmbeddedStore

        return EmbeddedStore(self._folder, self.connection, StoreSettings())

    def crash(self) -> None:
        # A kill of the whole process is in tests/integration/test_store_kill.py; here the file is left as it is.
        self.reopen()


@pytest.fixture(scope="module", params=["embedded"])
def kit(
    request: pytest.FixtureRequest, kafka: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kit]:
    made = EmbeddedKit(kafka.connection, tmp_path_factory.mktemp("store"))
    try:
        yield made
    finally:
        made.close()
