"""Decides which queries run now: quick ones do not wait for slow ones, and each has one deadline that includes waiting.

There are slots for quick queries and fewer for slow ones. A query that is new counts as quick. After `QUICK_SECONDS` it
moves to a slow slot while it runs; where none is free and quick ones wait, it is interrupted and run again when a slow
slot is free: queries only read, so running one twice does no harm. The text of a slow query is remembered, and goes to
the slow slots at once next time.
"""

import asyncio
import contextlib
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from starlette.concurrency import run_in_threadpool

from riverrun.errors import QueryCancelledError, QueryError, QueryTimeoutError, RiverrunError
from riverrun.store.contract import QueryLimits, QueryResult, Store

QUICK_SLOTS = 12
SLOW_SLOTS = 4
QUICK_SECONDS = 0.5
# How many texts of slow queries are remembered.
MAX_SLOW_QUERIES = 1000
_RETRY_SECONDS = 0.02


@dataclass(eq=False)
class _ScheduledQuery:
    sql: str
    name: str
    limits: QueryLimits
    deadline: float
    sequence: int
    queue: Literal["quick", "slow"]
    waited_seconds: float = 0.0
    running: bool = False
    # It has run longer than a quick query does.
    overdue: bool = False
    preempted: bool = False
    cancelled: bool = False
    slot_ready: asyncio.Event = field(default_factory=asyncio.Event)
    cancel_task: asyncio.Task[None] | None = None

    @property
    def slot(self) -> str:
        """The kind of slot it holds while it runs: a preempted query keeps its quick slot until it has ended."""
        return "quick" if self.preempted else self.queue


