"""What the ledger says, for people: how a case stands, what became of its messages, what is wrong with alerts themselves."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from riverrun.alerts.channels.contract import Delivery
from riverrun.alerts.ledger import Case, Ledger, Letter, Life, Silence
from riverrun.errors.base import sentence
from riverrun.model.record import moment

_STAGES = {
    "gathering": "waits for a digest",
    "cancelled": "not sent: it was over before",
    "dropped": "not sent: quiet hours",
}
_STATES = {
    "due": "waits to be sent",
    "trying": "is being sent",
    "sent": "sent",
    "delivered": "delivered",
    "undelivered": "not delivered",
    "refused": "refused",
    "expired": "too late to be sent",
}
# Why a letter was never sent, as dry runs count it.
UNSENT = {
    "cancelled": "it was over before quiet hours were",
    "dropped": "quiet hours",
    "expired": "it was too old",
    "silenced": "silenced",
    "unaddressed": "nobody to send it to",
}


def clock_text(ms: int) -> str:
    """A moment as a table shows it."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def state_of(ledger: Ledger, case: Case, now: int) -> str:
    """firing, acknowledged, silenced or resolved; once: it fired at a row, and there is nothing to be over."""
    if case.state != "firing":
        return case.state
    if (case.rule, case.key, case.number) in ledger.acks:
        return "acknowledged"
    return "silenced" if any(each.covers(case.rule, case.key, now) for each in ledger.silences.values()) else "firing"


def letters_of(ledger: Ledger, case: Case) -> list[Letter]:
    return [ledger.letters[id_] for id_ in case.letters if id_ in ledger.letters]


def delivery_of(ledger: Ledger, letter: Letter) -> Delivery | None:
    """Where a letter stands at its provider; of one that was listed in a digest, where the digest does."""
    sent = ledger.sent.get(letter.note if letter.stage == "listed" else letter.message.id)
    return sent.delivery if sent is not None else None


def way_of(ledger: Ledger, letter: Letter) -> str:
    """What became of a letter, in a few words."""
    if letter.stage in ("out", "listed"):
        delivery = delivery_of(ledger, letter) or Delivery()
        words = _STATES[delivery.state] + (f": {delivery.reason}" if delivery.reason else "")
        return f"in a digest, {words}" if letter.stage == "listed" else words
    if letter.stage == "held":
        return f"held until {clock_text(letter.until)}"
    return _STAGES.get(letter.stage) or f"not sent: {letter.note or letter.stage}"


def told_of(ledger: Ledger, case: Case) -> str:
    """What became of all letters of a case."""
    ways: dict[str, Counter[str]] = {}
    for each in letters_of(ledger, case):
        ways.setdefault(each.kind, Counter())[way_of(ledger, each)] += 1
    parts = []
    for kind, counted in ways.items():
        words = ", ".join(f"{count} {way}" if count > 1 else way for way, count in counted.items())
        parts.append(words if kind == "fired" else f"{kind}: {words}")
    return "; ".join(parts)


def text_of(ledger: Ledger, case: Case) -> str:
    """What was told first."""
    return next((each.message.text for each in letters_of(ledger, case)), "")


def case_row(ledger: Ledger, case: Case, now: int) -> dict[str, Any]:
    """A case for programs: one row."""
    ack = ledger.acks.get((case.rule, case.key, case.number))
    return {
        "severity": case.severity,
        "alert": case.rule,
        "key": case.key,
        "number": case.number,
        "state": state_of(ledger, case, now),
        "since": moment(case.since),
        "fired": moment(case.at),
        "judged": moment(case.made),
        "ended": moment(case.ended) if case.ended >= 0 else None,
        "acknowledged_by": (ack.by or "somebody") if ack is not None else None,
        "told": told_of(ledger, case),
        "text": text_of(ledger, case),
    }


def case_details(ledger: Ledger, case: Case, now: int) -> dict[str, Any]:
    """A case for programs: all there is."""
    ack = ledger.acks.get((case.rule, case.key, case.number))
    return {
        **case_row(ledger, case, now),
        "acknowledged": moment(ack.at) if ack is not None else None,
        "place": case.place,
        "recorded": moment(case.recorded),
        "escalated": moment(case.escalated) if case.escalated >= 0 else None,
        "row": case.row,
        "messages": [_letter_row(ledger, each) for each in letters_of(ledger, case)],
    }


def _letter_row(ledger: Ledger, letter: Letter) -> dict[str, Any]:
    delivery = delivery_of(ledger, letter) or Delivery()
    return {
        "kind": letter.kind,
        "channel": letter.message.channel,
        "receiver": letter.message.receiver,
        "text": letter.message.text,
        "way": way_of(ledger, letter),
        "stage": letter.stage,
        "note": "" if letter.stage == "listed" else letter.note,
        "made": moment(letter.made),
        "until": moment(letter.until) if letter.until > 0 else None,
        "state": delivery.state if letter.stage in ("out", "listed") else None,
        "at": moment(delivery.at) if delivery.at > 0 else None,
        "reason": delivery.reason,
        "tries": delivery.tries,
        "parts": delivery.parts,
        "provider_id": delivery.provider_id,
    }


def silence_row(silence: Silence) -> dict[str, Any]:
    return {
        "id": silence.id,
        "alert": silence.rule or None,
        "key": silence.key or None,
        "begun": moment(silence.begun),
        "until": moment(silence.until),
        "by": silence.by,
        "why": silence.why,
    }


def troubles(ledger: Ledger, now: int, runs: Callable[[Life], bool]) -> Iterator[str]:
    """Why nobody, or not everybody, is told at the moment: a sentence each. `runs` says whether a process is there."""
    life = ledger.life
    again = "Start it with `riverrun run`"
    if life is None:
        yield f"The alert process has never run, and nobody is told. {again}."
    elif life.ended:
        yield f"The alert process was stopped at {clock_text(life.ended)}, and nobody is told. {again}."
    elif not runs(life):
        yield f"The alert process (pid {life.pid}) is gone, and nobody is told. {again}."
    for each in ledger.channels.values():
        if each.problem:
            where = f" ({each.where})" if each.where else ""
            since = f" since {clock_text(each.since)}" if each.since else ""
            yield f"The channel {each.name}{where} is down{since}, and its messages wait: {sentence(each.problem)}"
    for silence in ledger.silences.values():
        if silence.covers("", "", now):
            yield f"Everything is silenced until {clock_text(silence.until)}: `riverrun alerts unsilence {silence.id}`."
