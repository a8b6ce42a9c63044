"""`riverrun doctor`: checks whether this machine can run the project, and says what to do where it cannot."""

from typing import TYPE_CHECKING

import click

from riverrun.cli.context import load_settings
from riverrun.cli.output import json_option, print_json, say
from riverrun.errors.base import sentence

if TYPE_CHECKING:
    from riverrun.cluster.doctor import Finding

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command(
    epilog="""\b
Examples:
  riverrun doctor
  riverrun doctor --json | jq '.[] | select(.state != "ok")'
Exit code: 0 when nothing fails, 1 when something does.
"""
)
@json_option
@click.pass_context
def doctor(ctx: click.Context, /, *, as_json: bool) -> None:
    """Check this machine: versions, configuration, Java, Spark, jars, repository, memory, disk, port, and the cluster, if
    one runs.

    Each line is ok, warn or fail, and says what to do. Nothing is changed.
    """
    from dataclasses import asdict

    from riverrun.cluster.doctor import run_checks

    findings: list[Finding] = []
    for finding in run_checks(load_settings):
        findings.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    failed = [finding.check for finding in findings if finding.state == "fail"]
    if failed:
        say(f"To be mended: {', '.join(failed)}.")
        ctx.exit(1)


def _show(finding: "Finding") -> None:
    click.echo(f"{click.style(f'{finding.state:<4}', fg=_COLOURS[finding.state])}  {finding.check:<14} {finding.found}")
    if finding.todo:
        click.echo(f"{'':<20} → {sentence(finding.todo)}")
