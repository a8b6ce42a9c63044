"""What a page is told of the ledger. Nothing here reads a clock or the network.

Who is told is personal: lists have receivers masked, and only one case's details have them whole.
"""

import hashlib
import heapq
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from riverrun.alerts.channels.contract import Delivery
from riverrun.alerts.ledger import Case, Ledger, Letter, Life, Silence
from riverrun.model.alert import SEVERITIES

MOST_FIRING = 500
MOST_HISTORY = 300
MOST_DEAD = 100
MOST_RECEIVERS = 3
MOST_VALUE = 4000

# Nobody was told, and it is somebody's or something's wish.
_KEPT_BACK = frozenset({"held", "gathering", "silenced", "dropped"})
_WAITS = frozenset({"held", "gathering"})
_DEAD = frozenset({"refused", "undelivered"})
_WORDS = {"due": "waiting", "trying": "sending"}
_NEW = Delivery()
# Country codes of one and two digits; all others have three.
_SHORT_CODES = re.compile(r"\+?(1|7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58])")

Place = tuple[str, str, int]


def state_of(ledger: Ledger, now: int, *, declared: Iterable[str] = ()) -> dict[str, Any]:
    """The whole page: `cases` and `dead` by an id, each case with the list it is in, and how many there are in all."""
    silences = _Silences(ledger.silences.values(), now)
    lists = _sorted_out(ledger, silences)
    shown = {
        "firing": heapq.nlargest(MOST_FIRING, lists["firing"], key=_urgency),
        "held": heapq.nlargest(MOST_FIRING, lists["held"], key=_urgency),
        "history": heapq.nlargest(MOST_HISTORY, lists["history"], key=lambda each: each.made),
    }
    cases = {
        _id(_place(each)): {"list": name, **_case(ledger, each, silences)}
        for name, some in shown.items()
        for each in some
    }
    unanswered = [each for each in lists["firing"] if _place(each) not in ledger.acks]
    dead = _dead(ledger)
    return {
        "rules": sorted({*declared, *(ledger.life.rules if ledger.life else ()), *(rule for rule, _, _ in ledger.cases)}),
        "count": len(unanswered),
        "worst": max((each.severity for each in unanswered), key=_rank, default=""),
        "totals": {**{name: len(some) for name, some in lists.items()}, "dead": len(dead)},
        "channels": [
            {"name": each.name, "where": each.where, "problem": each.problem, "since": each.since}
            for each in sorted(ledger.channels.values(), key=lambda each: each.name)
        ],
        "silences": [_silence(each) for each in sorted(silences.active, key=lambda each: (each.until, each.id))],
        "cases": cases,
        "dead": {_id(each.message.id): _dead_letter(ledger, each) for each in dead[:MOST_DEAD]},
    }  # fmt: skip


def _sorted_out(ledger: Ledger, silences: "_Silences") -> dict[str, list[Case]]:
    """Every case, by the list it is in."""
    lists: dict[str, list[Case]] = {"firing": [], "held": [], "history": []}
    waits = {(each.rule, each.key, each.number) for each in ledger.letters.values() if each.stage in _WAITS}
    for place, case in ledger.cases.items():
        if case.state != "firing":
            lists["held" if place in waits else "history"].append(case)
        elif silences.over(case.rule, case.key) is not None:
            lists["held"].append(case)
        else:
            stages = {each.stage for each in _letters(ledger, case)}
            lists["held" if stages and stages <= _KEPT_BACK else "firing"].append(case)
    return lists


class _Silences:
    """Those that hold now, found by rule and key."""

    def __init__(self, silences: Iterable[Silence], now: int) -> None:
        self.active = [each for each in silences if now < each.until]
        self._found: dict[tuple[str, str], Silence] = {}
        for each in sorted(self.active, key=lambda each: each.until):
            self._found[each.rule, each.key] = each

    def over(self, rule: str, key: str) -> Silence | None:
        for place in ((rule, key), (rule, ""), ("", key), ("", "")):
            if (found := self._found.get(place)) is not None:
                return found
        return None


def _place(case: Case) -> Place:
    return case.rule, case.key, case.number


def _id(name: object) -> str:
    """A name for a page: that of a letter holds its receiver."""
    return hashlib.blake2b(msgspec.json.encode(name), digest_size=9).hexdigest()


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else -1


def _urgency(case: Case) -> tuple[int, int]:
    return _rank(case.severity), case.made


def _letters(ledger: Ledger, case: Case) -> list[Letter]:
    return [found for id_ in case.letters if (found := ledger.letters.get(id_)) is not None]


def _delivery(ledger: Ledger, letter: Letter) -> Delivery:
    """Where it stands at the provider; of one that is in a digest, where that does."""
    sent = ledger.sent.get(letter.note if letter.stage == "listed" else letter.message.id)
    return sent.delivery if sent is not None else _NEW


def _stands(ledger: Ledger, letter: Letter) -> str:
    if letter.stage not in ("out", "listed"):
        return letter.stage
    state = _delivery(ledger, letter).state
    return _WORDS.get(state, state)


# --- lists ---


def _case(ledger: Ledger, case: Case, silences: _Silences) -> dict[str, Any]:
    letters = _letters(ledger, case)
    receivers = list(dict.fromkeys(each.message.receiver for each in letters if each.message.receiver))
    waits = [each for each in letters if each.stage in _WAITS]
    silence = silences.over(case.rule, case.key)
    return {
        "rule": case.rule,
        "key": case.key,
        "number": case.number,
        "severity": case.severity,
        "state": case.state,
        "made": case.made,
        "ended": case.ended,
        "escalated": case.escalated > 0,
        # What is over is known by what it began with.
        "text": letters[-1 if case.state == "firing" else 0].message.text if letters else "",
        "to": [masked(each) for each in receivers[:MOST_RECEIVERS]],
        "others": max(0, len(receivers) - MOST_RECEIVERS),
        "sent": dict(Counter(_stands(ledger, each) for each in letters)),
        "reason": next((reason for each in letters if (reason := _reason(ledger, each))), ""),
        "until": min((each.until for each in waits), default=0),
        "ack": _ack(ledger, case),
        "silence": _silence(silence) if silence is not None and case.state == "firing" else None,
    }


