"""Maven's settings.xml as far as a download needs it: mirrors, logins, proxies, the local repository.

Maven users have configured there, once, where their jars come from; riverrun follows it without Maven. As in Maven, the
user's file (~/.m2/settings.xml) goes before the installation's (conf/settings.xml), and both are used. Values are
filled in (`${env.NAME}`, `${user.home}`) only when they are needed, so an unset variable in a part we do not use is no
error.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

from riverrun.config import Secret
from riverrun.errors import ConfigError

CENTRAL_ID = "central"
# Where Debian's Maven has its conf/settings.xml.
SYSTEM_FILES = (Path("/etc/maven/settings.xml"),)

_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
# Maven's encrypted form, after placeholders are filled in.
_ENCRYPTED = re.compile(r"\{[^{}]+\}")


@dataclass(frozen=True)
class Mirror:
    """A `<mirror>`: replaces the repositories that `mirror_of` names."""

    id: str
    url: str
    mirror_of: str
    blocked: bool
    file: Path


@dataclass(frozen=True)
class RepositoryLogin:
    """A `<server>`: the login for the repository or mirror of this id."""

    username: str = ""
    password: Secret = field(default_factory=Secret)
    headers: tuple[tuple[str, Secret], ...] = ()


@dataclass(frozen=True)
class MavenProxy:
    """A `<proxy>` that is active."""

    id: str
    protocol: str
    host: str
    port: int
    username: str
    password: Secret
    no_proxy: tuple[str, ...]
    file: Path

    def serves(self, host: str) -> bool:
        """Whether requests to this host go through the proxy."""
        return not any(_wildcard(pattern).fullmatch(host.lower()) for pattern in self.no_proxy)


class MavenSettings:
    """All settings.xml files of a user; the first file with a value wins."""

    def __init__(self, files: list[tuple[Path, ET.Element]], environ: Mapping[str, str], home: Path) -> None:
        self._files = files
        self._environ = environ
        self._home = home

    def local_repository(self) -> Path:
        """Where Maven keeps what it has downloaded."""
        for path, root in self._files:
            if named := _text(root, "localRepository"):
                return Path(self._interpolate(named, path, "localRepository"))
        return self._home / ".m2" / "repository"

    def mirror(self, repository_url: str) -> Mirror | None:
        """The mirror that Maven would use for the repository `central`, or None.

        A mirror that names the id itself goes before one that matches by pattern.
        """
        mirrors = self._mirrors()
        for mirror in mirrors:
            if mirror.mirror_of == CENTRAL_ID:
                return mirror
        for mirror in mirrors:
            if mirror_covers(mirror.mirror_of, CENTRAL_ID, repository_url):
                return mirror
        return None

    def mirror_at(self, url: str) -> Mirror | None:
        """The mirror with this address, if a settings.xml has one."""
        return next((mirror for mirror in self._mirrors() if mirror.url.rstrip("/") == url.rstrip("/")), None)

    def central_url(self) -> tuple[str, Path] | None:
        """Another address for the repository `central`, when an active profile sets one, and the file that does."""
        for path, root in self._files:
            for profile in self._active_profiles(root):
                for repository in _children(_child(profile, "repositories"), "repository"):
                    if _text(repository, "id") == CENTRAL_ID and (url := _text(repository, "url")):
                        return self._interpolate(url, path, "repository central"), path
        return None

    def login(self, server_id: str) -> RepositoryLogin:
        """The login in the `<server>` of this id; an empty login when there is none."""
        for path, root in self._files:
            for server in _children(_child(root, "servers"), "server"):
                if _text(server, "id") == server_id:
                    return self._login(server, path, f"server {server_id}")
        return RepositoryLogin()

    def proxy(self, scheme: str) -> MavenProxy | None:
        """The active proxy for URLs of this scheme; one for the other scheme serves as well, as in Maven."""
        proxies = list(self._proxies())
        same = (proxy for proxy in proxies if proxy.protocol == scheme)
        return next(same, None) or next(iter(proxies), None)

    def _mirrors(self) -> list[Mirror]:
        mirrors: dict[str, Mirror] = {}
        for path, root in self._files:
            for number, mirror in enumerate(_children(_child(root, "mirrors"), "mirror")):
                identity = _text(mirror, "id") or f"{path}#{number}"
                layouts = _text(mirror, "mirrorOfLayouts") or "default"
                if identity in mirrors or not ({"default", "*"} & set(_split(layouts, ","))):
                    continue
                url = self._interpolate(_text(mirror, "url"), path, f"mirror {identity}")
                blocked = _text(mirror, "blocked").lower() == "true"
                mirrors[identity] = Mirror(identity, url, _text(mirror, "mirrorOf"), blocked, path)
        return list(mirrors.values())

    def _active_profiles(self, root: ET.Element) -> Iterator[ET.Element]:
        named = {(child.text or "").strip() for child in _children(_child(root, "activeProfiles"), "activeProfile")}
        for profile in _children(_child(root, "profiles"), "profile"):
            by_default = _text(_child(profile, "activation"), "activeByDefault").lower() == "true"
            if _text(profile, "id") in named or by_default:
                yield profile

    def _login(self, server: ET.Element, path: Path, setting: str) -> RepositoryLogin:
        headers = _children(_child(_child(server, "configuration"), "httpHeaders"), "property")
        return RepositoryLogin(
            self._interpolate(_text(server, "username"), path, setting),
            self._secret(_text(server, "password"), path, setting),
            tuple((_text(header, "name"), self._secret(_text(header, "value"), path, setting)) for header in headers),
        )

    def _proxies(self) -> Iterator[MavenProxy]:
        for path, root in self._files:
            for proxy in _children(_child(root, "proxies"), "proxy"):
                if (_text(proxy, "active") or "true").lower() != "true" or not (host := _text(proxy, "host")):
                    continue
                identity = _text(proxy, "id") or host
                port = self._interpolate(_text(proxy, "port") or "8080", path, f"proxy {identity}")
                if not port.isdecimal():
                    raise ConfigError([f"{path}: proxy {identity}: its port {port!r} is not a number"], path=path)
                yield MavenProxy(
                    identity,
                    (_text(proxy, "protocol") or "http").lower(),
                    self._interpolate(host, path, f"proxy {identity}"),
                    int(port),
                    self._interpolate(_text(proxy, "username"), path, f"proxy {identity}"),
                    self._secret(_text(proxy, "password"), path, f"proxy {identity}"),
                    tuple(part.lower() for part in re.split(r"[|,]", _text(proxy, "nonProxyHosts")) if part.strip()),
                    path,
                )

    def _secret(self, text: str, path: Path, setting: str) -> Secret:
        value = self._interpolate(text, path, setting)
        if _ENCRYPTED.search(value):
            raise ConfigError(
                [
                    f"{path}: {setting}: its password is encrypted by Maven, which riverrun cannot undo; write "
                    "${env.NAME} there instead, or set RIVERRUN_ARTIFACTS_MAVEN_USERNAME and "
                    "RIVERRUN_ARTIFACTS_MAVEN_PASSWORD"
                ],
                path=path,
            )
        return Secret(value)

    def _interpolate(self, text: str, path: Path, setting: str) -> str:
        def value(match: re.Match[str]) -> str:
            name = match[1]
            if name == "user.home":
                return str(self._home)
            if name.startswith("env.") and (variable := self._environ.get(name.removeprefix("env."))) is not None:
                return variable
            reason = "is not set" if name.startswith("env.") else "is a value only Maven knows"
            raise ConfigError([f"{path}: {setting} asks for ${{{name}}}, which {reason}"], path=path)

        return _PLACEHOLDER.sub(value, text)


def read_maven_settings(environ: Mapping[str, str], home: Path) -> MavenSettings:
    """Read the settings.xml files there are; one that is no XML is an error, as it is for Maven."""
    files: list[tuple[Path, ET.Element]] = []
    read_paths: set[Path] = set()
    for path in settings_files(environ, home):
        try:
            real = path.resolve()
            if real in read_paths or not path.is_file():
                continue
            read_paths.add(real)
            files.append((path, ET.fromstring(path.read_bytes())))  # noqa: S314  -- the user's own file
        except ET.ParseError as error:
            raise ConfigError([f"{path}: this is not XML: {error}"], path=path) from error
        except OSError as error:
            raise ConfigError([f"{path}: cannot be read: {error.strerror}"], path=path) from error
    return MavenSettings(files, environ, home)


def settings_files(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Where settings.xml may be, the user's first."""
    installations = [environ[name] for name in ("MAVEN_HOME", "M2_HOME") if environ.get(name)]
    return [
        home / ".m2" / "settings.xml",
        *(Path(installation) / "conf" / "settings.xml" for installation in installations),
        *SYSTEM_FILES,
    ]


