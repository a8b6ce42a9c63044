"""HTTP ingest: rows a second beside an ASGI application that discards the body, and memory while Kafka stands still.

    python bench/ingest.py rows   [--seconds 5] [--repeats 3] [--connections 8]
    python bench/ingest.py once   [--seconds 5] [--repeats 3] [--connections 8]    what Idempotency-Key costs
    python bench/ingest.py memory [--seconds 30] [--connections 64]                resident memory, broker stopped

Both servers are processes of their own on the same uvicorn; the sender is a third, with its requests made before. One Kafka
of its own, on this machine, which takes its share of it.
"""

import argparse
import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from measure import alternate, machine, report
from riverrun.app import App
from riverrun.cluster.kafka.local import LocalKafka
from riverrun.cluster.loopback import listening_socket
from riverrun.config import KafkaSettings, Project
from riverrun.config.spec import IngestSettings
from riverrun.connectors.http.server import IngestServer
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.model.connectors.http import http
from riverrun.model.event import Event, event_time, field, key
from riverrun.web.server import HttpEndpoint, HttpServer

BARE = "bare ASGI, body discarded"
OURS = "riverrun, acks=all"
ROWS = 500
MANY = 10_000
# Seconds to the slowest answer since it was last set.
SLOWEST = [0.0]


class Reading(Event):
    house_id: str = key()
    load_kw: float = field(ge=0)
    at: datetime = event_time()
    meter: str
    number: int


def reading(number: int) -> dict[str, Any]:
    """About 130 bytes."""
    return {
        "house_id": f"house-{number * 7919 % 10_000:06d}",
        "load_kw": number * 31 % 30000 / 10000,
        "at": "2026-01-01T12:00:00.000000Z",
        "meter": f"A1-{number % 1000:012d}",
        "number": number,
    }


# --- the servers ---


async def discard(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})


def serve(kind: str, servers: str, folder: str, settings: str) -> None:
    if kind == "bare":
        found = listening_socket(0)
        HttpServer([HttpEndpoint(discard, found)]).start()
        port = found.getsockname()[1]
    else:
        app = App("bench")
        app.source(app.topic("readings", Reading, partitions=4), http())
        connection = Connection(KafkaSettings(bootstrap_servers=servers))
        server = IngestServer(
            app, list(app.sources.values()), connection, IngestSettings(**json.loads(settings)), Project(Path(folder))
        )
        server.start()
        port = server.port
    print(port, flush=True)
    threading.Event().wait()


