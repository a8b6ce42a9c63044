"""Alerts beside running streams: `riverrun run` starts `riverrun alerts run`, and phones on this machine where no SMS
provider is set, as processes of their own, and supervises them."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from riverrun.alerts.channels.missing_package import not_installed_error
from riverrun.app import declared_names
from riverrun.cli.alerts_run import channels_of, missing_channel_text
from riverrun.config.gateway_state import find_gateway_endpoint
from riverrun.errors import ConfigError, RiverrunError
from riverrun.model.notices import phrase_of
from riverrun.runtime.supervised_process import SupervisedProcess

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.config import LoadedSettings
    from riverrun.kafka.connection import Connection

STOP_SECONDS = 20.0
# How long there may be no progress while alerts evaluate and send what a finished pipeline wrote.
CATCH_UP_SECONDS = 60.0
POLL_SECONDS = 0.5
REQUIRED_PACKAGES = ("phonenumbers", "starlette", "uvicorn")


class AlertSupervisor:
    """The processes, and their messages for people."""

    def __init__(
        self,
        settings: "LoadedSettings",
        app: "App",
        connection: "Connection",
        notice: Callable[[str], None],
        *,
        alerts: SupervisedProcess,
        phones: SupervisedProcess | None,
    ) -> None:
        self._settings = settings
        self._app = app
        self._connection = connection
        self._alert_process = alerts
        self._phone_process = phones
        self._notice = notice
        self._phones_announced = phones is None

    def poll(self) -> None:
        """Called again and again: restart what died, and print new messages."""
        if self._phone_process is not None:
            self._phone_process.poll()
        self._alert_process.poll()
        for line in self._alert_process.new_lines():
            self._notice(phrase_of(line, declared_names(self._app)))
        if not self._phones_announced and (phones := find_gateway_endpoint(self._settings.project)) is not None:
            self._phones_announced = True
            self._notice(f"no SMS provider is set: messages go to the phones at {phones.address}/")

    def limit_stop_time(self, seconds: float) -> None:
        """Kafka is down: do not wait longer than this for a clean exit."""
        self._alert_process.limit_stop_time(seconds)
        if self._phone_process is not None:
            self._phone_process.limit_stop_time(seconds)

    def ask_to_stop(self) -> None:
        # Not the phones: a message in flight must arrive.
        self._alert_process.ask_to_stop()

    def wait_until_caught_up(self, stop: threading.Event) -> None:
        """Wait until everything written is evaluated and the notifications are sent, or `stop`; returns a sentence when
        they are not."""
        from riverrun.alerts.backlog import NOT_STARTED, describe_backlog

        deadline = time.monotonic() + CATCH_UP_SECONDS
        unfinished_work = NOT_STARTED
        while unfinished_work and time.monotonic() < deadline and not self._alert_process.given_up:
            self.poll()
            before = unfinished_work
            try:
                unfinished_work = describe_backlog(self._connection, self._app.name)
            except RiverrunError as error:
                unfinished_work = str(error)
            if unfinished_work != before:
                deadline = time.monotonic() + CATCH_UP_SECONDS
            if unfinished_work and stop.wait(POLL_SECONDS):
                break
        if unfinished_work:
            self._notice(f"alerts are not done: {unfinished_work}; the next run goes on from there")


def check_channels(settings: "LoadedSettings", app: "App") -> None:
    """Check that every alert has a channel that can be opened, before anything starts. ConfigError when not."""
    if missing_packages := [name for name in REQUIRED_PACKAGES if find_spec(name) is None]:
        raise not_installed_error(missing_packages[0])
    from riverrun.alerts.channels.factory import SMS, open_channels

    channels, _ = open_channels(settings.settings.alerts, settings.project.root)
    for channel in channels.values():
        channel.close()
    # On an attached cluster a forgotten setting must not end in messages that nobody gets.
    phones = {SMS} if not settings.attached or find_gateway_endpoint(settings.project) is not None else set()
    if missing := sorted(channels_of(app) - set(channels) - phones):
        raise ConfigError([missing_channel_text(channel) for channel in missing])


@contextmanager
def supervise_alerts(
    settings: "LoadedSettings", app: "App", connection: "Connection", notice: Callable[[str], None], *, enabled: bool
) -> Iterator[AlertSupervisor | None]:
    """Evaluate and send alerts as long as the block lasts; None where there are none."""
    if not app.alerts or not enabled:
        yield None
        return
    from riverrun.alerts.channels.factory import SMS, has_sms_provider

    logs = settings.project.logs
    command = [sys.executable, "-m", "riverrun", "--project", str(settings.project.root)]
    if settings.profile:
        command += ["--profile", settings.profile]
    with ExitStack() as stack:
        phones = None
        needs_phones = SMS in channels_of(app) and not has_sms_provider(settings.settings.alerts)
        if needs_phones and find_gateway_endpoint(settings.project) is None:
            phones = SupervisedProcess("the phones", [*command, "phone"], logs / "phone.log", notice=notice)
            phones.start()
            stack.callback(phones.stop, STOP_SECONDS)
        arguments = ["alerts", "run", app.file, "--bootstrap-servers", connection.bootstrap_servers]
        alerts = SupervisedProcess("the alert process", [*command, *arguments], logs / "alerts.log", notice=notice)
        alerts.start()
        stack.callback(alerts.stop, STOP_SECONDS)
        yield AlertSupervisor(settings, app, connection, notice, alerts=alerts, phones=phones)
