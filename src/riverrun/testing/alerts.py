"""Alerts in a test: the app's own rules over the rows of the kit, with the rows' own time as the clock. Nothing is sent.

Between two rows the clock stops wherever something is due (the end of quiet hours, a digest, an escalation, a key that was
silent for too long), as it would while the process runs.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from riverrun.alerts.channels.contract import Delivery
from riverrun.alerts.engine import Incoming, Watch
from riverrun.alerts.episodes import NEVER, Effect
from riverrun.alerts.ledger import Ack, Kind, Ledger, Letter, Silence
from riverrun.alerts.manners import Desk
from riverrun.alerts.rows import MisfitError, RowReader
from riverrun.alerts.rules import Rule
from riverrun.errors import UsageError
from riverrun.model.near import nearest
from riverrun.model.table import RECORD_TIME
from riverrun.model.when import epoch_ms
from riverrun.testing.topics import Sent

_WHO = "the test"


@dataclass(frozen=True)
class Told:
    """A message of an alert. `stage` is "sent"; else "held", "gathering" or "listed" (for, or in, a digest), "silenced",
    "dropped" or "cancelled" (quiet hours), "expired", "refused" (nobody to send it to), with the reason in `note`.
    `at` is when it was sent; of one that was not, when it was made."""

    alert: str
    kind: Kind
    key: str
    receiver: str
    text: str
    at: datetime
    stage: str = "sent"
    note: str = ""


class Judge:
    """Takes the steps of a test, one after another."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._readers = {each.table.topic: RowReader(each.table) for each in rules}
        self._ledger = Ledger()
        self._watch = Watch(rules, self._ledger)
        self._desk = Desk(rules, self._ledger, keep_ms=NEVER)
        self._offsets: Counter[str] = Counter()
        self._sent: dict[str, int] = {}
        self._now = -1
        self.topics = sorted(self._readers)
        self.steps_done = 0

    def step(
        self,
        records: Mapping[str, Sequence[Sent]],
        reached: Mapping[str, datetime | None],
        times: Iterable[datetime],
    ) -> None:
        """The records of each topic, then the time that each reaches, and all times that the test has told."""
        for record in self._in_order(records):
            self._take(record)
        quiet = [(at, effects) for topic, to in reached.items() if to for at, effects in self._advance(topic, to)]
        for at, effects in sorted(quiet, key=lambda each: each[0]):
            self._pass_time(at)
            self._act(effects)
        self._pass_time(max(map(epoch_ms, times), default=-1))
        self.steps_done += 1

    def _advance(self, topic: str, to: datetime) -> Iterator[tuple[int, list[Effect]]]:
        return self._watch.advance(topic, epoch_ms(to))

    def _in_order(self, records: Mapping[str, Sequence[Sent]]) -> Iterator[Sent]:
        """By time across topics, and within each as they were sent."""

        def marked(several: Sequence[Sent]) -> Iterator[tuple[int, Sent]]:
            newest = -1
            for each in several:
                newest = max(newest, self._time_of(each))
                yield newest, each

        return (each for _, each in heapq.merge(*map(marked, records.values()), key=lambda mark: mark[0]))

    def _time_of(self, record: Sent) -> int:
        """When a row was; -1 of what is none."""
        try:
            return self._readers[record.topic].read(0, 0, epoch_ms(record.at), record.value or b"").at
        except MisfitError:
            return -1

    def _take(self, record: Sent) -> None:
        at = self._time_of(record)
        self._pass_time(at)
        self._offsets[record.topic] += 1
        # A row that is late was late in reaching Kafka. Without a time of its own, Kafka's is all it has.
        timeless = self._readers[record.topic].table.time == RECORD_TIME
        recorded = epoch_ms(record.at) if timeless else self._now
        incoming = Incoming(record.topic, 0, self._offsets[record.topic], recorded, record.value)
        for _, effects in self._watch.timed([incoming]):
            self._act(effects)

    def _pass_time(self, to: int) -> None:
        self._now = max(self._now, to)
        for moment in self._desk.moments(self._now):
            self._send(moment)

    def _act(self, effects: Iterable[Effect]) -> None:
        for each in effects:
            self._desk.take(each, self._now)
        self._send(self._now)

    def _send(self, now: int) -> None:
        self._desk.published()
        while due := self._desk.due(now):
            self._sent |= {message.id: now for message, _ in due}
            self._desk.moved({message.id: Delivery(state="sent", at=now) for message, _ in due})
        self._desk.drain()

    # --- what the test says and asks ---

    def silence(self, alert: str, key: str, length_ms: int, why: str) -> None:
        if self._now < 0:
            raise UsageError("Nobody knows what time it is: no row has come yet", hint="Move the time with advance()")
        number = len(self._ledger.silences) + 1
        until = self._now + length_ms if length_ms >= 0 else NEVER
        self._desk.told(
            Silence(id=str(number), until=until, rule=alert, key=key, begun=self._now, by=_WHO, why=why)
        )  # fmt: skip

    def acknowledge(self, alert: str, key: str) -> None:
        firing = {
            own: each for (rule, own, _), each in self._ledger.cases.items() if (rule, each.state) == (alert, "firing")
        }
        if key not in firing:
            near = nearest(key, firing)
            raise UsageError(
                f"{alert} does not fire for {key!r}",
                expected=", ".join(firing) or "a key that it fires for, of which there is none",
                hint=f"Did you mean {near}?" if near else "",
            )
        self._desk.told(Ack(rule=alert, key=key, number=firing[key].number, at=self._now, by=_WHO))

    def told(self, *, unsent: bool) -> list[Told]:
        """The messages in the order in which they were sent, or made."""
        found = [self._row(each) for each in self._ledger.letters.values() if unsent or each.message.id in self._sent]
        return sorted(found, key=lambda each: each.at)

    def _row(self, letter: Letter) -> Told:
        message, at = letter.message, self._sent.get(letter.message.id)
        stage, note = ("sent", "") if at is not None else (str(letter.stage), letter.note)
        if at is None and stage == "out":
            sent = self._ledger.sent.get(message.id)
            stage, note = "refused", sent.delivery.reason if sent is not None else ""
        if stage == "listed":
            note = "in a digest"
        made = datetime.fromtimestamp((letter.made if at is None else at) / 1000, UTC)
        return Told(letter.rule, letter.kind, letter.key, message.receiver, message.text, made, stage, note)
