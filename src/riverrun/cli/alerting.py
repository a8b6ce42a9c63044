"""Alerts beside running streams: `riverrun run` starts `riverrun alerts run`, and phones on this machine where no SMS
provider is set, as processes of their own, and looks after them."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from riverrun.alerts.channels.missing import not_installed
from riverrun.cli.alerts_run import channels_of, no_channel
from riverrun.cli.context import names_of
from riverrun.cli.output import phrase_of
from riverrun.cluster.companion import Companion
from riverrun.config.phone_state import find_phones
from riverrun.errors import ConfigError, RiverrunError

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.config import Loaded
    from riverrun.kafka.connection import Connection

STOP_SECONDS = 20.0
# How long nothing may come of it while alerts judge and send what a finished pipeline wrote.
CATCH_UP_SECONDS = 60.0
LOOK_SECONDS = 0.5
NEEDED = ("phonenumbers", "starlette", "uvicorn")


class AlertsBeside:
    """The processes, and what they say that people have to hear."""

    def __init__(
        self,
        settings: "Loaded",
        app: "App",
        connection: "Connection",
        notice: Callable[[str], None],
        *,
        alerts: Companion,
        phones: Companion | None,
    ) -> None:
        self._settings = settings
        self._app = app
        self._connection = connection
        self._alerts = alerts
        self._phones = phones
        self._notice = notice
        self._told = phones is None

    def look(self) -> None:
        """Called again and again: start again what died, and say what there is to say."""
        if self._phones is not None:
            self._phones.look()
        self._alerts.look()
        for line in self._alerts.new_lines():
            self._notice(phrase_of(line, names_of(self._app)))
        if not self._told and (found := find_phones(self._settings.project)) is not None:
            self._told = True
            self._notice(f"no SMS provider is set: messages go to the phones at {found.address}/")

    def hurry(self, seconds: float) -> None:
        """Kafka is gone: do not wait longer than this for an end in order."""
        self._alerts.hurry(seconds)
        if self._phones is not None:
            self._phones.hurry(seconds)

    def ask_to_stop(self) -> None:
        # Not the phones: a message that is on its way is to arrive.
        self._alerts.ask_to_stop()

    def catch_up(self, stop: threading.Event) -> None:
        """Wait until all that was written is judged, and what came of it is sent, or `stop`; a sentence when it is not."""
        from riverrun.alerts.unfinished import NOT_STARTED, unfinished

        deadline = time.monotonic() + CATCH_UP_SECONDS
        left = NOT_STARTED
        while left and time.monotonic() < deadline and not self._alerts.given_up:
            self.look()
            before = left
            try:
                left = unfinished(self._connection, self._app.name)
            except RiverrunError as error:
                left = str(error)
            if left != before:
                deadline = time.monotonic() + CATCH_UP_SECONDS
            if left and stop.wait(LOOK_SECONDS):
                break
        if left:
            self._notice(f"alerts are not done: {left}; the next run goes on from there")


def check_channels(settings: "Loaded", app: "App") -> None:
    """That every alert has a channel that can be opened, before anything starts. ConfigError when not."""
    if absent := [name for name in NEEDED if find_spec(name) is None]:
        raise not_installed(absent[0])
    from riverrun.alerts.channels.opening import SMS, open_channels

    channels, _ = open_channels(settings.settings.alerts, settings.project.root)
    for each in channels.values():
        each.close()
    # On a cluster of others a forgotten setting is not to end in messages that nobody gets.
    phones = {SMS} if not settings.attached or find_phones(settings.project) is not None else set()
    if missing := sorted(channels_of(app) - set(channels) - phones):
        raise ConfigError([no_channel(each) for each in missing])


@contextmanager
def alerts_beside(
    settings: "Loaded", app: "App", connection: "Connection", notice: Callable[[str], None], *, wanted: bool
) -> Iterator[AlertsBeside | None]:
    """Judge and send as long as the block lasts; None where there are no alerts."""
    if not app.alerts or not wanted:
        yield None
        return
    from riverrun.alerts.channels.opening import SMS, has_sms

    logs = settings.project.logs
    command = [sys.executable, "-m", "riverrun", "--project", str(settings.project.root)]
    if settings.profile:
        command += ["--profile", settings.profile]
    with ExitStack() as stack:
        phones = None
        needs_phones = SMS in channels_of(app) and not has_sms(settings.settings.alerts)
        if needs_phones and find_phones(settings.project) is None:
            phones = Companion("the phones", [*command, "phone"], logs / "phone.log", notice=notice)
            phones.start()
            stack.callback(phones.stop, STOP_SECONDS)
        arguments = ["alerts", "run", app.file, "--bootstrap-servers", connection.bootstrap_servers]
        alerts = Companion("the alert process", [*command, *arguments], logs / "alerts.log", notice=notice)
        alerts.start()
        stack.callback(alerts.stop, STOP_SECONDS)
        yield AlertsBeside(settings, app, connection, notice, alerts=alerts, phones=phones)
