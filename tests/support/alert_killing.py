"""The alerts' kill suite: overloads by the thousand, the alert process and Spark killed with -9, and a provider that errs.

In the end the provider's own book is the judge: each owner has each message, and none twice. `script/kill-alerts` is the
long form; tests/e2e/test_alert_kills.py a short one.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import riverrun as rr
from riverrun.alerts.backlog import describe_backlog
from riverrun.alerts.gateway.faults import FaultInjector
from riverrun.alerts.gateway.message_store import MessageStore
from riverrun.alerts.gateway.server import Gateway
from riverrun.alerts.kafka_log import read_alert_state
from riverrun.testing import Crash, CrashRun

APP = """
from datetime import datetime
import riverrun as rr

app = rr.App("town")

class Reading(rr.Event):
    house_id: str = rr.key()
    phone: str
    number: int
    load_kw: float = rr.field(ge=0)
    at: datetime = rr.event_time(late="10 minutes")

readings = app.topic("readings", Reading, partitions=3)

@app.stream
def now(readings):
    return readings.where("load_kw >= 0")

app.alert("overload", now, when="load_kw > 2.0", clear="load_kw < 1.8", to="phone",
          text="{house_id} episode {number}", expires="6 hours")
"""
HOUSES = 500
# Of a hundred requests, ten meet trouble; five of those were taken all the same. One that is busy stops all for a second.
TROUBLE = {
    "busy": 0.005, "error before": 0.02, "error after": 0.03, "silent before": 0.01, "silent after": 0.02, "no credit": 0.02,
}  # fmt: skip


@dataclass(eq=False)
class Town(threading.Thread):
    """Houses that go above the limit and below it again, each episode with its number."""

    connection: "rr.Connection"
    episodes: int
    rate: float

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self.sent = 0

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001  -- for the judge
            self.error = error

    def _run(self) -> None:
        start, begun = datetime(2026, 3, 1, tzinfo=UTC), time.monotonic()
        with rr.Producer(self.connection, delivery_timeout_seconds=300) as producer:
            for each in range(self.episodes):
                house, number = each % HOUSES, each // HOUSES
                for step, load in enumerate((3.0, 1.0)):
                    at = start + timedelta(seconds=60 * number + step)
                    value = {"house_id": f"h{house}", "phone": phone(house), "number": number, "load_kw": load,
                             "at": at.isoformat()}  # fmt: skip
                    producer.send_soon("readings", json.dumps(value), key=f"h{house}")
                self.sent += 1
                time.sleep(max(0.0, begun + self.sent / self.rate - time.monotonic()))


def phone(house: int) -> str:
    return f"+35385{house:07}"


@dataclass
class Outcome:
    killed: list[str]
    episodes: int
    requests: int
    seconds: float


def survive(
    root: Path, plan: Sequence[Crash], *, episodes: int, rate: float = 60.0, seed: int = 1, say: Any = print
) -> Outcome:
    """Kill by plan; raises AssertionError with what is wrong in the end."""
    begun = time.monotonic()
    (root / "app.py").write_text(APP)
    book = root / "provider.sqlite"
    with Gateway(book, faults=FaultInjector(TROUBLE, seed), delivery_ms=0) as gateway:
        (root / "key.txt").write_text(gateway.key.reveal())
        (root / "riverrun.toml").write_text(
            '[project]\napp = "app.py"\n[spark]\ndriver_memory_mb = 1024\n[streams]\nevery = "200 ms"\n'
            '[store]\nkind = "none"\n'
            f'[alerts]\nsms_url = "{gateway.address}"\nsms_key = {{ file = "key.txt" }}\nsms_sender = "riverrun"\n'
            "sms_daily_parts = 0\nsms_per_second = 0\nsms_per_receiver_hour = 0\nsms_timeout_seconds = 1\n"
        )
        with CrashRun(root, "app.py") as run:
            run.await_work()
            connection = rr.connect(project=root)
            town = Town(connection, episodes, rate)
            town.start()
            for number, crash in enumerate(plan, 1):
                # While it sends: what is under way is what may be lost.
                await_requests(run, gateway.store, town)
                run.strike(crash)
                made = len(gateway.store.requests())
                say(f"kill {number}/{len(plan)}: {crash.victim}; {town.sent} episodes sent, {made} requests made")
            town.join(1800)
            assert town.error is None, town.error
            run.finish(1800)
            left = describe_backlog(connection, "town")
            assert not left, left
            check(gateway.store, episodes)
            check_sends_nothing_again(run, gateway.store, connection)
            requests = len(gateway.store.requests())
    return Outcome(run.killed, episodes, requests, time.monotonic() - begun)


def await_requests(run: CrashRun, book: MessageStore, town: Town) -> None:
    """Until some more requests have been made, or there are no more to make. A pipeline that has ended is started again."""
    before, deadline = len(book.requests()), time.monotonic() + 180
    while len(book.requests()) < min(before + 20, town.episodes):
        assert time.monotonic() < deadline, "nothing is sent"
        run.await_work()
        time.sleep(0.05)


def check(book: MessageStore, episodes: int) -> None:
    """Each owner has each message, once."""
    wanted = {
        (phone(each % HOUSES).lstrip("+"), f"h{each % HOUSES} episode {each // HOUSES}") for each in range(episodes)
    }
    got = Counter(
        (each.receiver.lstrip("+"), each.text) for each in book.newest(10 * episodes + 100) if shown(each.status)
    )
    missing, twice = wanted - set(got), [each for each, count in got.items() if count > 1]
    assert not missing, f"{len(missing)} messages are missing, such as {sorted(missing)[:3]}"
    assert not twice, f"{len(twice)} messages came twice, such as {sorted(twice)[:3]}"
    assert set(got) == wanted, "there are messages that nobody was to get"


def shown(status: str) -> bool:
    return not status.startswith("REJECTED")


def check_sends_nothing_again(run: CrashRun, book: MessageStore, connection: "rr.Connection") -> None:
    """A dry run over everything tells what was sent; a verify, a replay and a group moved to the beginning send nothing."""
    before = len(book.requests())
    sent = [
        each
        for each in read_alert_state(connection, "town").deliveries.values()
        if each.delivery.state in ("sent", "delivered")
    ]
    told = json.loads(riverrun(run.project, "alerts", "dry-run", "--since", "1 day", "--json"))
    assert told["messages"] == len(sent), told
    assert run.verify() == []
    run.start()
    run.await_work()
    riverrun(run.project, "replay", "app.py", "now")
    run.stop()
    riverrun(run.project, "offsets", "move", "town.alerts", "--to-earliest", "--yes")
    run.finish()
    assert len(book.requests()) == before, "something was sent again"


def riverrun(project: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "riverrun", *arguments], cwd=project, capture_output=True, text=True, check=False, timeout=600
    )  # fmt: skip
    assert done.returncode == 0, f"riverrun {arguments}: {done.stderr}"
    return done.stdout


def plan_of(alerts: int, spark: int, seed: int) -> list[Crash]:
    chance = random.Random(seed)
    found = [Crash("alerts", chance.uniform(0.5, 8.0)) for _ in range(alerts)]
    found += [Crash("spark", chance.uniform(0.5, 5.0)) for _ in range(spark)]
    chance.shuffle(found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--alerts", type=int, default=10, help="how often the alert process is killed")
    parser.add_argument("--spark", type=int, default=2, help="how often Spark is")
    parser.add_argument("--rate", type=float, default=60.0, help="episodes a second")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    plan = plan_of(given.alerts, given.spark, given.seed)
    with tempfile.TemporaryDirectory(prefix="riverrun-alerts-") as folder:
        done = survive(Path(folder), plan, episodes=given.episodes, rate=given.rate, seed=given.seed)
    kinds = {kind: done.killed.count(kind) for kind in dict.fromkeys(done.killed)}
    print(
        f"{len(done.killed)} kills {kinds} in {done.seconds:.0f} s; {done.episodes} episodes, {done.requests} requests: "
        "each message on its phone, once; a dry run tells as many; verify, replay and a moved group sent nothing"
    )


if __name__ == "__main__":
    main()
