"""What readings come to, in plain Python: the loads of houses and streets, and the times a house was above the limit.

Nothing here is shared with the pipeline: its figures are held against these.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

MINUTE = timedelta(minutes=1)
LIMIT_KW = 2.0


@dataclass(frozen=True)
class Episode:
    """A house above the limit: from its first reading above it to the minute it is not any more; None while it still is."""

    house_id: str
    began: datetime
    ended: datetime | None
    peak_kw: float

    @property
    def minutes(self) -> int:
        return round((self.ended - self.began) / MINUTE) if self.ended else 0


class Truth:
    """What readings come to, minute by minute, house by house. Nothing here is shared with the pipeline."""

    def __init__(self, readings: Iterable[Any], street_of: Mapping[str, str]) -> None:
        self._street_of = street_of
        self.loads: dict[tuple[datetime, str], list[float]] = defaultdict(list)
        for reading in readings:
            self.loads[reading.at.replace(second=0, microsecond=0), reading.house_id].append(reading.load_kw)
        self.first = min(minute for minute, _ in self.loads)
        self.last = max(minute for minute, _ in self.loads)

    @property
    def house_load(self) -> dict[tuple[datetime, str], float]:
        return {key: sum(loads) / len(loads) for key, loads in self.loads.items()}

    @property
    def street_load(self) -> dict[tuple[datetime, str], float]:
        found: dict[tuple[datetime, str], float] = defaultdict(float)
        for (minute, house_id), load in self.house_load.items():
            found[minute, self._street_of[house_id]] += load
        return dict(found)

    @property
    def episodes(self) -> list[Episode]:
        """In each minute a house is above the limit or it is not: a minute without a reading is one in which it is not."""
        found = []
        for house_id in sorted({house_id for _, house_id in self.loads}):
            began, peak, minute = None, 0.0, self.first
            while minute <= self.last:
                load = max(self.loads.get((minute, house_id), [0.0]))
                if load > LIMIT_KW:
                    began, peak = began or minute, max(peak, load)
                elif began is not None:
                    found.append(Episode(house_id, began, minute, peak))
                    began, peak = None, 0.0
                minute += MINUTE
            if began is not None:
                found.append(Episode(house_id, began, None, peak))
        return found
