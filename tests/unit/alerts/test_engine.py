"""The engine over a log in memory that dies: nothing lost, nothing twice, and nothing sent that is not kept."""

import random
from typing import Any

import pytest

import riverrun as rr
from riverrun.alerts import incidents
from riverrun.alerts.channels.contract import DeliveryStatus
from riverrun.alerts.engine import AlertEngine, InputRecord
from riverrun.alerts.rules import Rule
from riverrun.alerts.state_topic import (
    Ack,
    DeliveryReportRecord,
    PartitionPosition,
    Silence,
    build_alert_state,
    encode_tombstone,
    encode_upsert,
)
from riverrun.errors import RecordUnreadableError, TransactionError
from support.watching import MINUTE, NOON, TOPIC, CrashError, Gateway, MemoryLog, record, rule


class Clock:
    def __init__(self, now: int = NOON) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def overload(**options: Any) -> Rule:
    return rule(clear="load_kw < 1.8", resolved="House {house_id} is back.", expires="forever", **options)


def live(log: MemoryLog, gateway: Gateway, rules: list[Rule], clock: Clock) -> int:
    """Run until all is read and sent, as often as it dies: how many times it was killed."""
    killed = 0
    while True:
        try:
            engine = AlertEngine(rules, log, clock=clock)
            while engine.step():
                clock.now += 300
                gateway.send_due(engine, clock.now)
            clock.now += 2000
            engine.step()
            gateway.send_due(engine, clock.now)
        except CrashError:
            killed += 1
        else:
            return killed


def history(seed: int, rows: int = 600) -> list[InputRecord]:
    """Loads of ten houses in two partitions."""
    chance = random.Random(seed)
    found, offsets = [], [0, 0]
    for minute in range(rows // 10):
        for house in range(10):
            partition = house % 2
            found.append(
                record(offsets[partition], minute, chance.choice([1.0, 1.9, 2.5]), f"h{house}", partition=partition)
            )
            offsets[partition] += 1
    return found


@pytest.mark.parametrize("seed", range(12))
def test_killed_anywhere_each_message_is_sent_once(seed: int) -> None:
    rows = history(seed)
    whole = Gateway()
    assert live(MemoryLog(records=rows), whole, [overload()], Clock()) == 0
    assert len(whole.taken) > 50
    chance = random.Random(seed)
    steps = sorted(chance.sample(range(2, 300), 25))
    log = MemoryLog(records=rows, crashes={step: chance.choice(["before", "after"]) for step in steps})
    gateway = Gateway(crashes=set(chance.sample(range(1, 60), 8)))
    assert live(log, gateway, [overload()], Clock()) > 20
    assert gateway.texts == whole.texts
    assert set(gateway.taken.values()) == {1}


def test_rows_that_are_read_again_send_nothing() -> None:
    log, gateway, clock = MemoryLog(records=history(1)), Gateway(), Clock()
    live(log, gateway, [overload()], clock)
    sent = dict(gateway.taken)
    engine = AlertEngine([overload()], log, clock=clock)
    log.next_offsets = dict.fromkeys(log.next_offsets, 0)  # somebody moved the group's offsets back
    while engine.step():
        gateway.send_due(engine, clock.now)
    assert gateway.taken == sent
    assert engine.evaluator.counts.duplicates == 600


def test_a_new_engine_goes_on_where_the_ledger_is() -> None:
    log = MemoryLog(records=[record(0, 0, 3.0)])
    live(log, Gateway(), [overload()], Clock())
    positions = build_alert_state(log.changes).positions
    assert positions == {(TOPIC, 0): PartitionPosition(topic=TOPIC, partition=0, offset=1)}
    names = {AlertEngine([overload()], log, clock=Clock()).namespace for _ in range(3)}
    assert len(names) == 1
    assert names != {AlertEngine([overload()], MemoryLog(), clock=Clock()).namespace}


def test_nothing_is_due_while_it_is_not_kept() -> None:
    log = MemoryLog(records=[record(0, 0, 3.0)], crashes={2: "before"})
    engine = AlertEngine([overload()], log, clock=Clock())
    with pytest.raises(CrashError):
        engine.step()
    assert engine.due(NOON) == []
    with pytest.raises(TransactionError):
        engine.save_deliveries({"x": DeliveryStatus()})


def test_who_cannot_write_that_it_tries_must_not_send() -> None:
    log = MemoryLog(records=[record(0, 0, 3.0)], crashes={3: "before"})
    engine = AlertEngine([overload()], log, clock=Clock())
    engine.step()
    [(message, _)] = engine.due(NOON)
    with pytest.raises(CrashError):
        engine.save_deliveries({message.id: DeliveryStatus(state="trying")})
    assert engine.due(NOON) == []


def test_a_message_is_found_by_the_providers_id_also_after_a_crash() -> None:
    log = MemoryLog(records=[record(0, 0, 3.0)])
    engine = AlertEngine([overload()], log, clock=Clock())
    engine.step()
    [(message, _)] = engine.due(NOON)
    sent = DeliveryStatus(state="sent", provider_id="p1")
    engine.save_deliveries({message.id: sent})
    for each in (engine, AlertEngine([overload()], log, clock=Clock())):
        assert each.find_by_provider_id("p1") == (message.id, sent)
        assert each.find_by_provider_id("p2") is None
        assert each.due(NOON) == []


def test_records_that_are_no_rows_are_counted_and_change_nothing() -> None:
    bad = [b"{", b"[]", b'{"house_id":"h1","load_kw":9}', b'{"load_kw":"much","at":"2026-01-15T12:00:00Z"}', None]
    log = MemoryLog(records=[InputRecord(TOPIC, 0, offset, NOON, value) for offset, value in enumerate(bad)])
    engine = AlertEngine([overload()], log, clock=Clock())
    assert engine.step() == 5
    assert engine.evaluator.counts.reject_reasons == {
        "it is not JSON": 1, "it is not a JSON object": 1, "its time, at, is missing": 1, "load_kw is not double": 1,
    }  # fmt: skip
    assert engine.due(NOON) == []


def test_keys_that_are_forgotten_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incidents, "MAX_IDLE_KEYS", 20)
    log = MemoryLog(records=[record(offset, 0, 1.0, f"h{offset}") for offset in range(500)])
    live(log, Gateway(), [overload()], Clock())
    assert 10 <= len(build_alert_state(log.changes).episodes) <= 40


