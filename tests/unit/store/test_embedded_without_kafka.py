"""An embedded store whose brokers do not answer says so, once, and stays open for questions."""

import time
from pathlib import Path

from riverrun.config import KafkaSettings
from riverrun.config.spec import StoreSettings
from riverrun.kafka.connection import Connection
from riverrun.store.catalog import Catalog
from riverrun.store.embedded import EmbeddedStore


def test_brokers_that_do_not_answer_are_said_once(tmp_path: Path) -> None:
    nowhere = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1", request_timeout_seconds=1))
    said: list[str] = []
    catalog = Catalog(nowhere, "meters")
    with EmbeddedStore(tmp_path, nowhere, StoreSettings(), catalog=catalog, notice=said.append) as store:
        deadline = time.monotonic() + 60
        while not said:
            assert time.monotonic() < deadline, "it said nothing"
            time.sleep(0.02)
        assert "No broker at 127.0.0.1:1 answered" in said[0]
        assert "riverrun status" in said[0], "what to do next"
        assert store.query("select 1 as n").rows.to_pylist() == [{"n": 1}]
    assert len(said) == 1