def mirror_covers(mirror_of: str, repository_id: str, repository_url: str) -> bool:
    """Whether a `<mirrorOf>` covers a repository: an id, `*`, `external:*`, `external:http:*`, `!id`, or a list of
    them.

    An exact id or its exclusion decides at once; a wildcard can still be excluded by a later `!id`.
    """
    covered = False
    for pattern in _split(mirror_of, ","):
        if pattern.startswith("!"):
            if pattern[1:] == repository_id:
                return False
        elif pattern == repository_id:
            return True
        elif pattern in _WILDCARDS and _WILDCARDS[pattern](repository_url):
            covered = True
    return covered


def _external(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme != "file" and (parts.hostname or "") not in {"localhost", "127.0.0.1"}


_WILDCARDS: Mapping[str, Callable[[str], bool]] = {
    "*": lambda _: True,
    "external:*": _external,
    "external:http:*": lambda url: _external(url) and urlsplit(url).scheme == "http",
}


def _split(text: str, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator) if part.strip()]


def _wildcard(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in pattern.strip().split("*")))


# settings.xml may or may not declare a namespace, so tags are compared by their local name.
def _children(element: ET.Element | None, tag: str) -> list[ET.Element]:
    return [] if element is None else [child for child in element if child.tag.rpartition("}")[2] == tag]


def _child(element: ET.Element | None, tag: str) -> ET.Element | None:
    return next(iter(_children(element, tag)), None)


def _text(element: ET.Element | None, tag: str) -> str:
    child = _child(element, tag)
    return (child.text or "").strip() if child is not None else ""
