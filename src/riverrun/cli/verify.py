"""`riverrun verify`: is what the streams have written what their code makes of what they have read?"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.context import cluster_option, load_declared, loaded, names_of
from riverrun.cli.output import json_option, plural, print_json, print_rows
from riverrun.cli.progress import StepProgress
from riverrun.errors.base import sentence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun.config import Loaded
    from riverrun.streams.verify import Verdict

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
    from riverrun.errors import NotEqualError, UsageError
    from riverrun.streams.session import require_pyspark

    require_pyspark()
    settings = loaded(kafka__bootstrap_servers=bootstrap)
    if file and not file.endswith(".py") and settings.settings.project.app:
        # With project.app set, the first word may be a stream as well.
        streams, file = (file, *streams), None
    app = load_declared(settings, file)
    if app is None:
        raise UsageError("No pipeline file is named", hint="Give its path, or set project.app in riverrun.toml")
    found: list[Verdict] = []
    with StepProgress(names=names_of(app)) as progress:
        for verdict in _verdicts(settings, app, streams, progress):
            found.append(verdict)
            if not as_json:
                progress.step("")
                _show(verdict)
    if as_json:
        print_json([{"state": each.state, **asdict(each)} for each in found])
    wrong = [each for each in found if each.state == "differs"]
    if wrong:
        rows = sum(sum(each.wrong.values()) for each in wrong)
        raise NotEqualError(
            f"{plural(rows, 'row')} of {', '.join(each.stream for each in wrong)} differ",
            hint="What differs is above, with where to look" if not as_json else "",
            streams=[each.stream for each in wrong],
        )
    if any(each.unproved for each in found):
        ctx.exit(UNPROVED)


def _verdicts(settings: "Loaded", app: Any, streams: tuple[str, ...], progress: StepProgress) -> "Iterator[Verdict]":
    from riverrun.cluster.signals import shielded
    from riverrun.kafka.admin.admin import Admin
    from riverrun.kafka.connection import require_cluster
    from riverrun.streams.blueprint import FILE, History
    from riverrun.streams.books import read_account
    from riverrun.streams.checkpoint import read_stand
    from riverrun.streams.compiler import compile_app
    from riverrun.streams.ending import stop_spark
    from riverrun.streams.generations import checkpoint_of, read_generations
    from riverrun.streams.pipeline import checked_graph, checkpoints_of, open_session, streams_folder
    from riverrun.streams.remote_files import checkpoint_folder
    from riverrun.streams.session import TaskCount
    from riverrun.streams.sources import KafkaRecords
    from riverrun.streams.verify import Verifier, require_streams

    graph = checked_graph(app)
    connection = require_cluster(settings.settings.kafka, settings.project, settings.settings.registry)
    progress.step("starting Spark")
    spark = open_session(graph, settings.settings, settings.project, speed="batch")
    try:
        progress.step("reading the pipeline file")
        done = compile_app(graph, spark, KafkaRecords(spark, connection, topics=graph.app.topics)).require()
        verifier = Verifier(done, connection, Admin(connection))
        checkpoints = checkpoints_of(settings.settings, settings.project, app)
        tasks = TaskCount(spark)
        for name in require_streams(done, streams):
            progress.step(f"computing {name} again and comparing", tasks)
            folder = streams_folder(settings.project, app) / name
            account, _ = read_account(folder / "account.json")
            stand = read_stand(checkpoint_folder(spark, checkpoint_of(checkpoints, folder)), name)
            # Of a generation that a replay has made, the rows before the cut are in a topic of their own.
            earlier = [each.topic for each in read_generations(folder)[-1:]]
            history = History.read(folder / FILE)
            yield verifier.verify(name, stand, late=account.late, history=history, earlier=earlier)
    finally:
        with shielded():
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
                "key": each.key,
                "what": each.kind,
                "expected": each.expected,
                "found": each.found,
                "at": "" if each.offset is None else f"{verdict.topic}[{each.partition}]@{each.offset}",
                "batch": each.batch,
            }
            for each in verdict.shown
        ],
        as_json=False,
    )
    for cause in verdict.causes:
        click.echo(f"  look: {cause}")
