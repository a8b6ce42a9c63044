"""`riverrun status` and `riverrun logs`: what runs, where, and what it logs."""

import json
import time
from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.context import load_settings
from riverrun.cli.output import json_option, print_json, print_rows, say
from riverrun.cli.server_display import server_list_text
from riverrun.config.run_state import is_locked

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun.config import LoadedSettings, Project
    from riverrun.model.progress import PipelineProgress


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
    """Show the project's servers (state, address, pid, uptime, memory, restarts) and the streams of its pipeline.

    For a cluster that runs elsewhere: its brokers, as its metadata names them. --json prints one object: state,
    bootstrap_servers, druid_url, connect_url, registry_url, servers, pipeline, streams, replays.
    """
    from riverrun.config.stream_state import describe_pipeline, replay_command

    settings = load_settings()
    report = _attached(settings) if settings.attached else _local(settings)
    report["druid_url"] = settings.settings.druid.url
    report["connect_url"] = settings.settings.connect.url
    report["registry_url"] = settings.settings.registry.url
    pipeline, progress = describe_pipeline(settings.project)
    if as_json:
        streams = [stream.as_dict() for stream in progress.streams] if progress else []
        print_json(
            {**report, "pipeline": pipeline, "streams": streams, "replays": _unfinished_replays(settings.project)}
        )
    else:
        _show(settings, report)
        _show_streams(pipeline, progress)
        for replay in _unfinished_replays(settings.project):
            command = replay_command(replay["file"], replay["stream"])
            how = "runs" if replay["running"] else f"is not finished; go on with it: `{command}`"
            left = f": {replay['read']} records read, about {replay['left']} to go" if "left" in replay else ""
            say(f"A replay of {replay['stream']} from {replay['from']} {how}{left}")
    if report["state"] not in ("ready", "degraded"):
        ctx.exit(1)


def _unfinished_replays(project: "Project") -> list[dict[str, Any]]:
    """Unfinished replays, from their state files (streams/evolve/cutover.py)."""
    replays: list[dict[str, Any]] = []
    for state in sorted(project.home.glob("streams/*/*/replay/replay.json")):
        content = _content(state)
        if content:
            progress = _content(state.with_name("progress.json"))
            replays.append({
                "app": state.parents[2].name,
                "stream": state.parents[1].name,
                "file": str(content.get("file", "")),
                "from": content.get("asked", ""),
                "topic": content.get("topic", ""),
                "running": is_locked(state.with_name("lock")),
                **{name: progress[name] for name in ("read", "left", "rate") if name in progress},
            })  # fmt: skip
    return replays


def _content(file: "Path") -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _local(settings: "LoadedSettings") -> dict[str, Any]:
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


def _attached(settings: "LoadedSettings") -> dict[str, Any]:
    from riverrun.errors import RiverrunError
    from riverrun.kafka.connection import Connection
    from riverrun.kafka.probe import ClusterProbe

    kafka = settings.settings.kafka
    report: dict[str, Any] = {"state": "ready", "bootstrap_servers": kafka.bootstrap_servers, "pid": None, "detail": ""}
    try:
        cluster = ClusterProbe(Connection(kafka).properties()).fetch_metadata(kafka.request_timeout_seconds)
    except RiverrunError as error:
        return {**report, "state": "unreachable", "detail": str(error), "servers": []}
    servers = [
        {"name": f"broker-{broker.id}", "kind": "broker", "state": "ready", "address": broker.address}
        for broker in cluster.brokers
    ]
    return {**report, "servers": servers}


def _show(settings: "LoadedSettings", report: dict[str, Any]) -> None:
    from riverrun.cluster.usage import display_row

    where = f" on {report['bootstrap_servers']}" if report["bootstrap_servers"] else ""
    elsewhere = f" (attached: {settings.origins['kafka.bootstrap_servers']})" if settings.attached else ""
    detail = f": {report['detail']}" if report["detail"] else ""
    kinds = {row["kind"] for row in report["servers"]}
    what = server_list_text(**{name: name in kinds for name in ("connect", "druid", "registry")})
    say(f"{what} is {report['state']}{where}{elsewhere}{detail}")
    if report["druid_url"]:
        attached = f" (attached: {settings.origins['druid.url']})" if settings.druid_attached else ""
        say(f"Druid is on {report['druid_url']}{attached}")
    if report["connect_url"]:
        attached = f" (attached: {settings.origins['connect.url']})" if settings.connect_attached else ""
        say(f"Kafka Connect is on {report['connect_url']}{attached}")
    if report["registry_url"]:
        attached = f" (attached: {settings.origins['registry.url']})" if settings.registry_attached else ""
        say(f"The schema registry is on {report['registry_url']}{attached}")
    rows = report["servers"]
    if not rows:
        return
    shown = rows if settings.attached else [display_row(row) for row in rows]
    print_rows(shown, as_json=False)
    for row in rows:
        if row.get("detail"):
            say(f"{row['name']}: {row['detail']}")
        elif row.get("last_exit"):
            times = f"{row['restarts']} time{'s' if row['restarts'] != 1 else ''}"
            say(f"{row['name']} was started again {times}. It last ended because: {row['last_exit']}")
    if not settings.attached:
        say(f"Logs: {settings.project.logs}")


_STATE_PHRASES = {
    "starting": "is starting",
    "running": "runs",
    "died": "does not run",
    "failed": "has failed",
    "ended": "has ended",
}


def _show_streams(pipeline: dict[str, Any] | None, progress: "PipelineProgress | None") -> None:
    from riverrun.cli.stream_display import display_row, error_lines, expired_line

    if pipeline is None:
        return
    pid = f" (pid {pipeline['pid']})" if pipeline["pid"] else ""
    at = f" at {pipeline['ended_at']}" if pipeline.get("ended_at") else ""
    detail = f": {pipeline['detail']}" if pipeline["detail"] else ""
    say(f"The pipeline {pipeline['file']} {_STATE_PHRASES[pipeline['state']]}{pid}{at}{detail}")
    if progress is None:
        return
    print_rows(
        [display_row(stream, time.time()) for stream in progress.streams], as_json=False, empty="It has no streams."
    )
    for stream in progress.streams:
        for line in error_lines(stream):
            say(f"{stream.name}: {line}")
        if stream.record_counts.expired:
            say(expired_line(stream))
    if pipeline.get("address"):
        say(f"Metrics: {pipeline['address']}/metrics")


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

    project = load_settings().project
    name = server
    if name is None:
        names = files.log_names(project)
        name = "broker-1" if "broker-1" in names or not names else names[0]
    path = files.log_path(project, name)
    for line in files.follow(path, lines) if follow else files.last_lines(path, lines):
        click.echo(line)
    if not follow:
        say(f"({path})")
