"""Attaching to a cluster that wants TLS and a login: every way in works, every wrong way says why."""

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from riverrun.cli.main import run
from riverrun.config import Project
from riverrun.errors import AuthenticationError, AuthorizationError, RiverrunError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import connect, with_pem_contents
from riverrun.kafka.producer.producer import Producer
from riverrun.kafka.reading.tail_reader import TopicTailReader
from riverrun.model.cluster_state import TopicPartition
from riverrun.streams.compile.sources import KafkaRecordSource
from support.secured import CLIENT, CLIENT_SECRET, GUEST, PASSWORD, USER, Secured, secured_kafka


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    root = tmp_path_factory.mktemp("secured")
    with secured_kafka(root, random.randrange(12000, 28000, 200)) as found:
        yield found


def brokers(tmp_path: Path, address: str, **settings: Any) -> dict[int, str]:
    return Admin(connect(address, project=tmp_path, request_timeout_seconds=10, **settings)).brokers()


def login(secured: Secured, mechanism: str, password: str = PASSWORD, user: str = USER) -> dict[str, Any]:
    from riverrun.config import Secret

    return {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": mechanism,
        "sasl_username": user,
        "sasl_password": Secret(password),
        "ssl_ca_file": str(secured.ca_file),
    }


def test_tls(tmp_path: Path, secured: Secured) -> None:
    found = brokers(tmp_path, secured.tls, security_protocol="SSL", ssl_ca_file=str(secured.ca_file))
    assert list(found.values()) == [secured.tls]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password(tmp_path: Path, secured: Secured, mechanism: str) -> None:
    assert list(brokers(tmp_path, secured.login, **login(secured, mechanism)).values()) == [secured.login]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_says_so_at_once_and_does_not_repeat_it(
    tmp_path: Path, secured: Secured, mechanism: str
) -> None:
    with pytest.raises(AuthenticationError) as caught:
        brokers(tmp_path, secured.login, **login(secured, mechanism, "open-barley"))
    assert secured.login in str(caught.value)
    assert "open-barley" not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize("first", ["send", "send_soon", "send_all", "transaction"])
def test_a_producer_says_at_once_that_its_password_is_wrong(tmp_path: Path, secured: Secured, first: str) -> None:
    options = login(secured, "SCRAM-SHA-512", "open-barley")
    connection = connect(secured.login, project=tmp_path, request_timeout_seconds=20, **options)
    with Producer(connection, transactional_id="t" if first == "transaction" else "") as producer:
        uses: dict[str, Callable[[], object]] = {
            "send": lambda: producer.send("t", b""),
            "send_soon": lambda: producer.send_soon("t", b""),
            "send_all": lambda: producer.send_all("t", [b""]),
            "transaction": lambda: producer.transaction().begin(),
        }
        started = time.monotonic()
        with pytest.raises(AuthenticationError):
            uses[first]()
        assert time.monotonic() - started < 8


def test_a_worker_that_has_no_certificate_file_logs_in(tmp_path: Path, secured: Secured, spark: SparkSession) -> None:
    """Python and Java, as on another machine: the certificate is in the settings, and its file is gone."""
    file = tmp_path / "ca.pem"
    shutil.copy(secured.ca_file, file)
    settings = {**login(secured, "SCRAM-SHA-512"), "ssl_ca_file": str(file)}
    connection = connect(secured.login, project=tmp_path, request_timeout_seconds=20, **settings)
    properties, records = with_pem_contents(connection.properties()), KafkaRecordSource(spark, connection)
    Admin(connection).create_topic("by_content", partitions=1, replicas=1, config={})
    with Producer(connection) as producer:
        producer.send("by_content", b"{}")
    file.unlink()
    assert "by_content" in AdminClient(properties).list_topics(timeout=20).topics
    frame = records.read_batch("by_content")
    assert frame.count() == 1
    assert "open-sesame" not in frame._jdf.queryExecution().toString()


def test_a_certificate_nobody_we_know_signed(tmp_path: Path, secured: Secured) -> None:
    with pytest.raises(AuthenticationError) as caught:
        brokers(tmp_path, secured.tls, security_protocol="SSL")
    assert "certificate verify failed" in str(caught.value)


def test_plain_text_to_a_tls_port_ends_in_a_message(tmp_path: Path, secured: Secured) -> None:
    with pytest.raises(RiverrunError) as caught:
        brokers(tmp_path, secured.tls)
    assert secured.tls in str(caught.value)


def oauth(secured: Secured, secret: str) -> dict[str, Any]:
    from riverrun.config import Secret

    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "oauth_token_url": secured.token_url,
        "oauth_client_id": CLIENT,
        "oauth_client_secret": Secret(secret),
    }


