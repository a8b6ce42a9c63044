"""Typed events: a class with annotations declares fields, key, event time and constraints.

    class Reading(Event):
        house_id: str = key()
        load_kw: float = field(ge=0)
        at: datetime = event_time(late="2 minutes")

An event class is a msgspec struct (docs/decisions/0004-events.md has the measurement against pydantic). Making an instance
checks nothing, because it must be cheap; sending one does: `EventSchema.encode` reads back the very bytes it is about to
send, with the type's own decoder, unless the values leave no doubt (model/fast_encoding.py). So no producer can put into a
topic what a consumer of the same type would refuse.
"""

import sys
import types
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, cached_property
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin

import msgspec

from riverrun.errors import DeclarationError, EventInvalidError, RecordUnreadableError
from riverrun.model.fast_encoding import encoder_for
from riverrun.model.units import parse_duration_ms

E = TypeVar("E", bound="Event")

SCHEMA_HEADER = "riverrun.schema"


@dataclass(frozen=True)
class _FieldMarker:
    """What `key()`, `field()` and `event_time()` leave in the class body for the metaclass to read."""

    role: Literal["", "key", "time"]
    default: Any
    constraints: dict[str, Any]
    late_ms: int = 0


def field(
    *,
    default: Any = msgspec.NODEFAULT,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    multiple_of: float | None = None,
    pattern: str | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
) -> Any:
    """A field with constraints. Lengths apply to text, bytes and lists; `pattern` to text."""
    limits = {"ge": ge, "gt": gt, "le": le, "lt": lt, "multiple_of": multiple_of}
    shape = {"pattern": pattern, "min_length": min_length, "max_length": max_length}
    given = {name: value for name, value in (limits | shape).items() if value is not None}
    return _FieldMarker("", default, given)


def key(*, pattern: str | None = None, min_length: int | None = None, max_length: int | None = None) -> Any:
    """The field whose value is the record's key: events with the same key keep their order. One per class."""
    shape = {"pattern": pattern, "min_length": min_length, "max_length": max_length}
    return _FieldMarker("key", msgspec.NODEFAULT, {name: value for name, value in shape.items() if value is not None})


def event_time(*, late: str | timedelta = "0 s") -> Any:
    """The field that says when the event happened (a datetime with a time zone), and how late it may arrive."""
    wait = parse_duration_ms(late, what="event_time(late=…)", allow_zero=True)
    if wait < 0:
        raise DeclarationError(
            'event_time(late="forever") would keep every window open for ever', hint="Give a duration"
        )
    return _FieldMarker("time", msgspec.NODEFAULT, {}, wait)


def _apply_markers(name: str, namespace: dict[str, Any], markers: dict[str, _FieldMarker]) -> None:
    annotations = _resolve_annotations(name, namespace)
    for field_name, marker in markers.items():
        if field_name not in annotations:
            raise DeclarationError(
                f"{name}.{field_name} has no type",
                hint=f"Write it as `{field_name}: str = …`",
                event=name,
                field=field_name,
            )
        if marker.default is msgspec.NODEFAULT:
            del namespace[field_name]
        else:
            namespace[field_name] = marker.default
    for field_name, annotation in annotations.items():
        annotations[field_name] = _constrained(
            annotation, markers[field_name].constraints if field_name in markers else {}
        )
    namespace["__annotations__"] = annotations
    namespace.pop("__annotate_func__", None)


def _constrained(annotation: Any, constraints: dict[str, Any]) -> Any:
    """The annotation with its constraints; those of an optional field are its value's. A datetime has a time zone."""
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not types.NoneType]
        if len(members) == 1:
            return _constrained(members[0], constraints) | None
    if annotation is datetime:
        constraints = constraints | {"tz": True}
    return Annotated[annotation, msgspec.Meta(**constraints)] if constraints else annotation


def _resolve_annotations(name: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """The class body's annotations as types. Strings (`from __future__ import annotations`) are looked up in its
    module."""
    raw = namespace.get("__annotations__", {})
    if "__annotate_func__" in namespace:
        from annotationlib import Format, call_annotate_function  # type: ignore[import-not-found,unused-ignore]

        raw = call_annotate_function(namespace["__annotate_func__"], Format.VALUE)
    module = vars(sys.modules[namespace["__module__"]])
    resolved = {}
    for field_name, annotation in raw.items():
        if isinstance(annotation, str):
            try:
                resolved[field_name] = eval(annotation, module)  # noqa: S307  -- the user's own annotation, in the user's own module
            except NameError as error:
                raise DeclarationError(
                    f"The type of {name}.{field_name} is not known in {namespace['__module__']}",
                    found=annotation,
                    hint="Define or import it at the top of that module",
                    event=name,
                    field=field_name,
                ) from error
        else:
            resolved[field_name] = annotation
    return resolved


def _check_roles(cls: Any) -> None:
    for role, word in (("key", "key()"), ("time", "event_time()")):
        names = [name for name, marker in cls.__riverrun_marks__.items() if marker.role == role]
        if len(names) > 1:
            raise DeclarationError(
                f"{cls.__name__} has more than one {word}", expected="one", found=", ".join(names), event=cls.__name__
            )


class EventMeta(msgspec.StructMeta):
    """Turns the field markers into msgspec's annotations. Events are frozen and take their fields by name."""

    def __new__(  # noqa: PYI034  -- msgspec's metaclass is not written for Self
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *, version: int = 1, **options: Any
    ) -> "EventMeta":
        markers = {field_name: marker for field_name, marker in namespace.items() if isinstance(marker, _FieldMarker)}
        if markers or "__annotations__" in namespace or "__annotate_func__" in namespace:
            _apply_markers(name, namespace, markers)
        cls: Any = super().__new__(mcls, name, bases, namespace, **{**options, "kw_only": True, "frozen": True})
        cls.__riverrun_marks__ = getattr(cls, "__riverrun_marks__", {}) | markers
        cls.__riverrun_version__ = version
        _check_roles(cls)
        return cls  # type: ignore[no-any-return]


# On the class, not the metaclass: type checkers look at base classes first, and msgspec.Struct has a transform of its own.
@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field, key, event_time))
class Event(msgspec.Struct, metaclass=EventMeta, frozen=True):
    """Base of all event classes. `class Reading(Event, version=2)` says which version of its fields a class describes."""

    __riverrun_marks__: ClassVar[dict[str, _FieldMarker]]
    __riverrun_version__: ClassVar[int]


