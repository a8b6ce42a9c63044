"""`riverrun query` and `riverrun tables`, asking a process that serves a store: this one."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pyarrow.parquet as pq
import pytest

from riverrun.cli.main import run
from riverrun.config import KafkaSettings
from riverrun.config.project import Project
from riverrun.config.serve_state import ServeState
from riverrun.config.spec import StoreSettings
from riverrun.kafka.connection import Connection
from riverrun.store.contract import Store, TableStatus
from riverrun.store.embedded.store import EmbeddedStore
from riverrun.store.factory import store_folder
from riverrun.store.server import StoreServer
from support.duck_store import HOUSES as HOUSES_TABLE
from support.duck_store import DuckStore


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in ("RIVERRUN_KAFKA_BOOTSTRAP_SERVERS", "RIVERRUN_PROJECT", "RIVERRUN_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


@pytest.fixture
def store(project: Project) -> Iterator[DuckStore]:
    """A store that is served for the current folder."""
    with DuckStore() as opened, ServeState(project, "meters", "embedded") as state, StoreServer(opened) as server:
        state.write(server.start())
        yield opened


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert run(list(arguments)) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


HOUSES = "select house_id, street from houses order by 1"


def test_a_table(store: DuckStore, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = told(capsys, "query", HOUSES)
    assert out.splitlines() == ["HOUSE ID  STREET", "h0        Main", "h1        Main", "h2        Oak"]
    assert err == ""


def test_rows_of_a_table_that_takes_no_more_are_said_to_be_old(
    store: DuckStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store, "table_statuses", lambda: [TableStatus("houses", 3, "failing", "its disk is full")])
    out, err = told(capsys, "query", HOUSES)
    assert "Oak" in out
    assert err == "The table houses takes no more rows, and this is old: its disk is full\n"
    assert told(capsys, "query", "select 1")[1] == ""


def test_more_rows_than_were_asked_for(store: DuckStore, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = told(capsys, "query", HOUSES, "--limit", "1", "--format", "csv")
    assert out == "house_id,street\nh0,Main\n"
    assert "There are more rows" in err


def test_formats(store: DuckStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(told(capsys, "query", HOUSES, "--format", "json")[0])[2] == {"house_id": "h2", "street": "Oak"}
    assert len(told(capsys, "query", HOUSES, "--format", "ndjson")[0].splitlines()) == 3
    out, err = told(capsys, "query", HOUSES, "--format", "parquet", "--output", str(tmp_path / "houses.parquet"))
    assert out == ""
    assert "3 rows in" in err
    assert pq.read_table(tmp_path / "houses.parquet").num_rows == 3
    told(capsys, "query", HOUSES, "--output", str(tmp_path / "houses.txt"))
    assert (tmp_path / "houses.txt").read_text().startswith("HOUSE ID  STREET\n")


def test_no_rows(store: DuckStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "query", "select * from houses where false") == ("", "No rows.\n")


def test_a_question_from_stdin(
    store: DuckStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("select count(*) as n\nfrom houses\n"))
    assert told(capsys, "query", "-", "--format", "csv")[0] == "n\n3\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["drop table houses"], 2, "QUERY_REFUSED"),
        (["select stret from houses"], 2, "Did you mean street?"),
        (["select 1", "--timeout", "600"], 2, "store.query_seconds"),
        (["select 1", "--watch", "--output", "x"], 2, "--watch shows rows"),
        (["select 1", "--watch", "--format", "arrow"], 2, "--watch shows rows"),
        (["select 1", "--output", "no/such/folder"], 2, "cannot be written"),
        (["select sum(a.x*b.x) from range(100000) a(x), range(100000) b(x)", "--timeout", "0.05"], 1, "QUERY_TIMEOUT"),
    ],
)
def test_what_goes_wrong(
    store: DuckStore, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    out, err = told(capsys, "query", *arguments, code=code)
    assert out == ""
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [["query", "select 1"], ["tables"], ["tables", "show", "x"]])
def test_without_a_process_that_serves_the_way_to_one_is_said(
    project: Project, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    _, err = told(capsys, *arguments, code=1)
    assert err.startswith("STORE_UNAVAILABLE")
    assert "riverrun serve" in err


def test_watch_shows_what_changed(
    store: DuckStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def look(_: float) -> None:
        """Between two looks: a row comes in after the second; the fourth is the last."""
        nonlocal looks
        looks += 1
        if looks == 2:
            store._connection.execute("insert into houses values ('h3', 'Elm', null, now())")
        if looks == 4:
            raise KeyboardInterrupt

    # Not the module's own: other threads of this process sleep as well.
    monkeypatch.setattr("riverrun.cli.query.time", SimpleNamespace(sleep=look))
    out, _ = told(capsys, "query", "select count(*) as n from houses", "--watch", "--format", "csv", code=130)
    assert out == "n\n3\nn\n4\n"


def test_tables(store: DuckStore, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = told(capsys, "tables")
    assert out.splitlines()[0].split() == ["TABLE", "ROWS", "NEWEST", "UPDATED", "LAG", "SIZE", "STATE"]
    assert out.splitlines()[1].split()[:2] == ["house_load", "30"]
    found = json.loads(told(capsys, "tables", "--json")[0])
    assert found[0]["table"] == "house_load"
    assert json.loads(told(capsys, "tables", "list", "--json")[0]) == found


def test_one_table(store: DuckStore, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = told(capsys, "tables", "show", "house_load")
    assert out.splitlines()[1].split() == ["minute", "timestamp", "key,", "time"]
    assert "follows the topic house_load; 30 rows; following; next offsets 0@7, 1@9" in err
    assert json.loads(told(capsys, "tables", "show", "houses", "--json")[0])["upserts"] is True
    assert "Did you mean houses?" in told(capsys, "tables", "show", "house", code=2)[1]


def test_removing_asks_first(store: DuckStore, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = told(capsys, "tables", "remove", "houses", code=2)
    assert "houses: 3 rows" in err
    assert "houses" in store.tables
    told(capsys, "tables", "remove", "houses", "--yes")
    assert "houses" not in store.tables


def test_a_copy_of_the_tables_opens_in_duckdb_itself(
    store: DuckStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, err = told(capsys, "tables", "snapshot", "copy.duckdb")
    assert "copy.duckdb: house_load, houses, readings; " in err
    with duckdb.connect("copy.duckdb", read_only=True) as copy:
        assert copy.execute("select count(*), sum(load_kw) from house_load").fetchone() == (30, 217.5)
    before = (tmp_path / "copy.duckdb").read_bytes()
    assert "say --force" in told(capsys, "tables", "snapshot", "copy.duckdb", code=2)[1]
    assert (tmp_path / "copy.duckdb").read_bytes() == before
    told(capsys, "tables", "remove", "houses", "--yes")
    told(capsys, "tables", "snapshot", "copy.duckdb", "--force")
    with duckdb.connect("copy.duckdb", read_only=True) as copy:
        assert [each[0] for each in copy.execute("show tables").fetchall()] == ["house_load", "readings"]
    assert not list(tmp_path.glob("*.part"))


def test_a_copy_of_tables_that_nobody_serves(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = store_folder(project) / "meters"
    with EmbeddedStore(folder, Connection(KafkaSettings()), StoreSettings(), follow=False) as made:
        made.apply([HOUSES_TABLE])
    Path("copy.duckdb").write_text("of yesterday")
    told(capsys, "tables", "snapshot", "copy.duckdb", "--force")
    with duckdb.connect("copy.duckdb", read_only=True) as copy:
        assert [each[0] for each in copy.execute("show tables").fetchall()] == ["houses"]
    before = Path("copy.duckdb").read_bytes()
    monkeypatch.setattr(EmbeddedStore, "snapshot", Store.snapshot)
    told(capsys, "tables", "snapshot", "copy.duckdb", "--force", code=1)
    assert Path("copy.duckdb").read_bytes() == before


def test_what_a_copy_cannot_be(
    store: DuckStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "There is no folder nowhere" in told(capsys, "tables", "snapshot", "nowhere/copy.duckdb", code=2)[1]
    monkeypatch.setattr(DuckStore, "snapshot", Store.snapshot)
    _, err = told(capsys, "tables", "snapshot", "copy.duckdb", code=1)
    assert "Only the embedded store gives a copy of its tables" in err
    assert not Path("copy.duckdb").exists()


def test_python_asks_the_same(store: DuckStore) -> None:
    from riverrun import App

    rows = App("meters").query(HOUSES)
    assert next(iter(rows)) == {"house_id": "h0", "street": "Main"}
    assert not rows.more


def test_interrupting_ends_the_question(
    store: DuckStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from riverrun.store.client import StoreClient

    asked = StoreClient.query
    cancelled: list[str] = []

    def interrupted(self: StoreClient, sql: str, limits: object, *, name: str) -> None:
        thread = threading.Thread(target=lambda: _ignore(asked, self, sql, name))
        thread.start()
        deadline = time.monotonic() + 30
        while name not in store._running and time.monotonic() < deadline:
            time.sleep(0.01)
        cancelled.append(name)
        raise KeyboardInterrupt

    monkeypatch.setattr(StoreClient, "query", interrupted)
    told(capsys, "query", "select sum(a.x*b.x) from range(100000) a(x), range(100000) b(x)", code=130)
    deadline = time.monotonic() + 30
    while cancelled[0] in store._running:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _ignore(ask: object, *arguments: object) -> None:
    from riverrun.errors import RiverrunError

    client, sql, name = arguments
    try:
        ask(client, sql, name=name)  # type: ignore[operator]
    except RiverrunError:
        return
