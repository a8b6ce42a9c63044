"""Manners: from episodes to messages, and when each may go out.

Nothing here reads a clock or sends: `now` is given, what is decided is in the ledger, and `drain` gives what has to be kept
of it. A message's id is made of its rule, key, episode, kind and receiver, so the same episode never makes another one.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import msgspec

from riverrun.alerts.channels.contract import Delivery, Message
from riverrun.alerts.episodes import KEEP_MS, MOST_SWEPT, NEVER, Effect, Fire, Lapse, Resolve
from riverrun.alerts.ledger import (
    Ack,
    Case,
    Change,
    Kind,
    Ledger,
    Letter,
    Record,
    Sent,
    Silence,
    Stage,
    forgotten,
    kept,
)
from riverrun.alerts.rows import packed, unpacked
from riverrun.alerts.rules import Rule
from riverrun.alerts.template import MOST_CHARACTERS, shortened
from riverrun.model.alert import SEVERITIES, ColumnOf, Quiet, clock_time
from riverrun.model.quantity import duration_text

_SWEEP_MS = 60_000
_LINE = 120
_NEW = Delivery()
# Stages of a letter whose receiver was told, or will be.
_TOLD = frozenset({"out", "listed", "gathering"})


@dataclass(frozen=True)
class _Occasion:
    """Why something is written: the case, the row behind it with what is known of its key, and Kafka's time of that."""

    rule: Rule
    case: Case
    whole: Mapping[str, Any]
    recorded: int
    now: int


