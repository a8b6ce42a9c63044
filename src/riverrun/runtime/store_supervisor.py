"""The store beside running streams: `riverrun run` starts `riverrun serve` as a process of its own, and supervises it."""

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from riverrun.config.serve_state import StoreEndpoint, find_store_endpoint
from riverrun.errors import RiverrunError
from riverrun.runtime.supervised_process import SupervisedProcess

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.config import LoadedSettings

# Packages of riverrun[store] that the serving process requires.
REQUIRED_PACKAGES = ("duckdb", "pyarrow", "sqlglot", "starlette", "uvicorn")
STOP_SECONDS = 30.0
# How long the tables may take to catch up with a finished pipeline.
CATCH_UP_SECONDS = 120.0
POLL_SECONDS = 0.25
# How often the tables are checked for failing ones.
TABLES_SECONDS = 5.0


# Prints a title and rows of (what, address): `StreamDisplay.addresses`.
AddressPrinter = Callable[[str, Sequence[tuple[str, str]]], None]


class StoreSupervisor:
    """The process that serves the store: ours, or one that ran already. `addresses` prints where its pages are."""

    def __init__(
        self,
        settings: "LoadedSettings",
        app: "App",
        process: SupervisedProcess | None,
        notice: Callable[[str], None],
        addresses: AddressPrinter,
    ) -> None:
        self._settings = settings
        self._app = app
        self._process = process
        self._notice = notice
        self._addresses = addresses
        self._addresses_shown = False
        self._failing = FailingTableWatch(notice)
        # The tables it must have before it counts as caught up.
        self.expected: Collection[str] = ()

    def poll(self) -> None:
        """Called again and again: restart it when it died, and print its addresses once it answers."""
        if self._process is not None:
            self._process.poll()
        if not self._addresses_shown and (serving := self.serving) is not None:
            self._addresses_shown = True
            self._addresses(f"{self._app.name} runs", pages_of(self._app, serving))
        if self._addresses_shown:
            self._failing.poll(self.serving)

    @property
    def serving(self) -> StoreEndpoint | None:
        return find_store_endpoint(self._settings.project)

    def limit_stop_time(self, seconds: float) -> None:
        """Kafka is down: do not wait longer than this for a clean exit."""
        if self._process is not None:
            self._process.limit_stop_time(seconds)

    def ask_to_stop(self) -> None:
        if self._process is not None:
            self._process.ask_to_stop()

    def wait_until_caught_up(self, stop: threading.Event) -> None:
        """Wait until the tables have caught up with their topics, or `stop`; returns a sentence when they have not."""
        from riverrun.store.client import StoreClient

        deadline = time.monotonic() + CATCH_UP_SECONDS
        behind = ["the store, which has not started"]
        while behind and time.monotonic() < deadline:
            self.poll()
            if self._process is not None and self._process.given_up:
                return
            if (serving := self.serving) is not None:
                try:
                    with StoreClient.for_serving(serving) as client:
                        statuses = client.table_statuses()
                    behind = [status.table for status in statuses if status.lag != 0 and status.state != "failing"]
                    # A store that has just started may not have read the catalog yet.
                    behind += sorted(set(self.expected) - {status.table for status in statuses})
                except RiverrunError as error:
                    behind = [str(error)]
            if behind and stop.wait(POLL_SECONDS):
                break
        if behind:
            self._notice(f"the tables are behind ({', '.join(behind)}); the next `riverrun serve` goes on from there")


class FailingTableWatch:
    """Reports tables that take no more rows: streams go on without them, and queries on them return old rows.

    The store is asked by a thread, so that an unresponsive one blocks nobody.
    """

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._queried_at = 0.0
        self._query_thread: threading.Thread | None = None
        self._reported: dict[str, str] = {}
        self._failing: dict[str, str] = {}

    def poll(self, serving: StoreEndpoint | None) -> None:
        """Called again and again: report what has changed, and check again from time to time."""
        failing, reported = self._failing, self._reported
        for table in sorted(failing.keys() - reported.keys()):
            self._notice(f"the table {table} takes no more rows, and what it answers is old: {failing[table]}")
        for table in sorted(reported.keys() - failing.keys()):
            self._notice(f"the table {table} follows its topic again")
        self._reported = failing
        busy = self._query_thread is not None and self._query_thread.is_alive()
        if serving is None or busy or time.monotonic() - self._queried_at < TABLES_SECONDS:
            return
        self._queried_at = time.monotonic()
        self._query_thread = threading.Thread(target=self._query, args=(serving,), name="failing-tables", daemon=True)
        self._query_thread.start()

    def _query(self, serving: StoreEndpoint) -> None:
        from riverrun.store.client import StoreClient

        # A store that does not answer is reported by the supervisor of its process.
        with suppress(RiverrunError), StoreClient.for_serving(serving) as client:
            self._failing = {
                status.table: status.detail for status in client.table_statuses() if status.state == "failing"
            }


def pages_of(app: "App", serving: StoreEndpoint) -> list[tuple[str, str]]:
    """The pages that the store's server has for an app, the most useful first."""
    pages = [
        *([("Dashboard", "/")] if app.dashboards else []),
        ("Tables", "/sql"),
        ("Pipeline", "/pipeline"),
        *([("Alerts", "/alerts")] if app.alerts else []),
    ]
    addresses = [(name, f"{serving.address}{path}") for name, path in pages]
    return addresses + ([("For others", f"{serving.public_address}/")] if serving.public_address else [])


@contextmanager
def supervise_store(
    settings: "LoadedSettings",
    app: "App",
    bootstrap_servers: str,
    notice: Callable[[str], None],
    addresses: AddressPrinter,
) -> Iterator[StoreSupervisor | None]:
    """Serve the project's store as long as the block lasts, unless it is served already; None without a store."""
    kind = settings.settings.store.kind
    if kind == "none":
        yield None
        return
    if missing := [name for name in REQUIRED_PACKAGES if find_spec(name) is None]:
        notice(
            f'results are not kept as tables: {missing[0]} is not installed; pip install "riverrun[store]" brings it'
        )
        yield None
        return
    if find_store_endpoint(settings.project) is not None:
        yield StoreSupervisor(settings, app, None, notice, addresses)
        return
    command = [sys.executable, "-m", "riverrun", "--project", str(settings.project.root)]
    if settings.profile:
        command += ["--profile", settings.profile]
    command += ["serve", app.file, "--store", kind, "--bootstrap-servers", bootstrap_servers]
    process = SupervisedProcess("the store", command, settings.project.logs / "store.log", notice=notice)
    process.start()
    try:
        yield StoreSupervisor(settings, app, process, notice, addresses)
    finally:
        process.stop(STOP_SECONDS)
