"""What the demo counts at its end: every record that was sent, followed through all that it passed."""

from collections.abc import Mapping
from dataclasses import dataclass

from riverrun.model.progress import Account


@dataclass
class Final:
    """The counts when all is read. `sent` is what the source says: records acknowledged, and of them broken, twice and late
    on purpose; `rows` is what the topic of each stream holds, `handled` what the consumer group did of high_load's."""

    sent: Mapping[str, int]
    stored: int
    letters: int
    streams: Mapping[str, Account]
    rows: Mapping[str, int]
    handled: int
    alerts: int

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
        rows = self.rows["high_load"]
        told.append(f"watch        high_load rows {rows:,}, handled {self.handled:,}, alerts {self.alerts:,}")
        return told

    def wrong(self) -> list[str]:
        """What must hold and does not. Handled rows may be more: after a failure of the group some are done twice."""
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
            "every row of high_load was handled": self.handled >= self.rows["high_load"],
        }
        return [what for what, holds in rules.items() if not holds]
