"""What to try and what an answer means, by a clock and a chance that are given."""

from riverrun.alerts.channels.contract import (
    AlertMessage,
    DeliveryReport,
    DeliveryStatus,
    MessageCheck,
    OutcomeUnknown,
    SendAccepted,
    SendDeferred,
    SendRefused,
    make_provider_id,
)
from riverrun.alerts.channels.limits import ChannelLimits, DailyBudget, MessageRate
from riverrun.alerts.sender import RetryPolicy, SendScheduler, execute_attempt
from support.alerting import MemoryOutbox, ScriptedChannel, step

NOW = 1_000_000
DOWN = SendDeferred("nobody there")


def message(name: str = "a", *, channel: str = "sms", expires: int = 0) -> AlertMessage:
    return AlertMessage(
        id=name, channel=channel, receiver="+353850123456", text="House 7 draws 2.4 kW.", expires=expires
    )


def sending_of(
    outbox: MemoryOutbox,
    *channels: ScriptedChannel,
    limits: ChannelLimits | None = None,
    policy: RetryPolicy | None = None,
) -> tuple[SendScheduler, list[str]]:
    said: list[str] = []
    return (
        SendScheduler(
            outbox,
            {channel.name: channel for channel in channels},
            limits={"sms": limits} if limits else None,
            policy=policy or RetryPolicy(),
            chance=lambda: 1.0,
            notice=said.append,
        ),
        said,
    )


def test_trying_is_written_before_the_request_and_sent_after() -> None:
    outbox, channel = MemoryOutbox([message()]), ScriptedChannel(SendAccepted("", parts=2))
    sending, _ = sending_of(outbox, channel)
    [one] = sending.begin_attempts(NOW)
    assert outbox.state("a") == "trying"
    assert outbox.deliveries["a"].provider_id == make_provider_id("tests", message(), DeliveryStatus())
    assert channel.sent == []
    assert sending.begin_attempts(NOW) == []
    sending.finish_attempts([(one, execute_attempt(channel, one))], NOW + 5)
    assert outbox.history["a"] == ["due", "trying", "sent"]
    assert (outbox.deliveries["a"].parts, outbox.deliveries["a"].updated_at) == (2, NOW + 5)
    assert sending.begin_attempts(NOW + 10) == []


def test_after_a_kill_the_provider_is_asked_and_what_it_has_is_not_sent_again() -> None:
    outbox, channel = MemoryOutbox([message("a"), message("b")]), ScriptedChannel()
    sending, _ = sending_of(outbox, channel)
    first, _second = sending.begin_attempts(NOW)
    execute_attempt(channel, first)
    # Killed here: one is out and nobody wrote it down, the other was never sent.
    again, _ = sending_of(outbox, channel)
    step(again, channel, NOW + 10)
    assert outbox.states() == {"due": 1, "sent": 1}
    step(again, channel, NOW + 5000)
    assert outbox.states() == {"sent": 2}
    assert len(channel.sent) == len(set(channel.sent)) == 2


def test_no_answer_is_asked_after_and_tried_again_under_the_same_id() -> None:
    outbox, channel = MemoryOutbox([message()]), ScriptedChannel(OutcomeUnknown("silence"))
    sending, _ = sending_of(outbox, channel)
    step(sending, channel, NOW)
    assert outbox.state("a") == "trying"
    assert step(sending, channel, NOW + 999) == []
    step(sending, channel, NOW + 1000)
    assert len(channel.asked) == 1
    assert len(channel.sent) == 1
    step(sending, channel, NOW + 10_000)
    assert outbox.state("a") == "sent"
    assert channel.sent == channel.asked * 2


def test_a_provider_that_cannot_be_asked_is_not_sent_to() -> None:
    outbox, channel = MemoryOutbox([message()]), ScriptedChannel(OutcomeUnknown("silence"))
    channel.can_tell = False
    sending, _ = sending_of(outbox, channel)
    step(sending, channel, NOW)
    step(sending, channel, NOW + 5000)
    assert len(channel.sent) == 1
    channel.can_tell = True
    step(sending, channel, NOW + 20_000)
    step(sending, channel, NOW + 60_000)
    assert outbox.state("a") == "sent"


