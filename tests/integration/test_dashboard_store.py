"""The dashboards over the real embedded store and its server: records in a topic become figures on a stream of events."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

import riverrun as rr
from riverrun.config.spec import StoreSettings
from riverrun.dashboard.live.hub import DashboardHub
from riverrun.dashboard.routes import CONTENT_SECURITY_POLICY, dashboard_routes
from riverrun.model.table import TableSpec
from riverrun.store.embedded.store import EmbeddedStore
from riverrun.store.server import StoreServer
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.city import STREET_LOAD, STREETS, City

SECONDS = 60.0
pytestmark = pytest.mark.kafka


def board() -> rr.App:
    app = rr.App("meters")
    app.dashboard(
        rr.number(
            "City load", "select sum(load_kw) as load_kw from street_load where minute = latest", compare="10 minutes"
        ),
        rr.line("Load by street", "street_load", by="street", y="load_kw", limit=12),
        rr.leaderboard("Streets", "street_load", by="street", y="load_kw"),
        rr.heat_map("Map", "street_load", by="street", y="load_kw"),
        rr.rows("Rows", "street_load", limit=5),
    )
    return app


def send(kafka: KafkaUnderTest, spec: TableSpec, city: City, minutes: range) -> None:
    with rr.Producer(kafka.connection) as producer:
        for minute in minutes:
            sums: dict[str, float] = {}
            for row in city.rows(minute):
                sums[row["street"]] = round(sums.get(row["street"], 0.0) + row["load_kw"], 3)
            for street, load in sums.items():
                at = city.rows(minute)[0]["minute"].isoformat().replace("+00:00", "Z")
                value = json.dumps({"minute": at, "street": street, "load_kw": load}).encode()
                producer.send_soon(spec.topic, value, key=f"{at} {street}")


def total(city: City, minute: int) -> float:
    return float(sum(row["load_kw"] for row in city.rows(minute)))


def test_records_become_figures(kafka: KafkaUnderTest, kafka_topic: Any, tmp_path: Path) -> None:
    from dataclasses import replace

    spec = replace(STREET_LOAD, topic=kafka_topic(partitions=2))
    city = City(24)
    send(kafka, spec, city, range(12))
    with EmbeddedStore(tmp_path, kafka.connection, StoreSettings()) as store:
        store.apply([spec])
        hub = DashboardHub(store, board().dashboards, "meters")
        with (
            StoreServer(store, routes=dashboard_routes(hub)) as server,
            httpx.Client(base_url=server.start(), trust_env=False, timeout=SECONDS) as client,
        ):
            assert client.get("/").headers["content-security-policy"] == CONTENT_SECURITY_POLICY
            assert client.get("/assets/main.js").headers["cache-control"] == "no-cache"
            assert client.get("/api/tables").status_code == 200
            tiles: dict[str, dict[str, Any]] = {}
            sent = 12
            with client.stream("GET", "/api/live/main") as answer:
                for line in answer.iter_lines():
                    for message in json.loads(line[6:]).get("tiles", ()) if line.startswith("data: ") else ():
                        apply(tiles, message)
                    figure = tiles.get("city-load", {}).get("rows", [[0, None]])[-1][1]
                    # A tile may have been asked before there were rows, and is asked again by itself.
                    whole = len(tiles) == 5 and all(tile.get("rows") for tile in tiles.values())
                    if figure == pytest.approx(total(city, sent - 1)) and whole:
                        if sent == 15:
                            break
                        send(kafka, spec, city, range(sent, sent + 1))
                        sent += 1
            hub.request_close()
        ours = {(row[0], row[1]): row[2] for row in tiles["load-by-street"]["rows"]}
        assert all(ours[key] > 0 for key in ours)
        assert {street for _, street in ours} == set(STREETS)


FILE = """
import riverrun as rr

app = rr.App("{app}")
app.dashboard(rr.text("Hello **you**", title="Words"), title="A page")
"""


def test_serve_shows_the_files_dashboards_and_ends_with_pages_open(
    kafka: KafkaUnderTest, kafka_topic: Any, tmp_path: Path
) -> None:
    app = kafka_topic().replace("-", "_")
    (tmp_path / "page.py").write_text(FILE.format(app=app), encoding="utf-8")
    command = [sys.executable, "-m", "riverrun", "serve", "page.py", "--bootstrap-servers", kafka.bootstrap_servers]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        told = next(line for line in process.stderr if "The dashboard of" in line)
        address = told.strip().removesuffix("/.").split(" ")[-1]
        with httpx.Client(base_url=address, trust_env=False, timeout=SECONDS) as client:
            assert client.get("/api/dashboards").json()["dashboards"][0]["title"] == "A page"
            with client.stream("GET", "/api/live/main") as answer:
                lines = answer.iter_lines()
                assert "event: hello" in lines
                process.terminate()
                # The stream ends in order: who reads it sees its end, and no error.
                assert not [line for line in lines if line.startswith("event: error")]
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()  # type: ignore[union-attr]


def apply(tiles: dict[str, dict[str, Any]], message: dict[str, Any]) -> None:
    before = tiles.get(message["tile"], {})
    assert "error" not in message, message
    if "from" in message and before["v"] == message["from"]:
        rows = list(before["rows"])
        for first, count in reversed(message["drop"]):
            del rows[first : first + count]
        for at, row in message["put"]:
            rows.insert(at, row)
        message = {**before, **message, "rows": rows}
    tiles[message["tile"]] = {**before, **message}
