"""`riverrun demo` and `riverrun new`: the use cases that come with riverrun, run in place or made your own."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.output import json_option, print_json, print_rows, say

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from riverrun.demo.runner import Demo
    from riverrun.demo.use_cases import UseCase

NEXT_STEPS = """Next:
  {cd}riverrun test        # its figures against plain Python; needs no broker
  riverrun run             # Kafka, streams, tables, dashboard, alerts; Ctrl-C ends it
  python source.py         # in another terminal: the source application; --help lists its options
What to change first is in README.md."""


@click.command(epilog="Example: riverrun demo stocks --seconds 60 --no-browser")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=0, help="Stop so long after it is at work. [default: Ctrl-C]"
)
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="Records a second. [default: the source's own]"
)
@click.option(
    "--speed-up", type=click.FloatRange(min=0, min_open=True), help="Its time against ours. [default: the source's own]"
)
@click.option("--seed", type=int, help="The same seed gives the same events. [default: the source's own]")
@click.option(
    "--store", type=click.Choice(("embedded", "druid")), default="embedded", help="Where results are kept as tables."
)
@click.option("--brokers", type=click.IntRange(min=1), default=1, help="Brokers in the cluster.")
@click.option("--bootstrap-servers", "cluster", metavar="HOST:PORT", help="Use this cluster instead of one of its own.")
@click.option("--no-browser", is_flag=True, help="Only print the address of the dashboard.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Run it there; several, each in a folder below. [default: in the user's cache]",
)
@json_option
def demo(*, names: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Run a use case with all that it needs: Kafka, its source, its streams, tables, dashboard and phones.

    Without a NAME, list them; with several, run them at once, on one Kafka. Each runs in a folder of its own and begins by
    deleting what the last demo left there. Ctrl-C stops everything in order, and so does the end of --seconds; then it
    counts what became of every record, and compares the figures with what plain Python makes of the same events.
    """
    from riverrun.demo.use_cases import find_use_case, use_cases

    if not names:
        rows = [{"name": use_case.name, "about": use_case.about} for use_case in use_cases().values()]
        print_rows(rows, as_json=as_json)
        if not as_json:
            say("Run one: riverrun demo NAME. Make it your own: riverrun new FOLDER --from NAME")
        return
    chosen = [find_use_case(name) for name in dict.fromkeys(names)]
    code = _run(chosen[0], **options) if len(chosen) == 1 else _run_multiple(chosen, **options)
    click.get_current_context().exit(code)


def _run_multiple(
    chosen: "Sequence[UseCase]", *, folder: Path | None, seconds: float, brokers: int, store: str, cluster: str | None,
    no_browser: bool, **source: Any,
) -> int:  # fmt: skip
    from rich.console import Console

    from riverrun.artifacts.cache import cache_folder
    from riverrun.config import Project, load
    from riverrun.demo.multi_runner import run_multiple
    from riverrun.demo.runner import source_arguments
    from riverrun.errors import UsageError
    from riverrun.streams.run.session import require_pyspark

    require_pyspark()
    if cluster:
        raise UsageError("--bootstrap-servers is for one use case", hint="Several have one Kafka of their own")
    if store != "embedded":
        raise UsageError("Several use cases at once keep their tables in the embedded store", found=f"--store {store}")
    parent_folder = (folder or cache_folder(load(Project(Path.cwd())).settings.artifacts) / "demo").absolute()
    words = source_arguments(
        [("seconds", seconds or None), *((name.replace("_", "-"), value) for name, value in source.items())]
    )
    words += ["--no-browser"] if no_browser else []
    return run_multiple(Console(highlight=False), parent_folder, [value.name for value in chosen], words, brokers)


def _run(
    use_case: "UseCase", *, folder: Path | None, seconds: float, brokers: int, store: str, cluster: str | None,
    no_browser: bool, **source: Any,
) -> int:  # fmt: skip
    from rich.console import Console

    from riverrun.app import load_app
    from riverrun.artifacts.cache import cache_folder
    from riverrun.cli.fetch import make_progress
    from riverrun.config import Project, load
    from riverrun.config.processes import require_idle
    from riverrun.demo.runner import DemoOptions, enter_project, run_demo, source_arguments
    from riverrun.demo.use_cases import APP, prepare_demo_folder
    from riverrun.streams.run.session import require_pyspark

    require_pyspark()
    from riverrun.artifacts import fetch_set

    settings = load(Project(Path.cwd())).settings.artifacts
    project_folder = (folder or cache_folder(settings) / "demo" / use_case.name).absolute()
    require_idle(Project(project_folder))
    prepare_demo_folder(use_case, project_folder)
    for artifact_set in ("kafka", "spark-kafka"):
        fetch_set(artifact_set, settings, progress=make_progress())
    enter_project(project_folder, cluster or "")
    words = source_arguments((name.replace("_", "-"), value) for name, value in source.items())
    options = DemoOptions(
        project_folder, words, seconds, brokers, browser=not no_browser, store=store, cluster=cluster or ""
    )
    console, app = Console(highlight=False), load_app(project_folder / APP)
    console.print(f"[bold]{use_case.about}[/bold]\nIts project is {project_folder}", soft_wrap=True)

    def make(stack: "ExitStack") -> "Demo":
        return _demo_class()(console, options, stack, app)

    try:
        return run_demo(console, make)
    except SystemExit as error:
        if error.code != 1:
            # The message names the process that failed, and why.
            print(error, file=sys.stderr)  # noqa: T201
        return 1


def _demo_class() -> "type[Demo]":
    """A demo with the table of `riverrun run` as its page."""
    from rich.console import Group, RenderableType
    from rich.panel import Panel
    from rich.text import Text

    from riverrun.cli.stream_display import stream_table
    from riverrun.demo.results import StreamResults
    from riverrun.demo.runner import Demo, LiveCounts

    class Shown(Demo):
        def page(self, numbers: LiveCounts, results: StreamResults, width: int) -> RenderableType:  # noqa: ARG002
            head = Text.assemble(
                (f"{numbers.rate:,.0f}", "bold green"), " records/s  ", (f"{numbers.stored:,}", "bold"), " stored  ",
                (f"{numbers.sms_count:,}", "bold"), " SMS  ", (f"{numbers.letters:,}", "bold red"), " dead",
            )  # fmt: skip
            return Group(
                Panel(head, title=f"riverrun · {self.app.name}", border_style="blue"),
                Panel(
                    stream_table(numbers.progress, width - 4), title=f"streams of {self.app.name}", border_style="blue"
                ),
                Text("Ctrl-C stops it and counts what was sent against what came out.", style="dim"),
            )

    return Shown


@click.command(epilog="Example: riverrun new market --from stocks && cd market && riverrun test")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--from", "name", required=True, metavar="NAME", help="The use case; `riverrun demo` lists them.")
@json_option
def new(folder: Path, name: str, as_json: bool) -> None:
    """Make a project in FOLDER of a use case: its pipeline file, source application and tests, yours to change.

    Overwrites nothing: it refuses where one of the files is there already. For an empty project: `riverrun init`.
    """
    from riverrun.demo.use_cases import copy_use_case, find_use_case

    written = copy_use_case(find_use_case(name), folder)
    if as_json:
        print_json({"project": str(folder.resolve()), "files": [str(path) for path in written]})
        return
    for path in written:
        say(f"wrote {path}")
    say(NEXT_STEPS.format(cd="" if folder == Path() else f"cd {shlex.quote(str(folder))} && "))
