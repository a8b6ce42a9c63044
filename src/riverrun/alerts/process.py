"""The alert process: reads, judges and sends until it is stopped, and begins anew from the ledger whenever something breaks.

One engine and one sender are a life. When a step or a write to the ledger fails, nobody knows what the ledger has: then the
life is over, and the next one asks it. Only another process that takes over ends this one for good.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from riverrun.alerts.channels.contract import Channel, Report
from riverrun.alerts.channels.limits import Limits
from riverrun.alerts.engine import Engine
from riverrun.alerts.kafka_log import KafkaLog
from riverrun.alerts.ledger import Life, Reported, Standing, kept
from riverrun.alerts.rules import Rule
from riverrun.alerts.sender import Sender, Sending
from riverrun.errors import FencedError, KafkaError
from riverrun.kafka.connection import Connection

_LOG = logging.getLogger("riverrun.alerts")
_FIRST_PAUSE_SECONDS = 0.5
_MOST_PAUSE_SECONDS = 15.0
# A life this long was a good one: the next failure is not the same one again.
_GOOD_SECONDS = 30.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Duty:
    """What there is to do: whose alerts, by which rules, through which channels."""

    app: str
    rules: Sequence[Rule]
    channels: Mapping[str, Channel]
    limits: Callable[[], Mapping[str, Limits]]

    @property
    def topics(self) -> set[str]:
        return {each.table.topic for each in self.rules}


class AlertProcess:
    """`notice` takes a sentence for people."""

    def __init__(self, connection: Connection, duty: Duty, notice: Callable[[str], None] = _LOG.warning) -> None:
        self._connection = connection
        self._duty = duty
        self._notice = notice
        # Set as soon as the first life reads.
        self.ready = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Until `stop`. FencedError when another process has taken over."""
        pause = _FIRST_PAUSE_SECONDS
        while not stop.is_set():
            began = time.monotonic()
            try:
                self._live(stop)
            except FencedError as error:
                raise FencedError(
                    f"Another process sends the alerts of {self._duty.app} now",
                    hint="One does at a time; stop the other one first",
                ) from error
            except KafkaError as error:
                if time.monotonic() - began > _GOOD_SECONDS:
                    pause = _FIRST_PAUSE_SECONDS
                self._notice(f"alerts begin anew from their ledger in {pause:g} s: {error}")
                stop.wait(pause)
                pause = min(2 * pause, _MOST_PAUSE_SECONDS)

    def _live(self, stop: threading.Event) -> None:
        duty = self._duty
        with KafkaLog(self._connection, duty.app, duty.topics) as log:
            engine = Engine(
                duty.rules,
                log,
                on_new=lambda: sender.wake(),  # noqa: PLW0108  -- it is made below
                on_reports=lambda reports: _hear(sending, reports),
            )
            sending = Sending(engine, duty.channels, limits=duty.limits(), notice=self._notice)
            sending.restore(engine.desk.out())
            sender = Sender(sending, duty.channels)
            life = Life(begun=now_ms(), pid=os.getpid(), host=socket.gethostname(), rules=[e.name for e in duty.rules])
            log.note([kept(life)])
            sending_thread = _Thread(sender.run)
            told = _Told(log, duty.channels)
            try:
                sending_thread.start()
                self.ready.set()
                while not stop.is_set() and sending_thread.error is None:
                    engine.step()
                    told.look(sending)
            finally:
                sender.stop()
                sending_thread.join()
            if sending_thread.error is not None:
                raise sending_thread.error
            engine.close()
            log.note([kept(Life(begun=life.begun, pid=life.pid, host=life.host, rules=life.rules, ended=now_ms()))])


def _hear(sending: Sending, reports: Sequence[Reported]) -> None:
    sending.reported([Report(each.id, each.state, each.reason) for each in reports], now_ms())


class _Thread(threading.Thread):
    """What the sender raised is for the life to raise."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="riverrun-sender", daemon=True)
        self._work = work
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  -- carried to the life
            self.error = error


class _Told:
    """How the channels are, in the ledger: written when it changes."""

    def __init__(self, log: KafkaLog, channels: Mapping[str, Channel]) -> None:
        self._log = log
        self._channels = channels
        self._known: dict[str, Standing] = {}

    def look(self, sending: Sending) -> None:
        now = {
            name: Standing(name=name, where=self._channels[name].where, problem=each.problem, since=each.since)
            for name, each in list(sending.standings.items())
        }
        changed = [each for name, each in now.items() if self._known.get(name) != each]
        if changed:
            self._log.note([kept(each) for each in changed])
            self._known = now
