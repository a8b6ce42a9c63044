"""`riverrun replay`: compute a stream again from an earlier place, beside the running one, and take over in one cut."""

import sys
import time
from typing import TYPE_CHECKING, Any, Self

import click

from riverrun.cli.context import cluster_option, load_declared, loaded
from riverrun.cli.output import plural, say

if TYPE_CHECKING:
    from riverrun.config import Loaded
    from riverrun.streams.generations import Generation
    from riverrun.streams.replay import ReplayProgress
    from riverrun.streams.wish import Wish

# Where no terminal shows a line that changes.
LINE_SECONDS = 5.0


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
    from riverrun.cli.pipeline import kafka_of, stop_on_signals
    from riverrun.kafka.admin.admin import Admin
    from riverrun.streams.pipeline import checked_graph, open_session
    from riverrun.streams.replay import Replay
    from riverrun.streams.session import stop_session
    from riverrun.streams.wish import finish_swap

    graph = checked_graph(wish.app)
    wish.check()
    with (
        kafka_of(settings, registry=any(each.registered for each in wish.app.topics.values())) as connection,
        _Line() as line,
        stop_on_signals() as stop,
    ):
        made = finish_swap(wish, Admin(connection))
        if made is None:
            line.notice("starting Spark")
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
                work.prepare()
                made = work.run(stop, line.show)
            finally:
                stop_session(spark)
    if made is None:
        say(f"Stopped. `riverrun replay` goes on with it, and `--cancel` removes it; {wish.stream} was not touched.")
    else:
        _tell(wish, made)


def _tell(wish: "Wish", made: "Generation") -> None:
    target = wish.app.streams[wish.stream].target
    first = ", ".join(f"{target}[{part}]@{offset}" for part, offset in sorted(made.first.items()))
    rows = f"{plural(made.rows, 'row')}" if made.rows >= 0 else "all rows"
    click.echo(
        f"{wish.stream} is generation {made.number}, read again from {made.asked}. Its rows in {target} begin at {first}."
    )
    click.echo(f"The corrected history, {rows} up to there, is in {made.topic}.")


class _Line:
    """One line that changes, on a terminal; else a line now and then. All of it on stderr."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def notice(self, text: str) -> None:
        self._clear()
        say(text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else "."))

    def show(self, progress: "ReplayProgress") -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.5 if self._live else LINE_SECONDS)
        self._clear()
        click.echo(progress_line(progress), err=True, nl=not self._live)

    def _clear(self) -> None:
        if self._live:
            click.echo("\r\x1b[K", err=True, nl=False)


def progress_line(progress: "ReplayProgress") -> str:
    """Where a replay is, in one line."""
    left = progress.seconds_left
    when = "" if left is None or not progress.left else f", about {_duration(left)} left"
    speed = f" at {_number(progress.rate)}/s" if progress.rate else ""
    done = plural(progress.read, "record")
    return f"{progress.stream} {progress.phase}: {done} read{speed}, {_number(progress.left)} to go{when}"


def _number(number: float) -> str:
    return f"{number:,.0f}".replace(",", " ")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
