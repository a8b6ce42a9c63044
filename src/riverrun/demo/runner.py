"""Runs a use case live: Kafka, its source application, its streams with tables, dashboard and alerts; then the final
counts.

Everything runs as a child process that is stopped in the opposite order of its start. Ctrl-C ends it within ten
seconds.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
import webbrowser
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.live import Live

from riverrun.alerts.backlog import describe_backlog
from riverrun.alerts.gateway.message_store import AcceptedMessage, MessageStore
from riverrun.alerts.kafka_log import read_alert_state
from riverrun.cluster.signals import ShieldedExitStack, stop_on_signals
from riverrun.config import Project, load
from riverrun.config.gateway_state import find_gateway_endpoint, gateway_folder
from riverrun.config.processes import DemoState
from riverrun.config.run_state import running_state
from riverrun.config.serve_state import find_store_endpoint
from riverrun.config.stream_state import last_progress
from riverrun.connectors.postgres.capture import captured_tables
from riverrun.demo.database import FOLLOW, SourceDatabase, database_unavailable_reason
from riverrun.demo.final_counts import AlertCounts, FinalCounts
from riverrun.demo.processes import DemoProcess, StepReporter, check_processes, clear_project
from riverrun.demo.results import StreamResults
from riverrun.demo.use_cases import APP, FIGURES, SOURCE
from riverrun.errors import RiverrunError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection, require_cluster
from riverrun.model.progress import PipelineProgress, StreamProgress
from riverrun.model.topology import topology_from_dict

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from riverrun.app import App

LINE_SECONDS = 5.0
# After Ctrl-C, how long the streams may catch up: everything is over within ten seconds.
STOP_PATIENCE_SECONDS = 1.5
# A process that fails is reported at once; a slow one, on a small or busy machine, is waited for.
READING_SECONDS, START_SECONDS, FIGURES_SECONDS = 600.0, 900.0, 600.0
# Kafka writes the commit marker within milliseconds.
TRANSACTION_SECONDS = 30.0
# A process that failed takes a moment to end.
CAUSE_SECONDS = 10.0


@dataclass(frozen=True)
class DemoOptions:
    """What is run, and how. `source` are the arguments of the source application; `seconds` is how long it runs after
    the streams have started, 0 until somebody stops it."""

    folder: Path
    source: Sequence[str] = ()
    seconds: float = 0.0
    brokers: int = 1
    browser: bool = True
    store: str = "embedded"
    # The brokers of a running cluster; empty: start one.
    cluster: str = ""


@dataclass
class LiveCounts:
    """How many records the topics hold, and the pipeline's last progress."""

    progress: PipelineProgress
    stored: int = 0
    letters: int = 0
    sms_count: int = 0
    _samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=12))

    def update(self, stored: int, letters: int, sms_count: int) -> None:
        self.stored, self.letters, self.sms_count = stored, letters, sms_count
        self._samples.append((time.monotonic(), stored))

    @property
    def rate(self) -> float:
        """Records stored per second, over the last samples."""
        (first, before), (last, now) = self._samples[0], self._samples[-1]
        return (now - before) / (last - first) if last > first else 0.0


