"""Logins in the words of the Java client."""

from pathlib import Path
from typing import Any

import pytest

from riverrun.config import KafkaSettings, Secret
from riverrun.errors import ConfigError
from riverrun.kafka.connection import Connection
from riverrun.kafka.java_client import java_properties


def properties(**settings: Any) -> dict[str, str]:
    return java_properties(Connection(KafkaSettings(bootstrap_servers="a:1", **settings)))


def test_nothing_but_the_address_without_a_login() -> None:
    assert properties() == {"bootstrap.servers": "a:1"}


def test_sasl_with_a_password_that_needs_quoting(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("CA")
    found = properties(
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="ann",
        sasl_password=Secret('a"b\\c'),
        ssl_ca_file=str(tmp_path / "ca.pem"),
    )
    assert found["sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="a\\"b\\\\c";'
    )
    assert (found["ssl.truststore.type"], found["ssl.truststore.certificates"]) == ("PEM", "CA")


def test_oauth() -> None:
    found = properties(
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        oauth_token_url="https://id.example/token",
        oauth_client_id="me",
        oauth_client_secret=Secret("s"),
        oauth_scope="kafka",
    )
    assert found["sasl.oauthbearer.token.endpoint.url"] == "https://id.example/token"
    assert 'clientId="me" clientSecret="s" scope="kafka";' in found["sasl.jaas.config"]


def test_a_key_and_its_certificate(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("KEY")
    (tmp_path / "cert").write_text("CERT")
    found = properties(ssl_certificate_file=str(tmp_path / "cert"), ssl_key_file=str(tmp_path / "key"))
    assert (found["ssl.keystore.key"], found["ssl.keystore.certificate.chain"]) == ("KEY", "CERT")
    with pytest.raises(ConfigError, match=r"kafka\.ssl_key_file: /nowhere cannot be read"):
        properties(ssl_certificate_file=str(tmp_path / "cert"), ssl_key_file="/nowhere")


def test_librdkafkas_own_settings_are_left_out() -> None:
    found = properties(client={"socket.keepalive.enable": "true", "client.id": "me"})
    assert found == {"bootstrap.servers": "a:1", "client.id": "me"}
