"""Who has logged in. A session is a random number in the browser's cookie; all else stays here, and ends with the
process."""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

MOST_SESSIONS = 1000
# Requests of one login at the same time, pages that look on among them.
MOST_RUNNING = 60


@dataclass(eq=False)
class Session:
    """One login. `ended` is set when it is over, so that what streams to it ends too."""

    who: str
    key: bytes
    began: float
    used: float
    running: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Sessions:
    """`idle` and `most` in seconds: without use, and in all. Used in one event loop."""

    def __init__(self, idle: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle, self._most, self._clock = idle, most, clock
        self._found: dict[bytes, Session] = {}

    def begin(self, who: str) -> str:
        """A new session, always under a number of our own; gives the number."""
        self._tidy()
        if len(self._found) >= MOST_SESSIONS:
            self.close(min(self._found.values(), key=lambda each: each.used))
        number = secrets.token_urlsafe(32)
        now = self._clock()
        self._found[_key(number)] = Session(who, _key(number), now, now)
        return number

    def find(self, number: str) -> Session | None:
        """The session of a number, which is used by that; None when there is none, or it is over."""
        found = self._found.get(_key(number)) if number else None
        if found is None:
            return None
        if self.left(found) <= 0:
            self.close(found)
            return None
        found.used = self._clock()
        return found

    def left(self, session: Session) -> float:
        """How many seconds a session has, unless it is used again."""
        now = self._clock()
        idle = self._idle if session.running else session.used + self._idle - now
        return min(idle, session.began + self._most - now)

    def leave(self, session: Session) -> None:
        """One of its requests is over. A page that looks on is use, up to its end."""
        session.running -= 1
        session.used = self._clock()

    def end(self, number: str) -> None:
        if (found := self._found.get(_key(number))) is not None:
            self.close(found)

    def _tidy(self) -> None:
        for each in list(self._found.values()):
            if self.left(each) <= 0:
                self.close(each)

    def close(self, session: Session) -> None:
        self._found.pop(session.key, None)
        session.ended.set()

    def __len__(self) -> int:
        return len(self._found)


def _key(number: str) -> bytes:
    """What a session is found by: not the number, so that nothing here could be used as one."""
    return hashlib.sha256(number.encode("utf-8", "surrogateescape")).digest()