@dataclass(frozen=True)
class EventSchema(Generic[E]):
    """The schema of an event class, computed once."""

    event: type[E]
    name: str
    version: int
    key_field: str | None
    time_field: str | None
    late_ms: int
    header: tuple[str, bytes]
    key_of: Callable[[E], str | bytes | None]
    _dump: Callable[[E], bytes]
    _load: Callable[[bytes], E]

    @cached_property
    def encode(self) -> Callable[[E], bytes]:
        """The bytes to send, checked: EventInvalidError when a field has the wrong type or breaks its constraint."""
        return encoder_for(self.event, self._dump, self._encode_and_read_back)

    def _encode_and_read_back(self, event: E) -> bytes:
        try:
            if not isinstance(event, self.event):
                raise TypeError(type(event).__name__)
            value = self._dump(event)
            self._load(value)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
            raise self._invalid(event, error) from error
        return value

    def decode(self, value: bytes) -> E:
        """The event in these bytes: RecordUnreadableError when they are not one."""
        try:
            return self._load(value)
        except Exception as error:  # brackets a thousand deep, whatever a __post_init__ raises
            reason = reason_of(error)
            raise RecordUnreadableError(
                f"A record is not a {self.name}", found=reason, event=self.name, reason=reason
            ) from error

    def _invalid(self, event: object, error: Exception) -> EventInvalidError:
        if not isinstance(event, self.event):
            return EventInvalidError(
                f"{self.name} cannot be sent", expected=f"an instance of {self.name}", found=type(event).__name__
            )
        reason = reason_of(error)
        return EventInvalidError(
            f"This {self.name} cannot be sent",
            found=reason,
            hint=f"The event was {event!r}"[:400],
            event=self.name,
            reason=reason,
        )


def reason_of(error: Exception) -> str:
    """msgspec's message in our words: "$.load_kw: expected `float`, got `str`". Other errors include their type."""
    if not isinstance(error, msgspec.MsgspecError | TypeError | ValueError | OverflowError):
        return f"{type(error).__name__}: {error}"
    text, _, path = str(error).partition(" - at `")
    if text[1:2].islower():
        text = text[:1].lower() + text[1:]
    return f"{path.rstrip('`')}: {text}" if path else text


def is_event_class(value: object) -> bool:
    return isinstance(value, EventMeta)


@cache
def schema_of(event: type[E]) -> EventSchema[E]:
    """The schema of an event class."""
    if not is_event_class(event):
        raise DeclarationError(
            f"{event!r} is not an event class", expected="a class that inherits from riverrun.Event", event=str(event)
        )
    markers = event.__riverrun_marks__
    key_field = next((name for name, marker in markers.items() if marker.role == "key"), None)
    time_field = next((name for name, marker in markers.items() if marker.role == "time"), None)
    name, version = event.__name__, event.__riverrun_version__
    try:
        decoder = msgspec.json.Decoder(event)
    except (TypeError, ValueError) as error:
        raise DeclarationError(f"{name} cannot be carried as JSON", found=str(error), event=name) from error
    return EventSchema(
        event=event,
        name=name,
        version=version,
        key_field=key_field,
        time_field=time_field,
        late_ms=markers[time_field].late_ms if time_field else 0,
        header=(SCHEMA_HEADER, f"{name}/{version}".encode()),
        key_of=_key_getter(event, key_field),
        _dump=msgspec.json.Encoder().encode,
        _load=decoder.decode,
    )


def _key_getter(event: type[Event], name: str | None) -> Callable[[Any], str | bytes | None]:
    if name is None:
        return lambda _: None
    get = attrgetter(name)
    kinds = {struct_field.name: struct_field.type for struct_field in msgspec.structs.fields(event)}
    kind = kinds[name]
    while getattr(kind, "__metadata__", None):
        kind = kind.__origin__
    if kind in (str, bytes):
        return get
    if kind in (int, uuid.UUID):
        return lambda instance: str(get(instance)).encode()
    raise DeclarationError(
        f"{event.__name__}.{name} cannot be a key",
        expected="a field of type str, int, bytes or UUID",
        found=str(kind),
        event=event.__name__,
        field=name,
    )
