"""Who has logged in. A session is a random number in the browser's cookie; all else stays here, and ends with the
process."""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_SESSIONS = 1000
# Requests of one login at the same time, pages that look on among them.
MAX_REQUESTS_PER_SESSION = 60


@dataclass(eq=False)
class LoginSession:
    """One login. `ended` is set when it is over, so that what streams to it ends too."""

    user: str
    key: bytes
    began: float
    last_used: float
    open_requests: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class LoginSessions:
    """`idle` and `max_age` in seconds: without use, and in all. Used in one event loop."""

    def __init__(self, idle: float, max_age: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle, self._most, self._clock = idle, max_age, clock
        self._by_key: dict[bytes, LoginSession] = {}

    def create(self, user: str) -> str:
        """A new session, always under a number of our own; gives the number."""
        self._remove_expired()
        if len(self._by_key) >= MAX_SESSIONS:
            self.close(min(self._by_key.values(), key=lambda each: each.last_used))
        token = secrets.token_urlsafe(32)
        now = self._clock()
        self._by_key[_key(token)] = LoginSession(user, _key(token), now, now)
        return token

    def find(self, token: str) -> LoginSession | None:
        """The session of a number, which is used by that; None when there is none, or it is over."""
        session = self._by_key.get(_key(token)) if token else None
        if session is None:
            return None
        if self.seconds_left(session) <= 0:
            self.close(session)
            return None
        session.last_used = self._clock()
        return session

    def seconds_left(self, session: LoginSession) -> float:
        """How many seconds a session has, unless it is used again."""
        now = self._clock()
        idle = self._idle if session.open_requests else session.last_used + self._idle - now
        return min(idle, session.began + self._most - now)

    def release(self, session: LoginSession) -> None:
        """One of its requests is over. A page that looks on is use, up to its end."""
        session.open_requests -= 1
        session.last_used = self._clock()

    def end_by_token(self, token: str) -> None:
        if (session := self._by_key.get(_key(token))) is not None:
            self.close(session)

    def _remove_expired(self) -> None:
        for session in list(self._by_key.values()):
            if self.seconds_left(session) <= 0:
                self.close(session)

    def close(self, session: LoginSession) -> None:
        self._by_key.pop(session.key, None)
        session.ended.set()

    def __len__(self) -> int:
        return len(self._by_key)


def _key(token: str) -> bytes:
    """What a session is found by: not the number, so that nothing here could be used as one."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
