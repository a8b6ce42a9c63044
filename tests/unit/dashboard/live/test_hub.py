"""The hub: one question for all viewers, only what changed, the newest state for who is slow, errors as states."""

import asyncio
import json
import time
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

import riverrun as rr
from riverrun.dashboard.live import hub
from riverrun.dashboard.live.hub import DashboardHub, DashboardViewer
from riverrun.dashboard.live.tile_feed import TileFeed, TileResult
from riverrun.errors import StoreUnavailableError, UsageError
from support.city import City, city_app

SECONDS = 30.0


class Page:
    """A viewer that applies what it hears, as state.js does."""

    def __init__(self, viewer: DashboardViewer) -> None:
        self.messages: AsyncIterator[bytes] = viewer.messages()
        self.tiles: dict[str, dict[str, Any]] = {}
        self.frames: list[dict[str, Any]] = []
        self.notes: dict[str, Any] = {}

    async def hear(self) -> dict[str, Any]:
        """The next frame."""
        while True:
            chunk = await asyncio.wait_for(anext(self.messages), SECONDS)
            for event in chunk.decode().split("\n\n"):
                lines = dict(line.split(": ", 1) for line in event.splitlines())
                if lines.get("event") == "frame":
                    return self.apply(json.loads(lines["data"]))

    def apply(self, frame: dict[str, Any]) -> dict[str, Any]:
        self.frames.append(frame)
        self.notes |= {name: frame[name] for name in ("tables", "trouble") if name in frame}
        for message in frame["tiles"]:
            before = self.tiles.get(message["tile"], {})
            if "columns" in message:
                self.tiles[message["tile"]] = message
            elif "from" in message:
                if before["v"] >= message["v"]:
                    continue
                assert before["v"] == message["from"]
                rows = list(before["rows"])
                for first, count in reversed(message["drop"]):
                    del rows[first : first + count]
                for at, row in message["put"]:
                    rows.insert(at, row)
                self.tiles[message["tile"]] = {**before, **message, "rows": rows}
            else:
                self.tiles[message["tile"]] = {**before, **message}
        return frame

    async def until(self, holds: Callable[["Page"], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not holds(self):
            assert time.monotonic() < deadline, self.tiles
            await self.hear()

    def value(self, tile: str) -> Any:
        return self.tiles[tile]["rows"][-1][1] if tile in self.tiles and self.tiles[tile].get("rows") else None

    async def close(self) -> None:
        await self.messages.aclose()  # type: ignore[attr-defined]


def run(scenario: Callable[[City, DashboardHub], Coroutine[Any, Any, None]], app: rr.App | None = None) -> City:
    """A scenario with a city of twenty minutes and a hub that looks at it."""
    city = City(24)
    city.run(20)

    async def whole() -> None:
        hub = DashboardHub(city.store, (app or city_app()).dashboards, "meters")
        try:
            await scenario(city, hub)
        finally:
            await hub.close()

    asyncio.run(whole())
    return city


async def open_page(hub: DashboardHub, filters: dict[str, str | None] | None = None, board: str = "main") -> Page:
    page = Page(await hub.add_viewer(board, filters or {}))
    await page.hear()
    return page


def total(city: City) -> float:
    """What the store itself says."""
    answer = city.store.query(
        "select sum(load_kw) as n from house_load where minute = (select max(minute) from house_load)"
    )
    return float(answer.rows.column(0)[0].as_py())


ONE = rr.number("Load", "select sum(load_kw) as load_kw from house_load where minute = latest", compare=None)


def one_tile(*more: rr.Tile) -> rr.App:
    app = rr.App("meters")
    app.dashboard(ONE, *more)
    return app


def test_figures_are_the_stores_and_follow_it() -> None:
    async def scenario(city: City, hub: DashboardHub) -> None:
        page = await open_page(hub)
        await page.until(lambda it: len(it.tiles) == 8)
        for _ in range(3):
            city.run(1)
            highest = max(row["load_kw"] for row in city.rows(city.minutes - 1))
            await page.until(lambda it, highest=highest: it.value("highest-house") == highest)  # type: ignore[misc]

    run(scenario)


def test_a_hundred_viewers_cost_one_question() -> None:
    async def scenario(city: City, hub: DashboardHub) -> None:
        pages = [await open_page(hub) for _ in range(100)]
        await pages[0].until(lambda it: it.value("load") == pytest.approx(total(city)))
        city.store.asked.clear()
        city.run(1)
        wanted = total(city)
        for page in pages:
            await page.until(lambda it: it.value("load") == pytest.approx(wanted))
        asked = [each for each in city.store.asked if "SUM(load_kw)" in each]
        # The ingest of three tables is three changes at most.
        assert 1 <= len(asked) <= 3

    run(scenario, one_tile())


@pytest.mark.parametrize(("houses", "left_out"), [(24, 0), (31, 7)])
def test_a_line_tile_has_24_groups_and_the_count_of_those_left_out(houses: int, left_out: int) -> None:
    """Also low ones are among the 24: a default of eight dropped the freezers of a cold chain without a word."""
    city = City(houses)
    city.run(20)

    async def whole() -> None:
        app = rr.App("meters")
        app.dashboard(rr.line("Houses", "house_load", by="house_id", y="load_kw"))
        hub = DashboardHub(city.store, app.dashboards, "meters")
        try:
            page = await open_page(hub)
            await page.until(lambda page: bool(page.tiles.get("houses", {}).get("rows")))
            tile = page.tiles["houses"]
            assert len({row[tile["by"]] for row in tile["rows"]}) == 24
            assert tile["groups_left_out"] == left_out
            await page.close()
        finally:
            await hub.close()

    asyncio.run(whole())


def test_only_what_changed_is_sent() -> None:
    async def scenario(city: City, hub: DashboardHub) -> None:
        page = await open_page(hub)
        await page.until(lambda it: "load-by-street" in it.tiles)
        rows = len(page.tiles["load-by-street"]["rows"])
        page.frames.clear()
        city.run(1)
        await page.until(lambda it: len(it.tiles["load-by-street"]["rows"]) == rows + 12)
        sent = [each for frame in page.frames for each in frame["tiles"] if each["tile"] == "load-by-street"]
        assert all("columns" not in each for each in sent)
        assert sum(len(each.get("put", ())) for each in sent) == 12
        assert sum(len(each.get("drop", ())) for each in sent) == 0

    run(scenario)


def test_rows_that_change_nothing_renew_the_figures_age() -> None:
    async def scenario(city: City, hub: DashboardHub) -> None:
        page = await open_page(hub)
        await page.until(lambda it: it.value("load") is not None)
        version = page.tiles["load"]["v"]
        later = time.time() + 100
        city.store.touch("house_load", later)
        await page.until(lambda it: it.tiles["load"]["updated"] == round(later * 1000))
        assert page.tiles["load"]["v"] == version

    run(scenario, one_tile())


def test_one_question_that_took_long_is_no_reason_to_rest() -> None:
    feed = TileFeed(one_tile().dashboards["main"], ONE, {})
    for seconds in (0.01, 0.01, 2.0, 0.02):
        feed.apply(TileResult(seconds, frozenset()))
    assert feed.cost == pytest.approx(0.015)
    for _ in range(3):
        feed.apply(TileResult(2.0, frozenset()))
    # Now most of them did: the machine is full, or the question is dear.
    assert feed.cost == 2.0


def test_a_slow_viewer_gets_the_newest_state_and_no_queue() -> None:
    async def scenario(city: City, hub: DashboardHub) -> None:
        slow, quick = await open_page(hub), await open_page(hub)
        await slow.until(lambda it: it.value("load") is not None)
        for _ in range(4):
            city.run(1)
            wanted = total(city)
            await quick.until(lambda it, wanted=wanted: it.value("load") == pytest.approx(wanted))  # type: ignore[misc]
        heard = len(slow.frames)
        await slow.until(lambda it: it.value("load") == pytest.approx(wanted))
        assert len(slow.frames) == heard + 1
        assert slow.frames[-1]["whole"] is True

    run(scenario, one_tile())


def test_views_share_the_tiles_that_their_filters_do_not_reach() -> None:
    async def scenario(city: City, hub: DashboardHub) -> None:
        plain, elm = await open_page(hub), await open_page(hub, {"street": "Elm Street"})
        await plain.until(lambda it: len(it.tiles) == 8)
        await elm.until(lambda it: len(it.tiles) == 10)
        feeds = [feed for feed in hub._feeds.values() if feed.tile.name == "load-by-street"]
        assert len(feeds) == 1
        houses = {row[1] for row in elm.tiles["houses-of-street"]["rows"]}
        assert houses == {f"house-{house:04}" for house in range(24) if city.street_of(house) == "Elm Street"}
        assert elm.value("houses") is not None

    run(scenario)


def test_a_number_knows_its_way_from_the_tables_past() -> None:
    async def scenario(city: City, hub: DashboardHub) -> None:
        page = await open_page(hub)
        # 19 minutes of past, a point for each two and a half of them.
        await page.until(lambda it: len(it.tiles.get("city-load", {}).get("rows", ())) >= 7)
        way = page.tiles["city-load"]["rows"]
        assert [each[0] for each in way] == sorted(each[0] for each in way)
        for at, value in way[1:-1]:
            minute = int((at / 1000 - city.newest.timestamp()) // 60) + city.minutes - 2
            assert value == pytest.approx(sum(row["load_kw"] for row in city.rows(minute)), abs=0.01)

    run(scenario)


def test_an_error_is_a_state_and_passes() -> None:
    app = one_tile(rr.number("Wrong", "select nonsense(load_kw) as n from house_load"), rr.number("Later", "later"))

    async def scenario(city: City, hub: DashboardHub) -> None:
        page = await open_page(hub)
        await page.until(lambda it: {"load", "wrong", "later"} <= set(it.tiles))
        assert "nonsense" in page.tiles["wrong"]["error"]["message"]
        assert "later, which is not a table of the store" in page.tiles["later"]["error"]["message"]
        from riverrun.model.table import TableSpec
        from support.memory_store import columns

        city.store.apply([TableSpec("later", "later", columns(at="timestamp", n="bigint"), time="at")])
        city.store.put("later", [{"at": city.newest, "n": 5}])
        await page.until(lambda it: it.value("later") == 5)

    run(scenario, app)


def test_a_store_that_is_gone_is_said_and_comes_back() -> None:
    async def scenario(city: City, hub: DashboardHub) -> None:
        page = await open_page(hub)
        await page.until(lambda it: it.value("load") is not None)
        city.store.down = "The store is restarting"
        await page.until(lambda it: bool(it.notes.get("trouble")))
        assert "restarting" in page.notes["trouble"]["message"]
        city.store.down = ""
        city.run(1)
        wanted = total(city)
        await page.until(lambda it: it.value("load") == pytest.approx(wanted) and it.notes["trouble"] is None)

    run(scenario, one_tile())


def test_a_table_that_settles_is_said() -> None:
    async def scenario(city: City, hub: DashboardHub) -> None:
        page = await open_page(hub)
        city.store.states["house_load"] = ("settling", "a task is coming back")
        await page.until(lambda it: it.notes["tables"].get("house_load", {}).get("state") == "settling")

    run(scenario, one_tile())


def test_the_past_is_what_it_was() -> None:
    async def scenario(city: City, hub: DashboardHub) -> None:
        at = city.newest.replace(minute=10)
        state = await hub.tile_state_at("main", "highest-house", {}, at)
        assert state["rows"][-1] == (round(at.timestamp() * 1000), max(row["load_kw"] for row in city.rows(10)))
        state = await hub.tile_state_at("main", "load-by-street", {}, at)
        assert max(row[0] for row in state["rows"]) == round(at.timestamp() * 1000)
        with pytest.raises(UsageError, match="main has no tile"):
            await hub.tile_state_at("main", "other", {}, at)

    run(scenario)


def test_a_table_without_its_past_says_so() -> None:
    from riverrun.model.table import TableSpec
    from support.memory_store import columns

    app = rr.App("meters")
    app.dashboard(rr.number("Load", "newest", y="load"))

    async def scenario(city: City, hub: DashboardHub) -> None:
        spec = TableSpec(
            "newest", "newest", columns(at="timestamp", house="text", load="double"), ("house",), True, "at"
        )
        city.store.apply([spec])
        state = await hub.tile_state_at("main", "load", {}, city.newest)
        assert "newest keeps only the newest row of each key" in state["error"]["message"]

    run(scenario, app)


def test_what_is_not_declared_is_refused() -> None:
    async def scenario(city: City, hub: DashboardHub) -> None:
        with pytest.raises(UsageError, match="Did you mean 'main'"):
            await hub.add_viewer("mian", {})
        with pytest.raises(UsageError, match="main has no filter 'load_kw'"):
            await hub.add_viewer("main", {"load_kw": "1"})

    run(scenario)


def test_views_end_after_their_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("riverrun.dashboard.live.hub.LINGER_SECONDS", 0.0)

    async def scenario(city: City, hub: DashboardHub) -> None:
        page = await open_page(hub)
        assert hub._feeds
        await page.close()
        deadline = time.monotonic() + SECONDS
        while hub._feeds or hub._views:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)

    run(scenario)


def test_there_is_an_end_to_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("riverrun.dashboard.live.hub.MAX_VIEWERS", 1)

    async def scenario(city: City, hub: DashboardHub) -> None:
        await open_page(hub)
        with pytest.raises(StoreUnavailableError, match="1 pages look on already"):
            await hub.add_viewer("main", {})

    run(scenario)


def test_closing_ends_every_stream() -> None:
    async def scenario(city: City, hub: DashboardHub) -> None:
        page = await open_page(hub)
        await hub.close()
        async with asyncio.timeout(SECONDS):
            async for _ in page.messages:
                pass

    run(scenario)


def test_a_frame_is_made_and_pressed_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    pressed: list[bytes] = []

    def counted(plain: bytes, press: Callable[[bytes], bytes] = hub.deflate_block) -> bytes:
        pressed.append(plain)
        return press(plain)

    monkeypatch.setattr(hub, "deflate_block", counted)

    async def scenario(city: City, hub: DashboardHub) -> None:
        viewers = [(await hub.add_viewer("main", {})).messages(gzipped=True) for _ in range(20)]
        readers = [zlib.decompressobj(zlib.MAX_WBITS | 16) for _ in viewers]
        async with asyncio.timeout(SECONDS):
            for _ in range(3):
                city.run(1)
                for viewer, reader in zip(viewers, readers, strict=True):
                    heard = b""
                    while b"event: frame" not in heard:
                        heard += reader.decompress(await anext(viewer))
        # Each has a greeting of its own, and all of them the same few frames.
        assert len([each for each in pressed if b"event: hello" in each]) == 20
        assert 3 <= len([each for each in pressed if b"event: frame" in each]) < 20
        for viewer in viewers:
            await viewer.aclose()  # type: ignore[attr-defined]

    run(scenario, one_tile())


def test_who_hears_nothing_hears_that_we_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PING_SECONDS", 0.05)

    async def scenario(_: City, hub: DashboardHub) -> None:
        messages = (await hub.add_viewer("main", {})).messages()
        pings = 0
        async with asyncio.timeout(SECONDS):
            while pings < 3:
                pings += (await anext(messages)).count(b"event: ping")
        await messages.aclose()  # type: ignore[attr-defined]

    run(scenario, one_tile())
