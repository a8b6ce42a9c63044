"""The consumer for asyncio: the same reading, commits and guarantees, with nothing that blocks the loop.

    async with AsyncConsumer(readings, group="alerts") as consumer:
        async for record in consumer:
            await handle(record.value)

The client library blocks, so it is called in one thread of its own; records that were fetched are returned without it. A
cancelled wait loses nothing: what it fetched is returned by the next one.
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
from riverrun.kafka.consumer.consumer import Consumer, check_batch_size
from riverrun.kafka.consumer.options import ConsumerKeywords, ConsumerMetrics
from riverrun.kafka.consumer.parallel_runner import ParallelRunner
from riverrun.kafka.consumer.record import Batch, Record
from riverrun.kafka.consumer.run_options import RunKeywords, RunOptions
from riverrun.kafka.consumer.scheduler import WorkItem
from riverrun.kafka.consumer.worker_threads import stop_on_signals, write_dead_letter
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.topic import Topic

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    V = DefaultTypeVar("V", default=Any)
else:
    V = TypeVar("V")
T = TypeVar("T")

log = logging.getLogger("riverrun.kafka.consumer")


class AsyncConsumer(Generic[V]):
    """Reads topics in an event loop; see `Consumer` for the arguments and methods. For one task at a time."""

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
        self._pending_call: asyncio.Future[Any] | None = None
        self._commits_each_record = self._consumer.options.commit == "record"
        self._commits_before_delivery = self._consumer.options.delivery == "at-most-once"

    async def _run_in_thread(self, function: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        """Run a blocking call in our thread, after the current one there; a cancelled wait does not end the call."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, functools.partial(function, *arguments, **keywords))
        self._pending_call = future
        return await asyncio.shield(future)

    async def _await_pending_call(self) -> None:
        """Wait for a call whose own wait was cancelled: until it ends, it owns the buffered records."""
        if self._pending_call is not None and not self._pending_call.done():
            await asyncio.wait([self._pending_call])

    # --- one by one, in batches ---------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Record[V]]:
        return self

    async def __anext__(self) -> Record[V]:
        """The next record; asking for it marks the one before as done."""
        await self._await_pending_call()
        consumer = self._consumer
        consumer._check_usable()
        if self._commits_each_record:
            await self._run_in_thread(consumer._mark_done)
        else:
            consumer._mark_done()
        while (record := consumer._next_buffered()) is None:
            if not await self._run_in_thread(consumer._refill):
                raise StopAsyncIteration
        if self._commits_before_delivery:
            await self._run_in_thread(consumer._commit_before_delivery)
        return record

    async def batches(self, max_records: int = 1000, *, wait_seconds: float = 1.0) -> AsyncIterator[Batch[V]]:
        """Batches of up to `max_records` records; a batch that is not full is given out `wait_seconds` after it began."""
        check_batch_size(max_records)
        consumer = self._consumer
        while True:
            await self._await_pending_call()
            consumer._check_usable()
            await self._run_in_thread(consumer._mark_batch_done)
            steps = consumer._fill_batch_steps(max_records, wait_seconds)
            # One step at a time: a cancelled wait must not keep our thread from a commit, or from closing.
            while await self._run_in_thread(next, steps, "done") is None:
                pass
            if not consumer._has_batch:
                return
            yield (
                await self._run_in_thread(consumer._take_batch, max_records)
                if self._commits_before_delivery
                else consumer._take_batch(max_records)
            )

    # --- in parallel --------------------------------------------------------------------------------------------------

    async def run(
        self, handler: Callable[[Record[V]], Awaitable[Any]], *, concurrency: int = 100, **options: Unpack[RunKeywords]
    ) -> ConsumerMetrics:
        """Await `handler` for every record, up to `concurrency` at a time, until `stop`, SIGTERM or SIGINT, or the end.

        Keywords are those of `RunOptions`. When this is cancelled, the handlers are cancelled; what was done is committed.
        """
        if concurrency < 1:
            raise UsageError(f"run cannot have concurrency={concurrency}", expected="at least 1", option="concurrency")
        await self._await_pending_call()
        with self._consumer._begin_run(RunOptions(**options)) as runner, stop_on_signals(self.stop):
            await _AsyncWorkerPool(runner, handler, concurrency, self._thread, self.stop).run()
        return self.metrics()

    def stop(self) -> None:
        """End the loop or `run` soon: what was started is finished and committed."""
        self._consumer.stop()

    # --- the rest, as in Consumer -------------------------------------------------------------------------------------

    async def commit(self, *, wait: bool = True, through: Record[V] | None = None) -> None:
        """Commit everything returned, the current record included; or of one partition all `through` this record."""
        if self._consumer._runner is None:
            await self._run_in_thread(self._consumer.commit, wait=wait, through=through)
        else:
            # During `run`, our thread reads.
            await asyncio.to_thread(self._consumer.commit, wait=wait, through=through)

    async def seek(self, partition: int | TopicPartition, offset: int) -> None:
        await self._run_in_thread(self._consumer.seek, partition, offset)

    async def seek_to_beginning(self, *partitions: int | TopicPartition) -> None:
        await self._run_in_thread(self._consumer.seek_to_beginning, *partitions)

    async def seek_to_end(self, *partitions: int | TopicPartition) -> None:
        await self._run_in_thread(self._consumer.seek_to_end, *partitions)

    async def seek_to_time(self, moment: datetime, *partitions: int | TopicPartition) -> None:
        await self._run_in_thread(self._consumer.seek_to_time, moment, *partitions)

    async def pause(self, *partitions: int | TopicPartition) -> None:
        await self._run_in_thread(self._consumer.pause, *partitions)

    async def resume(self, *partitions: int | TopicPartition) -> None:
        await self._run_in_thread(self._consumer.resume, *partitions)

    async def lag(self) -> dict[TopicPartition, int]:
        return await self._run_in_thread(self._consumer.lag)

    @property
    def partitions(self) -> list[TopicPartition]:
        return self._consumer.partitions

    def position(self) -> dict[TopicPartition, int]:
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
            await self._run_in_thread(self._consumer.__exit__, kind, error, trace)
        finally:
            self._thread.shutdown(wait=False)

    async def close(self) -> None:
        """Commit what was returned and leave the group."""
        await self.__aexit__(None, None, None)


