"""A pipeline for tests of its picture: what it declares, and figures as a run, a cluster and a store would tell them."""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import riverrun as rr
from riverrun.dashboard.topology.builder import build_topology
from riverrun.dashboard.topology.details import NodeDetails
from riverrun.dashboard.topology.live import TopologyBroadcast
from riverrun.dashboard.topology.node_metrics import PipelineSnapshot, TopicSnapshot
from riverrun.model.progress import PipelineProgress, RecordCounts, StreamProgress
from riverrun.model.topology import PipelineTopology
from riverrun.store.contract import TableStatus
from riverrun.streams.compile.graph import build_graph
from support.memory_store import MemoryStore

NOW = 1_789_000_000.0


class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float = rr.field(ge=0)


def meters_app(prefix: str = "", name: str = "meters") -> rr.App:
    """Readings; the load of houses and, with a file of houses, of streets; what is high; a dashboard. Topics begin with
    `prefix`."""
    app = rr.App(name)
    source = f"{prefix}readings"
    app.topic(source, Reading, partitions=2)
    app.table("houses", rr.csv("houses.csv", "house_id string, street string"), key="house_id")
    app.sql("house_load", f"select * from `{source}`", topic=f"{prefix}house_load")  # noqa: S608
    app.sql("street_load", "select * from house_load join houses using (house_id)", topic=f"{prefix}street_load")
    app.sql("high_load", f"select * from `{source}` where load_kw > 2", topic=f"{prefix}high_load")  # noqa: S608
    app.dashboard(
        rr.number("City", "select sum(load_kw) as load_kw from street_load"),
        rr.rows("High", "high_load"),
        title="City power",
    )
    return app


def shape_of_app(app: rr.App) -> PipelineTopology:
    return build_topology(app, build_graph(app).inputs)


def stream(name: str, **given: Any) -> StreamProgress:
    found = StreamProgress(
        name, topic=name, group=f"meters.{name}", phase="running", speed="near-real-time", batch=7, batch_ms=140,
        rows_in_per_second=1200.0, rows_out_per_second=9000.0, lag=12, last_record_at="2026-09-10T00:26:40+00:00",
        record_counts=RecordCounts(read=1000, out=900, filtered=90, dead_letters=8, late=2, exact=True),
    )  # fmt: skip
    return replace(found, **given)


def progress(*streams: StreamProgress, **given: Any) -> PipelineProgress:
    found = PipelineProgress("meters", "meters.py", 1, "2026-09-10T00:00:00+00:00", streams=list(streams))
    return replace(found, **given)


def seen(at: float = 0.0, **given: Any) -> PipelineSnapshot:
    """A moment, so many seconds after the first, in which everything runs."""
    names = ("house_load", "street_load", "high_load")
    topics = {name: TopicSnapshot(100, 1100, 2) for name in ("readings", *names)}
    tables = {name: TableStatus(name, 50, positions={0: 500, 1: 600}, lag=0, newest=NOW, updated=NOW) for name in names}
    found = PipelineSnapshot(
        NOW + at, {"state": "running", "detail": ""}, progress(*(stream(name) for name in names)), topics, tables
    )
    return replace(found, **given)


class Recorded:
    """Tells what it was given, and how often it was asked."""

    def __init__(self, shape: PipelineTopology | None = None, *, runs: bool = False) -> None:
        self.now = seen()
        self.ran = (shape, runs)
        self.looks = 0
        self.asked: list[Sequence[str]] = []
        self.broken = False
        self.closed = False
        self.free = threading.Event()
        self.free.set()

    def read(self, topics: Sequence[str]) -> PipelineSnapshot:
        self.free.wait(10)
        self.looks += 1
        self.asked.append(topics)
        if self.broken:
            raise ValueError("nothing can be seen")
        return self.now

    def topology(self) -> tuple[PipelineTopology | None, bool]:
        return self.ran

    def close(self) -> None:
        self.closed = True