@contextmanager
def served(kind: str, servers: str, root: Path, **settings: Any) -> Iterator[tuple[int, int]]:
    """Port and pid."""
    command = [sys.executable, __file__, "serve", kind, servers, str(root), json.dumps(settings)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
    finally:
        process.kill()
        process.wait()


# --- the sender ---


def request(rows: int, *, packed: bool = False, first: int = 0) -> Callable[[], bytes]:
    made = [reading(each) for each in range(first, first + rows)]
    body = json.dumps(made if rows > 1 else made[0], separators=(",", ":")).encode()
    if packed:
        body = gzip.compress(body, 6)
    head = (
        "POST /topics/readings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n" + ("Content-Encoding: gzip\r\n" if packed else "")
    )
    whole = f"{head}\r\n".encode() + body
    return lambda: whole


def keyed(rows: int) -> Callable[[], bytes]:
    head, _, body = request(rows)().partition(b"\r\n\r\n")
    return lambda: head + f"\r\nIdempotency-Key: {uuid.uuid4()}\r\n\r\n".encode() + body


async def sending(port: int, make: Callable[[], bytes], deadline: float, statuses: Counter[int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        while time.monotonic() < deadline:
            begun = time.monotonic()
            writer.write(make())
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            statuses[int(head[9:12])] += 1
            SLOWEST[0] = max(SLOWEST[0], time.monotonic() - begun)
    except (asyncio.IncompleteReadError, ConnectionError):
        statuses[0] += 1
    finally:
        writer.close()


def load(port: int, make: Callable[[], bytes], seconds: float, connections: int) -> tuple[Counter[int], float]:
    statuses: Counter[int] = Counter()

    async def main() -> None:
        deadline = time.monotonic() + seconds
        await asyncio.gather(*(sending(port, make, deadline, statuses) for _ in range(connections)))

    begun = time.monotonic()
    asyncio.run(main())
    return statuses, time.monotonic() - begun


def rate(port: int, make: Callable[[], bytes], rows: int, seconds: float, connections: int) -> float:
    statuses, took = load(port, make, seconds, connections)
    assert set(statuses) == {200}, statuses
    return rows * statuses[200] / took


# --- what is measured ---


def rows(root: Path, servers: str, given: argparse.Namespace) -> None:
    with served("bare", servers, root) as (bare, _), served("riverrun", servers, root) as (ours, _):
        for name, count, make in (
            ("Posts of 1 row", 1, request(1)),
            (f"Posts of {ROWS} rows", ROWS, request(ROWS)),
            (f"Posts of {ROWS} rows, gzip", ROWS, request(ROWS, packed=True)),
        ):
            contenders = {
                BARE: lambda make=make, count=count: rate(bare, make, count, given.seconds, given.connections),
                OURS: lambda make=make, count=count: rate(ours, make, count, given.seconds, given.connections),
            }
            load(ours, make, 1, given.connections)
            report(name, alternate(contenders, given.repeats), "rows/s", against=BARE)


def once(root: Path, servers: str, given: argparse.Namespace) -> None:
    with served("riverrun", servers, root) as (port, _):
        for count in (1, ROWS):
            load(port, keyed(count), 1, given.connections)
            contenders = {
                "as they come": lambda count=count: rate(port, request(count), count, given.seconds, given.connections),
                "with Idempotency-Key": lambda count=count: rate(
                    port, keyed(count), count, given.seconds, given.connections
                ),
            }
            title = f"Posts of {count} row{'s' if count > 1 else ''}, {given.connections} at a time"
            report(title, alternate(contenders, given.repeats), "rows/s", against="as they come")


def memory(root: Path, servers: str, broker: int, given: argparse.Namespace) -> None:
    with served("riverrun", servers, root, timeout_seconds=5) as (port, pid):
        process = psutil.Process(pid)
        load(port, request(ROWS), 2, given.connections)
        before = process.memory_info().rss
        most = [before]
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.05):
                most.append(process.memory_info().rss)

        watcher = threading.Thread(target=look)
        watcher.start()
        SLOWEST[0] = 0.0
        os.kill(broker, signal.SIGSTOP)
        try:
            statuses, took = load(port, request(MANY), given.seconds, given.connections)
        finally:
            os.kill(broker, signal.SIGCONT)
        over.set()
        watcher.join()
        print(f"\nBroker stopped, {given.connections} senders of {MANY:,}-row posts for {took:.0f} s  ({machine()})")
        print(f"  answers {dict(statuses)}, the slowest after {SLOWEST[0]:.1f} s (ingest.timeout_seconds is 5)")
        print(f"  resident before {before / 2**20:.0f} MiB, most {max(most) / 2**20:.0f} MiB (ingest.memory_mb is 64)")


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        serve(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rows", "once", "memory"])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--connections", type=int, default=0, help="8, or 64 for memory")
    given = parser.parse_args()
    given.connections = given.connections or (64 if given.what == "memory" else 8)
    print("$ python", *sys.argv)
    with tempfile.TemporaryDirectory(prefix="riverrun-bench-") as folder:
        root = Path(folder)
        with LocalKafka(root / "kafka", KafkaSettings(), first_port=21100) as kafka:
            Admin(Connection(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))).create_topic(
                "readings", partitions=4, replicas=0, config={}
            )
            if given.what == "memory":
                memory(root, kafka.bootstrap_servers, kafka.brokers[0].pid, given)
            else:
                {"rows": rows, "once": once}[given.what](root, kafka.bootstrap_servers, given)


if __name__ == "__main__":
    main()
