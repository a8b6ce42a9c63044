"""Compare schemas with those in the registry, before anything is changed; register them after.

Called wherever topics are created or changed as declared (kafka/admin/topics.py), so `riverrun topics apply`, `app.apply()`
and `riverrun run` all refuse the same changes.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from riverrun.config import RegistrySettings
from riverrun.errors import SchemaIncompatibleError, SchemaUnknownError
from riverrun.kafka.registry.client import SCHEMA_TYPES, Registry, registry_of
from riverrun.model.schema_change import schema_changes
from riverrun.model.topic import Topic


@dataclass(frozen=True)
class SchemaComparison:
    """The registry's verdict on a topic's schema. `why` has the objections."""

    topic: str
    subject: str
    format: str
    state: Literal["new", "same", "compatible", "refused"]
    version: int = 0
    why: tuple[str, ...] = ()

    def row(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "subject": self.subject,
            "format": self.format,
            "state": self.state,
            "version": self.version,
            "why": "; ".join(self.why),
        }


def compare_schemas(settings: RegistrySettings, topics: Collection[Topic[Any]]) -> list[SchemaComparison]:
    """Compare the schemas of those topics that have one. Changes nothing; makes no request if none has."""
    registered = [topic for topic in topics if topic.registered]
    return [_compare_schema(registry_of(settings), topic) for topic in registered]


def check_schemas(settings: RegistrySettings, topics: Collection[Topic[Any]]) -> list[SchemaComparison]:
    """Like `compare_schemas`; SchemaIncompatibleError, with everything that is refused, when something is."""
    comparisons = compare_schemas(settings, topics)
    if refused := [comparison for comparison in comparisons if comparison.state == "refused"]:
        raise incompatible_schemas_error(refused, settings.url)
    return comparisons


def register_schemas(settings: RegistrySettings, topics: Collection[Topic[Any]]) -> None:
    """Register the schemas that the registry does not have."""
    for topic in topics:
        if topic.registered:
            registry_of(settings).register(topic.subject, SCHEMA_TYPES[topic.format], topic.registry_schema)


def _compare_schema(registry: Registry, topic: Topic[Any]) -> SchemaComparison:
    schema_type, text = SCHEMA_TYPES[topic.format], topic.registry_schema
    latest = registry.latest(topic.subject)
    identity = (topic.name, topic.subject, topic.format)
    if latest is None:
        return SchemaComparison(*identity, "new")
    if latest.schema_type != schema_type:
        previous_format = next(
            (name for name, registry_type in SCHEMA_TYPES.items() if registry_type == latest.schema_type),
            latest.schema_type,
        )
        return SchemaComparison(
            *identity, "refused", latest.version, (f"its records were {previous_format} and would be {topic.format}",)
        )
    try:
        registry.find_schema_id(topic.subject, schema_type, text)
        return SchemaComparison(*identity, "same", latest.version)
    except SchemaUnknownError:
        reported = registry.incompatibilities(topic.subject, schema_type, text)
    if reported is None:
        return SchemaComparison(*identity, "compatible", latest.version)
    why = (
        schema_changes(schema_type, latest.text, text)
        or reported
        or [f"the registry refuses it at the level {registry.compatibility_level()}"]
    )
    return SchemaComparison(*identity, "refused", latest.version, tuple(why))


def incompatible_schemas_error(refused: Collection[SchemaComparison], url: str) -> SchemaIncompatibleError:
    lines = [
        line
        for comparison in refused
        for line in (
            f"{comparison.topic}, against version {comparison.version} of {comparison.subject}:",
            *(f"  {why}" for why in comparison.why),
        )
    ]
    names = ", ".join(comparison.topic for comparison in refused)
    return SchemaIncompatibleError(
        f"The schema registry at {url} does not take the change of {names}: nothing was changed",
        hint="Give a new field a default, keep the fields there are and their types; or write to a topic of another name, "
        "and let readers follow",
        lines=lines,
        topic=names,
        differences=[comparison.row() for comparison in refused],
    )
