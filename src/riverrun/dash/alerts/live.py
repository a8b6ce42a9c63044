"""The alerts page, live: the ledger as a page sees it, made once for all who look on, and what people say to it."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from riverrun.alerts.ledger import Ack, Ledger, Life, Silence, forgotten, kept
from riverrun.dash.alerts.following import LOOK_SECONDS, Following
from riverrun.dash.alerts.view import details_of, difference, process_of, state_of
from riverrun.dash.broadcast import Broadcast, now_ms
from riverrun.errors import UsageError

FRAME_SECONDS = 0.25
# Making a frame of a very long ledger takes no more than a fifth of the time.
_SHARE = 5
MOST_SILENCES = 500
# Behind for so long is worth saying.
LATE_MS = 5000
_KEYED = ("cases", "dead")
_NEVER = 2**62


class Alerts(Broadcast):
    """What an app's alerts do. Used in one event loop; `declared` are the rules of the pipeline file, where there is one."""

    def __init__(
        self,
        app: str,
        following: Following,
        *,
        declared: Sequence[str] = (),
        frame_seconds: float = FRAME_SECONDS,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        super().__init__("alerts")
        self.app = app
        self._following = following
        self._declared = tuple(declared)
        self._frame_seconds = frame_seconds
        self._clock = clock
        self._changed = asyncio.Event()
        self._made = 0.0
        self._made_of = -1
        self._known: tuple[int, int, dict[str, Any]] = (-1, 0, {})

    # --- live ---

    async def refresh(self) -> dict[str, Any]:
        self._begin()
        return await super().refresh()

    def _begin(self) -> None:
        loop = self._loop = asyncio.get_running_loop()

        def changed() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._changed.set)

        self._following.start(changed)

    async def _look(self) -> dict[str, Any]:
        self._changed.clear()
        return await asyncio.get_running_loop().run_in_executor(self._looker, self._look_at_all)

    def _look_at_all(self) -> dict[str, Any]:
        standing = self._following.standing()
        now = self._clock()
        behind = self._following.behind()
        late = behind is not None and now - behind.since >= LATE_MS
        life = self._following.look(lambda ledger: ledger.life)
        state = {
            "app": self.app,
            "ready": standing.ready,
            "there": standing.there,
            "trouble": standing.trouble,
            "process": process_of(life, is_alive(life)),
            "behind": {"offsets": behind.offsets, "since": behind.since} if behind is not None and late else None,
            **self._lists(standing.version, now),
        }
        self._made, self._made_of = time.monotonic(), standing.version
        return state

    def _lists(self, version: int, now: int) -> dict[str, Any]:
        """What the ledger comes to, made anew only when it changed or a silence has ended: a long one takes a while."""
        known_of, good_until, known = self._known
        if known_of == version and now < good_until:
            return known
        made = self._following.look(lambda ledger: state_of(ledger, now, declared=self._declared))
        self._known = version, min((each["until"] for each in made["silences"]), default=_NEVER), made
        return made

    def _difference(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
        return difference(before, now, _KEYED)

    async def _rest(self, took: float) -> None:
        await asyncio.sleep(max(self._frame_seconds - took, _SHARE * took))
        try:
            await asyncio.wait_for(self._changed.wait(), LOOK_SECONDS)
        except TimeoutError:
            # Time has passed, and so silences end and positions fall behind.
            return

    # --- asked for ---

    async def state(self) -> dict[str, Any]:
        """The page as it is. Right after the start the ledger is still being read: that is waited for, but not long."""
        state = await self._newest()
        deadline = time.monotonic() + LOOK_SECONDS
        while not state["ready"] and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            state = await self._newest()
        return state

    async def _newest(self) -> dict[str, Any]:
        """At most so old as two looks are apart."""
        old = time.monotonic() - self._made > LOOK_SECONDS or self._made_of != self._following.standing().version
        return await self.refresh() if old or not self._state else self._state

    async def count(self) -> dict[str, Any]:
        """What the header of every page shows."""
        state = await self.state()
        return {"there": True, "count": state["count"], "worst": state["worst"]}

    async def case(self, rule: str, key: str, number: int) -> dict[str, Any]:
        await self.state()
        found = self._following.look(lambda ledger: details_of(ledger, (rule, key, number), self._clock()))
        if found is None:
            raise _no_case(rule, key, number)
        return found

    async def acknowledge(self, rule: str, key: str, number: int, by: str) -> dict[str, Any]:
        """Somebody looks after it. Who said so first has said so."""
        await self.state()
        place = (rule, key, number)

        def find(ledger: Ledger) -> Ack:
            case = ledger.cases.get(place)
            if case is None:
                raise _no_case(rule, key, number)
            if case.state != "firing":
                raise UsageError(f"{rule} of {key!r} does not fire any more: there is nothing to acknowledge")
            return ledger.acks.get(place) or Ack(rule=rule, key=key, number=number, at=self._clock(), by=by)

        ack = self._following.look(find)
        await self._work(lambda: self._following.tell([kept(ack)]))
        return {"by": ack.by, "at": ack.at}

    async def silence(self, rule: str, key: str, minutes: int, why: str, by: str) -> dict[str, Any]:
        state = await self.state()
        if rule and rule not in state["rules"]:
            expected = ", ".join(state["rules"][:20]) or "an empty text, for all"
            raise UsageError(f"There is no rule {rule[:80]!r}", expected=expected)
        if len(state["silences"]) >= MOST_SILENCES:
            raise UsageError(f"{MOST_SILENCES} silences hold already", hint="End some, or silence a whole rule")
        now = self._clock()
        made = Silence(
            id=secrets.token_hex(6), until=now + minutes * 60_000, rule=rule, key=key, begun=now, by=by, why=why
        )
        await self._work(lambda: self._following.tell([kept(made)]))
        return {"id": made.id, "until": made.until}

    async def end_silence(self, id_: str) -> dict[str, Any]:
        await self.state()
        found = self._following.look(lambda ledger: ledger.silences.get(id_))
        if found is None:
            raise UsageError(f"There is no silence {id_[:40]!r}", hint="It may have been ended by somebody else")
        await self._work(lambda: self._following.tell([forgotten(found)]))
        return {"id": id_}

    def close(self) -> None:
        super().close()
        self._following.close()


def is_alive(life: Life | None) -> bool | None:
    """Whether the process lives; None when it is on another machine."""
    if life is None or life.pid <= 0 or life.host != socket.gethostname():
        return None
    try:
        os.kill(life.pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return None
    return True


def _no_case(rule: str, key: str, number: int) -> UsageError:
    return UsageError(
        f"There is no alert {rule[:80]} of {key[:80]!r} with the number {number}",
        hint="What was over for 30 days is forgotten",
    )
