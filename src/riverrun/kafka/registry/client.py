"""A schema registry, over confluent-kafka's own client. Its errors, and those of its HTTP library, are mapped to ours."""

import atexit
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from riverrun.config import RegistrySettings
from riverrun.errors import (
    RegistryError,
    RegistryRefusedError,
    RegistryUnavailableError,
    SchemaUnknownError,
    UsageError,
)

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

# The registry's names of the formats.
SCHEMA_TYPES = {"avro": "AVRO", "json-schema": "JSON"}
# The registry's error codes for a missing subject, version or schema.
_MISSING_CODES = frozenset({40401, 40402, 40403})
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 401, 403, 404


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema as the registry has it."""

    subject: str
    version: int
    id: int
    schema_type: str
    text: str


class Registry:
    """Client of one registry. The schema of an id never changes, and is fetched once."""

    def __init__(self, settings: RegistrySettings) -> None:
        self.settings = settings
        self.url = settings.url
        self._client = _create_client(settings)

    def close(self) -> None:
        """Close its connections. Registries of `registry_of` live as long as the process, and are closed at its end."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def schema(self, schema_id: int) -> tuple[str, str]:
        """The kind and the text of a schema; SchemaUnknownError."""
        with self._mapped_errors(f"asking for the schema {schema_id}"):
            registered = self._client.get_schema(schema_id)
        if registered.references:
            raise SchemaUnknownError(
                f"The schema {schema_id} refers to others, which is not supported",
                hint="Register it with what it refers to inside of it",
                schema_id=schema_id,
            )
        return registered.schema_type or "AVRO", registered.schema_str or ""

    def find_schema_id(self, subject: str, schema_type: str, text: str) -> int:
        """The id under which this very schema is registered; SchemaUnknownError when it is not."""
        with self._mapped_errors(f"looking for the schema of {subject}"):
            registered = self._client.lookup_schema(subject, _schema(schema_type, text))
        return int(registered.schema_id or 0)

    def latest(self, subject: str) -> RegisteredSchema | None:
        versions = self.versions(subject)
        return self.version(subject, versions[-1]) if versions else None

    def versions(self, subject: str) -> list[int]:
        """The versions of a subject, oldest first; none when there is no such subject."""
        try:
            with self._mapped_errors(f"listing the versions of {subject}"):
                return sorted(self._client.get_versions(subject))
        except SchemaUnknownError:
            return []

    def version(self, subject: str, version: int) -> RegisteredSchema:
        with self._mapped_errors(f"asking for version {version} of {subject}"):
            registered = self._client.get_version(subject, version)
        schema = registered.schema
        return RegisteredSchema(
            subject, version, int(registered.schema_id or 0), schema.schema_type or "AVRO", schema.schema_str or ""
        )

    def subjects(self) -> list[str]:
        with self._mapped_errors("listing its subjects"):
            return sorted(self._client.get_subjects())

    def compatibility_level(self) -> str:
        """The compatibility level of subjects that have none of their own. For a single subject without one, Apicurio says
        NONE, so that is not asked."""
        with self._mapped_errors("asking for its compatibility"):
            return str(self._client.get_compatibility())

    def incompatibilities(self, subject: str, schema_type: str, text: str) -> list[str] | None:
        """The registry's objections to this schema as the next version, in its own words; None when it is compatible."""
        path = f"compatibility/subjects/{quote(subject, safe='')}/versions/latest?verbose=true"
        with self._mapped_errors(f"comparing schemas of {subject}"):
            # Not test_compatibility: it does not return the reasons.
            answer: dict[str, Any] = self._client._rest_client.post(path, body=_schema(schema_type, text).to_dict())
        return None if answer.get("is_compatible") else [str(message) for message in answer.get("messages") or []]

    def register(self, subject: str, schema_type: str, text: str) -> int:
        with self._mapped_errors(f"registering the schema of {subject}"):
            return self._client.register_schema(subject, _schema(schema_type, text))

    @contextlib.contextmanager
    def _mapped_errors(self, doing: str) -> Iterator[None]:
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

        try:
            yield
        except SchemaRegistryError as error:
            raise self._translate(error, doing) from error
        except OAuthTokenError as error:
            raise RegistryRefusedError(
                f"No token for the schema registry at {self.url} could be had while {doing}",
                found=str(error),
                url=self.url,
            ) from error
        except RegistryError:
            raise
        except Exception as error:  # what its HTTP library raises, which is one of two
            raise RegistryUnavailableError(
                f"The schema registry at {self.url} did not answer while {doing}",
                found=f"{type(error).__name__}: {error}",
                hint="Check registry.url and that it runs (`riverrun status`, `riverrun doctor`)",
                url=self.url,
            ) from error

    def _translate(self, error: Any, doing: str) -> RegistryError:
        status, code = int(error.http_status_code), error.error_code
        detail = f"{error.error_message} (HTTP {status})"
        if status in (_UNAUTHORIZED, _FORBIDDEN):
            return RegistryRefusedError(
                f"The schema registry at {self.url} refused the login while {doing}",
                found=f"HTTP {status}",
                hint="Check registry.username and registry.password, or registry.token (`riverrun config`)",
                url=self.url,
            )
        if code in _MISSING_CODES:
            return SchemaUnknownError(
                f"The schema registry at {self.url} does not have it, while {doing}", found=detail, url=self.url
            )
        if status == _NOT_FOUND:
            return RegistryRefusedError(
                f"What answers at {self.url} is no schema registry: it failed while {doing}",
                found=detail[:300],
                hint="Check the path of registry.url; Apicurio's ends in /apis/ccompat/v7",
                url=self.url,
            )
        if status >= 500 or status == 429:
            return RegistryUnavailableError(
                f"The schema registry at {self.url} failed while {doing}", found=detail[:300], url=self.url
            )
        return RegistryRefusedError(
            f"The schema registry at {self.url} refused it while {doing}", found=detail[:300], url=self.url
        )


