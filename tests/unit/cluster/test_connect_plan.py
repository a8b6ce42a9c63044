"""What a Connect is to be: properties, plugins, files, ports."""

import stat
from pathlib import Path

import pytest

from riverrun.artifacts import Java
from riverrun.cluster.connect import ConnectPlan, ConnectRuntime, LocalConnect, connect_settings, secrets_folder
from riverrun.cluster.connect.jars import ALL_SETS, EXCLUDED_JARS, link_plugins, own_plugins
from riverrun.cluster.connect.plan import MANAGED_PROPERTIES
from riverrun.cluster.connect.properties import worker_properties
from riverrun.cluster.connect.worker import ConnectWorker
from riverrun.cluster.home import ClusterHome
from riverrun.cluster.jvm import JavaRuntime
from riverrun.cluster.properties import parse_properties
from riverrun.cluster.single_server import SingleServerManifest
from riverrun.config import ConnectSettings, Project, Secret
from riverrun.errors import ConfigError, NotRunningError


def properties(**settings: object) -> dict[str, str]:
    plan = ConnectPlan.of(ConnectSettings(**settings), "127.0.0.1:9092", 3)  # type: ignore[arg-type]
    return worker_properties(plan, 8083, plugins="../../run/p", secrets=Path("/project/secrets"), scan=False)


def test_it_stays_on_the_loopback_and_asks_who_calls() -> None:
    found = properties()
    assert found["listeners"] == "http://127.0.0.1:8083"
    assert found["rest.advertised.host.name"] == "127.0.0.1"
    assert found["rest.extension.classes"].endswith("BasicAuthSecurityRestExtension")


def test_what_survived_kills() -> None:
    found = properties()
    assert found["exactly.once.source.support"] == "enabled"
    assert found["producer.transaction.timeout.ms"] == "5000"
    assert found["scheduled.rebalance.max.delay.ms"] == "0"
    assert found["consumer.isolation.level"] == "read_committed"


def test_its_topics_have_as_many_copies_as_the_clusters() -> None:
    copies = {key: value for key, value in properties().items() if key.endswith(".replication.factor")}
    assert copies == {f"{kind}.storage.replication.factor": "3" for kind in ("config", "offset", "status")}


def test_secrets_are_read_from_one_folder_only() -> None:
    found = properties()
    assert found["config.providers"] == "secrets"
    assert found["config.providers.secrets.param.allowed.paths"] == "/project/secrets"


def test_users_properties_count_more_and_their_providers_come_beside_ours() -> None:
    found = properties(config={"offset.flush.interval.ms": "1000", "config.providers": "env,secrets"})
    assert found["offset.flush.interval.ms"] == "1000"
    assert found["config.providers"] == "secrets,env"


@pytest.mark.parametrize("name", sorted(MANAGED_PROPERTIES | {"config.providers.secrets.param.allowed.paths"}))
def test_what_the_runner_decides_cannot_be_set(name: str) -> None:
    with pytest.raises(ConfigError, match=r"connect\.config sets"):
        properties(config={name: "x"})


# --- plugins ---


def test_users_plugins_are_folders_and_jars(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two.jar").write_bytes(b"")
    (tmp_path / "README").write_text("")
    assert set(own_plugins(str(tmp_path))) == {"one", "two.jar"}
    assert own_plugins("") == {}
    with pytest.raises(ConfigError, match=r"connect\.plugins"):
        own_plugins(str(tmp_path / "nowhere"))


def test_links_are_what_there_is_now(tmp_path: Path) -> None:
    for names in (("one", "two"), ("two",)):
        link_plugins(tmp_path / "links", dict.fromkeys(names, tmp_path))
        assert {each.name for each in (tmp_path / "links").iterdir()} == set(names)


def test_the_folder_of_plugins_begins_at_the_project() -> None:
    project = Project(Path("/work/shop"))
    assert connect_settings(ConnectSettings(plugins="mine"), project).plugins == "/work/shop/mine"
    assert connect_settings(ConnectSettings(plugins="/opt/p"), project).plugins == "/opt/p"
    assert connect_settings(ConnectSettings(), project).plugins == ""


def test_drivers_of_other_licences_are_named() -> None:
    assert EXCLUDED_JARS == {"debezium-jdbc": ("ojdbc", "mysql-connector")}
    assert ALL_SETS == ("kafka", "connect", "debezium-postgres", "debezium-jdbc")


# --- files ---


def worker(root: Path, **settings: object) -> ConnectWorker:
    home = ClusterHome(root)
    home.make()
    runtime = JavaRuntime(
        Java(Path("/java"), Path("/java/bin/java"), 17, "17.0.1", "test"), (Path("kafka-clients-4.3.1.jar"),), root
    )
    plan = ConnectPlan.of(ConnectSettings(**settings), "127.0.0.1:9092")  # type: ignore[arg-type]
    connect = ConnectRuntime(runtime, {"debezium-postgres": root})
    return ConnectWorker(
        plan, SingleServerManifest({"connect": 8083}), Secret("the-password"), plugins="", home=home, connect=connect
    )


def test_its_files_are_the_users_alone_and_no_secret_is_on_the_command_line(tmp_path: Path) -> None:
    made = worker(tmp_path, config={"producer.sasl.jaas.config": "a secret"})
    made.prepare()
    for name in ("properties", "users", "jaas"):
        assert stat.S_IMODE((tmp_path / "run" / f"connect.{name}").stat().st_mode) == 0o600
    assert stat.S_IMODE(secrets_folder(tmp_path / "data").stat().st_mode) == 0o700
    found = parse_properties((tmp_path / "run" / "connect.properties").read_text())
    assert (found["plugin.path"], found["plugin.discovery"]) == ("../../run/connect-plugins", "service_load")
    assert (tmp_path / "run" / "connect-plugins" / "debezium-postgres").is_symlink()
    command = " ".join(made.command([]))
    assert "a secret" not in command
    assert "the-password" not in command
    assert 'file="../../run/connect.users"' in (tmp_path / "run" / "connect.jaas").read_text()


@pytest.mark.parametrize("unfit", ["a,b", "a:b", "a}b"])
def test_a_folder_that_connect_cannot_name_is_refused(tmp_path: Path, unfit: str) -> None:
    with pytest.raises(ConfigError, match="use a project folder without them"):
        worker(tmp_path / unfit).prepare()


def test_one_that_was_not_started_has_no_address(tmp_path: Path) -> None:
    connect = LocalConnect(tmp_path, "127.0.0.1:9092")
    with pytest.raises(NotRunningError):
        _ = connect.url
    connect.stop()
