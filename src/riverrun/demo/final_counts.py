"""The final counts of a demo: every sent record, followed through all stages."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from riverrun.model.progress import RecordCounts


@dataclass(frozen=True)
class AlertCounts:
    """Incidents and notifications sent, from the alerts' state topic; messages on phones, and how many of them repeat a
    text on the same phone, from the gateway's message store."""

    fired: int = 0
    sent: int = 0
    shown: int = 0
    duplicates: int = 0


def counts_line(name: str, counts: RecordCounts) -> str:
    if counts.exact:
        sums = (
            f"out {counts.out:,} + filtered {counts.filtered:,} + dead {counts.dead_letters:,} + late {counts.late:,}"
        )
        return f"{name:12} read {counts.read:,} = {sums}"
    return f"{name:12} read {counts.read:,}; out {counts.out:,}, dead {counts.dead_letters:,}, late {counts.late:,}"


@dataclass(frozen=True)
class FinalCounts:
    """The counts when everything is read. `sent` are the source's own counts: `acknowledged` is how many records,
    `broken` how many of them on purpose; `stored` and `letters` are the records in its topics and in their dead-letter
    topics, `needed` what each stream had to read, where that is known, and `rows` the records in its output topic."""

    sent: Mapping[str, int]
    stored: Mapping[str, int]
    letters: Mapping[str, int]
    streams: Mapping[str, RecordCounts]
    needed: Mapping[str, int]
    rows: Mapping[str, int]
    alerts: AlertCounts | None = None
    # Real-time streams, whose rows may be sent again after a failure, each with its identity.
    restarted_streams: frozenset[str] = field(default_factory=frozenset)

    def lines(self) -> list[str]:
        lines = []
        if self.sent:
            lines.append("source       " + ", ".join(f"{name} {number:,}" for name, number in self.sent.items()))
        for name, stored in self.stored.items():
            lines.append(f"{name:12} stored {stored:,}; dead letters {self.letters.get(name, 0):,}")
        lines += [counts_line(name, counts) for name, counts in self.streams.items()]
        if self.alerts is not None:
            counts = self.alerts
            lines.append(f"alerts       fired {counts.fired:,}, SMS sent {counts.sent:,}, on phones {counts.shown:,}")
        return lines

    def violations(self) -> list[str]:
        """The invariants that do not hold."""
        sent, stored = self.sent, sum(self.stored.values())
        rules = {
            "acknowledged = stored": sent.get("acknowledged", sent.get("sent", stored)) == stored,
            "broken = dead letters": "broken" not in sent or sent["broken"] == sum(self.letters.values()),
        }
        for name, counts in self.streams.items():
            if name in self.needed:
                rules[f"{name} read all that is stored"] = counts.read == self.needed[name]
            if counts.exact:
                rules[f"{name}: read = out + filtered + dead + late"] = counts.balanced
            what = f"{name}: all that went out ({counts.out:,}) is in its topic ({self.rows[name]:,}), once"
            rules[what] = (
                self.rows[name] >= counts.out if name in self.restarted_streams else self.rows[name] == counts.out
            )
        if self.alerts is not None:
            rules["every SMS is on a phone, once"] = self.alerts.shown == self.alerts.sent
        return [what for what, holds in rules.items() if not holds]
