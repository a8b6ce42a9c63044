"""The source application: sends the readings of the city's houses to Kafka, one city minute at a time.

python source.py --houses 2000 --speed 60                    a city minute every second: 2,000 readings/s
python source.py --start 2026-07-18T06:00 --speed 1          a Saturday in summer, in real time

The way from a meter is not perfect: some readings come late or twice, and some records are no readings. Each of those must
end in the dead-letter topic.
"""

import argparse
import json
import signal
import threading
import time
from datetime import UTC, datetime

import houses
from app import readings
from city import Radio, minutes

import riverrun as rr


def above_zero(text: str) -> float:
    if not 0 < (number := float(text)) < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def moment(text: str) -> datetime:
    """A time of the city, which lives in UTC; to the minute."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time, such as 2026-07-18T06:00") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC).replace(second=0, microsecond=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--houses", type=int, default=2000, help="how many houses report (default: %(default)s)")
    parser.add_argument(
        "--speed", "--speed-up", type=above_zero, default=30, help="city time against ours (default: %(default)s times)"
    )
    parser.add_argument("--rate", type=above_zero, help="readings a second of ours, instead of a speed")
    parser.add_argument("--start", type=moment, help="when the city's time begins (default: today at 17:00 UTC)")
    parser.add_argument("--minutes", type=int, default=0, help="stop after so many city minutes (default: go on)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same days (default: %(default)s)")
    parser.add_argument("--events", type=int, default=0, help="stop with the minute that has so many records")
    options = parser.parse_args()
    if options.rate:
        options.speed = options.rate * 60 / options.houses

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    counts = dict.fromkeys(("minutes", "acknowledged", "broken", "twice", "late", "above"), 0)
    city, radio = minutes(houses.read(options.houses), options.start, options.seed), Radio(options.seed)
    due = time.monotonic()
    with rr.Producer() as producer:
        for reports in city:
            sent = radio.send(reports)
            # Broken ones by the topic's name: an event that is none would be refused here.
            broken = producer.send_all(readings.name, sent.broken)
            counts["acknowledged"] += producer.send_all(readings, sent.readings) + broken
            counts["broken"] += broken
            counts["twice"] += sent.twice
            counts["late"] += sent.late
            counts["above"] += sum(reading.load_kw > 2.0 for reading in sent.readings)
            counts["minutes"] += 1
            due += 60 / options.speed
            if stop.wait(max(0, due - time.monotonic())) or counts["minutes"] == options.minutes:
                break
            if options.events and counts["acknowledged"] >= options.events:
                break
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
