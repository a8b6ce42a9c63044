"""A real Kafka Connect: its connectors' lives, what it refuses, what fails in words, secrets that stay secret."""

import secrets
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from riverrun.cluster.connect import ConnectRuntime, LocalConnect, secrets_folder
from riverrun.cluster.connect.plan import TOPICS
from riverrun.config import ConnectSettings, Secret, Settings
from riverrun.connectors.kafka_connect import (
    ConnectClient,
    Vault,
    dead_letter_config,
    reconcile_connectors,
    wait_until_running,
)
from riverrun.connectors.kafka_connect.reconcile import OWNER_PROPERTY
from riverrun.errors import (
    ConnectError,
    ConnectFailedError,
    ConnectorNotFoundError,
    ConnectRefusedError,
    ConnectUnavailableError,
)
from riverrun.kafka.admin.admin import Admin
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.cluster import wait_for
from support.connecting_kafka import FILE_SOURCE, file_sink, file_source, local_connect
from support.consuming import Bench
from support.producing import read, values

MakeTopic = Callable[..., str]
pytestmark = pytest.mark.timeout(600)
SOON = 180.0
POSTGRES = "io.debezium.connector.postgresql.PostgresConnector"


def without_manifests(plugin: Path, folder: Path) -> None:
    """A copy of a plugin as older ones are: its jars do not say which connectors they hold."""
    folder.mkdir(parents=True)
    for jar in plugin.glob("*.jar"):
        with zipfile.ZipFile(jar) as old, zipfile.ZipFile(folder / jar.name, "w", zipfile.ZIP_DEFLATED) as new:
            for each in old.infolist():
                if not each.filename.startswith("META-INF/services/org.apache.kafka.connect"):
                    new.writestr(each, old.read(each))


@pytest.fixture(scope="module")
def connect(kafka: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalConnect]:
    """One Connect for all of this file. Debezium's connector for Postgres is in a folder of the user's, as an old one is."""
    root = tmp_path_factory.mktemp("connect")
    ours = ConnectRuntime.prepare(Settings())
    without_manifests(ours.plugins["debezium-postgres"], root / "own" / "old-postgres")
    runtime = replace(ours, plugins={"debezium-jdbc": ours.plugins["debezium-jdbc"]})
    settings = ConnectSettings(plugins=str(root / "own"), start_timeout_seconds=300)
    with local_connect(root, kafka.bootstrap_servers, settings, runtime=runtime) as running:
        yield running


@pytest.fixture(scope="module")
def client(connect: LocalConnect) -> Iterator[ConnectClient]:
    with ConnectClient(connect.attached) as opened:
        yield opened


@pytest.fixture
def vault(connect: LocalConnect) -> Vault:
    return Vault(secrets_folder(connect.home.data))


@pytest.fixture
def name(client: ConnectClient) -> Iterator[str]:
    """A name that no other test uses; its connector is removed afterwards."""
    chosen = f"test-{secrets.token_hex(4)}"
    yield chosen
    client.delete(chosen)


def lines(kafka: KafkaUnderTest, topic: str) -> list[str]:
    return [(value or b"").decode() for value in values(read(kafka, topic))]


# --- the server ---


def test_it_has_our_plugins_and_those_of_the_users_folder(client: ConnectClient) -> None:
    found = {plugin.name: plugin for plugin in client.plugins()}
    assert found[FILE_SOURCE].kind == "source"
    assert found[FILE_SOURCE].version == client.version() == "4.3.1"
    assert found["io.debezium.connector.jdbc.JdbcSinkConnector"].kind == "sink"
    assert found[POSTGRES].version == "3.6.2.Final"


def test_drivers_under_other_licences_are_left_out(connect: LocalConnect) -> None:
    names = [each.name for each in (connect.home.run / "connect-plugins" / "debezium-jdbc").iterdir()]
    assert any(each.startswith("postgresql-") for each in names)
    assert not any(each.startswith(("ojdbc", "mysql")) for each in names)


