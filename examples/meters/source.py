"""The source application: sends the city's readings to Kafka, one city minute at a time.

python source.py --houses 2000 --speed 60       a city minute every second: 2,000 readings/s

Some meters are broken, so some records are no readings: they must end in the dead-letter topic, each of them.
"""

import argparse
import json
import signal
import threading
import time

from app import readings
from city import broken, minutes

import riverrun as rr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--houses", type=int, default=2000, help="how many houses report (default: %(default)s)")
    parser.add_argument("--speed", type=float, default=60, help="city time against ours (default: %(default)s times)")
    parser.add_argument("--minutes", type=int, default=0, help="stop after so many city minutes (default: go on)")
    parser.add_argument("--broken", type=int, default=1, help="broken records a city minute (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same city (default: %(default)s)")
    options = parser.parse_args()

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    acknowledged = bad = 0
    due = time.monotonic()
    with rr.Producer() as producer:
        for number, reports in enumerate(minutes(options.houses, options.seed), start=1):
            acknowledged += producer.send_all(readings, reports)
            faults = [broken(reports[index % len(reports)], bad + index) for index in range(options.broken)]
            # By the topic's name: an event that is none would be refused here.
            bad += producer.send_all(readings.name, faults)
            due += 60 / options.speed
            if stop.wait(max(0, due - time.monotonic())) or number == options.minutes:
                break
    print(json.dumps({"acknowledged": acknowledged + bad, "broken": bad}))


if __name__ == "__main__":
    main()
