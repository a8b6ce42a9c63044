"""The stores that the contract is held against. A store adds a kit here, not tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.kit import Kit
from riverrun.cluster.druid import LocalDruid
from riverrun.config.spec import DruidSettings, StoreSettings
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


class DruidKit(Kit):
    name = "druid"
    exact_decimals = False

    def __init__(self, connection: Connection, druid: LocalDruid) -> None:
        self._druid = druid
        super().__init__(connection)

    def make(self) -> Store:
        from riverrun.store.druid.store import DruidStore

        return DruidStore(self.app, DruidSettings(), self.connection, url=self._druid.url)

    def crash(self) -> None:
        """Kill the role that ingests, and start it again as the runner would."""
        self._druid.indexer.kill()
        self._druid.indexer.restart()


@pytest.fixture(scope="module", params=["embedded", "druid"])
def kit(
    request: pytest.FixtureRequest, kafka: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kit]:
    made: Kit
    if request.param == "embedded":
        made = EmbeddedKit(kafka.connection, tmp_path_factory.mktemp("store"))
    else:
        made = DruidKit(kafka.connection, request.getfixturevalue("druid"))
    try:
        yield made
    finally:
        made.close()
