"""Kafka Connect beside running streams: `riverrun run` gives it the pipeline file's connectors, and supervises them."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from riverrun.connectors.postgres.debezium import FAILED_CHANGES, ROW_GONE, failed_lsn
from riverrun.errors import ConnectError, ConnectUnavailableError, RiverrunError

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.config import LoadedSettings
    from riverrun.connectors.kafka_connect import ConnectClient, Vault
    from riverrun.connectors.postgres.connector_configs import ConnectorConfigs
    from riverrun.streams.compile.compiler import Compilation

POLL_SECONDS = 2.0
# A failed connector is restarted after these pauses, the last of them again and again.
RESTART_BACKOFF_SECONDS = (2.0, 5.0, 15.0, 60.0)
STOP_SECONDS = 5.0
# A connector that Connect lacks in this many polls in a row is reported missing.
MISSING_POLLS = 3
# How long a connector may take at most to pass a change that is skipped, and how often it is asked.
LEAVE_OUT_SECONDS = 60.0
PASSED_SECONDS = 0.2


def needs_connect(app: "App") -> bool:
    """Whether the app declares what only Kafka Connect can run."""
    declared = [
        *(binding.source for binding in app.sources.values()),
        *(binding.sink for binding in app.sinks.values()),
    ]
    return any(getattr(binding, "runs_as", "") == "connect" for binding in declared)


def plugins_of(app: "App") -> list[str]:
    """The plugins of Connect that an app needs: the sink's is large, and most apps have none. A source's is also needed
    to remove one that the app had."""
    sinks = any(getattr(binding.sink, "runs_as", "") == "connect" for binding in app.sinks.values())
    return ["debezium-postgres", *(["debezium-jdbc"] if sinks else [])]


def has_undeclared_connectors(settings: "LoadedSettings", app: "App") -> bool:
    """Whether our own Connect still has connectors of this app that the file no longer declares, and none that it does:
    it is started once more, to remove them."""
    from riverrun.connectors.kafka_connect import Vault

    return not settings.attached and bool(Vault.of(settings).connectors(app.name))


def source_configs_of(settings: "LoadedSettings", app: "App") -> "ConnectorConfigs":
    """The connector configurations for the databases that the app follows, as they are now. All problems at once,
    before anything starts."""
    from riverrun.cli.output import say
    from riverrun.connectors.postgres.connector_configs import cdc_connectors, source_configs

    postgres, project = settings.settings.postgres, settings.project
    return source_configs(cdc_connectors(app, postgres, project, say), postgres, project, notice=say)


def sink_configs_of(
    settings: "LoadedSettings", done: "Compilation", notice: Callable[[str], None]
) -> "ConnectorConfigs":
    """The connector configurations for the app's sinks, after their tables were created or compared. All problems at
    once."""
    from riverrun.connectors.jdbc.config import sink_configs
    from riverrun.streams.compile.jdbc_sinks import jdbc_targets

    targets = jdbc_targets(done)
    if not targets:
        return {}
    postgres, app = settings.settings.postgres, done.graph.app.name
    return sink_configs(
        app, targets, postgres, settings.project, replication_factor=replication_of(settings), notice=notice
    )


def replication_of(settings: "LoadedSettings") -> int:
    """The replication factor of topics that Connect creates: -1, the cluster's own default, where nothing sets it."""
    return settings.settings.kafka.replication or -1


