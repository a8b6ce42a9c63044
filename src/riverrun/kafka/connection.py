"""The address of the cluster and the login, as properties of the client library."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from riverrun.config import KafkaSettings, Project, RegistrySettings, load
from riverrun.errors import ConfigError, NotRunningError

_SSL_FILE_PROPERTIES = {
    "ssl.ca.location": "ssl_ca_file",
    "ssl.certificate.location": "ssl_certificate_file",
    "ssl.key.location": "ssl_key_file",
}
# The librdkafka properties that take the content of a file instead of its path.
_BY_CONTENT = {name: name.replace(".location", ".pem") for name in _SSL_FILE_PROPERTIES}
# A bundle of certificates may have names between them, in any encoding.
_PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)


@dataclass(frozen=True)
class Connection:
    """A cluster, and the registry of its schemas. Cheap to create and to pass around; nothing is opened until a client is
    created from it."""

    settings: KafkaSettings
    registry: RegistrySettings = field(default_factory=RegistrySettings)

    @property
    def bootstrap_servers(self) -> str:
        return self.settings.bootstrap_servers

    def properties(self, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """librdkafka's properties: ours, then the user's [kafka.client], then `extra`; the last one wins."""
        kafka = self.settings
        properties: dict[str, Any] = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "client.id": client_id(),
            # Reconnect quickly: a broker that restarts is back in seconds, and the default grows to 10 s.
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
            "log.connection.close": False,
        }
        if kafka.security_protocol != "PLAINTEXT":
            properties["security.protocol"] = kafka.security_protocol
        properties |= {name: value for name, field in _SSL_FILE_PROPERTIES.items() if (value := getattr(kafka, field))}
        if kafka.ssl_key_password:
            properties["ssl.key.password"] = kafka.ssl_key_password.reveal()
        if kafka.sasl_mechanism == "OAUTHBEARER":
            properties |= {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": kafka.oauth_token_url,
                "sasl.oauthbearer.client.id": kafka.oauth_client_id,
                "sasl.oauthbearer.client.secret": kafka.oauth_client_secret.reveal(),
            }
            if kafka.oauth_scope:
                properties["sasl.oauthbearer.scope"] = kafka.oauth_scope
        elif kafka.sasl_mechanism:
            properties |= {
                "sasl.mechanism": kafka.sasl_mechanism,
                "sasl.username": kafka.sasl_username,
                "sasl.password": kafka.sasl_password.reveal(),
            }
        return properties | dict(kafka.client) | dict(extra or {})


def with_pem_contents(properties: Mapping[str, Any]) -> dict[str, Any]:
    """librdkafka's properties for a process on another machine: certificates and key themselves, not the paths of their
    files. A folder of certificates stays a path."""
    inlined = dict(properties)
    for name, by_content in _BY_CONTENT.items():
        path = inlined.get(name)
        if path and not Path(path).is_dir():
            del inlined[name]
            inlined[by_content] = read_pem(path, f"kafka.{_SSL_FILE_PROPERTIES[name]}")
    return inlined


def read_pem(path: str, setting: str) -> str:
    """The certificates or keys in a file, without the text between them."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError([f"{setting}: {path} cannot be read: {error}"]) from error
    blocks = [block[0] for block in _PEM_BLOCK.finditer(text)]
    return "\n".join([*blocks, ""]) if blocks else text


def client_id() -> str:
    """The name of this process for brokers, `riverrun groups` and logs: program and pid, such as `watch-4711`."""
    # `python -c …` has no program name.
    program = Path(sys.argv[0] if sys.argv else "").stem.strip("_").removeprefix("-c") or "python"
    return f"{'riverrun' if program == 'main' else program}-{os.getpid()}"


def connect(
    bootstrap_servers: str = "", *, project: str | Path | None = None, profile: str = "", **settings: Any
) -> Connection:
    """The cluster to use: the one named here, else the one the project's settings name, else the one `riverrun up` runs.

    Keywords are settings of [kafka] (`sasl_username="…"`), which override all other sources of settings.
    """
    flags = {f"kafka.{name}": value for name, value in settings.items()}
    if bootstrap_servers:
        flags["kafka.bootstrap_servers"] = bootstrap_servers
    loaded = load(Project(Path(project).resolve()) if project else None, flags=flags, profile=profile)
    return require_cluster(loaded.settings.kafka, loaded.project, loaded.settings.registry)


def as_connection(connection: "Connection | str | None") -> Connection:
    """A connection from a connection, an address (host:port, …), or None for the project's cluster."""
    return connection if isinstance(connection, Connection) else connect(connection or "")


def require_cluster(settings: KafkaSettings, project: Project, registry: RegistrySettings | None = None) -> Connection:
    """A connection to the settings' cluster; NotRunningError when they name none and the project runs none."""
    if not settings.bootstrap_servers:
        raise NotRunningError(
            f"No Kafka runs for the project {project.root}",
            hint="Start one with `riverrun up --detach`, or name one in kafka.bootstrap_servers",
            project=str(project.root),
        )
    return Connection(settings, registry or RegistrySettings())
