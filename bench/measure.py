"""What all measurements share: alternate the contenders, repeat, and report the median with its spread."""

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping


def alternate(contenders: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Run each contender `repeats` times, taking turns, so that a noisy minute hits all of them. Gives their figures."""
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats):
        names = list(contenders)
        for name in names if turn % 2 == 0 else reversed(names):
            figures[name].append(contenders[name]())
            print(f"  {turn + 1}/{repeats}  {name:<28} {figures[name][-1]:,.3f}", file=sys.stderr)
    return figures


def report(title: str, figures: Mapping[str, list[float]], unit: str, *, against: str) -> None:
    """Print median, spread and the ratio of each contender to `against`, turn by turn."""
    print(f"\n{title}  ({unit}; {machine()})")
    print(f"{'':<30}{'median':>14}{'min':>14}{'max':>14}{'ratio':>8}  ratio min…max")
    base = figures[against]
    for name, values in figures.items():
        ratios = [value / other for value, other in zip(values, base, strict=True)]
        print(
            f"{name:<30}{statistics.median(values):>14,.3f}{min(values):>14,.3f}{max(values):>14,.3f}"
            f"{statistics.median(ratios):>8.2f}  {min(ratios):.2f}…{max(ratios):.2f}"
        )


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def machine() -> str:
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}"
