"""The pipeline picture, live and over HTTP: one look for all who look on, none while nobody does, and what is refused."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from riverrun.dashboard.live.broadcast import MAX_VIEWERS
from riverrun.dashboard.topology.details import NodeDetails, display_value
from riverrun.dashboard.topology.live import TopologyBroadcast
from riverrun.errors import StoreUnavailableError
from riverrun.model.topology import PipelineTopology, TopologyNode
from support.dashboards import DashServer
from support.memory_store import MemoryStore
from support.topology import Recorded, meters_app, seen, shape_of_app

SHAPE = shape_of_app(meters_app())


def picture_of(source: Recorded, declared: PipelineTopology | None = SHAPE, seconds: float = 0.01) -> TopologyBroadcast:
    return TopologyBroadcast(
        "meters", source, NodeDetails(None, MemoryStore()), declared=declared, poll_seconds=seconds
    )


async def frame(messages: AsyncIterator[bytes]) -> dict[str, Any]:
    """The next frame."""
    while True:
        event, data = (await asyncio.wait_for(anext(messages), 10)).decode().strip().split("\n")[-2:]
        if event == "event: frame":
            found: dict[str, Any] = json.loads(data.removeprefix("data: "))
            return found


async def settled(source: Recorded) -> None:
    """Two looks more than now: whatever was under way is done."""
    wanted = source.looks + 2
    while source.looks < wanted:  # noqa: ASYNC110  -- a thread counts
        await asyncio.sleep(0.005)


def test_many_viewers_cost_one_look_and_get_only_what_changed() -> None:
    async def scenario() -> None:
        source = Recorded()
        picture = picture_of(source, seconds=0.2)
        assert source.looks == 0
        pages = [picture.add_viewer().messages() for _ in range(50)]
        whole = await asyncio.gather(*(frame(page) for page in pages))
        assert source.looks <= 2
        assert all(each["whole"] and each["shape"]["nodes"] for each in whole)
        assert source.asked[0] == ["readings", "house_load", "street_load", "high_load"]
        source.now = seen(topics={**source.now.topics, "readings": None})
        changes = await asyncio.gather(*(frame(page) for page in pages))
        assert all(change == changes[0] for change in changes)
        assert set(changes[0]) == {"now", "nodes"}
        assert set(changes[0]["nodes"]) == {"topic:readings"}
        for page in pages:
            await page.aclose()
        picture.close()
        assert source.closed

    asyncio.run(scenario())


def test_nobody_looks_nothing_is_looked_at() -> None:
    async def scenario() -> None:
        source = Recorded()
        picture = picture_of(source)
        page = picture.add_viewer().messages()
        await frame(page)
        await settled(source)
        await page.aclose()
        while picture._read_task is not None and not picture._read_task.done():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        before = source.looks
        await asyncio.sleep(0.1)
        assert source.looks == before
        # Who comes then is shown what is true then.
        source.now = seen(errors=("the disk is full",))
        again = picture.add_viewer().messages()
        assert (await frame(again))["troubles"] == ["the disk is full"]
        await again.aclose()
        picture.close()

    asyncio.run(scenario())


def test_who_missed_a_frame_gets_the_whole_picture() -> None:
    async def scenario() -> None:
        source = Recorded()
        picture = picture_of(source)
        slow = picture.add_viewer().messages()
        await frame(slow)
        for number in range(3):
            source.now = seen(errors=(str(number),))
            await settled(source)
        assert (await frame(slow))["whole"]
        await slow.aclose()
        picture.close()

    asyncio.run(scenario())


def test_a_look_that_fails_is_tried_again() -> None:
    async def scenario() -> None:
        source = Recorded()
        source.broken = True
        picture = picture_of(source)
        page = picture.add_viewer().messages()
        first = asyncio.create_task(frame(page))
        await settled(source)
        source.broken = False
        assert (await first)["whole"]
        await page.aclose()
        picture.close()

    asyncio.run(scenario())


def test_what_runs_is_shown_as_it_runs_else_what_is_declared_else_what_ran() -> None:
    ran = PipelineTopology((TopologyNode("topic", "old"),))

    async def names(declared: PipelineTopology | None, *, runs: bool) -> list[str]:
        picture = picture_of(Recorded(ran, runs=runs), declared)
        state = await picture.refresh()
        picture.close()
        return [each["id"] for each in state["shape"]["nodes"]]

    async def scenario() -> None:
        assert await names(SHAPE, runs=True) == ["topic:old"]
        assert await names(None, runs=False) == ["topic:old"]
        assert "topic:old" not in await names(SHAPE, runs=False)

    asyncio.run(scenario())


def test_too_many_viewers_and_a_closed_picture_are_refused() -> None:
    async def scenario() -> None:
        picture = picture_of(Recorded())
        pages = [picture.add_viewer().messages() for _ in range(MAX_VIEWERS)]
        for page in pages:
            await anext(page)
        with pytest.raises(StoreUnavailableError, match="look on already"):
            picture.add_viewer()
        picture.close()
        with pytest.raises(StoreUnavailableError, match="closing"):
            picture.add_viewer()
        for page in pages:
            assert [event async for event in page if b"event: ping" in event] == []

    asyncio.run(scenario())


# --- over HTTP ---


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    def picture(_: object) -> TopologyBroadcast:
        return picture_of(Recorded())

    with (
        DashServer(meters_app(), MemoryStore(), picture) as server,
        httpx.Client(base_url=server.address, trust_env=False) as found,
    ):
        yield found


def test_the_page_and_the_picture(client: httpx.Client) -> None:
    page = client.get("/pipeline")
    assert page.status_code == 200
    assert "script-src 'self'" in page.headers["content-security-policy"]
    state = client.get("/api/pipeline").json()
    assert state["app"] == "meters"
    assert state["nodes"]["stream:house_load"]["lag"] == 12


REDRIVE = "/api/pipeline/topic/readings/redrive"
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({}, 415),
        ({**JSON, "origin": "http://evil.example"}, 403),
        ({**JSON, "origin": "null"}, 403),
        ({**JSON, "sec-fetch-site": "cross-site"}, 403),
        ({**JSON, "sec-fetch-site": "same-site"}, 403),
        ({**JSON, "host": "evil.example"}, 403),
    ],
)
def test_another_page_may_not_send_letters_back(client: httpx.Client, headers: dict[str, str], status: int) -> None:
    assert client.post(REDRIVE, content='{"dry_run": true}', headers=headers).status_code == status


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "The request is not JSON"),
        ("[" * 9000, "The request is not JSON"),
        ("[]", "The request is no object"),
        ("{}", "does not say whether to send"),
        ('{"dry_run": 1}', "dry_run cannot be 1"),
        ('{"dry_run": true, "offset": true, "partition": 0}', "offset cannot be true"),
        ('{"dry_run": true, "offset": -1, "partition": 0}', "offset cannot be -1"),
        ('{"dry_run": true, "offset": 3}', "named by its partition and its offset"),
        ('{"dry_run": true, "topic": "other"}', "There can be no 'topic' in a request"),
        ('{"reason": "%s"}' % ("x" * 10_000), "The request is too long"),
    ],
)
def test_a_wrong_request_hears_what_is_wrong(client: httpx.Client, body: str, message: str) -> None:
    answer = client.post(REDRIVE, content=body, headers=JSON)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/api/pipeline/topic/__consumer_offsets", 404, "There is no topic '__consumer_offsets' in the pipeline"),
        ("/api/pipeline/topic/secrets/records", 404, "There is no topic 'secrets' in the pipeline"),
        ("/api/pipeline/topic/secrets/dead", 404, "There is no topic 'secrets' in the pipeline"),
        ("/api/pipeline/robot/readings", 404, "There is no robot 'readings' in the pipeline"),
        ("/api/pipeline/topic/readings/records?count=51", 400, "count is 51"),
        ("/api/pipeline/topic/readings/records?count=0", 400, "count is 0"),
        ("/api/pipeline/topic/readings/records?count=-1", 400, "count cannot be understood"),
        ("/api/pipeline/topic/readings/records?count=9999999999", 400, "count cannot be understood"),
        ("/api/pipeline/topic/readings/records", 400, "There is no cluster to ask"),
    ],
)
def test_only_the_pipelines_own_parts_are_told_of(client: httpx.Client, path: str, status: int, message: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, message in answer.json()["error"]["message"]) == (status, True), answer.text


# --- text ---


def test_bytes_of_records_become_short_harmless_text() -> None:
    assert display_value(None) is None
    assert display_value(b"<b>\x1b[31m\xe2\x80\xae") == {"text": "<b>\\x1b[31m\\u202e", "bytes": 11, "cut": False}
    assert display_value(b"\xff\x00") == {"hex": "ff 00", "bytes": 2, "cut": False}
    long = display_value(b"x" * 1_000_000)
    assert long == {"text": "x" * 4000, "bytes": 1_000_000, "cut": True}
    binary = display_value(b"\xff" * 1_000_000)
    assert binary is not None
    assert (len(binary["hex"]), binary["cut"]) == (256 * 3 - 1, True)
