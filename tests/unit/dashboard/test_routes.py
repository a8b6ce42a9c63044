"""The dashboards over HTTP: what is served, to whom, and with which orders to the browser."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import riverrun.dashboard
from riverrun.dashboard.responses import assets
from riverrun.dashboard.routes import CONTENT_SECURITY_POLICY, filter_value
from support.city import City, city_app
from support.dashboards import DashServer

FOLDER = Path(riverrun.dashboard.__file__).parent / "assets"
PAGES = ("/", "/sql", "/pipeline", "/alerts")


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    city = City(12)
    city.run(10)
    with DashServer(city_app(), city.store) as server, httpx.Client(base_url=server.address, trust_env=False) as client:
        yield client


@pytest.mark.parametrize("path", PAGES)
def test_a_page_and_all_it_names_is_there(client: httpx.Client, path: str) -> None:
    page = client.get(path)
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    named = re.findall(r'(?:src|href)="(/[^"]+)"', page.text)
    assert len(named) >= 6
    for name in named:
        assert client.get(name).status_code == 200, name


def test_modules_import_only_what_is_there() -> None:
    for path in FOLDER.glob("*.js"):
        for name in re.findall(r'from "\./([^"]+)"', path.read_text(encoding="utf-8")):
            assert (FOLDER / name).is_file(), f"{path.name} imports {name}"


def test_the_pages_are_light() -> None:
    """All of them together; what one loads: test_weight.py."""
    assert sum(len(asset.gzipped) for asset in assets().values()) < 120_000


def test_nothing_of_the_page_breaks_its_own_orders() -> None:
    """No script, style or handler inside the markup, no markup made of text, no other host."""
    for path in FOLDER.glob("*.html"):
        assert not re.search(r"<script>|<style|\sstyle=|\son\w+=|https?:", path.read_text(encoding="utf-8")), path
    for path in [
        each for each in FOLDER.iterdir() if each.suffix in {".js", ".css"} and not each.name.startswith("uplot")
    ]:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?://|@import|url\(", text
        ), path


def test_every_answer_has_its_orders(client: httpx.Client) -> None:
    for path in (*PAGES, "/assets/main.js", "/api/dashboards", "/nothing"):
        headers = client.get(path).headers
        assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:8480", ""])
def test_a_foreign_name_is_refused(client: httpx.Client, host: str) -> None:
    answer = client.get("/api/dashboards", headers={"host": host})
    assert answer.status_code in {400, 403}
    assert "dashboards" not in answer.text


@pytest.mark.parametrize(
    "path", ["/assets/../routes.py", "/assets/%2e%2e/routes.py", "/assets//etc/passwd", "/assets/none.js"]
)
def test_only_the_pages_own_files_are_served(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_only_reads(client: httpx.Client, method: str) -> None:
    assert client.request(method, "/api/dashboards").status_code == 405


def test_files_are_pressed_and_kept(client: httpx.Client) -> None:
    first = client.get("/assets/uplot.js")
    assert first.headers["content-encoding"] == "gzip"
    again = client.get("/assets/uplot.js", headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304


def test_what_is_declared_is_told_without_sql(client: httpx.Client) -> None:
    content = client.get("/api/dashboards").json()
    assert [each["name"] for each in content["dashboards"]] == ["main", "more"]
    assert content["dashboards"][0]["tiles"][0]["tables"] == ["street_load"]
    assert "select" not in str(content).lower()


def test_live_figures_are_a_stream(client: httpx.Client) -> None:
    with client.stream("GET", "/api/live/main") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith("event: ")) == "event: hello"
        assert next(line for line in lines if line.startswith("event: ")) == "event: frame"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/live/other", 404),
        ("/api/live/main?f.nothing=1", 400),
        ("/api/live/main?f.street=" + "x" * 501, 400),
        ("/api/live/main?" + "&".join(f"f.a{n}=1" for n in range(9)), 400),
        ("/api/tiles/main/city-load?at=soon", 400),
        ("/api/tiles/main/city-load?at=" + "9" * 40, 400),
        ("/api/tiles/main/other?at=1", 400),
    ],
)
def test_a_wrong_request_hears_what_is_wrong(client: httpx.Client, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_a_filter_is_a_value_and_never_sql(client: httpx.Client) -> None:
    at = 1_800_000_000_000
    hostile = client.get(
        "/api/tiles/main/mean-load", params={"at": at, "f.street": "x' or 1=1; drop table house_load --"}
    )
    assert hostile.json()["rows"][-1][1] is None
    assert client.get("/api/tiles/main/mean-load", params={"at": at}).json()["rows"][-1][1] > 0


def test_small_parts() -> None:
    assert [filter_value(each) for each in ("Elm", "~null", "~~null", "~x")] == ["Elm", None, "~null", "x"]