class Desk:
    """Decides over the cases and letters of a ledger."""

    def __init__(self, rules: Iterable[Rule], ledger: Ledger, *, keep_ms: int = KEEP_MS) -> None:
        self._rules = {each.name: each for each in rules}
        self.ledger = ledger
        self._keep_ms = keep_ms
        self._changes: dict[bytes, bytes | None] = {}
        self._swept = 0
        # Held or gathering, the first time that one of them is to go, and who gathers since when.
        self._waiting: set[str] = set()
        self._next = NEVER
        self._gathers: dict[tuple[str, str], int] = {}
        for each in ledger.letters.values():
            self._await(each)
        # The sender's, in the order in which they went out.
        out = sorted((each for each in ledger.letters.values() if each.stage == "out"), key=_order)
        self._open = {each.message.id: each for each in out if not self._gone(each.message.id)}
        self._ended: Counter[tuple[str, str]] = Counter()
        # Decided, and not in the ledger yet.
        self._fresh: set[str] = set()
        self._providers = {
            each.delivery.provider_id: id_ for id_, each in ledger.sent.items() if each.delivery.provider_id
        }
        self._unanswered = {place for place, each in ledger.cases.items() if self._may_escalate(each)}
        # Before that none of them is to be escalated.
        self._next_escalation = self._first_escalation()
        # When letters went out to each receiver, for digests.
        self._recent: dict[tuple[str, str], deque[int]] = {}
        for each in out:
            self._note(each.message, each.until)

    @property
    def ended(self) -> Counter[tuple[str, str]]:
        """How many letters were never sent, by rule and stage ("unaddressed": to nobody), since this desk was made."""
        return self._ended

    def drain(self) -> list[Change]:
        """What has to be kept since the last call."""
        found = list(self._changes.items())
        self._changes.clear()
        return found

    @property
    def changed(self) -> bool:
        return bool(self._changes)

    def published(self) -> bool:
        """What was drained is kept, and may be sent; whether there is anything new to send."""
        new = bool(self._fresh)
        self._fresh.clear()
        return new

    def _put(self, record: Record) -> None:
        self.ledger.put(record)
        if isinstance(record, Letter) and record.stage in ("out", "listed") and record.rule in self._rules:
            escalate = self._rules[record.rule].alert.escalate
            after = escalate.after_ms if escalate is not None else NEVER
            self._next_escalation = min(self._next_escalation, record.until + after)
        key, value = kept(record)
        self._changes[key] = value

    # --- what episodes lead to ---

    def take(self, effect: Effect, now: int) -> None:
        if isinstance(effect, Fire):
            self._fired(self._rules[effect.rule], effect, now)
        elif isinstance(effect, Resolve):
            self._resolved(self._rules[effect.rule], effect, now)
        else:
            self._lapsed(effect, now)

    def _fired(self, rule: Rule, fire: Fire, now: int) -> None:
        whole = rule.whole(fire.row)
        case = Case(
            rule=fire.rule, key=fire.key, number=fire.number, place=fire.place, since=fire.since, at=fire.at,
            recorded=fire.recorded, made=now, row=packed(whole), severity=rule.alert.severity,
            state="once" if rule.alert.every_row else "firing",
        )  # fmt: skip
        text = rule.text.fill(whole, rule.zone(whole))
        receivers = rule.receivers(fire.row)
        why = _Occasion(rule, case, whole, fire.recorded, now)
        case.letters = [self._write(why, "fired", to, text) for to in receivers]
        if not receivers:
            case.letters = [self._unaddressed(rule, case, text, now)]
        self._put(case)
        if self._may_escalate(case):
            self._unanswered.add((case.rule, case.key, case.number))

    def _resolved(self, rule: Rule, over: Resolve, now: int) -> None:
        case = self._over(over, now)
        if case is None:
            return
        letters = [self.ledger.letters[id_] for id_ in case.letters if id_ in self.ledger.letters]
        told = [
            each.message.receiver
            for each in letters
            if each.stage in _TOLD and self._delivery(each.message.id).state not in ("refused", "expired")
        ]
        if rule.resolved is not None:
            whole = rule.whole(over.row)
            text = rule.resolved.fill(whole, rule.zone(whole))
            why = _Occasion(rule, case, whole, over.recorded, now)
            case.letters += [self._write(why, "resolved", to, text) for to in dict.fromkeys(told)]
        self._put(case)

    def _lapsed(self, lapse: Lapse | Case, now: int) -> None:
        """It is over, and nobody is told: nobody knows since when."""
        case = self._over(lapse, now)
        if case is not None:
            self._put(case)

    def _over(self, what: Resolve | Lapse | Case, now: int) -> Case | None:
        """The case as it is at its end; None when it has ended before. What was held of it goes no more."""
        place = (what.rule, what.key, what.number)
        case = self.ledger.cases.get(place)
        self._unanswered.discard(place)
        if case is None or case.state != "firing":
            return None
        for id_ in case.letters:
            letter = self.ledger.letters.get(id_)
            if letter is not None and letter.stage == "held":
                self._end(letter, "cancelled", "it was over before it was sent")
        return msgspec.structs.replace(case, state="resolved", ended=now, letters=list(case.letters))

    def _write(self, why: _Occasion, kind: Kind, to: str, text: str) -> str:
        """A letter, and whether it may go out now."""
        alert, case, now = why.rule.alert, why.case, why.now
        stage, until, note = self._judged(why, kind)
        # What is held for quiet hours is as fresh after them as it was before.
        begun = until if stage == "held" else why.recorded
        message = Message(
            id=message_id(case.rule, case.key, case.number, kind, to),
            channel=alert.channel,
            receiver=to,
            text=text,
            severity=alert.severity,
            expires=begun + alert.expires_ms if alert.expires_ms >= 0 else 0,
        )
        if message.id in self.ledger.letters:
            return message.id
        letter = Letter(
            message=message, rule=case.rule, key=case.key, number=case.number, kind=kind, made=now,
            stage=stage, until=until, note=note,
        )  # fmt: skip
        self._release(letter, now) if stage == "out" else self._keep(letter)
        return message.id

    def _judged(self, why: _Occasion, kind: Kind) -> tuple[Stage, int, str]:
        alert, now, age = why.rule.alert, why.now, why.now - why.recorded
        if 0 <= alert.expires_ms < age:
            return "expired", now, f"the row was {duration_text(_whole_seconds(age))} old"
        if (silence := self._silence(why.case.rule, why.case.key, now)) is not None:
            return "silenced", now, _words(silence)
        if alert.quiet is not None and kind != "escalated":
            until = quiet_until(alert.quiet, why.rule.zone(why.whole), now)
            if until is not None:
                dropped = alert.quiet.then == "drop"
                return ("dropped" if dropped else "held"), (now if dropped else until), "quiet hours"
        return "out", now, ""

    def _silence(self, rule: str, key: str, now: int) -> Silence | None:
        return next((each for each in self.ledger.silences.values() if each.covers(rule, key, now)), None)

    def _unaddressed(self, rule: Rule, case: Case, text: str, now: int) -> str:
        self._ended[case.rule, "unaddressed"] += 1
        to = rule.alert.to
        name = to.column if isinstance(to, ColumnOf) else to
        id_ = message_id(case.rule, case.key, case.number, "fired", "")
        message = Message(id=id_, channel=rule.alert.channel, receiver="", text=text, severity=rule.alert.severity)
        self._put(
            Letter(message=message, rule=case.rule, key=case.key, number=case.number, kind="fired", made=now, until=now)
        )
        self._put(
            Sent(id=id_, delivery=Delivery(state="refused", at=now, reason=f"nobody to send it to: {name} is empty"))
        )
        return id_

    # --- letters ---

    def _keep(self, letter: Letter) -> None:
        self._put(letter)
        self._await(letter)
        if letter.stage not in _TOLD and letter.stage != "held":
            self._ended[letter.rule, letter.stage] += 1

    def _await(self, letter: Letter) -> None:
        if letter.stage in ("held", "gathering"):
            self._waiting.add(letter.message.id)
            self._next = min(self._next, letter.until)
        if letter.stage == "gathering":
            self._gathers[letter.message.channel, letter.message.receiver] = letter.until

    def _end(self, letter: Letter, stage: Stage, note: str) -> None:
        self._waiting.discard(letter.message.id)
        self._keep(msgspec.structs.replace(letter, stage=stage, note=note))

    def _release(self, letter: Letter, now: int) -> None:
        """It may go: at once, or in a digest when there were many."""
        message, rule = letter.message, self._rules.get(letter.rule)
        digest = rule.alert.digest if rule is not None else None
        if digest is not None and letter.kind in ("fired", "resolved"):
            until = self._gathers.get((message.channel, message.receiver))
            if until is not None or self._count(message, now, digest.within_ms) >= digest.most:
                until = now + digest.within_ms if until is None else until
                self._keep(msgspec.structs.replace(letter, stage="gathering", until=until))
                return
        self._send_off(letter, now)

    def _send_off(self, letter: Letter, now: int) -> None:
        self._waiting.discard(letter.message.id)
        letter = msgspec.structs.replace(letter, stage="out", until=now)
        self._open[letter.message.id] = letter
        self._fresh.add(letter.message.id)
        self._put(letter)
        self._note(letter.message, now)

    def _note(self, message: Message, at: int) -> None:
        self._recent.setdefault((message.channel, message.receiver), deque(maxlen=1000)).append(at)

    def _count(self, message: Message, now: int, within: int) -> int:
        recent = self._recent.get((message.channel, message.receiver), ())
        return sum(1 for at in recent if at > now - within)

    # --- as time passes ---

    def tick(self, now: int) -> None:
        """What is due because it is now so late: quiet hours over, digests, escalations, and old things to forget."""
        if now >= self._next:
            self._let_go(now)
        if now >= self._next_escalation:
            for place in [each for each in self._unanswered if self._escalates_at(self.ledger.cases[each]) <= now]:
                self._escalate(self.ledger.cases[place], now)
            self._next_escalation = self._first_escalation()
        if now - self._swept >= _SWEEP_MS:
            self._sweep(now)

    def moments(self, now: int) -> Iterator[int]:
        """For a clock that does not run by itself: let the time until `now` pass. Gives each moment at which something was
        due, and `now`."""
        while (due := min(self._next, self._next_escalation)) < now:
            self.tick(due)
            yield due
        self.tick(now)
        yield now

    def _first_escalation(self) -> int:
        return min((self._escalates_at(self.ledger.cases[each]) for each in self._unanswered), default=NEVER)

    def _let_go(self, now: int) -> None:
        letters = [self.ledger.letters[id_] for id_ in self._waiting]
        due = sorted((each for each in letters if each.until <= now), key=_order)
        self._next = min((each.until for each in letters if each.until > now), default=NEVER)
        together: dict[tuple[str, str], list[Letter]] = {}
        for each in due:
            if each.stage == "gathering":
                together.setdefault((each.message.channel, each.message.receiver), []).append(each)
                continue
            self._waiting.discard(each.message.id)
            silence = self._silence(each.rule, each.key, now)
            self._end(each, "silenced", _words(silence)) if silence else self._release(each, now)
        for who, several in together.items():
            self._gathers.pop(who, None)
            self._digest(several, now)

    def _digest(self, letters: Sequence[Letter], now: int) -> None:
        if len(letters) == 1:
            self._send_off(letters[0], now)
            return
        first = letters[0].message
        worst = max((each.message.severity for each in letters), key=_rank)
        message = Message(
            id=_json(["digest", *_parts(first.id)]),
            channel=first.channel,
            receiver=first.receiver,
            text=_listed([each.message.text for each in letters]),
            severity=worst,
            expires=max(each.message.expires for each in letters)
            if all(each.message.expires for each in letters)
            else 0,
        )
        digest = Letter(
            message=message, rule=letters[0].rule, key=letters[0].key, number=letters[0].number, kind="digest", made=now,
            lists=[each.message.id for each in letters],
        )  # fmt: skip
        for each in letters:
            self._end(each, "listed", message.id)
        self._send_off(digest, now)

    def _may_escalate(self, case: Case) -> bool:
        rule = self._rules.get(case.rule)
        return (
            rule is not None and rule.alert.escalate is not None and case.state == "firing" and case.escalated < 0
            and (case.rule, case.key, case.number) not in self.ledger.acks
        )  # fmt: skip

    def _escalates_at(self, case: Case) -> int:
        """When others are to be told; never, as long as nobody was."""
        escalate = self._rules[case.rule].alert.escalate
        out = [self.ledger.letters[id_] for id_ in case.letters if id_ in self.ledger.letters]
        since = [each.until for each in out if each.stage in ("out", "listed")]
        return min(since) + escalate.after_ms if escalate is not None and since else NEVER

    def _escalate(self, case: Case, now: int) -> None:
        rule = self._rules[case.rule]
        escalate = rule.alert.escalate
        self._unanswered.discard((case.rule, case.key, case.number))
        if escalate is None:
            return
        columns = [*rule.table.columns, *(rule.lookup.columns if rule.lookup else ())]
        whole = unpacked(columns, case.row)
        words = f"Nobody acknowledged this for {duration_text(escalate.after_ms)}: "
        text = shortened(words + rule.text.fill(whole, rule.zone(whole)), MOST_CHARACTERS)
        why = _Occasion(rule, case, whole, now, now)
        made = [self._write(why, "escalated", to, text) for to in escalate.to]
        self._put(msgspec.structs.replace(case, escalated=now, letters=[*case.letters, *made]))

    def _sweep(self, now: int) -> None:
        """End what nobody judges any more, and forget what ended long ago, a few at a time."""
        self._swept = now
        before = now - self._keep_ms
        for case in [each for each in self.ledger.cases.values() if each.rule not in self._rules]:
            self._lapsed(case, now)
        young = {
            place
            for place, each in self.ledger.cases.items()
            if each.state == "firing" or max(each.made, each.ended) >= before
        }
        letters = {
            id_: each
            for id_, each in self.ledger.letters.items()
            if each.made < before
            and id_ not in self._waiting
            and (each.stage != "out" or self._gone(id_))
            and (each.rule, each.key, each.number) not in young
        }
        # A case goes after its letters, and the episode after its case: so an id is not used again while a letter has it.
        cases = [
            each
            for place, each in self.ledger.cases.items()
            if place not in young and all(id_ in letters or id_ not in self.ledger.letters for id_ in each.letters)
        ]
        silences = [each for each in self.ledger.silences.values() if each.until < before]
        old: list[Record] = [*letters.values(), *cases, *silences]
        for each in old[:MOST_SWEPT]:
            gone: list[Record | None] = [each]
            if isinstance(each, Case):
                gone.append(self.ledger.acks.get((each.rule, each.key, each.number)))
            elif isinstance(each, Letter):
                gone.append(self.ledger.sent.get(each.message.id))
                self._open.pop(each.message.id, None)
                self._providers.pop(self._delivery(each.message.id).provider_id, None)
            for record in gone:
                if record is None:
                    continue
                key, value = forgotten(record)
                self.ledger.take(key, value)
                self._changes[key] = value
        self._recent = {who: at for who, at in self._recent.items() if at and at[-1] > now - 86_400_000}

    # --- what people and the sender say ---

    def told(self, record: Record) -> None:
        """Somebody silenced or acknowledged: a record that is in the ledger already."""
        if isinstance(record, Silence | Ack):
            self.ledger.put(record)
        if isinstance(record, Ack):
            self._unanswered.discard((record.rule, record.key, record.number))

    def due(self, now: int) -> list[tuple[Message, Delivery]]:
        """What the sender is to try, oldest first. That something is over is not told before that it began."""
        found = []
        for id_, letter in self._open.items():
            delivery = self._delivery(id_)
            if id_ in self._fresh or delivery.again > now or (letter.kind == "resolved" and self._awaits_fired(letter)):
                continue
            found.append((letter.message, delivery))
        return found

    def _awaits_fired(self, letter: Letter) -> bool:
        first = message_id(letter.rule, letter.key, letter.number, "fired", letter.message.receiver)
        return first in self._open or first in self._waiting

    def moving(self, changes: Mapping[str, Delivery]) -> list[Change]:
        """What to keep of where letters stand at the provider."""
        return [kept(Sent(id=id_, delivery=delivery)) for id_, delivery in changes.items()]

    def moved(self, changes: Mapping[str, Delivery]) -> None:
        """That is kept, and so it holds."""
        for id_, delivery in changes.items():
            self.ledger.put(Sent(id=id_, delivery=delivery))
            if delivery.provider_id:
                self._providers[delivery.provider_id] = id_
            if self._gone(id_):
                self._open.pop(id_, None)

    def out(self) -> list[tuple[Message, Delivery]]:
        """All that ever went to a channel, as far as it is remembered, and where it stands."""
        return [
            (self.ledger.letters[id_].message, each.delivery)
            for id_, each in self.ledger.sent.items()
            if id_ in self.ledger.letters
        ]

    def find(self, provider_id: str) -> tuple[str, Delivery] | None:
        """The message that a provider knows by this id, and where it stands."""
        id_ = self._providers.get(provider_id)
        return (id_, self._delivery(id_)) if id_ is not None else None

    def _delivery(self, id_: str) -> Delivery:
        sent = self.ledger.sent.get(id_)
        return sent.delivery if sent is not None else _NEW

    def _gone(self, id_: str) -> bool:
        """It is not the sender's any more: sent, or never to be."""
        delivery = self._delivery(id_)
        return delivery.over or delivery.state == "sent"


