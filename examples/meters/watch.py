"""One member of the consumer group `overload-watch`: finds overloads and sends them to a topic of their own.

Start several: they share the partitions, and take over from one that dies.
"""

import json

from app import Overload, Reading, overloads, readings

import riverrun as rr

LIMIT_KW, CLEAR_KW = 2.0, 1.8


class Watch:
    """Remembers which houses are over the limit. A house keeps its partition, so one member sees all of its readings."""

    def __init__(self, producer: rr.Producer) -> None:
        self._producer = producer
        self._over: set[str] = set()

    def handle(self, record: rr.Record[Reading]) -> None:
        reading = record.value
        house = reading.house_id
        if house not in self._over and reading.load_kw > LIMIT_KW:
            self._tell(reading, "began")
            self._over.add(house)
        elif house in self._over and reading.load_kw < CLEAR_KW:
            self._tell(reading, "ended")
            self._over.discard(house)

    def _tell(self, reading: Reading, state: str) -> None:
        # Synchronous: the reading counts as handled only when Kafka has the overload.
        overload = Overload(house_id=reading.house_id, load_kw=reading.load_kw, at=reading.at, state=state)
        self._producer.send(overloads, overload)


def main() -> None:
    with rr.Producer(linger_ms=0) as producer, rr.Consumer(readings, group="overload-watch") as consumer:
        consumer.run(Watch(producer).handle, workers=4, order="key", on_error="dead-letter")
        print(json.dumps({"handled": consumer.metrics().handled}))


if __name__ == "__main__":
    main()
