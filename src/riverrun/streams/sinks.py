"""The sinks of an app that write to databases, with the columns that its compiled streams and its topics have."""

from riverrun.connectors.jdbc.target import Target
from riverrun.model.connectors.jdbc import jdbc
from riverrun.streams.compiler import Compilation
from riverrun.streams.tables import watchable


def targets_of(done: Compilation) -> list[Target]:
    """What `app.sink(…, riverrun.jdbc(…))` declares. A stream with a problem has none: it is said elsewhere."""
    tables = watchable(done)
    return [
        Target(
            each.name, str(each.line), each.sink, tables[each.of], decimals_are_text=each.of in done.graph.app.topics
        )
        for each in done.graph.app.sinks.values()
        if isinstance(each.sink, jdbc) and each.of in tables
    ]
