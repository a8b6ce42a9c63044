"""Spark's plan of a stream as text that is the same each time the same code is compiled, in three parts.

It is taken from the optimised plan, not the one the user wrote, because the optimised plan decides what reaches the state: a
filter after a `groupBy` is moved before it if possible, an aggregate whose result nobody selects is removed, a join keeps
only the columns that are used later.

The state part is everything at or below the topmost stateful operators: the state depends on all of it. What is computed
from the results of an aggregate belongs to the output. Our own readers of topics are leaves: their parsing does not count.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from riverrun.streams.compile.code_hash import code_hash
from riverrun.streams.compile.query_analysis import STATEFUL_OPERATORS
from riverrun.streams.compile.sources import WATERMARK_OBSERVATION, input_observation

_STATEFUL_KINDS = STATEFUL_OPERATORS | {"GlobalLimit": "limit()", "FlatMapGroupsWithState": "mapGroupsWithState()"}
# Keys in Spark's plans that differ each time, or that say where something is and not what it does.
_IGNORED_KEYS = {
    "class", "num-children", "exprId", "resultId", "qualifier", "metadata", "explicitMetadata", "dataframeId", "nodeId",
    "nonInheritableMetadataKeys", "planId", "func", "origin", "hint", "randomSeed", "scan", "options", "extraOptions",
    "catalog", "identifier", "relation", "data",
}  # fmt: skip
_RANDOM = ("Rand", "Randn", "Uuid", "Shuffle", "RandStr", "Uniform")
_MAX_FIELDS = 1_000_000


@dataclass(frozen=True)
class StatefulOperator:
    """One stateful operator, in the user's terms: `by` are its keys, `computes` its aggregates or its condition."""

    kind: str
    by: tuple[str, ...] = ()
    computes: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    # A hash of all that the schema of its state depends on, names and types, without what is below it.
    schema_hash: str = ""


@dataclass
class PlanText:
    """The three parts: sources, state and output. `state_lines` and `output_lines` are shown, the hashes are compared."""

    sources: list[str] = field(default_factory=list)
    operators: list[StatefulOperator] = field(default_factory=list)
    state_hash: str = ""
    output_hash: str = ""
    state_lines: list[str] = field(default_factory=list)
    output_lines: list[str] = field(default_factory=list)
    watermarks: list[str] = field(default_factory=list)
    # The hashes of Python functions by name: those above the state, and those at or below it.
    output_functions: dict[str, str] = field(default_factory=dict)
    state_functions: dict[str, str] = field(default_factory=dict)


def read_plan_text(spark: Any, analyzed_plan: Any, code: str = "") -> PlanText:
    """Read a plan. `analyzed_plan` is Spark's own, as `AnalyzedQuery.plan` holds it; `code` is the hash to use
    for Python functions that cannot be read."""
    from py4j.protocol import Py4JJavaError

    max_fields_before = spark.conf.get("spark.sql.debug.maxToStringFields", None)
    spark.conf.set("spark.sql.debug.maxToStringFields", str(_MAX_FIELDS))
    jvm = spark._jvm  # noqa: SLF001
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001
    try:
        try:
            plan = spark._jsparkSession.sessionState().optimizer().execute(analyzed_plan)  # noqa: SLF001
        except Py4JJavaError:
            # A rule that only runs in a started query: then the user's plan is compared, which finds more changes.
            plan = analyzed_plan
        pattern = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
        return _PlanReader(spark, plan, code, uses_current_time=bool(analyzed_plan.containsPattern(pattern))).read()
    finally:
        if max_fields_before is None:
            spark.conf.unset("spark.sql.debug.maxToStringFields")
        else:
            spark.conf.set("spark.sql.debug.maxToStringFields", max_fields_before)


@dataclass
class _PlanNode:
    """A node of the plan: Spark's Java object and its JSON."""

    java: Any
    content: dict[str, Any]
    children: list["_PlanNode"] = field(default_factory=list)
    topic: str = ""
    streaming: bool = False

    @property
    def kind(self) -> str:
        return _class_name(self.content["class"])

    @property
    def keeps_state(self) -> bool:
        if self.kind == "Join":
            return all(child.streaming for child in self.children)
        return self.streaming and self.kind in _STATEFUL_KINDS


