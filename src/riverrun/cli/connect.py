"""`riverrun connect`: the connectors of Kafka Connect."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.connect_check import check
from riverrun.cli.context import confirm, load_settings
from riverrun.cli.output import json_option, plural, print_json, print_rows, say
from riverrun.errors import UsageError

if TYPE_CHECKING:
    from riverrun.config import LoadedSettings
    from riverrun.connectors.kafka_connect import ConnectClient, ConnectorState

WAIT_SECONDS = 60.0
timeout_option = click.option(
    "--timeout", type=click.FloatRange(min=0), default=WAIT_SECONDS, show_default=True, help="Seconds to wait for it."
)


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  riverrun up --connect --detach
  riverrun connect plugins
  riverrun connect create log connector.class=FileStreamSource file=/var/log/app.log topic=log
""",
)
@json_option
@click.pass_context
def connect(ctx: click.Context, as_json: bool) -> None:
    """Make, see, steer and remove connectors of Kafka Connect. Without a subcommand: list them.

    It is the Connect that `riverrun up --connect` runs, or the one that connect.url names.
    """
    if ctx.invoked_subcommand is None:
        _list(as_json)


connect.add_command(check)


def _open() -> "tuple[LoadedSettings, ConnectClient]":
    from riverrun.connectors.kafka_connect import ConnectClient

    settings = load_settings()
    return settings, ConnectClient.of(settings.settings.connect, settings.project)


@connect.command(epilog="Example: riverrun connect plugins --json")
@json_option
def plugins(as_json: bool) -> None:
    """List the kinds of connectors there are: what comes with riverrun, and what is in connect.plugins."""
    _, client = _open()
    with client:
        rows = [{"plugin": plugin.name, "kind": plugin.kind, "version": plugin.version} for plugin in client.plugins()]
    print_rows(rows, as_json=as_json, empty="This Connect has no plugins.")


@connect.command("list", epilog="Example: riverrun connect list --json")
@json_option
def list_(as_json: bool) -> None:
    """List the connectors: state, tasks that run, and why one failed."""
    _list(as_json)


def _list(as_json: bool) -> None:
    _, client = _open()
    with client:
        states = client.states()
        rows = [_row(states[name]) if name in states else _row(client.state(name)) for name in client.names()]
    print_rows(
        rows, as_json=as_json, empty="There are no connectors. `riverrun connect create --help` shows how to make one."
    )


def _row(state: "ConnectorState") -> dict[str, Any]:
    return {
        "connector": state.name,
        "kind": state.kind,
        "state": state.overall,
        "running": state.running,
        "tasks": len(state.tasks),
        "reason": state.reason,
    }


@connect.command(
    epilog="""\b
Examples:
  riverrun connect create log connector.class=FileStreamSource file=/var/log/app.log topic=log
  riverrun connect create shop --config shop.json database.password=env:SHOP_PASSWORD
  riverrun connect create shop --config shop.json --dry-run
"""
)
@click.argument("name")
@click.argument("properties", nargs=-1, metavar="[KEY=VALUE]…")
@click.option("--config", "file", type=click.Path(dir_okay=False), help="A JSON file with its properties.")
@click.option("--dry-run", is_flag=True, help="Check it, and make nothing.")
@timeout_option
@json_option
def create(
    *, name: str, properties: tuple[str, ...], file: str | None, dry_run: bool, timeout: float, as_json: bool
) -> None:
    """Make a connector, or give the one of that name other properties, and wait until it runs.

    Properties are the connector's own; those given as KEY=VALUE count more than the file's. All that is wrong with them is
    said at once, and nothing is changed then. A secret is written as env:NAME or file:PATH: Connect stores, logs and shows
    the name of a private file instead.
    """
    from riverrun.connectors.kafka_connect import Vault, wait_until_running
    from riverrun.connectors.kafka_connect.vault import resolve_secrets
    from riverrun.errors import ConnectRefusedError

    settings, client = _open()
    given = {**(_file(name, file) if file else {}), **dict(_pair(property_) for property_ in properties)}
    config = resolve_secrets({**given, "name": name}, Path.cwd())
    vault = Vault.of(settings)
    with client:
        before = name in client.names()
        config_without_secrets = vault.hide(name, config)
        problems = client.validation_problems(config_without_secrets)
        if problems or dry_run:
            vault.forget(name, client.config(name) if before else None)
        if problems:
            raise ConnectRefusedError([f"{name}: {problem}" for problem in problems], connector=name)
        if dry_run:
            say(f"{name} is fine. Nothing was done.")
            return
        client.put(name, config_without_secrets, checked=True)
        vault.forget(name, config_without_secrets)
        wait_until_running(client, [name], timeout, reconfigured=[name] if before else [])
        _show(client.state(name), as_json, f"{name} runs.")


