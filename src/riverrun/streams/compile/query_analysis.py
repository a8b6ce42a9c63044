"""What a stream's query consists of, from Spark's analysed plan, and what Spark can do with it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.streams.compile.sources import input_observation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Operators that keep state between batches, by the names users know.
STATEFUL_OPERATORS = {
    "Aggregate": "groupBy().agg()",
    "Deduplicate": "dropDuplicates()",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark()",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState()",
    "TransformWithStateInPandas": "transformWithStateInPandas()",
    "TransformWithStateInPySpark": "transformWithState()",
}
# Operators that run Python or that real-time mode does not support.
NOT_IN_REAL_TIME = {
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
# Operators that partition rows by their position or by a sample, not by key: the next time a row may be elsewhere.
_UNSTABLE_PARTITIONING = {
    "GlobalLimit",
    "LocalLimit",
    "Offset",
    "RebalancePartitions",
    "Repartition",
    "Sample",
    "Sort",
    "Tail",
}


@dataclass(frozen=True)
class AnalyzedQuery:
    """An analysed query. Nodes are in order from the output down."""

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
    # Whether a partition of a batch that is computed again may have other rows than before.
    unstable_partitions: bool = False
    # What the last operator with state splits rows by, each column with its other names; None for none and for aggregates.
    shuffled_by: tuple[frozenset[str], ...] | None = None

    @property
    def stateful(self) -> tuple[str, ...]:
        operators = [STATEFUL_OPERATORS[node] for node in self.nodes if node in STATEFUL_OPERATORS]
        return tuple(operators + (["a join of two streams"] if self.joins_streams else []))

    @property
    def aggregated(self) -> bool:
        return "Aggregate" in self.nodes

    @property
    def one_to_one(self) -> bool:
        """Whether every output row is one input row, so that the missing ones were filtered or late."""
        return set(self.nodes) <= _ONE_TO_ONE and not self.repeated_sources


def analyze_query(frame: "DataFrame") -> AnalyzedQuery:
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    nodes = [node for node in _nodes(plan) if node.isStreaming()]
    names = tuple(node.nodeName() for node in nodes)
    joins = [node for node in nodes if node.nodeName() == "Join"]
    joins_both_streaming = [all(child.isStreaming() for child in _iterate(node.children())) for node in joins]
    sources = [_source(node) for node in nodes if node.nodeName() == "StreamingRelationV2"]
    aggregate = next((node for node in nodes if node.nodeName() == "Aggregate"), None)
    functions: dict[str, None] = {}
    random: dict[str, None] = {}
    windowed = False
    for node in _user_nodes(plan):
        for expression in _iterate(node.expressions()):
            for inner in _expressions(expression):
                kind = inner.getClass().getSimpleName()
                if kind == "PythonUDF":
                    functions[inner.name()] = None
                elif kind == "Alias" and not inner.deterministic():
                    random[inner.name()] = None
                elif kind in ("PreciseTimestampConversion", "TimeWindow", "SessionWindow"):
                    windowed = True
    return AnalyzedQuery(
        nodes=names,
        joins_streams=any(joins_both_streaming),
        joins_tables=not all(joins_both_streaming),
        python_functions=tuple(functions),
        grouping=None if aggregate is None else _grouping(aggregate),
        windowed=windowed,
        watermarked="EventTimeWatermark" in names,
        random_columns=tuple(random),
        repeated_sources=len(sources) != len(set(sources)),
        plan=plan,
        unstable_partitions=any(_has_unstable_partitions(node) for node in nodes),
        shuffled_by=_shuffled_by(nodes),
    )


def _shuffled_by(nodes: list[Any]) -> tuple[frozenset[str], ...] | None:
    """The columns of the shuffle that is nearest to the output."""
    for node in nodes:
        name = node.nodeName()
        if name == "Aggregate":
            return None
        if name in ("Deduplicate", "DeduplicateWithinWatermark"):
            return tuple(frozenset({str(column.name())}) for column in _iterate(node.keys()))
        if name in STATEFUL_OPERATORS:
            return tuple(frozenset({name}) for name in _state_keys(node))
        if name == "Join" and all(child.isStreaming() for child in _iterate(node.children())):
            condition = node.condition()
            return tuple(_equal_columns(condition.get())) if condition.isDefined() else ()
    return None


def _state_keys(node: Any) -> list[str]:
    """The columns by which an operator with state of its own groups its input: the first ones of that."""
    if str(node.nodeName()).startswith("TransformWithState"):
        return [str(column.name()) for column in _iterate(node.left().output())][: node.groupingAttributesLen()]
    return [str(column.name()) for column in _iterate(node.groupingAttributes())]


def _equal_columns(condition: Any) -> Iterator[frozenset[str]]:
    """The columns that a join compares for equality, as (left, right)."""
    for each in _expressions(condition):
        if each.getClass().getSimpleName() in ("EqualTo", "EqualNullSafe"):
            sides = [str(side.name()) for side in _iterate(each.children()) if _is_named(side)]
            if sides:
                yield frozenset(sides)


def unsupported_reason(frame: "DataFrame", query: AnalyzedQuery, mode: str, *, real_time: bool = False) -> str:
    """Why Spark cannot run this query in an output mode; empty if it can."""
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
        return readable_message(str(error.java_exception.getMessage()))
    except PySparkException as error:
        return readable_message(str(error))
    return ""


def has_two_event_times(query: AnalyzedQuery) -> bool:
    """Whether an operator keeps state by two event times, as after a join that keeps those of both sides. Spark's own
    check does not find it, only the planning of the first batch."""
    output_times = _event_time_ids(query.plan.output())
    for node in _nodes(query.plan):
        if not node.isStreaming():
            continue
        name, sides = node.nodeName(), [_event_time_ids(child.output()) for child in _iterate(node.children())]
        if name == "Aggregate":
            times = _event_time_ids(key for key in _iterate(node.groupingExpressions()) if _is_named(key))
        elif name in ("Deduplicate", "DeduplicateWithinWatermark"):
            # Columns that are not used are removed before it runs.
            times = sides[0] & (output_times | _event_time_ids(_iterate(node.keys())))
        elif name in STATEFUL_OPERATORS:
            times = sides[0]
        elif name == "Join" and len(sides) > 1:
            times = max((side & output_times for side in sides), key=len)
        else:
            continue
        if len(times) > 1:
            return True
    return False


def _event_time_ids(columns: Any) -> set[int]:
    """The ids of the event-time columns."""
    attributes = columns if isinstance(columns, Iterator) else _iterate(columns)
    return {
        int(attribute.exprId().id())
        for attribute in attributes
        if attribute.resolved() and attribute.metadata().contains("spark.watermarkDelayMs")
    }


def readable_message(text: str) -> str:
    """The readable part of Spark's message: without the error condition, the plan and the SQL state."""
    first = re.split(r"\n|;\s*~|;\s*\n| SQLSTATE:", text.strip(), maxsplit=1)[0]
    return re.sub(r"^(\([^)]*\) )?\[[A-Z0-9_.]+\]\s*", "", first).strip().rstrip(".;")


