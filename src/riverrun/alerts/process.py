"""The alert process: reads, evaluates and sends until stopped, and restores from the state topic whenever something breaks.

One engine and one sender are a run. When a step or a write to the state topic fails, nobody knows what the topic has: the
run ends, and the next one reads it. Only another process that takes over ends this one for good.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from riverrun.alerts.channels.contract import Channel, DeliveryReport
from riverrun.alerts.channels.limits import ChannelLimits
from riverrun.alerts.engine import AlertEngine
from riverrun.alerts.kafka_log import KafkaAlertLog
from riverrun.alerts.rules import Rule
from riverrun.alerts.sender import NotificationSender, SendScheduler
from riverrun.alerts.state_topic import AlertProcessLease, ChannelHealthRecord, DeliveryReportRecord, encode_upsert
from riverrun.errors import KafkaError, ProducerFencedError
from riverrun.kafka.connection import Connection

_LOG = logging.getLogger("riverrun.alerts")
_INITIAL_BACKOFF_SECONDS = 0.5
_MAX_BACKOFF_SECONDS = 15.0
# After a run this long, the next failure counts as a new one, and the backoff is reset.
_HEALTHY_SECONDS = 30.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class AlertProcessConfig:
    """The app whose alerts are run, its rules, channels and limits."""

    app: str
    rules: Sequence[Rule]
    channels: Mapping[str, Channel]
    limits: Callable[[], Mapping[str, ChannelLimits]]

    @property
    def topics(self) -> set[str]:
        return {rule.table.topic for rule in self.rules}


class AlertProcess:
    """Runs alerts, and starts again after failures. `notice` takes a sentence for people."""

    def __init__(
        self, connection: Connection, config: AlertProcessConfig, notice: Callable[[str], None] = _LOG.warning
    ) -> None:
        self._connection = connection
        self._config = config
        self._notice = notice
        # Set as soon as the first run reads.
        self.ready = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Run until `stop`. ProducerFencedError when another process has taken over."""
        pause = _INITIAL_BACKOFF_SECONDS
        while not stop.is_set():
            began = time.monotonic()
            try:
                self._run_once(stop)
            except ProducerFencedError as error:
                raise ProducerFencedError(
                    f"Another process sends the alerts of {self._config.app} now",
                    hint="One does at a time; stop the other one first",
                ) from error
            except KafkaError as error:
                if time.monotonic() - began > _HEALTHY_SECONDS:
                    pause = _INITIAL_BACKOFF_SECONDS
                self._notice(f"alerts start again from their state topic in {pause:g} s: {error}")
                stop.wait(pause)
                pause = min(2 * pause, _MAX_BACKOFF_SECONDS)

    def _run_once(self, stop: threading.Event) -> None:
        config = self._config
        with KafkaAlertLog(self._connection, config.app, config.topics) as log:
            engine = AlertEngine(
                config.rules,
                log,
                on_new=lambda: sender.wake(),  # noqa: PLW0108  -- it is made below
                on_reports=lambda reports: _apply_reports(scheduler, reports),
            )
            scheduler = SendScheduler(engine, config.channels, limits=config.limits(), notice=self._notice)
            scheduler.restore(engine.notifier.sent_messages())
            sender = NotificationSender(scheduler, config.channels)
            lease = AlertProcessLease(
                begun=now_ms(), pid=os.getpid(), host=socket.gethostname(), rules=[rule.name for rule in config.rules]
            )
            log.append([encode_upsert(lease)])
            sender_thread = _SenderThread(sender.run)
            health_publisher = _ChannelHealthPublisher(log, config.channels)
            try:
                sender_thread.start()
                self.ready.set()
                while not stop.is_set() and sender_thread.error is None:
                    engine.step()
                    health_publisher.publish_changes(scheduler)
            finally:
                sender.stop()
                sender_thread.join()
            if sender_thread.error is not None:
                raise sender_thread.error
            engine.close()
            log.append(
                [
                    encode_upsert(
                        AlertProcessLease(
                            begun=lease.begun, pid=lease.pid, host=lease.host, rules=lease.rules, ended=now_ms()
                        )
                    )
                ]
            )


def _apply_reports(scheduler: SendScheduler, reports: Sequence[DeliveryReportRecord]) -> None:
    scheduler.apply_reports([DeliveryReport(report.id, report.state, report.reason) for report in reports], now_ms())


class _SenderThread(threading.Thread):
    """Runs the sender, and keeps its error for the main loop to raise."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="riverrun-sender", daemon=True)
        self._work = work
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  -- raised by the main loop
            self.error = error


class _ChannelHealthPublisher:
    """Writes the health of the channels to the state topic when it changes."""

    def __init__(self, log: KafkaAlertLog, channels: Mapping[str, Channel]) -> None:
        self._log = log
        self._channels = channels
        self._published: dict[str, ChannelHealthRecord] = {}

    def publish_changes(self, scheduler: SendScheduler) -> None:
        now = {
            name: ChannelHealthRecord(
                name=name, destination=self._channels[name].destination, problem=health.problem, since=health.since
            )
            for name, health in list(scheduler.channel_health.items())
        }
        changed = [health for name, health in now.items() if self._published.get(name) != health]
        if changed:
            self._log.append([encode_upsert(health) for health in changed])
            self._published = now