def _order(letter: Letter) -> tuple[int, int, str]:
    return letter.until, letter.made, letter.message.id


def _words(silence: Silence) -> str:
    return f"silenced{f' by {silence.by}' if silence.by else ''}{f': {silence.why}' if silence.why else ''}"


def message_id(rule: str, key: str, number: int, kind: str, to: str) -> str:
    return _json([rule, key, number, kind, to])


def _json(parts: Sequence[Any]) -> str:
    return msgspec.json.encode(parts).decode()


def _parts(id_: str) -> list[Any]:
    return msgspec.json.decode(id_, type=list[Any])


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else 0


def _listed(texts: Sequence[str]) -> str:
    """Many messages as one: as many of them as fit, one a line."""
    head = f"{len(texts)} alerts:"
    lines: list[str] = []
    for number, text in enumerate(texts):
        line = f"- {shortened(text.replace(chr(10), ' '), _LINE)}"
        more = f"and {len(texts) - number} more"
        if len("\n".join([head, *lines, line, more])) > MOST_CHARACTERS:
            lines.append(more)
            break
        lines.append(line)
    return "\n".join([head, *lines])


def _whole_seconds(ms: int) -> int:
    return max(1000, ms // 1000 * 1000)


def quiet_until(quiet: Quiet, zone: tzinfo, now: int) -> int | None:
    """When the quiet hours that it is now in are over; None when it is not in any."""
    local = datetime.fromtimestamp(now / 1000, UTC).astimezone(zone)
    begin, end, time = clock_time(quiet.begin), clock_time(quiet.end), local.time()
    inside = begin <= time < end if begin < end else time >= begin or time < end
    if not inside:
        return None
    day = local.date() if time < end else local.date() + timedelta(days=1)
    return round(datetime.combine(day, end, zone).timestamp() * 1000)
