"""Which stream reads what: names resolved, cycles found, an order to start in. Needs neither Spark nor a broker."""

import re
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from riverrun.app import App
from riverrun.errors import not_installed
from riverrun.errors.base import sentence
from riverrun.model.connector import Sink, Source
from riverrun.model.near import nearest
from riverrun.model.pipeline import Stream
from riverrun.model.topic import Topic

Kind = Literal["topic", "table", "stream"]


@dataclass(frozen=True)
class Problem:
    """What is wrong, and where. Problems are collected: the user sees all of them at once."""

    place: str
    text: str
    hint: str = ""

    def __str__(self) -> str:
        return sentence(f"{self.place}: {self.text}") + (
            f" {self.hint}{'' if self.hint.endswith('?') else '.'}" if self.hint else ""
        )


@dataclass(frozen=True)
class Graph:
    """The streams in an order in which each comes after the streams it reads, and what is wrong with the others."""

    app: App
    inputs: dict[str, tuple[str, ...]]
    order: tuple[str, ...]
    problems: tuple[Problem, ...]

    def kind(self, name: str) -> Kind:
        return "topic" if name in self.app.topics else "table" if name in self.app.tables else "stream"

    def readers(self, name: str) -> list[str]:
        """The streams that read this."""
        return [stream for stream in self.order if name in self.inputs[stream]]

    def before(self, name: str) -> list[str]:
        """The streams whose rows a stream reads: by their own names, or by the topic they write."""
        return _before(self.app, self.inputs[name])

    def topics(self, name: str) -> list[Topic]:  # type: ignore[type-arg]
        """The declared topics a stream's records come from, through other streams."""
        found: dict[str, Topic] = {}  # type: ignore[type-arg]
        for each in self.inputs.get(name, ()):
            if each in self.app.topics:
                found[each] = self.app.topics[each]
            elif each in self.app.streams:
                found |= {topic.name: topic for topic in self.topics(each)}
        return list(found.values())


def graph_of(app: App) -> Graph:
    """Resolve the names of an app."""
    known = [*app.topics, *app.tables, *app.streams]
    problems: list[Problem] = []
    inputs: dict[str, tuple[str, ...]] = {}
    for stream in app.streams.values():
        names, problem = (stream.parameters, None) if stream.function is not None else tables_of(stream)
        if problem is not None:
            problems.append(problem)
            continue
        unknown = [name for name in names if name not in known]
        for name in unknown:
            near = nearest(name, known)
            problems.append(
                Problem(
                    str(stream.line),
                    f"{stream.name} reads {name}, which the app does not have",
                    f"Did you mean {near}?" if near else f"It has {', '.join(known) or 'nothing'}",
                )
            )
        if not unknown and not any(name in app.topics or name in app.streams for name in names):
            problems.append(
                Problem(str(stream.line), f"{stream.name} reads no topic and no stream", "Tables do not move")
            )
        inputs[stream.name] = tuple(name for name in names if name not in unknown)
    order, cycle = _order(app, inputs)
    if cycle is not None:
        problems.append(cycle)
    problems += _clashes(app, inputs)
    return Graph(app, inputs, order, tuple(problems))


def _order(app: App, inputs: dict[str, tuple[str, ...]]) -> tuple[tuple[str, ...], Problem | None]:
    above = {name: [each for each in _before(app, names) if each in inputs] for name, names in inputs.items()}
    # A stream that writes the topic it reads is told so by _clashes.
    sorter = TopologicalSorter(
        {name: [each for each in found if each != name or name in inputs[name]] for name, found in above.items()}
    )
    try:
        return tuple(sorter.static_order()), None
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        first = app.streams[circle[0]]
        text = f"These streams feed each other in a circle: {' → '.join(circle)}"
        return (), Problem(str(first.line), text, "Let one of them read what the others do not write")


def _before(app: App, names: tuple[str, ...]) -> list[str]:
    by_topic = {stream.target: stream.name for stream in app.streams.values()}
    found = [each if each in app.streams else by_topic.get(each, "") for each in names]
    return [each for each in dict.fromkeys(found) if each]


