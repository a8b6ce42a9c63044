"""Alerts: how old an event is when its SMS is accepted, with each hop's share, and what a flood of them costs.

    python bench/alerts.py latency [--speed real-time] [--seconds 60] [--rate 5]    produce → Spark → alert process → gateway
    python bench/alerts.py flood [--rules 100] [--keys 100] [--per-second 200]      all fire within a minute

Everything is real and on this machine: Kafka, Spark, the alert process, the gateway with its own book, which is the judge.
The hops are taken from what each leaves behind: the event's own time, Kafka's time of the row, the incident in the ledger,
the moment before the request, and the gateway's book.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import psutil

import riverrun as rr
from riverrun.alerts.backlog import describe_backlog
from riverrun.alerts.channels.limits import MessageRate
from riverrun.alerts.gateway.server import Gateway
from riverrun.alerts.kafka_log import read_alert_state
from riverrun.alerts.state_topic import AlertState
from riverrun.testing import CrashRun

APP = """
from datetime import datetime
import riverrun as rr

app = rr.App("bench")

class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float
    phone: str
    sent_at: int
    at: datetime = rr.event_time(late="10 minutes")

readings = app.topic("readings", Reading, partitions=2)

@app.stream
def now(readings):
    return readings.where("load_kw > 0")
"""
RULE = 'app.alert("overload", now, when="load_kw > 2.0", to="phone", text="{house_id}")\n'
RULES = """
for number in range(RULES):
    app.alert(f"rule-{number}", readings, when=f"load_kw > {number}", to="phone", text=f"{{house_id}} {number}",
              expires="6 hours")
