"""Trying an alert on a row: what it would say, and one message that is marked."""

import pytest

from riverrun.alerts.channels.contract import (
    AlertMessage,
    MessageCheck,
    OutcomeUnknown,
    SendDeferred,
    SendRefused,
    SendResult,
)
from riverrun.alerts.preview import find_newest_row, parse_row, preview_rule, send_test_message
from riverrun.errors import UsageError
from riverrun.model.table import Column
from support.alerting import ScriptedChannel
from support.watching import NOON, record, rule, table

MESSAGE = AlertMessage(id="1", channel="sms", receiver="+1", text="x")


def test_the_newest_row_is_used_and_what_is_none_is_passed_over() -> None:
    broken = record(3, 0, 1.0)
    good = record(2, 0, 3.25, "h2")
    seen = find_newest_row(rule(), [type(broken)("house_now", 0, 3, NOON, b"{"), good, record(1, 0, 1.0)])
    assert seen is not None
    found = preview_rule(rule(resolved="House {house_id} is fine."), seen)
    assert (found.text, found.resolved) == ("House h2 draws 3.2 kW.", "House h2 is fine.")
    assert (found.key, found.holds, found.receivers, str(found.row)) == ("h2", True, ("+353h2",), "house_now[0]@2")
    assert find_newest_row(rule(), []) is None


def test_a_message_is_marked_only_as_a_test() -> None:
    found = preview_rule(rule(severity="critical"), parse_row(rule(), '{"house_id": "h1", "load_kw": 1}', NOON), "+1")
    assert (found.holds, found.receivers) == (False, ("+1",))
    real, marked = (found.message("+1", mark_as_test=marked, now=NOON) for marked in (False, True))
    assert (real.text, marked.text) == ("House h1 draws 1.0 kW.", "TEST: House h1 draws 1.0 kW.")
    assert real.id != marked.id
    assert (marked.severity, marked.expires > NOON) == ("critical", True)


def test_a_given_row_has_a_time_of_its_own_or_now() -> None:
    assert parse_row(rule(), "{}", NOON).event_time == NOON
    assert parse_row(rule(), '{"at": "1970-01-01T00:00:01Z"}', NOON).event_time == 1000
    window = table(columns=(Column("minute", "timestamp", ("minute", "start")), *table().columns), time="minute")
    assert parse_row(rule(over=window), "{}", NOON).event_time == NOON


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "--row is no JSON object"),
        ("{", "--row is no JSON object"),
        ('{"hous_id": 1}', "Did you mean house_id?"),
        ('{"load_kw": "much"}', "load_kw is not double: much"),
        ('{"at": "noon"}', "at is not timestamp"),
    ],
)
def test_what_is_no_row_is_refused(text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_row(rule(), text, NOON)
    assert told in str(caught.value)


def test_no_single_row_tells_of_absence() -> None:
    absent = rule(silent="15 minutes")
    assert preview_rule(absent, parse_row(absent, "{}", NOON)).holds is None


class LostAnswer(ScriptedChannel):
    """Takes it, and nobody hears of that."""

    def send(self, message: AlertMessage, provider_id: str) -> SendResult:
        super().send(message, provider_id)
        return OutcomeUnknown("no answer")


@pytest.mark.parametrize(
    ("channel", "sent", "words"),
    [
        (ScriptedChannel(), True, "taken as "),
        (ScriptedChannel(SendRefused("no such number")), False, "refused: no such number"),
        (ScriptedChannel(SendDeferred("it is down")), False, "not now: it is down"),
        (ScriptedChannel(OutcomeUnknown("no answer")), False, "nobody knows whether it is out: no answer"),
        (LostAnswer(), True, "taken as "),
    ],
)
def test_the_answer_is_told(channel: ScriptedChannel, sent: bool, words: str) -> None:
    done, told = send_test_message(channel, MESSAGE)
    assert (done, told.startswith(words)) == (sent, True)
    send_test_message(channel, MESSAGE)
    assert len(set(channel.sent)) == 2


def test_what_cannot_be_sent_is_not_tried() -> None:
    channel = ScriptedChannel()
    channel.check_result = MessageCheck(problem="the text is empty")
    assert send_test_message(channel, MESSAGE) == (False, "the text is empty")
    assert channel.sent == []
