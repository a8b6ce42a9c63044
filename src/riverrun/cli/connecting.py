"""Connectors beside running streams: `riverrun run` starts `riverrun connectors run` as a process of its own."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from riverrun.cli.context import names_of as app_names
from riverrun.cli.output import phrase_of
from riverrun.cluster.companion import Companion
from riverrun.errors import RiverrunError

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.config import Loaded
    from riverrun.connectors.ledger import Ledger
    from riverrun.kafka.connection import Connection

STOP_SECONDS = 20.0
# How long nothing may come of it while sources bring what there is, or sinks take what was written.
CATCH_UP_SECONDS = 60.0
LOOK_SECONDS = 0.5


class ConnectorsBeside:
    """The process, and what it says that people have to hear."""

    def __init__(
        self, app: "App", connection: "Connection", notice: Callable[[str], None], companion: Companion, since_ms: int
    ) -> None:
        self._app = app
        self._connection = connection
        self._notice = notice
        self._companion = companion
        self._since_ms = since_ms

    def look(self) -> None:
        """Called again and again: start it again when it died, and say what there is to say."""
        self._companion.look()
        for line in self._companion.new_lines():
            self._notice(phrase_of(line, app_names(self._app)))

    def hurry(self, seconds: float) -> None:
        """Kafka is gone: do not wait longer than this for an end in order."""
        self._companion.hurry(seconds)

    def ask_to_stop(self) -> None:
        self._companion.ask_to_stop()

    def feed(self, stop: threading.Event) -> None:
        """Wait until sources have brought what there is, before streams are run to its end."""
        self._wait(stop, "source", "sources are not done")

    def catch_up(self, stop: threading.Event) -> None:
        """Wait until sinks have taken what was written."""
        self._wait(stop, "sink", "sinks are not done")

    def _wait(self, stop: threading.Event, kind: str, words: str) -> None:
        from riverrun.connectors.ledger import read_ledger

        deadline = time.monotonic() + CATCH_UP_SECONDS
        left = "not started"
        while left and time.monotonic() < deadline and not self._companion.given_up:
            self.look()
            before = left
            try:
                left = self._unfinished(read_ledger(self._connection, self._app.name, settled=False), kind)
            except RiverrunError as error:
                left = str(error)
            if left != before:
                deadline = time.monotonic() + CATCH_UP_SECONDS
            if left and stop.wait(LOOK_SECONDS):
                return
        if left:
            self._notice(f"{words}: {left}; the next run goes on from there")

    def _unfinished(self, ledger: "Ledger", kind: str) -> str:
        """What is not done, in words; empty when all is. What is known must be of the process that runs now."""
        from riverrun.connectors.process import behind_of, names_of

        life = ledger.life
        if life is None or life.begun < self._since_ms:
            return "they have not started yet"
        standings = [each for each in ledger.standings.values() if each.kind == kind and each.since_ms >= life.begun]
        known = {each.name for each in standings}
        if missing := sorted(set(names_of(self._app, kind)) - known):
            return f"{', '.join(missing)} not started yet"
        going = [each for each in standings if each.state not in ("failed", "finished")]
        if kind == "sink":
            # What a sink says of itself may be older than what was just written: the cluster knows.
            behind = {each.name: behind_of(self._connection, self._app, each.name) for each in going}
            return ", ".join(f"{name} {count} offsets behind" for name, count in behind.items() if count)
        busy = [each for each in going if not each.quiet or (each.lag or 0) > 0]
        return ", ".join(f"{each.who} {each.state}, {each.records} records" for each in busy)


@contextmanager
def connectors_beside(
    settings: "Loaded", app: "App", connection: "Connection", notice: Callable[[str], None]
) -> Iterator[ConnectorsBeside | None]:
    """Run an app's own sources and sinks as long as the block lasts; None where it has none."""
    from riverrun.connectors.process import has_connectors

    if not has_connectors(app):
        yield None
        return
    command = [sys.executable, "-m", "riverrun", "--project", str(settings.project.root)]
    if settings.profile:
        command += ["--profile", settings.profile]
    command += ["connectors", "run", app.file, "--bootstrap-servers", connection.bootstrap_servers]
    companion = Companion("the connector process", command, settings.project.logs / "connectors.log", notice=notice)
    since_ms = time.time_ns() // 1_000_000
    companion.start()
    try:
        yield ConnectorsBeside(app, connection, notice, companion, since_ms)
    finally:
        companion.stop(STOP_SECONDS)
