"""Whether rows of one key leave a stream in the order of their time, and who would mind if they do not.

Within a batch Spark splits rows by the columns of its last shuffle, and the tasks write side by side. Where those columns
are not part of a key, rows of that key are in several tasks, and come into the topic in any order.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from riverrun.streams.compile.query_analysis import AnalyzedQuery

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.model.pipeline import Stream


def is_in_order(query: AnalyzedQuery, key: Sequence[str]) -> bool:
    """Whether all rows of one key are in one task. True where the plan has no shuffle but an aggregate's, whose rows have
    the columns that it groups by as their key."""
    if query.shuffled_by is None:
        return True
    return bool(query.shuffled_by) and all(column & set(key) for column in query.shuffled_by)


def order_note(app: "App", stream: "Stream", key: tuple[str, ...], time: str, query: AnalyzedQuery) -> str:
    """A warning for the plan; empty when nobody depends on an order that the stream does not have."""
    readers = list(_disordered_readers(app, stream, key, query))
    if not readers:
        return ""
    shuffled = ", ".join("/".join(sorted(column)) for column in query.shuffled_by or ()) or "other columns"
    return (
        f"within a batch, rows of one key come out of the order of their time, because Spark splits them by {shuffled}: "
        f"{' and '.join(readers)}. Let them read a stream that takes the newest row of each key: "
        f"groupBy({', '.join(key) or 'KEY'}).agg(F.max({time or 'TIME'}), F.max_by(COLUMN, {time or 'TIME'}))"
    )


def _disordered_readers(app: "App", stream: "Stream", key: tuple[str, ...], query: AnalyzedQuery) -> Iterable[str]:
    names = {stream.name, stream.output_topic}
    for alert in app.alerts.values():
        reader_key = alert.by or key
        if alert.source in names and reader_key and not is_in_order(query, reader_key):
            yield f"the alert {alert.name} ignores a row that is older than the newest of its key"
    for options in app.table_options.values():
        if options.source in names and options.key and not is_in_order(query, options.key):
            yield f"the table {options.table} may show an older row as the newest of its key"
