"""What a demo counts at its end: every record that was sent, followed through all that it passed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from riverrun.model.progress import Account


@dataclass(frozen=True)
class Alerts:
    """Episodes and messages that were sent, as the alerts' ledger has it; messages on phones, and of them those that are of
    the same text on the same phone, as the gateway's own book has it."""

    fired: int = 0
    sent: int = 0
    shown: int = 0
    twice: int = 0


def account_line(name: str, each: Account) -> str:
    if each.exact:
        sums = f"out {each.out:,} + filtered {each.filtered:,} + dead {each.dead:,} + late {each.late:,}"
        return f"{name:12} read {each.read:,} = {sums}"
    return f"{name:12} read {each.read:,}; out {each.out:,}, dead {each.dead:,}, late {each.late:,}"


@dataclass(frozen=True)
class Final:
    """The counts when all is read. `sent` is what the source says, in its own words: `acknowledged` is how many records,
    `broken` how many of them on purpose; `stored` and `letters` are what its topics and their dead letters hold, `needed`
    what each stream had to read, where that is known, and `rows` what its topic holds."""

    sent: Mapping[str, int]
    stored: Mapping[str, int]
    letters: Mapping[str, int]
    streams: Mapping[str, Account]
    needed: Mapping[str, int]
    rows: Mapping[str, int]
    alerts: Alerts | None = None
    # Streams whose rows may come again after a failure, each with its identity: real time.
    again: frozenset[str] = field(default_factory=frozenset)

    def lines(self) -> list[str]:
        told = []
        if self.sent:
            told.append("source       " + ", ".join(f"{name} {number:,}" for name, number in self.sent.items()))
        for name, stored in self.stored.items():
            told.append(f"{name:12} stored {stored:,}; dead letters {self.letters.get(name, 0):,}")
        told += [account_line(name, each) for name, each in self.streams.items()]
        if self.alerts is not None:
            each = self.alerts
            told.append(f"alerts       fired {each.fired:,}, SMS sent {each.sent:,}, on phones {each.shown:,}")
        return told

    def wrong(self) -> list[str]:
        """What must hold and does not."""
        sent, stored = self.sent, sum(self.stored.values())
        rules = {
            "acknowledged = stored": sent.get("acknowledged", sent.get("sent", stored)) == stored,
            "broken = dead letters": "broken" not in sent or sent["broken"] == sum(self.letters.values()),
        }
        for name, each in self.streams.items():
            if name in self.needed:
                rules[f"{name} read all that is stored"] = each.read == self.needed[name]
            if each.exact:
                rules[f"{name}: read = out + filtered + dead + late"] = each.closes
            what = f"{name}: all that went out ({each.out:,}) is in its topic ({self.rows[name]:,}), once"
            rules[what] = self.rows[name] >= each.out if name in self.again else self.rows[name] == each.out
        if self.alerts is not None:
            rules["every SMS is on a phone, once"] = self.alerts.shown == self.alerts.sent
        return [what for what, holds in rules.items() if not holds]
