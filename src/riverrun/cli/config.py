"""`riverrun config`: each setting and where it came from; the sample file; the reference page."""

import click

from riverrun.cli.context import load_settings
from riverrun.cli.output import json_option, print_rows


@click.group(invoke_without_command=True, epilog="Example: riverrun config --json")
@json_option
@click.pass_context
def config(ctx: click.Context, as_json: bool) -> None:
    """Show each setting, its value and where it came from; secrets are starred. Without a subcommand: show."""
    if ctx.invoked_subcommand is None:
        _show(as_json)


@config.command(epilog="Example: riverrun --profile prod config show")
@json_option
def show(as_json: bool) -> None:
    """Show each setting, its value and where it came from. All problems are reported at once."""
    _show(as_json)


def _show(as_json: bool) -> None:
    print_rows(load_settings().rows(), as_json=as_json)


@config.command(epilog="Example: riverrun config sample > riverrun.toml")
def sample() -> None:
    """Print a riverrun.toml with every common setting, explained."""
    from riverrun.config.sample import sample_toml

    click.echo(sample_toml(), nl=False)


@config.command(epilog="Example: riverrun config reference | less")
def reference() -> None:
    """Print the reference of all settings (docs/reference/settings.md)."""
    from riverrun.config.sample import reference_page

    click.echo(reference_page(), nl=False)
