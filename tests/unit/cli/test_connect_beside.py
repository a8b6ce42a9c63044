"""What `riverrun run` asks of Kafka Connect."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import riverrun
from riverrun.cli.connect_beside import copies_of, left_behind, plugins_of
from riverrun.config import Project, Secret, load
from riverrun.connectors.kafka_connect import Vault

if TYPE_CHECKING:
    from riverrun.model.topic import Topic


def test_topics_that_connect_makes_have_as_many_copies_as_the_cluster_says(tmp_path: Path) -> None:
    """On a cluster that is attached, the setting kafka.brokers says nothing."""
    (tmp_path / "riverrun.toml").write_text('[kafka]\nbootstrap_servers = "kafka.example:9092"\n')
    assert copies_of(load(Project(tmp_path))) == -1
    (tmp_path / "riverrun.toml").write_text("[kafka]\nbrokers = 2\nreplication = 2\n")
    assert copies_of(load(Project(tmp_path))) == 2


def test_the_sinks_plugin_is_fetched_for_who_has_a_sink() -> None:
    app = riverrun.App("shop")
    app.table("houses", riverrun.postgres("houses", columns="id int"), key="id")
    assert plugins_of(app) == ["debezium-postgres"]
    loads: Topic[Any] = app.topic("loads")
    app.sink(loads, riverrun.jdbc("loads", key="id"))
    assert plugins_of(app) == ["debezium-postgres", "debezium-jdbc"]


def test_connect_is_started_once_more_for_connectors_that_were_left_behind(tmp_path: Path) -> None:
    app, settings = riverrun.App("shop"), load(Project(tmp_path))
    assert not left_behind(settings, app)
    Vault.of(settings).hide("shop.postgres", {"database.password": Secret("x")})
    assert left_behind(settings, app)
    Vault.of(settings).forget("shop.postgres")
    assert not left_behind(settings, app)
