"""docs/own-connector.md is run: its pipeline on a real broker, its tests by pytest."""

import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from riverrun.app import load_app
from riverrun.kafka.admin.admin import Admin
from riverrun.testing import KafkaUnderTest
from support.connecting import records_in, running, wait_until

PAGE = Path(__file__).parents[2] / "docs/own-connector.md"
BLOCK = re.compile(r"^```python (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_is_as_short_as_it_says(shop: Path) -> None:
    text = (shop / "shop.py").read_text()
    source = text[text.index("class Table(") : text.index("class Paid(")]
    sink = text[text.index("class Paid(") : text.index("class Order(")]
    assert len(source.strip().splitlines()) <= 40
    assert len(sink.strip().splitlines()) <= 40


def test_rows_go_from_one_database_to_the_other(kafka: KafkaUnderTest, shop: Path) -> None:
    Admin(kafka.connection).create_topic("orders", partitions=1, replicas=0, config={})
    with sqlite3.connect(shop / "shop.db") as database:
        database.execute("create table orders (id integer primary key, cents integer)")
        database.executemany("insert into orders values (?, ?)", [(n, n) for n in range(1, 3001)])
        database.execute("insert into orders values (3001, -5)")

    def paid() -> int:
        with sqlite3.connect(shop / "warehouse.db") as warehouse:
            tables = warehouse.execute("select count(*) from sqlite_master").fetchone()[0]
            return int(warehouse.execute("select count(*) from paid").fetchone()[0]) if tables else 0

    try:
        with running(load_app(shop / "shop.py"), kafka.connection, shop):
            wait_until(lambda: paid() == 3000)
        with sqlite3.connect(shop / "shop.db") as database:
            database.execute("insert into orders values (3002, 7)")
        with running(load_app(shop / "shop.py"), kafka.connection, shop):
            wait_until(lambda: paid() == 3001)
        assert len(records_in(kafka.connection, "orders")) == 3001
        assert len(records_in(kafka.connection, "orders.dead")) == 1
    finally:
        Admin(kafka.connection).delete_topics(["orders", "orders.dead", "shop.connectors"])


def test_its_tests_pass(shop: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"],
        cwd=shop, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "8 passed" in done.stdout
