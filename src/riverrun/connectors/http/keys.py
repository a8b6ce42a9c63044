"""Who may post: keys by name, each good for all topics or for some. The server keeps hashes of them only."""

import base64
import binascii
import contextlib
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers

from riverrun.config.private import write_private
from riverrun.config.secret import Secret, secret_of
from riverrun.config.spec import IngestSettings, listed
from riverrun.connectors.http.answers import Refused
from riverrun.errors import ConfigError
from riverrun.model.near import nearest

# The key that riverrun makes.
OWN = "riverrun"
# A key of a person's own making has to be at least as long.
LEAST = 16


@dataclass(frozen=True)
class Key:
    name: str
    digest: bytes
    # None: all.
    topics: frozenset[str] | None = None


class Keys:
    """The keys that are good; none: whoever reaches us may post."""

    def __init__(self, keys: tuple[Key, ...] = ()) -> None:
        self._keys = keys

    @property
    def required(self) -> bool:
        return bool(self._keys)

    def check(self, headers: Headers, topic: str = "") -> str:
        """The name of the key a request has. Refused with 401 without a good one, with 403 where it is not for the topic.
        The same time is spent whichever it is."""
        if not self._keys:
            return ""
        digest = digest_of(_given(headers))
        found = None
        for each in self._keys:
            if hmac.compare_digest(each.digest, digest):
                found = each
        if found is None:
            raise Refused(
                401,
                "UNAUTHORIZED",
                "A key is needed: `Authorization: Bearer KEY`, `X-Api-Key: KEY`, or as the password of basic authentication",
                headers={"WWW-Authenticate": 'Bearer realm="riverrun"'},
            )
        if topic and found.topics is not None and topic not in found.topics:
            raise Refused(403, "FORBIDDEN", f"The key {found.name} is not for {topic}")
        return found.name


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _given(headers: Headers) -> str:
    kind, _, rest = headers.get("authorization", "").strip().partition(" ")
    if kind.lower() == "bearer":
        return rest.strip()
    if kind.lower() == "basic":
        with contextlib.suppress(binascii.Error, UnicodeDecodeError, ValueError):
            return base64.b64decode(rest.strip(), validate=True).decode().partition(":")[2]
        return ""
    return headers.get("x-api-key", "").strip()


def keys_of(
    settings: IngestSettings, home: Path, root: Path, topics: frozenset[str], environ: Mapping[str, str] | None = None
) -> tuple[Keys, Path | None]:
    """The keys of the settings, and the one of our own; the path of that where it was made just now.

    Without keys where only this machine may post and nobody asked for one. ConfigError with all that is wrong."""
    if not (settings.beyond or settings.require_key or settings.keys):
        return Keys(), None
    problems: list[str] = []
    found: list[Key] = []
    for name, reference in settings.keys.items():
        try:
            secret = secret_of(reference, f"ingest.keys.{name}", root, environ)
        except ConfigError as error:
            problems += error.problems
            continue
        if len(secret.reveal()) < LEAST:
            problems.append(f"ingest.keys.{name} has fewer than {LEAST} characters: it could be guessed")
        found.append(Key(name, digest_of(secret.reveal()), _topics(name, settings, topics, problems)))
    if problems:
        raise ConfigError(problems)
    own, made = own_key(home)
    return Keys((*found, Key(OWN, digest_of(own.reveal())))), made


def _topics(name: str, settings: IngestSettings, known: frozenset[str], problems: list[str]) -> frozenset[str] | None:
    if name not in settings.key_topics:
        return None
    named = frozenset(listed(settings.key_topics[name]))
    for each in sorted(named - known):
        near = nearest(each, known)
        hint = f": did you mean {near}?" if near else ""
        problems.append(f"ingest.key_topics.{name} names {each}, which takes no records by HTTP{hint}")
    return named


def own_key(home: Path) -> tuple[Secret, Path | None]:
    """The key in `.riverrun/ingest-key.txt`, and its path where it was made just now: 160 bits, no other user reads it."""
    path = home / "ingest-key.txt"
    with contextlib.suppress(FileNotFoundError):
        if found := path.read_text(encoding="utf-8").strip():
            return Secret(found), None
    home.mkdir(parents=True, exist_ok=True)
    made = secrets.token_hex(20)
    write_private(path, made + "\n")
    return Secret(made), path
