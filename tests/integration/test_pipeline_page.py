"""The pipeline picture in a real browser, on a real broker: nodes, live change, keyboard, details, records, re-drive.

What Spark's streams would tell is written by the test, as `riverrun run` writes it.
"""

import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

import riverrun as rr
from riverrun.config.project import Project
from riverrun.config.stream_state import StreamState
from riverrun.dashboard.live.hub import DashboardHub
from riverrun.dashboard.topology.details import NodeDetails
from riverrun.dashboard.topology.live import TopologyBroadcast
from riverrun.dashboard.topology.reader import TopologyReader
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.consumer.dead_letter import HEADER_PREFIX
from riverrun.kafka.dead_letters.newest import read_newest_dead_letters
from riverrun.kafka.reading.newest_records import read_newest_records
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.progress import StreamProgress
from riverrun.model.table import TableSpec
from riverrun.testing import KafkaUnderTest
from support.browsing import chromium, page_of
from support.consuming import Bench
from support.dashboards import DashServer
from support.memory_store import MemoryStore, columns
from support.topology import Reading, meters_app, progress, shape_of_app, stream

pytestmark = pytest.mark.kafka

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
NONE = "\N{EN DASH}"
STREAMS = ("house_load", "street_load", "high_load")


class World:
    """A pipeline as its picture sees it."""

    def __init__(self, kafka: KafkaUnderTest, project: Project) -> None:
        self.prefix = f"p{secrets.token_hex(3)}."
        self.app = meters_app(self.prefix, f"meters_{secrets.token_hex(3)}")
        self.admin = Admin(kafka.connection)
        self.project = project
        for name in ("readings", *STREAMS):
            self.admin.create_topic(self.prefix + name, partitions=2, replicas=0, config={"retention.ms": "-1"})
        self.readings = Bench(kafka.connection, lambda **_: "", 2, self.prefix + "readings")
        shape = columns(minute="timestamp", house_id="text", load_kw="double")
        self.store = MemoryStore(*(TableSpec(name, self.prefix + name, shape, time="minute") for name in STREAMS))
        self.state = StreamState(project, "meters.py")

    def picture(self, hub: DashboardHub) -> TopologyBroadcast:
        connection = self.admin.connection
        return TopologyBroadcast(
            self.app.name,
            TopologyReader(self.project, self.app.name, connection, self.store),
            NodeDetails(connection, self.store, topics=self.app.topics, groups=lambda name: f"{self.app.name}.{name}"),
            declared=shape_of_app(self.app),
            viewers=lambda: hub.viewers,
            poll_seconds=0.1,
        )

    def tell(self, *changed: StreamProgress) -> None:
        """What the run writes: streams as they usually are, and these."""
        told = {name: stream(name, last_record_at="") for name in STREAMS} | {each.name: each for each in changed}
        self.state.write(progress(*told.values(), app=self.app.name, pid=os.getpid()))

    def die(self, fails: bool) -> int:
        """Read the topic to its end; how many records became dead letters."""
        topic = rr.Topic(self.readings.topic, Reading, partitions=2)

        def handle(_: object) -> None:
            if fails:
                raise ValueError(f"it is broken {HOSTILE}")

        with rr.Consumer(topic, group=f"{self.app.name}.x", connection=self.readings.connection, follow=False) as found:
            return found.run(handle, on_unreadable="dead-letter", on_error="dead-letter").dead

    def dead_letters(self) -> list[rr.Record[Any]]:
        with rr.Consumer(f"{self.readings.topic}.dead", connection=self.readings.connection, follow=False) as found:
            return list(found)


