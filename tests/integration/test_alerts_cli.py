"""`riverrun alerts` on a real broker, over what an engine has judged and sent there."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from riverrun.alerts.engine import AlertEngine
from riverrun.alerts.gateway.server import Gateway as SmsGateway
from riverrun.alerts.kafka_log import KafkaAlertLog, publish_changes, publish_watched_tables, read_alert_state
from riverrun.alerts.rules import build_app_rules
from riverrun.alerts.state_topic import (
    AlertProcessLease,
    ChannelHealthRecord,
    Silence,
    alerts_topic_name,
    encode_upsert,
)
from riverrun.app import load_app
from riverrun.cli.main import run
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.producer.producer import Producer
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.table import Column, TableSpec
from riverrun.testing import KafkaUnderTest
from support.watching import Gateway

pytestmark = pytest.mark.kafka

APP = """
from datetime import datetime
import riverrun as rr

print("the pipeline file says this")
app = rr.App("NAME")

class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float
    phone: str
    at: datetime = rr.event_time()

app.topic("TOPIC", Reading, partitions=2)
app.alert(
    "overload", "TOPIC", when="load_kw > 2.0", clear="load_kw < 1.8", to="phone", severity="critical",
    text="House {house_id} draws {load_kw:.1f} kW.", resolved="House {house_id} is back at {load_kw:.1f} kW.",
)
app.alert("spike", "TOPIC", when="load_kw > 9", to=["+353861234567"], text="{house_id}", channel="ops")
app.alert("rest", "TOPIC", when="load_kw < 0", to="phone", text="{house_id}")
"""
HOSTILE = "h3\x1b[31m\u202e"
COLUMNS = (
    Column("house_id", "text", ("house_id",)),
    Column("load_kw", "double", ("load_kw",)),
    Column("phone", "text", ("phone",)),
    Column("at", "timestamp", ("at",)),
)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Town:
    """A project whose alerts were judged live: h1 fired twice and fires still, h2 is over; h3, whose name is hostile, fires
    and has no phone."""

    def __init__(self, kafka: KafkaUnderTest, root: Path) -> None:
        self.connection = kafka.connection
        self.root = root
        self.name = f"town-{secrets.token_hex(4)}"
        self.topic = f"{self.name}.readings"
        self.admin = Admin(self.connection)
        self.admin.create_topic(self.topic, partitions=2, replicas=0, config={})
        (root / "app.py").write_text(APP.replace("NAME", self.name).replace("TOPIC", self.topic))
        (root / "riverrun.toml").write_text(
            f'[project]\napp = "app.py"\n[kafka]\nbootstrap_servers = "{kafka.bootstrap_servers}"\n'
        )
        self.gateway = Gateway()

    def live(self, rounds: Sequence[dict[str, float]]) -> None:
        """Judge these as they come, and send what comes of it."""
        table = TableSpec(self.topic, self.topic, COLUMNS, ("house_id",), time="at")
        publish_watched_tables(self.connection, self.name, {self.topic: table})
        rules, wrong = build_app_rules(load_app(self.root / "app.py"), {self.topic: table})
        assert wrong == []
        count = sum(map(len, rounds))
        with KafkaAlertLog(self.connection, self.name, [self.topic]) as log:
            engine = AlertEngine(rules, log)
            for round_ in rounds:
                self._send(round_)
            deadline = time.monotonic() + 30
            while engine.evaluator.counts.rows < count or engine.notifier.changed:
                assert time.monotonic() < deadline
                engine.step()
                self.gateway.send_due(engine, now_ms())

    def _send(self, loads: dict[str, float]) -> None:
        with Producer(self.connection) as producer:
            for number, (house, load) in enumerate(loads.items()):
                phone = "" if house == HOSTILE else f"+35385012345{number}"
                value = {"house_id": house, "load_kw": load, "phone": phone, "at": datetime.now(UTC).isoformat()}
                producer.send(self.topic, json.dumps(value), key=house, partition=number % 2)

    def say(self, *records: Any) -> None:
        publish_changes(self.connection, self.name, [encode_upsert(record) for record in records])

    def end(self) -> int:
        """Where the ledger ends."""
        place = TopicPartition(alerts_topic_name(self.name), 0)
        return self.admin.offsets([place], "latest")[place]


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Terminal:
    """Commands in the town's folder."""

    def __init__(self, town: Town, capsys: pytest.CaptureFixture[str]) -> None:
        self.town = town
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Done:
        self._capsys.readouterr()
        code = run(["alerts", *arguments])
        said = self._capsys.readouterr()
        assert "INTERNAL" not in said.err, said.err
        return Done(code, said.out, said.err)

    def fine(self, *arguments: str) -> Done:
        done = self(*arguments)
        assert done.code == 0, done.err
        return done


