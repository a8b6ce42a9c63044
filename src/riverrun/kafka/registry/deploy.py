"""Schemas before a deploy: compared with what the registry has, before anything is changed; registered after.

Called wherever topics are made what is declared (kafka/admin/topics.py), so `riverrun topics apply`, `app.apply()` and
`riverrun run` all refuse the same changes.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from riverrun.config import RegistrySettings
from riverrun.errors import SchemaIncompatibleError, SchemaUnknownError
from riverrun.kafka.registry.client import KINDS, Registry, registry_of
from riverrun.model.schema_change import changes
from riverrun.model.topic import Topic


@dataclass(frozen=True)
class Compared:
    """What the registry says of a topic's schema. `why` is what speaks against it."""

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


def compare(settings: RegistrySettings, topics: Collection[Topic[Any]]) -> list[Compared]:
    """The schemas of those topics that have one. Changes nothing; asks nothing where none has."""
    registered = [topic for topic in topics if topic.registered]
    return [_compared(registry_of(settings), topic) for topic in registered]


def check(settings: RegistrySettings, topics: Collection[Topic[Any]]) -> list[Compared]:
    """As `compare`; SchemaIncompatibleError, with all that is refused, when something is."""
    found = compare(settings, topics)
    if refused := [each for each in found if each.state == "refused"]:
        raise refusal(refused, settings.url)
    return found


def register(settings: RegistrySettings, topics: Collection[Topic[Any]]) -> None:
    """Give the registry the schemas that it does not have."""
    for topic in topics:
        if topic.registered:
            registry_of(settings).register(topic.subject, KINDS[topic.format], topic.registry_schema)


def _compared(registry: Registry, topic: Topic[Any]) -> Compared:
    kind, text = KINDS[topic.format], topic.registry_schema
    latest = registry.latest(topic.subject)
    about = (topic.name, topic.subject, topic.format)
    if latest is None:
        return Compared(*about, "new")
    if latest.kind != kind:
        was = next((name for name, each in KINDS.items() if each == latest.kind), latest.kind)
        return Compared(*about, "refused", latest.version, (f"its records were {was} and would be {topic.format}",))
    try:
        registry.id_of(topic.subject, kind, text)
        return Compared(*about, "same", latest.version)
    except SchemaUnknownError:
        said = registry.refusals(topic.subject, kind, text)
    if said is None:
        return Compared(*about, "compatible", latest.version)
    why = changes(kind, latest.text, text) or said or [f"the registry refuses it at the level {registry.level()}"]
    return Compared(*about, "refused", latest.version, tuple(why))


def refusal(refused: Collection[Compared], url: str) -> SchemaIncompatibleError:
    lines = [
        line
        for each in refused
        for line in (
            f"{each.topic}, against version {each.version} of {each.subject}:",
            *(f"  {why}" for why in each.why),
        )
    ]
    names = ", ".join(each.topic for each in refused)
    return SchemaIncompatibleError(
        f"The schema registry at {url} does not take the change of {names}: nothing was changed",
        hint="Give a new field a default, keep the fields there are and their types; or write to a topic of another name, "
        "and let readers follow",
        lines=lines,
        topic=names,
        differences=[each.row() for each in refused],
    )
