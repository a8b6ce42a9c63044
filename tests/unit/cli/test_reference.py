"""The reference pages are what the program says, and every command has help with an example that it understands."""

import re
import shlex
from pathlib import Path

import click
import pytest

from riverrun.cli.main import cli
from riverrun.cli.reference import all_commands, page
from riverrun.config.sample import reference_page

DOCS = Path(__file__).parents[3] / "docs" / "reference"
ALL = dict(all_commands())


@pytest.mark.parametrize(("name", "text"), [("cli.md", page()), ("settings.md", reference_page())])
def test_the_page_is_up_to_date(name: str, text: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == text, "run script/docs"


@pytest.mark.parametrize("path", ALL)
def test_every_command_and_option_has_help(path: str) -> None:
    command = ALL[path]
    assert (command.help or "").strip()
    without = [param.name for param in command.params if isinstance(param, click.Option) and not param.help]
    assert without == []


@pytest.mark.parametrize("path", ALL)
def test_every_command_has_an_example_that_it_understands(path: str) -> None:
    calls = [call for line in examples(ALL[path]) for call in riverrun_calls(line)]
    understood = [parse(cli, "riverrun", call) for call in calls]
    assert any(f"{each} ".startswith(f"{path} ") for each in understood)


def examples(command: click.Command) -> list[str]:
    """The lines of shell in a command's help: after `Example:`, or each on a line of its own after `Examples:`."""
    text = f"{command.help or ''}\n{command.epilog or ''}"
    lines = [line.strip().removeprefix("Example: ") for line in text.splitlines()]
    # A remark beside an example stands two spaces away.
    return [re.split(r"\s{2,}", line)[0] for line in lines if line.startswith("riverrun ")]


def riverrun_calls(example: str) -> list[list[str]]:
    """The arguments of each call of riverrun in a line of shell."""
    lexer = shlex.shlex(example, posix=True, punctuation_chars="|&>;")
    lexer.whitespace_split = True
    calls: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&>;"):
            calls.append([])
        else:
            calls[-1].append(word)
    return [call[1:] for call in calls if call[:1] == ["riverrun"]]


def parse(command: click.Command, path: str, arguments: list[str]) -> str:
    """The full name of the command that these arguments call. Fails as click does when one is not understood; runs
    nothing."""
    context = command.make_context(path, list(arguments))
    rest = [*context._protected_args, *context.args]
    if not isinstance(command, click.Group) or not rest:
        return path
    _, inner, left = command.resolve_command(context, rest)
    assert inner is not None
    return parse(inner, f"{path} {inner.name}", left)
