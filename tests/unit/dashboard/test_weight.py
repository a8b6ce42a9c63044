"""What a page weighs on its way: itself, all it names, what those import, and the first figures."""

import re
from collections.abc import Iterator

import httpx
import pytest

from support.city import City, city_app
from support.dashboards import DashServer

MOST_BYTES = 500_000


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    city = City(40)
    city.run(60)
    with DashServer(city_app(), city.store) as server, httpx.Client(base_url=server.address, trust_env=False) as client:
        yield client


def weigh(client: httpx.Client, path: str, weights: dict[str, int]) -> None:
    """Add what a browser would load for this."""
    if path in weights:
        return
    with client.stream("GET", path) as answer:
        assert answer.status_code == 200, path
        raw = b"".join(answer.iter_raw())
        weights[path] = len(raw) + sum(len(name) + len(value) + 4 for name, value in answer.headers.raw)
    text = client.get(path).text if path.endswith(".js") or not path.startswith(("/assets", "/api")) else ""
    for named in re.findall(r'(?:src|href)="(/assets/[^"]+)"', text):
        weigh(client, named, weights)
    for named in re.findall(r'(?:from|import) "\./([^"]+)"', text):
        weigh(client, f"/assets/{named}", weights)


def test_the_sql_page_is_light(client: httpx.Client) -> None:
    weights: dict[str, int] = {}
    weigh(client, "/sql", weights)
    assert {"/assets/sql.js", "/assets/editor.js", "/assets/uplot.js"} <= set(weights)
    assert sum(weights.values()) < MOST_BYTES / 2


def test_the_alerts_page_is_light(client: httpx.Client) -> None:
    weights: dict[str, int] = {}
    weigh(client, "/alerts", weights)
    assert {"/assets/alerts.js", "/assets/alerts-panel.js", "/assets/panel.css"} <= set(weights)
    assert sum(weights.values()) < MOST_BYTES / 10


def test_a_page_is_light(client: httpx.Client) -> None:
    weights: dict[str, int] = {}
    weigh(client, "/", weights)
    assert {"/assets/main.js", "/assets/dom.js", "/assets/uplot.js", "/assets/page.css"} <= set(weights)
    weigh(client, "/api/dashboards", weights)
    boards = client.get("/api/dashboards").json()["dashboards"]
    tiles = {each["name"] for each in boards[0]["tiles"] if not each["when"]}
    with client.stream("GET", "/api/live/main") as answer:
        assert answer.headers["content-encoding"] == "gzip"
        heard = 0
        for line in answer.iter_lines():
            tiles -= {tile for tile in tiles if f'"tile":"{tile}","v":' in line}
            heard = answer.num_bytes_downloaded
            if not tiles:
                break
    assert sum(weights.values()) + heard < MOST_BYTES / 2
