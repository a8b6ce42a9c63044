"""From a database to the page, as a user has it: `riverrun run` starts Kafka and Connect, follows the table, joins it, and a
changed row shows within seconds. Secrets are nowhere to be read."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

import riverrun as rr
from riverrun.config import load
from riverrun.config.project import Project
from riverrun.config.serve_state import find_store_endpoint
from riverrun.connectors.kafka_connect import ConnectClient
from riverrun.errors import RiverrunError
from riverrun.store.client import query_project
from support.browsing import chromium, page_of
from support.cluster import ProjectDriver, wait_for
from support.postgres import TestPostgres

if TYPE_CHECKING:
    import subprocess

PASSWORD = "hush-hush-42"
PIPELINE = """
from datetime import datetime
import riverrun as rr

app = rr.App("shop")

class Order(rr.Event):
    order_id: int = rr.key()
    customer_id: int
    amount: float
    at: datetime = rr.event_time(late="1 minute")

orders = app.topic("orders", Order)
customers = app.table("customers", rr.postgres("public.customers"), key="id")

named = app.sql("named_orders", '''
    select order_id, customer_id, name, city, credit, amount, at
    from orders join customers on customer_id = id''', key="order_id")
app.sink(named, rr.jdbc("public.named_orders"))
app.dashboard(
    rr.number("Orders", "select count(*) from named_orders"),
    rr.rows("Newest", "select order_id, name, city from named_orders order by order_id desc limit 6"),
)
"""
# From the commit in the database to the store or the page that shows it. On a crowded machine, whose batches take seconds.
SHOWN_SECONDS = 60.0

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server() -> Iterator[TestPostgres]:
    with TestPostgres() as running:
        yield running


@pytest.fixture
def project(tmp_path: Path, server: TestPostgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProjectDriver]:
    # The test itself is a user of the project, too.
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    server.run("drop database if exists shop with (force)", "drop role if exists follower")
    server.run(f"create role follower login replication password '{PASSWORD}'")
    url = server.shop(
        "shop",
        "create table customers(id int primary key, name text not null, city text, credit numeric(12,2))",
        "insert into customers values (1, 'Ada', 'Cork', 10.10), (2, 'Bo', 'Dublin', 20.20), (3, 'Cy', 'Sligo', null)",
        "alter table customers owner to follower",
        "grant create on schema public to follower",
        user="follower",
    )
    found = ProjectDriver(tmp_path)
    found.configure(
        '[project]\napp = "app.py"\n[spark]\ndriver_memory_mb = 1024\n'
        f'[postgres]\nurl = "{url}"\npassword = {{ env = "SHOP_PASSWORD" }}\n'
    )
    (tmp_path / "app.py").write_text(PIPELINE)
    yield found
    found.clean_up()
    for (slot,) in server.run("select slot_name from pg_replication_slots"):
        server.run(f"select pg_drop_replication_slot('{slot}')")


@contextmanager
def started(project: ProjectDriver) -> "Iterator[subprocess.Popen[str]]":
    """`riverrun run`, ended whatever happens; what it says is read, or it would stop when the pipe is full."""
    running = project.start("run")
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.extend(running.stderr or ()), daemon=True)
    reader.start()
    try:
        yield running
    except BaseException:
        print("".join(said)[-6000:])
        raise
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGINT)
            running.wait(timeout=120)
        reader.join(10)
        for pipe in (running.stdout, running.stderr):
            if pipe is not None:
                pipe.close()


class Orders:
    """Somebody orders all the time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        number = 0
        with rr.Producer(connection=rr.connect(project=self._root)) as producer:
            while not self._stop.wait(0.1):
                number += 1
                at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                order = {"order_id": number, "customer_id": 1 + number % 3, "amount": 1.5, "at": at}
                producer.send("orders", json.dumps(order).encode(), key=str(number).encode())


