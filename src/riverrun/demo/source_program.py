"""The program around a simulated source application: its options, its rate, and a clean end."""

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from riverrun.cluster.signals import stop_on_signals
from riverrun.kafka.producer.producer import Producer
from riverrun.model.topic import Topic

if TYPE_CHECKING:
    from datetime import datetime

MAX_GAP_SECONDS = 5.0


class EventSender(Protocol):
    """How events are sent. `send` may block: then the source waits, too."""

    def send(self, event: Any) -> None: ...

    def counts(self) -> dict[str, int]:
        """The counts once it is closed; `acknowledged` among them."""


class _KafkaSender:
    """Sends straight to Kafka."""

    def __init__(self, topic: Topic[Any], producer: Producer) -> None:
        self._topic = topic
        self._producer = producer
        self._sent = self._broken = 0

    def send(self, event: Any) -> None:
        # Broken records are sent by the topic's name: the typed topic would refuse them.
        is_broken = isinstance(event, bytes)
        self._producer.send_soon(self._topic.name if is_broken else self._topic, event)
        self._sent += 1
        self._broken += is_broken

    def counts(self) -> dict[str, int]:
        return {"acknowledged": self._sent, "broken": self._broken}


@contextmanager
def kafka_sender(topic: Topic[Any], stop: threading.Event) -> Iterator[EventSender]:  # noqa: ARG001
    """Leaving it waits for the acknowledgement of each record, and raises where one was lost."""
    with Producer() as producer:
        yield _KafkaSender(topic, producer)


def run_source(
    about: str,
    topic: Topic[Any],
    events: Callable[[int], Iterator[Any]],
    *,
    speed_up: float,
    what: str = "events",
    sender: Callable[[Topic[Any], threading.Event], AbstractContextManager[EventSender]] = kafka_sender,
) -> None:
    """Send the events of `events(seed)` to a topic, by their own times or at `--rate`, until SIGTERM, Ctrl-C or
    `--events`. Bytes among them are broken records, and are sent as they are. Ends by printing the counts as one line
    of JSON."""
    options = source_options(about, speed_up, what).parse_args()
    sent, pace = 0, _EventSchedule(topic, options)
    with stop_on_signals() as stop, sender(topic, stop) as out:
        for event in events(options.seed):
            if stop.wait(pace.seconds_until(event)):
                break
            out.send(event)
            sent += 1
            if sent == options.events:
                break
    sys.stdout.write(json.dumps({"events": sent, **out.counts()}) + "\n")


class _EventSchedule:
    """When each event is due."""

    def __init__(self, topic: Topic[Any], options: argparse.Namespace) -> None:
        self._time = topic.schema.time_field if topic.schema is not None else None
        self._rate, self._speed_up = options.rate, options.speed_up
        self._newest: datetime | None = None
        self._due = time.monotonic()

    def seconds_until(self, event: Any) -> float:
        """Seconds until the event is due."""
        if self._rate > 0:
            self._due += 1 / self._rate
        elif self._time is not None and (at := getattr(event, self._time, None)) is not None:
            # A late event is due at once; a night passes in a moment.
            if self._newest is not None and at > self._newest:
                self._due += min((at - self._newest).total_seconds() / self._speed_up, MAX_GAP_SECONDS)
            self._newest = max(at, self._newest or at)
        return max(0.0, self._due - time.monotonic())


def source_options(about: str, speed_up: float = 1.0, what: str = "events") -> argparse.ArgumentParser:
    """The options of a source application; its figures take the same, to compute the same."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--speed-up", type=float, default=speed_up, help=f"time of the {what} against ours (default: %(default)s)"
    )
    parser.add_argument("--rate", type=float, default=0, help="records a second, instead of the times they have")
    parser.add_argument(
        "--seed", type=int, default=1, help=f"the same seed gives the same {what} (default: %(default)s)"
    )
    parser.add_argument("--events", type=int, default=0, help="stop after so many records (default: go on)")
    return parser
