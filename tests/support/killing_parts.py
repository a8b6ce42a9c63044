"""Batches on a real Spark cluster that lose one part, or their driver, after the other parts were committed.

`script/kill-parts --rounds 100 --seed 1` is the long form; tests/e2e/test_part_kills.py a short one.
"""

import argparse
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from riverrun.cluster.spark import LocalSpark
from riverrun.config import KafkaSettings, Project, Settings, SparkSettings, StreamSettings
from riverrun.kafka.connection import Connection
from riverrun.testing.pytest_plugin import local_kafka
from support.part_failures import PARTITIONS, Mode, Rounds

TESTS = Path(__file__).parents[1]
# On a crowded machine a driver alone takes minutes to start.
ROUND_SECONDS = 900.0
# Every so many rounds the driver is killed: that takes ten times as long as a round in which a part fails.
KILL_EVERY = 10


class Driver:
    """The process that runs the pipeline, as `riverrun run` does, with its Spark session, until its input is closed."""

    def __init__(self, folder: Path, bootstrap: str, spark: LocalSpark, app: Path) -> None:
        self._log = (folder / "driver.log").open("ab")
        options = {"master": spark.master, "config": spark.driver_settings, "app": str(app), "bootstrap": bootstrap}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--driver", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
            text=True,
        )
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], ROUND_SECONDS)
        line = out.readline() if ready else ""
        assert line, f"the driver did not start within {ROUND_SECONDS:.0f} s, or ended: see {self._log.name}"
        self._jvm = int(line)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """kill -9, Spark first: it must not have the time to stop in order."""
        os.kill(self._jvm, signal.SIGKILL)
        self._process.kill()
        self._close()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
        else:
            self._close()

    def _close(self) -> None:
        self._process.wait()
        for each in (self._process.stdin, self._process.stdout, self._log):
            if each is not None:
                each.close()


def drive(options: dict[str, Any]) -> None:
    """What the driver's process does."""
    from pyspark import SparkContext

    from riverrun.app import load_app
    from riverrun.streams.pipeline import Pipeline, build_checked_graph
    from riverrun.streams.run import running_stream
    from riverrun.streams.run.session import start_session, stop_session

    root = Path(options["app"]).parent
    # One try a task, so that a part which fails is the batch's failure; small, because two executors share two cores.
    config = {"spark.task.maxFailures": "1", "spark.executor.memory": "512m", **options["config"]}
    settings = Settings(
        spark=SparkSettings(
            master=options["master"], python=sys.executable, driver_memory_mb=768, shuffle_partitions=2, config=config
        ),
        streams=StreamSettings(checkpoints=f"file://{root / 'checkpoints'}"),
    )
    connection = Connection(KafkaSettings(bootstrap_servers=options["bootstrap"]))
    # The rounds follow each other faster than streams fail elsewhere.
    running_stream.BACKOFF_SECONDS = (0.2,) * len(running_stream.BACKOFF_SECONDS)  # type: ignore[assignment]
    spark = start_session(settings, root / "spark", name="parts", brief=True)
    process: Any = SparkContext._gateway
    print(process.proc.pid, flush=True)
    stop = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    try:
        graph = build_checked_graph(load_app(Path(options["app"])))
        pipeline = Pipeline(graph, spark, settings, Project(root), connection, every="0 s", notice=told)
        pipeline.prepare()
        pipeline.run(stop)
    finally:
        stop_session(spark)


def told(notice: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {notice}", file=sys.stderr, flush=True)


@dataclass
class Outcome:
    rounds: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    seconds: float = 0.0


def kill_parts(
    folder: Path, connection: Connection, spark: LocalSpark, *, rounds: int, seed: int, kill_every: int = KILL_EVERY
) -> Outcome:
    """So many rounds; AssertionError with what is lost or there twice after the first that is not right."""
    outcome, begun = Outcome(), time.monotonic()
    work = Rounds(folder, connection, name=f"parts{seed}", seed=seed)
    work.make_topics()
    bootstrap = str(connection.properties()["bootstrap.servers"])
    driver = Driver(folder, bootstrap, spark, work.app)
    try:
        for turn in range(rounds):
            mode: Mode = "stall" if turn % kill_every == kill_every - 1 else "retry"
            # Every part in turn, then by chance.
            part = work.plan(turn, mode, turn if turn < PARTITIONS else None)
            _wait_for(work.done, driver)
            if mode == "stall":
                driver.kill()
                driver = Driver(folder, bootstrap, spark, work.app)
            # From the first record on, again in each round: what comes twice may come late.
            with work.tally() as tally:
                tally.until(work.sent, ROUND_SECONDS)
            outcome.rounds[mode] += 1
            twice = [number for number, times in tally.rows.items() if times > 1]
            print(
                f"round {turn + 1}: partition {part} {'failed' if mode == 'retry' else 'ran when the driver was killed'}; "
                f"{work.sent} records so far, 0 lost, {len(twice)} twice, {time.monotonic() - begun:.0f} s",
                flush=True,
            )
            assert not twice, f"there twice: {twice}"
    finally:
        driver.close()
    lost, twice = work.wrong()
    assert (lost, twice) == ([], []), f"lost {lost}, twice {twice}"
    outcome.rows, outcome.seconds = work.sent, time.monotonic() - begun
    return outcome


def _wait_for(file: Path, driver: Driver) -> None:
    deadline = time.monotonic() + ROUND_SECONDS
    while not file.exists():
        assert driver.alive, f"the driver ended by itself: see driver.log in {file.parent}"
        assert time.monotonic() < deadline, f"the part that was to fail did not get there: no {file}"
        time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/kill-parts", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill-every", type=int, default=KILL_EVERY, help="rounds from one killed driver to the next")
    parser.add_argument("--driver", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.driver:
        drive(json.loads(arguments.driver))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="riverrun-parts-"))
    with local_kafka(folder / "kafka", KafkaSettings()) as kafka, LocalSpark(folder / "spark-cluster") as spark:
        connection = Connection(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
        try:
            outcome = kill_parts(
                folder,
                connection,
                spark,
                rounds=arguments.rounds,
                seed=arguments.seed,
                kill_every=arguments.kill_every,
            )
        except AssertionError as error:
            print(f"seed {arguments.seed}: {error}\nEverything is in {folder}")
            return 1
    print(
        f"{outcome.rounds.total()} rounds in {outcome.seconds:.0f} s: a part failed in {outcome.rounds['retry']}, "
        f"the driver was killed between part commits in {outcome.rounds['stall']}; {outcome.rows} records, 0 lost, 0 twice"
    )
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
