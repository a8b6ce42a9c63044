"""From rows to phones: engine, sender and SMS channel against the gateway, killed at commits, with trouble at random."""

import json
import random
import threading
from datetime import UTC, datetime

from riverrun.alerts.engine import AlertEngine, InputRecord
from riverrun.alerts.gateway.faults import FaultInjector
from riverrun.alerts.gateway.server import Gateway
from riverrun.alerts.rules import Rule
from riverrun.alerts.sender import NotificationSender, RetryPolicy, SendScheduler
from riverrun.errors import TransactionError
from support.alerting import wait_for
from support.gateway import channel_to
from support.watching import MINUTE, NOON, TOPIC, CrashError, MemoryLog, rule

FAST = RetryPolicy(initial_backoff_ms=10, max_backoff_ms=60, down_after=4)
SHARES = {"busy": 0.05, "error before": 0.05, "error after": 0.05, "silent after": 0.02, "no credit": 0.02}
HOUSES = 20


def rows(minutes: int) -> list[InputRecord]:
    chance = random.Random(7)
    found: list[InputRecord] = []
    for minute in range(minutes):
        for house in range(HOUSES):
            at = NOON + minute * MINUTE
            value = {
                "house_id": f"h{house}", "load_kw": chance.choice([1.0, 2.5]), "phone": f"+35385012345{house % 10}",
                "at": datetime.fromtimestamp(at / 1000, UTC).isoformat(),
            }  # fmt: skip
            found.append(InputRecord(TOPIC, 0, len(found), at, json.dumps(value).encode()))
    return found


def overload() -> Rule:
    return rule(clear="load_kw < 1.8", text="{house_id} {at} over", resolved="{house_id} {at} back", expires="forever")


def expected(records: list[InputRecord]) -> list[str]:
    """What owners must read, found in the plainest way."""
    firing: set[str] = set()
    found = []
    for record in records:
        row = json.loads(record.value or b"")
        house, over = row["house_id"], row["load_kw"] > 2
        if over != (house in firing):
            firing.symmetric_difference_update({house})
            found.append(f"{house} {'over' if over else 'back'}")
    return sorted(found)


def test_each_owner_reads_each_alert_once() -> None:
    records = rows(15)
    chance = random.Random(3)
    log = MemoryLog(records=records, crashes={each: chance.choice(["before", "after"]) for each in range(5, 300, 20)})
    killed = 0
    with Gateway(faults=FaultInjector(SHARES, seed=5), delivery_ms=0) as gateway:
        channel = channel_to(gateway, timeout_seconds=0.5)
        while True:
            try:
                engine = AlertEngine([overload()], log, clock=lambda: NOON)
                sending = SendScheduler(engine, {"sms": channel}, policy=FAST, notice=lambda _: None)
            except CrashError:
                killed += 1
                continue
            sender = NotificationSender(sending, {"sms": channel}, idle_seconds=0.01)
            died: list[BaseException] = []

            def send(sender: NotificationSender = sender, died: list[BaseException] = died) -> None:
                try:
                    sender.run()
                # TransactionError: the engine died elsewhere, and so may not write any more.
                except (CrashError, TransactionError) as error:
                    died.append(error)

            thread = threading.Thread(target=send, daemon=True)
            thread.start()
            try:
                while engine.step():
                    sender.wake()
                wait_for(lambda: died or not engine.due(2**62), 60)  # noqa: B023
            except CrashError as error:
                died.append(error)
            sender.stop()
            thread.join(30)
            assert not thread.is_alive()
            if not died:
                break
            killed += 1
        channel.close()
        read = [each.text.split() for each in gateway.store.newest(10_000)]
    assert killed >= 8
    assert sorted(f"{each[0]} {each[-1]}" for each in read) == expected(records)
