"""A topic as the user declares it. Kafka's words mean here what they mean in Kafka."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, TypeVar

from riverrun.errors import DeclarationError
from riverrun.model.event import Event, EventSchema, schema_of
from riverrun.model.framing import FORMATS, Format, subject_of
from riverrun.model.units import parse_duration_ms, parse_size

E_co = TypeVar("E_co", bound=Event, covariant=True)

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True)
class Topic(Generic[E_co]):
    """A name, an event type, and how the cluster should keep it.

    `replicas` 0 means the cluster's default. `retention` is the time and `retention_size` the size *of each partition*
    after which old records are deleted, read or not; unset, the cluster's own default holds. A compacted topic keeps
    the newest record of every key instead (both, if `retention` is set as well). `config` takes any other topic setting
    of Kafka's. `format` is how values are written: plain JSON, or JSON or Avro with a schema in a registry
    (docs/registry.md).
    """

    name: str
    event: type[E_co] | None = None
    partitions: int = 1
    replicas: int = 0
    retention: str | timedelta | None = None
    retention_size: str | int | None = None
    compact: bool = False
    config: Mapping[str, str] = field(default_factory=dict)
    format: Format = "json"

    def __post_init__(self) -> None:
        check_topic_name(self.name)
        if self.partitions < 1:
            self._refuse("partitions", "at least 1", self.partitions)
        if self.replicas < 0:
            self._refuse("replicas", "at least 1, or 0 for the cluster's default", self.replicas)
        if self.event is not None:
            schema = schema_of(self.event)
            if self.compact and schema.key_field is None:
                raise DeclarationError(
                    f"The topic {self.name} is compacted, and {schema.name} has no key",
                    hint="Compaction keeps the newest record of each key: mark a field of it with riverrun.key()",
                    topic=self.name,
                )
        self._check_format()
        both = sorted(set(self.declared_config()) & set(self.config))
        if both:
            raise DeclarationError(
                f"The topic {self.name} sets {', '.join(both)} twice", hint="Leave it out of `config`", topic=self.name
            )

    def _check_format(self) -> None:
        if self.format not in FORMATS:
            self._refuse("format", ", ".join(FORMATS), repr(self.format))
        if self.format != "json" and self.event is None:
            raise DeclarationError(
                f"The topic {self.name} has the format {self.format}, and no event type to make a schema of",
                hint="Give its event class, or leave the format out",
                topic=self.name,
            )
        _ = self.registry_schema

    def _refuse(self, argument: str, expected: str, found: object) -> None:
        raise DeclarationError(
            f"The topic {self.name} cannot have {argument}={found}",
            expected=expected,
            topic=self.name,
            argument=argument,
        )

    @property
    def schema(self) -> EventSchema[E_co] | None:
        return schema_of(self.event) if self.event is not None else None

    @property
    def registered(self) -> bool:
        """Whether a registry keeps the schema of its values."""
        return self.format != "json"

    @property
    def subject(self) -> str:
        """The registry's subject for its values."""
        return subject_of(self.name)

    @property
    def registry_schema(self) -> str:
        """The schema to register for it, as text; empty for plain JSON."""
        if self.event is None or not self.registered:
            return ""
        # Imported here, because most topics are plain JSON.
        if self.format == "avro":
            from riverrun.model.avro_schema import avro_schema

            return avro_schema(self.event)
        from riverrun.model.json_schema import json_schema

        return json_schema(self.event)

    def declared_config(self) -> dict[str, str]:
        """The settings `retention`, `retention_size` and `compact`, in Kafka's names."""
        config: dict[str, Any] = {}
        if self.retention is not None:
            config["retention.ms"] = parse_duration_ms(self.retention, what=f"retention of {self.name}")
        if self.retention_size is not None:
            config["retention.bytes"] = parse_size(self.retention_size, what=f"retention_size of {self.name}")
        if self.compact:
            limited = any(value != -1 for value in config.values())
            config["cleanup.policy"] = "compact,delete" if limited else "compact"
        return {name: str(value) for name, value in config.items()}

    def full_config(self) -> dict[str, str]:
        """All declared topic settings."""
        return self.declared_config() | dict(self.config)


def check_topic_name(name: str) -> str:
    """The name, if Kafka allows it."""
    if not _TOPIC_NAME.fullmatch(name) or name in {".", ".."}:
        raise DeclarationError(
            f"{name!r} cannot be the name of a topic",
            expected="1 to 249 letters, digits, dots, dashes or underscores",
            topic=name,
        )
    return name