def test_it_listens_on_the_loopback_only_and_asks_for_a_password(connect: LocalConnect) -> None:
    process = psutil.Process(connect.node.pid)
    listening = [
        net_connection.laddr
        for net_connection in process.net_connections(kind="tcp")
        if net_connection.status == psutil.CONN_LISTEN
    ]
    assert {(each.ip.removeprefix("::ffff:"), each.port) for each in listening} == {("127.0.0.1", connect.node.port)}
    assert httpx.get(f"{connect.url}/connectors", trust_env=False).status_code == 401
    with (
        ConnectClient(replace(connect.attached, password=Secret("no"))) as stranger,
        pytest.raises(ConnectError, match="does not know the user or the password"),
    ):
        stranger.names()


def test_its_topics_have_the_clusters_copies(kafka: KafkaUnderTest, connect: LocalConnect) -> None:
    states = Admin(kafka.connection).topics(list(TOPICS.values()), config=False)
    assert connect.plan.copies == 1
    assert set(states) == set(TOPICS.values())


def test_nobody_else_answers_for_one_that_is_not_there() -> None:
    with (
        ConnectClient(ConnectSettings(url="http://127.0.0.1:9")) as nobody,
        pytest.raises(ConnectUnavailableError, match="does not answer"),
    ):
        nobody.names()


# --- a connector's life ---


def test_lines_of_a_file_go_through_a_topic_to_another_file(
    kafka: KafkaUnderTest, client: ConnectClient, name: str, kafka_topic: MakeTopic, tmp_path: Path
) -> None:
    source, sink, topic = tmp_path / "in.txt", tmp_path / "out.txt", kafka_topic()
    source.write_text("one\ntwo\n")
    out = f"{name}-out"
    client.put(name, file_source(source, topic))
    client.put(out, file_sink(sink, topic))
    try:
        wait_until_running(client, [name, out], SOON)
        wait_for(lambda: sink.is_file() and sink.read_text() == "one\ntwo\n", SOON, "nothing came through")
        assert client.config(name)["file"] == str(source)
        assert {name, out} <= set(client.names())
        wait_for(lambda: client.offsets(name), SOON, "no offsets")
        assert client.offsets(name) == [{"partition": {"filename": str(source)}, "offset": {"position": 8}}]

        client.pause(name)
        wait_for(lambda: client.state(name).overall == "paused", SOON, "it was not paused")
        client.resume(name)
        wait_until_running(client, [name], SOON)

        # Begin anew: only one that is stopped can be told to.
        with pytest.raises(ConnectError, match="STOPPED"):
            client.reset_offsets(name)
        client.stop(name)
        wait_for(lambda: client.state(name).state == "stopped", SOON, "it was not stopped")
        client.reset_offsets(name)
        assert client.offsets(name) == []
        client.set_offsets(name, [{"partition": {"filename": str(source)}, "offset": {"position": 4}}])
        client.resume(name)
        wait_for(lambda: lines(kafka, topic) == ["one", "two", "two"], SOON, "it did not go on from there")
    finally:
        assert client.delete(out)
    assert client.delete(name)
    assert not client.delete(name)
    with pytest.raises(ConnectorNotFoundError):
        client.state(name)


def test_all_that_is_wrong_with_a_configuration_is_said_at_once(client: ConnectClient, name: str) -> None:
    wrong = {"connector.class": FILE_SOURCE, "tasks.max": "many", "transforms": "nothing", "file": "/x"}
    with pytest.raises(ConnectRefusedError) as caught:
        client.put(name, wrong)
    named = {problem.split(": ")[1] for problem in caught.value.problems}
    assert {"tasks.max", "topic", "transforms.nothing.type"} <= named
    assert name not in client.names()


def test_a_plugin_that_is_not_there(client: ConnectClient) -> None:
    (problem,) = client.validation_problems({"connector.class": "org.example.Nothing", "name": "x"})
    assert "there is no plugin 'org.example.Nothing'" in problem
    assert FILE_SOURCE in problem
    (problem,) = client.validation_problems({"name": "x"})
    assert "connector.class: it is missing" in problem


