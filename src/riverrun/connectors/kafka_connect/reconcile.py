"""Keep the connectors of a pipeline file equal to it: create, change and remove them; those of others are left alone.

A connector belongs to an app when its name begins with `APP.` and its configuration says so too (`riverrun.app`).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from riverrun.config import Secret
from riverrun.connectors.kafka_connect.client import ConnectClient
from riverrun.connectors.kafka_connect.state import FAILED, PAUSED, RUNNING, STOPPED, ConnectorState
from riverrun.connectors.kafka_connect.vault import Vault
from riverrun.errors import ConnectError, ConnectFailedError, ConnectRefusedError, ConnectUnavailableError, UsageError

# A property that no connector knows and all ignore: the owning app.
OWNER_PROPERTY = "riverrun.app"
POLL_SECONDS = 0.25
# After a change Connect shows the old state for a moment, and does not say which of the two it is: a state that it shows for
# this long without a break is the current one.
STALE_SECONDS = 5.0


@dataclass(frozen=True)
class ReconcileResult:
    """What was done, by name. `paused` are those that somebody has paused or stopped: they are left so."""

    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    restarted: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()


def dead_letter_config(topic: str, replication_factor: int = -1) -> dict[str, str]:
    """For the configuration of a sink: a record that it cannot read or convert goes to this topic, with its origin and the
    reason in its headers, and the sink continues."""
    return {
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": topic,
        "errors.deadletterqueue.topic.replication.factor": str(replication_factor),
        "errors.deadletterqueue.context.headers.enable": "true",
        "errors.log.enable": "true",
        # The reason, not the record: a log is read by more people than a topic.
        "errors.log.include.messages": "false",
    }


def reconcile_connectors(
    client: ConnectClient,
    vault: Vault,
    app: str,
    desired: Mapping[str, Mapping[str, str | Secret]],
    *,
    seconds: float = 60.0,
    notice: Callable[[str], None] = lambda _: None,
    on_removed: Callable[[Mapping[str, str]], None] = lambda _: None,
    on_remove_failed: Callable[[str, ConnectError], None] | None = None,
) -> ReconcileResult:
    """Make Connect's connectors of an app those that it declares now, and wait until they run. `on_removed` is called with
    the configuration of each removed one, after it is stopped and before Connect deletes it. `on_remove_failed` is called
    with each that could not be removed, and why; without it, that is raised.

    `desired` maps whole names (`APP.…`) to configurations. All are checked before any is changed: ConnectRefusedError has
    all problems. One that does not run within `seconds` is a ConnectFailedError with its reason; it keeps its configuration.
    """
    if wrong := [name for name in desired if not name.startswith(f"{app}.")]:
        raise UsageError(f"A connector of the app {app!r} has a name that begins with {app!r} and a dot; found {wrong}")
    existing = client.configs()
    configs = {
        name: {**vault.hide(name, config), OWNER_PROPERTY: app, "name": name} for name, config in desired.items()
    }
    changed = [name for name, config in configs.items() if existing.get(name) != config]
    problems = [f"{name}: {problem}" for name in changed for problem in client.validation_problems(configs[name])]
    if problems:
        raise ConnectRefusedError(problems, app=app)
    obsolete = [name for name, config in existing.items() if name not in configs and _is_owned_by(app, name, config)]
    for name in changed:
        notice(f"{'changing' if name in existing else 'making'} the connector {name}")
        client.put(name, configs[name], checked=True)
        vault.forget(name, configs[name])
    # After those that are declared: one that does not stop must not keep them from running.
    remaining = []
    for name in obsolete:
        notice(f"removing the connector {name}: {app} does not declare it any more")
        try:
            remove_connector(client, name, seconds, before_delete=partial(on_removed, existing[name]))
        except ConnectError as error:
            if on_remove_failed is None or isinstance(error, ConnectUnavailableError):
                raise
            on_remove_failed(name, error)
            remaining.append(name)
        else:
            vault.forget(name)
    # A run that was interrupted between the two has left some.
    vault.forget_others(app, [*configs, *remaining, *(name for name in existing if name not in obsolete)])
    restarted, paused = _restart_failed(client, [name for name in configs if name not in changed])
    expected = [name for name in configs if name not in paused]
    wait_until_running(
        client, expected, seconds, reconfigured=[*restarted, *(name for name in changed if name in existing)]
    )
    return ReconcileResult(
        created=tuple(name for name in changed if name not in existing),
        updated=tuple(name for name in changed if name in existing),
        restarted=tuple(restarted),
        removed=tuple(name for name in obsolete if name not in remaining),
        unchanged=tuple(name for name in configs if name not in changed and name not in restarted),
        paused=tuple(paused),
    )


def _is_owned_by(app: str, name: str, config: Mapping[str, str]) -> bool:
    return name.startswith(f"{app}.") and config.get(OWNER_PROPERTY) == app


def remove_connector(
    client: ConnectClient, name: str, seconds: float = 60.0, *, before_delete: Callable[[], None] = lambda: None
) -> None:
    """Remove a connector. A source's offsets are deleted too: one of the same name would skip what happens meanwhile.

    `before_delete` removes what it has elsewhere, such as a replication slot. If that is interrupted, Connect still has the
    connector, and removing it again does the rest.
    """
    if client.state(name).kind == "source":
        client.stop(name)
        wait_for_state(client, name, STOPPED, seconds)
        client.reset_offsets(name)
    before_delete()
    client.delete(name)


def _restart_failed(client: ConnectClient, names: list[str]) -> tuple[list[str], list[str]]:
    """Restart what has failed, leave alone what somebody paused; returns both, by name."""
    restarted, paused = [], []
    states = client.states() if names else {}
    for name in names:
        state = states.get(name)
        if state is not None and state.state in (PAUSED, STOPPED):
            paused.append(name)
        elif state is not None and state.overall == FAILED:
            client.restart(name)
            restarted.append(name)
    return restarted, paused


def wait_until_running(
    client: ConnectClient, names: list[str], seconds: float = 60.0, *, reconfigured: list[str] | None = None
) -> None:
    """Return when all these connectors and their tasks run; ConnectFailedError says which does not, and why.

    Of one that was `reconfigured`, Connect may for a moment still show how it was before: running or failed counts when it
    stays so.
    """
    began = time.monotonic()
    may_be_stale = set(reconfigured or ())
    # Since when each has been reported as running, or as failed, without a break.
    since: dict[tuple[str, str], float] = {}
    while True:
        states = client.states()
        now = time.monotonic()
        waiting = []
        for name in names:
            state = states.get(name)
            current = state.overall if state is not None else "not known to Connect"
            since = {key: at for key, at in since.items() if key[0] != name or key[1] == current}
            held = now - since.setdefault((name, current), now) >= (STALE_SECONDS if name in may_be_stale else 0.0)
            if state is not None and current == FAILED and held:
                raise _failed_error(state)
            if current != RUNNING or not held:
                waiting.append((name, state, current))
        if not waiting:
            return
        if now - began > seconds:
            idle = [item for item in waiting if item[2] != RUNNING]
            if not idle:
                return
            name, state, current = idle[0]
            if state is not None and current == FAILED:
                raise _failed_error(state)
            raise ConnectFailedError(
                f"The connector {name} did not run after {seconds:.0f} s",
                found=f"it is {current}",
                hint=f"See `riverrun connect status {name}` and `riverrun logs connect`",
                connector=name,
            )
        time.sleep(POLL_SECONDS)


def wait_for_state(client: ConnectClient, name: str, desired: str, seconds: float = 60.0) -> None:
    """Return when a connector and its tasks are paused or stopped, as `desired` says."""
    began = time.monotonic()
    while True:
        state = client.state(name)
        if state.state == desired and all(task.state == desired for task in state.tasks):
            return
        if time.monotonic() - began > seconds:
            raise ConnectFailedError(
                f"The connector {name} was not {desired} after {seconds:.0f} s",
                found=f"it is {state.overall}",
                hint="See `riverrun logs connect`",
                connector=name,
            )
        time.sleep(POLL_SECONDS)


def _failed_error(state: ConnectorState) -> ConnectFailedError:
    return ConnectFailedError(
        f"The connector {state.name} has failed: {state.reason or 'it does not say why'}",
        hint=f"Mend that, then `riverrun connect restart {state.name}`; the whole story is in `riverrun logs connect`",
        connector=state.name,
        reason=state.reason,
    )
