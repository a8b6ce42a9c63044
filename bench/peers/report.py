"""What was measured as tables, a list of where riverrun loses, and a plot. No servers here: figures in, text out."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

OURS = "riverrun"
LIMIT = "parse, 1 process"
BEGIN_MARK = "<!-- figures: written by bench/peers/run.py -->"
END_MARK = "<!-- end of figures -->"


@dataclass(frozen=True)
class Summary:
    """Figures of several turns."""

    median: float
    low: float
    high: float
    turns: int

    @classmethod
    def of(cls, figures: Sequence[float]) -> "Summary | None":
        if not figures:
            return None
        return cls(statistics.median(figures), min(figures), max(figures), len(figures))

    def show(self, digits: int = 0) -> str:
        """The median, and the spread when there was more than one turn."""
        text = f"{self.median:,.{digits}f}"
        return f"{text} ({self.low:,.{digits}f}…{self.high:,.{digits}f})" if self.turns > 1 else text


@dataclass
class Result:
    """A contender, and its figures by name: `rate`, `rate_running`, `start_up`, `memory`, `p50@1000`, `p99@1000`, …"""

    title: str
    emits: str = ""
    promise: str = ""
    note: str = ""
    version: str = ""
    latency: bool = True
    backlog: bool = True
    figures: dict[str, list[float]] = field(default_factory=dict)
    # Rows that were missing or wrong in each turn over the backlog, and how many there had to be.
    wrong: list[int] = field(default_factory=list)
    # Why it could not take part; why turns gave no figure.
    missing: str = ""
    failures: list[str] = field(default_factory=list)

    def add(self, name: str, figure: float) -> None:
        self.figures.setdefault(name, []).append(figure)

    def summary(self, name: str) -> Summary | None:
        return Summary.of(self.figures.get(name, []))

    @property
    def state(self) -> str:
        """Whether its rows were right, in a word or two."""
        if self.missing:
            return "not run"
        if any(self.wrong):
            return f"**wrong** ({max(self.wrong):,} rows)"
        return "yes" if self.wrong else "failed" if self.failures else "-"


@dataclass
class Results:
    """A whole run."""

    about: dict[str, str] = field(default_factory=dict)
    events: int = 0
    rates: list[int] = field(default_factory=list)
    contenders: dict[str, Result] = field(default_factory=dict)
    # Records a second of the bare client, by what it did.
    bare: dict[str, list[float]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> "Results":
        contenders = {name: Result(**each) for name, each in found["contenders"].items()}
        return cls(**{**found, "contenders": contenders})


def ratio(one: Summary | None, other: Summary | None) -> str:
    """Of the medians: turns of different contenders are not pairs."""
    if one is None or other is None or not other.median:
        return "-"
    return f"{one.median / other.median:.2f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def throughput_table(results: Results) -> str:
    ours = _of(results, OURS)
    limit = Summary.of(results.bare.get(LIMIT, []))
    rows = []
    for contender in results.contenders.values():
        if not contender.backlog:
            continue
        whole = contender.summary("rate")
        running, start, memory = (
            contender.summary("rate_running"),
            contender.summary("start_up"),
            contender.summary("memory"),
        )
        rows.append(
            [
                contender.title,
                shown(whole),
                ratio(whole, ours.summary("rate") if ours else None),
                shown(running),
                ratio(running, limit),
                shown(start, 1),
                shown(memory),
                contender.state,
            ]
        )
    head = [
        "",
        "records/s, start included",
        "ratio to riverrun",
        "records/s once started",
        "ratio to bare parse loop",
        "start to first row, s",
        "most memory, MB",
        "right?",
    ]
    return table(head, rows)


def latency_table(results: Results) -> str:
    ours = _of(results, OURS)
    names = [f"{quantile}@{rate}" for rate in results.rates for quantile in ("p50", "p99")]
    head = [""]
    for name in names:
        quantile, _, rate = name.partition("@")
        head += [f"{quantile}, {int(rate):,}/s, ms", "ratio to riverrun"]
    rows = []
    for contender in results.contenders.values():
        cells = [contender.title]
        for name in names:
            found = contender.summary(name)
            cells += [
                shown(found) if contender.latency else "on close",
                ratio(found, ours.summary(name) if ours else None),
            ]
        rows.append(cells)
    return table(head, rows)


def bare_table(results: Results) -> str:
    ours = _of(results, OURS)
    rows = [
        [name, shown(found), ratio(found, ours.summary("rate_running") if ours else None)]
        for name, figures in results.bare.items()
        if (found := Summary.of(figures))
    ]
    return table(["bare confluent-kafka loop", "records/s", "ratio to riverrun once started"], rows)


def about_table(results: Results) -> str:
    rows = []
    for contender in results.contenders.values():
        trouble = (
            [f"Not run: {contender.missing}."]
            if contender.missing
            else [f"Failed: {text}." for text in contender.failures]
        )
        rows.append(
            [
                contender.title,
                contender.version or "-",
                contender.emits,
                contender.promise,
                " ".join([contender.note, *trouble]).strip(),
            ]
        )
    return table(["", "version", "writes", "promise", "note"], rows)


# What is compared, its unit, and whether more is better.
def _measures(rates: Iterable[int]) -> list[tuple[str, str, str, bool]]:
    found = [
        ("rate", "throughput with the start", "records/s", True),
        ("rate_running", "throughput once started", "records/s", True),
        ("start_up", "start to first row", "s", False),
        ("memory", "most memory", "MB", False),
    ]
    for rate in rates:
        found += [
            (f"p50@{rate}", f"age of a row at {rate:,}/s, p50", "ms", False),
            (f"p99@{rate}", f"age of a row at {rate:,}/s, p99", "ms", False),
        ]
    return found


def losses(results: Results) -> list[str]:
    """Each figure in which a contender that was right is better than riverrun, the best of them first."""
    ours = _of(results, OURS)
    if ours is None:
        return []
    lines = []
    for name, what, unit, more in _measures(results.rates):
        mine = ours.summary(name)
        if mine is None:
            continue
        better = []
        for key, each in results.contenders.items():
            found = each.summary(name)
            # Not against ourselves at another speed.
            if key.startswith(OURS) or found is None or any(each.wrong):
                continue
            times = found.median / mine.median if more else mine.median / found.median
            if times > 1:
                better.append((times, f"{each.title} {number(found.median)} ({times:.1f} times better)"))
        if better:
            listed = ", ".join(text for _, text in sorted(better, reverse=True))
            lines.append(f"- **{what}**, ours {number(mine.median)} {unit}: {listed}.")
    return lines


def section(results: Results) -> str:
    """All that goes between the markers of the page."""
    about = "; ".join(f"{name}: {text}" for name, text in results.about.items())
    others = any(each.figures for name, each in results.contenders.items() if not name.startswith(OURS))
    lost = losses(results) or ["- In no figure that was measured."]
    parts = [
        about + ".",
        f"### {results.events:,} readings\n\n{throughput_table(results)}",
        f"### Age of a row when it can be read\n\n{latency_table(results)}" if results.rates else "",
        f"### The limit\n\n{bare_table(results)}" if results.bare else "",
        "### Where we lose\n\n" + "\n".join(lost) if others and OURS in results.contenders else "",
        f"### How each ran\n\n{about_table(results)}",
        "![Throughput and age of a row](images/peers.svg)",
    ]
    return "\n\n".join(part for part in parts if part)


def between_markers(page: str, text: str) -> str:
    """The page with new text between its markers."""
    before, begin, rest = page.partition(BEGIN_MARK)
    _, end, after = rest.partition(END_MARK)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN_MARK} … {END_MARK}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def shown(found: Summary | None, digits: int = 0) -> str:
    return "-" if found is None else found.show(digits)


def number(figure: float) -> str:
    return f"{figure:,.1f}" if figure < 100 else f"{figure:,.0f}"


def _of(results: Results, name: str) -> Result | None:
    return results.contenders.get(name)


# --- the plot ---

WIDTH, LABEL, ROW, BAR = 860, 220, 26, 14
PLOT = WIDTH - LABEL - 120
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .title { font-weight: 600; font-size: 15px }
  .small { font-size: 11px; fill: #57606a }
  .bar { fill: #8c959f } .ours { fill: #0969da } .limit { fill: none; stroke: #8c959f; stroke-dasharray: 3 2 }
  .line { stroke: #24292f; stroke-width: 1.5 } .grid { stroke: #d0d7de }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9198a1 } .bar { fill: #7d8590 } .ours { fill: #4493f8 }
    .line { stroke: #e6edf3 } .grid { stroke: #3d444d }
  }
"""


