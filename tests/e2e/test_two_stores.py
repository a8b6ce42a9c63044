"""The same pipeline file on both stores: every tile of its dashboard shows the same figures."""

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from riverrun.config import Project
from riverrun.config.serve_state import find_store_endpoint
from riverrun.errors import RiverrunError
from riverrun.store.client import StoreClient
from support.cluster import ProjectDriver, wait_for

METERS = Path(__file__).parents[2] / "examples" / "meters" / "app.py"
BEGIN = datetime(2026, 11, 1, 18, 0, tzinfo=UTC)
TABLES = {"house_load", "street_load", "high_load", "episodes"}
HOUSES = 60
# What a click sets, for tiles that wait for one.
CHOSEN = {"street": "street 1", "house_id": "h1"}
START_SECONDS = 300.0

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]


def readings(minutes: int, houses: int) -> str:
    """A reading of each house each minute; one in nine is above the limit."""
    lines = []
    for minute in range(minutes):
        for house in range(houses):
            at = BEGIN + timedelta(minutes=minute, seconds=house % 50)
            load = ((house * 7 + minute * 5) % 90) / 40
            row = {"house_id": f"h{house}", "load_kw": load, "at": at.isoformat()}
            lines.append(json.dumps(row))
    return "\n".join(lines) + "\n"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[ProjectDriver]:
    found = ProjectDriver(tmp_path)
    found.configure('[project]\napp = "app.py"\n[spark]\ndriver_memory_mb = 1024\n')
    shutil.copy(METERS, tmp_path / "app.py")
    lines = [f"h{house},street {house % 4},Owner {house},+353 20 910 0000,flat,4.6" for house in range(HOUSES)]
    (tmp_path / "houses.csv").write_text("\n".join(["house_id,street,owner,phone,tariff,contract_kw", *lines]))
    yield found
    found.clean_up()


@contextmanager
def served(project: ProjectDriver, kind: str) -> Iterator[str]:
    """`riverrun serve`, once its tables have all that is in their topics; its address."""
    serving = project.start("serve", "--store", kind)
    try:
        wait_for(lambda: find_store_endpoint(Project(project.root)) is not None, 120, f"{kind} is not served")
        found = find_store_endpoint(Project(project.root))
        assert found is not None
        with StoreClient(found.address) as client:
            wait_for(lambda: has_all(client), START_SECONDS, f"{kind} did not catch up")
        yield found.address
    finally:
        serving.send_signal(signal.SIGINT)
        try:
            said = serving.communicate(timeout=60)[1]
        except subprocess.TimeoutExpired:
            serving.kill()
            said = "Traceback: it did not end"
        assert "Traceback" not in said


def has_all(client: StoreClient) -> bool:
    try:
        standing = client.table_statuses()
    except RiverrunError:
        return False
    return {each.table for each in standing} == TABLES and all(each.lag == 0 and each.rows > 0 for each in standing)


def figures(address: str, at: datetime) -> dict[str, Any]:
    """What each tile of the page shows as of a time."""
    shown = {}
    with httpx.Client(base_url=address, timeout=120, trust_env=False) as client:
        [board] = client.get("/api/dashboards").json()["dashboards"]
        for tile in board["tiles"]:
            if tile["kind"] == "text":
                continue
            filters = {f"f.{tile['when']}": CHOSEN[tile["when"]]} if tile["when"] else {}
            params = {"at": str(int(at.timestamp() * 1000)), **filters}
            state = client.get(f"/api/tiles/{board['name']}/{tile['name']}", params=params).json()
            assert "error" not in state, (tile["title"], state)
            assert state["rows"], tile["title"]
            rows = state["rows"]
            if tile["kind"] == "number":
                # The figure, and what it is compared with; of the way between, as many points as there was time to ask for.
                rows = [rows[0], rows[-1]]
            shown[tile["title"]] = {"columns": [each["name"] for each in state["columns"]], "rows": rows}
    return shown


def rounded(value: Any) -> Any:
    """Sums of doubles in another order differ in their last digit."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return {name: rounded(each) for name, each in value.items()} if isinstance(value, dict) else value


def test_every_tile_shows_the_same_on_both_stores(project: ProjectDriver) -> None:
    up = project.run("up", "--druid", "--detach", timeout=START_SECONDS)
    assert up.code == 0, up.err
    project.run("topics", "apply")
    (project.root / "readings.jsonl").write_text(readings(minutes=20, houses=HOUSES))
    assert project.run("produce", "readings", "readings.jsonl").code == 0
    done = project.run("run", "--until-caught-up", timeout=START_SECONDS)
    assert done.code == 0, done.err
    found = {}
    for kind in ("embedded", "druid"):
        with served(project, kind) as address:
            # An hour before that there is a whole minute already: what a number is compared with.
            found[kind] = rounded(figures(address, BEGIN + timedelta(minutes=62)))
    assert found["embedded"]["Above 2 kW"]["rows"][-1][-1] > 0
    assert found["druid"] == found["embedded"]
