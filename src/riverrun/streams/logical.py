"""What a stream's query is made of, read off Spark's own analysed plan, and what Spark says it can do with it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.streams.sources import observation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Operators that keep state between batches, in the words a user has for them.
STATEFUL = {
    "Aggregate": "groupBy().agg()",
    "Deduplicate": "dropDuplicates()",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark()",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState()",
    "TransformWithStateInPandas": "transformWithStateInPandas()",
    "TransformWithStateInPySpark": "transformWithState()",
}
# Operators that run Python or that real-time mode has no form for.
NOT_REAL_TIME = {
    "MapInPandas": "mapInPandas()",
    "MapInArrow": "mapInArrow()",
    "PythonMapInArrow": "mapInArrow()",
    "FlatMapGroupsInPandas": "applyInPandas()",
    "FlatMapGroupsInArrow": "applyInArrow()",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState()",
    "TransformWithStateInPandas": "transformWithStateInPandas()",
    "TransformWithStateInPySpark": "transformWithState()",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark()",
}
# One row in, at most one row out.
_ONE_TO_ONE = {
    "CollectMetrics", "Deduplicate", "DeduplicateWithinWatermark", "EventTimeWatermark", "Filter", "Project", "ResolvedHint",
    "StreamingRelation", "StreamingRelationV2", "SubqueryAlias", "Union", "View",
}  # fmt: skip
# Operators that give a row to a part by where it stood, or by a sample, not by its key: another time to another one.
_BY_CHANCE = {"GlobalLimit", "LocalLimit", "Offset", "RebalancePartitions", "Repartition", "Sample", "Sort", "Tail"}


@dataclass(frozen=True)
class Query:
    """An analysed query. Nodes are listed from the output down."""

    nodes: tuple[str, ...]
    joins_streams: bool
    joins_tables: bool
    python_functions: tuple[str, ...]
    grouping: tuple[str, ...] | None
    windowed: bool
    watermarked: bool
    random_columns: tuple[str, ...]
    repeated_sources: bool
    plan: Any
    # Whether a part of a batch that is computed again may hold other rows than before.
    splits_vary: bool = False

    @property
    def stateful(self) -> tuple[str, ...]:
        found = [STATEFUL[each] for each in self.nodes if each in STATEFUL]
        return tuple(found + (["a join of two streams"] if self.joins_streams else []))

    @property
    def aggregated(self) -> bool:
        return "Aggregate" in self.nodes

    @property
    def one_to_one(self) -> bool:
        """Whether every row that leaves is one row that came, so that what is missing was filtered or late."""
        return set(self.nodes) <= _ONE_TO_ONE and not self.repeated_sources


def read_query(frame: "DataFrame") -> Query:
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    nodes = [node for node in _nodes(plan) if node.isStreaming()]
    names = tuple(node.nodeName() for node in nodes)
    joins = [node for node in nodes if node.nodeName() == "Join"]
    both = [all(child.isStreaming() for child in _each(node.children())) for node in joins]
    sources = [_source(node) for node in nodes if node.nodeName() == "StreamingRelationV2"]
    top = next((node for node in nodes if node.nodeName() == "Aggregate"), None)
    functions: dict[str, None] = {}
    random: dict[str, None] = {}
    windowed = False
    for node in _users_part(plan):
        for expression in _each(node.expressions()):
            for each in _expressions(expression):
                kind = each.getClass().getSimpleName()
                if kind == "PythonUDF":
                    functions[each.name()] = None
                elif kind == "Alias" and not each.deterministic():
                    random[each.name()] = None
                elif kind in ("PreciseTimestampConversion", "TimeWindow", "SessionWindow"):
                    windowed = True
    return Query(
        nodes=names,
        joins_streams=any(both),
        joins_tables=any(not each for each in both),
        python_functions=tuple(functions),
        grouping=None if top is None else _grouping(top),
        windowed=windowed,
        watermarked="EventTimeWatermark" in names,
        random_columns=tuple(random),
        repeated_sources=len(sources) != len(set(sources)),
        plan=plan,
        splits_vary=any(_splits_vary(node) for node in nodes),
    )


def refusal(frame: "DataFrame", query: Query, mode: str, *, real_time: bool = False) -> str:
    """What Spark says against running this query in an output mode; empty when nothing."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    jvm = frame.sparkSession._jvm  # noqa: SLF001
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker  # type: ignore[union-attr]
    output = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, mode.capitalize())()  # type: ignore[union-attr]
    try:
        checker.checkForStreaming(query.plan, output)
        if real_time:
            checker.checkAdditionalRealTimeModeConstraints(query.plan, output)
    except Py4JJavaError as error:
        return sentence(str(error.java_exception.getMessage()))
    except PySparkException as error:
        return sentence(str(error))
    return ""