def _file(name: str, file: str) -> dict[str, str]:
    """The properties in a JSON file: an object of them, or Connect's own `{"name": …, "config": {…}}`."""
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read as JSON: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("config"), dict):
        content = content["config"]
    if not isinstance(content, dict) or any(isinstance(entry, dict | list) for entry in content.values()):
        raise UsageError(
            f"{file} does not hold the properties of the connector {name}",
            expected='a JSON object of texts, such as {"connector.class": "…", "tasks.max": "1"}',
        )
    return {
        key: entry if isinstance(entry, str) else json.dumps(entry)
        for key, entry in content.items()
        if entry is not None
    }


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{text!r} cannot be understood as a property", expected="KEY=VALUE")
    return key.strip(), value


def _show(state: "ConnectorState", as_json: bool, said: str) -> None:
    if as_json:
        print_json(_state_dict(state))
    else:
        say(said)


def _state_dict(state: "ConnectorState") -> dict[str, Any]:
    tasks = [
        {"task": task.id, "state": task.state, "worker": task.worker, "reason": task.reason} for task in state.tasks
    ]
    return {**_row(state), "worker": state.worker, "tasks": tasks}


@connect.command(
    epilog="""\b
Examples:
  riverrun connect status
  riverrun connect status log --json | jq -r .state
Exit code: 0, or 1 when a connector has failed.
"""
)
@click.argument("name", required=False)
@json_option
@click.pass_context
def status(ctx: click.Context, /, *, name: str | None, as_json: bool) -> None:
    """Show a connector and its tasks, and why one failed; without NAME: all of them."""
    _, client = _open()
    with client:
        states = [client.state(connector) for connector in ([name] if name else client.names())]
        config = client.config(name) if name else {}
    if as_json:
        print_json({**_state_dict(states[0]), "config": config} if name else [_state_dict(state) for state in states])
    else:
        rows = [
            {
                "connector": state.name,
                "task": task.id,
                "state": task.state,
                "worker": task.worker,
                "reason": task.reason,
            }
            for state in states
            for task in state.tasks
        ]
        for state in states:
            reason = f": {state.own_reason}" if state.own_reason else ""
            say(f"{state.name} is {state.overall}, {plural(len(state.tasks), 'task')}{reason}")
        print_rows(rows, as_json=False, empty="There are no tasks.")
    if any(state.overall == "failed" for state in states):
        ctx.exit(1)


@connect.command(epilog="Example: riverrun connect pause log")
@click.argument("name")
@timeout_option
@json_option
def pause(name: str, timeout: float, as_json: bool) -> None:
    """Let a connector rest: it stays where it is until `riverrun connect resume`."""
    from riverrun.connectors.kafka_connect.reconcile import wait_for_state

    _, client = _open()
    with client:
        client.pause(name)
        wait_for_state(client, name, "paused", timeout)
        _show(client.state(name), as_json, f"{name} is paused.")


@connect.command(epilog="Example: riverrun connect resume log")
@click.argument("name")
@timeout_option
@json_option
def resume(name: str, timeout: float, as_json: bool) -> None:
    """Let a connector that was paused or stopped go on."""
    from riverrun.connectors.kafka_connect import wait_until_running

    _, client = _open()
    with client:
        client.resume(name)
        wait_until_running(client, [name], timeout)
        _show(client.state(name), as_json, f"{name} runs.")


