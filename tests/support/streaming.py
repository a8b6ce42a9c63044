"""Runs the streams of a pipeline file in the test run's own Spark session, on a real cluster."""

import json
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import riverrun as rr
from riverrun.app import App, load_app
from riverrun.config import Project, Settings, SparkSettings
from riverrun.kafka.connection import Connection
from riverrun.model.pipeline import Speed
from riverrun.model.progress import PipelineProgress, StreamProgress
from riverrun.streams.pipeline import Pipeline, build_checked_graph

SETTINGS = Settings(spark=SparkSettings(shuffle_partitions=2))
MOST_SECONDS = 170.0


def make_pipeline(spark: SparkSession, app: App | Path, connection: Connection, root: Path, **options: Any) -> Pipeline:
    found = load_app(app) if isinstance(app, Path) else app
    pipeline = Pipeline(build_checked_graph(found), spark, SETTINGS, Project(root), connection, **options)
    pipeline.prepare()
    return pipeline


def run_streams(
    spark: SparkSession,
    app: App | Path,
    connection: Connection,
    root: Path,
    *,
    speed: Speed | None = None,
    every: str | None = "0 s",
    only: Collection[str] = (),
    fresh: Collection[str] = (),
    keep_state: Collection[str] = (),
    look: Callable[[], None] = lambda: None,
    notice: Callable[[str], None] = lambda _: None,
    seconds: float = MOST_SECONDS,
) -> dict[str, StreamProgress]:
    """Run until all there is has been read; where each stream stood at the end. `look` is called all along."""
    pipeline = make_pipeline(
        spark,
        app,
        connection,
        root,
        speed=speed,
        every=every,
        only=only,
        fresh=fresh,
        keep_state=keep_state,
        notice=notice,
    )
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    last: list[PipelineProgress] = []

    def changed(progress: PipelineProgress) -> None:
        last.append(progress)
        look()

    try:
        pipeline.run(stop, changed, until_caught_up=True)
    finally:
        timer.cancel()
    assert not stop.is_set(), f"not caught up after {seconds:.0f} s: {last[-1:]}"
    return {stream.name: stream for stream in last[-1].streams}


def read_rows(connection: Connection, topic: str) -> list[dict[str, Any]]:
    """All rows of a topic."""
    with rr.Consumer(topic, connection=connection, follow=False) as consumer:
        return [json.loads(record.raw or b"") for record in consumer]


def newest(connection: Connection, topic: str, key: Collection[str]) -> dict[tuple[str, ...], dict[str, Any]]:
    """The newest row of each key in a topic."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    with rr.Consumer(topic, connection=connection, follow=False) as consumer:
        for record in consumer:
            row = json.loads(record.raw or b"{}")
            found[tuple(json.dumps(row[name], sort_keys=True) for name in key)] = row
    return found