def test_what_the_provider_has_forgotten_is_not_sent_again() -> None:
    outbox, channel = MemoryOutbox([message()]), ScriptedChannel(OutcomeUnknown("silence"))
    channel.can_tell = False
    sending, _ = sending_of(outbox, channel)
    for each in range(0, 3_700_000, 60_000):
        step(sending, channel, NOW + each)
    assert len(channel.sent) == 1
    assert outbox.state("a") == "refused"
    assert "does not remember any more" in outbox.deliveries["a"].reason


def test_a_channel_that_can_never_tell_sends_at_least_once_and_a_few_times_at_most() -> None:
    outbox = MemoryOutbox([message()])
    channel = ScriptedChannel(*[OutcomeUnknown("it said false")] * 9, idempotent=False)
    channel.can_tell = False
    sending, _ = sending_of(outbox, channel)
    for each in range(20):
        step(sending, channel, NOW + each * 400_000)
    assert len(channel.sent) == 3
    assert outbox.state("a") == "refused"
    assert "nobody can say whether it is out, after 3 tries: it said false" in outbox.deliveries["a"].reason


def test_a_permanent_refusal_is_a_dead_letter_with_its_reason() -> None:
    outbox, channel = MemoryOutbox([message()]), ScriptedChannel(SendRefused("no such number"))
    sending, said = sending_of(outbox, channel)
    step(sending, channel, NOW)
    assert (outbox.state("a"), outbox.deliveries["a"].reason) == ("refused", "no such number")
    assert step(sending, channel, NOW + 10**9) == []
    assert said == []


def test_a_refusal_that_may_pass_is_tried_under_a_new_id() -> None:
    outbox = MemoryOutbox([message()])
    channel = ScriptedChannel(SendRefused("no credit", permanent=False, id_used=True))
    sending, _ = sending_of(outbox, channel)
    step(sending, channel, NOW)
    step(sending, channel, NOW + 1000)
    assert outbox.state("a") == "sent"
    assert len(set(channel.sent)) == 2
    assert outbox.deliveries["a"].provider_id == channel.sent[1]


def test_what_cannot_be_sent_is_refused_without_a_request() -> None:
    outbox, channel = MemoryOutbox([message("a"), message("b", channel="smss")]), ScriptedChannel()
    channel.check_result = MessageCheck(problem="it is no telephone number")
    sending, _ = sending_of(outbox, channel)
    assert sending.begin_attempts(NOW) == []
    assert outbox.deliveries["a"].reason == "it is no telephone number"
    assert outbox.deliveries["b"].reason == "there is no channel smss; did you mean sms?"
    assert outbox.states() == {"refused": 2}


def test_waits_double_and_have_a_most() -> None:
    outbox = MemoryOutbox([message()])
    channel = ScriptedChannel(*[SendDeferred("slow down", down=False)] * 12)
    sending, _ = sending_of(outbox, channel)
    waits, now = [], NOW
    for _ in range(12):
        step(sending, channel, now)
        waits.append(outbox.deliveries["a"].retry_at - now)
        now = outbox.deliveries["a"].retry_at
    assert waits[:5] == [1000, 2000, 4000, 8000, 16_000]
    assert waits[5:] == [30_000] * 7


def test_waits_are_spread() -> None:
    drawn = iter([0.0, 0.5, 1.0])
    outbox = MemoryOutbox([message("a"), message("b"), message("c")])
    channel = ScriptedChannel(*[SendDeferred("slow down", down=False)] * 3)
    sending = SendScheduler(outbox, {"sms": channel}, chance=lambda: next(drawn))
    step(sending, channel, NOW)
    assert [delivery.retry_at - NOW for delivery in outbox.deliveries.values()] == [500, 750, 1000]