def _reason(ledger: Ledger, letter: Letter) -> str:
    """Why it is not there yet, or never will be, without the number it was for."""
    if letter.stage not in ("out", "listed"):
        return letter.note
    delivery = _delivery(ledger, letter)
    if delivery.state in ("sent", "delivered"):
        return ""
    to = letter.message.receiver
    return delivery.reason.replace(to, masked(to)) if to else delivery.reason


def _ack(ledger: Ledger, case: Case) -> dict[str, Any] | None:
    ack = ledger.acks.get(_place(case))
    return {"by": ack.by, "at": ack.at} if ack is not None else None


def _silence(silence: Silence) -> dict[str, Any]:
    return {
        "id": silence.id, "rule": silence.rule, "key": silence.key, "begun": silence.begun, "until": silence.until,
        "by": silence.by, "why": silence.why,
    }  # fmt: skip


def _dead(ledger: Ledger) -> list[Letter]:
    found = (ledger.letters.get(id_) for id_, each in ledger.sent.items() if each.delivery.state in _DEAD)
    return sorted((each for each in found if each is not None), key=lambda each: _told_at(ledger, each), reverse=True)


def _told_at(ledger: Ledger, letter: Letter) -> int:
    return _delivery(ledger, letter).at or letter.made


def _dead_letter(ledger: Ledger, letter: Letter) -> dict[str, Any]:
    delivery = _delivery(ledger, letter)
    return {
        "rule": letter.rule,
        "key": letter.key,
        "number": letter.number,
        "kind": letter.kind,
        "to": masked(letter.message.receiver),
        "channel": letter.message.channel,
        "state": delivery.state,
        "reason": _reason(ledger, letter),
        "at": _told_at(ledger, letter),
        "text": letter.message.text,
    }


def masked(receiver: str) -> str:
    """A receiver that one recognises and cannot call: country and last digits of a number, the host of an address."""
    digits = re.sub(r"\D", "", receiver)
    name, at, host = receiver.rpartition("@")
    if at and name:
        return f"{name[0]}•••@{host}"
    if len(digits) < 5:
        return receiver
    last = digits[-4:] if len(digits) > 8 else digits[-2:]
    if not receiver.lstrip().startswith("+"):
        return f"••• {last}"
    code = _SHORT_CODES.match(digits)
    return f"+{code[1] if code else digits[:3]} ••• {last}"


# --- one case ---


def details_of(ledger: Ledger, place: Place, now: int) -> dict[str, Any] | None:
    """One case whole; None when there is none."""
    case = ledger.cases.get(place)
    if case is None:
        return None
    silence = _Silences(ledger.silences.values(), now).over(case.rule, case.key)
    return {
        "id": _id(place),
        "rule": case.rule,
        "key": case.key,
        "number": case.number,
        "severity": case.severity,
        "state": case.state,
        "place": case.place,
        "since": case.since,
        "at": case.at,
        "recorded": case.recorded,
        "made": case.made,
        "ended": case.ended,
        "escalated": case.escalated,
        "row": [{"name": name, **_value(value)} for name, value in case.row.items()],
        "letters": [_letter(ledger, each) for each in _letters(ledger, case)],
        "ack": _ack(ledger, case),
        "silence": _silence(silence) if silence is not None else None,
    }


def _value(value: Any) -> dict[str, Any]:
    if value is None:
        return {"value": None, "cut": False}
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return {"value": text[:MOST_VALUE], "cut": len(text) > MOST_VALUE}


def _letter(ledger: Ledger, letter: Letter) -> dict[str, Any]:
    delivery = _delivery(ledger, letter)
    digest = ledger.letters.get(letter.note) if letter.stage == "listed" else None
    note = (
        letter.note if letter.stage != "listed" else f"in a digest of {len(digest.lists)}" if digest else "in a digest"
    )
    return {
        "to": letter.message.receiver,
        "channel": letter.message.channel,
        "kind": letter.kind,
        "text": letter.message.text,
        "stage": letter.stage,
        "note": note,
        "state": _stands(ledger, letter),
        "reason": delivery.reason,
        "tries": delivery.tries,
        "parts": delivery.parts,
        "made": letter.made,
        "until": letter.until,
        "again": delivery.again if not delivery.over else 0,
        "at": delivery.at,
        "expires": letter.message.expires,
    }


# --- the process ---


def process_of(life: Life | None, alive: bool | None) -> dict[str, Any]:
    """How the process is that judges and sends. `alive`: whether its pid lives, where that can be known."""
    if life is None:
        return {"state": "never", "since": 0, "pid": 0, "host": ""}
    state = "ended" if life.ended else "died" if alive is False else "running"
    return {"state": state, "since": life.ended or life.begun, "pid": life.pid, "host": life.host}


def difference(before: Mapping[str, Any], now: Mapping[str, Any], keyed: Sequence[str]) -> dict[str, Any]:
    """What a page has to be told: what changed; of the keyed parts, the items that did, None for one that is gone."""
    change = {name: value for name, value in now.items() if name not in keyed and before.get(name, ...) != value}
    for name in keyed:
        old, new = before.get(name, {}), now[name]
        items = {id_: item for id_, item in new.items() if old.get(id_) != item}
        items |= dict.fromkeys(old.keys() - new.keys())
        if items:
            change[name] = items
    return change