class ConnectReconciler:
    """Connect's connectors of an app. A thread tells Connect and watches it, because its answers may take long; what there
    is to say is said by `poll`."""

    def __init__(
        self,
        client: "ConnectClient",
        vault: "Vault",
        app: str,
        configs: "ConnectorConfigs",
        notice: Callable[[str], None],
        *,
        removed: "Callable[[Mapping[str, str]], str]" = lambda _: "",
    ) -> None:
        self._client = client
        self._removed = removed
        self._vault = vault
        self._app = app
        self._configs = configs
        self._notice = notice
        self._stop = threading.Event()
        self._messages: list[str] = []
        self._failures: dict[str, int] = {}
        # Declared connectors that are not in Connect, and in how many polls.
        self._missing: dict[str, int] = {}
        # Connectors that could not be removed, and when to retry.
        self._leftover: set[str] = set()
        self._remove_at = 0.0
        self._unreachable = False
        self._stop_seconds = STOP_SECONDS
        self._thread = threading.Thread(target=self._run, name="connect", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def limit_stop_time(self, seconds: float) -> None:
        """Kafka is down: its thread is not waited for longer than this."""
        self._stop_seconds = min(self._stop_seconds, seconds)

    def ask_to_stop(self) -> None:
        self._stop.set()

    def stop(self) -> None:
        self.ask_to_stop()
        self._thread.join(self._stop_seconds)
        self.poll()
        self._client.close()

    def poll(self) -> None:
        """Called again and again: print new messages."""
        while self._messages:
            self._notice(self._messages.pop(0))

    def wait_until_caught_up(self, stop: threading.Event) -> None:
        """Nothing to wait for: what is in the topics was read, and what comes now is for the next run."""

    def _run(self) -> None:
        tried = 0
        while not self._stop.is_set() and not self._reconcile():
            self._stop.wait(RESTART_BACKOFF_SECONDS[min(tried, len(RESTART_BACKOFF_SECONDS) - 1)])
            tried += 1
        # With nothing to run and nothing left to remove, there is nothing to watch.
        while (self._configs or self._leftover) and not self._stop.wait(POLL_SECONDS):
            try:
                if self._leftover and time.monotonic() >= self._remove_at:
                    self._reconcile()
                self._watch()
            except ConnectUnavailableError as error:
                if not self._unreachable:
                    self._messages.append(f"{error.what}: it is started again, and goes on from where it was")
                self._unreachable = True
            except RiverrunError as error:
                self._messages.append(str(error))

    def _reconcile(self) -> bool:
        """Make Connect's connectors what they should be. False: retry later."""
        from riverrun.connectors.kafka_connect import reconcile_connectors

        def removed(config: Mapping[str, str]) -> None:
            if words := self._removed(config):
                self._messages.append(words)

        before, leftover = set(self._leftover), set[str]()
        self._remove_at = time.monotonic() + RESTART_BACKOFF_SECONDS[-1]

        def not_removed(name: str, error: ConnectError) -> None:
            if name not in before:
                self._messages.append(f"the connector {name} could not be removed, which is tried again: {error}")
            leftover.add(name)
            self._leftover.add(name)

        try:
            reconcile_connectors(
                self._client,
                self._vault,
                self._app,
                self._configs,
                notice=self._messages.append if not before else lambda _: None,
                on_removed=removed,
                on_remove_failed=not_removed,
            )
        except ConnectUnavailableError as error:
            if self._configs:
                self._messages.append(f"connectors do not run yet: {error}")
            return False
        except ConnectError as error:
            self._messages.append(f"connectors do not run yet: {error}")
            return not error.retryable and error.code == "CONNECT_FAILED"
        except RiverrunError as error:
            self._messages.append(str(error))
            return False
        self._leftover = leftover
        if self._configs and not before:
            self._messages.append(f"Kafka Connect runs {', '.join(self._configs)}")
        return True

    def _watch(self) -> None:
        states = self._client.states()
        if self._unreachable:
            self._unreachable = False
            self._messages.append("Kafka Connect answers again")
        for name in self._configs:
            state = states.get(name)
            # One that was just created may not be listed yet.
            self._missing[name] = self._missing.get(name, 0) + 1 if state is None else 0
            if self._missing[name] == MISSING_POLLS:
                self._messages.append(f"Kafka Connect does not have the connector {name}: `riverrun run` makes it anew")
            if state is None or state.overall == "starting":
                continue
            if state.overall != "failed":
                if self._failures.pop(name, 0):
                    self._messages.append(f"the connector {name} runs again")
                continue
            if ROW_GONE in state.reason and self._leave_out(name):
                continue
            times = self._failures.get(name, 0)
            pause = RESTART_BACKOFF_SECONDS[min(times, len(RESTART_BACKOFF_SECONDS) - 1)]
            self._failures[name] = times + 1
            self._messages.append(f"the connector {name} failed: {state.reason}; starting it again in {pause:g} s")
            if not self._stop.wait(pause):
                self._client.restart(name)
                # Until it has restarted, its state is still that of the failure.
                self._stop.wait(POLL_SECONDS)

    def _leave_out(self, name: str) -> bool:
        """Let a connector skip a change that it can never read: an update has left a long value (TOAST) alone, so it is
        not in the log, and its row no longer exists to be queried. Its delete follows. False: the failure does not say
        where that was.

        Changes that cannot be read are skipped, never written with Debezium's placeholder, and only until the connector
        has passed the one it failed at: a change that fails for another reason must be retried.
        """
        failed = failed_lsn(self._client.trace(name))
        if failed is None:
            return False
        self._messages.append(
            f"{name}: a row with a long value was deleted before its update was read; that update (at {failed} in the "
            "database's log) is left out, and the delete follows. REPLICA IDENTITY FULL has the value in the log"
        )
        self._client.put(name, {**self._client.config(name), FAILED_CHANGES: "warn"}, checked=True)
        until = time.monotonic() + LEAVE_OUT_SECONDS
        try:
            while time.monotonic() < until and not self._stop.wait(PASSED_SECONDS):
                if any(int(offset["offset"].get("lsn") or 0) > failed for offset in self._client.offsets(name)):
                    break
        finally:
            self._client.put(name, {**self._client.config(name), FAILED_CHANGES: "fail"}, checked=True)
        self._stop.wait(POLL_SECONDS)
        return True


@contextmanager
def reconcile_connect(
    settings: "LoadedSettings",
    app: "App",
    configs: "ConnectorConfigs",
    notice: Callable[[str], None],
) -> Iterator[ConnectReconciler | None]:
    """Keep Connect's connectors those of the app as long as the block lasts, and remove those that it no longer
    declares; None where the app has none and there is no Connect. They go on afterwards, for as long as Connect
    runs."""
    from riverrun.config import load
    from riverrun.connectors.kafka_connect import ConnectClient, Vault

    current_settings = load(settings.project, profile=settings.profile)
    vault = Vault.of(current_settings)
    if not needs_connect(app) and not current_settings.settings.connect.url:
        if vault.connectors(app.name):
            notice(f"Kafka Connect still has connectors of {app.name}: start it once to have them removed, `riverrun down` "
                   "and `riverrun run`, or their replication slots make the database keep its log")  # fmt: skip
        yield None
        return

    def removed(config: Mapping[str, str]) -> str:
        from riverrun.connectors.postgres.cleanup import drop_slot

        password = vault.reveal(config.get("database.password", ""))
        return drop_slot(config, password, current_settings.settings.postgres, current_settings.project.root)

    client = ConnectClient.of(current_settings.settings.connect, current_settings.project)
    reconciler = ConnectReconciler(client, vault, app.name, configs, notice, removed=removed)
    reconciler.start()
    try:
        yield reconciler
    finally:
        reconciler.stop()
