"""`riverrun alerts`."""

import click

from riverrun.cli.alerts_run import run_alerts


@click.group()
def alerts() -> None:
    """See and steer alerts."""


alerts.add_command(run_alerts)
