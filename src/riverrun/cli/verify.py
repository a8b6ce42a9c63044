"""`riverrun verify`: checks whether the streams' output is what their code computes from their input."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from riverrun.app import declared_names
from riverrun.cli.context import cluster_option, load_declared, load_settings
from riverrun.cli.output import json_option, plural, print_json, print_rows
from riverrun.cli.progress import StepProgress
from riverrun.errors.base import sentence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun.config import LoadedSettings
    from riverrun.streams.verify.verifier import Verdict

UNPROVED = 3


@click.command(epilog="Example: riverrun verify meters.py house_load --json | jq .[].state")
@click.argument("file", required=False, metavar="[FILE]")
@click.argument("streams", nargs=-1, metavar="[STREAM]...")
@cluster_option
@json_option
@click.pass_context
def verify(
    ctx: click.Context, /, *, file: str | None, streams: tuple[str, ...], bootstrap: str | None, as_json: bool
) -> None:
    """Compute what streams have written again, in batch, over exactly what they have read, and compare row by row.

    The streams may run meanwhile. Ends with 0 when all rows are equal, but for those that can lack records which the stream
    has dropped as late; 1 when some differ, 3 when it cannot be told for a stream (its input is gone, or its operators have
    no batch form).
    """
    from riverrun.errors import UsageError, VerificationFailedError
    from riverrun.streams.run.session import require_pyspark

    require_pyspark()
    settings = load_settings(kafka__bootstrap_servers=bootstrap)
    if file and not file.endswith(".py") and settings.settings.project.app:
        # With project.app set, the first word may be a stream as well.
        streams, file = (file, *streams), None
    app = load_declared(settings, file)
    if app is None:
        raise UsageError("No pipeline file is named", hint="Give its path, or set project.app in riverrun.toml")
    verdicts: list[Verdict] = []
    with StepProgress(names=declared_names(app)) as progress:
        for verdict in _verdicts(settings, app, streams, progress):
            verdicts.append(verdict)
            if not as_json:
                progress.step("")
                _show(verdict)
    if as_json:
        print_json([{"state": compared.state, **asdict(compared)} for compared in verdicts])
    differing = [compared for compared in verdicts if compared.state == "differs"]
    if differing:
        rows = sum(sum(compared.wrong.values()) for compared in differing)
        raise VerificationFailedError(
            f"{plural(rows, 'row')} of {', '.join(compared.stream for compared in differing)} differ",
            hint="What differs is above, with where to look" if not as_json else "",
            streams=[compared.stream for compared in differing],
        )
    if any(compared.unproved for compared in verdicts):
        ctx.exit(UNPROVED)


def _verdicts(
    settings: "LoadedSettings", app: Any, streams: tuple[str, ...], progress: StepProgress
) -> "Iterator[Verdict]":
    from riverrun.cluster.signals import shield_from_signals
    from riverrun.kafka.admin.admin import Admin
    from riverrun.kafka.connection import require_cluster
    from riverrun.streams.checkpoint import read_checkpoint_status
    from riverrun.streams.checkpoint_files import checkpoint_folder
    from riverrun.streams.compile.compiler import compile_app
    from riverrun.streams.compile.fingerprint import HISTORY_FILE, VersionHistory
    from riverrun.streams.compile.sources import KafkaRecordSource
    from riverrun.streams.generations import checkpoint_path, read_generations
    from riverrun.streams.pipeline import build_checked_graph, checkpoints_location, open_session, streams_folder
    from riverrun.streams.run.progress import read_record_counts
    from riverrun.streams.run.session import SparkJobProgress
    from riverrun.streams.run.shutdown import stop_spark
    from riverrun.streams.verify.verifier import Verifier, require_streams

    graph = build_checked_graph(app)
    connection = require_cluster(settings.settings.kafka, settings.project, settings.settings.registry)
    progress.step("starting Spark")
    spark = open_session(graph, settings.settings, settings.project, speed="batch")
    try:
        progress.step("reading the pipeline file")
        done = compile_app(graph, spark, KafkaRecordSource(spark, connection, topics=graph.app.topics)).require()
        verifier = Verifier(done, connection, Admin(connection))
        checkpoints = checkpoints_location(settings.settings, settings.project, app)
        tasks = SparkJobProgress(spark)
        for name in require_streams(done, streams):
            progress.step(f"computing {name} again and comparing", tasks)
            folder = streams_folder(settings.project, app) / name
            account, _ = read_record_counts(folder / "record_counts.json")
            checkpoint = read_checkpoint_status(checkpoint_folder(spark, checkpoint_path(checkpoints, folder)), name)
            # Of a replayed generation, the rows before the cutover are in a topic of their own.
            earlier = [read_generation.topic for read_generation in read_generations(folder)[-1:]]
            history = VersionHistory.read(folder / HISTORY_FILE)
            yield verifier.verify(name, checkpoint, late=account.late, history=history, earlier=earlier)
    finally:
        with shield_from_signals():
            stop_spark(spark, connection)


def _show(verdict: "Verdict") -> None:
    if verdict.unproved:
        click.echo(sentence(f"{verdict.stream}: cannot be told: {verdict.unproved}"))
        return
    since = f"from batch {verdict.since} (its code changed then) " if verdict.since else ""
    read = f"{plural(verdict.records, 'record')} read {since}up to batch {verdict.batch}"
    if verdict.state == "equal":
        late = f", but for {plural(verdict.late, 'row')} that late records can explain" if verdict.late else ""
        click.echo(f"{verdict.stream}: equal{late}. {read}, {plural(verdict.rows, 'row')} in {verdict.topic}.")
        if verdict.late:
            click.echo(
                "  The stream drops records that come when their window is over, and counts them as late; a batch has them. "
                f"It has counted {verdict.dropped}, so up to {verdict.late} of these rows can be of late records. That "
                "none of them was lost in another way is not proved."
            )
        return
    counts = ", ".join(f"{count} {kind}" for kind, count in verdict.wrong.items())
    click.echo(f"{verdict.stream}: differs. {read}; of {plural(verdict.rows, 'row')} in {verdict.topic}: {counts}.")
    print_rows(
        [
            {
                "key": difference.key,
                "what": difference.kind,
                "expected": difference.expected,
                "found": difference.found,
                "at": ""
                if difference.offset is None
                else f"{verdict.topic}[{difference.partition}]@{difference.offset}",
                "batch": difference.batch,
            }
            for difference in verdict.shown
        ],
        as_json=False,
    )
    for cause in verdict.causes:
        click.echo(f"  look: {cause}")