def test_why_a_task_failed_is_told_in_words(
    client: ConnectClient, name: str, kafka_topic: MakeTopic, tmp_path: Path
) -> None:
    gone = tmp_path / "no" / "such" / "folder" / "out.txt"
    client.put(name, file_sink(gone, kafka_topic()))
    with pytest.raises(ConnectFailedError) as caught:
        wait_until_running(client, [name], SOON)
    assert str(gone) in caught.value.fields["reason"]
    assert "\tat " not in str(caught.value)
    assert "\n" not in caught.value.what
    # Once its folder is there it can be started again.
    gone.parent.mkdir(parents=True)
    client.restart(name)
    wait_until_running(client, [name], SOON, reconfigured=[name])


def test_a_record_that_a_sink_cannot_read_goes_to_the_dead_letters(
    kafka: KafkaUnderTest, client: ConnectClient, name: str, kafka_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = kafka_topic()
    dead, out = f"{topic}.dead", tmp_path / "out.txt"
    config = file_sink(out, topic) | {"value.converter": "org.apache.kafka.connect.json.JsonConverter"}
    client.put(name, {**config, "value.converter.schemas.enable": "false", **dead_letter_config(dead)})
    wait_until_running(client, [name], SOON)
    bench = Bench(kafka.connection, kafka_topic, topic=topic)
    bench.send([(b'"good"', b"k", 0), (b"{broken", b"k", 0), (b'"after"', b"k", 0)])
    wait_for(lambda: out.is_file() and out.read_text() == "good\nafter\n", SOON, "the sink did not go on")
    (letter,) = read(kafka, dead)
    assert letter.value() == b"{broken"
    headers: dict[str, Any] = dict(letter.headers() or [])
    assert headers["__connect.errors.topic"] == topic.encode()
    assert headers["__connect.errors.offset"] == b"1"
    assert b"JsonParseException" in headers["__connect.errors.exception.stacktrace"]


# --- secrets ---


def test_a_secret_is_used_and_is_nowhere_to_be_read(
    kafka: KafkaUnderTest,
    connect: LocalConnect,
    client: ConnectClient,
    vault: Vault,
    name: str,
    kafka_topic: MakeTopic,
    tmp_path: Path,
) -> None:
    secret, topic = f"hidden-{secrets.token_hex(12)}", kafka_topic()
    source = tmp_path / "in.txt"
    source.write_text("line\n")
    # A property that Connect does not know to be a secret: what could give it away does.
    mark = {"transforms": "mark", "transforms.mark.type": "org.apache.kafka.connect.transforms.InsertHeader"}
    config = {**file_source(source, topic), **mark, "transforms.mark.header": "mark"}
    client.put(name, vault.hide(name, {**config, "transforms.mark.value.literal": Secret(secret)}))
    wait_until_running(client, [name], SOON)
    wait_for(lambda: read(kafka, topic), SOON, "no record")
    assert read(kafka, topic)[0].headers() == [("mark", secret.encode())], "the worker did not look it up"

    for internal in TOPICS.values():
        assert not any(secret.encode() in (each.value() or b"") for each in read(kafka, internal)), internal
    assert client.config(name)["transforms.mark.value.literal"].startswith("${secrets:")
    for path in (f"/connectors/{name}", f"/connectors/{name}/tasks", "/connectors?expand=info&expand=status"):
        login = (connect.attached.username, connect.attached.password.reveal())
        assert secret not in httpx.get(connect.url + path, auth=login, trust_env=False).text
    for log in connect.home.logs.iterdir():
        assert secret not in log.read_text(encoding="utf-8", errors="replace"), log
        assert connect.attached.password.reveal() not in log.read_text(encoding="utf-8", errors="replace"), log
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or ())
        assert secret not in words
        assert connect.attached.password.reveal() not in words
    (kept,) = [each for each in secrets_folder(connect.home.data).iterdir() if each.read_text() == secret]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    vault.forget(name)
    assert not kept.exists()