def _clashes(app: App, inputs: dict[str, tuple[str, ...]]) -> list[Problem]:
    """Output topics that are inputs of the same stream, or that a table or another part already has."""
    found = []
    for stream in app.streams.values():
        if stream.target in inputs.get(stream.name, ()) and stream.target != stream.name:
            text = f"{stream.name} writes the topic it reads, {stream.target}"
            found.append(Problem(str(stream.line), text, 'Give it a topic of its own: topic="…"'))
        if stream.target != stream.name and stream.target in app.streams:
            found.append(
                Problem(
                    str(stream.line),
                    f"{stream.name} writes the topic {stream.target}, which is the stream {stream.target}'s",
                )
            )
    return found


def tables_of(stream: Stream) -> tuple[tuple[str, ...], Problem | None]:
    """The tables that a stream's SQL reads."""
    try:
        import sqlglot
        from sqlglot import exp
        from sqlglot.errors import SqlglotError
    except ImportError as error:
        raise not_installed(error) from error

    # Spark's function window() right after GROUP BY is taken for a WINDOW clause, unless it is quoted.
    readable = re.sub(r"(?i)(?<![\w`.])window(?=\s*\()", "`window`", stream.sql)
    try:
        statements = [each for each in sqlglot.parse(readable, dialect="spark") if each is not None]
    except SqlglotError as error:
        first = (getattr(error, "errors", None) or [{}])[0]
        text = first.get("description") or str(error).partition("\n")[0]
        near = f" near {first['highlight']!r}, line {first['line']} of the SQL" if first.get("highlight") else ""
        return (), Problem(str(stream.line), f"The SQL of {stream.name} cannot be read: {text.rstrip('.')}{near}")
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        what = f"{len(statements)} statements" if len(statements) != 1 else type(statements[0]).__name__.upper()
        return (), Problem(str(stream.line), f"The SQL of {stream.name} is {what}", "Write one SELECT")
    made = {each.alias_or_name for each in statements[0].find_all(exp.CTE)}
    found = dict.fromkeys(each.name for each in statements[0].find_all(exp.Table) if each.name not in made)
    return tuple(found), None


def text_of(graph: Graph) -> str:
    """The lineage as indented text, from the inputs down."""
    lines: list[str] = []

    def show(name: str, depth: int) -> None:
        stream = graph.app.streams.get(name)
        extra = f" → topic {stream.target}" if stream is not None and stream.target != name else ""
        lines.append(f"{'  ' * depth}{graph.kind(name)} {name}{extra}{_connected(graph.app, name)}")
        for reader in graph.readers(name):
            show(reader, depth + 1)

    for name in [*graph.app.topics, *graph.app.tables]:
        show(name, 0)
    return "\n".join(lines)


def mermaid_of(graph: Graph) -> str:
    """The lineage as a Mermaid flow chart, which Markdown pages draw."""
    shapes = {"topic": '[("{}")]', "table": '[/"{}"/]', "stream": '("{}")'}
    lines = ["flowchart LR"]
    lines += [f"  {_id(name)}{shapes[graph.kind(name)].format(name)}" for name in _all(graph)]
    lines += [f"  {_id(name)} --> {_id(stream)}" for stream in graph.order for name in graph.inputs[stream]]
    app = graph.app
    lines += [f'  {_id(f"from {each.name}")}>"{_word(each.source)} {each.name}"] --> {_id(each.topic)}'
              for each in app.sources.values()]  # fmt: skip
    lines += [f'  {_id(each.of)} --> {_id(f"to {each.name}")}["{_word(each.sink)} {each.name}"]'
              for each in app.sinks.values()]  # fmt: skip
    return "\n".join(lines)


def _word(connector: Source | Sink) -> str:
    return type(connector).__name__.lower()


def _connected(app: App, name: str) -> str:
    """What fills a topic, and where rows go besides."""
    fed = [_word(each.source) for each in app.sources.values() if each.topic == name]
    drained = [_word(each.sink) for each in app.sinks.values() if each.of == name]
    return (f" ← {', '.join(fed)}" if fed else "") + (f" → {', '.join(drained)}" if drained else "")


def _all(graph: Graph) -> list[str]:
    return [*graph.app.topics, *graph.app.tables, *graph.order]


def _id(name: str) -> str:
    return "n_" + "".join(each if each.isalnum() else "_" for each in name)