def two_event_times(query: Query) -> bool:
    """Whether an operator keeps state by two event times, as after a join that keeps those of both sides. Spark finds it
    when the first batch is planned, and not by its check."""
    ends = _timed(query.plan.output())
    for node in _nodes(query.plan):
        if not node.isStreaming():
            continue
        name, sides = node.nodeName(), [_timed(child.output()) for child in _each(node.children())]
        if name == "Aggregate":
            found = _timed(each for each in _each(node.groupingExpressions()) if _is_named(each))
        elif name in ("Deduplicate", "DeduplicateWithinWatermark"):
            # Columns that nobody needs are left out before it runs.
            found = sides[0] & (ends | _timed(_each(node.keys())))
        elif name in STATEFUL:
            found = sides[0]
        elif name == "Join" and len(sides) > 1:
            found = max((side & ends for side in sides), key=len)
        else:
            continue
        if len(found) > 1:
            return True
    return False


def _timed(columns: Any) -> set[int]:
    """The ids of the columns that say when a row happened."""
    listed = columns if isinstance(columns, Iterator) else _each(columns)
    return {
        int(each.exprId().id())
        for each in listed
        if each.resolved() and each.metadata().contains("spark.watermarkDelayMs")
    }


def sentence(text: str) -> str:
    """The part of Spark's message that is for people: no condition's name, no plan, no SQL state."""
    first = re.split(r"\n|;\s*~|;\s*\n| SQLSTATE:", text.strip(), maxsplit=1)[0]
    return re.sub(r"^(\([^)]*\) )?\[[A-Z0-9_.]+\]\s*", "", first).strip().rstrip(".;")


def _splits_vary(node: Any) -> bool:
    if node.nodeName() == "RepartitionByExpression":
        # By ranges of a column, which Spark makes from a sample; or by none.
        kinds = [each.getClass().getSimpleName() for each in _each(node.partitionExpressions())]
        return not kinds or "SortOrder" in kinds
    return node.nodeName() in _BY_CHANCE


def _source(node: Any) -> str:
    return str(node.extraOptions().get("subscribe") or node.toString())


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _each(plan.children()):
        yield from _nodes(child)


def _users_part(plan: Any) -> Iterator[Any]:
    """The nodes above our own readers, which end in an observation. Their expressions are many, and asking Spark for each
    takes a second a stream."""
    if (plan.nodeName() == "CollectMetrics" and str(plan.name()).startswith(observation(""))) or not plan.isStreaming():
        return
    yield plan
    for child in _each(plan.children()):
        yield from _users_part(child)


def _expressions(expression: Any) -> Iterator[Any]:
    yield expression
    for child in _each(expression.children()):
        yield from _expressions(child)


def _each(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _grouping(aggregate: Any) -> tuple[str, ...]:
    """The names that the columns an aggregate groups by have in its output."""
    outputs = list(_each(aggregate.aggregateExpressions()))
    names = []
    for group in _each(aggregate.groupingExpressions()):
        same = [each for each in outputs if _inner(each).semanticEquals(_inner(group))]
        name = same[0] if same else group
        names.append(str(name.name()) if _is_named(name) else str(name.toString()))
    return tuple(names)


def _inner(expression: Any) -> Any:
    return expression.child() if expression.getClass().getSimpleName() == "Alias" else expression


def _is_named(expression: Any) -> bool:
    return expression.getClass().getSimpleName() in ("Alias", "AttributeReference")