def plot(results: Results) -> str:
    """Throughput as bars with their spread, and the ages of rows as dots on a logarithmic scale."""
    drawn, height = _bars(results, 10)
    for rate in results.rates:
        more, height = _dots(results, rate, height + 20)
        drawn += more
    body = "\n".join(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + 10}" role="img" '
        f'aria-label="Throughput and age of a row of each contender">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def _bars(results: Results, top: int) -> tuple[list[str], int]:
    rows = [
        (each.title, found, "ours" if name == OURS else "bar")
        for name, each in results.contenders.items()
        if (found := each.summary("rate_running") or each.summary("rate")) and not any(each.wrong)
    ]
    rows += [
        (f"bare: {name}", found, "limit") for name, figures in results.bare.items() if (found := Summary.of(figures))
    ]
    drawn = [_text(0, top + 14, f"Records a second once started, {results.events:,} readings", "title")]
    most = max((found.high for _, found, _ in rows), default=1.0)
    at = top + 26
    for title, found, kind in rows:
        wide, low, high = (each / most * PLOT for each in (found.median, found.low, found.high))
        middle = at + ROW / 2
        drawn += [
            _text(LABEL - 8, middle + 4, title, "", anchor="end"),
            f'<rect class="{kind}" x="{LABEL}" y="{middle - BAR / 2:.1f}" width="{wide:.1f}" height="{BAR}" rx="2"/>',
            _line(LABEL + low, middle, LABEL + high, middle, "line") if found.turns > 1 else "",
            _text(LABEL + max(wide, high) + 6, middle + 4, f"{found.median:,.0f}", "small"),
        ]
        at += ROW
    return [each for each in drawn if each], at


