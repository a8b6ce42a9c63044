"""The options of handling records in parallel."""

from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from riverrun.errors import UsageError
from riverrun.kafka.consumer.dead_letter import DEFAULT_TOPIC
from riverrun.kafka.consumer.retry import Retry
from riverrun.kafka.consumer.scheduler import Order

OnError = Literal["stop", "dead-letter", "skip"]


class RunKeywords(TypedDict, total=False):
    """The keywords of `run`; `RunOptions` explains them."""

    order: Order
    max_in_flight: int
    max_in_flight_mb: float
    retry: Retry | int
    on_error: OnError
    on_unreadable: OnError | None
    dead_letter: str
    create_dead_letter: bool
    stop_seconds: float


@dataclass(frozen=True)
class RunOptions:
    """How records are handled in parallel.

    - `order`: what is handled in order: records of a "partition", records of a "key" (more of them at a time), "none".
    - `max_in_flight`, `max_in_flight_mb`: how many records and MiB may be read and not done.
    - `retry`: how often a handler that raised is retried, and when; a number, or a `Retry`. Only records that must be
      handled after it wait for it.
    - `on_error`: then "stop" (HandlerError; the record and all behind it in its partition stay uncommitted), write it to the
      "dead-letter" topic and continue, or "skip" it with a warning. `on_unreadable` is the same for records that do not
      match their topic's type; by default as `on_error`. They are not retried. A schema registry that does not answer does
      not make a record unreadable: it counts as an error of the handler.
    - `dead_letter`: the topic for them; `{topic}` is the record's own. It is created unless `create_dead_letter` is False.
    - `stop_seconds`: how long handlers may take to finish when it stops, or a partition is revoked.
    """

    order: Order = "partition"
    max_in_flight: int = 1000
    max_in_flight_mb: float = 64.0
    retry: Retry | int = 3
    on_error: OnError = "stop"
    on_unreadable: OnError | None = None
    dead_letter: str = DEFAULT_TOPIC
    create_dead_letter: bool = True
    stop_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name, kind in (("order", Order), ("on_error", OnError), ("on_unreadable", OnError)):
            value = getattr(self, name)
            if value not in get_args(kind) and not (name == "on_unreadable" and value is None):
                raise UsageError(f"run cannot have {name}={value!r}", expected=", ".join(get_args(kind)), option=name)
        for name, least in (("max_in_flight", 1), ("max_in_flight_mb", 0.001), ("stop_seconds", 0)):
            if (value := getattr(self, name)) < least:
                raise UsageError(f"run cannot have {name}={value}", expected=f"at least {least}", option=name)

    @property
    def retry_policy(self) -> Retry:
        return Retry(times=self.retry) if isinstance(self.retry, int) else self.retry

    @property
    def unreadable(self) -> OnError:
        return self.on_unreadable or self.on_error
