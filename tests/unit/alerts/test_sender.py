"""The whole way over real HTTP: sender, SMS channel, and a gateway on a bad day, whose book is the judge."""

import threading

import pytest

from riverrun.alerts.channels.contract import AlertMessage, SendResult
from riverrun.alerts.gateway.faults import FaultInjector
from riverrun.alerts.gateway.server import Gateway
from riverrun.alerts.sender import NotificationSender, RetryPolicy, SendScheduler
from support.alerting import Killed, MemoryOutbox, MortalOutbox, ScriptedChannel, wait_for
from support.gateway import channel_to

MANY = 300
KILLS = 10
SHARES = {
    "busy": 0.05,
    "error before": 0.06,
    "error after": 0.06,
    "silent before": 0.02,
    "silent after": 0.02,
    "no credit": 0.02,
}
FAST = RetryPolicy(initial_backoff_ms=10, max_backoff_ms=60, down_after=4)


def alerts(count: int) -> list[AlertMessage]:
    return [
        AlertMessage(id=f"overload/{each}/1", channel="sms", receiver="+353850123456", text=f"alert {each}")
        for each in range(count)
    ]


def test_each_arrives_once_whatever_the_gateway_does_and_however_often_the_sender_is_killed() -> None:
    outbox = MortalOutbox(alerts(MANY))
    with Gateway(faults=FaultInjector(SHARES, seed=8), delivery_ms=0) as gateway:
        channel = channel_to(gateway, timeout_seconds=0.2)
        for _ in range(KILLS):
            outbox.lives = 4
            with pytest.raises(Killed):
                sender_of(outbox, channel).run()
        outbox.lives = 0
        left = outbox.states()
        assert left["trying"] > 0, "a kill has to leave something that may be out"
        run_until_empty(outbox, sender_of(outbox, channel))
        assert outbox.states() == {"sent": MANY}
        assert sorted(each.text for each in gateway.store.newest(10_000)) == sorted(
            alert.text for alert in alerts(MANY)
        )
        outcomes = [outcome for _, outcome in gateway.store.requests()]
        assert {"taken", "error before", "silent before", "busy", "REJECTED_NOT_ENOUGH_CREDITS"} <= set(outcomes)
        assert outcomes.count("taken") == MANY
        channel.close()


def sender_of(outbox: MemoryOutbox, channel: object) -> NotificationSender:
    channels = {"sms": channel}
    sending = SendScheduler(outbox, channels, policy=FAST, notice=lambda _: None)  # type: ignore[arg-type]
    return NotificationSender(sending, channels, idle_seconds=0.01)  # type: ignore[arg-type]


def run_until_empty(outbox: MemoryOutbox, sender: NotificationSender) -> None:
    thread = threading.Thread(target=sender.run, daemon=True)
    thread.start()
    try:
        wait_for(lambda: not outbox.due(2**62), 60)
    finally:
        sender.stop()
        thread.join(30)
    assert not thread.is_alive()


def test_a_gateway_that_comes_back_gets_what_waited() -> None:
    outbox = MemoryOutbox(alerts(20))
    said: list[str] = []
    with Gateway(delivery_ms=0) as first:
        key, port = first.key, int(first.address.rpartition(":")[2])
    channel = channel_to(first, url=f"http://127.0.0.1:{port}", key=key)
    sending = SendScheduler(outbox, {"sms": channel}, policy=FAST, notice=said.append)
    sender = NotificationSender(sending, {"sms": channel}, idle_seconds=0.01)
    thread = threading.Thread(target=sender.run, daemon=True)
    thread.start()
    wait_for(lambda: said)
    with Gateway(key=key, port=port, delivery_ms=0) as again:
        wait_for(lambda: outbox.states() == {"sent": 20})
        assert len(again.store.newest(100)) == 20
    sender.stop()
    thread.join(30)
    channel.close()
    assert [each.partition(":")[0] for each in said] == ["alerts are parked", "alerts go on"]


def test_a_channel_with_a_bug_stops_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ScriptedChannel):
        def send(self, message: AlertMessage, provider_id: str) -> SendResult:  # noqa: ARG002
            raise ZeroDivisionError

    broken, whole = Broken(name="sms", idempotent=False), ScriptedChannel(name="mail")
    broken.can_tell = False
    other = AlertMessage(id="m", channel="mail", receiver="a@example.org", text="x")
    outbox = MemoryOutbox([*alerts(1), other])
    channels = {"sms": broken, "mail": whole}
    sender = NotificationSender(
        SendScheduler(outbox, channels, policy=FAST, notice=lambda _: None), channels, idle_seconds=0.01
    )
    run_until_empty(outbox, sender)
    assert outbox.state("m") == "sent"
    assert "ZeroDivisionError in the channel" in outbox.deliveries["overload/0/1"].reason
    assert "channel sms failed" in caplog.text


def test_stopping_writes_down_what_is_under_way() -> None:
    under_way, may_go_on = threading.Event(), threading.Event()

    class Slow(ScriptedChannel):
        def send(self, message: AlertMessage, provider_id: str) -> SendResult:
            under_way.set()
            assert may_go_on.wait(30)
            return super().send(message, provider_id)

    outbox, channel = MemoryOutbox(alerts(1)), Slow()
    sender = sender_of(outbox, channel)
    thread = threading.Thread(target=sender.run, daemon=True)
    thread.start()
    assert under_way.wait(30)
    sender.stop()
    outbox.add(AlertMessage(id="late", channel="sms", receiver="x", text="x"))
    may_go_on.set()
    thread.join(30)
    assert outbox.state("overload/0/1") == "sent"
    assert outbox.state("late") == "due"
