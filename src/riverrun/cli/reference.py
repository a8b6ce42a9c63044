"""docs/reference/cli.md, from the commands' own help: `python -m riverrun.cli.reference`."""

from collections.abc import Iterator

import click

from riverrun.cli.main import COMMANDS, cli

_WIDTH = 100


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Every command and subcommand by its full name, in the order of the help."""
    yield "riverrun", cli
    for name in COMMANDS:
        context = click.Context(cli, info_name="riverrun")
        command = cli.get_command(context, name)
        if command is not None:
            yield from _walk(f"riverrun {name}", command, context)


def _walk(path: str, command: click.Command, parent: click.Context) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path, parent=parent)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from _walk(f"{path} {name}", inner, context)


def help_of(path: str, command: click.Command) -> str:
    """A command's help as a terminal of fixed width shows it."""
    settings = {"help_option_names": ["-h", "--help"], "terminal_width": _WIDTH, "max_content_width": _WIDTH}
    context = click.Context(command, info_name=path, **settings)  # type: ignore[arg-type]
    return command.get_help(context)


def page() -> str:
    """The whole page."""
    parts = [
        "# Commands",
        "Made from the commands' own `--help` by `script/docs`. Results go to stdout (`--json` for programs), remarks to "
        "stderr. Exit code 0: done; 1: it failed; 2: it was asked for wrongly; 130: interrupted. `verify` has 3 too: it "
        "cannot be told.",
    ]
    for path, command in all_commands():
        level = "##" if path.count(" ") < 2 else "###"
        parts += [f"{level} {path}", f"```text\n{help_of(path, command)}\n```"]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    click.echo(page(), nl=False)
