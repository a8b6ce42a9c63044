"""Who may post: API keys by name, each valid for all topics or for some. The server keeps only their hashes."""

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

from riverrun.config.private_files import write_private
from riverrun.config.secret import Secret, resolve_secret
from riverrun.config.spec import IngestSettings, split_list
from riverrun.connectors.http.responses import RequestRejectedError
from riverrun.errors import ConfigError
from riverrun.model.suggest import nearest

# The name of the key that riverrun generates.
GENERATED_KEY_NAME = "riverrun"
# The minimum length of a key that a person made.
MIN_KEY_LENGTH = 16


@dataclass(frozen=True)
class ApiKey:
    name: str
    digest: bytes
    # None: all topics.
    topics: frozenset[str] | None = None


class ApiKeys:
    """The valid keys; none: whoever reaches us may post."""

    def __init__(self, keys: tuple[ApiKey, ...] = ()) -> None:
        self._keys = keys

    @property
    def required(self) -> bool:
        return bool(self._keys)

    def authorize(self, headers: Headers, topic: str = "") -> str:
        """The name of a request's key. Rejected with 401 without a valid one, with 403 if it is not for the topic. Takes the
        same time whichever it is."""
        if not self._keys:
            return ""
        digest = key_digest(_presented_key(headers))
        match = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                match = key
        if match is None:
            raise RequestRejectedError(
                401,
                "UNAUTHORIZED",
                "A key is needed: `Authorization: Bearer KEY`, `X-Api-Key: KEY`, or as the password of basic authentication",
                headers={"WWW-Authenticate": 'Bearer realm="riverrun"'},
            )
        if topic and match.topics is not None and topic not in match.topics:
            raise RequestRejectedError(403, "FORBIDDEN", f"The key {match.name} is not for {topic}")
        return match.name


def key_digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _presented_key(headers: Headers) -> str:
    kind, _, rest = headers.get("authorization", "").strip().partition(" ")
    if kind.lower() == "bearer":
        return rest.strip()
    if kind.lower() == "basic":
        with contextlib.suppress(binascii.Error, UnicodeDecodeError, ValueError):
            return base64.b64decode(rest.strip(), validate=True).decode().partition(":")[2]
        return ""
    return headers.get("x-api-key", "").strip()


def load_api_keys(
    settings: IngestSettings, home: Path, root: Path, topics: frozenset[str], environ: Mapping[str, str] | None = None
) -> tuple[ApiKeys, Path | None]:
    """The keys of the settings, and the generated one; the path of that if it was generated just now.

    No keys if only this machine may post and the settings ask for none. ConfigError with all that is wrong."""
    if not (settings.beyond or settings.require_key or settings.keys):
        return ApiKeys(), None
    problems: list[str] = []
    keys: list[ApiKey] = []
    for name, reference in settings.keys.items():
        try:
            secret = resolve_secret(reference, f"ingest.keys.{name}", root, environ)
        except ConfigError as error:
            problems += error.problems
            continue
        if len(secret.reveal()) < MIN_KEY_LENGTH:
            problems.append(f"ingest.keys.{name} has fewer than {MIN_KEY_LENGTH} characters: it could be guessed")
        keys.append(ApiKey(name, key_digest(secret.reveal()), _allowed_topics(name, settings, topics, problems)))
    if problems:
        raise ConfigError(problems)
    own, created_path = generated_key(home)
    return ApiKeys((*keys, ApiKey(GENERATED_KEY_NAME, key_digest(own.reveal())))), created_path


def _allowed_topics(
    name: str, settings: IngestSettings, known_topics: frozenset[str], problems: list[str]
) -> frozenset[str] | None:
    if name not in settings.key_topics:
        return None
    named = frozenset(split_list(settings.key_topics[name]))
    for topic in sorted(named - known_topics):
        near = nearest(topic, known_topics)
        hint = f": did you mean {near}?" if near else ""
        problems.append(f"ingest.key_topics.{name} names {topic}, which takes no records by HTTP{hint}")
    return named


def generated_key(home: Path) -> tuple[Secret, Path | None]:
    """The key in `.riverrun/ingest-key.txt`, and its path if it was just generated: 160 bits, readable by this user only."""
    path = home / "ingest-key.txt"
    with contextlib.suppress(FileNotFoundError):
        if key := path.read_text(encoding="utf-8").strip():
            return Secret(key), None
    home.mkdir(parents=True, exist_ok=True)
    generated = secrets.token_hex(20)
    write_private(path, generated + "\n")
    return Secret(generated), path
