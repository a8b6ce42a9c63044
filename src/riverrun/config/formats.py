"""The formats of settings' text: durations, sizes, addresses, zones. Each setting names its format in `spec`."""

import ipaddress
import re
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from riverrun.errors import DeclarationError
from riverrun.model.suggest import nearest
from riverrun.model.units import parse_duration_ms, parse_size, suggest_duration

# The longest value a setting may have: some hundred brokers fit.
MAX_CHARACTERS = 10_000
MAX_SHOWN_CHARACTERS = 120

_LOGIN = re.compile(r"://[^/@\s]+@")
_LABEL = re.compile(r"\w(?:[\w-]*\w)?")
_LOCAL_MASTER = re.compile(r"local(\[\s*(\*|[1-9]\d*)\s*(,\s*[1-9]\d*\s*)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*[1-9]\d*\s*,\s*[1-9]\d*\s*,\s*[1-9]\d*\s*\]")


class FormatError(ValueError):
    """A value that does not match its format. `hint` may suggest what was meant."""

    def __init__(self, hint: str = "") -> None:
        super().__init__(hint)
        self.hint = hint


@dataclass(frozen=True)
class SettingFormat:
    """A format: a description for people, and a check that raises FormatError."""

    expected: str
    check: Callable[[str], None]


def format_value(value: Any) -> str:
    """A value for a message: quoted, its login hidden, and shortened."""
    text = hide_login(value) if isinstance(value, str) else value
    return _REPR.repr(text)


def hide_login(text: str) -> str:
    """An address may carry its login: https://user:password@host/."""
    return _LOGIN.sub("://******@", text)


def truncated(text: str, max_characters: int = MAX_SHOWN_CHARACTERS) -> str:
    return text if len(text) <= max_characters else f"{text[: max_characters - 1]}…"


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = MAX_SHOWN_CHARACTERS
_REPR.maxlevel = 2


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean …?` when one known word is close, whatever its case; else an empty string."""
    near = nearest(truncated(word), known)
    return f"; did you mean {near}?" if near else ""


def duration_format(*, allow_zero: bool = False) -> SettingFormat:
    """A duration. With `allow_zero`, "0 s" is one too."""

    def check(text: str) -> None:
        try:
            duration_ms = parse_duration_ms(text, what="it", allow_zero=allow_zero)
        except DeclarationError as error:
            near = suggest_duration(text)
            raise FormatError(f'; did you mean "{near}"?' if near else "") from error
        if duration_ms < 0:
            raise FormatError

    examples = '"1 second", "500 ms" or "0 s"' if allow_zero else '"1 second", "500 ms" or "2 hours"'
    return SettingFormat(f"a duration such as {examples}", check)


def _check_size(text: str) -> None:
    try:
        size = parse_size(text, what="it")
    except DeclarationError as error:
        raise FormatError from error
    if size < 0:
        raise FormatError


SIZE = SettingFormat('a size such as "20 GB" or "512 MiB"', _check_size)


def is_host(text: str, *, brackets: bool = True) -> bool:
    """Whether this is a host's name or an IP address; an IPv6 address in an address with a port is in brackets."""
    if text.startswith("["):
        return brackets and text.endswith("]") and ":" in text and _is_ip(text[1:-1])
    if ":" in text or re.fullmatch(r"[\d.]+", text):
        return _is_ip(text)
    labels = text.removesuffix(".").split(".")
    return len(text) <= 253 and all(len(label) <= 63 and _LABEL.fullmatch(label) for label in labels)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def _check_host(text: str) -> None:
    # An empty value is reported elsewhere, with what to write.
    if text and not is_host(text):
        raise FormatError


def _check_hosts(text: str) -> None:
    for host in filter(None, (part.strip() for part in text.split(","))):
        if not is_host(host):
            raise FormatError(f": {format_value(host)} is none")


def _check_servers(text: str) -> None:
    servers = [part.strip() for part in text.split(",") if part.strip()]
    for server in servers:
        host, colon, port = server.rpartition(":")
        if not (colon and is_host(host) and (":" not in host or host[0] == "[") and _is_port(port)):
            raise FormatError(f": {format_value(server)} is none")
    if not servers:
        raise FormatError


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 1 <= int(text) <= 65535


HOST = SettingFormat("a host name or IP address such as 127.0.0.1 or dash.example.org, without a port", _check_host)
HOSTS = SettingFormat("host names, comma separated, without ports", _check_hosts)
SERVERS = SettingFormat(
    "host:port, comma separated, such as broker-1.example:9092,broker-2.example:9092", _check_servers
)


def address_format(
    example: str, *schemes: str, login: str = "", query: bool = False, path: bool = True
) -> SettingFormat:
    """An address with one of the schemes (http and https, by default).

    `login` is what the address may hold before the @: nothing, "user", or "user:password".
    """
    allowed = schemes or ("http", "https")

    def check(text: str) -> None:
        try:
            parts = urlsplit(text)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            raise FormatError from None
        if any(character.isspace() for character in text) or parts.scheme not in allowed or (port == 0):
            raise FormatError
        if (parts.scheme != "file" or host) and not is_host(host):
            raise FormatError
        if (parts.password is not None and "password" not in login) or (parts.username is not None and not login):
            raise FormatError(": without a login, which has settings of its own")
        if (not query and (parts.query or parts.fragment)) or (not path and parts.path not in ("", "/")):
            raise FormatError(f": nothing may follow the {'path' if path else 'port'}")

    return SettingFormat(f"an address such as {example}", check)


def _check_folder(text: str) -> None:
    # Without a host, HDFS is the one in Hadoop's own configuration (fs.defaultFS).
    if "://" in text and not text.startswith("hdfs:///"):
        parts = text.partition("://")
        address_format("", parts[0], login="user:password").check(text)


FOLDER = SettingFormat("a folder, or an address such as hdfs://namenode:8020/riverrun", _check_folder)


def _check_zone(text: str) -> None:
    from zoneinfo import ZoneInfo, available_timezones

    try:
        ZoneInfo(text)
    except (OSError, ValueError, KeyError):
        # An unknown zone is a KeyError, a name that is a path a ValueError.
        raise FormatError(did_you_mean(text, sorted(available_timezones()))) from None


ZONE = SettingFormat("a time zone such as 'UTC' or 'Europe/Dublin'", _check_zone)


def _check_region(text: str) -> None:
    if not (len(text) == 2 and text.isascii() and text.isalpha() and text.isupper()):
        raise FormatError


REGION = SettingFormat("a country's two letters, such as IE", _check_region)


def _check_master(text: str) -> None:
    if text == "yarn" or _LOCAL_MASTER.fullmatch(text) or _LOCAL_CLUSTER.fullmatch(text):
        return
    scheme, _, rest = text.partition("://")
    if scheme == "spark":
        _check_servers(rest)
    elif scheme == "k8s":
        address_format("").check(rest if "://" in rest else f"https://{rest}")
    else:
        raise FormatError(did_you_mean(text, ("yarn", "local", "local[*]")))


MASTER = SettingFormat(
    "a Spark master such as spark://spark.example:7077, yarn, k8s://https://k8s.example:6443 or local[4]", _check_master
)
