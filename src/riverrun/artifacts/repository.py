"""Where files come from, and how to get there: the address, the login, the proxy.

The first of these that is there: the setting `artifacts.maven_url` (a flag, a variable or the project file), the mirror in
Maven's settings.xml, Maven Central. Nothing here opens a connection.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from riverrun.artifacts.maven_settings import CENTRAL_ID, MavenProxy, MavenSettings, Mirror, RepositoryLogin
from riverrun.config import ArtifactSettings, Secret
from riverrun.errors import ConfigError, RepositoryError

CENTRAL_URL = "https://repo.maven.apache.org/maven2"

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Repository:
    """A Maven repository. `url` has no login in it and no slash at its end; `origin` says who named it."""

    url: str
    origin: str
    login: RepositoryLogin = field(default_factory=RepositoryLogin)

    def address(self, path: str) -> str:
        return f"{self.url}/{quote(path)}"

    @property
    def folder(self) -> Path | None:
        """The folder of a `file:` repository, else None."""
        parts = urlsplit(self.url)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None

    def __str__(self) -> str:
        return f"{self.url} ({self.origin})"


@dataclass(frozen=True)
class Proxy:
    """A proxy to go through. `url` has no login in it."""

    url: str
    origin: str
    username: str = ""
    password: Secret = field(default_factory=Secret)


def choose_repository(settings: ArtifactSettings, maven: MavenSettings) -> Repository:
    """The repository to fetch from."""
    given = RepositoryLogin(settings.maven_username, settings.maven_password)
    if settings.maven_url:
        url, own = split_login(settings.maven_url, "artifacts.maven_url")
        return Repository(url, "artifacts.maven_url", _first_login(given, own, _login_for(maven.mirror_at(url), maven)))
    central, file = maven.central_url() or (CENTRAL_URL, None)
    if mirror := maven.mirror(central):
        if mirror.blocked:
            raise RepositoryError(
                f"{mirror.file} blocks Maven Central by its mirror {mirror.id!r}",
                hint="Name a repository you may use with --maven-url or artifacts.maven_url",
                mirror=mirror.id,
            )
        url, own = split_login(mirror.url, f"{mirror.file}: mirror {mirror.id}")
        return Repository(
            url, f"mirror {mirror.id!r} in {mirror.file}", _first_login(given, own, maven.login(mirror.id))
        )
    if file is not None:
        url, own = split_login(central, f"{file}: repository {CENTRAL_ID}")
        return Repository(
            url, f"repository {CENTRAL_ID!r} in {file}", _first_login(given, own, maven.login(CENTRAL_ID))
        )
    return Repository(CENTRAL_URL, "Maven Central", given)


def _login_for(mirror: Mirror | None, maven: MavenSettings) -> RepositoryLogin:
    return maven.login(mirror.id) if mirror else RepositoryLogin()


def _first_login(*logins: RepositoryLogin) -> RepositoryLogin:
    return next((login for login in logins if login.username or login.password or login.headers), RepositoryLogin())


def split_login(url: str, origin: str) -> tuple[str, RepositoryLogin]:
    """The address without `user:password@`, and those. An invalid address is an error that does not repeat it."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigError([f"{origin}: this is not an address: {error}"]) from error
    fine = (parts.scheme in {"http", "https"} and host) or (parts.scheme == "file" and parts.path)
    if not fine or parts.query or parts.fragment:
        raise ConfigError(
            [f"{origin}: a repository's address begins with https://, http:// or file:/// and is only a path"]
        )
    netloc = f"[{host}]" if ":" in host else host
    netloc += f":{port}" if port else ""
    bare = urlunsplit((parts.scheme, netloc, parts.path.rstrip("/"), "", ""))
    return bare, RepositoryLogin(unquote(parts.username or ""), Secret(unquote(parts.password or "")))


def choose_proxy(url: str, maven: MavenSettings, environ: Mapping[str, str]) -> Proxy | None:
    """The proxy for this address: Maven's, else the environment's, else none."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if (maven_proxy := maven.proxy(parts.scheme)) is not None:
        return _maven_proxy(maven_proxy) if maven_proxy.serves(host) else None
    if _excluded(host, parts.port, _variable(environ, "no_proxy")[1]):
        return None
    for name in (f"{parts.scheme}_proxy", "all_proxy"):
        variable, value = _variable(environ, name)
        if value:
            return _environment_proxy(variable, value)
    return None


def _maven_proxy(proxy: MavenProxy) -> Proxy:
    host = f"[{proxy.host}]" if ":" in proxy.host else proxy.host
    return Proxy(f"http://{host}:{proxy.port}", f"proxy {proxy.id!r} in {proxy.file}", proxy.username, proxy.password)


def _environment_proxy(variable: str, value: str) -> Proxy:
    address = value if "://" in value else f"http://{value}"
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", None
    if parts.scheme not in {"http", "https"} or not host:
        raise ConfigError(
            [f"environment {variable}: riverrun needs a proxy's address that begins with http:// or https://"]
        )
    host = f"[{host}]" if ":" in host else host
    return Proxy(
        f"{parts.scheme}://{host}:{port or _PORTS[parts.scheme]}",
        f"environment {variable}",
        unquote(parts.username or ""),
        Secret(unquote(parts.password or "")),
    )


def _variable(environ: Mapping[str, str], name: str) -> tuple[str, str]:
    """The lower-case variable wins over the upper-case one, as in curl."""
    for spelling in (name, name.upper()):
        if environ.get(spelling):
            return spelling, environ[spelling]
    return name, ""


def _excluded(host: str, port: int | None, no_proxy: str) -> bool:
    """Whether NO_PROXY covers a host: `*`, a name (with all names below it), a name with a port, an address, a network."""
    host = host.lower()
    for entry in (part.strip().lower() for part in no_proxy.split(",")):
        name, _, wanted_port = entry.rpartition(":") if entry.count(":") == 1 else (entry, "", "")
        if wanted_port and wanted_port != str(port):
            continue
        name = name.removeprefix("*").lstrip(".")
        if entry == "*" or (name and (host == name or host.endswith(f".{name}"))) or _in_network(host, entry):
            return True
    return False


def _in_network(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