def test_a_day_of_events_written_again_sends_nothing() -> None:
    rows = history(3)
    log, gateway, clock = MemoryLog(records=rows), Gateway(), Clock()
    live(log, gateway, [overload()], clock)
    sent = dict(gateway.taken)
    # The same rows with new offsets and fresh times of Kafka, but for the newest of them.
    again = [InputRecord(TOPIC, row.partition, row.offset + 300, clock.now, row.value) for row in rows[:-100]]
    log.records = rows + again
    live(log, gateway, [overload()], clock)
    assert gateway.taken == sent


def test_what_people_say_reaches_it() -> None:
    log, clock = (
        MemoryLog(records=[record(0, 0, 3.0), record(1, 1, 3.0, "h2"), record(2, 2, 3.0, "h3")], most=1),
        Clock(),
    )
    engine = AlertEngine([overload(escalate=rr.escalate(after="5 minutes", to=["+9"]))], log, clock=clock)
    silence = Silence(id="1", until=NOON + 99 * MINUTE, key="h2")
    engine.step()
    log.state_changes = [encode_upsert(silence), encode_upsert(Ack(rule="overload", key="h1", number=1, at=NOON))]
    engine.step()
    log.state_changes = [encode_tombstone(silence)]
    engine.step()
    gateway = Gateway()
    gateway.send_due(engine, clock.now)
    clock.now += 10 * MINUTE
    engine.step()
    gateway.send_due(engine, clock.now)
    assert [(text.split()[1], text.startswith("Nobody")) for text in gateway.texts.values()] == [
        ("h1", False), ("h3", False), ("acknowledged", True),
    ]  # fmt: skip


def test_silence_is_judged_by_all_partitions() -> None:
    rows = [record(0, 0, 1.0, "h0"), record(0, 0, 1.0, "h1", partition=1)]
    rows += [record(offset, offset, 1.0, "h0") for offset in range(1, 20)]
    rows += [record(offset, offset, 1.0, "h1", partition=1) for offset in range(1, 10)]
    log, gateway = MemoryLog(records=rows, most=5), Gateway()
    live(log, gateway, [rule("gone", silent="8 minutes", text="{house_id} is silent", expires="forever")], Clock())
    assert list(gateway.texts.values()) == ["h1 is silent"]