@connect.command(epilog="Example: riverrun connect stop log")
@click.argument("name")
@timeout_option
@json_option
def stop(name: str, timeout: float, as_json: bool) -> None:
    """End a connector's tasks and keep the connector: its offsets can then be moved."""
    from riverrun.connectors.kafka_connect.reconcile import wait_for_state

    _, client = _open()
    with client:
        client.stop(name)
        wait_for_state(client, name, "stopped", timeout)
        _show(client.state(name), as_json, f"{name} is stopped.")


@connect.command(epilog="Example: riverrun connect restart log --all")
@click.argument("name")
@click.option("--all", "everything", is_flag=True, help="All its tasks, not only those that failed.")
@timeout_option
@json_option
def restart(name: str, everything: bool, timeout: float, as_json: bool) -> None:
    """Start what has failed of a connector again, and wait until it runs."""
    from riverrun.connectors.kafka_connect import wait_until_running

    _, client = _open()
    with client:
        client.restart(name, only_failed=not everything)
        wait_until_running(client, [name], timeout, reconfigured=[name])
        _show(client.state(name), as_json, f"{name} runs.")


@connect.command(epilog="Example: riverrun connect remove log --yes")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(name: str, dry_run: bool, yes: bool) -> None:
    """Remove a connector and its secrets. What it has written stays.

    A source forgets how far it was: one of the same name begins anew. One that follows a database gives up its replication
    slot.
    """
    from riverrun.connectors.kafka_connect import Vault, remove_connector
    from riverrun.connectors.postgres.cleanup import drop_slot

    settings, client = _open()
    with client:
        state, config, vault = client.state(name), client.config(name), Vault.of(settings)
        losses = [f"the {state.kind} connector {name} ({state.overall}), with its configuration"]
        if state.kind == "source":
            losses.append("how far it has read")
        if slot := config.get("slot.name"):
            losses.append(f"the replication slot {slot} of the database")
        if dry_run:
            for loss in losses:
                click.echo(loss)
            say("Nothing was done.")
            return
        confirm("Remove it?", "This removes", losses, yes=yes)
        done = ""

        def before_delete() -> None:
            nonlocal done
            password = vault.reveal(config.get("database.password", ""))
            done = drop_slot(config, password, settings.settings.postgres, settings.project.root)

        remove_connector(client, name, before_delete=before_delete)
        vault.forget(name)
    say(f"{name} is removed.")
    if done:
        say(f"{done[:1].upper()}{done[1:]}{'' if done.endswith(';') else '.'}")


@connect.command(
    epilog="""\b
Examples:
  riverrun connect offsets log
  riverrun connect stop log && riverrun connect offsets log --reset --yes && riverrun connect resume log
  riverrun connect offsets log --set '{"partition": {"filename": "/var/log/app.log"}, "offset": {"position": 0}}'
"""
)
@click.argument("name")
@click.option("--reset", is_flag=True, help="Forget them: the connector begins anew. It must be stopped.")
@click.option(
    "--set", "wanted", multiple=True, metavar="JSON", help="Move one: partition and offset. It must be stopped."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def offsets(name: str, reset: bool, wanted: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Show how far a connector is, in its own words; move it there with --set, or let it begin anew with --reset."""
    if reset and wanted:
        raise UsageError("--reset and --set cannot be had at once")
    _, client = _open()
    with client:
        if reset or wanted:
            new_offsets = [_offset(offset) for offset in wanted]
            losses = [f"how far {name} is: {json.dumps(offset)}" for offset in client.offsets(name)]
            confirm("Do it?", "This changes", losses or [f"where {name} begins"], yes=yes)
            client.reset_offsets(name) if reset else client.set_offsets(name, new_offsets)
        current = client.offsets(name)
    rows = current if as_json else [{key: json.dumps(value) for key, value in row.items()} for row in current]
    print_rows(rows, as_json=as_json, empty=f"{name} has no offsets yet.")


def _offset(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--set cannot be read as JSON: {error}") from error
    if not isinstance(parsed, dict) or set(parsed) != {"partition", "offset"}:
        raise UsageError("--set cannot be understood", expected='{"partition": {…}, "offset": {…}}', found=text)
    return parsed