class _PlanReader:
    def __init__(self, spark: Any, plan: Any, code: str, *, uses_current_time: bool) -> None:
        """`uses_current_time`: the optimiser replaces the current time by its value, which must be masked."""
        self._spark = spark
        self._code = code
        self._uses_current_time = uses_current_time
        self._plan = plan
        self._text = PlanText()
        self._ids: dict[int, int] = {}
        self._hashes: dict[int, str] = {}

    def read(self) -> PlanText:
        root = self._tree(self._plan, iter(json.loads(str(self._plan.toJSON()))))
        text = self._text
        state, output = hashlib.sha256(), hashlib.sha256()
        for in_state, line in self._subtree_lines(root, in_state=False):
            (state if in_state else output).update(line.encode() + b"\n")
        text.state_hash, text.output_hash = state.hexdigest()[:32] if text.operators else "", output.hexdigest()[:32]
        return text

    def _tree(self, java: Any, contents: Iterator[dict[str, Any]]) -> _PlanNode:
        content = next(contents)
        node = _PlanNode(java, content)
        count = int(content["num-children"])
        name = str(content.get("name", ""))
        if node.kind == "CollectMetrics" and name.startswith(input_observation("")):
            node.topic = name.removeprefix(input_observation(""))
        elif node.kind in ("StreamingRelationV2", "StreamingRelation"):
            node.topic = str(java.extraOptions().get("subscribe") or "?")
        children = list(_iterate(java.children()))
        for number in range(count):
            child = self._tree(children[number], contents)
            if not node.topic:
                node.children.append(child)
        node.streaming = bool(node.topic) or any(child.streaming for child in node.children)
        return node

    def _subtree_lines(self, node: _PlanNode, *, in_state: bool) -> Iterator[tuple[bool, str]]:
        """The lines of a subtree, children first, each with whether the state depends on it."""
        parent_in_state, in_state = in_state, in_state or node.keeps_state
        for child in node.children:
            yield from self._subtree_lines(child, in_state=in_state)
        if node.topic:
            self._text.sources.append(node.topic)
            yield in_state, f"source {node.topic}"
            return
        if node.kind == "EventTimeWatermark":
            column = str(node.java.eventTime().name())
            self._text.watermarks.append(f"{column} {_interval_ms(node.java.delay())}")
            return
        if (
            node.kind in ("SubqueryAlias", "View", "ResolvedHint")
            or _passes_through(node)
            or _is_watermark_marker(node)
        ):
            return
        if not node.children and not node.streaming:
            # A table: only its columns count, because its rows may change at any time.
            data = self._clean(str(node.java.data().toString())) if node.kind == "LocalRelation" else ""
            yield in_state, f"table {self._columns(node)} {data}"
            return
        if "PythonUDF" in json.dumps(node.content):
            self._hash_functions(node, in_state=in_state)
        if node.kind == "Aggregate" and node.streaming:
            yield from self._aggregate(node, in_state=parent_in_state)
            return
        if node.keeps_state:
            self._text.operators.append(self._operator(node))
        line = self._line(node)
        if not node.keeps_state:
            (self._text.state_lines if in_state else self._text.output_lines).append(line)
        yield in_state, f"{self._json(node.content, named=False)} {line}"

    # --- stateful operators -------------------------------------------------------------------------------------------

    def _aggregate(self, node: _PlanNode, *, in_state: bool) -> Iterator[tuple[bool, str]]:
        """Its keys and functions belong to the state; what is computed from the results only if an operator above has
        state."""
        grouping = [self._json(key, named=False) for key in node.content["groupingExpressions"]]
        functions: dict[str, None] = {}
        for expression in node.content["aggregateExpressions"]:
            for tree in _find(expression, "AggregateExpression"):
                functions[self._json(tree, named=False)] = None
        grouping_text = [_without_ids(str(key.toString())) for key in _iterate(node.java.groupingExpressions())]
        computes: dict[str, None] = {}
        for expression in _iterate(node.java.aggregateExpressions()):
            for aggregate in _find_java(expression, "AggregateExpression"):
                computes[self._clean(str(aggregate.toString()))] = None
        schema = [self._json(key, named=True) for key in node.content["groupingExpressions"]]
        schema += [self._json(tree, named=True) for expression in node.content["aggregateExpressions"]
                  for tree in _find(expression, "AggregateExpression")]  # fmt: skip
        child = node.children[0]
        windows = tuple(_windows(str(child.java.simpleString(_MAX_FIELDS)))) if child.kind == "Project" else ()
        self._text.operators.append(
            StatefulOperator(
                _STATEFUL_KINDS["Aggregate"],
                tuple(grouping_text),
                tuple(computes),
                windows,
                _hash(*dict.fromkeys(schema)),
            )
        )
        yield True, f"aggregate by {grouping} of {list(functions)} {list(computes)}"
        results = self._line(node).partition("], [")[2]
        (self._text.state_lines if in_state else self._text.output_lines).append(f"results [{results}")
        yield (
            in_state,
            f"results {[self._json(tree, named=True) for tree in node.content['aggregateExpressions']]} {results}",
        )

    def _operator(self, node: _PlanNode) -> StatefulOperator:
        content = node.content
        if node.kind == "Join":
            sides = [self._columns(child) for child in node.children]
            condition = self._line(node).partition(", ")[2]
            kind = _class_name(str((content.get("joinType") or {}).get("object", "Join"))).removesuffix("$")
            schema_hash = _hash(kind, condition, *sides)
            return StatefulOperator("a join of two streams", tuple(sides), (f"{kind} {condition}",), (), schema_hash)
        keys: tuple[str, ...] = ()
        computes: tuple[str, ...] = ()
        if "keys" in content:
            keys = tuple(key[0].get("name", "?") for key in content["keys"])
        elif "groupingAttributesLen" in content:
            columns = self._columns(node.children[0]).split(", ")[: int(content["groupingAttributesLen"])]
            keys = tuple(column.partition(" ")[0] for column in columns)
        schema = {name: value for name, value in content.items() if name not in ("functionExpr", "outputAttrs")}
        if "limitExpr" in content:
            computes = (self._clean(str(node.java.limitExpr().toString())),)
        return StatefulOperator(_STATEFUL_KINDS[node.kind], keys, computes, (), _hash(self._json(schema, named=True)))

    def _columns(self, node: _PlanNode) -> str:
        return ", ".join(
            f"{column.name()} {column.dataType().simpleString()}" for column in _iterate(node.java.output())
        )

    # --- text ---------------------------------------------------------------------------------------------------------

    def _line(self, node: _PlanNode) -> str:
        return self._clean(str(node.java.simpleString(_MAX_FIELDS)))

    def _clean(self, text: str) -> str:
        text = re.sub(
            r"\b(rand|randn|uuid|shuffle|randstr|uniform)\([^()]*(\([^()]*\))?\)", r"\1()", _without_ids(text)
        )
        if self._uses_current_time:
            text = re.sub(r"\b\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d+)?)?", _mask_current_time, text)
        return text

    def _json(self, value: Any, *, named: bool) -> str:
        """Spark's JSON without what differs each time. `named`: columns of the same name count as the same."""
        return json.dumps(self._normalized(value, named=named), sort_keys=True)

    def _normalized(self, value: Any, *, named: bool) -> Any:
        if isinstance(value, list):
            return [self._normalized(item, named=named) for item in _without_seeds(value)]
        if isinstance(value, str):
            # For a byte array the JSON has only its address; the line of text has the bytes.
            return re.sub(r"^(\[?[\w.$;]+)@[0-9a-f]+$", r"\1", value)
        if not isinstance(value, dict):
            return value
        kind = _class_name(str(value.get("class", "")))
        plain = {name: self._normalized(item, named=named) for name, item in value.items() if name not in _IGNORED_KEYS}
        if kind:
            plain["is"] = kind
        if kind == "AttributeReference" and not named:
            number = int(value["exprId"]["id"])
            plain["id"] = self._ids.setdefault(number, len(self._ids))
        if kind == "AttributeReference":
            # Whether Spark thinks that a column may be null does not matter.
            plain.pop("nullable", None)
        elif kind == "PythonUDF":
            plain["does"] = self._hashes.get(int(value["resultId"]["id"]), "")
        elif kind == "Literal" and self._uses_current_time and _is_time(value.get("dataType")):
            # The line of text has the value, unless it is the current time.
            plain.pop("value", None)
        return plain

    def _hash_functions(self, node: _PlanNode, *, in_state: bool) -> None:
        from pyspark import cloudpickle

        tag = self._spark._jvm.scala.reflect.ClassTag.Byte()  # noqa: SLF001
        for expression in _iterate(node.java.expressions()):
            for udf in _find_java(expression, "PythonUDF"):
                name = str(udf.name())
                try:
                    command = cloudpickle.loads(bytes(udf.func().command().toArray(tag)))
                    function = command[0] if isinstance(command, tuple) else command
                    function_hash, name = code_hash(function), _function_name(function, name)
                except Exception:  # noqa: BLE001
                    # A function with megabytes of data is sent to the workers differently: use all code of the stream
                    # instead.
                    function_hash = self._code
                self._hashes[int(udf.resultId().id())] = function_hash
                functions = self._text.state_functions if in_state else self._text.output_functions
                functions[name] = function_hash


