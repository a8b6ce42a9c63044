"""Dead letters read back: their reasons, which are meant, which were re-driven, and the user's fix."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from riverrun.errors import HandlerError, UsageError
from riverrun.kafka.consumer.dead_letter import DeadLetter, RecordCopy, dead_letter_headers
from riverrun.kafka.consumer.record import Record, RecordDecoder
from riverrun.kafka.consumer.topic_lookup import TopicSelection
from riverrun.kafka.dead_letters.fix import load_fix
from riverrun.kafka.dead_letters.reader import DeadLetterRecord, DeadLetterSelector, reason_pattern
from riverrun.kafka.dead_letters.redrive import RedriveOutcome
from riverrun.kafka.dead_letters.redrive_log import RedriveLog, encode_entry, record_identity, redrive_topic_of
from riverrun.kafka.dead_letters.summary import DeadLetterSummary
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.filters import parse_filter

AT = datetime(2026, 1, 1, tzinfo=UTC)
DECODING: RecordDecoder[Any] = RecordDecoder({})


def letter(
    value: bytes | None = b'{"n": 1}',
    *,
    offset: int = 0,
    of: int = 41,
    stamp: int = 7,
    error: Exception | None = None,
    headers: list[tuple[str, str | bytes | None]] | None = None,
) -> DeadLetterRecord:
    """The letter at t.dead[0]@`offset` of the record t[3]@`of`, which died at `stamp`."""
    died = Message(topic="t", partition=3, offset=of, key=b"k", value=value, timestamp=(TIMESTAMP_CREATE_TIME, 5),
                   headers=headers)  # fmt: skip
    told = dead_letter_headers(Record(died, DECODING), error or ValueError("no"), 1, "g", AT)
    message = Message(topic="t.dead", partition=0, offset=offset, key=b"k", value=value,
                      timestamp=(TIMESTAMP_CREATE_TIME, stamp), headers=told)  # fmt: skip
    record: Record[Any] = Record(message, DECODING)
    found = DeadLetter.from_record(record)
    assert found is not None
    return DeadLetterRecord(record, found)


# --- reasons ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "pattern"),
    [
        (
            "The record readings[2]@41 is not a Reading. Found $.load_kw: expected `float`, got `str`. "
            "Its bytes are in `record.raw`.",
            "E: The record … is not a Reading. Found $.load_kw: expected `float`, got `str`.",
        ),
        ("$.load_kw: expected `float` >= 0.0", "E: $.load_kw: expected `float` >= 0.0"),
        ("JSON is malformed: invalid character (byte 12)", "E: JSON is malformed: invalid character (byte #)"),
        ("no house 'h17' since 2026-07-01T10:00:00Z", "E: no house '…' since #"),
        ("first line\nsecond 1", "E: first line"),
        ("", "E"),
    ],
)
def test_letters_of_one_cause_have_one_reason(message: str, pattern: str) -> None:
    assert reason_pattern("E", message) == pattern


def test_an_endless_reason_is_cut_and_still_found() -> None:
    long = letter(error=ValueError("x" * 500))
    assert len(long.reason_pattern) == 161
    assert DeadLetterSelector(reason=long.reason_pattern).matches(long)


def test_a_reason_is_found_by_its_words_and_by_its_pattern() -> None:
    one = letter(error=KeyError("house 17"))
    assert DeadLetterSelector(reason="keyerror").matches(one)
    assert DeadLetterSelector(reason="House 17").matches(one)
    assert DeadLetterSelector(reason=one.reason_pattern).matches(one)
    assert not DeadLetterSelector(reason="ValueError").matches(one)


def test_conditions_are_on_the_json_of_the_value() -> None:
    both = DeadLetterSelector(reason="no", conditions=[parse_filter("n=1")])
    assert both.matches(letter(b'{"n": 1}'))
    assert not both.matches(letter(b'{"n": 2}'))
    assert not both.matches(letter(b'{"n": 1'))


def test_a_letter_shows_text_or_hexadecimal() -> None:
    text, binary = letter(b"h\xc3\xa9").row(redriven=False), letter(b"\xff\x00").row(redriven=True)
    assert (text["value"], text["key"], text["from"], text["letter"]) == ("hé", "k", "t[3]@41", "t.dead[0]@0")
    assert (binary["value_hex"], binary["redriven"], "value" in binary) == ("ff00", True, False)
    assert letter(None).row(redriven=False)["value"] is None


def test_a_summary_counts_reasons_most_frequent_first() -> None:
    summary = DeadLetterSummary("t.dead")
    for number in range(3):
        summary.add(letter(offset=number, error=ValueError(f"house {number}")), number == 0)
    summary.add(letter(offset=3, error=KeyError(), headers=[("riverrun.redriven", b"t.dead/0/1")]), False)
    assert summary.reason_rows() == [
        {"letters": 3, "waiting": 2, "reason": "ValueError: house #"},
        {"letters": 1, "waiting": 1, "reason": "KeyError"},
    ]
    row = summary.row()
    assert (row["letters"], row["redriven"], row["waiting"], row["died_again"]) == (4, 1, 3, 1)


def test_reasons_are_bounded() -> None:
    summary = DeadLetterSummary("t.dead")
    for number in range(1200):
        summary.add(letter(error=ValueError("reason " + chr(0x4E00 + number))), False)
    assert len(summary.reasons) == 1001
    assert sum(reason.letters for reason in summary.reasons.values()) == 1200


# --- the ledger -------------------------------------------------------------------------------------------------------


def ledger(*sent: DeadLetterRecord, topic_id: str = "id-1") -> RedriveLog:
    found = RedriveLog()
    for each in sent:
        found.apply(*encode_entry(each, topic_id, "now"))
    return found


def test_what_was_sent_is_known() -> None:
    redriven = ledger(letter(offset=4))
    assert redriven.has(letter(offset=4), "id-1")
    assert not redriven.has(letter(offset=5, of=42), "id-1")


def test_a_second_letter_of_the_same_record_was_sent_with_the_first() -> None:
    second = letter(offset=9, stamp=8, error=KeyError())
    assert ledger(letter(offset=4)).has(second, "id-1")


def test_a_dead_letter_topic_made_again_begins_anew() -> None:
    assert not ledger(letter(offset=4)).has(letter(offset=4, of=42, stamp=99), "id-1")


@pytest.mark.parametrize(
    "other", [lambda: letter(offset=9, of=42), lambda: letter(b"{}", offset=9)], ids=["place", "value"]
)
def test_another_record_is_another_record(other: Callable[[], DeadLetterRecord]) -> None:
    assert not ledger(letter(offset=4)).has(other(), "id-1")


def test_a_topic_made_again_has_other_records_at_the_same_places() -> None:
    redriven = ledger(letter(offset=4), topic_id="id-1")
    assert not redriven.has(letter(offset=9), "id-2")
    assert redriven.has(letter(offset=4), "id-2")


def test_a_record_without_a_value_is_not_one_with_an_empty_one() -> None:
    assert record_identity(letter(None), "") != record_identity(letter(b""), "")


def from_source(offset: int, source: str = "garage/1/gate") -> DeadLetterRecord:
    """A letter of what a connector could make no record of."""
    copy = RecordCopy("passages", -1, -1, None, None, b"21.5", [])
    told = dead_letter_headers(copy, ValueError("no"), 1, "app.gates", AT)
    told += [("riverrun.dead.source", source.encode())] if source else []
    message = Message(topic="passages.dead", partition=0, offset=offset, value=b"21.5",
                      timestamp=(TIMESTAMP_CREATE_TIME, 5), headers=told)  # fmt: skip
    record: Record[Any] = Record(message, DECODING)
    found = DeadLetter.from_record(record)
    assert found is not None
    return DeadLetterRecord(record, found)


def test_what_never_was_a_record_says_where_it_came_from() -> None:
    assert from_source(0).origin == "garage/1/gate for passages"
    assert from_source(0, "").origin == "app.gates for passages"
    assert "-1" not in str(from_source(0))


def test_two_equal_messages_of_a_device_are_re_driven_both() -> None:
    redriven = ledger(from_source(4))
    assert redriven.has(from_source(4), "id-1")
    assert not redriven.has(from_source(9), "id-1")


def test_entries_of_letters_that_are_gone_are_taken_back() -> None:
    redriven = ledger(letter(offset=4), letter(offset=7, of=42))
    assert list(redriven.expired_keys({TopicPartition("t.dead", 0): 5})) == [b"0/4"]
    redriven.apply(b"0/4", None)
    assert not redriven.has_letter(letter(offset=4))
    assert redriven.has_letter(letter(offset=7, of=42))


def test_what_is_no_entry_is_not_passed_over() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        RedriveLog().apply(b"x", b"{}")


def test_patterns_of_topics_do_not_mean_dead_letters_nor_their_ledger() -> None:
    import re

    names = ["t", "t.dead", redrive_topic_of("t.dead")]
    assert TopicSelection((), (re.compile("t.*"),)).matching_topics(names) == ["t"]
    assert TopicSelection((redrive_topic_of("t.dead"),)).matching_topics(names) == ["t.dead.redriven"]


def test_an_outcome_has_a_row_for_each_thing_that_happened() -> None:
    found = RedriveOutcome(duplicates=1, redriven_before=2)
    found.sent["t"] += 3
    found.left["still bad"] += 4
    assert [(row["letters"], row["outcome"], row["detail"]) for row in found.rows()] == [
        (3, "sent", "to t"),
        (4, "left", "still bad"),
        (1, "sent", "with another letter of the same record"),
        (2, "re-driven before", ""),
    ]


# --- the user's fix ---------------------------------------------------------------------------------------------------


def script(folder: Path, text: str) -> Path:
    path = folder / "mend.py"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_fix_gives_new_bytes_or_leaves_the_letter(tmp_path: Path) -> None:
    path = script(tmp_path, "def mend(value, letter):\n    return value + letter.error.encode() if value else None\n")
    fix = load_fix(f"{path}:mend")
    assert fix(letter(b"1")) == b"1ValueError"
    assert fix(letter(b"")) is None
    assert fix(letter(None)) is None


def test_the_function_is_named_fix_unless_told(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("SUFFIX = b'!'\n", encoding="utf-8")
    path = script(tmp_path, "from helper import SUFFIX\ndef fix(value, letter): return value + SUFFIX\n")
    assert load_fix(str(path))(letter(b"1")) == b"1!"


def test_a_fix_that_raises_names_the_letter_and_the_line(tmp_path: Path) -> None:
    fix = load_fix(str(script(tmp_path, "def fix(value, letter):\n    return {}['load']\n")))
    with pytest.raises(HandlerError) as caught:
        fix(letter(offset=12))
    assert caught.value.fields["letter"] == "t.dead[0]@12"
    assert caught.value.found == "mend.py:2: KeyError: 'load'"


def test_a_fix_that_gives_text_is_told_so(tmp_path: Path) -> None:
    fix = load_fix(str(script(tmp_path, "def fix(value, letter): return 'text'\n")))
    with pytest.raises(HandlerError, match="it gave str, not bytes or None"):
        fix(letter())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def other(): ...\n", "has no function fix"),
        ("fix = 1\n", "has no function fix"),
        ("async def fix(value, letter): ...\n", "is async"),
        ("def fix(:\n", "mend.py:1: this is not Python"),
        ("x = 1\n1 / 0\n", "mend.py:2: ZeroDivisionError"),
    ],
)
def test_a_fix_that_cannot_be_used_is_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_fix(str(script(tmp_path, text)))
    assert told in str(caught.value)


@pytest.mark.parametrize("name", ["nowhere.py", "nowhere.py:fix", "."])
def test_a_fix_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--fix names no Python file"):
        load_fix(name)