def _dots(results: Results, rate: int, top: int) -> tuple[list[str], int]:
    rows = [
        (each.title, half, tail, "ours" if name.startswith(OURS) else "bar")
        for name, each in results.contenders.items()
        if (half := each.summary(f"p50@{rate}")) and (tail := each.summary(f"p99@{rate}")) and not any(each.wrong)
    ]
    drawn = [_text(0, top + 14, f"Age of a row at {rate:,} readings a second, p50 and p99", "title")]
    figures = [max(1.0, each.median) for _, half, tail, _ in rows for each in (half, tail)] or [1.0]
    first = math.floor(math.log10(min(figures)))
    last = max(first + 1, math.ceil(math.log10(max(figures))))
    scale = PLOT / (last - first)
    begin, end = top + 26, top + 26 + ROW * len(rows)
    for power in range(first, last + 1):
        across = LABEL + (power - first) * scale
        drawn += [
            _line(across, begin, across, end, "grid"),
            _text(across, end + 14, f"{10**power:,.0f} ms", "small", anchor="middle"),
        ]
    for number_of, (title, half, tail, kind) in enumerate(rows):
        middle = begin + ROW * number_of + ROW / 2
        left, right = (LABEL + (math.log10(max(1.0, each.median)) - first) * scale for each in (half, tail))
        drawn += [
            _text(LABEL - 8, middle + 4, title, "", anchor="end"),
            _line(left, middle, right, middle, "grid"),
            f'<circle class="{kind}" cx="{left:.1f}" cy="{middle:.1f}" r="6"/>',
            f'<circle class="{kind}" cx="{right:.1f}" cy="{middle:.1f}" r="4"/>',
            _text(right + 9, middle + 4, f"{half.median:,.0f} / {tail.median:,.0f}", "small"),
        ]
    return drawn, end + 18


def _text(across: float, down: float, text: str, kind: str, *, anchor: str = "start") -> str:
    shape = f' class="{kind}"' if kind else ""
    return f'<text{shape} x="{across:.1f}" y="{down:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(left: float, top: float, right: float, bottom: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{left:.1f}" y1="{top:.1f}" x2="{right:.1f}" y2="{bottom:.1f}"/>'
