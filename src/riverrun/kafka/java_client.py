"""The same cluster and login as properties of Kafka's Java client, for what runs on the JVM."""

from riverrun.kafka.connection import Connection, read_pem

_SECURITY_PACKAGE = "org.apache.kafka.common.security"
# The properties of [kafka.client] with the same name in the Java client. The rest is librdkafka's own.
_SHARED_PROPERTIES = {
    "client.id",
    "client.rack",
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retry.backoff.ms",
    "socket.connection.setup.timeout.ms",
}


def java_properties(connection: Connection) -> dict[str, str]:
    """Properties for a Java consumer or producer."""
    kafka = connection.settings
    properties = {"bootstrap.servers": kafka.bootstrap_servers}
    if kafka.security_protocol != "PLAINTEXT":
        properties["security.protocol"] = kafka.security_protocol
    if kafka.ssl_ca_file:
        # By content, like the key: a path would have to exist on every machine of a cluster.
        certificates = read_pem(kafka.ssl_ca_file, "kafka.ssl_ca_file")
        properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": certificates}
    if kafka.ssl_certificate_file and kafka.ssl_key_file:
        properties |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": read_pem(kafka.ssl_certificate_file, "kafka.ssl_certificate_file"),
            "ssl.keystore.key": read_pem(kafka.ssl_key_file, "kafka.ssl_key_file"),
        }
        if kafka.ssl_key_password:
            properties["ssl.key.password"] = kafka.ssl_key_password.reveal()
    if kafka.sasl_mechanism == "OAUTHBEARER":
        properties |= {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": kafka.oauth_token_url,
            "sasl.login.callback.handler.class": f"{_SECURITY_PACKAGE}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.jaas.config": _jaas_config(
                "oauthbearer.OAuthBearer",
                clientId=kafka.oauth_client_id,
                clientSecret=kafka.oauth_client_secret.reveal(),
                **({"scope": kafka.oauth_scope} if kafka.oauth_scope else {}),
            ),
        }
    elif kafka.sasl_mechanism:
        module = "plain.Plain" if kafka.sasl_mechanism == "PLAIN" else "scram.Scram"
        properties |= {
            "sasl.mechanism": kafka.sasl_mechanism,
            "sasl.jaas.config": _jaas_config(
                module, username=kafka.sasl_username, password=kafka.sasl_password.reveal()
            ),
        }
    return properties | {name: value for name, value in kafka.client.items() if name in _SHARED_PROPERTIES}


def _jaas_config(module: str, **options: str) -> str:
    quoted = " ".join(f'{name}="{_escape(value)}"' for name, value in options.items())
    return f"{_SECURITY_PACKAGE}.{module}LoginModule required {quoted};"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