def _function_name(function: Any, known: str) -> str:
    """The user's name for a function: for a stateful processor, its class."""
    owner = getattr(function, "__self__", None)
    for value in getattr(owner, "__dict__", {}).values():
        if any(kind.__name__ == "StatefulProcessor" for kind in type(value).__mro__):
            return type(value).__name__
    return known


def _find(trees: list[dict[str, Any]], kind: str) -> list[list[dict[str, Any]]]:
    """The subtrees of a class in an expression, which Spark writes as a list with each node before its children."""
    subtrees = []
    for index, node in enumerate(trees):
        if _class_name(node["class"]) == kind:
            subtrees.append(trees[index : _end(trees, index)])
    return subtrees


def _without_seeds(trees: list[Any]) -> list[Any]:
    """The nodes without random seeds: a random function without a seed gets another one each time it is compiled."""
    if not any(isinstance(tree, dict) and _class_name(str(tree.get("class", ""))) in _RANDOM for tree in trees):
        return trees
    nodes = []
    seeds: set[int] = set()
    for position, node in enumerate(trees):
        if _class_name(node["class"]) in _RANDOM:
            seeds |= {
                index
                for index in range(position + 1, _end(trees, position))
                if _class_name(trees[index]["class"]) == "Literal"
            }
        nodes.append({**node, "value": "seed"} if position in seeds else node)
    return nodes


