"""The store beside running streams: `riverrun run` starts `riverrun serve` as a process of its own, and looks after it."""

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from riverrun.cluster.companion import Companion
from riverrun.config.serve_state import Serving, find_serving
from riverrun.errors import RiverrunError

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.config import Loaded

# Packages of riverrun[store] that the serving process cannot do without.
NEEDED = ("duckdb", "pyarrow", "sqlglot", "starlette", "uvicorn")
STOP_SECONDS = 30.0
# How long the tables may take to have all that a finished pipeline wrote.
CATCH_UP_SECONDS = 120.0
LOOK_SECONDS = 0.25
# How often the tables are looked at for those that fail.
TABLES_SECONDS = 5.0


# A title and its rows of what there is and where: `LiveBoard.addresses`.
Addresses = Callable[[str, Sequence[tuple[str, str]]], None]


class StoreBeside:
    """The process that serves the store: ours, or one that ran already. `addresses` shows where its pages are."""

    def __init__(
        self,
        settings: "Loaded",
        app: "App",
        companion: Companion | None,
        notice: Callable[[str], None],
        addresses: Addresses,
    ) -> None:
        self._settings = settings
        self._app = app
        self._companion = companion
        self._notice = notice
        self._addresses = addresses
        self._told = False
        self._failing = FailingTables(notice)
        # The tables it is to have.
        self.expected: Collection[str] = ()

    def look(self) -> None:
        """Called again and again: start it again when it died, and say where it is once it answers."""
        if self._companion is not None:
            self._companion.look()
        if not self._told and (serving := self.serving) is not None:
            self._told = True
            self._addresses(f"{self._app.name} runs", pages_of(self._app, serving))
        if self._told:
            self._failing.look(self.serving)

    @property
    def serving(self) -> Serving | None:
        return find_serving(self._settings.project)

    def hurry(self, seconds: float) -> None:
        """Kafka is gone: do not wait longer than this for an end in order."""
        if self._companion is not None:
            self._companion.hurry(seconds)

    def ask_to_stop(self) -> None:
        if self._companion is not None:
            self._companion.ask_to_stop()

    def catch_up(self, stop: threading.Event) -> None:
        """Wait until the tables have all that is in their topics, or `stop`; a sentence when they do not."""
        from riverrun.store.client import StoreClient

        deadline = time.monotonic() + CATCH_UP_SECONDS
        behind = ["the store, which has not started"]
        while behind and time.monotonic() < deadline:
            self.look()
            if self._companion is not None and self._companion.given_up:
                return
            if (serving := self.serving) is not None:
                try:
                    with StoreClient.of(serving) as client:
                        standing = client.standing()
                    behind = [each.table for each in standing if each.lag != 0 and each.state != "failing"]
                    # One that has just started has not read yet which tables there are.
                    behind += sorted(set(self.expected) - {each.table for each in standing})
                except RiverrunError as error:
                    behind = [str(error)]
            if behind and stop.wait(LOOK_SECONDS):
                break
        if behind:
            self._notice(f"the tables are behind ({', '.join(behind)}); the next `riverrun serve` goes on from there")


class FailingTables:
    """Tells of tables that take no more rows: streams go on without them, and what they answer is old.

    The store is asked by a thread, so that one that does not answer holds up nobody.
    """

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._asked = 0.0
        self._asking: threading.Thread | None = None
        self._known: dict[str, str] = {}
        self._found: dict[str, str] = {}

    def look(self, serving: Serving | None) -> None:
        """Called again and again: say what has changed, and ask anew from time to time."""
        found, known = self._found, self._known
        for table in sorted(found.keys() - known.keys()):
            self._notice(f"the table {table} takes no more rows, and what it answers is old: {found[table]}")
        for table in sorted(known.keys() - found.keys()):
            self._notice(f"the table {table} follows its topic again")
        self._known = found
        busy = self._asking is not None and self._asking.is_alive()
        if serving is None or busy or time.monotonic() - self._asked < TABLES_SECONDS:
            return
        self._asked = time.monotonic()
        self._asking = threading.Thread(target=self._ask, args=(serving,), name="failing-tables", daemon=True)
        self._asking.start()

    def _ask(self, serving: Serving) -> None:
        from riverrun.store.client import StoreClient

        # A store that does not answer is told by those who look after its process.
        with suppress(RiverrunError), StoreClient.of(serving) as client:
            self._found = {each.table: each.detail for each in client.standing() if each.state == "failing"}


def pages_of(app: "App", serving: Serving) -> list[tuple[str, str]]:
    """What the store's server shows of an app, the first that people want to see first."""
    pages = [
        *([("Dashboard", "/")] if app.dashboards else []),
        ("Tables", "/sql"),
        ("Pipeline", "/pipeline"),
        *([("Alerts", "/alerts")] if app.alerts else []),
    ]
    found = [(name, f"{serving.address}{path}") for name, path in pages]
    return found + ([("For others", f"{serving.outside}/")] if serving.outside else [])


@contextmanager
def store_beside(
    settings: "Loaded", app: "App", bootstrap_servers: str, notice: Callable[[str], None], addresses: Addresses
) -> Iterator[StoreBeside | None]:
    """Serve the project's store as long as the block lasts, unless somebody does already; None without a store."""
    kind = settings.settings.store.kind
    if kind == "none":
        yield None
        return
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        notice(
            f'results are not kept as tables: {missing[0]} is not installed; pip install "riverrun[store]" brings it'
        )
        yield None
        return
    if find_serving(settings.project) is not None:
        yield StoreBeside(settings, app, None, notice, addresses)
        return
    command = [sys.executable, "-m", "riverrun", "--project", str(settings.project.root)]
    if settings.profile:
        command += ["--profile", settings.profile]
    command += ["serve", app.file, "--store", kind, "--bootstrap-servers", bootstrap_servers]
    companion = Companion("the store", command, settings.project.logs / "store.log", notice=notice)
    companion.start()
    try:
        yield StoreBeside(settings, app, companion, notice, addresses)
    finally:
        companion.stop(STOP_SECONDS)
