"""Which stream reads what: names resolved, cycles found, an order to start in. Needs neither Spark nor a broker."""

import re
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from riverrun.app import App
from riverrun.errors import not_installed
from riverrun.errors.base import sentence
from riverrun.model.connector import Sink, Source
from riverrun.model.pipeline import Stream
from riverrun.model.suggest import nearest
from riverrun.model.topic import Topic

NodeKind = Literal["topic", "table", "stream"]


@dataclass(frozen=True)
class Problem:
    """What is wrong, and on which line. Problems are collected, so that the user sees all of them at once."""

    location: str
    text: str
    hint: str = ""

    def __str__(self) -> str:
        return sentence(f"{self.location}: {self.text}") + (
            f" {self.hint}{'' if self.hint.endswith('?') else '.'}" if self.hint else ""
        )


@dataclass(frozen=True)
class Graph:
    """The streams, each after the streams it reads, and the problems of the others."""

    app: App
    inputs: dict[str, tuple[str, ...]]
    order: tuple[str, ...]
    problems: tuple[Problem, ...]

    def kind(self, name: str) -> NodeKind:
        return "topic" if name in self.app.topics else "table" if name in self.app.tables else "stream"

    def readers(self, name: str) -> list[str]:
        """The streams that read this."""
        return [stream for stream in self.order if name in self.inputs[stream]]

    def upstream(self, name: str) -> list[str]:
        """The streams whose rows a stream reads: by their own names, or by the topic they write."""
        return _upstream(self.app, self.inputs[name])

    def topics(self, name: str) -> list[Topic]:  # type: ignore[type-arg]
        """The declared topics a stream's records come from, through other streams."""
        topics: dict[str, Topic] = {}  # type: ignore[type-arg]
        for input_name in self.inputs.get(name, ()):
            if input_name in self.app.topics:
                topics[input_name] = self.app.topics[input_name]
            elif input_name in self.app.streams:
                topics |= {topic.name: topic for topic in self.topics(input_name)}
        return list(topics.values())


def build_graph(app: App) -> Graph:
    """Resolve the names of an app."""
    known = [*app.topics, *app.tables, *app.streams]
    problems: list[Problem] = []
    inputs: dict[str, tuple[str, ...]] = {}
    for stream in app.streams.values():
        names, problem = (stream.parameters, None) if stream.function is not None else tables_in_sql(stream)
        if problem is not None:
            problems.append(problem)
            continue
        unknown = [name for name in names if name not in known]
        for name in unknown:
            suggestion = nearest(name, known)
            problems.append(
                Problem(
                    str(stream.line),
                    f"{stream.name} reads {name}, which the app does not have",
                    f"Did you mean {suggestion}?" if suggestion else f"It has {', '.join(known) or 'nothing'}",
                )
            )
        if not unknown and not any(name in app.topics or name in app.streams for name in names):
            problems.append(
                Problem(str(stream.line), f"{stream.name} reads no topic and no stream", "Tables do not move")
            )
        inputs[stream.name] = tuple(name for name in names if name not in unknown)
    order, cycle = _start_order(app, inputs)
    if cycle is not None:
        problems.append(cycle)
    problems += _clashes(app, inputs)
    return Graph(app, inputs, order, tuple(problems))


def _start_order(app: App, inputs: dict[str, tuple[str, ...]]) -> tuple[tuple[str, ...], Problem | None]:
    upstream_names = {
        name: [upstream for upstream in _upstream(app, names) if upstream in inputs] for name, names in inputs.items()
    }
    # A stream that writes the topic it reads is reported by _clashes.
    sorter = TopologicalSorter(
        {
            name: [upstream for upstream in upstreams if upstream != name or name in inputs[name]]
            for name, upstreams in upstream_names.items()
        }
    )
    try:
        return tuple(sorter.static_order()), None
    except CycleError as error:
        cycle = list(reversed(error.args[1]))
        first = app.streams[cycle[0]]
        text = f"These streams feed each other in a circle: {' → '.join(cycle)}"
        return (), Problem(str(first.line), text, "Let one of them read what the others do not write")


def _upstream(app: App, names: tuple[str, ...]) -> list[str]:
    by_topic = {stream.output_topic: stream.name for stream in app.streams.values()}
    upstream_names = [name if name in app.streams else by_topic.get(name, "") for name in names]
    return [name for name in dict.fromkeys(upstream_names) if name]


