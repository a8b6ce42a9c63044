"""Devices publish with QoS 1 while the bridge and their broker are killed with -9, again and again: what comes of it.

`script/kill-mqtt` is the long form; tests/e2e/test_mqtt_kills.py a short one. How the broker dies:

  saved  mosquitto is told to save (SIGUSR1) while devices hold their breath, then killed. It promises no more: what it
         acknowledged after its last save is gone with it.
  crash  it is killed in the middle of everything. What is missing then was lost by mosquitto: it is counted, not judged.
"""

import argparse
import itertools
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from riverrun.config import KafkaSettings
from riverrun.kafka.connection import Connection
from riverrun.testing.pytest_plugin import local_kafka
from support.connecting import header_of, records_in
from support.devices import Device
from support.mosquitto import Mosquitto

PIPELINE = """
import riverrun as rr

app = rr.App("plant")

class Reading(rr.Event):
    device: str = rr.key()
    number: int

readings = app.topic("readings", Reading, partitions=3)
app.source(readings, rr.mqtt("meters/+/load", fields={"device": 1}))
"""
CLIENT = "riverrun-plant-readings"
Death = Literal["saved", "crash"]


class Bridge:
    """`riverrun connectors run`, as a user runs it."""

    def __init__(self, project: Path, servers: str) -> None:
        self._command = [sys.executable, "-m", "riverrun", "--project", str(project), "connectors", "run", "app.py",
                         "--bootstrap-servers", servers]  # fmt: skip
        self._project = project
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._project / "bridge.log").open("ab") as log:
            self._process = subprocess.Popen(self._command, cwd=self._project, stdout=log, stderr=log)

    def end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(60)

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None


