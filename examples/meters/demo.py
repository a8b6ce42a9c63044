"""The demo: a city of smart meters, live. Started by script/demo.

Brings a real Kafka up, makes the topics, starts the source application and a consumer group of two, and shows what flows. At
the end it stops the source, waits until the group has read everything, and counts: acknowledged = stored = handled.
"""

import argparse
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from app import Overload, overloads
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import riverrun as rr
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.groups import GroupLag, group_lags

HERE = Path(__file__).parent
GROUP = "overload-watch"
MEMBERS = 2


def riverrun(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "riverrun", *arguments], cwd=HERE, check=True, stdout=subprocess.DEVNULL)


class Part:
    """A child of the demo. Ctrl-C does not reach it: the demo stops its parts in order."""

    def __init__(self, *arguments: str) -> None:
        self.name = arguments[0]
        self._process = subprocess.Popen(
            [sys.executable, *arguments], cwd=HERE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def check(self) -> None:
        if self._process.poll() is not None:
            raise SystemExit(
                f"{self.name} ended by itself with exit code {self._process.returncode}; see its message above."
            )

    def stop(self) -> dict[str, int]:
        """Ask it to end, and give what it counted."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            said, _ = self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise SystemExit(f"{self.name} did not stop within 60 s and was killed.") from None
        counts: dict[str, int] = json.loads(said) if said else {}
        return counts


@dataclass
class Seen:
    """What the overloads topic says, kept up to date by a reader of its own."""

    over: dict[str, Overload] = field(default_factory=dict)
    last: deque[Overload] = field(default_factory=lambda: deque(maxlen=8))
    began: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        with rr.Consumer(overloads, start="latest") as consumer:
            for batch in consumer.batches(500, wait_seconds=0.2):
                for each in batch.values():
                    self.take(each)
                if self.stop.is_set():
                    return

    def take(self, each: Overload) -> None:
        if each.state == "began":
            self.began += 1
            self.over[each.house_id] = each
            self.last.append(each)
        else:
            self.over.pop(each.house_id, None)


def page(seen: Seen, lag: GroupLag | None, rate: float, speed: float) -> RenderableType:
    """One frame of the live view."""
    flow = Table(box=None, padding=(0, 2))
    for name in ("partition", "stored", "committed", "lag", "read by"):
        flow.add_column(name, justify="left" if name in {"partition", "read by"} else "right")
    for each in lag.partitions if lag else ():
        member = each.member.client_id if each.member else "-"
        flow.add_row(str(each.place), f"{each.end:,}", f"{each.committed or 0:,}", f"{each.lag or 0:,}", member)
    loads = Table(box=None, padding=(0, 2))
    for name in ("house over 2 kW", "since", "kW", ""):
        loads.add_column(name, justify="right" if name == "kW" else "left")
    for each in sorted(seen.over.values(), key=lambda each: -each.load_kw)[:8]:
        bar = Text("█" * min(30, round(each.load_kw * 5)), style="red" if each.load_kw > 3 else "yellow")
        loads.add_row(each.house_id, f"{each.at:%H:%M}", f"{each.load_kw:.2f}", bar)
    head = Text.assemble(
        (f"{rate:,.0f}", "bold green"), " readings/s    ",
        (f"{sum(p.end for p in lag.partitions) if lag else 0:,}", "bold"), " stored    ",
        (f"{lag.lag or 0 if lag else 0:,}", "bold cyan"), " behind    ",
        (f"{len(seen.over)}", "bold red"), " houses over 2 kW now    ",
        (f"{seen.began:,}", "bold"), " overloads so far",
    )  # fmt: skip
    return Group(
        Panel(head, title=f"riverrun · smart meters · city time runs {speed:g} times faster", border_style="blue"),
        Panel(flow, title="topic readings → group overload-watch", border_style="blue"),
        Panel(loads, title="topic overloads", border_style="blue"),
        Text("Ctrl-C stops it and counts what was sent against what was handled.", style="dim"),
    )


@contextlib.contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, so that the end is in order."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"Gave up after {seconds:.0f} s: {what}.")
        time.sleep(0.2)


def show(console: Console, admin: Admin, parts: list[Part], options: argparse.Namespace, stop: threading.Event) -> None:
    """The live view, until somebody stops it."""
    seen = Seen()
    reader = threading.Thread(target=seen.read, daemon=True)
    reader.start()
    ends = time.monotonic() + options.seconds if options.seconds else float("inf")
    before, at, rate = 0, time.monotonic(), 0.0
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while time.monotonic() < ends and not stop.wait(0.5):
            for part in parts:
                part.check()
            lag = next(iter(group_lags(admin, [GROUP], seconds=False)), None)
            stored = sum(each.end for each in lag.partitions) if lag else 0
            now = time.monotonic()
            if stored > before:
                rate, before, at = (stored - before) / (now - at) if before else 0.0, stored, now
            frame = page(seen, lag, rate, options.speed)
            if console.is_terminal:
                live.update(frame, refresh=True)
    if not console.is_terminal:
        console.print(frame)
    if options.picture:
        picture = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
        picture.print(frame)
        # Without the fonts that rich would load from elsewhere: a picture in the docs asks nobody for anything.
        svg = re.sub(r"@font-face \{.*?\}\s*", "", picture.export_svg(title="script/demo"), flags=re.DOTALL)
        options.picture.write_text(svg, encoding="utf-8")
    seen.stop.set()
    reader.join(10)


def account(admin: Admin, parts: list[Part]) -> int:
    """Stop the source, let the group read everything, and compare the counts."""
    source, *members = parts
    acknowledged = source.stop()["acknowledged"]

    def behind() -> int:
        found = group_lags(admin, [GROUP], seconds=False)
        return (found[0].lag or 0) if found else 1

    until(lambda: behind() == 0, 120, "the group did not read everything")
    handled = sum(member.stop().get("handled", 0) for member in members)
    until(lambda: behind() == 0, 30, "the group did not commit everything")
    places = admin.topic("readings").places
    first, last = admin.offsets(places, "earliest"), admin.offsets(places, "latest")
    stored = sum(last.values()) - sum(first.values())
    print(f"acknowledged {acknowledged:,}   stored {stored:,}   handled {handled:,}   behind 0")
    if not acknowledged == stored <= handled:
        print("These do not agree: something was lost.")
        return 1
    print("Nothing lost." if handled == stored else f"Nothing lost; {handled - stored:,} were handled twice.")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/demo", description="A city of smart meters, live, on a real Kafka.")
    parser.add_argument("--houses", type=int, default=2000, help="how many houses report (default: %(default)s)")
    parser.add_argument("--speed", type=float, default=60, help="city time against ours (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0, help="stop after so long (default: until Ctrl-C)")
    parser.add_argument("--brokers", type=int, default=1, help="brokers in the cluster (default: %(default)s)")
    parser.add_argument("--picture", type=Path, help="write the last frame to this SVG file")
    options = parser.parse_args()
    if options.picture:
        options.picture = options.picture.resolve()
    os.chdir(HERE)
    console = Console()
    parts: list[Part] = []
    with stopping() as stop:
        # Each demo starts from nothing, so that its counts are its own.
        riverrun("down", "--delete-data", "--yes")
        riverrun("up", "--detach", "--brokers", str(options.brokers))
        try:
            riverrun("topics", "apply", "--app", "app.py")
            parts.append(Part("source.py", "--houses", str(options.houses), "--speed", str(options.speed)))
            parts += [Part("watch.py") for _ in range(MEMBERS)]
            admin = Admin(rr.connect())
            show(console, admin, parts, options, stop)
            return account(admin, parts)
        finally:
            for part in parts:
                part.stop()
            riverrun("down")


if __name__ == "__main__":
    sys.exit(main())