def _clashes(app: App, inputs: dict[str, tuple[str, ...]]) -> list[Problem]:
    """Problems with output topics that the same stream reads, or that have the name of another stream."""
    problems = []
    for stream in app.streams.values():
        if stream.output_topic in inputs.get(stream.name, ()) and stream.output_topic != stream.name:
            text = f"{stream.name} writes the topic it reads, {stream.output_topic}"
            problems.append(Problem(str(stream.line), text, 'Give it a topic of its own: topic="…"'))
        if stream.output_topic != stream.name and stream.output_topic in app.streams:
            problems.append(
                Problem(
                    str(stream.line),
                    f"{stream.name} writes the topic {stream.output_topic}, which is the stream {stream.output_topic}'s",
                )
            )
    return problems


def tables_in_sql(stream: Stream) -> tuple[tuple[str, ...], Problem | None]:
    """The tables that a stream's SQL reads."""
    try:
        import sqlglot
        from sqlglot import exp
        from sqlglot.errors import SqlglotError
    except ImportError as error:
        raise not_installed(error) from error

    # sqlglot takes Spark's function window() right after GROUP BY for a WINDOW clause, unless it is quoted.
    readable = re.sub(r"(?i)(?<![\w`.])window(?=\s*\()", "`window`", stream.sql)
    try:
        statements = [statement for statement in sqlglot.parse(readable, dialect="spark") if statement is not None]
    except SqlglotError as error:
        first = (getattr(error, "errors", None) or [{}])[0]
        text = first.get("description") or str(error).partition("\n")[0]
        near = f" near {first['highlight']!r}, line {first['line']} of the SQL" if first.get("highlight") else ""
        return (), Problem(str(stream.line), f"The SQL of {stream.name} cannot be read: {text.rstrip('.')}{near}")
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        what = f"{len(statements)} statements" if len(statements) != 1 else type(statements[0]).__name__.upper()
        return (), Problem(str(stream.line), f"The SQL of {stream.name} is {what}", "Write one SELECT")
    cte_names = {cte.alias_or_name for cte in statements[0].find_all(exp.CTE)}
    table_names = dict.fromkeys(
        table.name for table in statements[0].find_all(exp.Table) if table.name not in cte_names
    )
    return tuple(table_names), None


def graph_text(graph: Graph) -> str:
    """The lineage as indented text, from the inputs down."""
    lines: list[str] = []

    def show(name: str, depth: int) -> None:
        stream = graph.app.streams.get(name)
        extra = f" → topic {stream.output_topic}" if stream is not None and stream.output_topic != name else ""
        lines.append(f"{'  ' * depth}{graph.kind(name)} {name}{extra}{_connector_text(graph.app, name)}")
        for reader in graph.readers(name):
            show(reader, depth + 1)

    for name in [*graph.app.topics, *graph.app.tables]:
        show(name, 0)
    return "\n".join(lines)


def mermaid_chart(graph: Graph) -> str:
    """The lineage as a Mermaid flow chart, which Markdown pages draw."""
    shapes = {"topic": '[("{}")]', "table": '[/"{}"/]', "stream": '("{}")'}
    lines = ["flowchart LR"]
    lines += [f"  {_id(name)}{shapes[graph.kind(name)].format(name)}" for name in _node_names(graph)]
    lines += [f"  {_id(name)} --> {_id(stream)}" for stream in graph.order for name in graph.inputs[stream]]
    app = graph.app
    lines += [f'  {_id(f"from {source.name}")}>"{_connector_kind(source.source)} {source.name}"] --> {_id(source.topic)}'
              for source in app.sources.values()]  # fmt: skip
    lines += [f'  {_id(sink.upstream)} --> {_id(f"to {sink.name}")}["{_connector_kind(sink.sink)} {sink.name}"]'
              for sink in app.sinks.values()]  # fmt: skip
    return "\n".join(lines)


def _connector_kind(connector: Source | Sink) -> str:
    return type(connector).__name__.lower()


def _connector_text(app: App, name: str) -> str:
    """The sources that write a topic, and the sinks of its rows."""
    source_kinds = [_connector_kind(source.source) for source in app.sources.values() if source.topic == name]
    sink_kinds = [_connector_kind(sink.sink) for sink in app.sinks.values() if sink.upstream == name]
    return (f" ← {', '.join(source_kinds)}" if source_kinds else "") + (
        f" → {', '.join(sink_kinds)}" if sink_kinds else ""
    )


def _node_names(graph: Graph) -> list[str]:
    return [*graph.app.topics, *graph.app.tables, *graph.order]


def _id(name: str) -> str:
    return "n_" + "".join(character if character.isalnum() else "_" for character in name)