def test_a_token(tmp_path: Path, secured: Secured) -> None:
    assert list(brokers(tmp_path, secured.oauth, **oauth(secured, CLIENT_SECRET)).values()) == [secured.oauth]


def test_a_refused_token(tmp_path: Path, secured: Secured) -> None:
    with pytest.raises(AuthenticationError) as caught:
        brokers(tmp_path, secured.oauth, **oauth(secured, "wrong"))
    assert "wrong" not in str(caught.value).split("Check")[0].replace("wrongly", "")


def test_the_shell_takes_the_password_from_a_file(tmp_path: Path, secured: Secured) -> None:
    """The whole way: riverrun.toml names the cluster and a secret's file; the secret is in no command line or output."""
    project = Project(tmp_path)
    (tmp_path / "password").write_text(PASSWORD)
    project.config_file.write_text(
        f"""[kafka]
bootstrap_servers = "{secured.login}"
security_protocol = "SASL_SSL"
sasl_mechanism = "SCRAM-SHA-512"
sasl_username = "{USER}"
sasl_password = {{ file = "password" }}
ssl_ca_file = "{secured.ca_file}"
"""
    )

    def riverrun(*arguments: str, stdin: str = "") -> str:
        command = [sys.executable, "-m", "riverrun", "--project", str(tmp_path), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert PASSWORD not in done.stdout + done.stderr
        return done.stdout

    riverrun("produce", "hello", "--create", stdin='{"n": 1}\n{"n": 2}\n')
    assert riverrun("consume", "hello") == '{"n": 1}\n{"n": 2}\n'
    assert "******" in riverrun("config")


@pytest.fixture(scope="module")
def owner(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Admin:
    """An admin that may do everything, on a cluster with the topic orders and the group billing."""
    root = tmp_path_factory.mktemp("owner")
    found = Admin(connect(secured.login, project=root, request_timeout_seconds=30, **login(secured, "PLAIN")))
    found.create_topic("orders", partitions=1, replicas=1, config={})
    found.alter_group_offsets("billing", {TopicPartition("orders", 0): 0})
    return found


def guest(secured: Secured, root: Path) -> Admin:
    settings = login(secured, "PLAIN", user=GUEST)
    return Admin(connect(secured.login, project=root, request_timeout_seconds=10, **settings))


@pytest.mark.parametrize(
    ("act", "missing"),
    [
        (lambda admin: admin.topic("orders"), "Describe on the topic orders"),
        (lambda admin: admin.offsets([TopicPartition("orders", 0)], "latest"), "Describe on the topic orders"),
        (lambda admin: admin.create_topic("mine", partitions=1, replicas=1, config={}), "Create on the topic mine"),
        (lambda admin: admin.alter_config("orders", {"retention.ms": "1"}), "AlterConfigs on the topic orders"),
        (lambda admin: admin.delete_topics(["orders"]), "Delete on the topic orders"),
        (lambda admin: admin.group("billing"), "Describe on the group billing"),
        (
            lambda admin: admin.alter_group_offsets("billing", {TopicPartition("orders", 0): 0}),
            "Read on the group billing",
        ),
        (lambda admin: admin.delete_group("billing"), "Delete on the group billing"),
        (lambda admin: _send(admin, "orders"), "Describe on the topic orders"),
        (lambda admin: TopicTailReader(admin.connection, "orders").read(), "Read on the topic orders"),
    ],
)
def test_a_right_that_is_missing_is_named(
    tmp_path: Path, secured: Secured, owner: Admin, act: Callable[[Admin], object], missing: str
) -> None:
    assert owner.topic("orders").partitions
    with pytest.raises(AuthorizationError) as caught:
        act(guest(secured, tmp_path))
    assert f"the right {missing} is missing" in str(caught.value)
    operation, *_, name = missing.split()
    assert f"--operation {operation} " in caught.value.hint
    assert caught.value.hint.endswith(name)


def _send(admin: Admin, topic: str) -> None:
    with Producer(admin.connection) as producer:
        producer.send(topic, b"{}")


def test_groups_that_may_not_be_seen_are_not_called_none(
    tmp_path: Path, secured: Secured, owner: Admin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert owner.can_see_all_groups()
    assert "billing" in owner.group_names()
    limited = guest(secured, tmp_path)
    assert not limited.can_see_all_groups()
    monkeypatch.setattr("riverrun.cli.groups.open_admin", lambda _: (None, limited))
    assert run(["groups"]) == 0
    said = capsys.readouterr().err
    assert "There are no consumer groups" not in said
    assert "the right Describe on the group" in said
