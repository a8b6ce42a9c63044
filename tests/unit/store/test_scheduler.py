"""Many questions at once: quick ones get through, and the time a question has includes its waiting."""

import asyncio
import threading
import time
from collections.abc import Callable

import httpx
import pyarrow as pa
import pytest

from riverrun.errors import QueryCancelledError, QueryTimeoutError
from riverrun.store.contract import QueryLimits, QueryResult, Store
from riverrun.store.scheduler import QueryScheduler
from riverrun.store.server import StoreServer
from support.duck_store import DuckStore

SLOW = "select sum(a.x * b.x + c.x) from range(100000) a(x), range(100000) b(x), range(1000) c(x)"
LIGHT = "select count(*) as n from house_load"
ROWS = pa.table({"n": [1]})


class HeldStore(Store):
    """Answers at once, and what begins with «slow» when it is let go, cancelled, or out of time."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.most = 0
        self.let_go = threading.Event()
        self._running: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def open(self) -> None: ...

    def close(self) -> None: ...

    def apply(self, tables: object) -> list[str]:  # noqa: ARG002
        return []

    def remove(self, table: str) -> None: ...

    @property
    def tables(self) -> dict[str, object]:  # type: ignore[override]
        return {}

    def table_statuses(self) -> list[object]:  # type: ignore[override]
        return []

    def query(self, sql: str, limits: QueryLimits = QueryLimits(), *, name: str = "") -> QueryResult:  # noqa: B008
        with self._lock:
            self.begun.append(name)
            cancelled = self._running[name] = threading.Event()
            self.most = max(self.most, len(self._running))
        try:
            deadline = time.monotonic() + limits.seconds
            while sql.startswith("slow") and not self.let_go.is_set():
                if cancelled.wait(0.005):
                    raise QueryCancelledError("It was cancelled")
                if time.monotonic() > deadline:
                    raise QueryTimeoutError(f"It took longer than {limits.seconds:g} s")
            return QueryResult(ROWS)
        finally:
            with self._lock:
                del self._running[name]

    def cancel(self, name: str) -> bool:
        with self._lock:
            found = self._running.get(name)
        if found is not None:
            found.set()
        return found is not None


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  -- what is waited for happens in threads
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def quick_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("riverrun.store.scheduler.QUICK_SECONDS", 0.05)


def test_waiting_is_part_of_a_questions_time() -> None:
    async def go() -> None:
        store = HeldStore()
        scheduler = QueryScheduler(store, quick_slots=1, slow_slots=1)
        held = [
            asyncio.ensure_future(scheduler.query(f"slow {n}", QueryLimits(seconds=60), f"held {n}")) for n in range(2)
        ]
        # One has the slow slot by now and the other the quick one, which nobody else wants.
        await until(lambda: all(query.overdue for query in scheduler._queries.values()))
        waiting = asyncio.ensure_future(scheduler.query("slow too", QueryLimits(seconds=60), "waits"))
        await until(lambda: "waits" in store.begun)
        # Known to be slow, so it does not even begin while the others run.
        scheduler._slow_queries["slow known"] = None
        with pytest.raises(QueryTimeoutError, match=r"not answered within 0\.2 s: it waited 0\.\d s for other"):
            await scheduler.query("slow known", QueryLimits(seconds=0.2), "late")
        assert "late" not in store.begun
        assert not any(each.done() for each in [*held, waiting])
        store.let_go.set()
        await asyncio.gather(*held, waiting)

    asyncio.run(go())


def test_quick_ones_get_through_and_slow_ones_all_get_their_answer() -> None:
    async def go() -> None:
        store = HeldStore()
        scheduler = QueryScheduler(store, quick_slots=3, slow_slots=2)
        slow = [
            asyncio.ensure_future(scheduler.query(f"slow {n}", QueryLimits(seconds=60), f"slow {n}")) for n in range(20)
        ]
        await until(lambda: len(store.begun) >= 3)
        async with asyncio.timeout(30):
            for number in range(30):
                await scheduler.query(f"quick {number}", QueryLimits(seconds=60), f"quick {number}")
        assert not any(each.done() for each in slow)
        assert store.most <= 5
        store.let_go.set()
        assert len(await asyncio.gather(*slow)) == 20

    asyncio.run(go())


def test_what_waits_can_be_cancelled() -> None:
    async def go() -> None:
        store = HeldStore()
        scheduler = QueryScheduler(store, quick_slots=1, slow_slots=0)
        held = asyncio.ensure_future(scheduler.query("slow", QueryLimits(seconds=60), "held"))
        await until(lambda: "held" in store.begun)
        scheduler._slow_queries["slow known"] = None
        waiting = asyncio.ensure_future(scheduler.query("slow known", QueryLimits(seconds=60), "waits"))
        await until(lambda: "waits" in scheduler)
        assert scheduler.cancel("waits")
        with pytest.raises(QueryCancelledError):
            await waiting
        assert not held.done()
        assert scheduler.cancel("held")
        with pytest.raises(QueryCancelledError):
            await held
        assert not scheduler.cancel("held")

    asyncio.run(go())


def test_a_slow_question_is_known_by_its_text_until_it_is_quick() -> None:
    async def go() -> None:
        store = HeldStore()
        scheduler = QueryScheduler(store)
        with pytest.raises(QueryTimeoutError, match=r"took longer than 0\.2 s and was ended"):
            await scheduler.query("slow", QueryLimits(seconds=0.2), "one")
        assert "slow" in scheduler._slow_queries
        store.let_go.set()
        await scheduler.query("slow", QueryLimits(seconds=60), "two")
        assert "slow" not in scheduler._slow_queries

    asyncio.run(go())


def test_forty_heavy_questions_do_not_keep_a_light_one() -> None:
    async def go(store: DuckStore, address: str) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=120, limits=limits) as client:

            async def ask(sql: str) -> httpx.Response:
                return await client.post("/api/query", json={"sql": sql})

            heavy = [asyncio.ensure_future(ask(f"{SLOW} -- {number}")) for number in range(40)]
            await until(lambda: len(store._running) >= 12)
            light = await ask(LIGHT)
            assert light.json()["rows"] == [{"n": 30}]
            # They would run for minutes; the light one did not wait for any of them.
            assert not any(each.done() for each in heavy)
            for each in heavy:
                each.cancel()
            await asyncio.gather(*heavy, return_exceptions=True)

    with DuckStore() as store, StoreServer(store, limits=QueryLimits(1000, 60)) as server:
        asyncio.run(go(store, server.start()))
