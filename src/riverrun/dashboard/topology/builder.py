"""Builds the topology of an app's pipeline from its declarations."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from riverrun.dashboard.tiles.queries import parse, tables_read
from riverrun.errors import QueryError
from riverrun.model.dashboard import Dashboard
from riverrun.model.pipeline import FileSource, Stream, Table
from riverrun.model.topic import Topic
from riverrun.model.topology import PipelineTopology, TopologyNode

if TYPE_CHECKING:
    from riverrun.app import App


def build_topology(
    app: "App", inputs: Mapping[str, Sequence[str]], topics: Mapping[str, Sequence[str]] | None = None
) -> PipelineTopology:
    """Build the topology. `inputs` are the names that each stream reads; `topics`, if known, the topics its query really
    reads: a stream that reads another may compute it by itself."""
    return _TopologyBuilder(app, inputs, topics or {}).build()


class _TopologyBuilder:
    def __init__(self, app: "App", inputs: Mapping[str, Sequence[str]], topics: Mapping[str, Sequence[str]]) -> None:
        self._app = app
        self._inputs = inputs
        self._topics = topics
        self._nodes: dict[str, TopologyNode] = {}
        self._edges: dict[tuple[str, str], None] = {}

    def build(self) -> PipelineTopology:
        app = self._app
        for name in app.topics:
            self._topic(name)
        for table in app.tables.values():
            self._lookup(table)
        for stream in app.streams.values():
            self._stream(stream)
        self._sources()
        for name, topic in self._tables().items():
            self._connect(self._topic(topic), self._add(TopologyNode("table", name, topic=topic)))
        for board in app.dashboards.values():
            self._dashboard(board)
        return PipelineTopology(tuple(self._nodes.values()), tuple(self._edges))

    def _add(self, node: TopologyNode) -> str:
        self._nodes.setdefault(node.id, node)
        return node.id

    def _connect(self, start: str, end: str) -> None:
        self._edges[start, end] = None

    def _topic(self, name: str) -> str:
        declared = self._app.topics.get(name)
        event = declared.schema.name if declared is not None and declared.schema is not None else ""
        return self._add(TopologyNode("topic", name, about=event, topic=name))

    def _lookup(self, table: Table) -> None:
        node_id = self._add(TopologyNode("lookup", table.name, about=", ".join(table.key)))
        if isinstance(table.source, FileSource):
            file = PurePath(table.source.path).name
            self._connect(
                self._add(TopologyNode("source", f"{table.name} file", title=file, about=table.source.format)), node_id
            )
        elif isinstance(table.source, Topic):
            self._connect(self._topic(table.source.name), node_id)

    def _stream(self, stream: Stream) -> None:
        where = "SQL" if stream.function is None else "function"
        node_id = self._add(
            TopologyNode("stream", stream.name, about=f"{where}, {stream.line}", topic=stream.output_topic)
        )
        names = self._inputs.get(stream.name, ())
        for name in self._topics.get(stream.name) or self._topics_of(names):
            self._connect(self._topic(name), node_id)
        for name in names:
            if name in self._app.tables:
                self._connect(f"lookup:{name}", node_id)
        self._connect(node_id, self._topic(stream.output_topic))

    def _topics_of(self, names: Sequence[str]) -> list[str]:
        app = self._app
        topics = [app.streams[name].output_topic if name in app.streams else name for name in names]
        return [topic for topic, name in zip(topics, names, strict=True) if name in app.topics or name in app.streams]

    def _sources(self) -> None:
        """Add the sources of the topics that no stream of the app writes."""
        written = {end for start, end in self._edges if start.startswith("stream:")}
        for binding in self._app.sources.values():
            word = type(binding.source).__name__.lower()
            node_id = self._add(
                TopologyNode("source", binding.name, title=word, about=str(binding.line), topic=binding.topic)
            )
            self._connect(node_id, self._topic(binding.topic))
            written.add(self._topic(binding.topic))
        for node in [
            topic_node
            for topic_node in self._nodes.values()
            if topic_node.kind == "topic" and topic_node.id not in written
        ]:
            self._connect(self._add(TopologyNode("source", node.name, title="Producers", topic=node.name)), node.id)

    def _tables(self) -> dict[str, str]:
        """The store's tables, each with the topic it follows."""
        app = self._app
        stored_sources = {options.source for options in app.table_options.values()}
        topics_by_table = {
            stream.name: stream.output_topic
            for stream in app.streams.values()
            if stream.store and stream.name not in stored_sources
        }
        for options in app.table_options.values():
            stream = app.streams.get(options.source)
            topics_by_table[options.table] = stream.output_topic if stream is not None else options.source
        return topics_by_table

    def _dashboard(self, board: Dashboard) -> None:
        node_id = self._add(TopologyNode("dashboard", board.name, title=board.title, about=f"{len(board.tiles)} tiles"))
        known = {
            table_node.name.lower(): table_node.id for table_node in self._nodes.values() if table_node.kind == "table"
        }
        for tile in board.tiles:
            if not tile.has_query:
                continue
            try:
                names = tables_read(parse(tile.source, str(tile))) if tile.is_sql else {tile.source}
            except QueryError:
                continue
            for name in sorted(names):
                if name.lower() in known:
                    self._connect(known[name.lower()], node_id)
