"""Messages of devices as records of a topic: `app.source(readings, riverrun.mqtt("meters/+/load"))`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from riverrun.errors import DeclarationError
from riverrun.model.connector import Source, option
from riverrun.model.suggest import nearest
from riverrun.model.units import parse_duration_ms

if TYPE_CHECKING:
    from riverrun.model.topic import Topic

SHARE_PREFIX = "$share/"
# MQTT's own limits: a receive maximum and a keep-alive are two bytes, the length of a topic as well.
_MAX_UINT16 = 65_535


@dataclass(frozen=True)
class mqtt(Source):
    """Messages that devices publish at an MQTT broker. A message is acknowledged there (PUBACK) only after Kafka has it.

    The levels of an MQTT topic are counted from 0: in `meters/h1/load`, `h1` is level 1. With an event class the payload is
    a JSON object of its fields, the record's key is the event's own, and what does not fit is a dead letter; without one,
    payloads go into the topic as they are. docs/mqtt.md has what is promised.
    """

    factory: ClassVar[str] = "riverrun.connectors.mqtt.source:create_source"
    resumable: ClassVar[bool] = False
    lag_unit: ClassVar[str] = "messages"

    filters: str | Sequence[str] = option(
        help="Which topics of the broker: one filter or several, with `+` for one level and `#` for all that follow. "
        "`$share/NAME/…` shares the messages among all who subscribe with that name.",
        example='"meters/+/load"',
    )
    fields: Mapping[str, int] | None = option(
        None,
        help="Fields of the record that are levels of the MQTT topic. They win over what the payload says.",
        example='{"house_id": 1}',
    )
    key: int | str | None = option(
        None,
        help="The record's key where the topic has no event class: a level of the MQTT topic, or a field of the payload.",
        example="1",
    )
    value: str = option(
        "", help="The field that takes a payload which is no JSON object, such as a bare `21.5`.", example='"load_kw"'
    )
    arrived: str = option(
        "", help="The field that takes the time of arrival where the payload has none: for devices without a clock.",
        example='"at"',
    )  # fmt: skip
    qos: Literal[0, 1] = option(
        1, help="1: at least once, whatever is killed. 0: what is lost on the way is lost. QoS 2 arrives as 1."
    )
    retained: Literal["first", "always", "never"] = option(
        "first",
        help="Whether messages that the broker retains come in when we subscribe: the first time, always, never.",
    )
    url: str = option("", help="The broker. Empty: `mqtt.url` of the settings.", example='"mqtts://mqtt.example:8883"')
    username: str = option("", help="User there. Empty: `mqtt.username`, if the broker is that of the settings.")
    password: str = option("", help="Where the password is kept.", example='"env:MQTT_PASSWORD"', secret=True)
    client_id: str = option(
        "", help="Who we are there; the broker keeps our messages by it. Empty: riverrun-APP-CONNECTOR."
    )
    session: str = option("7 days", help="How long the broker keeps messages for us while we are away.")
    in_flight: int = option(
        1000, help="How many messages may be on their way into Kafka, unacknowledged (MQTT's receive maximum)."
    )
    keepalive_seconds: int = option(30, help="How often a quiet connection is tried.")

    def __post_init__(self) -> None:
        if not self.topic_filters:
            raise _invalid("has no topic filter", 'such as riverrun.mqtt("meters/+/load")')
        for topic in self.topic_filters:
            check_filter(topic)
        for name, level in self.field_levels.items():
            self._check_level(f"the field {name}", level)
        if isinstance(self.key, bool) or (isinstance(self.key, str) and not self.key):
            raise _invalid(
                f"cannot have key={self.key!r}", "a level (a number from 0) or the name of a payload's field"
            )
        if isinstance(self.key, int):
            self._check_level("the key", self.key)
        if self.qos not in (0, 1):
            raise _invalid(f"cannot subscribe with qos={self.qos!r}", "1, or 0; messages of QoS 2 arrive as 1")
        if self.retained not in ("first", "always", "never"):
            raise _invalid(f"cannot have retained={self.retained!r}", '"first", "always" or "never"')
        for name, amount in (("in_flight", self.in_flight), ("keepalive_seconds", self.keepalive_seconds)):
            if not 1 <= amount <= _MAX_UINT16:
                raise _invalid(f"cannot have {name}={amount}", f"1 to {_MAX_UINT16}")
        parse_duration_ms(self.session, what="session of riverrun.mqtt")

    def check(self, topic: "Topic[Any]") -> None:
        """Fields that the topic's events do not have are refused, and a key beside their own."""
        if topic.event is None:
            return
        if self.key is not None:
            raise DeclarationError(
                f"riverrun.mqtt has a key= and {topic.name} has events that bring their own",
                hint="Leave key= out; fields= fills the event's key field from a level",
                topic=topic.name,
            )
        known = [field.name for field in msgspec.structs.fields(topic.event)]
        for name in (*self.field_levels, self.value, self.arrived):
            if name and name not in known:
                near = nearest(name, known)
                raise DeclarationError(
                    f"riverrun.mqtt fills the field {name}, which {topic.event.__name__} does not have",
                    expected=", ".join(known),
                    hint=f"Did you mean {near!r}?" if near else "",
                    topic=topic.name,
                )

    @property
    def topic_filters(self) -> tuple[str, ...]:
        """The filters, one or several."""
        return (self.filters,) if isinstance(self.filters, str) else tuple(self.filters)

    @property
    def field_levels(self) -> Mapping[str, int]:
        """The fields that are levels."""
        return self.fields or {}

    def _check_level(self, what: str, level: Any) -> None:
        if isinstance(level, bool) or not isinstance(level, int) or level < 0:
            raise _invalid(
                f"cannot take {what} from level {level!r}", "a number from 0: in meters/h1/load, h1 is level 1"
            )
        for topic in self.topic_filters:
            parts = without_share_prefix(topic).split("/")
            if parts[-1] != "#" and level >= len(parts):
                raise _invalid(
                    f"takes {what} from level {level}", f"a level that {topic} has: 0 to {len(parts) - 1}", filter=topic
                )


def without_share_prefix(text: str) -> str:
    """A filter as it is matched: without `$share/NAME/`."""
    return text.split("/", 2)[2] if text.startswith(SHARE_PREFIX) else text


def check_filter(text: str) -> None:
    """Raise DeclarationError for what is no topic filter of MQTT."""
    if not text:
        raise _invalid(f"has the topic filter {text!r}", "text such as meters/+/load")
    if text.startswith(SHARE_PREFIX):
        parts = text.split("/", 2)
        if len(parts) < 3 or not parts[1] or not parts[2] or set(parts[1]) & set("+#"):
            raise _invalid(f"has the topic filter {text!r}", "$share/NAME/FILTER, such as $share/bridges/meters/+/load")
    levels = without_share_prefix(text).split("/")
    for index, level in enumerate(levels):
        if "#" in level and (level != "#" or index != len(levels) - 1):
            raise _invalid(f"has the topic filter {text!r}", "`#` alone, as the last level", filter=text)
        if "+" in level and level != "+":
            raise _invalid(f"has the topic filter {text!r}", "`+` alone, as a whole level", filter=text)
    if "\0" in text or len(text.encode()) > _MAX_UINT16:
        raise _invalid(f"has the topic filter {text[:80]!r}", f"text without NUL, at most {_MAX_UINT16} bytes of it")


def _invalid(what: str, expected: str, **fields: Any) -> DeclarationError:
    return DeclarationError(f"riverrun.mqtt {what}", expected=expected, **fields)