"""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def town(app: str, gateway: Gateway, more: str, options: Sequence[str] = ()) -> Iterator[CrashRun]:
    """A project with this app, running, with its alerts to that gateway."""
    with tempfile.TemporaryDirectory(prefix="riverrun-bench-") as name:
        root = Path(name)
        (root / "app.py").write_text(app)
        (root / "key.txt").write_text(gateway.key.reveal())
        (root / "riverrun.toml").write_text(
            f'[project]\napp = "app.py"\n[streams]\nevery = "1 second"\n[store]\nkind = "none"\n'
            f'[alerts]\nsms_url = "{gateway.address}"\nsms_key = {{ file = "key.txt" }}\nsms_sender = "bench"\n'
            f"sms_daily_parts = 0\nsms_per_receiver_hour = 0\n{more}"
        )
        with CrashRun(root, "app.py", options) as run:
            run.await_work()
            yield run


def value(house: str, load: float, phone: str) -> str:
    now = now_ms()
    return json.dumps({
        "house_id": house, "load_kw": load, "phone": phone, "sent_at": now,
        "at": datetime.fromtimestamp(now / 1000, UTC).isoformat(),
    })  # fmt: skip


def latency(speed: str, rate: float, seconds: float, warm: float) -> None:
    with (
        Gateway() as gateway,
        town(APP + RULE, gateway, "sms_per_second = 0\n", ["--speed", speed]) as run,
    ):
        connection = rr.connect(project=run.project)
        _wait(lambda: read_alert_state(connection, "bench").lease is not None, 60, "the alert process did not start")
        began = time.monotonic()
        count = int(rate * (warm + seconds))
        with rr.Producer(connection, linger_ms=0) as producer:
            for number in range(count):
                time.sleep(max(0.0, began + number / rate - time.monotonic()))
                producer.send_soon("readings", value(f"h{number}", 3.0, f"+35385{number:07}"), key=f"h{number}")
        _wait(lambda: not describe_backlog(connection, "bench"), 120, "not all were sent")
        state = read_alert_state(connection, "bench")
        taken = {each.text: each.accepted_at for each in gateway.store.newest(10 * count)}
    print(
        f"{speed}: {rate:g} events/s over the limit, {seconds:g} s after {warm:g} s to warm up; {len(taken)} of {count} SMS"
    )
    hops = [hop for hop in _hops(state, taken) if int(hop["house"][1:]) >= rate * warm]
    for name in ("Kafka, Spark, the row in Kafka", "read and judged", "in the ledger", "at the gateway", "in all"):
        ages = sorted(hop[name] for hop in hops)
        cuts = statistics.quantiles(ages, n=100)
        print(f"  {name:<32} p50 {cuts[49]:7.0f} ms   p99 {cuts[98]:7.0f} ms   most {ages[-1]:7.0f} ms")


def _hops(state: AlertState, taken: dict[str, int]) -> list[dict[str, Any]]:
    found = []
    for incident in state.incidents.values():
        sent = state.deliveries[incident.notifications[0]].delivery
        begun = int(incident.row["sent_at"])
        found.append({
            "house": incident.key,
            "Kafka, Spark, the row in Kafka": incident.record_time - begun,
            "read and judged": incident.created_at - incident.record_time,
            "in the ledger": sent.requested_at - incident.created_at,
            "at the gateway": taken[incident.key] - sent.requested_at,
            "in all": taken[incident.key] - begun,
        })  # fmt: skip
    return found


def flood(rules: int, keys: int, per_second: int, most: int) -> None:
    """`per_second` is where the gateway says 429, `most` how fast riverrun is told to send."""
    app = APP + RULES.replace("RULES", str(rules))
    with Gateway(rate=MessageRate(per_second)) as gateway, town(app, gateway, f"sms_per_second = {most}\n") as run:
        connection = rr.connect(project=run.project)
        _wait(lambda: read_alert_state(connection, "bench").lease is not None, 60, "the alert process did not start")
        lease = read_alert_state(connection, "bench").lease
        assert lease is not None
        process = psutil.Process(lease.pid)
        before = process.memory_info().rss
        peak = _Peak(process)
        began = time.monotonic()
        with peak, rr.Producer(connection) as producer:
            for key in range(keys):
                time.sleep(max(0.0, began + key * 50 / keys - time.monotonic()))
                producer.send_soon("readings", value(f"h{key}", rules + 1.0, f"+35385{key:07}"), key=f"h{key}")
            producer.flush()
            fired = time.monotonic() - began
            _wait(lambda: len(gateway.store.newest(10 * rules * keys)) >= rules * keys, 1800, "not all were sent")
        done = time.monotonic() - began
        requests = gateway.store.requests()
        busy = sum(outcome == "busy" for _, outcome in requests)
        texts = [each.text for each in gateway.store.newest(10 * rules * keys)]
    print(
        f"{rules} rules x {keys} keys fired in {fired:.0f} s: {len(set(texts))} of {rules * keys} SMS, "
        f"{len(texts) - len(set(texts))} twice, in {done:.0f} s ({len(texts) / done:.0f}/s; told to send at most {most}/s)\n"
        f"  requests refused as too many: {busy} of {len(requests)} (the gateway takes {per_second}/s)\n"
        f"  memory of the alert process: {before / 2**20:.0f} MiB before, {peak.most / 2**20:.0f} MiB at most"
    )


class _Peak(threading.Thread):
    def __init__(self, process: psutil.Process) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._over = threading.Event()
        self.most = 0

    def run(self) -> None:
        while not self._over.wait(0.1):
            self.most = max(self.most, self._process.memory_info().rss)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def _wait(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"Gave up after {seconds:g} s: {what}.")
        time.sleep(0.25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("latency")
    one.add_argument("--speed", choices=("real-time", "near-real-time"), default="real-time")
    one.add_argument("--rate", type=float, default=5.0)
    one.add_argument("--seconds", type=float, default=60.0)
    one.add_argument("--warm", type=float, default=30.0)
    two = kinds.add_parser("flood")
    two.add_argument("--rules", type=int, default=100)
    two.add_argument("--keys", type=int, default=100)
    two.add_argument("--per-second", type=int, default=200)
    two.add_argument("--most", type=int, default=150)
    given = vars(parser.parse_args())
    {"latency": latency, "flood": flood}[given.pop("kind")](**given)


if __name__ == "__main__":
    main()
