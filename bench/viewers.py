"""What viewers cost, and what a page weighs.

    python bench/viewers.py cpu [--viewers 200] [--rate 1000] [--seconds 20] [--repeats 3]
    python bench/viewers.py page [--repeats 7]

`cpu`: CPU seconds of the server's process, by the second, while records come in: with nobody looking, with one viewer and
with many, taking turns. Viewers are plain connections in a process of their own that take what a browser takes (gzip).
`page`: what a real Chromium has loaded when figures are on the page, and when it first painted; each time with an empty
cache.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from dashboard import Load, kafka, serving
from measure import alternate, machine, report
from riverrun.config import KafkaSettings
from riverrun.kafka.connection import Connection

sys.path.append(str(Path(__file__).parents[1] / "tests"))

SETTLE_SECONDS = 3.0


def serve(bootstrap: str, folder: Path, queue: Any, stop: Any) -> None:
    with serving(Connection(KafkaSettings(bootstrap_servers=bootstrap)), folder) as (address, _):
        queue.put(address)
        stop.wait()


def look_on(address: str, count: int, heard: Any, stop: Any) -> None:
    """`count` viewers in this process; `heard` has how many frames and bytes all of them got."""
    asyncio.run(_look_on(address, count, heard, stop))


async def _look_on(address: str, count: int, heard: Any, stop: Any) -> None:
    parts = urlsplit(address)

    async def look() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(f"GET /api/live/main HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept-Encoding: gzip\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        # Each message is a chunk of its own.
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
            heard[0] += 1
            heard[1] += size

    looking = [asyncio.create_task(look()) for _ in range(count)]
    await asyncio.to_thread(stop.wait)
    for each in looking:
        each.cancel()
    await asyncio.gather(*looking, return_exceptions=True)


def cost(address: str, pid: int, count: int, seconds: float) -> float:
    """CPU seconds of the server by the second, with so many viewers."""
    heard, stop = multiprocessing.Array("q", 2, lock=False), multiprocessing.Event()
    looking = multiprocessing.Process(target=look_on, args=(address, count, heard, stop))
    looking.start()
    time.sleep(SETTLE_SECONDS)
    process = psutil.Process(pid)
    before, chunks, size, began = process.cpu_times(), heard[0], heard[1], time.monotonic()
    time.sleep(seconds)
    after, took = process.cpu_times(), time.monotonic() - began
    frames, kept = (heard[0] - chunks) / took / max(count, 1), (heard[1] - size) / took / max(count, 1) / 1024
    stop.set()
    looking.join(20)
    print(f"      {count:4} viewers: {frames:5.1f} messages/s and {kept:6.1f} KiB/s to each", file=sys.stderr)
    return (after.user + after.system - before.user - before.system) / took


def cpu(most: int, rate: int, seconds: float, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as name, kafka(Path(name)) as connection:
        queue: multiprocessing.Queue[str] = multiprocessing.Queue()
        stop = multiprocessing.Event()
        server = multiprocessing.Process(
            target=serve, args=(connection.bootstrap_servers, Path(name) / "store", queue, stop)
        )
        server.start()
        address, pid = queue.get(timeout=60), server.pid or 0
        load = Load(connection, rate)
        load.start()
        contenders = {
            f"{count} viewers": lambda count=count: cost(address, pid, count, seconds) for count in (0, 1, most)
        }
        figures = alternate(contenders, repeats)
        load.done.set()
        load.join()
        stop.set()
        server.join(20)
    report(f"CPU of the server, {rate} records/s, five tiles", figures, "cores", against="1 viewers")


def page(repeats: int) -> None:
    from support.browsing import chromium, page_of
    from support.city import City, city_app
    from support.dashboards import DashServer

    city = City(40)
    city.run(60)
    paints, weights, shown = [], [], []
    with DashServer(city_app(), city.store) as server, chromium() as browser:
        for _ in range(repeats):
            with page_of(browser) as found:
                found.goto(server.address)
                found.locator("[data-name=highest-house] .value").filter(has_text=".").wait_for()
                measured = found.evaluate(
                    """() => ({ now: performance.now(),
                    paint: performance.getEntriesByName("first-contentful-paint")[0].startTime,
                    weight: [...performance.getEntriesByType("resource"), ...performance.getEntriesByType("navigation")]
                        .reduce((sum, each) => sum + each.transferSize, 0) })"""
                )
                paints.append(measured["paint"])
                shown.append(measured["now"])
                weights.append(measured["weight"])
    print(f"page of ten tiles, empty cache, {repeats} times  ({machine()})")
    print(f"weight, compressed       {max(weights) / 1000:6.1f} kB")
    for name, values in (("first paint", paints), ("figures on the page", shown)):
        print(f"{name:<24} {statistics.median(values):6.0f} ms, {min(values):.0f} to {max(values):.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cpu", "page"))
    parser.add_argument("--viewers", type=int, default=200)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    if given.what == "cpu":
        cpu(given.viewers, given.rate, given.seconds, given.repeats)
    else:
        page(given.repeats)


if __name__ == "__main__":
    main()
