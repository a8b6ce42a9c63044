"""The `riverrun` command itself: finds a subcommand, runs it, and turns every error into one message.

A subcommand's module is imported when it is used: `riverrun --help` must be quick (bench/cli_help.py), and the Kafka
client alone takes longer to import than the whole of the help.
"""

import importlib
import os
import sys
from typing import NoReturn

import click

from riverrun._version import __version__
from riverrun.cluster.signals import SignalInterrupt, interrupt_on_signals
from riverrun.errors import RiverrunError
from riverrun.errors.base import sentence

# command → (module, attribute, one line of help). Kept equal to the modules by tests/unit/cli/test_main.py.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "init": ("riverrun.cli.init", "init", "Make a project here that runs at once."),
    "new": ("riverrun.cli.demo", "new", "Make a project of a use case."),
    "demo": ("riverrun.cli.demo", "demo", "Run a use case: source, Kafka, streams, dashboard."),
    "up": ("riverrun.cli.up", "up", "Start the project's servers."),
    "down": ("riverrun.cli.up", "down", "Stop them."),
    "status": ("riverrun.cli.status", "status", "Show what runs, and where."),
    "logs": ("riverrun.cli.status", "logs", "Show a server's log."),
    "doctor": ("riverrun.cli.doctor", "doctor", "Check this machine, and say what to do."),
    "run": ("riverrun.cli.pipeline", "run", "Run the streams of a pipeline file."),
    "validate": ("riverrun.cli.pipeline", "validate", "Check a pipeline file; needs no broker."),
    "plan": ("riverrun.cli.pipeline", "plan", "Show the speed of each stream, and why."),
    "graph": ("riverrun.cli.pipeline", "graph", "Show which stream reads what."),
    "verify": ("riverrun.cli.verify", "verify", "Prove a stream's output: compute it again, compare."),
    "replay": ("riverrun.cli.replay", "replay", "Compute a stream again, and switch over to it."),
    "serve": ("riverrun.cli.serve", "serve", "Own the store: follow its tables, answer questions."),
    "query": ("riverrun.cli.query", "query", "Ask the store in SQL."),
    "tables": ("riverrun.cli.tables", "tables", "List, show, remove tables of the store."),
    "alerts": ("riverrun.cli.alerts", "alerts", "See and steer alerts."),
    "connectors": ("riverrun.cli.connectors", "connectors", "Run and see an app's own sources and sinks."),
    "phone": ("riverrun.cli.phone", "phone", "Show SMS on phones of this machine."),
    "topics": ("riverrun.cli.topics", "topics", "List, describe, create, alter, delete topics."),
    "produce": ("riverrun.cli.produce", "produce", "Send records from stdin or a file to a topic."),
    "consume": ("riverrun.cli.consume", "consume", "Print the records of a topic."),
    "groups": ("riverrun.cli.groups", "groups", "Show consumer groups: members, partitions, lag."),
    "offsets": ("riverrun.cli.offsets", "offsets", "Show and move the offsets of a group."),
    "dlq": ("riverrun.cli.dlq", "dlq", "List, show and re-drive dead letters."),
    "connect": ("riverrun.cli.connect", "connect", "Connectors of Kafka Connect: make, see, steer, remove."),
    "registry": ("riverrun.cli.registry", "registry", "Schemas of topics: list, show, check."),
    "test": ("riverrun.cli.test", "test", "Run the project's tests."),
    "config": ("riverrun.cli.config", "config", "Show each setting and where it came from."),
    "fetch": ("riverrun.cli.fetch", "fetch", "Download the servers' jars, to be offline later."),
}


class _PipeClosedError(Exception):
    """Nobody reads our output any more. Click would exit with code 1 for the plain BrokenPipeError."""


# What people type out of habit.
SYNONYMS = {
    "start": "up",
    "stop": "down",
    "ps": "status",
    "ls": "topics",
    "list": "topics",
    "log": "logs",
    "check": "doctor",
    "sql": "query",
    "select": "query",
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is called."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _PipeClosedError from error

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}:{attribute} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            synonym = SYNONYMS.get(args[0])
            close = [synonym] if synonym else difflib.get_close_matches(args[0], COMMANDS, n=1, cutoff=0.6)
            hint = f" Did you mean {close[0]!r}?" if close else " `riverrun --help` lists them."
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: riverrun init sensors && cd sensors && riverrun run",
)
@click.version_option(__version__, "--version", message="riverrun %(version)s")
@click.option("--project", "project_dir", type=click.Path(exists=True, file_okay=False), help="The project's folder.")
@click.option("--profile", default="", help="Use [profile.NAME] of riverrun.toml.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def cli(ctx: click.Context, project_dir: str | None, profile: str, debug: bool) -> None:
    """A real-time data platform: Kafka, streams on Spark, tables, dashboards and alerts, from one pipeline file.

    A project is a folder. What riverrun keeps for it is in its .riverrun/ folder.
    """
    ctx.obj = {"project_dir": project_dir, "profile": profile, "debug": debug}


def main() -> NoReturn:
    """Run the command line. Exit code 0: done; 1: it failed; 2: it was asked for wrongly; 130: interrupted."""
    sys.exit(run(sys.argv[1:]))


def _cause(error: BaseException | None) -> RiverrunError | None:
    """The error during whose handling another was raised."""
    while error is not None and not isinstance(error, RiverrunError):
        error = error.__context__
    return error


def run(arguments: list[str]) -> int:
    debug = bool(os.environ.get("RIVERRUN_DEBUG")) or "--debug" in arguments
    try:
        with interrupt_on_signals():
            result = cli.main(arguments, prog_name="riverrun", standalone_mode=False)
        # click returns the code of `ctx.exit(code)` here; a command's own result is None.
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except (click.Abort, KeyboardInterrupt) as stopped:
        if interrupted_error := _cause(stopped):
            # It had failed, and was interrupted while it ended.
            click.echo(f"{click.style(interrupted_error.code, fg='red', bold=True)}  {interrupted_error}", err=True)
        click.echo("Stopped.", err=True)
        # click turns every KeyboardInterrupt into an Abort.
        request = stopped.__cause__ if isinstance(stopped, click.Abort) else stopped
        return request.exit_code if isinstance(request, SignalInterrupt) else 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except _PipeClosedError:
        # Keep Python from complaining at exit that it cannot flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except RiverrunError as error:
        if debug:
            raise
        click.echo(f"{click.style(error.code, fg='red', bold=True)}  {error}", err=True)
        return error.exit_code
    except Exception as error:
        if debug:
            raise
        click.echo(
            f"{click.style('INTERNAL', fg='red', bold=True)}  {sentence(f'{type(error).__name__}: {error}')} "
            "This is a bug in riverrun. Run it again with --debug and report what it prints.",
            err=True,
        )
        return 1
