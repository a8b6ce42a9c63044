"""`riverrun connect check`: whether the databases of a pipeline file can be followed, and the SQL for what is in the way."""

from dataclasses import asdict

import click

from riverrun.cli.context import load_declared, load_settings
from riverrun.cli.output import json_option, print_json, say
from riverrun.errors import UsageError

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command(epilog="Example: riverrun connect check shop.py")
@click.argument("file", required=False, metavar="[FILE]")
@json_option
@click.pass_context
def check(ctx: click.Context, *, file: str | None, as_json: bool) -> None:
    """Check the databases that a pipeline file follows: login, rights, log, keys, slots. Changes nothing.

    Each problem comes with the SQL that mends it. `riverrun run` checks the same before it starts anything. Exit code 1:
    there are problems.
    """
    from riverrun.connectors.postgres.checks import check_databases
    from riverrun.connectors.postgres.connector_configs import cdc_connectors

    settings = load_settings()
    app = load_declared(settings, file)
    if app is None:
        raise UsageError("No pipeline file is named", hint="Give its path, or set project.app in riverrun.toml")
    postgres, project = settings.settings.postgres, settings.project
    findings = check_databases(cdc_connectors(app, postgres, project, say), postgres, project.root)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            click.echo(
                f"{click.style(f'{finding.state:<4}', fg=_COLOURS[finding.state])}  {finding.check:<12} {finding.found}"
            )
            if finding.sql:
                click.echo(f"{'':<18} → {finding.sql}")
        if not findings:
            say(f"{app.name} follows no database.")
    if any(finding.state == "fail" for finding in findings):
        ctx.exit(1)