def test_a_connector_reads_no_file_of_ours_by_reference(
    connect: LocalConnect, client: ConnectClient, name: str, kafka_topic: MakeTopic, tmp_path: Path
) -> None:
    (tmp_path / "other").write_text("not for you")
    config = file_source(tmp_path / "in.txt", kafka_topic()) | {"file": f"${{secrets:{tmp_path}:other}}"}
    client.put(name, config, checked=True)
    assert connect.node.alive
    wait_for(lambda: client.state(name).state in ("running", "failed"), SOON, "nothing happened")
    assert "not for you" not in connect.node.log.read_text(encoding="utf-8")


# --- kept equal to a pipeline file ---


def test_connectors_are_kept_equal_to_what_an_app_declares(
    kafka: KafkaUnderTest, client: ConnectClient, vault: Vault, kafka_topic: MakeTopic, tmp_path: Path
) -> None:
    app, topic = f"app{secrets.token_hex(3)}", kafka_topic()
    files = [tmp_path / f"{number}.txt" for number in range(3)]
    for number, file in enumerate(files):
        file.write_text(f"line {number}\n")
    one, two, three = (f"{app}.{each}" for each in ("one", "two", "three"))
    hand_made, longer = f"{app}.by-hand", f"{app}.eu.one"
    client.put(hand_made, file_source(files[2], topic))
    client.put(longer, file_source(files[2], topic, **{OWNER_PROPERTY: f"{app}.eu"}))
    try:
        done = reconcile_connectors(
            client, vault, app, {one: file_source(files[0], topic), two: file_source(files[1], topic)}, seconds=SOON
        )
        assert done.created == (one, two)
        assert client.state(one).overall == "running"

        again = reconcile_connectors(
            client, vault, app, {one: file_source(files[0], topic), three: file_source(files[2], topic)}, seconds=SOON
        )
        assert (again.created, again.updated, again.removed, again.unchanged) == ((three,), (), (two,), (one,))

        other = kafka_topic()
        changed = reconcile_connectors(
            client, vault, app, {one: file_source(files[0], other), three: file_source(files[2], topic)}, seconds=SOON
        )
        assert (changed.updated, changed.unchanged) == ((one,), (three,))
        assert client.config(one)["topic"] == other
        assert {hand_made, longer} <= set(client.names()), "others' connectors are left alone"

        before = client.configs()
        with pytest.raises(ConnectRefusedError) as caught:
            reconcile_connectors(client, vault, app, {one: {"connector.class": FILE_SOURCE}, two: {}}, seconds=SOON)
        assert any(f"{one}: topic" in problem for problem in caught.value.problems)
        assert any(f"{two}: connector.class" in problem for problem in caught.value.problems)
        assert client.configs() == before, "nothing is changed when anything is wrong"

        gone = tmp_path / "no" / "folder" / "out.txt"
        with pytest.raises(ConnectFailedError) as failed:
            reconcile_connectors(client, vault, app, {one: file_sink(gone, topic)}, seconds=SOON)
        assert str(gone) in failed.value.fields["reason"]
        gone.parent.mkdir(parents=True)
        mended = reconcile_connectors(client, vault, app, {one: file_sink(gone, topic)}, seconds=SOON)
        assert mended.restarted == (one,)

        client.pause(one)
        wait_for(lambda: client.state(one).state == "paused", SOON, "it was not paused")
        assert reconcile_connectors(client, vault, app, {one: file_sink(gone, topic)}, seconds=SOON).paused == (one,)
        assert reconcile_connectors(client, vault, app, {}, seconds=SOON).removed == (one,)
        assert {each for each in client.names() if each.startswith(f"{app}.")} == {hand_made, longer}
    finally:
        for each in client.names():
            if each.startswith(f"{app}."):
                client.delete(each)
    shutil.rmtree(tmp_path, ignore_errors=True)