def test_a_provider_that_says_when_is_obeyed_by_all() -> None:
    outbox = MemoryOutbox([message("a")])
    channel = ScriptedChannel(SendDeferred("too many", retry_after=30, down=False))
    sending, said = sending_of(outbox, channel)
    step(sending, channel, NOW)
    outbox.add(message("b"))
    assert step(sending, channel, NOW + 29_999) == []
    assert len(step(sending, channel, NOW + 30_000)) == 2
    assert said == []


def test_a_channel_that_is_down_parks_says_so_once_and_goes_on_by_itself() -> None:
    outbox = MemoryOutbox([message(str(each)) for each in range(50)])
    channel = ScriptedChannel(*[DOWN] * 30)
    sending, said = sending_of(outbox, channel)
    sizes = []
    for each in range(500):
        sizes.append(len(step(sending, channel, NOW + each * 1000)))
        if each == 40:
            assert sending.channel_health["sms"].problem == "nobody there"
    assert said == ["alerts are parked: channel sms is down: nobody there", "alerts go on: channel sms is back"]
    # All that were under way when it went down, then one at a time.
    down = [size for size in sizes[1:] if size]
    assert down[:10] == [1] * 10
    assert outbox.states() == {"sent": 50}
    assert len(set(channel.has)) == 50


def test_many_that_fail_together_are_one_trouble() -> None:
    outbox = MemoryOutbox([message(str(each)) for each in range(16)])
    channel = ScriptedChannel(*[DOWN] * 16)
    sending, _ = sending_of(outbox, channel)
    assert len(step(sending, channel, NOW)) == 16
    assert sending.channel_health["sms"].blocked_until == NOW + 1000


def test_one_channel_that_hangs_does_not_stop_another() -> None:
    outbox = MemoryOutbox([message(f"a{each}") for each in range(40)] + [message("b", channel="mail")])
    sms, mail = ScriptedChannel(), ScriptedChannel(name="mail")
    sending, _ = sending_of(outbox, sms, mail)
    tries = sending.begin_attempts(NOW)
    assert sorted({try_.message.channel for try_ in tries}) == ["mail", "sms"]
    assert len(tries) == 17


def test_what_is_too_late_is_not_sent_and_what_may_be_out_is_asked_after() -> None:
    outbox = MemoryOutbox([message("a", expires=NOW), message("b", expires=NOW + 10)])
    channel = ScriptedChannel(OutcomeUnknown("silence"))
    sending, _ = sending_of(outbox, channel)
    step(sending, channel, NOW)
    assert outbox.state("a") == "expired"
    channel.has.add(channel.sent[0])
    step(sending, channel, NOW + 60_000)
    assert outbox.state("b") == "sent"

    outbox = MemoryOutbox([message("c", expires=NOW + 10)])
    channel = ScriptedChannel(OutcomeUnknown("silence"))
    sending, _ = sending_of(outbox, channel)
    for each in range(5):
        step(sending, channel, NOW + each * 60_000)
    assert outbox.state("c") == "expired"
    assert len(channel.sent) == 1


def test_what_waits_for_a_channel_or_a_limit_expires_in_its_time() -> None:
    outbox = MemoryOutbox([message(str(each), expires=NOW + 5000) for each in range(20)])
    channel = ScriptedChannel(*[DOWN] * 99)
    sending, _ = sending_of(outbox, channel)
    for each in range(0, 5001, 250):
        step(sending, channel, NOW + each)
    assert outbox.states() == {"expired": 20}
    assert {delivery.reason for delivery in outbox.deliveries.values()} == {"nobody there", "it was too late for it"}

    outbox = MemoryOutbox([message(str(each), expires=NOW + 5000) for each in range(3)])
    channel = ScriptedChannel()
    sending, _ = sending_of(outbox, channel, limits=ChannelLimits(budget=DailyBudget(1)))
    step(sending, channel, NOW)
    step(sending, channel, NOW + 5000)
    assert outbox.states() == {"expired": 2, "sent": 1}


