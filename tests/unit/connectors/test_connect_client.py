"""Connect's REST API as the client reads it, and connectors kept equal, against a Connect of a few lines."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from riverrun.cli.connect_reconciler import ConnectReconciler
from riverrun.config import ConnectSettings, Project, Secret
from riverrun.connectors.kafka_connect import (
    ConnectClient,
    Vault,
    dead_letter_config,
    reconcile_connectors,
    wait_until_running,
)
from riverrun.connectors.kafka_connect.reconcile import OWNER_PROPERTY
from riverrun.errors import (
    ConnectError,
    ConnectFailedError,
    ConnectorNotFoundError,
    ConnectRefusedError,
    ConnectUnavailableError,
    UsageError,
)

SETTINGS = ConnectSettings(url="http://connect.test/", username="u", password=Secret("p"), request_timeout_seconds=1)


class Fake:
    """What Connect answers, kept in dictionaries."""

    def __init__(self) -> None:
        self.configs: dict[str, dict[str, str]] = {}
        self.states: dict[str, str] = {}
        self.seen: list[tuple[str, str]] = []
        self.wrong: dict[str, list[str]] = {}
        self.conflicts = 0
        # Those that do not stop, and those whose offsets cannot be reset.
        self.stuck: set[str] = set()
        self.broken: set[str] = set()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.seen.append((request.method, path))
        if self.conflicts:
            self.conflicts -= 1
            return httpx.Response(409, json={"error_code": 409, "message": "rebalance"})
        if path.endswith("/config/validate"):
            config = json.loads(request.content)
            configs = [
                {"value": {"name": key, "errors": errors}} for key, errors in self.wrong.items() if key in config
            ]
            return httpx.Response(200, json={"configs": configs})
        if path == "/connector-plugins":
            return httpx.Response(200, json=[{"class": "x.Source", "type": "source", "version": "1"}])
        if path == "/connectors":
            return httpx.Response(200, json={name: self._about(name) for name in self.configs})
        _, _, name, *rest = path.split("/")
        if name not in self.configs and rest != ["config"]:
            return httpx.Response(404, json={"message": f"Connector {name} not found"})
        if (request.method, rest) == ("PUT", ["config"]):
            self.configs[name] = json.loads(request.content)
            self.states.setdefault(name, "RUNNING")
        elif (request.method, rest) == ("DELETE", []):
            del self.configs[name]
        elif rest == ["stop"]:
            self.states[name] = "STOPPED" if name not in self.stuck else self.states[name]
        elif rest == ["offsets"] and name in self.broken:
            return httpx.Response(500, json={"message": "no leader"})
        elif rest == ["restart"]:
            self.states[name] = "RUNNING"
        elif rest == ["status"]:
            return httpx.Response(200, json=self._about(name)["status"])
        return httpx.Response(200, json={})

    def _about(self, name: str) -> dict[str, Any]:
        state = self.states[name]
        trace = "a.BException: the database does not answer" if state == "FAILED" else ""
        tasks = [{"id": 0, "state": state, "trace": trace}]
        own = "RUNNING" if state == "FAILED" else state
        status = {"name": name, "type": "source", "connector": {"state": own}, "tasks": tasks}
        return {"status": status, "info": {"config": self.configs[name]}}


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def client(fake: Fake) -> ConnectClient:
    return ConnectClient(SETTINGS, transport=httpx.MockTransport(fake), sleep=lambda _: None)


@pytest.fixture
def keep(client: ConnectClient, tmp_path: Path) -> Callable[..., Any]:
    vault = Vault(tmp_path / "secrets")
    return lambda wanted, **more: reconcile_connectors(client, vault, "shop", wanted, seconds=0.5, **more)


ONE = {"connector.class": "x.Source", "topic": "t"}


def test_a_worker_that_shares_out_its_work_is_asked_again(fake: Fake, client: ConnectClient) -> None:
    fake.conflicts = 3
    client.put("a", ONE)
    assert fake.configs["a"] == {**ONE, "name": "a"}


def test_one_that_never_ends_it_is_said(fake: Fake, client: ConnectClient) -> None:
    fake.conflicts = 10**9
    with pytest.raises(ConnectUnavailableError, match="not ready"):
        client.names()


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        (httpx.Response(401), ConnectError, "connect.password"),
        (httpx.Response(503, text="starting"), ConnectUnavailableError, "not ready"),
        (httpx.Response(500, json={"message": "went wrong"}), ConnectError, "went wrong"),
        (httpx.Response(502, text="<html>"), ConnectUnavailableError, "not ready"),
    ],
)
def test_what_it_says_instead(answer: httpx.Response, error: type[ConnectError], told: str) -> None:
    client = ConnectClient(SETTINGS, transport=httpx.MockTransport(lambda _: answer))
    with pytest.raises(error, match=told):
        client.plugins()


def test_it_logs_in_and_names_are_escaped() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={})

    client = ConnectClient(SETTINGS, transport=httpx.MockTransport(answer))
    client.pause("a/../b c?")
    assert seen[0].headers["authorization"].startswith("Basic ")
    assert seen[0].url.raw_path == b"/connectors/a%2F..%2Fb%20c%3F/pause"
    with pytest.raises(UsageError):
        client.pause("")


def test_a_connector_that_is_not_there(fake: Fake, client: ConnectClient) -> None:
    client.put("there", ONE)
    with pytest.raises(ConnectorNotFoundError, match="connectors: there"):
        client.resume("gone")
    assert not client.delete("gone")


def test_all_problems_of_a_configuration(fake: Fake, client: ConnectClient) -> None:
    fake.wrong = {"topic": ["Missing required configuration", "It is wrong"], "name": ["too long"]}
    with pytest.raises(ConnectRefusedError) as caught:
        client.put("a", ONE)
    assert caught.value.problems == (
        "a: topic: Missing required configuration",
        "a: topic: It is wrong",
        "a: name: too long",
    )
    assert fake.configs == {}


def test_no_connect_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ConnectUnavailableError, match="riverrun up --connect"):
        ConnectClient.of(ConnectSettings(), Project(tmp_path))


# --- kept equal ---


def test_what_differs_is_changed_and_what_is_gone_is_removed(fake: Fake, keep: Callable[..., Any]) -> None:
    fake.configs["shop.by-hand"] = {"topic": "x"}
    fake.configs["shop.eu.one"] = {OWNER_PROPERTY: "shop.eu"}
    fake.states |= {"shop.by-hand": "RUNNING", "shop.eu.one": "RUNNING"}
    assert keep({"shop.one": ONE, "shop.two": ONE}).created == ("shop.one", "shop.two")
    assert fake.configs["shop.one"] == {**ONE, "name": "shop.one", OWNER_PROPERTY: "shop"}
    fake.seen.clear()
    assert keep({"shop.one": ONE, "shop.two": ONE}).unchanged == ("shop.one", "shop.two")
    assert {method for method, _ in fake.seen} == {"GET"}
    removed: list[Mapping[str, str]] = []
    fake.seen.clear()
    done = keep({"shop.one": {**ONE, "topic": "u"}}, on_removed=removed.append)
    assert (done.updated, done.removed) == (("shop.one",), ("shop.two",))
    assert [each["name"] for each in removed] == ["shop.two"]
    # A source of the same name would else skip what happens until it is declared again.
    assert ("DELETE", "/connectors/shop.two/offsets") in fake.seen
    assert keep({}).removed == ("shop.one",)
    assert set(fake.configs) == {"shop.by-hand", "shop.eu.one"}


def test_nothing_is_changed_when_anything_is_wrong(fake: Fake, keep: Callable[..., Any]) -> None:
    keep({"shop.one": ONE, "shop.two": ONE})
    before = dict(fake.configs)
    fake.wrong = {"bad": ["no"]}
    with pytest.raises(ConnectRefusedError) as caught:
        keep({"shop.one": {**ONE, "bad": "1"}, "shop.three": {**ONE, "bad": "1"}})
    assert len(caught.value.problems) == 2
    assert fake.configs == before


def test_a_secret_that_changed_changes_the_connector(fake: Fake, keep: Callable[..., Any], tmp_path: Path) -> None:
    assert keep({"shop.one": {**ONE, "password": Secret("a")}}).created
    assert keep({"shop.one": {**ONE, "password": Secret("a")}}).unchanged
    assert keep({"shop.one": {**ONE, "password": Secret("b")}}).updated
    assert "b" not in fake.configs["shop.one"]["password"].split(":")
    assert [each.read_text() for each in (tmp_path / "secrets").iterdir()] == ["b"]
    keep({})
    assert list((tmp_path / "secrets").iterdir()) == []


def test_one_that_failed_is_started_again_and_one_that_rests_is_left(fake: Fake, keep: Callable[..., Any]) -> None:
    keep({"shop.one": ONE, "shop.two": ONE})
    fake.states |= {"shop.one": "FAILED", "shop.two": "PAUSED"}
    done = keep({"shop.one": ONE, "shop.two": ONE})
    assert (done.restarted, done.paused) == (("shop.one",), ("shop.two",))


def test_one_that_fails_says_why(fake: Fake, keep: Callable[..., Any], client: ConnectClient) -> None:
    fake.states["shop.one"] = "FAILED"
    with pytest.raises(ConnectFailedError, match="the database does not answer"):
        keep({"shop.one": ONE})
    fake.states["shop.one"] = "UNASSIGNED"
    with pytest.raises(ConnectFailedError, match="did not run after"):
        wait_until_running(client, ["shop.one"], 0.1)
    with pytest.raises(ConnectFailedError, match="not known to Connect"):
        wait_until_running(client, ["nobody"], 0.1)


def test_a_removal_that_is_cut_off_is_done_by_the_next_run(
    fake: Fake, keep: Callable[..., Any], tmp_path: Path
) -> None:
    """Until its slot is dropped, Connect has it and its secrets are there: who comes next knows all that is needed."""
    keep({"shop.postgres": {**ONE, "slot.name": "s", "password": Secret("a")}})

    def cut_off(config: Mapping[str, str]) -> None:
        assert config["slot.name"] == "s"
        assert fake.states["shop.postgres"] == "STOPPED", "a slot in use cannot be dropped"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep({}, on_removed=cut_off)
    assert list((tmp_path / "secrets").iterdir())
    removed: list[Mapping[str, str]] = []
    assert keep({}, on_removed=removed.append).removed == ("shop.postgres",)
    assert [each["slot.name"] for each in removed] == ["s"]
    assert list((tmp_path / "secrets").iterdir()) == []


def test_secrets_of_connectors_that_connect_does_not_have_are_forgotten(
    fake: Fake, keep: Callable[..., Any], tmp_path: Path
) -> None:
    """They would start Connect at every run."""
    vault = Vault(tmp_path / "secrets")
    keep({"shop.postgres": {**ONE, "password": Secret("a")}})
    vault.hide("shop.jdbc.old", {"password": Secret("b")})
    fake.configs["shop.jdbc.by-hand"] = vault.hide("shop.jdbc.by-hand", {"password": Secret("c")})
    fake.states["shop.jdbc.by-hand"] = "RUNNING"
    vault.hide("other.postgres", {"password": Secret("d")})
    keep({"shop.postgres": {**ONE, "password": Secret("a")}})
    assert vault.connectors("shop") == {"shop.postgres", "shop.jdbc.by-hand"}
    assert vault.connectors("other") == {"other.postgres"}


def test_one_that_cannot_be_removed_does_not_keep_the_declared_ones_from_running(
    fake: Fake, keep: Callable[..., Any]
) -> None:
    keep({"shop.old": ONE})
    fake.stuck.add("shop.old")
    left: list[str] = []
    done = keep({"shop.new": ONE}, on_remove_failed=lambda name, error: left.append(f"{name}: {error}"))
    assert (done.created, done.removed) == (("shop.new",), ())
    assert "shop.old" in fake.configs
    assert left[0].startswith("shop.old: The connector shop.old was not stopped after")
    with pytest.raises(ConnectFailedError, match="was not stopped"):
        keep({"shop.new": ONE})
    fake.stuck.clear()
    assert keep({"shop.new": ONE}).removed == ("shop.old",)


def test_a_run_goes_on_trying_to_remove_one_and_says_it_once(
    fake: Fake, client: ConnectClient, keep: Callable[..., Any], tmp_path: Path
) -> None:
    keep({"shop.old": ONE})
    fake.broken.add("shop.old")
    said: list[str] = []
    beside = ConnectReconciler(client, Vault(tmp_path / "secrets"), "shop", {"shop.new": dict(ONE)}, said.append)
    assert beside._reconcile()
    assert "shop.new" in fake.configs
    assert beside._reconcile()
    fake.broken.clear()
    assert beside._reconcile()
    assert set(fake.configs) == {"shop.new"}
    beside.poll()
    assert said[-1] == "Kafka Connect runs shop.new"
    told = [words for words in said if "could not be removed" in words]
    assert len(told) == 1
    assert "the connector shop.old" in told[0]
    assert "no leader" in told[0]
    # And one that somebody takes away is missed.
    fake.configs.clear()
    for _ in range(5):
        beside._watch()
    beside.poll()
    assert [words for words in said if "does not have the connector shop.new" in words] == [said[-1]]


def test_a_name_of_another_app_is_refused(keep: Callable[..., Any]) -> None:
    with pytest.raises(UsageError):
        keep({"other.one": ONE})


def test_dead_letters_of_a_sink() -> None:
    found = dead_letter_config("orders.dead", 3)
    assert found["errors.tolerance"] == "all"
    assert found["errors.deadletterqueue.topic.name"] == "orders.dead"
    assert found["errors.deadletterqueue.topic.replication.factor"] == "3"
    assert found["errors.deadletterqueue.context.headers.enable"] == "true"
