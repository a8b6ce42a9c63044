"""The sinks of an app that write to databases, with the columns that its compiled streams and its topics have."""

from riverrun.connectors.jdbc.target import JdbcTarget
from riverrun.model.connectors.jdbc import jdbc
from riverrun.streams.compile.compiler import Compilation
from riverrun.streams.compile.tables import watchable_tables


def jdbc_targets(compilation: Compilation) -> list[JdbcTarget]:
    """What `app.sink(…, riverrun.jdbc(…))` declares. A stream with a problem is left out: that is reported elsewhere."""
    tables = watchable_tables(compilation)
    return [
        JdbcTarget(
            sink.name,
            str(sink.line),
            sink.sink,
            tables[sink.upstream],
            decimals_are_text=sink.upstream in compilation.graph.app.topics,
        )
        for sink in compilation.graph.app.sinks.values()
        if isinstance(sink.sink, jdbc) and sink.upstream in tables
    ]
