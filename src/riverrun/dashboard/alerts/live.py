"""The alerts page, live: its state, built once for all viewers, and the actions of users."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from riverrun.alerts.state_topic import Ack, AlertProcessLease, AlertState, Silence, encode_tombstone, encode_upsert
from riverrun.dashboard.alerts.state_follower import POLL_SECONDS, AlertStateSource
from riverrun.dashboard.alerts.view import details_of, diff_state, process_of, state_of
from riverrun.dashboard.live.broadcast import Broadcast, now_ms
from riverrun.errors import UsageError

FRAME_SECONDS = 0.25
# Building a frame of a very large state takes no more than a fifth of the time.
_IDLE_FACTOR = 5
MAX_SILENCES = 500
# A lag that lasts this long is shown.
LAG_REPORT_MS = 5000
_KEYED = ("cases", "dead")
_NEVER = 2**62


class AlertsBroadcast(Broadcast):
    """The alerts of an app, live. Used in one event loop; `declared` are the rules of the pipeline file, if there is one."""

    def __init__(
        self,
        app: str,
        source: AlertStateSource,
        *,
        declared: Sequence[str] = (),
        frame_seconds: float = FRAME_SECONDS,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        super().__init__("alerts")
        self.app = app
        self._source = source
        self._declared = tuple(declared)
        self._frame_seconds = frame_seconds
        self._clock = clock
        self._changed = asyncio.Event()
        self._built_at = 0.0
        self._built_version = -1
        self._cached_lists: tuple[int, int, dict[str, Any]] = (-1, 0, {})

    # --- live ---

    async def refresh(self) -> dict[str, Any]:
        self._start_following()
        return await super().refresh()

    def _start_following(self) -> None:
        loop = self._loop = asyncio.get_running_loop()

        def changed() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._changed.set)

        self._source.start(changed)

    async def _read_state(self) -> dict[str, Any]:
        self._changed.clear()
        return await asyncio.get_running_loop().run_in_executor(self._read_pool, self._build_state)

    def _build_state(self) -> dict[str, Any]:
        status = self._source.status()
        now = self._clock()
        lag = self._source.lag()
        late = lag is not None and now - lag.since >= LAG_REPORT_MS
        lease = self._source.read(lambda alert_state: alert_state.lease)
        state = {
            "app": self.app,
            "ready": status.ready,
            "there": status.topic_exists,
            "trouble": status.error,
            "process": process_of(lease, is_alive(lease)),
            "behind": {"offsets": lag.offsets, "since": lag.since} if lag is not None and late else None,
            **self._lists(status.version, now),
        }
        self._built_at, self._built_version = time.monotonic(), status.version
        return state

    def _lists(self, version: int, now: int) -> dict[str, Any]:
        """The page's lists, rebuilt only when the state changed or a silence ended: a large state takes a while."""
        cached_version, valid_until, cached = self._cached_lists
        if cached_version == version and now < valid_until:
            return cached
        lists = self._source.read(lambda alert_state: state_of(alert_state, now, declared=self._declared))
        self._cached_lists = version, min((silence["until"] for silence in lists["silences"]), default=_NEVER), lists
        return lists

    def _diff(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
        return diff_state(before, now, _KEYED)

    async def _wait_for_next(self, seconds_taken: float) -> None:
        await asyncio.sleep(max(self._frame_seconds - seconds_taken, _IDLE_FACTOR * seconds_taken))
        try:
            await asyncio.wait_for(self._changed.wait(), POLL_SECONDS)
        except TimeoutError:
            # With time silences end and positions fall behind, without a change of the topic.
            return

    # --- requests ---

    async def state(self) -> dict[str, Any]:
        """The current state of the page. Right after the start it waits a short time until the topic is read."""
        state = await self._fresh_state()
        deadline = time.monotonic() + POLL_SECONDS
        while not state["ready"] and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            state = await self._fresh_state()
        return state

    async def _fresh_state(self) -> dict[str, Any]:
        """The state, at most `POLL_SECONDS` old."""
        old = time.monotonic() - self._built_at > POLL_SECONDS or self._built_version != self._source.status().version
        return await self.refresh() if old or not self._state else self._state

    async def count(self) -> dict[str, Any]:
        """The count that the header of every page shows."""
        state = await self.state()
        return {"there": True, "count": state["count"], "worst": state["worst"]}

    async def incident(self, rule: str, key: str, number: int) -> dict[str, Any]:
        await self.state()
        details = self._source.read(lambda alert_state: details_of(alert_state, (rule, key, number), self._clock()))
        if details is None:
            raise _unknown_incident(rule, key, number)
        return details

    async def acknowledge(self, rule: str, key: str, number: int, by: str) -> dict[str, Any]:
        """Acknowledge an incident. The first acknowledgement stays."""
        await self.state()
        incident_id = (rule, key, number)

        def find_or_create(alert_state: AlertState) -> Ack:
            incident = alert_state.incidents.get(incident_id)
            if incident is None:
                raise _unknown_incident(rule, key, number)
            if incident.state != "firing":
                raise UsageError(f"{rule} of {key!r} does not fire any more: there is nothing to acknowledge")
            return alert_state.acks.get(incident_id) or Ack(rule=rule, key=key, number=number, at=self._clock(), by=by)

        ack = self._source.read(find_or_create)
        await self._run_in_pool(lambda: self._source.publish([encode_upsert(ack)]))
        return {"by": ack.by, "at": ack.at}

    async def silence(self, rule: str, key: str, minutes: int, why: str, by: str) -> dict[str, Any]:
        state = await self.state()
        if rule and rule not in state["rules"]:
            expected = ", ".join(state["rules"][:20]) or "an empty text, for all"
            raise UsageError(f"There is no rule {rule[:80]!r}", expected=expected)
        if len(state["silences"]) >= MAX_SILENCES:
            raise UsageError(f"{MAX_SILENCES} silences hold already", hint="End some, or silence a whole rule")
        now = self._clock()
        new_silence = Silence(
            id=secrets.token_hex(6), until=now + minutes * 60_000, rule=rule, key=key, begun=now, by=by, why=why
        )
        await self._run_in_pool(lambda: self._source.publish([encode_upsert(new_silence)]))
        return {"id": new_silence.id, "until": new_silence.until}

    async def end_silence(self, id_: str) -> dict[str, Any]:
        await self.state()
        silence = self._source.read(lambda alert_state: alert_state.silences.get(id_))
        if silence is None:
            raise UsageError(f"There is no silence {id_[:40]!r}", hint="It may have been ended by somebody else")
        await self._run_in_pool(lambda: self._source.publish([encode_tombstone(silence)]))
        return {"id": id_}

    def close(self) -> None:
        super().close()
        self._source.close()


def is_alive(life: AlertProcessLease | None) -> bool | None:
    """Whether the process is alive; None when that cannot be known, as on another machine."""
    if life is None or life.pid <= 0 or life.host != socket.gethostname():
        return None
    try:
        os.kill(life.pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return None
    return True


def _unknown_incident(rule: str, key: str, number: int) -> UsageError:
    return UsageError(
        f"There is no alert {rule[:80]} of {key[:80]!r} with the number {number}",
        hint="What was over for 30 days is forgotten",
    )
