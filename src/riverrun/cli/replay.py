"""`riverrun replay`: recompute a stream from an earlier position, beside the running one, and take over in one cutover."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from riverrun.app import declared_names
from riverrun.cli.context import cluster_option, load_declared, load_settings
from riverrun.cli.output import plural, say
from riverrun.cli.progress import StepProgress

if TYPE_CHECKING:
    from riverrun.config import LoadedSettings
    from riverrun.streams.evolve.replay import ReplayProgress
    from riverrun.streams.evolve.replay_request import ReplayRequest
    from riverrun.streams.generations import Generation


@click.command(
    epilog="""\b
Examples:
  riverrun replay meters.py house_load --from '1 hour ago'
  riverrun replay meters.py house_load            # from the beginning, or go on with one that was stopped
  riverrun replay meters.py house_load --cancel
"""
)
@click.argument("file", metavar="[FILE]", required=False)
@click.argument("stream", metavar="STREAM", required=False)
@click.option(
    "--from",
    "start",
    default="",
    metavar="PLACE",
    help="beginning, an offset, -N for the last N records of each partition, or a time such as '1 hour ago'. "
    "[default: beginning; of one that was stopped, where it is]",
)
@click.option("--cancel", "give_up", is_flag=True, help="Remove a replay that is not finished, and all it wrote.")
@cluster_option
def replay(*, file: str | None, stream: str | None, start: str, give_up: bool, bootstrap: str | None) -> None:
    """Compute a stream again with the code as it is now, beside the running one, and take over when it has caught up.

    What it computes goes to a topic of its own, TOPIC.2 the first time. When it stands where the running stream does, the
    new generation goes on in the stream's own topic: no record is on both sides of the cut, and none on neither. Ctrl-C
    stops it; the same command goes on with it. A replay never sends an alert.
    """
    from riverrun.errors import UsageError
    from riverrun.streams.run.session import require_pyspark

    require_pyspark()
    settings = load_settings(kafka__bootstrap_servers=bootstrap)
    if stream is None and file and settings.settings.project.app:
        stream, file = file, None
    if stream is None:
        raise UsageError("No stream is named", hint="Say which: riverrun replay FILE STREAM")
    app = load_declared(settings, file)
    if app is None:
        raise UsageError("No pipeline file is named", hint="Give its path, or set project.app in riverrun.toml")
    from riverrun.streams.evolve.replay_request import make_replay_request

    request = make_replay_request(app, settings.settings, settings.project, stream, start)
    with request.replay.lock():
        _cancel(settings, request) if give_up else _replay(settings, request)


def _cancel(settings: "LoadedSettings", request: "ReplayRequest") -> None:
    from riverrun.kafka.admin.admin import Admin
    from riverrun.kafka.connection import require_cluster
    from riverrun.streams.evolve.replay_request import cancel_replay

    topic = cancel_replay(
        request, Admin(require_cluster(settings.settings.kafka, settings.project, settings.settings.registry))
    )
    say(f"The replay of {request.stream} is removed, and its topic {topic}. The stream itself is as it was.")


def _replay(settings: "LoadedSettings", request: "ReplayRequest") -> None:
    from riverrun.cli.pipeline import open_kafka
    from riverrun.cluster.signals import shield_from_signals, stop_on_signals
    from riverrun.kafka.admin.admin import Admin
    from riverrun.streams.evolve.replay import Replay
    from riverrun.streams.evolve.replay_request import finish_swap
    from riverrun.streams.pipeline import build_checked_graph, open_session
    from riverrun.streams.run.session import stop_session

    graph = build_checked_graph(request.app)
    request.check()
    with StepProgress(names=declared_names(request.app)) as line, ExitStack() as stack:
        line.step("starting Kafka", announced=False)
        registry = any(topic.registered for topic in request.app.topics.values())
        connection = stack.enter_context(open_kafka(settings, registry=registry))
        stack.callback(line.step, "stopping Kafka", announced=False)
        generation = finish_swap(request, Admin(connection))
        if generation is None:
            line.step("starting Spark")
            spark: Any = open_session(graph, settings.settings, settings.project, speed="near-real-time")
            try:
                job = Replay(
                    request,
                    graph,
                    spark,
                    connection,
                    settings=settings.settings,
                    project=settings.project,
                    notice=line.notice,
                )
                line.step(f"reading the pipeline file and where {request.stream} stands")
                job.prepare()
                line.step(f"replaying {request.stream}")
                # Until here a signal ends it at once: connecting to an unreachable master takes long.
                with stop_on_signals() as stop:
                    generation = job.run(stop, lambda progress: line.update(progress_line(progress)))
                line.step("stopping Spark")
            finally:
                with shield_from_signals():
                    stop_session(spark)
    if generation is None:
        say(
            f"Stopped. `{request.command}` goes on with it, and `{request.command} --cancel` removes it; "
            f"{request.stream} was not touched."
        )
    else:
        _print_result(request, generation, settings.settings.store.kind)


def _tables_text(request: "ReplayRequest", target: str, store: str) -> str:
    """What happens to the tables of the stream."""
    if store == "druid":
        return f"Druid's tables of {target} keep their rows from before the cutover (docs/replay.md says why)."
    if store == "none":
        return "There is no store, so no table shows it."
    return f"The store reads it, and shows it in the tables of {request.stream} as soon as it has all of it."


def _print_result(request: "ReplayRequest", generation: "Generation", store: str) -> None:
    target = request.app.streams[request.stream].output_topic
    first = ", ".join(f"{target}[{part}]@{offset}" for part, offset in sorted(generation.first.items()))
    rows = f"{plural(generation.rows, 'row')}" if generation.rows >= 0 else "all rows"
    click.echo(
        f"{request.stream} is generation {generation.number}, read again from {generation.replayed_from}. "
        f"Its rows in {target} begin at {first}."
    )
    click.echo(f"The corrected history, {rows} up to there, is in {generation.topic}.")
    click.echo(_tables_text(request, target, store))


def progress_line(progress: "ReplayProgress") -> str:
    """The progress of a replay, in one line."""
    left = progress.seconds_left
    when = "" if left is None or not progress.left else f", about {_duration(left)} left"
    speed = f" at {_short_number(progress.rate)}/s" if progress.rate else ""
    done = plural(progress.read, "record")
    todo = f"about {_short_number(progress.left)}" if progress.left else "none"
    phase = "" if progress.phase == "replaying" else f"{progress.phase}, "
    return f"{phase}{done} read{speed}, {todo} to go{when}"


def _short_number(number: float) -> str:
    return f"{number:,.0f}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