class QueryScheduler:
    """Runs queries of many callers on one store. Used in one event loop; `cancel_all` may be called from any thread."""

    def __init__(self, store: Store, *, quick_slots: int = QUICK_SLOTS, slow_slots: int = SLOW_SLOTS) -> None:
        self._store = store
        self._slots = {"quick": quick_slots, "slow": slow_slots}
        self._queries: dict[str, _ScheduledQuery] = {}
        self._sequence = count()
        self._slow_queries: OrderedDict[str, None] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def query(self, sql: str, limits: QueryLimits, name: str) -> QueryResult:
        """The result, within `limits.seconds` from now; QueryTimeoutError says how much of that was waiting."""
        self._loop = loop = asyncio.get_running_loop()
        if name in self._queries:
            raise QueryError(f"A question called {name} runs already", hint="Give it another name")
        queue: Literal["quick", "slow"] = "slow" if sql in self._slow_queries else "quick"
        query = _ScheduledQuery(sql, name, limits, loop.time() + limits.seconds, next(self._sequence), queue)
        self._queries[name] = query
        try:
            while True:
                await self._wait_for_slot(query)
                try:
                    return await self._run(query)
                except QueryCancelledError:
                    if query.cancelled or not query.preempted:
                        raise
                if query.cancel_task is not None:
                    # Otherwise it could cancel the next attempt.
                    await query.cancel_task
                query.preempted = query.overdue = False
        finally:
            del self._queries[name]
            self._start_next()

    def __contains__(self, name: str) -> bool:
        """Whether a query of this name runs or waits."""
        return name in self._queries

    def cancel(self, name: str) -> bool:
        """Cancel a query that runs or waits. False when there is none of that name."""
        query = self._queries.get(name)
        if query is None:
            return False
        query.cancelled = True
        query.slot_ready.set()
        if query.running:
            self._cancel_running(query)
        return True

    def cancel_all(self) -> None:
        """Cancel all queries, from any thread."""
        for query in list(self._queries.values()):
            query.cancelled = True
            with contextlib.suppress(RiverrunError):
                self._store.cancel(query.name)
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self.cancel, query.name)

    async def _wait_for_slot(self, query: _ScheduledQuery) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        query.slot_ready.clear()
        self._start_next()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(query.deadline):
                await query.slot_ready.wait()
        query.waited_seconds += loop.time() - began
        if query.cancelled:
            query.running = False
            raise QueryCancelledError("The question was cancelled")
        if not query.running:
            raise self._timeout_error(query)

    async def _run(self, query: _ScheduledQuery) -> QueryResult:
        loop = asyncio.get_running_loop()
        began = loop.time()
        timer = loop.call_later(QUICK_SECONDS, self._mark_overdue, query)
        remaining = QueryLimits(query.limits.rows, max(0.01, query.deadline - began))
        try:
            result = await run_in_threadpool(self._store.query, query.sql, remaining, name=query.name)
        except QueryTimeoutError as error:
            self._remember_if_slow(query)
            raise self._timeout_error(query) from error
        finally:
            timer.cancel()
            query.running = False
        self._remember_if_slow(query)
        return result

    def _mark_overdue(self, query: _ScheduledQuery) -> None:
        query.overdue = True
        self._start_next()

    def _remember_if_slow(self, query: _ScheduledQuery) -> None:
        """Only queries that ran to their end count: an interrupted one may have been slowed down by others."""
        self._slow_queries.pop(query.sql, None)
        if query.overdue:
            self._slow_queries[query.sql] = None
        if len(self._slow_queries) > MAX_SLOW_QUERIES:
            self._slow_queries.popitem(last=False)

    def _start_next(self) -> None:
        """Give free slots to the next queries; where quick ones wait for one, take one from a query that is not quick."""
        queries = sorted(self._queries.values(), key=lambda query: query.sequence)
        waiting = [
            query for query in queries if not query.running and not query.cancelled and not query.slot_ready.is_set()
        ]
        overdue = [query for query in queries if query.running and query.overdue and query.queue == "quick"]
        slow = sorted(
            [*(query for query in waiting if query.queue == "slow"), *overdue], key=lambda query: query.sequence
        )
        for query in slow[: self._free_slots("slow")]:
            query.queue = "slow"
            self._start(query)
        quick = [query for query in waiting if query.queue == "quick"]
        free = self._free_slots("quick")
        for query in quick[:free]:
            self._start(query)
        ending = sum(query.preempted for query in queries if query.running)
        preemptible = [query for query in overdue if query.queue == "quick"]
        # The latest one: the first may be nearly done.
        for query in preemptible[::-1][: max(0, len(quick) - free - ending)]:
            query.preempted, query.queue = True, "slow"
            self._cancel_running(query)

    def _start(self, query: _ScheduledQuery) -> None:
        query.running = True
        query.slot_ready.set()

    def _free_slots(self, queue: str) -> int:
        used = sum(query.running and query.slot == queue for query in self._queries.values())
        return max(0, self._slots[queue] - used)

    def _cancel_running(self, query: _ScheduledQuery) -> None:
        if query.cancel_task is None or query.cancel_task.done():
            query.cancel_task = asyncio.ensure_future(self._cancel_in_store(query))

    async def _cancel_in_store(self, query: _ScheduledQuery) -> None:
        """Cancel it until it has ended: a query that has not reached the store yet cannot be cancelled there."""
        while query.running and (query.preempted or query.cancelled):
            with contextlib.suppress(RiverrunError):
                await run_in_threadpool(self._store.cancel, query.name)
            await asyncio.sleep(_RETRY_SECONDS)

    def _timeout_error(self, query: _ScheduledQuery) -> RiverrunError:
        seconds = query.limits.seconds
        if query.waited_seconds < 0.1 * seconds:
            return QueryTimeoutError(
                f"The question took longer than {seconds:g} s and was ended",
                hint="Ask for less (a shorter time, fewer groups), or allow more: store.query_seconds",
                seconds=seconds,
            )
        return QueryTimeoutError(
            f"The question was not answered within {seconds:g} s: "
            f"it waited {query.waited_seconds:.1f} s for other questions",
            hint="Ask again when fewer run, ask for less, or allow more: store.query_seconds",
            seconds=seconds,
        )
