"""What `riverrun run` asks of Kafka Connect."""

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import riverrun
from riverrun.cli import connect_reconciler
from riverrun.cli.connect_reconciler import ConnectReconciler, has_undeclared_connectors, plugins_of, replication_of
from riverrun.config import Project, Secret, load
from riverrun.connectors.kafka_connect import Vault
from riverrun.connectors.kafka_connect.state import ConnectorState, TaskState, root_cause
from riverrun.connectors.postgres.debezium import FAILED_CHANGES

if TYPE_CHECKING:
    from riverrun.model.topic import Topic


def test_topics_that_connect_makes_have_as_many_copies_as_the_cluster_says(tmp_path: Path) -> None:
    """On a cluster that is attached, the setting kafka.brokers says nothing."""
    (tmp_path / "riverrun.toml").write_text('[kafka]\nbootstrap_servers = "kafka.example:9092"\n')
    assert replication_of(load(Project(tmp_path))) == -1
    (tmp_path / "riverrun.toml").write_text("[kafka]\nbrokers = 2\nreplication = 2\n")
    assert replication_of(load(Project(tmp_path))) == 2


def test_the_sinks_plugin_is_fetched_for_who_has_a_sink() -> None:
    app = riverrun.App("shop")
    app.table("houses", riverrun.postgres("houses", columns="id int"), key="id")
    assert plugins_of(app) == ["debezium-postgres"]
    loads: Topic[Any] = app.topic("loads")
    app.sink(loads, riverrun.jdbc("loads", key="id"))
    assert plugins_of(app) == ["debezium-postgres", "debezium-jdbc"]


def test_connect_is_started_once_more_for_connectors_that_were_left_behind(tmp_path: Path) -> None:
    app, settings = riverrun.App("shop"), load(Project(tmp_path))
    assert not has_undeclared_connectors(settings, app)
    Vault.of(settings).hide("shop.postgres", {"database.password": Secret("x")})
    assert has_undeclared_connectors(settings, app)
    Vault.of(settings).forget("shop.postgres")
    assert not has_undeclared_connectors(settings, app)


RESELECT = "reselect.reselect.error.handling.mode"
GONE = (
    "org.apache.kafka.connect.errors.ConnectException: An exception occurred in the change event producer.\n"
    "Caused by: org.apache.kafka.connect.errors.ConnectException: Error while processing event at offset "
    "{transaction_id=null, lsn_proc=900, messageType=UPDATE, lsn_commit=800, lsn=1000, txId=7, ts_usec=5}\n"
    "Caused by: io.debezium.DebeziumException: Failed to find row in table public.notes with key Struct{id=1}\n"
)
AWAY = GONE.replace(
    "Failed to find row in table public.notes with key Struct{id=1}", "This connection has been closed."
)


class FakeConnect:
    """A Connect with one connector that has failed; what it is told is in `done`."""

    def __init__(self, trace: str) -> None:
        self._trace = trace
        self._lsns = iter([900, 900, 1001])
        self.done: list[str] = []

    def states(self) -> dict[str, ConnectorState]:
        task = TaskState(0, "failed", "w", root_cause(self._trace))
        return {"shop.postgres": ConnectorState("shop.postgres", "source", "running", "w", (task,))}

    def trace(self, _: str) -> str:
        return self._trace

    def config(self, _: str) -> dict[str, str]:
        return {RESELECT: "fail", FAILED_CHANGES: "fail"}

    def put(self, _: str, config: dict[str, str], *, checked: bool) -> None:
        assert config[RESELECT] == "fail", "else there are placeholders"
        assert checked
        self.done.append(config[FAILED_CHANGES])

    def offsets(self, _: str) -> list[dict[str, Any]]:
        lsn = next(self._lsns)
        self.done.append(f"at {lsn}")
        return [{"partition": {"server": "shop"}, "offset": {"lsn": lsn, "lsn_proc": lsn}}]

    def restart(self, _: str) -> None:
        self.done.append("restart")


def looked_after(trace: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    monkeypatch.setattr(connect_reconciler, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(connect_reconciler, "PASSED_SECONDS", 0.0)
    monkeypatch.setattr(connect_reconciler, "RESTART_BACKOFF_SECONDS", (0.0,))
    client: Any = FakeConnect(trace)
    vault: Any = SimpleNamespace()
    beside = ConnectReconciler(client, vault, "shop", {"shop.postgres": {}}, lambda _: None)
    beside._watch()
    return client.done, beside._messages


def test_a_change_whose_row_is_gone_is_left_out_and_the_next_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connector wrote placeholders for a minute instead, for every value that could not be read."""
    done, said = looked_after(GONE, monkeypatch)
    assert done == ["warn", "at 900", "at 900", "at 1001", "fail"]
    assert "(at 1000 in the database's log) is left out, and the delete follows" in said[0]


@pytest.mark.parametrize(
    "trace", [AWAY, "io.debezium.DebeziumException: Failed to find row in table public.notes with key Struct{id=1}\n"]
)
def test_every_other_failure_stays_one(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is restarted has the value when it is back; what names no place cannot be left out."""
    done, said = looked_after(trace, monkeypatch)
    assert done == ["restart"]
    assert "failed" in said[0]