class Demo:
    """Everything that runs; `stack` stops it. A use case with a demo of its own overrides `results`, `page`, `line`,
    `first_rows`, `shown` and `final`."""

    # What the receivers of messages are called.
    phones_of = "The phones"

    def __init__(self, console: "Console", options: DemoOptions, stack: contextlib.ExitStack, app: "App") -> None:
        self.console = console
        self.options = options
        self.app = app
        self._stack = stack
        self._project = Project(options.folder)
        self._processes: list[DemoProcess] = []
        # The topics that are filled from outside.
        written = {stream.output_topic for stream in app.streams.values()}
        self._topics = [name for name in app.topics if name not in written]
        # Topics filled by HTTP or by way of a database have transaction markers between their records, and offsets
        # count those too: they are read instead.
        self._database: SourceDatabase | None = None
        self._source_results: StreamResults | None = None

    # --- what a use case may override ---------------------------------------------------------------------------------

    def results(self) -> StreamResults:
        return StreamResults([stream.output_topic for stream in self.app.streams.values()])

    def page(self, numbers: LiveCounts, results: StreamResults, width: int) -> "RenderableType":
        """One frame of the live view."""
        raise NotImplementedError

    def line(self, numbers: LiveCounts, results: StreamResults) -> str:  # noqa: ARG002
        """The same in a line of text, where there is no terminal."""
        lags = ", ".join(f"{stream.name} {max(0, stream.lag):,}" for stream in numbers.progress.streams)
        return (
            f"{numbers.rate:,.0f} records/s, {numbers.stored:,} stored, {numbers.letters:,} dead letters, "
            f"{numbers.sms_count:,} SMS; behind: {lags}"
        )

    def first_rows(self, rows: dict[str, int]) -> bool:
        """Whether there is something to show."""
        return any(rows.values())

    def shown(self, numbers: LiveCounts, results: StreamResults) -> None:
        """Called when the live view is over."""

    def final(self, final: FinalCounts) -> tuple[list[str], list[str]]:
        """The lines to print at the end, and the problems among them."""
        return final.lines(), final.violations()

    # --- starting -----------------------------------------------------------------------------------------------------

    def start(self, steps: StepReporter) -> None:
        options, druid = self.options, self.options.store == "druid"
        # Each demo starts from nothing, so that its counts are its own.
        clear_project(self._project)
        shutil.rmtree(gateway_folder(self._project), ignore_errors=True)
        self._start_database(steps)
        connect = self._database is not None
        if options.cluster:
            self._attach(steps)
        else:
            self._start_cluster(steps, connect=connect, druid=druid)
        self.app.apply(self._connection())
        if marked := self._topics if connect else self._connector_topics():
            self._source_results = self._stack.enter_context(StreamResults(marked))
        fresh = [word for name in self.app.streams for word in ("--fresh", name)]
        self._pipeline = self._start_process("pipeline", "-m", "riverrun", "run", APP, "--store", options.store, *fresh)
        if self._database is not None:
            with steps.step("Waiting for Debezium", "The database is followed"):
                steps.until(self._is_replicating, START_SECONDS, "nobody follows the database")
        # Records sent while Spark starts wait in Kafka: the first batch has something to show.
        self._source = self._start_process("source", SOURCE, *options.source)
        with steps.step("Starting Spark and the store", "The streams run, their tables and dashboard are served"):
            steps.until(lambda: self._all_running() and self._served(), START_SECONDS, "the streams did not start")
        self._results = self._stack.enter_context(self.results())
        with steps.step("Waiting for the first figures", "The first figures are there"):
            steps.until(self._figures, START_SECONDS, "the streams gave no figures")
        self.console.print(f"[bold]The dashboard is at {self._address}/[/bold]  (Ctrl-C ends the demo)")
        if self.app.alerts:
            self.console.print(f"[bold]{self.phones_of} are at {self._phones}/[/bold]")
            self.console.print(f"What fires, and why, is at {self._address}/alerts")
        if options.browser:
            open_in_browser(f"{self._address}/")

    def _start_cluster(self, steps: StepReporter, *, connect: bool, druid: bool) -> None:
        named = ["Kafka", *["Connect"] * connect, *["Druid"] * druid]
        servers, more = " and ".join(named), [*["--connect"] * connect, *["--druid"] * druid]
        with steps.step(f"Starting {servers}", f"{servers} {'are' if more else 'is'} ready"):
            self._start_process("kafka", "-m", "riverrun", "up", "--brokers", str(self.options.brokers), *more)
            steps.until(self._kafka_runs, 600 if more else 120, f"{servers} did not start")
            self._admin = Admin(self._connection())

    def _attach(self, steps: StepReporter) -> None:
        """Use a running cluster. Records of an earlier demo there would be counted as this one's."""
        self._admin = Admin(self._connection())
        if nonempty := [name for name in self._topics if self._count(name)]:
            raise SystemExit(
                f"There are records in {', '.join(nonempty)} at {self.options.cluster} already. Delete the topics first."
            )
        if self.app.alerts:
            # On an attached cluster `riverrun run` starts none by itself.
            self._start_process("phones", "-m", "riverrun", "phone")
            steps.until(
                lambda: find_gateway_endpoint(self._project) is not None, START_SECONDS, "the phones did not start"
            )

    def _start_database(self, steps: StepReporter) -> None:
        """A database for the source, where it writes to one. Without: it sends straight to Kafka, and the user is told."""
        if why := database_unavailable_reason(self.app):
            self.console.print(f"{why}: the source sends straight to the topics that a database would fill.")
        elif captured_tables(self.app):
            with steps.step("Starting Postgres", "Postgres is ready"):
                self._database = SourceDatabase(self.app, self._project, self._stack)

    def _connector_topics(self) -> list[str]:
        """The topics that our connectors fill, in transactions: not all of their offsets are records."""
        return [source.topic for source in self.app.sources.values() if source.source.runs_as != "connect"]

    def _is_replicating(self) -> bool:
        self._check()
        self._progress()
        return self._database is not None and self._database.has_replication()

    def _connection(self) -> Connection:
        settings = load(self._project).settings
        return require_cluster(settings.kafka, self._project, settings.registry)

    def _start_process(self, name: str, *arguments: str) -> DemoProcess:
        process = DemoProcess(self.options.folder, name, *arguments)
        self._stack.callback(process.stop)
        self._processes.append(process)
        return process

    def _kafka_runs(self) -> bool:
        self._check()
        state = running_state(self._project)
        return state is not None and state.state == "ready"

    def _served(self) -> bool:
        self._check()
        serving, phones = find_store_endpoint(self._project), find_gateway_endpoint(self._project)
        self._address = serving.address if serving is not None else ""
        self._phones = phones.address if phones is not None else ""
        return serving is not None and (phones is not None or not self.app.alerts)

    def _figures(self) -> bool:
        self._check()
        self._progress()
        return self.first_rows(self._results.rows())

    def find_cause(self, error: RiverrunError) -> None:
        """Find why something does not answer: exits with the output of a process that died or is dying; returns when
        all live."""
        deadline = time.monotonic() + CAUSE_SECONDS
        while time.monotonic() < deadline:
            check_processes(self._processes, error)
            time.sleep(0.2)

    # --- progress -----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        check_processes(self._processes)

    def _progress(self) -> PipelineProgress | None:
        """The pipeline's last progress; None before the first."""
        progress = last_progress(self._project)
        if progress is None or progress.pid != self._pipeline.pid:
            return None
        for stream in progress.streams:
            if stream.phase == "failed":
                raise SystemExit(f"The stream {stream.name} failed: {stream.error}")
        return progress

    def _unbounded_streams(self) -> list[StreamProgress]:
        """The streams that do not end by themselves: all but batch ones."""
        progress = self._progress()
        return [stream for stream in progress.streams if stream.speed != "batch"] if progress is not None else []

    def _all_running(self) -> bool:
        self._check()
        moving = self._unbounded_streams()
        return bool(moving) and all(stream.phase == "running" for stream in moving)

    def _needed(self) -> dict[str, int]:
        """How many records each stream has to read, of those that read only outside topics. Topics that streams write
        have transaction markers between their records, and offsets count those too."""
        progress = self._progress()
        shape = topology_from_dict(progress.topology) if progress is not None else None
        needed = {}
        for stream in self._unbounded_streams():
            node = shape.find("stream", stream.name) if shape is not None else None
            inputs = shape.inputs(node, "topic") if shape is not None and node is not None else []
            if inputs and set(inputs) <= set(self._topics):
                needed[stream.name] = sum(map(self._count, inputs))
        return needed

    def _max_lag(self, needed: dict[str, int]) -> int:
        """The lag of the slowest stream: in records, or in offsets where it reads other streams' topics."""
        left = [
            needed[stream.name] - stream.record_counts.read if stream.name in needed else stream.lag
            for stream in self._unbounded_streams()
        ]
        return max([0, *left])

    def _count(self, topic: str) -> int:
        """How many records a topic holds: nothing is deleted during a demo. Transactional topics are counted as they
        are read; in the others each offset is a record."""
        if self._source_results is not None and topic in (read := self._source_results.rows()):
            return read[topic]
        topic_state = self._admin.topics([topic], config=False).get(topic)
        return (
            sum(self._admin.offsets(topic_state.topic_partitions, "latest", committed_only=True).values())
            if topic_state
            else 0
        )

    def _no_open_transactions(self) -> bool:
        """Whether no transaction is open in the topics filled from outside."""
        partitions = [
            partition
            for topic in self._admin.topics(self._topics, config=False).values()
            for partition in topic.topic_partitions
        ]
        ends = self._admin.offsets(partitions, "latest")
        return ends == self._admin.offsets(partitions, "latest", committed_only=True)

    def _letters(self, topic: str) -> int:
        return self._count(f"{topic}.dead")

    def _messages(self) -> list[AcceptedMessage]:
        """The messages on the phones, from the gateway's message store."""
        path = gateway_folder(self._project) / "messages.sqlite"
        if not path.is_file():
            return []
        with contextlib.closing(MessageStore(path)) as messages:
            return messages.newest(1_000_000)

    def _alerts(self) -> AlertCounts | None:
        if not self.app.alerts:
            return None
        alert_state = read_alert_state(self._connection(), self.app.name)
        sent = {
            sent_message.delivery.provider_id
            for sent_message in alert_state.deliveries.values()
            if sent_message.delivery.state in ("sent", "delivered")
        }
        shown = [(sent_message.receiver, sent_message.text) for sent_message in self._messages()]
        return AlertCounts(len(alert_state.incidents), len(sent), len(shown), len(shown) - len(set(shown)))

    # --- while it runs ------------------------------------------------------------------------------------------------

    def show(self, stop: threading.Event) -> None:
        """The live view, until the time is over or somebody stops it."""
        console, options = self.console, self.options
        ends = time.monotonic() + options.seconds if options.seconds else float("inf")
        due = time.monotonic() + LINE_SECONDS
        progress = self._progress()
        assert progress is not None  # noqa: S101  -- `start` has waited for it
        numbers, results = LiveCounts(progress), self._results
        with Live(console=console, auto_refresh=False, screen=False) as live:
            while True:
                self._check()
                results.check()
                numbers.progress = self._progress() or numbers.progress
                stored, dead_letters = (sum(map(count, self._topics)) for count in (self._count, self._letters))
                numbers.update(stored, dead_letters, len(self._messages()))
                over = time.monotonic() >= ends or stop.is_set()
                if console.is_terminal:
                    live.update(self.page(numbers, results, console.width), refresh=True)
                elif time.monotonic() >= due:
                    due = time.monotonic() + LINE_SECONDS
                    console.print(self.line(numbers, results), soft_wrap=True)
                if over:
                    break
                stop.wait(0.5)
            if not console.is_terminal:
                console.print(self.page(numbers, results, console.width))
        self.shown(numbers, results)

    # --- the end ------------------------------------------------------------------------------------------------------

    def report_final_counts(self, steps: StepReporter, *, asked: bool) -> int:
        """Stop the source, wait until everything is read, and compare the counts. Returns the exit code.

        Somebody who asked to stop is done in seconds: on a machine that is too busy, without the counts.
        """
        sent = self._source.stop()
        self._processes.remove(self._source)
        ends = time.monotonic() + (STOP_PATIENCE_SECONDS if asked else READING_SECONDS)
        if self._database is not None:
            with steps.step("What is left comes from the database", "All of it has come"):
                while sum(map(self._count, self._topics)) < sent.get("acknowledged", 0) and time.monotonic() < ends:
                    self._check()
                    time.sleep(0.1)
        if self._source_results is not None:
            # The commit marker of an acknowledged transaction may still be on its way.
            steps.until(self._no_open_transactions, TRANSACTION_SECONDS, "a transaction of the source is still open")
            self._source_results.finish()
        needed = self._needed()
        with steps.step("The streams read what is left", "The streams have read what they could"):
            while self._max_lag(needed) and time.monotonic() < ends:
                self._check()
                time.sleep(0.1)
        if behind := self._max_lag(needed):
            _say(f"The streams are {behind:,} offsets behind: not counted. With --seconds the demo waits for them.")
            self._pipeline.ask_to_stop()
            return 0 if asked else 1
        left = ""
        if self.app.alerts:
            with steps.step("People are told of what is left", "People have been told"):
                while (left := describe_backlog(self._connection(), self.app.name)) and time.monotonic() < ends:
                    time.sleep(0.2)
        with steps.step("Stopping Spark", "Spark has stopped"):
            self._pipeline.stop()
            self._processes.remove(self._pipeline)
            self._results.finish()
        if left:
            _say(f"People were not all told: {left}. Not counted. With --seconds the demo waits for them.")
            return 0 if asked else 1
        wrong = self._compare(sent, needed)
        if not asked:
            wrong += self._check_figures(sent, steps)
        _say(f"Something is wrong. This does not hold: {'; '.join(wrong)}." if wrong else "Nothing lost.")
        return 1 if wrong else 0

    def _compare(self, sent: dict[str, int], needed: dict[str, int]) -> list[str]:
        progress = self._progress()
        assert progress is not None  # noqa: S101
        counted, streams = self._results.rows(progress), self._unbounded_streams()
        lines, wrong = self.final(
            FinalCounts(
                sent=sent,
                stored={name: self._count(name) for name in self._topics},
                letters={name: self._letters(name) for name in self._topics},
                streams={stream.name: stream.record_counts for stream in streams},
                needed=needed,
                rows={stream.name: counted[stream.topic or stream.name] for stream in streams},
                alerts=self._alerts(),
                restarted_streams=frozenset(stream.name for stream in streams if stream.speed == "real-time"),
            )
        )
        _say(*lines)
        return wrong

    def _check_figures(self, sent: dict[str, int], steps: StepReporter) -> list[str]:
        """Compare with what plain Python computes from the same events, where the use case has a figures.py: it gets
        exactly the events that the source has sent."""
        program = self.options.folder / FIGURES
        if "events" not in sent or not program.is_file() or "__main__" not in program.read_text(encoding="utf-8"):
            return []
        with steps.step("Computing the figures in plain Python", "The figures are compared"):
            command = [sys.executable, FIGURES, *self.options.source, "--events", str(sent["events"])]
            done = subprocess.run(
                command, cwd=self.options.folder, capture_output=True, text=True, check=False,
                timeout=FIGURES_SECONDS, start_new_session=True,
            )  # fmt: skip
        _say(*done.stdout.splitlines(), *done.stderr.splitlines()[-15:])
        return [] if done.returncode == 0 else ["the figures are what plain Python finds"]