def _has_unstable_partitions(node: Any) -> bool:
    if node.nodeName() == "RepartitionByExpression":
        # By ranges of a column, which Spark computes from a sample; or by no column.
        kinds = [expression.getClass().getSimpleName() for expression in _iterate(node.partitionExpressions())]
        return not kinds or "SortOrder" in kinds
    return node.nodeName() in _UNSTABLE_PARTITIONING


def _source(node: Any) -> str:
    return str(node.extraOptions().get("subscribe") or node.toString())


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _iterate(plan.children()):
        yield from _nodes(child)


def _user_nodes(plan: Any) -> Iterator[Any]:
    """The nodes above our own readers, which end in an observation. Readers have many expressions, and reading them all from
    Spark takes a second per stream."""
    if (
        plan.nodeName() == "CollectMetrics" and str(plan.name()).startswith(input_observation(""))
    ) or not plan.isStreaming():
        return
    yield plan
    for child in _iterate(plan.children()):
        yield from _user_nodes(child)


def _expressions(expression: Any) -> Iterator[Any]:
    yield expression
    for child in _iterate(expression.children()):
        yield from _expressions(child)


def _iterate(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _grouping(aggregate: Any) -> tuple[str, ...]:
    """The output names of the columns that an aggregate groups by."""
    outputs = list(_iterate(aggregate.aggregateExpressions()))
    names = []
    for group in _iterate(aggregate.groupingExpressions()):
        same = [output for output in outputs if _unaliased(output).semanticEquals(_unaliased(group))]
        name = same[0] if same else group
        names.append(str(name.name()) if _is_named(name) else str(name.toString()))
    return tuple(names)


def _unaliased(expression: Any) -> Any:
    return expression.child() if expression.getClass().getSimpleName() == "Alias" else expression


def _is_named(expression: Any) -> bool:
    return expression.getClass().getSimpleName() in ("Alias", "AttributeReference")