def test_limits_hold_messages_back_and_a_used_up_day_is_said_once() -> None:
    outbox = MemoryOutbox([message(str(each)) for each in range(6)])
    channel = ScriptedChannel()
    limits = ChannelLimits(rate=MessageRate(2, 1000), budget=DailyBudget(4))
    sending, said = sending_of(outbox, channel, limits=limits)
    assert [len(step(sending, channel, NOW + each * 100)) for each in range(16)].count(1) == 2
    for each in range(16, 100):
        step(sending, channel, NOW + each * 100)
    assert outbox.states() == {"due": 2, "sent": 4}
    assert said == ["alerts wait: channel sms: the day's 4 parts are used up"]
    step(sending, channel, NOW + 86_400_000)
    assert outbox.states() == {"sent": 6}


def test_a_budget_is_not_new_after_a_restart_and_a_refusal_costs_nothing() -> None:
    outbox, channel = MemoryOutbox([message("a"), message("b")]), ScriptedChannel(SendAccepted(""), SendRefused("no"))
    limits = ChannelLimits(budget=DailyBudget(2))
    sending, _ = sending_of(outbox, channel, limits=limits)
    step(sending, channel, NOW)
    assert limits.budget.spent(NOW) == 1
    fresh = ChannelLimits(budget=DailyBudget(2))
    again, _ = sending_of(outbox, channel, limits=fresh)
    again.restore((outbox.messages[name], each) for name, each in outbox.deliveries.items())
    assert fresh.budget.spent(NOW) == 1


def test_a_try_that_was_never_taken_costs_its_part_once() -> None:
    outbox, channel = MemoryOutbox([message()]), ScriptedChannel(OutcomeUnknown("silence"))
    limits = ChannelLimits(budget=DailyBudget(10))
    sending, _ = sending_of(outbox, channel, limits=limits)
    for each in range(4):
        step(sending, channel, NOW + each * 10_000)
    assert outbox.state("a") == "sent"
    assert limits.budget.spent(NOW) == 1


def test_reports_come_late_twice_too_early_and_for_others() -> None:
    outbox, channel = MemoryOutbox([message()]), ScriptedChannel()
    sending, _ = sending_of(outbox, channel)
    [one] = sending.begin_attempts(NOW)
    name = one.delivery.provider_id
    sending.apply_reports([DeliveryReport(name, "delivered"), DeliveryReport("unknown", "delivered")], NOW + 1)
    assert outbox.state("a") == "trying"
    sending.finish_attempts([(one, execute_attempt(channel, one))], NOW + 2)
    assert outbox.state("a") == "delivered"
    sending.apply_reports([DeliveryReport(name, "undelivered", "late")], NOW + 3)
    assert outbox.state("a") == "delivered"


def test_a_report_says_what_became_of_a_sent_message() -> None:
    outbox, channel = MemoryOutbox([message()]), ScriptedChannel()
    sending, _ = sending_of(outbox, channel)
    step(sending, channel, NOW)
    writes = outbox.writes
    sending.apply_reports([DeliveryReport(channel.sent[0], "sent")], NOW)
    assert outbox.writes == writes
    sending.apply_reports([DeliveryReport(channel.sent[0], "undelivered", "the phone is off")], NOW)
    assert (outbox.state("a"), outbox.deliveries["a"].reason) == ("undelivered", "the phone is off")


def test_ids_differ_by_ledger_message_and_refusal_and_by_nothing_else() -> None:
    ids = {
        make_provider_id(namespace, message(name), DeliveryStatus(used_ids=spent))
        for namespace in ("one", "two")
        for name in ("a", "a.1", "house\0a", "\ud800", "é" * 5000)
        for spent in (0, 1)
    }
    assert len(ids) == 20
    assert {len(id_) for id_ in ids} == {32}
    assert make_provider_id("one", message(), DeliveryStatus(tries=7, updated_at=9)) == make_provider_id(
        "one", message(), DeliveryStatus()
    )
