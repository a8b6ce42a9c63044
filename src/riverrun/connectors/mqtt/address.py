"""The address and login of the MQTT broker: from the connector's own options, else from the settings."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from riverrun.config import MqttSettings
from riverrun.config.secret import Secret
from riverrun.config.spec import is_loopback
from riverrun.errors import ConfigError
from riverrun.model.connectors.mqtt import mqtt

PORTS = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True)
class Address:
    """A broker and a login. `ca_file` empty: the broker's certificate is checked with the system's."""

    host: str
    port: int
    secured: bool = False
    username: str = ""
    password: Secret = Secret()  # noqa: RUF009  -- it is never changed
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: Secret = Secret()  # noqa: RUF009

    def __str__(self) -> str:
        return f"{'mqtts' if self.secured else 'mqtt'}://{self.host}:{self.port}"

    def tls(self) -> ssl.SSLContext | None:
        """Checks the broker's certificate and sends ours; None without TLS. OSError for an unusable file."""
        if not self.secured:
            return None
        context = ssl.create_default_context(cafile=self.ca_file or None)
        if self.certificate_file:
            context.load_cert_chain(self.certificate_file, self.key_file or None, self.key_password.reveal() or None)
        return context


def parse_url(url: str, *, where: str) -> tuple[str, int, bool]:
    """Host, port and whether TLS is used. `where` names the setting in the error."""
    expected = 'write "mqtt://HOST:PORT", or "mqtts://HOST:PORT" with TLS'
    try:
        url_parts = urlsplit(url)
        host, port = url_parts.hostname, url_parts.port
    except ValueError as error:
        raise ConfigError([f"{where} is no address ({error}): {expected}"]) from error
    if url_parts.scheme not in PORTS or not host:
        raise ConfigError([f"{where} is {_shown(url)!r}: {expected}"])
    if url_parts.username is not None or url_parts.password is not None:
        raise ConfigError([f"{where} holds a login, which does not belong there: use username and password"])
    if url_parts.path not in ("", "/") or url_parts.query or url_parts.fragment:
        raise ConfigError([f"{where} is {url!r}, and nothing may follow the port: {expected}"])
    return host, port or PORTS[url_parts.scheme], url_parts.scheme == "mqtts"


def broker_address(
    declared: mqtt, settings: MqttSettings, root: Path, secret: Callable[[str, str], Secret], name: str
) -> Address:
    """The broker of a connector. With its own url, the login of the settings is not used: that is another broker's.

    Paths of certificates are relative to the project's folder. `secret` resolves a reference.
    """
    url, where = (declared.url, f"url of the connector {name}") if declared.url else (settings.url, "mqtt.url")
    if not url:
        raise ConfigError(
            [f'mqtt.url is not set, and the connector {name} names no broker: write [mqtt] url = "mqtt://…"']
        )
    host, port, secured = parse_url(url, where=where)
    own = bool(declared.url) and parse_url(declared.url, where=where)[:2] != _settings_host(settings)
    username = declared.username or ("" if own else settings.username)
    password = secret(declared.password, f"password of the connector {name}")
    if not password and not own:
        password = settings.password
    files = {"ca": settings.ssl_ca_file, "certificate": settings.ssl_certificate_file, "key": settings.ssl_key_file}
    paths = {kind: str(root / Path(path).expanduser()) if path else "" for kind, path in files.items()}
    if password and not username:
        raise ConfigError([f"the connector {name} has a password for {host} and no username"])
    if password and not secured and not is_loopback(host) and not settings.insecure:
        raise ConfigError(
            [
                f"the connector {name} would send its password to {host} without TLS, for anybody on the way to read: write "
                f"mqtts://, or mqtt.insecure = true if the network is all yours"
            ]
        )
    if not secured and settings.ssl_certificate_file:
        raise ConfigError(
            [f"mqtt.ssl_certificate_file is set, and {where} is {url!r}, which has no TLS: write mqtts://"]
        )
    return Address(
        host,
        port,
        secured,
        username,
        password,
        paths["ca"],
        paths["certificate"],
        paths["key"],
        settings.ssl_key_password,
    )


def _settings_host(settings: MqttSettings) -> tuple[str, int] | None:
    return parse_url(settings.url, where="mqtt.url")[:2] if settings.url else None


def _shown(url: str) -> str:
    """The address without what may be a password."""
    return f"…@{url.rpartition('@')[2]}" if "@" in url else url
