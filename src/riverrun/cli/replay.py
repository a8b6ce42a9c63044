"""`riverrun replay`: compute a stream again from an earlier place, beside the running one, and take over in one cut."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.context import cluster_option, load_declared, loaded, names_of
from riverrun.cli.output import plural, say
from riverrun.cli.progress import StepProgress

if TYPE_CHECKING:
    from riverrun.config import Loaded
    from riverrun.streams.generations import Generation
    from riverrun.streams.replay import ReplayProgress
    from riverrun.streams.wish import Wish


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
    from riverrun.streams.session import require_pyspark

    require_pyspark()
    settings = loaded(kafka__bootstrap_servers=bootstrap)
    if stream is None and file and settings.settings.project.app:
        stream, file = file, None
    if stream is None:
        raise UsageError("No stream is named", hint="Say which: riverrun replay FILE STREAM")
    app = load_declared(settings, file)
    if app is None:
        raise UsageError("No pipeline file is named", hint="Give its path, or set project.app in riverrun.toml")
    from riverrun.streams.wish import wish_of

    wish = wish_of(app, settings.settings, settings.project, stream, start)
    with wish.replay.hold():
        _cancel(settings, wish) if give_up else _replay(settings, wish)


def _cancel(settings: "Loaded", wish: "Wish") -> None:
    from riverrun.kafka.admin.admin import Admin
    from riverrun.kafka.connection import require_cluster
    from riverrun.streams.wish import cancel

    topic = cancel(wish, Admin(require_cluster(settings.settings.kafka, settings.project, settings.settings.registry)))
    say(f"The replay of {wish.stream} is removed, and its topic {topic}. The stream itself is as it was.")


def _replay(settings: "Loaded", wish: "Wish") -> None:
    from riverrun.cli.pipeline import kafka_of
    from riverrun.cluster.signals import shielded, stop_on_signals
    from riverrun.kafka.admin.admin import Admin
    from riverrun.streams.pipeline import checked_graph, open_session
    from riverrun.streams.replay import Replay
    from riverrun.streams.session import stop_session
    from riverrun.streams.wish import finish_swap

    graph = checked_graph(wish.app)
    wish.check()
    with StepProgress(names=names_of(wish.app)) as line, ExitStack() as stack:
        line.step("starting Kafka", announced=False)
        registry = any(each.registered for each in wish.app.topics.values())
        connection = stack.enter_context(kafka_of(settings, registry=registry))
        stack.callback(line.step, "stopping Kafka", announced=False)
        made = finish_swap(wish, Admin(connection))
        if made is None:
            line.step("starting Spark")
            spark: Any = open_session(graph, settings.settings, settings.project, speed="near-real-time")
            try:
                work = Replay(
                    wish,
                    graph,
                    spark,
                    connection,
                    settings=settings.settings,
                    project=settings.project,
                    notice=line.notice,
                )
                line.step(f"reading the pipeline file and where {wish.stream} stands")
                work.prepare()
                line.step(f"replaying {wish.stream}")
                # Until here a signal ends it at once: a master that cannot be reached is waited for long.
                with stop_on_signals() as stop:
                    made = work.run(stop, lambda progress: line.update(progress_line(progress)))
                line.step("stopping Spark")
            finally:
                with shielded():
                    stop_session(spark)
    if made is None:
        say(f"Stopped. `riverrun replay` goes on with it, and `--cancel` removes it; {wish.stream} was not touched.")
    else:
        _tell(wish, made, settings.settings.store.kind)


def _tables(wish: "Wish", target: str, store: str) -> str:
    """What becomes of the tables of the stream."""
    if store == "druid":
        return f"Druid's tables of {target} keep their rows from before the cut (docs/replay.md says why)."
    if store == "none":
        return "There is no store, so no table shows it."
    return f"The store reads it, and shows it in the tables of {wish.stream} as soon as it has all of it."


def _tell(wish: "Wish", made: "Generation", store: str) -> None:
    target = wish.app.streams[wish.stream].target
    first = ", ".join(f"{target}[{part}]@{offset}" for part, offset in sorted(made.first.items()))
    rows = f"{plural(made.rows, 'row')}" if made.rows >= 0 else "all rows"
    click.echo(
        f"{wish.stream} is generation {made.number}, read again from {made.asked}. Its rows in {target} begin at {first}."
    )
    click.echo(f"The corrected history, {rows} up to there, is in {made.topic}.")
    click.echo(_tables(wish, target, store))


def progress_line(progress: "ReplayProgress") -> str:
    """Where a replay is, in one line."""
    left = progress.seconds_left
    when = "" if left is None or not progress.left else f", about {_duration(left)} left"
    speed = f" at {_number(progress.rate)}/s" if progress.rate else ""
    done = plural(progress.read, "record")
    todo = f"about {_number(progress.left)}" if progress.left else "none"
    phase = "" if progress.phase == "replaying" else f"{progress.phase}, "
    return f"{phase}{done} read{speed}, {todo} to go{when}"


def _number(number: float) -> str:
    return f"{number:,.0f}".replace(",", " ")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
