"""The engine over a log in memory that dies: nothing lost, nothing twice, and nothing sent that is not kept."""

import random
from typing import Any

import pytest

import riverrun as rr
from riverrun.alerts import episodes
from riverrun.alerts.channels.contract import Delivery
from riverrun.alerts.engine import Engine, Incoming
from riverrun.alerts.ledger import Ack, Position, Reported, Silence, folded, forgotten, kept
from riverrun.alerts.rules import Rule
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
            engine = Engine(rules, log, clock=clock)
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


def history(seed: int, rows: int = 600) -> list[Incoming]:
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
    engine = Engine([overload()], log, clock=clock)
    log.next = dict.fromkeys(log.next, 0)  # somebody moved the group's offsets back
    while engine.step():
        gateway.send_due(engine, clock.now)
    assert gateway.taken == sent
    assert engine.watch.counts.again == 600


def test_a_new_engine_goes_on_where_the_ledger_is() -> None:
    log = MemoryLog(records=[record(0, 0, 3.0)])
    live(log, Gateway(), [overload()], Clock())
    positions = folded(log.ledger).positions
    assert positions == {(TOPIC, 0): Position(topic=TOPIC, partition=0, offset=1)}
    names = {Engine([overload()], log, clock=Clock()).namespace for _ in range(3)}
    assert len(names) == 1
    assert names != {Engine([overload()], MemoryLog(), clock=Clock()).namespace}


def test_nothing_is_due_while_it_is_not_kept() -> None:
    log = MemoryLog(records=[record(0, 0, 3.0)], crashes={2: "before"})
    engine = Engine([overload()], log, clock=Clock())
    with pytest.raises(CrashError):
        engine.step()
    assert engine.due(NOON) == []
    with pytest.raises(TransactionError):
        engine.moved({"x": Delivery()})


def test_who_cannot_write_that_it_tries_must_not_send() -> None:
    log = MemoryLog(records=[record(0, 0, 3.0)], crashes={3: "before"})
    engine = Engine([overload()], log, clock=Clock())
    engine.step()
    [(message, _)] = engine.due(NOON)
    with pytest.raises(CrashError):
        engine.moved({message.id: Delivery(state="trying")})
    assert engine.due(NOON) == []


def test_a_message_is_found_by_the_providers_id_also_after_a_crash() -> None:
    log = MemoryLog(records=[record(0, 0, 3.0)])
    engine = Engine([overload()], log, clock=Clock())
    engine.step()
    [(message, _)] = engine.due(NOON)
    sent = Delivery(state="sent", provider_id="p1")
    engine.moved({message.id: sent})
    for each in (engine, Engine([overload()], log, clock=Clock())):
        assert each.find("p1") == (message.id, sent)
        assert each.find("p2") is None
        assert each.due(NOON) == []


def test_records_that_are_no_rows_are_counted_and_change_nothing() -> None:
    bad = [b"{", b"[]", b'{"house_id":"h1","load_kw":9}', b'{"load_kw":"much","at":"2026-01-15T12:00:00Z"}', None]
    log = MemoryLog(records=[Incoming(TOPIC, 0, offset, NOON, value) for offset, value in enumerate(bad)])
    engine = Engine([overload()], log, clock=Clock())
    assert engine.step() == 5
    assert engine.watch.counts.reasons == {
        "it is not JSON": 1, "it is not a JSON object": 1, "its time, at, is missing": 1, "load_kw is not double": 1,
    }  # fmt: skip
    assert engine.due(NOON) == []


def test_keys_that_are_forgotten_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "MOST_IDLE_KEYS", 20)
    log = MemoryLog(records=[record(offset, 0, 1.0, f"h{offset}") for offset in range(500)])
    live(log, Gateway(), [overload()], Clock())
    assert 10 <= len(folded(log.ledger).episodes) <= 40


def test_a_day_of_events_written_again_sends_nothing() -> None:
    rows = history(3)
    log, gateway, clock = MemoryLog(records=rows), Gateway(), Clock()
    live(log, gateway, [overload()], clock)
    sent = dict(gateway.taken)
    # The same rows with new offsets and fresh times of Kafka, but for the newest of them.
    again = [Incoming(TOPIC, each.partition, each.offset + 300, clock.now, each.value) for each in rows[:-100]]
    log.records = rows + again
    live(log, gateway, [overload()], clock)
    assert gateway.taken == sent


