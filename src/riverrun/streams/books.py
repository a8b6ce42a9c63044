"""The account of one stream, kept from Spark's progress, and its offsets where people look: in a consumer group.

The group's offsets are behind what Spark has committed, never ahead: they move when the batch is counted and its dead
letters are in their topic. `accounted` and the counts are written to a file together, so that a crash in between is noticed:
what lies between is counted again, without the rows that came out of it, and the account says that it is not exact any more.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from riverrun.errors import CheckpointError, KafkaError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.counting import count_records
from riverrun.model.progress import Account, StreamProgress
from riverrun.model.state import Place
from riverrun.streams.checkpoint import Offsets, offsets_of
from riverrun.streams.compiler import OUT, Compiled
from riverrun.streams.sources import COUNT, DEAD, observation
from riverrun.streams.sweeping import Sweeper
from riverrun.streams.topic_watch import went_back

# A batch of fewer rows says nothing about how fast many are read.
ENOUGH_ROWS = 1000
# More offsets than that are not read to count their records: the thread that does it looks after all streams.
MOST_COUNTED = 100_000


class Books:
    """Takes in one progress report after the other."""

    def __init__(
        self,
        compiled: Compiled,
        topics: Mapping[str, bool],
        group: str,
        file: Path,
        *,
        admin: Admin,
        sweeper: Sweeper,
    ) -> None:
        """`topics` are those the stream reads, and whether their records have a type that some may break."""
        self._compiled = compiled
        self._topics = list(topics)
        self._typed = {topic for topic, typed in topics.items() if typed}
        self._file = file
        self._admin = admin
        self._sweeper = sweeper
        self.group = group
        self.account, self.accounted = read_account(file)
        self.account.exact = compiled.query.one_to_one and self.account.note == ""
        if not compiled.query.one_to_one and not self.account.note:
            self.account.note = _why_not_exact(compiled)
        self._mirrored: dict[Place, int] = {}
        self._rate = read_rate(file)
        # Whether what is accounted was read by way of the checkpoint: a batch over everything reads past it.
        self._streamed = bool(streamed_to(file))

    def batch(self, report: Mapping[str, Any], progress: StreamProgress) -> None:
        """Book one batch of a streaming query (Spark's progress as JSON says it)."""
        observed = report.get("observedMetrics") or {}
        begin, end = _offsets(report, "startOffset"), _offsets(report, "endOffset")
        if back := went_back(begin, end):
            # Not booked: what is written down stays ahead of the checkpoint, and the next start refuses it, too.
            name = self._compiled.stream.name
            raise CheckpointError(
                f"The stream {name} has read {back}: it was cut, or made again. Records before that end may never be read",
                hint=f"Begin again with `riverrun run FILE --fresh {name}`, which reads all there is",
                stream=name,
            )
        late = sum(each.get("numRowsDroppedByWatermark", 0) for each in report.get("stateOperators") or [])
        counts = {name: {key: int(value or 0) for key, value in each.items()} for name, each in observed.items()}
        out = counts.get(OUT, {}).get(COUNT, 0)
        # The progress of an idle trigger repeats the last batch's number and reads nothing.
        if not report.get("numInputRows") and not out and not late:
            self._stand(report, progress)
            self._move(end)
            return
        self._streamed = True
        self._measure(int(report.get("numInputRows") or 0), int(report.get("batchDuration") or 0))
        self._book(begin, end, counts, late=late, rows=int(report.get("numInputRows") or 0))
        self._stand(report, progress)

    def _measure(self, rows: int, millis: int) -> None:
        """The best that a batch has done: how long it takes to read everything again goes by it."""
        if rows >= ENOUGH_ROWS and millis:
            self._rate = max(self._rate, rows / millis * 1000)

    def whole(self, begin: Offsets, end: Offsets, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Book a batch run over everything: its account begins anew."""
        note = self.account.note
        self._streamed = False
        self.account = Account(exact=self._compiled.query.one_to_one, note=note)
        read = sum(counts.get(observation(topic), {}).get(COUNT, 0) for topic in self._topics)
        self._book(begin, end, counts, late=0, rows=read)
        self._save()

    def _book(
        self, begin: Offsets, end: Offsets, counts: Mapping[str, Mapping[str, int]], *, late: int, rows: int
    ) -> None:
        out = counts.get(OUT, {}).get(COUNT, 0)
        account = self.account
        dead = 0
        for topic in self._topics:
            first, last = begin.get(topic, {}), end.get(topic, {})
            seen = counts.get(observation(topic), {})
            if not last:
                continue
            self._recount(topic, first)
            bad = seen.get(DEAD, 0)
            dead += bad
            account.gone += self._gone(topic, first, last, seen.get(COUNT, rows))
            if topic in self._typed:
                self._sweeper.batch(topic, first, last, bad)
        account.read += rows
        account.dead += dead
        account.late += late
        account.out += out
        if self._compiled.query.one_to_one:
            account.filtered += max(0, rows - dead - late - out)
        self._move(end)

    def _move(self, end: Offsets) -> None:
        moved = False
        for topic, parts in end.items():
            if topic in self._topics and self.accounted.get(topic) != parts:
                self.accounted[topic] = dict(parts)
                moved = True
        if moved:
            self._save()

    def _recount(self, topic: str, first: Mapping[int, int]) -> None:
        """Records of a batch that ended, but that a crash kept from these books."""
        before = self.accounted.get(topic)
        if before is None:
            return
        ranges = {Place(topic, part): (before[part], offset) for part, offset in first.items() if part in before}
        passed = sum(max(0, end - begin) for begin, end in ranges.values())
        if not passed:
            return
        # Offsets: markers of transactions are among them.
        missed, about = passed, "up to "
        if passed <= MOST_COUNTED:
            with contextlib.suppress(KafkaError):
                missed, about = sum(count_records(self._admin.connection, ranges).values()), ""
        if missed:
            self.account.read += missed
            self.account.exact = False
            self.account.note = f"{about}{missed} records were read by a batch that a crash kept from being counted"

    def _gone(self, topic: str, first: Mapping[int, int], last: Mapping[int, int], seen: int) -> int:
        """How many records of this range were deleted before they were read."""
        if seen >= sum(last[part] - first.get(part, last[part]) for part in last) or not first:
            return 0
        places = [Place(topic, part) for part in first if last.get(part, 0) > first[part]]
        oldest = self._admin.offsets(places, "earliest")
        return sum(
            max(0, min(last[place.partition], there) - first[place.partition]) for place, there in oldest.items()
        )

    def mirror(self) -> None:
        """Bring the consumer group up to where the books are."""
        offsets = {
            Place(topic, part): self._settled(Place(topic, part), offset)
            for topic, parts in self.accounted.items()
            for part, offset in parts.items()
        }
        changed = {place: offset for place, offset in offsets.items() if self._mirrored.get(place) != offset}
        if changed:
            self._admin.commit(self.group, changed)
            self._mirrored |= changed

    def _settled(self, place: Place, offset: int) -> int:
        """Not beyond records whose dead letters are still to be written."""
        return min(offset, self._sweeper.through(place)) if place.topic in self._typed else offset

    def lag(self, ends: Mapping[Place, int]) -> int:
        """Offsets that are there and not read: records, and markers of transactions."""
        lag = 0
        for place, end in ends.items():
            if place.topic in self._topics:
                lag += max(0, end - self.accounted.get(place.topic, {}).get(place.partition, 0))
        return lag

    def _stand(self, report: Mapping[str, Any], progress: StreamProgress) -> None:
        progress.batch = int(report.get("batchId", -1))
        progress.batch_ms = int(report.get("batchDuration") or 0)
        rate = report.get("inputRowsPerSecond") or 0.0
        progress.rows_in_per_second = float(rate) if rate == rate else 0.0  # noqa: PLR0124  -- NaN is not itself
        seconds = progress.batch_ms / 1000 or 1.0
        progress.rows_out_per_second = (report.get("observedMetrics") or {}).get(OUT, {}).get(COUNT, 0) / seconds
        if report.get("numInputRows"):
            progress.last_record_at = str(report.get("timestamp", ""))
        progress.watermark = str((report.get("eventTime") or {}).get("watermark", ""))
        operators = report.get("stateOperators") or []
        progress.state_rows = sum(each.get("numRowsTotal", 0) for each in operators)
        progress.state_bytes = sum(each.get("memoryUsedBytes", 0) for each in operators)
        progress.account = self.account

    def _save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._file.with_suffix(".tmp")
        temporary.write_text(
            json.dumps(
                {
                    "account": asdict(self.account),
                    "accounted": self.accounted,
                    "rate": round(self._rate, 1),
                    "streamed": self._streamed,
                }
            ),
            encoding="utf-8",
        )
        temporary.replace(self._file)


def read_account(file: Path) -> tuple[Account, Offsets]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return Account(**content["account"]), offsets_of(content["accounted"])
    except FileNotFoundError:
        return Account(), {}
    except (OSError, ValueError, KeyError, TypeError):
        return Account(note="the account of earlier runs could not be read, and begins anew"), {}


def streamed_to(file: Path) -> Offsets:
    """How far a stream has read by way of its checkpoint; empty when the last that was counted was a batch."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return offsets_of(content["accounted"]) if content.get("streamed") else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def read_rate(file: Path) -> float:
    """The most records a second that a batch of the stream has read; 0 when none was large enough to say."""
    try:
        return float(json.loads(file.read_text(encoding="utf-8")).get("rate") or 0.0)
    except (OSError, ValueError, TypeError, AttributeError):
        return 0.0


def _offsets(report: Mapping[str, Any], which: str) -> Offsets:
    """The offsets of all sources of a query, by topic and partition."""
    found: Offsets = {}
    for source in report.get("sources") or []:
        value = source.get(which)
        if isinstance(value, str):
            value = json.loads(value)
        found |= offsets_of(value or {})
    return found


def _why_not_exact(compiled: Compiled) -> str:
    if compiled.query.aggregated:
        return "many records become one row; what the stream's own code filters before that is not counted"
    if compiled.query.joins_streams or compiled.query.joins_tables:
        return "a join makes no row of a record, or many"
    return "its operators make no row of a record, or many"