@pytest.fixture(scope="module")
def world(kafka: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(kafka, Project(tmp_path_factory.mktemp("pipeline")))
    good = [(b'{"house_id": "h%d", "load_kw": 1}' % each, b"h%d" % each, each % 2) for each in range(3)]
    bad = (json.dumps({"house_id": HOSTILE, "load_kw": -1}).encode(), HOSTILE.encode(), 0)
    made.readings.send([*good, bad], headers=[("trace", HOSTILE.encode()), ("raw", b"\xff\x00")])
    assert made.die(fails=True) == 4
    made.admin.alter_group_offsets(f"{made.app.name}.house_load", {TopicPartition(made.readings.topic, 0): 1})
    made.store.put("house_load", [{"house_id": HOSTILE, "load_kw": 1.0}])
    with made.state:
        made.tell()
        yield made


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[DashServer]:
    with DashServer(world.app, world.store, world.picture) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def one_page(browser: Browser, server: DashServer) -> Iterator[Page]:
    complaints: list[str] = []
    with page_of(browser, complaints=complaints) as found:
        found.goto(f"{server.address}/pipeline")
        expect(found.locator("#link-text")).to_have_text("Live")
        found.evaluate("window.same = true")
        yield found
        assert found.evaluate("window.hacked") is None
        assert found.evaluate("window.same"), "the page was loaded again"
    assert complaints == []


@pytest.fixture
def page(one_page: Page, world: World) -> Page:
    """The page with nothing open."""
    world.tell()
    one_page.keyboard.press("Escape")
    expect(one_page.locator("#panel")).to_be_hidden()
    return one_page


def node(page: Page, id_: str) -> Locator:
    return page.locator(f'.node[data-id="{id_}"]')


def panel(page: Page, id_: str) -> Locator:
    node(page, id_).click()
    found = page.locator("#panel")
    expect(found).to_be_visible()
    expect(found.locator(".more[aria-busy]")).to_have_count(0)
    return found


def boxes(page: Page) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = page.evaluate(
        """Object.fromEntries([...document.querySelectorAll(".node")].map((each) =>
           [each.dataset.id, each.querySelector("rect").getBoundingClientRect().toJSON()]))"""
    )
    return found


def check_layout(page: Page, world: World, start: str, end: str) -> None:
    """All there, none over another, and every edge goes on."""
    shape = shape_of_app(world.app)
    expect(page.locator(".node")).to_have_count(len(shape.nodes))
    found = boxes(page)
    assert set(found) == {each.id for each in shape.nodes}
    listed = list(found.values())
    for at, one in enumerate(listed):
        for other in listed[at + 1 :]:
            apart = one["right"] < other["left"] or other["right"] < one["left"]
            assert apart or one["bottom"] < other["top"] or other["bottom"] < one["top"]
    for before, after in shape.edges:
        assert found[before][end] < found[after][start], f"{before} → {after}"
    assert page.locator(".way").count() == len(shape.edges)


def test_every_part_is_shown_with_its_state_and_figures(page: Page, world: World) -> None:
    check_layout(page, world, "left", "right")
    load = node(page, "stream:house_load")
    expect(load).to_have_attribute("data-state", "running")
    expect(load.locator(".node-word")).to_have_text("running")
    expect(load.locator(".node-figure").first).to_have_text("in 1.2k/s")
    expect(load.locator(".side")).to_have_text(["lag 12", "8 dead"])
    expect(load).to_have_attribute("aria-label", re.compile("Stream house_load, running, 1.2k records a second in"))
    expect(node(page, f"topic:{world.prefix}readings").locator(".side")).to_have_text(["4 records", ""])
    expect(node(page, f"topic:{world.prefix}readings").locator(".node-figure").nth(1)).to_have_text("2 partitions")
    expect(node(page, "table:house_load").locator(".side").first).to_have_text("1 rows")
    expect(node(page, "dashboard:main").locator(".node-name")).to_have_text("City power")
    expect(node(page, "source:houses file").locator(".node-name")).to_have_text("houses.csv")
    expect(page.locator("#run-text")).to_have_text("Running")
    expect(page.locator("#pages [aria-current]")).to_have_text("Pipeline")


def test_figures_change_without_a_reload(page: Page, world: World) -> None:
    quiet = replace(stream("high_load"), record_counts=replace(stream("x").record_counts, dead_letters=0))
    world.tell(replace(quiet, lag=54_321, rows_in_per_second=77.0))
    expect(node(page, "stream:high_load").locator(".side").first).to_have_text("lag 54.3k")
    expect(node(page, "stream:high_load").locator(".node-figure").first).to_have_text("in 77/s")
    world.tell(replace(quiet, phase="failed", error=f"It failed at {HOSTILE}"))
    failed = node(page, "stream:high_load")
    expect(failed).to_have_attribute("data-state", "failed")
    expect(failed.locator(".node-word")).to_have_text("failed")
    expect(panel(page, "stream:high_load").locator("pre.error")).to_have_text(f"It failed at {HOSTILE}")
    bench = Bench(world.admin.connection, lambda **_: "", 2, f"{world.prefix}street_load")
    bench.fill(1500)
    topic = node(page, f"topic:{world.prefix}street_load")
    expect(topic.locator(".side").first).to_have_text("≈ 1.5k records")


def test_it_goes_by_keyboard(page: Page, world: World) -> None:
    page.locator("#graph").focus()
    page.keyboard.press("Tab")
    focused = page.locator(".node:focus")
    expect(focused).to_have_count(1)
    node(page, "source:" + world.readings.topic).focus()
    for pressed, id_ in [
        ("ArrowRight", f"topic:{world.prefix}readings"),
        ("ArrowRight", "stream:house_load"),
        ("ArrowLeft", f"topic:{world.prefix}readings"),
        ("ArrowRight", "stream:house_load"),
    ]:
        page.keyboard.press(pressed)
        expect(focused).to_have_attribute("data-id", id_)
    page.keyboard.press("Enter")
    expect(page.locator("#panel-title")).to_be_focused()
    expect(page.locator("#panel-title")).to_have_text("house_load")
    expect(page).to_have_url(re.compile("#stream%3Ahouse_load$"))
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_be_hidden()
    expect(focused).to_have_attribute("data-id", "stream:house_load")
    page.go_back()
    expect(page.locator("#panel-title")).to_have_text("house_load")


def test_a_stream_tells_its_account_and_where_it_stands(page: Page, world: World) -> None:
    found = panel(page, "stream:house_load")
    expect(found.locator(".sum")).to_have_text("1,000 read=900 out+90 filtered+8 dead+2 late")
    expect(found.locator(".verdict")).to_have_text("✓ Every record is accounted for.")
    expect(found.locator(".facts").first).to_contain_text("near-real-time")
    expect(found.locator(".facts").first).to_contain_text("no. 7, 140 ms")
    rows = found.get_by_role("region", name="Where it stands").locator("tbody tr")
    ends = world.admin.offsets([TopicPartition(world.readings.topic, part) for part in (0, 1)], "latest")
    end = ends[TopicPartition(world.readings.topic, 0)]
    expect(rows.first).to_have_text(f"{world.readings.topic}[0]1{end}{end - 1}")
    expect(rows.nth(1)).to_have_text(
        f"{world.readings.topic}[1]{NONE}{ends[TopicPartition(world.readings.topic, 1)]}{NONE}"
    )
    world.tell(
        replace(
            stream("house_load"),
            record_counts=replace(stream("x").record_counts, exact=False, note="a join makes many"),
        )
    )
    expect(found.locator(".verdict")).to_have_text("a join makes many")


def test_a_topic_tells_its_partitions_and_shows_its_newest_records_as_text(page: Page, world: World) -> None:
    found = panel(page, f"topic:{world.prefix}readings")
    partitions = found.get_by_role("region", name="Partitions").locator("tbody tr")
    expect(partitions).to_have_count(2)
    expect(partitions.nth(1)).to_have_text(re.compile("^1011"))
    expect(found.get_by_role("region", name="Settings")).to_contain_text("retention.ms")
    expect(found.locator(".facts").last).to_contain_text("Reading, version 1")
    found.get_by_role("button", name="Look at the newest records").click()
    records = found.locator(".record")
    expect(records).to_have_count(4)
    hostile = records.filter(has_text=f"{world.readings.topic}[0]@2")
    expect(hostile.locator(".key .value")).to_have_text(HOSTILE)
    expect(hostile.locator("pre")).to_contain_text('{"house_id": "<img src=x onerror=')
    expect(hostile.locator(".headers dt")).to_have_text(["trace", "raw"])
    expect(hostile.locator(".headers dd")).to_have_text([HOSTILE, "ff 00"])
    assert page.locator("#panel img").count() == 0


def test_a_table_tells_its_columns_and_positions(page: Page, world: World) -> None:
    found = panel(page, "table:house_load")
    expect(found.get_by_role("region", name="Columns").locator("tbody tr")).to_have_text(
        ["minutetimestamp", "house_idtext", "load_kwdouble"]
    )
    expect(found.get_by_role("region", name="Positions").locator("tbody tr")).to_have_count(1)
    expect(found.locator(".facts").first).to_contain_text("Rows1")


def test_letters_are_sent_back_after_a_question_each_once(page: Page, world: World) -> None:
    assert len(world.dead_letters()) == 4
    found = panel(page, "stream:house_load").locator(".dead")
    expect(found).to_contain_text("4 letters; 4 were not sent back yet.")
    expect(found.locator(".reasons li")).to_have_count(2)
    letter = found.locator(".letter").filter(has_text=f"{world.readings.topic}[1]@0")
    letter.locator("summary").click()
    expect(letter.locator(".message")).to_contain_text(f"ValueError: it is broken {HOSTILE}")
    expect(letter.locator("pre")).to_have_text('{"house_id": "h1", "load_kw": 1}')

    found.get_by_role("button", name="Re-drive all").click()
    ask = page.get_by_role("dialog")
    expect(ask).to_contain_text(f"3 records go to {world.readings.topic}.")
    expect(ask).to_contain_text("1 stay: still not a Reading")
    expect(ask.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Enter")
    expect(found.locator(".outcome")).to_have_text("Nothing was sent.")
    end = sum(world.admin.offsets([world.readings.place(part) for part in (0, 1)], "latest").values())

    letter.get_by_role("button", name="Re-drive this one").click()
    expect(ask).to_contain_text(f"Meant are the letter {world.readings.topic}.dead[")
    ask.get_by_role("button", name="Send 1 record").click()
    expect(found.locator(".outcome")).to_contain_text("1 record sent back to")
    expect(letter.locator(".chip-done")).to_have_text("re-driven")
    found.locator(".reasons li").filter(has_text="ValueError").get_by_role("button").click()
    ask.get_by_role("button", name="Send 2 records").click()
    expect(found.locator(".outcome")).to_contain_text("2 records sent back to")
    expect(found.locator(".chip-done")).to_have_count(3)
    found.get_by_role("button", name="Re-drive all").click()
    expect(found.locator(".outcome")).to_contain_text("Nothing can be sent: 1 stay")

    # Three records, each in a transaction with its mark.
    with rr.Consumer(world.readings.topic, connection=world.readings.connection, follow=False) as reader:
        records = list(reader)
    assert len(records) == 7
    back = [record for record in records if record.header("riverrun.redriven") is not None]
    assert sorted(each.key or b"" for each in back) == [b"h0", b"h1", b"h2"]
    assert all(not name.startswith(HEADER_PREFIX) for each in back for name, _ in each.headers)
    assert end == 4


def test_over_http_only_what_is_asked_for_is_given(server: DashServer, world: World) -> None:
    with httpx.Client(base_url=f"{server.address}/api/pipeline/topic/", trust_env=False, timeout=30) as client:
        found = client.get(f"{world.prefix}readings/records?count=2").json()
        assert [each["place"] for each in found["records"]] != []
        assert len(found["records"]) == 2
        times = [each["at"] for each in client.get(f"{world.prefix}readings/records").json()["records"]]
        assert times == sorted(times, reverse=True)
        of_one = client.get(f"{world.prefix}readings/dead", params={"reason": "ValueError"}).json()
        assert {each["error"] for each in of_one["letters"]} == {"ValueError"}
        assert (of_one["total"], len(of_one["reasons"])) == (4, 2)
        empty = client.get(f"{world.prefix}high_load/dead").json()
        assert empty["letters"] == []
        refused = client.post(f"{world.prefix}high_load/redrive", json={"dry_run": True})
        assert refused.json()["error"]["message"] == f"Nothing of {world.prefix}high_load is dead."
        # A topic of the cluster that is not the pipeline's.
        assert client.get(f"{world.prefix}readings.dead/records").status_code == 404


def test_looking_is_bounded_however_much_there_is(world: World) -> None:
    topic = world.readings.topic
    assert not read_newest_records(world.admin, topic, 5, max_bytes=10).complete
    few = read_newest_dead_letters(world.admin, f"{topic}.dead", max_scanned=1, limit=1)
    assert (few.total, len(few.letters)) == (4, 1)
    assert few.scanned < few.total
    assert few.summary.count.letters == few.scanned
    newest = max(world.dead_letters(), key=lambda each: each.header(f"{HEADER_PREFIX}at") or b"")
    assert few.letters[0][0].record.offset == newest.offset


def test_on_a_phone_it_goes_down(browser: Browser, server: DashServer, world: World) -> None:
    with page_of(browser, viewport={"width": 390, "height": 844}, has_touch=True) as found:
        found.goto(f"{server.address}/pipeline#stream%3Ahouse_load")
        expect(found.locator("#panel-title")).to_have_text("house_load")
        check_layout(found, world, "top", "bottom")
        assert found.evaluate("document.documentElement.scrollWidth") <= 390
        found.get_by_role("button", name="Close").click()
        expect(found.locator("#panel")).to_be_hidden()


def test_when_the_run_ends_the_picture_stays_and_says_so(page: Page, world: World) -> None:
    world.state.close()
    expect(page.locator("#run-text")).to_have_text("Stopped")
    for name in STREAMS:
        expect(node(page, f"stream:{name}")).to_have_attribute("data-state", "stopped")
    expect(node(page, "stream:house_load").locator(".node-figure").first).to_have_text("in 0/s")


def test_figures_of_a_node_do_not_overprint(page: Page, world: World) -> None:
    """«≈ 2.38k records» and «2 parts» were one line."""
    topic = node(page, f"topic:{world.prefix}readings")
    expect(topic.locator(".node-figure").nth(1)).to_have_text("2 partitions")
    overlaps = topic.evaluate(
        """async (node) => {
            const { figuresOf } = await import("/assets/pipeline-words.js");
            const cases = [
                [{ kind: "topic" }, { state: "running", in: 123456, about: true, records: 2380, partitions: 2 }],
                [{ kind: "topic" }, { state: "running", in: 123456, about: true, records: 238_000_000, partitions: 128 }],
                [{ kind: "stream" }, { state: "running", in: 123456, out: 123456, lag: 238_000_000, dead: 123456 }],
                [{ kind: "table" }, { state: "running", in: 123456, rows: 238_000_000, lag: 123456 }],
            ];
            const drawn = [...node.querySelectorAll(".node-figure")];
            const found = [];
            for (const [kind, figures] of cases) {
                figuresOf(kind, figures).forEach((text, at) => { drawn[at].textContent = text; });
                const boxes = drawn.filter((each) => each.textContent).map((each) => [each.textContent, each.getBBox()]);
                for (const [one, a] of boxes) for (const [other, b] of boxes) {
                    const beside = a.x >= b.x + b.width || b.x >= a.x + a.width;
                    const above = a.y >= b.y + b.height || b.y >= a.y + a.height;
                    if (one < other && !beside && !above) found.push(`${one} | ${other}`);
                }
            }
            return found;
        }"""
    )
    assert overlaps == []