def test_a_row_of_tomorrow_sends_nothing() -> None:
    tomorrow = record(5, 24 * 60, 1.0, "h0", recorded=NOON)
    rows = [*(record(offset, 0, 1.0, f"h{offset}") for offset in range(5)), tomorrow]
    rows += [record(6 + 4 * each + house, each + 1, 1.0, f"h{house + 1}") for each in range(40) for house in range(4)]
    log, gateway = MemoryLog(records=rows), Gateway()
    live(log, gateway, [rule("gone", silent="15 minutes", text="{house_id} is silent", expires="forever")], Clock())
    assert gateway.texts == {}


def test_a_number_that_nothing_can_hold_is_a_misfit_and_the_next_row_is_read() -> None:
    odd = InputRecord(TOPIC, 0, 0, NOON, b'{"house_id":"h1","note":1e99999999999999999999,"at":"2026-01-15T12:00:00Z"}')
    engine = AlertEngine([overload()], MemoryLog(records=[odd, record(1, 0, 3.0)]), clock=Clock())
    assert engine.step() == 2
    assert (engine.evaluator.counts.rejected_rows, len(engine.due(NOON))) == (1, 1)


DAY = 24 * 60 * MINUTE


# What is over for thirty days is forgotten; what fires is over after thirty days without a row.
@pytest.mark.parametrize(("when", "days"), [("", 32), ("load_kw > 2.0", 63)])
def test_keys_that_come_once_do_not_fill_the_ledger(when: str, days: int) -> None:
    """A ball, a transfer: each fires once and is never heard of again."""
    log, gateway, clock = MemoryLog(), Gateway(), Clock()
    for day in range(80):
        log.records += [record(2 * day + each, day * 24 * 60, 3.0, f"once-{day}-{each}") for each in range(2)]
        # A crash every day: how old a key is survives it.
        engine = AlertEngine([rule(when=when)], log, clock=clock)
        for _ in range(2):
            engine.step()
            gateway.send_due(engine, clock.now)
            clock.now += DAY // 2
        engine.close()
    assert len(gateway.taken) == 160
    found = build_alert_state(log.changes)
    sizes = {len(shelf) for shelf in (found.episodes, found.incidents, found.notifications, found.deliveries)}
    assert 2 * (days - 4) < min(sizes) <= max(sizes) <= 2 * days


def test_the_episodes_of_a_rule_that_is_gone_go_with_its_cases() -> None:
    log, gateway, clock = MemoryLog(records=[record(0, 0, 3.0), record(1, 0, 1.0, "h2")]), Gateway(), Clock()
    live(log, gateway, [overload()], clock)
    other = rule("other", when="load_kw > 9")
    clock.now += MINUTE
    live(log, gateway, [other], clock)
    [(place, episode)] = [each for each in build_alert_state(log.changes).episodes.items() if each[0][0] == "overload"]
    assert (place[1], episode.state, episode.number) == ("h1", "quiet", 1)
    # It counts on when it comes back.
    log.records.append(record(2, 1, 3.0))
    live(log, gateway, [overload(), other], clock)
    assert len(gateway.taken) == 2
    for _ in range(3):
        clock.now += 31 * DAY
        live(log, gateway, [other], clock)
    assert [name for name, _ in build_alert_state(log.changes).episodes if name == "overload"] == []
    assert build_alert_state(log.changes).incidents == {}


def test_a_ledger_of_a_newer_version_is_not_guessed_at() -> None:
    silence = Silence(id="1", until=0, version=99)
    with pytest.raises(RecordUnreadableError, match="a newer riverrun"):
        build_alert_state([encode_upsert(silence)])
    for key, value in ((b"[]", b"{}"), (b"x", b"y"), (b'["odd","x"]', None), (b"\xff", None)):
        with pytest.raises(RecordUnreadableError, match="cannot be read"):
            build_alert_state([(key, value)])


def test_a_report_that_came_while_nobody_was_there_is_heard_and_then_forgotten() -> None:
    log = MemoryLog(changes=[encode_upsert(DeliveryReportRecord(id="one", state="delivered"))])
    heard: list[str] = []
    engine = AlertEngine(
        [rule()], log, clock=lambda: NOON, on_reports=lambda each: heard.extend(one.id for one in each)
    )
    engine.step()
    engine.close()
    assert heard == ["one"]
    assert build_alert_state(log.changes).reports == {}
    log.state_changes.append(encode_upsert(DeliveryReportRecord(id="two", state="undelivered", reason="no such phone")))
    engine.step()
    engine.step()
    assert heard == ["one", "two"]
