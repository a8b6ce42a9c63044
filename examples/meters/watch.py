"""One member of the consumer group `overload-watch`: an alert when a house goes above the limit, not one a minute.

Reads what the stream high_load finds. Start several: they share the partitions, and take over from one that dies.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta

import houses
from app import Overload, Reading, overloads
from houses import House

import riverrun as rr

HIGH_LOAD = rr.Topic("high_load", Reading)
# A house that was above the limit a minute ago still is.
STILL = timedelta(minutes=1)


class Watch:
    """Remembers when a house was last above. A house keeps its partition, so one member sees all of its rows."""

    def __init__(self, producer: rr.Producer, owners: Mapping[str, House]) -> None:
        self._producer = producer
        self._owners = owners
        self._last: dict[str, datetime] = {}

    def handle(self, record: rr.Record[Reading]) -> None:
        row = record.value
        before = self._last.get(row.house_id)
        if before is None or row.at - before > STILL:
            owner = self._owners.get(row.house_id)
            name, phone = (owner.owner, owner.phone) if owner else ("", "")
            # Synchronous: the row counts as handled only when Kafka has the alert.
            alert = Overload(house_id=row.house_id, owner=name, phone=phone, load_kw=row.load_kw, at=row.at)
            self._producer.send(overloads, alert)
        # A reading that comes late does not turn time back.
        self._last[row.house_id] = max(row.at, before or row.at)


def main() -> None:
    owners = {each.house_id: each for each in houses.read()}
    with rr.Producer(linger_ms=0) as producer, rr.Consumer(HIGH_LOAD, group="overload-watch") as consumer:
        consumer.run(Watch(producer, owners).handle, workers=4, order="key", on_error="dead-letter")
        print(json.dumps({"handled": consumer.metrics().handled}))


if __name__ == "__main__":
    main()
