"""What `riverrun run` says of its store."""

import pytest

import riverrun as rr
from riverrun.config.serve_state import StoreEndpoint
from riverrun.runtime import store_supervisor
from riverrun.runtime.store_supervisor import FailingTableWatch, pages_of
from riverrun.store.contract import TableHealth, TableStatus
from riverrun.store.server import StoreServer
from support.cluster import wait_for
from support.duck_store import DuckStore


def test_the_dashboard_comes_first_where_there_is_one() -> None:
    app = rr.App("meters")
    serving = StoreEndpoint(1, "http://127.0.0.1:8480", "meters", "embedded")
    assert [name for name, _ in pages_of(app, serving)] == ["Tables", "Pipeline"]
    app.dashboard(rr.number("Load", "select 1"))
    assert pages_of(app, serving)[0] == ("Dashboard", "http://127.0.0.1:8480/")
    others = StoreEndpoint(1, "http://127.0.0.1:8480", "meters", "embedded", "https://box:8443")
    assert pages_of(app, others)[-1] == ("For others", "https://box:8443/")


class BrokenStore(DuckStore):
    """A store of one table that stands as it is told to."""

    state: TableHealth = "failing"

    def table_statuses(self) -> list[TableStatus]:
        return [TableStatus("houses", 3, self.state, "The column phone cannot change its type")]


def test_a_table_that_takes_no_more_rows_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_supervisor, "TABLES_SECONDS", 0.01)
    notices: list[str] = []
    failing = FailingTableWatch(notices.append)
    with BrokenStore() as store, StoreServer(store) as server:
        serving = StoreEndpoint(1, server.start(), "meters", "embedded")

        def told(count: int) -> bool:
            failing.poll(serving)
            return len(notices) == count

        wait_for(lambda: told(1), 20, "nothing was said")
        assert notices[0].startswith("the table houses takes no more rows")
        assert "phone cannot change its type" in notices[0]
        failing.poll(serving)
        store.state = "following"
        wait_for(lambda: told(2), 20, "nothing was said")
        assert notices[1] == "the table houses follows its topic again"
    failing.poll(None)