def test_what_people_say_reaches_it() -> None:
    log, clock = (
        MemoryLog(records=[record(0, 0, 3.0), record(1, 1, 3.0, "h2"), record(2, 2, 3.0, "h3")], most=1),
        Clock(),
    )
    engine = Engine([overload(escalate=rr.escalate(after="5 minutes", to=["+9"]))], log, clock=clock)
    silence = Silence(id="1", until=NOON + 99 * MINUTE, key="h2")
    engine.step()
    log.told = [kept(silence), kept(Ack(rule="overload", key="h1", number=1, at=NOON))]
    engine.step()
    log.told = [forgotten(silence)]
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
    odd = Incoming(TOPIC, 0, 0, NOON, b'{"house_id":"h1","note":1e99999999999999999999,"at":"2026-01-15T12:00:00Z"}')
    engine = Engine([overload()], MemoryLog(records=[odd, record(1, 0, 3.0)]), clock=Clock())
    assert engine.step() == 2
    assert (engine.watch.counts.misfits, len(engine.due(NOON))) == (1, 1)


DAY = 24 * 60 * MINUTE


# What is over for thirty days is forgotten; what fires is over after thirty days without a row.
@pytest.mark.parametrize(("when", "days"), [("", 32), ("load_kw > 2.0", 63)])
def test_keys_that_come_once_do_not_fill_the_ledger(when: str, days: int) -> None:
    """A ball, a transfer: each fires once and is never heard of again."""
    log, gateway, clock = MemoryLog(), Gateway(), Clock()
    for day in range(80):
        log.records += [record(2 * day + each, day * 24 * 60, 3.0, f"once-{day}-{each}") for each in range(2)]
        # A crash every day: how old a key is survives it.
        engine = Engine([rule(when=when)], log, clock=clock)
        for _ in range(2):
            engine.step()
            gateway.send_due(engine, clock.now)
            clock.now += DAY // 2
        engine.close()
    assert len(gateway.taken) == 160
    found = folded(log.ledger)
    sizes = {len(shelf) for shelf in (found.episodes, found.cases, found.letters, found.sent)}
    assert 2 * (days - 4) < min(sizes) <= max(sizes) <= 2 * days


def test_the_episodes_of_a_rule_that_is_gone_go_with_its_cases() -> None:
    log, gateway, clock = MemoryLog(records=[record(0, 0, 3.0), record(1, 0, 1.0, "h2")]), Gateway(), Clock()
    live(log, gateway, [overload()], clock)
    other = rule("other", when="load_kw > 9")
    clock.now += MINUTE
    live(log, gateway, [other], clock)
    [(place, episode)] = [each for each in folded(log.ledger).episodes.items() if each[0][0] == "overload"]
    assert (place[1], episode.state, episode.number) == ("h1", "quiet", 1)
    # It counts on when it comes back.
    log.records.append(record(2, 1, 3.0))
    live(log, gateway, [overload(), other], clock)
    assert len(gateway.taken) == 2
    for _ in range(3):
        clock.now += 31 * DAY
        live(log, gateway, [other], clock)
    assert [name for name, _ in folded(log.ledger).episodes if name == "overload"] == []
    assert folded(log.ledger).cases == {}


def test_a_ledger_of_a_newer_version_is_not_guessed_at() -> None:
    silence = Silence(id="1", until=0, version=99)
    with pytest.raises(RecordUnreadableError, match="a newer riverrun"):
        folded([kept(silence)])
    for key, value in ((b"[]", b"{}"), (b"x", b"y"), (b'["odd","x"]', None), (b"\xff", None)):
        with pytest.raises(RecordUnreadableError, match="cannot be read"):
            folded([(key, value)])


def test_a_report_that_came_while_nobody_was_there_is_heard_and_then_forgotten() -> None:
    log = MemoryLog(ledger=[kept(Reported(id="one", state="delivered"))])
    heard: list[str] = []
    engine = Engine([rule()], log, clock=lambda: NOON, on_reports=lambda each: heard.extend(one.id for one in each))
    engine.step()
    engine.close()
    assert heard == ["one"]
    assert folded(log.ledger).reports == {}
    log.told.append(kept(Reported(id="two", state="undelivered", reason="no such phone")))
    engine.step()
    engine.step()
    assert heard == ["one", "two"]