def newest(root: Path, customer: int) -> dict[str, Any] | None:
    """The newest order of a customer in the store."""
    sql = f"select * from named_orders where customer_id = {customer} order by order_id desc limit 1"  # noqa: S608
    try:
        rows = list(query_project(Project(root), sql))
    except RiverrunError:
        return None
    return rows[0] if rows else None


def on_page(root: Path, server: TestPostgres, before: str, sql: str, after: str) -> float:
    """How long it takes from a change in the database until a real browser shows it, without being asked again."""
    serving = find_store_endpoint(Project(root))
    assert serving is not None
    with chromium() as browser, page_of(browser) as page:
        page.goto(f"{serving.address}/")
        page.wait_for_selector(f"td:has-text('{before}')")
        assert page.locator(f"td:has-text('{after}')").count() == 0
        server.run(sql, database="shop")
        began = time.monotonic()
        page.wait_for_selector(f"td:has-text('{after}')", timeout=SHOWN_SECONDS * 1000)
        return time.monotonic() - began


def test_a_changed_row_shows_within_seconds(project: ProjectDriver, server: TestPostgres) -> None:
    def shows(customer: int, **wanted: Any) -> bool:
        row = newest(project.root, customer)
        return row is not None and all(row[name] == value for name, value in wanted.items())

    def changed(sql: str, customer: int, **wanted: Any) -> float:
        server.run(sql, database="shop")
        began = time.monotonic()
        wait_for(lambda: shows(customer, **wanted), SHOWN_SECONDS, f"{sql} did not show")
        return time.monotonic() - began

    with started(project):
        wait_for((project.home / "run" / "streams.json").exists, 240, "the streams did not start")
        with Orders(project.root):
            wait_for(lambda: shows(1, name="Ada", city="Cork"), 120, "no row was joined")
            took = [
                on_page(project.root, server, "Cork", "update customers set city = 'Galway' where id = 1", "Galway"),
                changed("update customers set credit = 30.30 where id = 2", 2, name="Bo", credit=Decimal("30.30")),
                changed("update customers set name = 'Dee' where id = 3", 3, name="Dee", city="Sligo"),
            ]
            print(f"shown after {', '.join(f'{each:.1f}' for each in took)} s")
            # An order of a customer who is deleted joins nobody, from then on.
            server.run("delete from customers where id = 2", database="shop")
            last = [-1]

            def no_more() -> bool:
                row = newest(project.root, 2)
                before, last[0] = last[0], int(row["order_id"]) if row else -1
                others = newest(project.root, 1)
                return bool(row and others) and before == last[0] and int(others["order_id"]) > last[0] + 30  # type: ignore[index]

            wait_for(no_more, SHOWN_SECONDS, "a deleted row still joins")
            # And the rows are in the database again.
            ours = int((newest(project.root, 1) or {})["order_id"])
            written = f"select name, city, amount from named_orders where order_id = {ours}"  # noqa: S608
            wait_for(
                lambda: server.run(written, database="shop") == [("Ada", "Galway", 1.5)], 60, "the sink wrote nothing"
            )
        connect = load(Project(project.root)).settings.connect
        with ConnectClient.of(connect, Project(project.root)) as client:
            assert client.names() == ["shop.jdbc.named_orders", "shop.postgres"]
            assert PASSWORD not in str(client.configs())
    found = [
        path
        for path in project.root.rglob("*")
        if path.is_file() and "secrets" not in path.parts and PASSWORD.encode() in path.read_bytes()
    ]
    assert found == []


def test_all_problems_are_said_before_anything_starts(project: ProjectDriver, server: TestPostgres) -> None:
    (project.root / "app.py").write_text(PIPELINE.replace("public.customers", "public.customer"))
    done = project.run("run")
    assert done.code == 1
    assert "There is no table public.customer" in done.err
    assert "Did you mean public.customers?" in done.err
    assert PASSWORD not in done.err + done.out
    assert not project.java()