@lru_cache(maxsize=16)
def registry_of(settings: RegistrySettings) -> Registry:
    """The registry that the settings name; RegistryUnavailableError when they name none."""
    if not settings.url:
        raise RegistryUnavailableError(
            "No schema registry is known, and a topic needs one",
            expected="registry.url, or one that `riverrun up --registry` runs",
            hint="Start one with `riverrun up --registry`, or name one in registry.url",
        )
    registry = Registry(settings)
    atexit.register(registry.close)
    return registry


def _create_client(settings: RegistrySettings) -> "SchemaRegistryClient":
    try:
        # Everything that a topic of any format may need, so that a missing package is reported at once.
        import fastavro  # noqa: F401
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise UsageError(
            f"Schema registries need {error.name or 'a package'}, which is not installed",
            hint='pip install "riverrun[registry]" installs it',
            package=error.name or "",
        ) from error
    properties: dict[str, Any] = {
        "url": settings.url,
        "timeout": float(settings.request_timeout_seconds),
        "max.retries": 1,
        "retries.wait.ms": 200,
        "retries.max.wait.ms": 1000,
    }
    if settings.ssl_ca_file:
        properties["ssl.ca.location"] = settings.ssl_ca_file
    if settings.token:
        properties |= {
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": settings.token.reveal(),
            "bearer.auth.logical.cluster": "",
        }
    elif settings.username:
        properties["basic.auth.user.info"] = f"{settings.username}:{settings.password.reveal()}"
    try:
        return SchemaRegistryClient(properties)
    except (ValueError, OSError) as error:
        raise RegistryRefusedError(
            f"A client for the schema registry at {settings.url} cannot be made",
            found=str(error),
            hint="Check [registry] of the settings (`riverrun config`)",
            url=settings.url,
        ) from error


def _schema(schema_type: str, text: str) -> Any:
    from confluent_kafka.schema_registry import Schema

    return Schema(text, schema_type)
