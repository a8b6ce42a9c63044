"""Login sessions. The browser's cookie has a random token; everything else stays in memory, and ends with the
process."""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_SESSIONS = 1000
# Concurrent requests of one login, including open dashboards.
MAX_REQUESTS_PER_SESSION = 60


@dataclass(eq=False)
class LoginSession:
    """One login. `ended` is set when it ends, so that its streams end too."""

    user: str
    key: bytes
    began: float
    last_used: float
    open_requests: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class LoginSessions:
    """All sessions. They end after `idle` seconds without use, or `max_age` in all. Used in one event loop."""

    def __init__(self, idle: float, max_age: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle, self._most, self._clock = idle, max_age, clock
        self._by_key: dict[bytes, LoginSession] = {}

    def create(self, user: str) -> str:
        """Start a session, always with a token of our own; returns the token."""
        self._remove_expired()
        if len(self._by_key) >= MAX_SESSIONS:
            self.close(min(self._by_key.values(), key=lambda session: session.last_used))
        token = secrets.token_urlsafe(32)
        now = self._clock()
        self._by_key[_key(token)] = LoginSession(user, _key(token), now, now)
        return token

    def find(self, token: str) -> LoginSession | None:
        """The session of a token, which counts as use; None when there is none, or it has expired."""
        session = self._by_key.get(_key(token)) if token else None
        if session is None:
            return None
        if self.seconds_left(session) <= 0:
            self.close(session)
            return None
        session.last_used = self._clock()
        return session

    def seconds_left(self, session: LoginSession) -> float:
        """Seconds until a session expires, unless it is used again."""
        now = self._clock()
        idle = self._idle if session.open_requests else session.last_used + self._idle - now
        return min(idle, session.began + self._most - now)

    def release(self, session: LoginSession) -> None:
        """End one of its requests. An open dashboard counts as use until it closes."""
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
    """The key of a session: a hash of the token, so that nothing stored here can be used as a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