class _AsyncWorkerPool(Generic[V]):
    """Tasks that handle records while the runner reads in its thread."""

    def __init__(
        self,
        runner: ParallelRunner[V],
        handler: Callable[[Record[V]], Awaitable[Any]],
        concurrency: int,
        thread: ThreadPoolExecutor,
        stop: Callable[[], None],
    ) -> None:
        self._runner = runner
        self._handler = handler
        self._concurrency = concurrency
        self._thread = thread
        self._stop = stop
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._wake.set)

        self._runner.on_ready = wake
        try:
            await self._handle_until_done(loop.run_in_executor(self._thread, self._read))
            # Records in front of one that is done are handled while the runner waits for them.
            await self._handle_until_done(loop.run_in_executor(self._thread, self._runner.finish))
        except asyncio.CancelledError:
            self._stop()
            for task in self._tasks:
                task.cancel()
            # Behind a `finish` that is running already, this one has nothing to do.
            finishing = loop.run_in_executor(self._thread, functools.partial(self._runner.finish, hurry=True))
            await asyncio.wait([finishing])
            if finishing.exception() is not None:
                log.warning("When run was cancelled: %s", finishing.exception())
            raise

    async def _handle_until_done(self, thread: asyncio.Future[None]) -> None:
        """Handle records until this call of the runner returns."""
        thread.add_done_callback(lambda _: self._wake.set())
        while not thread.done():
            self._wake.clear()
            self._start_tasks()
            await self._wait()
        thread.result()

    def _read(self) -> None:
        try:
            self._runner.read()
        except BaseException as error:  # noqa: BLE001  -- raised by `finish`
            self._runner.fail(error)

    def _start_tasks(self) -> None:
        while len(self._tasks) < self._concurrency and (work := self._runner.take_now()) is not None:
            task = asyncio.create_task(self._handle(work))
            self._tasks.add(task)
            task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._wake.set()

    async def _wait(self) -> None:
        due = self._runner.seconds_to_due()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(due):
                await self._wake.wait()

    async def _handle(self, work: WorkItem[V]) -> None:
        runner = self._runner
        try:
            problem = runner.read_value(work)
            unreadable = isinstance(problem, RecordUnreadableError)
            if problem is None:
                try:
                    await self._handler(work.record)
                except Exception as error:  # noqa: BLE001  -- any error of a user's handler is handled below
                    problem = error
            if problem is None:
                runner.succeeded(work)
            elif runner.handle_failure(work, problem, unreadable=unreadable):
                runner.dead_letter_written(work, await asyncio.to_thread(write_dead_letter, runner, work, problem))
        except BaseException as error:
            runner.release(work)
            if not isinstance(error, asyncio.CancelledError):
                runner.fail(error)
            raise
