"""What the demo counts at its end: every record that was sent, followed through all that it passed."""

from collections.abc import Mapping
from dataclasses import dataclass

from riverrun.model.progress import Account


@dataclass
class Alerts:
    """Overloads that fired and messages that were sent, as the alerts' ledger has it; messages on phones, and of them more
    than one of the same overload, as the gateway's own book has it."""

    fired: int
    sent: int
    shown: int
    twice: int


@dataclass
class Final:
    """The counts when all is read. `sent` is what the source says: records acknowledged, and of them broken, twice and late
    on purpose; `rows` is what the topic of each stream holds, `alerts` what became of overloads."""

    sent: Mapping[str, int]
    stored: int
    letters: int
    streams: Mapping[str, Account]
    rows: Mapping[str, int]
    alerts: Alerts

    def lines(self) -> list[str]:
        sent = {name: f"{number:,}" for name, number in self.sent.items()}
        odd = ", ".join(f"{name} {sent[name]}" for name in ("broken", "twice", "late"))
        told = [
            f"source       city minutes {sent['minutes']}, acknowledged {sent['acknowledged']}; of them on purpose {odd}",
            f"readings     stored {self.stored:,}; dead letters {self.letters:,}",
        ]
        for name, each in self.streams.items():
            if each.exact:
                sums = f"out {each.out:,} + filtered {each.filtered:,} + dead {each.dead:,} + late {each.late:,}"
                told.append(f"{name:12} read {each.read:,} = {sums}")
            else:
                told.append(f"{name:12} read {each.read:,}; out {each.out:,}, dead {each.dead:,}, late {each.late:,}")
        each = self.alerts
        told.append(f"alerts       overloads {each.fired:,}, SMS sent {each.sent:,}, on phones {each.shown:,}")
        return told

    def wrong(self) -> list[str]:
        """What must hold and does not."""
        sent, streams, high = self.sent, self.streams, self.streams["high_load"]
        rules = {
            "acknowledged = stored": sent["acknowledged"] == self.stored,
            "broken = dead letters": sent["broken"] == self.letters,
            "every stream read all that is stored": all(each.read == self.stored for each in streams.values()),
            "every stream found all that is broken": all(each.dead == sent["broken"] for each in streams.values()),
            "no stream left out more as late than was sent late": all(
                each.late <= sent["late"] for each in streams.values()
            ),
            "high_load: read = out + filtered + dead + late": high.exact and high.closes,
            "every reading above 2 kW is a row of high_load": high.out == sent["above"],
            **{
                f"{name}: all that went out ({each.out:,}) is in its topic ({self.rows[name]:,}), once": (
                    self.rows[name] == each.out
                )
                for name, each in streams.items()
            },
            "every overload that fired was sent": self.alerts.sent == self.alerts.fired,
            "every SMS is on a phone, once": self.alerts.shown == self.alerts.sent and not self.alerts.twice,
        }
        return [what for what, holds in rules.items() if not holds]