def _end(trees: list[dict[str, Any]], index: int) -> int:
    following = index + 1
    for _ in range(int(trees[index]["num-children"])):
        following = _end(trees, following)
    return following


def _find_java(expression: Any, kind: str) -> Iterator[Any]:
    if expression.getClass().getSimpleName() == kind:
        yield expression
    for child in _iterate(expression.children()):
        yield from _find_java(child, kind)


def _iterate(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _is_watermark_marker(node: _PlanNode) -> bool:
    """Whether it is our own observation behind a watermark."""
    return node.kind == "CollectMetrics" and str(node.content.get("name", "")).startswith(WATERMARK_OBSERVATION)


def _passes_through(node: _PlanNode) -> bool:
    """Whether it is a projection that only drops or reorders columns."""
    return node.kind == "Project" and all(
        len(tree) == 1 and _class_name(tree[0]["class"]) == "AttributeReference" for tree in node.content["projectList"]
    )


def _class_name(name: str) -> str:
    return name.rpartition(".")[2]


def _without_ids(text: str) -> str:
    """The text without the ids of columns and the marks of event time."""
    text = re.sub(r"#\d+L?(-T\d+ms)?", "", text)
    return re.sub(r"-T\d+ms\b", "", text)


def _mask_current_time(match: re.Match[str]) -> str:
    """The matched time as it is, or "now" if it is about the current time."""
    try:
        days_apart = abs((date.fromisoformat(match[0][:10]) - datetime.now(UTC).date()).days)
    except ValueError:
        return match[0]
    return "now" if days_apart <= 1 else match[0]


def _is_time(kind: Any) -> bool:
    return isinstance(kind, str) and kind.startswith(("timestamp", "date", "time"))


def _interval_ms(delay: Any) -> int:
    from py4j.java_gateway import get_field

    months, days, micros = (int(get_field(delay, name)) for name in ("months", "days", "microseconds"))
    return (months * 31 + days) * 86_400_000 + micros // 1000


def _windows(text: str) -> Iterator[str]:
    """The lengths of time windows in a projection that makes them, as text for people; best effort."""
    for window in re.findall(r"named_struct\(start.*?\) AS (?:window|session_window)\b", text):
        every = re.search(r"% (\d+)\)", window)
        length = re.search(r"\+ (\d+)\), LongType, TimestampType\)+ AS", window + " AS") or re.search(
            r"\+ (\d+)\), LongType, TimestampType\)", window[window.rfind(", end,") :]
        )
        gap = re.search(r"\+ ([^,()]*(?:second|minute|hour|day|week)[^,()]*),", window)
        if gap:
            yield f"sessions that end after {gap[1]}"
        elif every and length:
            yield f"windows of {int(length[1]) / 1e6:g} s every {int(every[1]) / 1e6:g} s"


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