class Plant:
    """Devices, each with its own messages, at a common rate. `hold` lets all of them finish what they have begun."""

    def __init__(self, port: int, clients: int, messages: int, rate: int) -> None:
        self.devices = [Device(port, f"d{number}") for number in range(clients)]
        self._per_device, more = divmod(messages, clients)
        self._counts = [self._per_device + (place < more) for place in range(clients)]
        self._rate = rate
        self._go = threading.Event()
        self._go.set()
        self._busy = threading.Lock()
        self._thread = threading.Thread(target=self._publish, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def acknowledged(self) -> int:
        return sum(len(device.acknowledged) for device in self.devices)

    def hold(self) -> None:
        self._go.clear()
        with self._busy:
            self.settle()

    def release(self) -> None:
        self._go.set()

    def settle(self) -> None:
        for device in self.devices:
            device.settle(300)

    def close(self) -> None:
        for device in self.devices:
            device.close()

    def _publish(self) -> None:
        begun, sent, held = time.monotonic(), 0, 0.0
        for number in range(max(self._counts)):
            for device, count in zip(self.devices, self._counts, strict=True):
                if number >= count:
                    continue
                if not self._go.is_set():
                    before = time.monotonic()
                    self._go.wait()
                    held += time.monotonic() - before
                with self._busy:
                    device.publish(f"meters/{device.name}/load", b'{"number": %d}' % number)
                sent += 1
                ahead = sent / self._rate - (time.monotonic() - begun - held)
                if ahead > 0.01:
                    time.sleep(ahead)


@dataclass
class Done:
    """What came of it. `unmarked` are second copies that say nothing of being some."""

    acknowledged: int = 0
    missing: int = 0
    records: int = 0
    twice: int = 0
    unmarked: int = 0
    out_of_order: int = 0
    sent_out_of_order: int = 0
    dead: int = 0
    marks: Counter[str] = field(default_factory=Counter)
    bridge_kills: int = 0
    broker_kills: int = 0
    seconds: float = 0.0


def survive(
    folder: Path,
    *,
    messages: int,
    clients: int,
    bridge_kills: int,
    broker_kills: int,
    death: Death = "saved",
    rate: int = 1000,
) -> Done:
    """Run it to the end, and count."""
    project = folder / "project"
    project.mkdir(parents=True)
    (project / "app.py").write_text(PIPELINE, encoding="utf-8")
    done, begun = Done(), time.monotonic()
    with ExitStack() as stack:
        kafka = stack.enter_context(local_kafka(folder / "kafka", KafkaSettings()))
        connection = Connection(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
        broker = stack.enter_context(Mosquitto(folder / "mosquitto", save_after=1000))
        (project / "riverrun.toml").write_text(f'[mqtt]\nurl = "{broker.url}"\n', encoding="utf-8")
        bridge = Bridge(project, kafka.bootstrap_servers)
        stack.callback(bridge.end, signal.SIGKILL)
        bridge.start()
        log = broker.folder / "mosquitto.log"
        await_(
            lambda: log.exists() and f"{CLIENT} 1 meters/+/load" in log.read_text(), "the bridge to subscribe", bridge
        )
        plant = Plant(broker.port, clients, messages, rate)
        stack.callback(plant.close)
        plant.start()
        for at, victim in schedule(messages, bridge_kills, broker_kills):
            await_(lambda at=at: plant.acknowledged >= at or plant.over, f"{at} messages", bridge)  # type: ignore[misc]
            if victim == "bridge":
                bridge.end(signal.SIGKILL)
                bridge.start()
                done.bridge_kills += 1
            else:
                # It knows what it has put into Kafka for as long as it lives: it has to be there, to notice.
                await_(lambda: connected(log), "the bridge to be back", bridge)
                kill_broker(broker, plant, death)
                done.broker_kills += 1
        await_(lambda: plant.over, "the devices", bridge)
        plant.settle()
        done.acknowledged = plant.acknowledged
        await_quiet(connection, bridge)
        bridge.end(signal.SIGTERM)
        judge(done, plant, connection, death)
    done.seconds = time.monotonic() - begun
    return done


def schedule(messages: int, bridge_kills: int, broker_kills: int) -> list[tuple[int, Literal["bridge", "broker"]]]:
    """When who dies, in messages, evenly: they take turns."""
    total = bridge_kills + broker_kills
    victims: list[Literal["bridge", "broker"]] = []
    left = {"bridge": bridge_kills, "broker": broker_kills}
    while left["bridge"] or left["broker"]:
        for each in ("bridge", "broker"):
            if left[each]:
                left[each] -= 1
                victims.append(each)
    return [(messages * (place + 1) // (total + 1), victim) for place, victim in enumerate(victims)]


def kill_broker(broker: Mosquitto, plant: Plant, death: Death) -> None:
    if death == "saved":
        plant.hold()
        broker.save()
    broker.kill()
    broker.start()
    plant.release()


def connected(log: Path) -> bool:
    """Whether the last that the broker says of the bridge is that it is there."""
    lines = [line for line in log.read_text().splitlines() if CLIENT in line]
    return bool(lines) and ("connected from" in lines[-1] or f"{CLIENT} 1 " in lines[-1])


def await_(true: Callable[[], object], what: str, bridge: Bridge, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert bridge.alive, "the bridge ended"
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def await_quiet(connection: Connection, bridge: Bridge, seconds: float = 15) -> None:
    """Until nothing more has come into the topic for a while."""
    count, since = -1, time.monotonic()
    deadline = since + 600
    while time.monotonic() - since < seconds:
        assert bridge.alive, "the bridge ended"
        assert time.monotonic() < deadline, "it does not end"
        now = len(records_in(connection, "readings"))
        if now != count:
            count, since = now, time.monotonic()
        time.sleep(1)


def judge(done: Done, plant: Plant, connection: Connection, death: Death) -> None:
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for record in records_in(connection, "readings"):
        value = json.loads(record.value() or b"")
        found[value["device"]].append((value["number"], header_of(record, "mqtt.repeat")))
        done.records += 1
        done.marks[found[value["device"]][-1][1]] += 1
    done.dead = len(records_in(connection, "readings.dead"))
    for device in plant.devices:
        sent = [json.loads(each)["number"] for each in device.acknowledged]
        came = found[device.name]
        done.missing += len(set(sent) - {number for number, _ in came})
        copies = Counter(number for number, _ in came)
        done.twice += sum(count - 1 for count in copies.values())
        plain = Counter(number for number, mark in came if mark == "no")
        done.unmarked += sum(count - 1 for count in plain.values() if count > 1)
        # In the order in which the broker took them: a client that connects again may send new ones before old ones.
        order = {number: place for place, number in enumerate(sent)}
        first = [order[number] for number in dict.fromkeys(number for number, _ in came) if number in order]
        done.out_of_order += sum(one > other for one, other in itertools.pairwise(first))
        done.sent_out_of_order += sum(one > other for one, other in itertools.pairwise(sent))
    assert done.dead == 0, f"{done.dead} dead letters"
    if death == "saved":
        assert done.missing == 0, f"{done.missing} of {done.acknowledged} acknowledged messages are not in Kafka"
        assert done.unmarked == 0, f"{done.unmarked} second copies are not marked"
        assert done.out_of_order == 0, f"{done.out_of_order} messages are before others of their device"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--bridge-kills", type=int, default=4)
    parser.add_argument("--broker-kills", type=int, default=3)
    parser.add_argument("--death", choices=("saved", "crash"), default="saved", help="how the broker dies")
    parser.add_argument("--rate", type=int, default=1000, help="messages a second")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="riverrun-mqtt-") as folder:
        done = survive(
            Path(folder),
            messages=given.messages,
            clients=given.clients,
            bridge_kills=given.bridge_kills,
            broker_kills=given.broker_kills,
            death=given.death,
            rate=given.rate,
        )
    print(
        f"{given.clients} clients, {done.acknowledged} messages acknowledged; bridge killed {done.bridge_kills} times, "
        f"broker {done.broker_kills} times ({given.death}), in {done.seconds:.0f} s: {done.records} records, "
        f"{done.missing} missing, {done.twice} second copies of which {done.unmarked} unmarked, "
        f"{done.out_of_order} out of order ({done.sent_out_of_order} were sent so); {dict(done.marks)}"
    )


if __name__ == "__main__":
    main()