def _say(*lines: str) -> None:
    for line in lines:
        print(line)  # noqa: T201  -- results of a command: stdout, whatever the console is


def open_in_browser(address: str) -> threading.Thread | None:
    """Open the page, where there is a browser. In a thread: some browsers block until they close."""
    if not any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")):
        return None
    opening = threading.Thread(target=webbrowser.open, args=(address,), daemon=True)
    opening.start()
    return opening


def run_demo(console: "Console", make: Callable[[contextlib.ExitStack], Demo]) -> int:
    """Run a demo from its start to its final counts. Returns the exit code; KeyboardInterrupt when it was stopped
    before it ran."""
    with stop_on_signals() as stop, ShieldedExitStack() as stack:
        demo = make(stack)
        # Before anything is touched, and until all is over.
        stack.enter_context(DemoState(Project(demo.options.folder), demo.app.name))
        try:
            demo.start(StepReporter(console, stop))
        except KeyboardInterrupt:
            console.print("Stopping …")
            raise
        except SystemExit as error:
            # Reported before its processes are stopped: one that does not stop in time has more to say.
            print(error, file=sys.stderr)  # noqa: T201
            raise SystemExit(1) from error
        try:
            demo.show(stop)
            asked = stop.is_set()
            # From here on the next Ctrl-C is the second one, and skips the counts.
            stop.set()
            return demo.report_final_counts(StepReporter(console, threading.Event()), asked=asked)
        except RiverrunError as error:
            demo.find_cause(error)
            raise


def enter_project(folder: Path, cluster: str = "") -> None:
    """Set the project for the demo and everything it starts, wherever it is called from."""
    os.environ["RIVERRUN_PROJECT"] = str(folder)
    if cluster:
        # A Connect of ours needs a Kafka of ours: a source that writes to a database does without it.
        os.environ |= {"RIVERRUN_KAFKA_BOOTSTRAP_SERVERS": cluster, FOLLOW: "false"}
    # The hourly message limit of a receiver goes by our clock. A demo's hours are minutes, and its phones are ours.
    os.environ.setdefault("RIVERRUN_ALERTS_SMS_PER_RECEIVER_HOUR", "0")
    os.chdir(folder)


def source_arguments(options: Iterable[tuple[str, object]]) -> list[str]:
    """The arguments of a source application, from the options that were given."""
    return [word for name, value in options if value is not None for word in (f"--{name}", str(value))]
