"""Kafka Connect beside running streams: `riverrun run` tells it what the pipeline file declares, and looks after it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from riverrun.errors import ConnectError, ConnectUnavailableError, RiverrunError

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.config import Loaded
    from riverrun.connectors.kafka_connect import ConnectClient, Vault
    from riverrun.connectors.postgres.wanted import Configs
    from riverrun.streams.compiler import Compilation

LOOK_SECONDS = 2.0
# A connector that fails is started again after these pauses, the last of them again and again.
PAUSES = (2.0, 5.0, 15.0, 60.0)
STOP_SECONDS = 5.0


def needs_connect(app: "App") -> bool:
    """Whether the app declares what only Kafka Connect can run."""
    declared = [*(each.source for each in app.sources.values()), *(each.sink for each in app.sinks.values())]
    return any(getattr(each, "runs_as", "") == "connect" for each in declared)


def source_configs_of(settings: "Loaded", app: "App") -> "Configs":
    """What Connect is to run for the databases that the app follows, as they are now. All problems at once, before anything
    starts."""
    from riverrun.cli.output import say
    from riverrun.connectors.postgres.wanted import followings_of, source_configs

    postgres, project = settings.settings.postgres, settings.project
    return source_configs(followings_of(app, postgres, project, say), postgres, project, notice=say)


def sink_configs_of(settings: "Loaded", done: "Compilation", notice: Callable[[str], None]) -> "Configs":
    """What Connect is to run for the sinks of the app, after their tables were made or compared. All problems at once."""
    from riverrun.connectors.jdbc.config import sink_configs
    from riverrun.streams.sinks import targets_of

    targets = targets_of(done)
    if not targets:
        return {}
    copies = settings.settings.kafka.replication or min(3, settings.settings.kafka.brokers)
    postgres, app = settings.settings.postgres, done.graph.app.name
    return sink_configs(app, targets, postgres, settings.project, copies=copies, notice=notice)


class ConnectBeside:
    """Connect's connectors of an app. A thread tells Connect and watches it, because its answers may take long; what there
    is to say is said by `look`."""

    def __init__(
        self,
        client: "ConnectClient",
        vault: "Vault",
        app: str,
        configs: "Configs",
        notice: Callable[[str], None],
    ) -> None:
        self._client = client
        self._vault = vault
        self._app = app
        self._configs = configs
        self._notice = notice
        self._stop = threading.Event()
        self._said: list[str] = []
        self._failures: dict[str, int] = {}
        self._away = False
        self._thread = threading.Thread(target=self._run, name="connect", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._stop.set()

    def stop(self) -> None:
        self.ask_to_stop()
        self._thread.join(STOP_SECONDS)
        self.look()
        self._client.close()

    def look(self) -> None:
        """Called again and again: say what there is to say."""
        while self._said:
            self._notice(self._said.pop(0))

    def catch_up(self, stop: threading.Event) -> None:
        """Nothing to wait for: what is in the topics was read, and what comes now is for the next run."""

    def _run(self) -> None:
        tried = 0
        while not self._stop.is_set() and not self._keep():
            self._stop.wait(PAUSES[min(tried, len(PAUSES) - 1)])
            tried += 1
        while not self._stop.wait(LOOK_SECONDS):
            try:
                self._watch()
            except ConnectUnavailableError as error:
                if not self._away:
                    self._said.append(f"{error.what}: it is started again, and goes on from where it was")
                self._away = True
            except RiverrunError as error:
                self._said.append(str(error))

    def _keep(self) -> bool:
        """Make Connect's connectors what they should be. False: it is to be tried again."""
        from riverrun.connectors.kafka_connect import keep_connectors

        try:
            keep_connectors(self._client, self._vault, self._app, self._configs, notice=self._said.append)
        except ConnectError as error:
            self._said.append(f"connectors do not run yet: {error}")
            return not error.retryable and error.code == "CONNECT_FAILED"
        except RiverrunError as error:
            self._said.append(str(error))
            return False
        names = ", ".join(self._configs)
        self._said.append(f"Kafka Connect runs {names}")
        return True

    def _watch(self) -> None:
        states = self._client.states()
        if self._away:
            self._away = False
            self._said.append("Kafka Connect answers again")
        for name in self._configs:
            state = states.get(name)
            if state is None or state.overall == "starting":
                continue
            if state.overall != "failed":
                if self._failures.pop(name, 0):
                    self._said.append(f"the connector {name} runs again")
                continue
            times = self._failures.get(name, 0)
            pause = PAUSES[min(times, len(PAUSES) - 1)]
            self._failures[name] = times + 1
            self._said.append(f"the connector {name} failed: {state.reason}; starting it again in {pause:g} s")
            if not self._stop.wait(pause):
                self._client.restart(name)
                # Until it has begun again, its state is still that of the failure.
                self._stop.wait(LOOK_SECONDS)


@contextmanager
def connect_beside(
    settings: "Loaded",
    app: "App",
    configs: "Configs",
    notice: Callable[[str], None],
) -> Iterator[ConnectBeside | None]:
    """Keep Connect's connectors those of the app as long as the block lasts; None where it has none. They go on afterwards,
    for as long as Connect runs."""
    if not needs_connect(app):
        yield None
        return
    from riverrun.config import load
    from riverrun.connectors.kafka_connect import ConnectClient, Vault

    now = load(settings.project, profile=settings.profile)
    client = ConnectClient.of(now.settings.connect, now.project)
    beside = ConnectBeside(client, Vault.of(now), app.name, configs, notice)
    beside.start()
    try:
        yield beside
    finally:
        beside.stop()
