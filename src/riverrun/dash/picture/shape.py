"""The shape of an app's pipeline, from what its file declares."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from riverrun.dash.queries import parse, tables_read
from riverrun.errors import QueryError
from riverrun.model.dashboard import Dashboard
from riverrun.model.pipeline import FileSource, Stream, Table
from riverrun.model.shape import Node, Shape

if TYPE_CHECKING:
    from riverrun.app import App


def shape_of(
    app: "App", inputs: Mapping[str, Sequence[str]], topics: Mapping[str, Sequence[str]] | None = None
) -> Shape:
    """`inputs` are the names that each stream reads; `topics`, where it is known, the topics its query really reads: a
    stream that reads another may compute it by itself."""
    return _Drawing(app, inputs, topics or {}).shape()


class _Drawing:
    def __init__(self, app: "App", inputs: Mapping[str, Sequence[str]], topics: Mapping[str, Sequence[str]]) -> None:
        self._app = app
        self._inputs = inputs
        self._topics = topics
        self._nodes: dict[str, Node] = {}
        self._edges: dict[tuple[str, str], None] = {}

    def shape(self) -> Shape:
        app = self._app
        for name in app.topics:
            self._topic(name)
        for table in app.tables.values():
            self._lookup(table)
        for stream in app.streams.values():
            self._stream(stream)
        self._sources()
        for name, topic in self._tables().items():
            self._join(self._topic(topic), self._add(Node("table", name, of=topic)))
        for board in app.dashboards.values():
            self._dashboard(board)
        return Shape(tuple(self._nodes.values()), tuple(self._edges))

    def _add(self, node: Node) -> str:
        self._nodes.setdefault(node.id, node)
        return node.id

    def _join(self, start: str, end: str) -> None:
        self._edges[start, end] = None

    def _topic(self, name: str) -> str:
        declared = self._app.topics.get(name)
        event = declared.schema.name if declared is not None and declared.schema is not None else ""
        return self._add(Node("topic", name, about=event, of=name))

    def _lookup(self, table: Table) -> None:
        made = self._add(Node("lookup", table.name, about=", ".join(table.key)))
        if isinstance(table.source, FileSource):
            file = PurePath(table.source.path).name
            self._join(self._add(Node("source", f"{table.name} file", title=file, about=table.source.format)), made)
        else:
            self._join(self._topic(table.source.name), made)

    def _stream(self, stream: Stream) -> None:
        where = "SQL" if stream.function is None else "function"
        made = self._add(Node("stream", stream.name, about=f"{where}, {stream.line}", of=stream.target))
        names = self._inputs.get(stream.name, ())
        for name in self._topics.get(stream.name) or self._topics_of(names):
            self._join(self._topic(name), made)
        for name in names:
            if name in self._app.tables:
                self._join(f"lookup:{name}", made)
        self._join(made, self._topic(stream.target))

    def _topics_of(self, names: Sequence[str]) -> list[str]:
        app = self._app
        found = [app.streams[each].target if each in app.streams else each for each in names]
        return [each for each, name in zip(found, names, strict=True) if name in app.topics or name in app.streams]

    def _sources(self) -> None:
        """Who writes the topics that no stream of the app writes."""
        written = {end for start, end in self._edges if start.startswith("stream:")}
        for fed in self._app.sources.values():
            word = type(fed.source).__name__.lower()
            made = self._add(Node("source", fed.name, title=word, about=str(fed.line), of=fed.topic))
            self._join(made, self._topic(fed.topic))
            written.add(self._topic(fed.topic))
        for node in [each for each in self._nodes.values() if each.kind == "topic" and each.id not in written]:
            self._join(self._add(Node("source", node.name, title="Producers", of=node.name)), node.id)

    def _tables(self) -> dict[str, str]:
        """The store's tables, each with the topic it follows."""
        app = self._app
        said = {each.source for each in app.kept.values()}
        found = {each.name: each.target for each in app.streams.values() if each.store and each.name not in said}
        for kept in app.kept.values():
            stream = app.streams.get(kept.source)
            found[kept.table] = stream.target if stream is not None else kept.source
        return found

    def _dashboard(self, board: Dashboard) -> None:
        made = self._add(Node("dashboard", board.name, title=board.title, about=f"{len(board.tiles)} tiles"))
        known = {each.name.lower(): each.id for each in self._nodes.values() if each.kind == "table"}
        for tile in board.tiles:
            if not tile.asks:
                continue
            try:
                names = tables_read(parse(tile.source, str(tile))) if tile.is_sql else {tile.source}
            except QueryError:
                continue
            for name in sorted(names):
                if name.lower() in known:
                    self._join(known[name.lower()], made)
