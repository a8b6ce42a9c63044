"""What keeps the event loop free and every answer in time: room for records before they are read, long work in slices and
one request at a time, and questions to Kafka in threads of their own."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Protocol, Self

from riverrun.connectors.http.answers import AWAY_SECONDS, Refused, busy, refused_by
from riverrun.connectors.http.body import Wanted
from riverrun.errors import BrokerUnreachableError, RiverrunError

# How long one piece of work may keep the event loop from the others.
SLICE_SECONDS = 0.002
# A body that is larger is worked on in its turn, in slices.
LARGE_BYTES = 32 * 1024
# What a record has at least, mostly, and what gzip makes of it: for a guess at how many there are.
_RECORD_BYTES = 100
_PACKED = 8


class _Queue(Protocol):
    def has_room(self, count: int) -> bool: ...


class Room:
    """Records that may wait for Kafka: those in the producer's queue, and those of requests that were read."""

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue
        self.reserved = 0

    def check(self, count: int) -> None:
        """Refused with 429 when there is no room."""
        if not self._queue.has_room(self.reserved + count):
            raise busy("Kafka is slower than the records come; nothing of this request was taken")

    def take(self, count: int) -> None:
        """Refused with 429 when there is no room."""
        self.check(count)
        self.reserved += count


class Reservation:
    """What one request has of the room, in a `with`. Given back when its records are in the producer's queue."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._held = 0

    def become(self, count: int) -> None:
        if count > self._held:
            self._room.take(count - self._held)
        else:
            self._room.reserved -= self._held - count
        self._held = count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.become(0)


def guessed(said: Wanted, most: int) -> int:
    """About how many records a body has, by its head alone."""
    size = (said.length or 0) * (_PACKED if said.packed else 1)
    return min(most, 1 + size // _RECORD_BYTES)


class Pace:
    """Lets others have the event loop after each slice of work."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._until = self._clock() + SLICE_SECONDS

    async def rest(self) -> None:
        if self._clock() >= self._until:
            await asyncio.sleep(0)
            self._until = self._clock() + SLICE_SECONDS


class Turns:
    """Large requests are worked on one after the other, in the order they came: side by side they would all be late."""

    def __init__(self) -> None:
        self._turn: asyncio.Lock | None = None

    @contextlib.asynccontextmanager
    async def turn(self, size: int, deadline: float) -> AsyncIterator[None]:
        """Refused when its turn does not come before the deadline: nothing of it was taken."""
        if size <= LARGE_BYTES:
            yield
            return
        if self._turn is None:
            self._turn = asyncio.Lock()
        try:
            async with asyncio.timeout_at(deadline):
                await self._turn.acquire()
        except TimeoutError:
            raise busy("Too many requests wait for their turn; nothing of this one was taken") from None
        try:
            yield
        finally:
            self._turn.release()


class Questions:
    """Questions to Kafka, one at a time for each name, each in a thread of its own: who asks meanwhile shares the answer.
    A thread ends by the question's own timeout, and never holds up the end of the process."""

    def __init__(self) -> None:
        self._asked: dict[str, asyncio.Future[None]] = {}

    async def ask(self, name: str, question: Callable[[], None], deadline: float) -> None:
        """What the question raises. Refused with 503 when there is no answer before the deadline (of the loop's clock)."""
        answer = self._asked.get(name)
        if answer is None:
            answer = self._asked[name] = _in_thread(question, f"riverrun-ingest-{name}")
            answer.add_done_callback(lambda _: self._asked.pop(name, None))
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(answer)
        except TimeoutError:
            raise Refused(
                503, BrokerUnreachableError.code, "Kafka does not answer; nothing was taken", retry_after=AWAY_SECONDS
            ) from None
        except RiverrunError as error:
            raise refused_by(error) from error


def _in_thread(question: Callable[[], None], name: str) -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[None] = loop.create_future()
    # Nobody may be left to hear it.
    answer.add_done_callback(lambda done: done.cancelled() or done.exception())

    def tell(error: Exception | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)

    def run() -> None:
        problem: Exception | None = None
        try:
            question()
        except Exception as error:  # noqa: BLE001  -- told to who asked
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(tell, problem)

    threading.Thread(target=run, name=name, daemon=True).start()
    return answer
