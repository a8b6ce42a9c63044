"""`riverrun status` and `riverrun logs`: what runs, where, and what it says."""

from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.context import loaded
from riverrun.cli.output import json_option, print_json, print_rows, say

if TYPE_CHECKING:
    from riverrun.config import Loaded


@click.command(
    epilog="""\b
Examples:
  riverrun status
  riverrun status --json | jq -r .bootstrap_servers
Exit code: 0 when the cluster runs, 1 when it does not.
"""
)
@json_option
@click.pass_context
def status(ctx: click.Context, /, *, as_json: bool) -> None:
    """Show the project's servers: state, address, pid, uptime, memory, restarts.

    For a cluster that runs elsewhere: its brokers, as its metadata names them. --json prints one object: state,
    bootstrap_servers, servers.
    """
    settings = loaded()
    report = _attached(settings) if settings.attached else _local(settings)
    if as_json:
        print_json(report)
    else:
        _show(settings, report)
    if report["state"] not in ("ready", "degraded"):
        ctx.exit(1)


def _local(settings: "Loaded") -> dict[str, Any]:
    from riverrun.cluster.usage import state_rows
    from riverrun.config.run_state import last_state, running_state

    state = running_state(settings.project)
    if state is not None:
        return {
            "state": state.state,
            "bootstrap_servers": state.bootstrap_servers,
            "pid": state.pid,
            "detail": state.detail,
            "servers": state_rows(state),
        }
    old = last_state(settings.project)
    detail = ""
    if old is not None:
        detail = old.detail if old.state == "failed" else f"the last runner (pid {old.pid}) ended without cleaning up"
    name = "failed" if old is not None and old.state == "failed" else "stopped"
    return {"state": name, "bootstrap_servers": "", "pid": None, "detail": detail, "servers": []}


def _attached(settings: "Loaded") -> dict[str, Any]:
    from riverrun.errors import RiverrunError
    from riverrun.kafka.connection import Connection
    from riverrun.kafka.probe import Probe

    kafka = settings.settings.kafka
    report: dict[str, Any] = {"state": "ready", "bootstrap_servers": kafka.bootstrap_servers, "pid": None, "detail": ""}
    try:
        seen = Probe(Connection(kafka).properties()).look(kafka.request_timeout_seconds)
    except RiverrunError as error:
        return {**report, "state": "unreachable", "detail": str(error), "servers": []}
    servers = [
        {"name": f"broker-{each.id}", "kind": "broker", "state": "ready", "address": each.address}
        for each in seen.brokers
    ]
    return {**report, "servers": servers}


def _show(settings: "Loaded", report: dict[str, Any]) -> None:
    from riverrun.cluster.usage import shown_row

    where = f" on {report['bootstrap_servers']}" if report["bootstrap_servers"] else ""
    elsewhere = f" (attached: {settings.origins['kafka.bootstrap_servers']})" if settings.attached else ""
    detail = f": {report['detail']}" if report["detail"] else ""
    say(f"Kafka is {report['state']}{where}{elsewhere}{detail}")
    rows = report["servers"]
    if not rows:
        return
    shown = rows if settings.attached else [shown_row(row) for row in rows]
    print_rows(shown, as_json=False)
    for row in rows:
        if row.get("detail"):
            say(f"{row['name']}: {row['detail']}")
    if not settings.attached:
        say(f"Logs: {settings.project.logs}")


@click.command(
    epilog="""\b
Examples:
  riverrun logs
  riverrun logs broker-1 --follow
"""
)
@click.argument("server", required=False)
@click.option("--lines", "-n", type=click.IntRange(min=0), default=50, show_default=True, help="How many lines.")
@click.option("--follow", "-f", is_flag=True, help="Go on with every line that is added, until Ctrl-C.")
def logs(*, server: str | None, lines: int, follow: bool) -> None:
    """Print the end of a server's log. SERVER is a name of `riverrun status`, or `runner`; without it: the first broker."""
    from riverrun.cluster import logs as files

    project = loaded().project
    name = server
    if name is None:
        names = files.log_names(project)
        name = "broker-1" if "broker-1" in names or not names else names[0]
    path = files.log_path(project, name)
    for line in files.follow(path, lines) if follow else files.last_lines(path, lines):
        click.echo(line)
    if not follow:
        say(f"({path})")
