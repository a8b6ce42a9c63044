"""The alert process on a real broker, with a real gateway: what it tells of itself, what it hears, and what it survives."""

import json
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from starlette.applications import Starlette

from riverrun.alerts.backlog import NOT_STARTED, describe_backlog
from riverrun.alerts.channels.sms import ReportSigner
from riverrun.alerts.delivery_reports import REPORT_PATH, delivery_report_route
from riverrun.alerts.gateway.server import Gateway
from riverrun.alerts.kafka_log import (
    AlertStatePublisher,
    KafkaAlertLog,
    decode_tables,
    publish_watched_tables,
    read_alert_state,
)
from riverrun.alerts.process import AlertProcess, AlertProcessConfig
from riverrun.alerts.state_topic import alerts_topic_name
from riverrun.cluster.loopback import listening_socket
from riverrun.errors import ProducerFencedError, TransactionError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.groups import group_lags
from riverrun.kafka.producer.producer import Producer
from riverrun.testing import KafkaUnderTest
from riverrun.web.server import HttpEndpoint, HttpServer
from support.alerting import wait_for
from support.gateway import channel_to
from support.watching import rule, table

pytestmark = pytest.mark.kafka


class Town:
    """A topic of readings, and processes that send its alerts to a gateway."""

    def __init__(self, kafka: KafkaUnderTest, topic: str, gateway: Gateway, callback: str = "") -> None:
        self.connection = kafka.connection
        self.gateway = gateway
        self.topic = topic
        self.app = f"town-{secrets.token_hex(4)}"
        self.channel = channel_to(gateway, callback_url=callback)
        self.said: list[str] = []
        rules = [rule(over=table(name=topic, topic=topic), clear="load_kw < 1.8")]
        self.duty = AlertProcessConfig(self.app, rules, {"sms": self.channel}, dict)

    def send(self, house: str, load: float) -> None:
        with Producer(self.connection) as producer:
            producer.send(self.topic, self._value(house, load), key=house)

    def _value(self, house: str, load: float) -> str:
        at = datetime.now(UTC).isoformat()
        return json.dumps({"house_id": house, "load_kw": load, "phone": "+353850123456", "at": at})

    def send_in_a_transaction(self, house: str, load: float) -> None:
        with (
            Producer(self.connection, transactional_id=f"{self.app}-source") as producer,
            producer.transaction() as sending,
        ):
            sending.send(self.topic, self._value(house, load), key=house)

    def texts(self) -> list[str]:
        return sorted(each.text for each in self.gateway.store.newest(1000))

    @contextmanager
    def running(self) -> Iterator["Running"]:
        running = Running(AlertProcess(self.connection, self.duty, self.said.append))
        running.start()
        try:
            wait_for(running.process.ready.is_set)
            yield running
        finally:
            running.stop.set()
            running.join(30)
            assert not running.is_alive()


class Running(threading.Thread):
    def __init__(self, process: AlertProcess) -> None:
        super().__init__(daemon=True)
        self.process = process
        self.stop = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.process.run(self.stop)
        except BaseException as error:  # noqa: BLE001  -- for the test
            self.error = error


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway(delivery_ms=0, minute_ms=20) as found:
        yield found


def test_what_it_does_is_in_the_ledger_and_what_was_delivered_too(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str], gateway: Gateway
) -> None:
    socket = listening_socket(0)
    town = Town(kafka, kafka_topic(), gateway, f"http://127.0.0.1:{socket.getsockname()[1]}{REPORT_PATH}")
    teller, marks = AlertStatePublisher(town.connection, town.app), ReportSigner(gateway.key)
    listeners = HttpServer(
        [HttpEndpoint(Starlette(routes=[delivery_report_route(lambda: marks, teller.publish)]), socket)]
    )
    listeners.start()
    try:
        assert describe_backlog(town.connection, town.app) == NOT_STARTED
        with town.running():
            town.send("h1", 3.0)
            wait_for(lambda: _states(town) == ["delivered"])
            ledger = read_alert_state(town.connection, town.app)
            assert ledger.lease is not None
            assert (ledger.lease.rules, ledger.lease.ended) == (["overload"], 0)
            assert ledger.channels["sms"].destination == gateway.address.removeprefix("http://")
            # A transaction's mark is behind its last record: that is no row to judge.
            town.send_in_a_transaction("h1", 1.0)
            wait_for(lambda: describe_backlog(town.connection, town.app) == "")
            [group] = group_lags(Admin(town.connection), [alerts_topic_name(town.app)], seconds=False)
            assert group.lag == 0
        ledger = read_alert_state(town.connection, town.app)
        assert ledger.lease is not None
        assert ledger.lease.ended
        assert ledger.reports == {}
        assert town.texts() == ["House h1 draws 3.0 kW."]
    finally:
        listeners.close()
        teller.close()
        town.channel.close()


def _states(town: Town) -> list[str]:
    return sorted(each.delivery.state for each in read_alert_state(town.connection, town.app).deliveries.values())


def test_a_write_that_fails_is_the_end_of_a_life_and_not_of_the_process(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str], gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    town = Town(kafka, kafka_topic(), gateway)
    commit, left = KafkaAlertLog.commit, [2]

    def failing(log: KafkaAlertLog, changes: object) -> None:
        if left[0] and any(key.startswith(b'["case"') for key, _ in changes):  # type: ignore[attr-defined]
            left[0] -= 1
            if not left[0]:
                # The second time the ledger has it, and nobody knows.
                commit(log, changes)  # type: ignore[arg-type]
            raise TransactionError("The broker did not answer")
        commit(log, changes)  # type: ignore[arg-type]

    monkeypatch.setattr(KafkaAlertLog, "commit", failing)
    with town.running() as running:
        town.send("h1", 3.0)
        wait_for(lambda: town.texts() == ["House h1 draws 3.0 kW."])
        wait_for(lambda: _states(town) == ["sent"])
        assert running.error is None
    assert town.texts() == ["House h1 draws 3.0 kW."]
    assert [each.partition(" in ")[0] for each in town.said] == ["alerts start again from their state topic"] * 2
    town.channel.close()


def test_who_comes_later_takes_over(kafka: KafkaUnderTest, kafka_topic: Callable[..., str], gateway: Gateway) -> None:
    town = Town(kafka, kafka_topic(), gateway)
    with town.running() as first, town.running() as second:
        town.send("h1", 3.0)
        wait_for(lambda: first.error is not None)
        wait_for(lambda: _states(town) == ["sent"])
        assert isinstance(first.error, ProducerFencedError)
        assert "Another process sends the alerts" in str(first.error)
        assert second.error is None
    assert town.texts() == ["House h1 draws 3.0 kW."]
    town.channel.close()


def test_what_can_be_watched_is_told_and_taken_back(kafka: KafkaUnderTest) -> None:
    app, one, two = f"town-{secrets.token_hex(4)}", table(), table(name="b", topic="b")
    publish_watched_tables(kafka.connection, app, {"a": one, "b": two})
    assert decode_tables(read_alert_state(kafka.connection, app)) == {"a": one, "b": two}
    publish_watched_tables(kafka.connection, app, {"a": one})
    assert decode_tables(read_alert_state(kafka.connection, app)) == {"a": one}
