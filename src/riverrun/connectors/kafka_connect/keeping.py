"""Connectors of a pipeline file, kept equal to it: made, changed, removed; those of others are left alone.

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

# A property that no connector knows and none minds: whose it is.
OWNER = "riverrun.app"
LOOK_SECONDS = 0.25
# What was told anew shows for a moment how it was before, and Connect does not say which of the two it is: what it says
# for this long without a break is how it is now.
STALE_SECONDS = 5.0


@dataclass(frozen=True)
class Kept:
    """What was done, by name. `resting` are those that somebody has paused or stopped: they are left so."""

    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    restarted: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    resting: tuple[str, ...] = ()


def dead_letters(topic: str, copies: int = -1) -> dict[str, str]:
    """For the configuration of a sink: a record that it cannot read or convert goes to this topic, with where it came from
    and why in its headers, and the sink goes on."""
    return {
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": topic,
        "errors.deadletterqueue.topic.replication.factor": str(copies),
        "errors.deadletterqueue.context.headers.enable": "true",
        "errors.log.enable": "true",
        # The reason, not the record: a log is read by more people than a topic.
        "errors.log.include.messages": "false",
    }


def keep_connectors(
    client: ConnectClient,
    vault: Vault,
    app: str,
    wanted: Mapping[str, Mapping[str, str | Secret]],
    *,
    seconds: float = 60.0,
    notice: Callable[[str], None] = lambda _: None,
    removed: Callable[[Mapping[str, str]], None] = lambda _: None,
    not_removed: Callable[[str, ConnectError], None] | None = None,
) -> Kept:
    """Make Connect's connectors of an app those that it declares now, and wait until they run. `removed` is called with the
    configuration of each that is removed, when it is stopped and before Connect forgets it. `not_removed` is called with
    each that could not be removed, and why; without it, that is raised.

    `wanted` maps whole names (`APP.…`) to configurations. All are checked before any is changed: ConnectRefusedError has
    all problems. One that does not run within `seconds` is a ConnectFailedError with its reason; it stays as it is told.
    """
    if wrong := [name for name in wanted if not name.startswith(f"{app}.")]:
        raise UsageError(f"A connector of the app {app!r} has a name that begins with {app!r} and a dot; found {wrong}")
    there = client.configs()
    hidden = {name: {**vault.hide(name, config), OWNER: app, "name": name} for name, config in wanted.items()}
    changed = [name for name, config in hidden.items() if there.get(name) != config]
    problems = [f"{name}: {each}" for name in changed for each in client.problems(hidden[name])]
    if problems:
        raise ConnectRefusedError(problems, app=app)
    gone = [name for name, config in there.items() if name not in hidden and _is_of(app, name, config)]
    for name in changed:
        notice(f"{'changing' if name in there else 'making'} the connector {name}")
        client.put(name, hidden[name], checked=True)
        vault.forget(name, hidden[name])
    # Behind those that are declared: one that does not stop must not keep them from running.
    left = []
    for name in gone:
        notice(f"removing the connector {name}: {app} does not declare it any more")
        try:
            remove_connector(client, name, seconds, before_delete=partial(removed, there[name]))
        except ConnectError as error:
            if not_removed is None or isinstance(error, ConnectUnavailableError):
                raise
            not_removed(name, error)
            left.append(name)
        else:
            vault.forget(name)
    # A run that was cut off between the two has left some.
    vault.forget_others(app, [*hidden, *left, *(name for name in there if name not in gone)])
    restarted, resting = _wake(client, [name for name in hidden if name not in changed])
    await_ = [name for name in hidden if name not in resting]
    wait_until_running(client, await_, seconds, told_anew=[*restarted, *(name for name in changed if name in there)])
    return Kept(
        created=tuple(name for name in changed if name not in there),
        updated=tuple(name for name in changed if name in there),
        restarted=tuple(restarted),
        removed=tuple(name for name in gone if name not in left),
        unchanged=tuple(name for name in hidden if name not in changed and name not in restarted),
        resting=tuple(resting),
    )


def _is_of(app: str, name: str, config: Mapping[str, str]) -> bool:
    return name.startswith(f"{app}.") and config.get(OWNER) == app


def remove_connector(
    client: ConnectClient, name: str, seconds: float = 60.0, *, before_delete: Callable[[], None] = lambda: None
) -> None:
    """Remove a connector. A source also forgets how far it was: one of the same name would skip what happens meanwhile.

    `before_delete` takes away what it has elsewhere, such as a replication slot. If that is cut off, Connect still has the
    connector, and removing it again does the rest.
    """
    if client.state(name).kind == "source":
        client.stop(name)
        wait_for_state(client, name, STOPPED, seconds)
        client.reset_offsets(name)
    before_delete()
    client.delete(name)


def _wake(client: ConnectClient, names: list[str]) -> tuple[list[str], list[str]]:
    """Start again what has failed, leave alone what somebody paused: both, by name."""
    restarted, resting = [], []
    states = client.states() if names else {}
    for name in names:
        state = states.get(name)
        if state is not None and state.state in (PAUSED, STOPPED):
            resting.append(name)
        elif state is not None and state.overall == FAILED:
            client.restart(name)
            restarted.append(name)
    return restarted, resting


def wait_until_running(
    client: ConnectClient, names: list[str], seconds: float = 60.0, *, told_anew: list[str] | None = None
) -> None:
    """Return when all these connectors and their tasks run; ConnectFailedError says which does not, and why.

    Of one that was `told_anew`, Connect may for a moment still show how it was before: running or failed counts when it
    stays so.
    """
    began = time.monotonic()
    anew = set(told_anew or ())
    # Since when each has been said to run, or to have failed, without a break.
    since: dict[tuple[str, str], float] = {}
    while True:
        states = client.states()
        now = time.monotonic()
        waiting = []
        for name in names:
            state = states.get(name)
            is_now = state.overall if state is not None else "not known to Connect"
            since = {key: at for key, at in since.items() if key[0] != name or key[1] == is_now}
            held = now - since.setdefault((name, is_now), now) >= (STALE_SECONDS if name in anew else 0.0)
            if state is not None and is_now == FAILED and held:
                raise _failed(state)
            if is_now != RUNNING or not held:
                waiting.append((name, state, is_now))
        if not waiting:
            return
        if now - began > seconds:
            idle = [each for each in waiting if each[2] != RUNNING]
            if not idle:
                return
            name, state, is_now = idle[0]
            if state is not None and is_now == FAILED:
                raise _failed(state)
            raise ConnectFailedError(
                f"The connector {name} did not run after {seconds:.0f} s",
                found=f"it is {is_now}",
                hint=f"See `riverrun connect status {name}` and `riverrun logs connect`",
                connector=name,
            )
        time.sleep(LOOK_SECONDS)


def wait_for_state(client: ConnectClient, name: str, wanted: str, seconds: float = 60.0) -> None:
    """Return when a connector and its tasks are paused or stopped, as `wanted` says."""
    began = time.monotonic()
    while True:
        state = client.state(name)
        if state.state == wanted and all(task.state == wanted for task in state.tasks):
            return
        if time.monotonic() - began > seconds:
            raise ConnectFailedError(
                f"The connector {name} was not {wanted} after {seconds:.0f} s",
                found=f"it is {state.overall}",
                hint="See `riverrun logs connect`",
                connector=name,
            )
        time.sleep(LOOK_SECONDS)


def _failed(state: ConnectorState) -> ConnectFailedError:
    return ConnectFailedError(
        f"The connector {state.name} has failed: {state.reason or 'it does not say why'}",
        hint=f"Mend that, then `riverrun connect restart {state.name}`; the whole story is in `riverrun logs connect`",
        connector=state.name,
        reason=state.reason,
    )
