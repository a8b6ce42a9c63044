"""The consumer for asyncio: the same reading, commits and promises, with nothing that blocks the loop.

    async with AsyncConsumer(readings, group="alerts") as consumer:
        async for record in consumer:
            await handle(record.value)

The client library blocks, so it is called in one thread of its own; records that were fetched are handed out without it.
A wait that is cancelled loses nothing: what it fetched is handed out by the next one.
"""

import asyncio
import contextlib
import functools
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from riverrun.errors import RecordUnreadableError, UsageError
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.consumer import Consumer, check_batch
from riverrun.kafka.consumer.options import ConsumerKeywords, ConsumerMetrics
from riverrun.kafka.consumer.parallel import Engine
from riverrun.kafka.consumer.record import Batch, Record
from riverrun.kafka.consumer.run_options import RunKeywords, RunOptions
from riverrun.kafka.consumer.schedule import Work
from riverrun.kafka.consumer.worker import buried, stop_on_signals
from riverrun.model.state import Place
from riverrun.model.topic import Topic

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    V = DefaultTypeVar("V", default=Any)
else:
    V = TypeVar("V")
T = TypeVar("T")

log = logging.getLogger("riverrun.kafka.consumer")


class AsyncConsumer(Generic[V]):
    """Reads topics in an event loop; see `Consumer` for what the arguments and methods mean. For one task at a time."""

    def __init__(
        self,
        topics: Topic[V] | str | re.Pattern[str] | Iterable[Topic[V] | str | re.Pattern[str]],  # type: ignore[type-var]
        *,
        group: str = "",
        connection: Connection | str | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        self._consumer: Consumer[V] = Consumer(topics, group=group, connection=connection, **options)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="riverrun-read")
        self._under_way: asyncio.Future[Any] | None = None
        self._each = self._consumer.options.commit == "record"
        self._ahead = self._consumer.options.delivery == "at-most-once"

    async def _call(self, act: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        """Call what blocks, in our thread, after what is under way there; a cancelled wait does not end the call."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, functools.partial(act, *arguments, **keywords))
        self._under_way = future
        return await asyncio.shield(future)

    async def _settled(self) -> None:
        """Wait for a call whose own wait was cancelled: until it ends, the records at hand are its."""
        if self._under_way is not None and not self._under_way.done():
            await asyncio.wait([self._under_way])

    # --- one by one, in batches ---------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Record[V]]:
        return self

    async def __anext__(self) -> Record[V]:
        """The next record; by asking, the one before is done."""
        await self._settled()
        consumer = self._consumer
        consumer._check_usable()
        if self._each:
            await self._call(consumer._settle)
        else:
            consumer._settle()
        while (record := consumer._at_hand()) is None:
            if not await self._call(consumer._refill):
                raise StopAsyncIteration
        if self._ahead:
            await self._call(consumer._commit_ahead)
        return record

    async def batches(self, most: int = 1000, *, wait_seconds: float = 1.0) -> AsyncIterator[Batch[V]]:
        """Batches of up to `most` records; a batch that is not full is given out `wait_seconds` after it began."""
        check_batch(most)
        consumer = self._consumer
        while True:
            await self._settled()
            consumer._check_usable()
            await self._call(consumer._settle_batch)
            gathering = consumer._gathering(most, wait_seconds)
            # A turn at a time: a wait that is cancelled must not keep our thread from a commit, or from closing.
            while await self._call(next, gathering, "done") is None:
                pass
            if not consumer._has_batch:
                return
            yield await self._call(consumer._take_batch, most) if self._ahead else consumer._take_batch(most)

    # --- in parallel --------------------------------------------------------------------------------------------------

    async def run(
        self, handler: Callable[[Record[V]], Awaitable[Any]], *, concurrency: int = 100, **options: Unpack[RunKeywords]
    ) -> ConsumerMetrics:
        """Await `handler` for every record, up to `concurrency` at a time, until `stop`, SIGTERM or SIGINT, or the end.

        Keywords are those of `RunOptions`. When this is cancelled, the handlers are cancelled; what was done is committed.
        """
        if concurrency < 1:
            raise UsageError(f"run cannot have concurrency={concurrency}", expected="at least 1", option="concurrency")
        await self._settled()
        with self._consumer._begin_run(RunOptions(**options)) as engine, stop_on_signals(self.stop):
            await _Crew(engine, handler, concurrency, self._thread, self.stop).work()
        return self.metrics()

    def stop(self) -> None:
        """End the loop or `run` soon: what was begun is finished and committed."""
        self._consumer.stop()

    # --- the rest, as in Consumer -------------------------------------------------------------------------------------

    async def commit(self, *, wait: bool = True, through: Record[V] | None = None) -> None:
        """Commit all that was handed out, what is in hand included; or of one partition all `through` this record."""
        if self._consumer._engine is None:
            await self._call(self._consumer.commit, wait=wait, through=through)
        else:
            # While `run` goes on, our thread reads.
            await asyncio.to_thread(self._consumer.commit, wait=wait, through=through)

    async def seek(self, partition: int | Place, offset: int) -> None:
        await self._call(self._consumer.seek, partition, offset)

    async def seek_to_beginning(self, *partitions: int | Place) -> None:
        await self._call(self._consumer.seek_to_beginning, *partitions)

    async def seek_to_end(self, *partitions: int | Place) -> None:
        await self._call(self._consumer.seek_to_end, *partitions)

    async def seek_to_time(self, moment: datetime, *partitions: int | Place) -> None:
        await self._call(self._consumer.seek_to_time, moment, *partitions)

    async def pause(self, *partitions: int | Place) -> None:
        await self._call(self._consumer.pause, *partitions)

    async def resume(self, *partitions: int | Place) -> None:
        await self._call(self._consumer.resume, *partitions)

    async def lag(self) -> dict[Place, int]:
        return await self._call(self._consumer.lag)

    @property
    def partitions(self) -> list[Place]:
        return self._consumer.partitions

    def position(self) -> dict[Place, int]:
        return self._consumer.position()

    def metrics(self) -> ConsumerMetrics:
        return self._consumer.metrics()

    async def __aenter__(self) -> Self:
        self._consumer._check_usable()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._call(self._consumer.__exit__, kind, error, trace)
        finally:
            self._thread.shutdown(wait=False)

    async def close(self) -> None:
        """Commit what was handed out and leave the group."""
        await self.__aexit__(None, None, None)


class _Crew(Generic[V]):
    """Tasks that handle records while the engine reads in its thread."""

    def __init__(
        self,
        engine: Engine[V],
        handler: Callable[[Record[V]], Awaitable[Any]],
        most: int,
        thread: ThreadPoolExecutor,
        stop: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._handler = handler
        self._most = most
        self._thread = thread
        self._stop = stop
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    async def work(self) -> None:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._wake.set)

        self._engine.on_ready = wake
        try:
            await self._meanwhile(loop.run_in_executor(self._thread, self._read))
            # What is in front of a record that is done is handled while the engine waits for it.
            await self._meanwhile(loop.run_in_executor(self._thread, self._engine.finish))
        except asyncio.CancelledError:
            self._stop()
            for task in self._tasks:
                task.cancel()
            # Behind a `finish` that is under way already, this one has nothing to do.
            finishing = loop.run_in_executor(self._thread, functools.partial(self._engine.finish, hurry=True))
            await asyncio.wait([finishing])
            if finishing.exception() is not None:
                log.warning("When run was cancelled: %s", finishing.exception())
            raise

    async def _meanwhile(self, thread: asyncio.Future[None]) -> None:
        """Handle records until the engine has done this."""
        thread.add_done_callback(lambda _: self._wake.set())
        while not thread.done():
            self._wake.clear()
            self._begin()
            await self._wait()
        thread.result()

    def _read(self) -> None:
        try:
            self._engine.read()
        except BaseException as error:  # noqa: BLE001  -- raised by `finish`
            self._engine.give_up(error)

    def _begin(self) -> None:
        while len(self._tasks) < self._most and (work := self._engine.take_now()) is not None:
            task = asyncio.create_task(self._handle(work))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._wake.set()

    async def _wait(self) -> None:
        due = self._engine.seconds_to_due()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(due):
                await self._wake.wait()

    async def _handle(self, work: Work[V]) -> None:
        engine = self._engine
        try:
            problem = engine.read_value(work)
            unreadable = isinstance(problem, RecordUnreadableError)
            if problem is None:
                try:
                    await self._handler(work.record)
                except Exception as error:  # noqa: BLE001  -- whatever a user's handler raises is judged
                    problem = error
            if problem is None:
                engine.succeeded(work)
            elif engine.judge(work, problem, unreadable=unreadable):
                engine.buried(work, await asyncio.to_thread(buried, engine, work, problem))
        except BaseException as error:
            engine.put_back(work)
            if not isinstance(error, asyncio.CancelledError):
                engine.give_up(error)
            raise