@pytest.fixture(scope="module")
def town(kafka: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Town:
    town = Town(kafka, tmp_path_factory.mktemp("town"))
    town.live([{"h1": 3.0, "h2": 2.5, HOSTILE: 9.5}, {"h1": 1.0, "h2": 1.9, HOSTILE: 3.0}, {"h1": 4.0, "h2": 1.0}])
    return town


@pytest.fixture
def alerts(town: Town, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    for name in [each for each in os.environ if each.startswith("RIVERRUN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(town.root)
    return Terminal(town, capsys)


def test_what_fires_is_listed(alerts: Terminal) -> None:
    done = alerts.fine()
    heading, *lines = done.out.splitlines()
    assert heading.split() == ["SEVERITY", "ALERT", "KEY", "SINCE", "STATE", "TOLD", "TEXT"]
    assert [line.split()[:3] for line in lines] == [
        ["critical", "overload", "h1"],
        ["critical", "overload", r"h3\x1b[31m\u202e"],
    ]
    assert "House h1 draws 4.0 kW." in done.out
    assert "refused: nobody to send it to: phone is empty" in done.out
    assert "\x1b" not in done.out
    assert "\u202e" not in done.out
    assert "The alert process has never run, and nobody is told." in done.err
    assert "the pipeline file says this" in done.err
    rows = alerts.fine("--json").json
    assert Counter((row["alert"], row["key"], row["state"]) for row in rows) == {
        ("overload", "h1", "firing"): 1, ("overload", HOSTILE, "firing"): 1,
    }  # fmt: skip
    assert next(row for row in rows if row["key"] == "h1")["number"] == 2


def test_history_is_listed_too(alerts: Terminal) -> None:
    rows = alerts.fine("list", "--all", "--json").json
    assert Counter((row["alert"], row["key"], row["state"]) for row in rows) == {
        ("overload", "h1", "firing"): 1, ("overload", "h1", "resolved"): 1, ("overload", "h2", "resolved"): 1,
        ("overload", HOSTILE, "firing"): 1, ("spike", HOSTILE, "resolved"): 1,
    }  # fmt: skip
    assert rows == alerts.fine("list", "--since", "1 hour", "--json").json
    assert [row["told"] for row in rows if row["key"] == "h2"] == ["sent; resolved: sent"]
    assert alerts.fine("list", "--since", "2999-01-01", "--json").json == []
    assert [each["key"] for each in alerts.fine("list", "--all", "--key", "h1", "--json").json] == ["h1", "h1"]
    assert [each["alert"] for each in alerts.fine("list", "--all", "--rule", "spike", "--json").json] == ["spike"]
    cut = alerts.fine("list", "--all", "--limit", "2")
    assert len(cut.out.splitlines()) == 3
    assert "The newest 2 of 5 cases" in cut.err
    assert "Nothing fires." in alerts.fine("list", "--alert", "rest").err


def test_why_it_fired_is_shown(alerts: Terminal) -> None:
    done = alerts.fine("show", "overload", "h1")
    assert done.out.startswith("overload h1, episode 2: firing, critical\n")
    for part in ("load_kw > 2.0, in", f"{alerts.town.topic}[0]@4", "load_kw   4.0", "sms to +353850123450: sent"):
        assert part in done.out
    assert "1 other episode remembered" in done.out
    first = alerts.fine("show", "overload", "h1", "--number", "1", "--json").json
    assert (first["state"], first["row"]["load_kw"], first["place"]) == ("resolved", 3.0, f"{alerts.town.topic}[0]@0")
    assert [(each["kind"], each["state"]) for each in first["messages"]] == [("fired", "sent"), ("resolved", "sent")]
    hostile = alerts.fine("show", "overload", HOSTILE).out
    assert "\x1b" not in hostile
    assert alerts.fine("show", "overload", r"h3\x1b[31m\u202e").out == hostile
    assert ", episode 1: resolved, warning" in alerts.fine("show", "spike", HOSTILE).out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["show", "overlod", "h1"], "Did you mean overload?"),
        (["show", "overload", "h11"], "Did you mean h1?"),
        (["show", "overload"], "overload fires by key, and none is named"),
        (["show", "overload", "h1", "--number", "9"], "has no episode 9. Expected 1, 2"),
        (["show", "rest", "h1"], "rest has not fired"),
        (["list", "--alert", "spikes"], "Did you mean spike?"),
        (["ack", "overload", "h2"], "overload h2 does not fire: it was over at"),
        (["silence", "--alert", "spikes", "--for", "1h"], "Did you mean spike?"),
        (["silence", "--for", "1h"], "Say --yes"),
        (["test", "spikes"], "Did you mean spike?"),
        (["test", "overload", "--row", '{"hous_id": "h1"}'], "Did you mean house_id?"),
        (["dry-run", "--alert", "spikes"], "Did you mean spike?"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_done(alerts: Terminal, arguments: list[str], told: str) -> None:
    before = alerts.town.end()
    done = alerts(*arguments)
    assert (done.code, told in done.err) == (2, True), done.err
    assert alerts.town.end() == before


def test_acknowledging_is_kept_once(alerts: Terminal) -> None:
    assert "overload h1: acknowledged." in alerts.fine("ack", "overload", "h1", "--by", "ann").err
    before = alerts.town.end()
    again = alerts.fine("ack", "overload", "h1", "--json")
    assert "acknowledged already, by ann" in again.err
    assert (again.json["state"], again.json["acknowledged_by"]) == ("acknowledged", "ann")
    assert alerts.town.end() == before
    assert "by ann" in alerts.fine("show", "overload", "h1").out


def test_a_silence_begins_is_seen_and_ends(alerts: Terminal) -> None:
    assert "Nothing is silenced" in alerts("unsilence", "x").err
    done = alerts.fine(
        "silence", "--alert", "overload", "--key", "h22", "--for", "2 hours", "--why", "re\x1bwired", "--by", "ann", "--json"
    )  # fmt: skip
    assert "Nothing was seen of h22 yet. Did you mean h2?" in done.err
    [kept_] = read_alert_state(alerts.town.connection, alerts.town.name).silences.values()
    assert kept_.id == done.json["id"]
    assert (kept_.rule, kept_.key, kept_.by) == ("overload", "h22", "ann")
    assert kept_.until - kept_.begun == 7_200_000
    shown = alerts.fine("silences").out
    assert "ann" in shown
    assert "\x1b" not in shown
    assert "Did you mean" in alerts("unsilence", f"{kept_.id}0").err
    alerts.fine("unsilence", kept_.id)
    assert "Nothing is silenced." in alerts.fine("silences").err
    everything = alerts.fine("silence", "--for", "1 hour", "--yes", "--json").json
    assert "Everything is silenced until" in alerts.fine().err
    assert {each["state"] for each in alerts.fine("list", "--key", HOSTILE, "--json").json} == {"silenced"}
    alerts.fine("unsilence", everything["id"])
    alerts.town.say(Silence(id="old", until=1))
    assert [each["id"] for each in alerts.fine("silences", "--all", "--json").json] == ["old"]
    assert alerts.fine("silences", "--json").json == []


def test_what_is_wrong_with_alerts_is_said_first(alerts: Terminal) -> None:
    here = socket.gethostname()
    alerts.town.say(AlertProcessLease(begun=now_ms(), pid=os.getpid(), host=here), ChannelHealthRecord(name="sms"))
    assert "nobody is told" not in alerts.fine().err
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    alerts.town.say(AlertProcessLease(begun=now_ms(), pid=gone.pid, host=here))
    alerts.town.say(
        ChannelHealthRecord(name="sms", destination="a.example", problem="the key is refused", since=now_ms())
    )
    told = alerts.fine().err
    assert f"The alert process (pid {gone.pid}) is gone" in told
    assert "The channel sms (a.example) is down since" in told
    alerts.town.say(AlertProcessLease(begun=now_ms(), pid=gone.pid, host="another"), ChannelHealthRecord(name="sms"))
    assert "told" not in alerts.fine().err


def test_a_test_is_shown_and_sent_once_outside_the_ledger(alerts: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    town = alerts.town
    shown = alerts("test", "spike")
    assert shown.code == 1
    assert "alerts.channels.ops is not set" in shown.out
    with SmsGateway(delivery_ms=0) as gateway:
        monkeypatch.setenv("RIVERRUN_ALERTS_SMS_URL", gateway.address)
        monkeypatch.setenv("RIVERRUN_ALERTS_SMS_KEY", gateway.key.reveal())
        monkeypatch.setenv("RIVERRUN_ALERTS_SMS_SENDER", "riverrun")
        before = town.end()
        shown = alerts.fine("test", "overload")
        assert "Nothing was sent" in shown.err
        found = alerts.fine("test", "overload", "--json").json
        assert found["place"].startswith(f"{town.topic}[")
        assert found["row"]["house_id"] in found["text"]
        [message] = found["messages"]
        assert (message["channel"], message["parts"], message["sent"]) == ("sms", 1, None)
        assert "Say --yes" in alerts("test", "overload", "--send").err
        row = '{"house_id": "h9", "load_kw": 7}'
        assert "the row names nobody" in alerts("test", "overload", "--row", row).out
        wrong = alerts("test", "overload", "--row", row, "--to", "12", "--send")
        assert (wrong.code, "cannot get an SMS" in wrong.out) == (1, True)
        assert gateway.store.requests() == []
        sent = alerts.fine("test", "overload", "--row", row, "--to", "+353861234567", "--send")
        assert "sent      taken as" in sent.out
        assert [each.text for each in gateway.store.newest(10)] == ["TEST: House h9 draws 7.0 kW."]
        assert town.end() == before


def test_a_dry_run_tells_what_was_sent_live(alerts: Terminal) -> None:
    before = alerts.town.end()
    found = alerts.fine("dry-run", "--json").json
    ledger = read_alert_state(alerts.town.connection, alerts.town.name)
    live = Counter(
        (ledger.notifications[id_].rule, ledger.notifications[id_].kind) for id_ in alerts.town.gateway.taken
    )
    assert {(each["alert"], each["kind"]): each["messages"] for each in found["sent"]} == live
    assert found["messages"] == len(alerts.town.gateway.taken) == 6
    assert found["unsent"] == [{"alert": "overload", "not_sent_because": "nobody to send it to", "messages": 1}]
    assert (found["records"], found["misfits"], found["waiting"]) == (8, 0, 0)
    assert alerts.town.end() == before


def test_a_dry_run_speaks(alerts: Terminal) -> None:
    done = alerts.fine("dry-run", "--since", "1 hour")
    assert "overload would have sent 5 messages between" in done.err
    assert "rest would have sent nothing" in done.err
    assert "8 records judged in" in done.err
    assert done.out.split()[:4] == ["ALERT", "DAY", "KIND", "MESSAGES"]
    assert "nobody to send it to" in done.out
    only = alerts.fine("dry-run", "--alert", "spike")
    assert "overload" not in only.err + only.out
    assert "There is no history" in alerts.fine("dry-run", "--until", "2001-01-01").err


def test_before_the_pipeline_has_run_the_way_is_said(
    alerts: Terminal, kafka: KafkaUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Town(kafka, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert "Nothing fires." in alerts.fine().err
    for command in (["dry-run"], ["test", "overload"]):
        done = alerts(*command)
        assert done.code == 1
        assert "Start the pipeline once: `riverrun run`" in done.err
    alerts.fine("silence", "--alert", "overload", "--for", "1 hour")
    assert len(alerts.fine("silences", "--json").json) == 1