def words(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    return {id_: (each["state"], each["word"]) for id_, each in nodes.items()}


# --- for pictures of the picture ---


class Moving(Recorded):
    """A pipeline at work: 4,000 readings a second, and a stream that came to grief over one."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.time()

    def read(self, topics: Sequence[str]) -> PipelineSnapshot:
        now = time.time()
        gone = now - self._began
        wave = 1 + 0.12 * math.sin(gone / 3)
        read = 2_400_000 + round(4000 * gone)

        def told(name: str, share: float, **given: Any) -> StreamProgress:
            out, dead, late = round(read * share), 14 if name == "high_load" else 0, 3
            one_to_one = name == "high_load"
            counts = RecordCounts(
                read, dead, late, max(0, read - out - dead - late) if one_to_one else 0, out, exact=one_to_one,
                note="" if one_to_one else "many records become one row",
            )  # fmt: skip
            return stream(
                name, batch=round(600 + gone), batch_ms=round(180 + 60 * math.sin(gone)), lag=round(2200 * wave),
                rows_in_per_second=4000 * wave, last_record_at=_iso(now), record_counts=counts, watermark=_iso(now - 130),
                state_rows=0 if one_to_one else 48_210, state_bytes=0 if one_to_one else 19_300_000, **given,
            )  # fmt: skip

        shares = {"house_load": 0.25, "street_load": 0.01, "high_load": 0.06}
        told_streams = [told(name, share) for name, share in shares.items()]
        offsets = {
            "readings": read,
            **{told_stream.name: told_stream.record_counts.out for told_stream in told_streams},
        }
        seen_topics = {name: TopicSnapshot(0, offsets[name], 4) for name in topics}
        tables = {
            name: TableStatus(
                name, round(offsets[name] / 9), positions={0: offsets[name]}, lag=0, newest=now, updated=now
            )
            for name in shares
        }
        about = {"state": "running", "file": "meters.py", "detail": ""}
        return PipelineSnapshot(now, about, progress(*told_streams), seen_topics, tables)


class Told(NodeDetails):
    """Details as a cluster would tell them."""

    def of(self, shape: PipelineTopology, kind: str, name: str) -> dict[str, Any]:  # noqa: ARG002
        places = [{"place": f"readings[{part}]", "position": 601_220 + part, "end": 601_790, "lag": 570 - part}
                  for part in range(4)]  # fmt: skip
        found = {"group": f"meters.{name}", "output": name, "partitions": places, "dead_of": ["readings"]}
        return {"id": f"{kind}:{name}", "at": 0, **found} if kind == "stream" else {"missing": True}

    def dead_letters(self, shape: PipelineTopology, topic: str, reason: str = "") -> dict[str, Any]:  # noqa: ARG002
        why = ["RecordUnreadableError: Expected `float` >= #", "RecordUnreadableError: Expected `float`, got `str`"]
        values = ['{"house_id": "house-0417", "load_kw": -1.2}', '{"house_id": "house-0093", "load_kw": "2.4"}']
        letters = [
            {
                "place": f"readings.dead[0]@{13 - at}", "partition": 0, "offset": 13 - at,
                "from": f"readings[{at % 4}]@{600_112 + at}", "at": round(NOW * 1000) - at * 7000,
                "reason": why[at % 2], "error": "RecordUnreadableError", "message": why[at % 2], "group": "meters",
                "attempts": 1, "redriven": at > 11, "key": {"text": "house-0417", "bytes": 10, "cut": False},
                "value": {"text": values[at % 2], "bytes": 40, "cut": False}, "headers": [],
            }
            for at in range(14)
        ]  # fmt: skip
        reasons = [{"letters": 9, "waiting": 8, "reason": why[0]}, {"letters": 5, "waiting": 4, "reason": why[1]}]
        return {"topic": topic, "total": 14, "looked": 14, "waiting": 12, "reasons": reasons, "letters": letters}


def moving_picture(_: object) -> TopologyBroadcast:
    made = shape_of_app(meters_app())
    # A file that people would have.
    nodes = tuple(replace(node, about=node.about.replace("topology.py", "meters.py")) for node in made.nodes)
    shape = PipelineTopology(nodes, made.edges)
    return TopologyBroadcast("meters", Moving(), Told(None, MemoryStore()), declared=shape, viewers=lambda: {"main": 3})


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
