"""A dry run tells how many messages a history would have sent: as many as were sent."""

import random
from collections import Counter

import riverrun as rr
from riverrun.alerts.dry_run import dry_run
from riverrun.alerts.engine import AlertEngine, InputRecord, PollResult
from riverrun.alerts.history import merge_by_time
from support.watching import MINUTE, NOON, Gateway, MemoryLog, record, rule


def history(days: int) -> list[InputRecord]:
    chance = random.Random(days)
    minutes = range(0, days * 24 * 60, 30)
    rows = [(minute + house, chance.choice([1.0, 2.5]), f"h{house}") for minute in minutes for house in range(5)]
    return [record(offset, *row) for offset, row in enumerate(rows)]


def test_it_counts_what_was_sent_live() -> None:
    rules = [
        rule(resolved="over", quiet=rr.quiet("22:00", "07:00", zone="Europe/Dublin"), cooldown="2 hours"),
        rule("lasting", lasting="1 hour", to=["+1"], digest=rr.digest(most=1, within="10 minutes")),
        rule("gone", silent="45 minutes", text="{house_id} is silent"),
    ]
    rows = history(3)
    now = NOON

    log, gateway = MemoryLog(records=rows, most=1), Gateway()
    engine = AlertEngine(rules, log, clock=lambda: now)
    for each in rows:
        # Live, a record is read when it was written; and time passes between records too.
        now = each.record_time
        engine.step()
        gateway.send_due(engine, now)
    sent = Counter(
        (letter.rule, letter.kind) for letter in engine.notifier.state.notifications.values() if letter.stage == "out"
    )

    found = dry_run(rules, [PollResult(rows)])
    told: Counter[tuple[str, str]] = Counter()
    for (name, _, kind), count in found.sent.items():
        told[name, kind] += count
    assert told == sent
    assert found.messages == len(gateway.taken) > 20
    assert {kind for _, kind in told} == {"fired", "resolved", "digest"}
    assert {row["day"] for row in found.rows()} >= {"2026-01-16", "2026-01-17", "2026-01-18"}
    assert found.unsent["overload", "cancelled"] > 0
    assert (found.records, found.first, found.last) == (len(rows), NOON, rows[-1].record_time)


def test_time_passes_between_records_and_after_the_last_one() -> None:
    rules = [
        rule(quiet=rr.quiet("12:00", "07:00", zone="Europe/Dublin"), escalate=rr.escalate(after="1 hour", to=["+1"])),
        rule("unowned", to="paid"),
    ]
    rows = [record(0, 0, 3.0), record(1, 1, 3.0, "h2"), record(2, 23 * 60, 1.0, "h2")]
    # At 11:00 of the next day h2 is over: told at 7:00, escalated at 8:00, as live.
    found = dry_run(rules, [PollResult(rows)])
    assert {kind: count for (_, _, kind), count in found.sent.items()} == {"fired": 2, "escalated": 2}
    assert found.unsent["unowned", "unaddressed"] == 2

    [first, *_] = rows
    assert dry_run(rules, [PollResult([first])]).waiting == 1
    later = dry_run(rules, [PollResult([first])], until=NOON + 20 * 60 * MINUTE)
    assert (later.messages, later.waiting, later.last) == (2, 0, NOON)


def test_nothing_in_it_is_too_old() -> None:
    found = dry_run([rule(expires="1 minute")], [PollResult([record(0, 0, 3.0), record(1, MINUTE, 3.0, "h2")])])
    assert found.messages == 2


def test_partitions_are_read_as_they_were_written() -> None:
    one = [record(offset, 0, 1.0, recorded=at) for offset, at in enumerate([1, 5, 3, 9])]
    other = [record(offset, 0, 1.0, partition=1, recorded=at) for offset, at in enumerate([2, 4, 8])]
    [arrived] = merge_by_time([one, other])
    assert [(each.partition, each.offset) for each in arrived.records] == [
        (0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2), (0, 3),
    ]  # fmt: skip
    assert [len(each.records) for each in merge_by_time([one * 300])] == [500, 500, 200]
