"""Spark's plan of a stream as text that is the same each time the same code is compiled, in three parts.

It is read off the optimised plan, not the one the user wrote: what reaches the state is decided there. A condition that
stands after a `groupBy` is moved before it where it can be, an aggregate whose result nobody selects is left out, a join
keeps only the columns that are used later.

`Region` is everything at or below the topmost operators with state: what the state holds depends on all of it. What an
aggregate makes of its finished sums belongs above. Our own readers of topics are leaves: their parsing is no part of it.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from riverrun.streams.code_hash import code_hash
from riverrun.streams.logical import STATEFUL
from riverrun.streams.sources import CLOCK, observation

_KINDS = STATEFUL | {"GlobalLimit": "limit()", "FlatMapGroupsWithState": "mapGroupsWithState()"}
# Parts of Spark's plans that differ each time, or that say where something is and not what it does.
_LEFT_OUT = {
    "class", "num-children", "exprId", "resultId", "qualifier", "metadata", "explicitMetadata", "dataframeId", "nodeId",
    "nonInheritableMetadataKeys", "planId", "func", "origin", "hint", "randomSeed", "scan", "options", "extraOptions",
    "catalog", "identifier", "relation", "data",
}  # fmt: skip
_RANDOM = ("Rand", "Randn", "Uuid", "Shuffle", "RandStr", "Uniform")
_MOST_FIELDS = 1_000_000


@dataclass(frozen=True)
class Operator:
    """One operator with state, in the user's words: `by` are its keys, `computes` its aggregates or its condition."""

    kind: str
    by: tuple[str, ...] = ()
    computes: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    # All that its state's form depends on, names and types, without what is below it.
    form: str = ""


@dataclass
class PlanText:
    """The three parts. `below` and `above` are lines to show, the hashes are what is compared."""

    sources: list[str] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    region: str = ""
    rest: str = ""
    below: list[str] = field(default_factory=list)
    above: list[str] = field(default_factory=list)
    watermarks: list[str] = field(default_factory=list)
    # By name, the hash of each Python function, and whether it is at or below the state.
    functions: dict[str, str] = field(default_factory=dict)
    functions_below: dict[str, str] = field(default_factory=dict)


def plan_text(spark: Any, analysed: Any, code: str = "") -> PlanText:
    """Read a plan. `analysed` is Spark's own, as `Query.plan` holds it; `code` stands for Python functions that it hides."""
    from py4j.protocol import Py4JJavaError

    before = spark.conf.get("spark.sql.debug.maxToStringFields", None)
    spark.conf.set("spark.sql.debug.maxToStringFields", str(_MOST_FIELDS))
    jvm = spark._jvm  # noqa: SLF001
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001
    try:
        try:
            plan = spark._jsparkSession.sessionState().optimizer().execute(analysed)  # noqa: SLF001
        except Py4JJavaError:
            # A rule that only a started query can run: what the user wrote is compared then, which finds more changes.
            plan = analysed
        pattern = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
        return _Reader(spark, plan, code, now=bool(analysed.containsPattern(pattern))).read()
    finally:
        if before is None:
            spark.conf.unset("spark.sql.debug.maxToStringFields")
        else:
            spark.conf.set("spark.sql.debug.maxToStringFields", before)


@dataclass
class _Node:
    """A node of the plan, from both sides: Spark's object, and its JSON."""

    java: Any
    content: dict[str, Any]
    children: list["_Node"] = field(default_factory=list)
    topic: str = ""
    moving: bool = False

    @property
    def kind(self) -> str:
        return _short(self.content["class"])

    @property
    def keeps_state(self) -> bool:
        if self.kind == "Join":
            return all(each.moving for each in self.children)
        return self.moving and self.kind in _KINDS


class _Reader:
    def __init__(self, spark: Any, plan: Any, code: str, *, now: bool) -> None:
        """`now`: it asks for the current time, for which the optimiser puts in what it was just then."""
        self._spark = spark
        self._code = code
        self._now = now
        self._plan = plan
        self._found = PlanText()
        self._ids: dict[int, int] = {}
        self._hashes: dict[int, str] = {}

    def read(self) -> PlanText:
        root = self._tree(self._plan, iter(json.loads(str(self._plan.toJSON()))))
        found = self._found
        region, rest = hashlib.sha256(), hashlib.sha256()
        for inside, line in self._part(root, inside=False):
            (region if inside else rest).update(line.encode() + b"\n")
        found.region, found.rest = region.hexdigest()[:32] if found.operators else "", rest.hexdigest()[:32]
        return found

    def _tree(self, java: Any, contents: Iterator[dict[str, Any]]) -> _Node:
        content = next(contents)
        node = _Node(java, content)
        count = int(content["num-children"])
        name = str(content.get("name", ""))
        if node.kind == "CollectMetrics" and name.startswith(observation("")):
            node.topic = name.removeprefix(observation(""))
        elif node.kind in ("StreamingRelationV2", "StreamingRelation"):
            node.topic = str(java.extraOptions().get("subscribe") or "?")
        children = list(_each(java.children()))
        for number in range(count):
            child = self._tree(children[number], contents)
            if not node.topic:
                node.children.append(child)
        node.moving = bool(node.topic) or any(each.moving for each in node.children)
        return node

    def _part(self, node: _Node, *, inside: bool) -> Iterator[tuple[bool, str]]:
        """The lines of a subtree, children first, each with whether the state depends on it."""
        above, inside = inside, inside or node.keeps_state
        for child in node.children:
            yield from self._part(child, inside=inside)
        if node.topic:
            self._found.sources.append(node.topic)
            yield inside, f"source {node.topic}"
            return
        if node.kind == "EventTimeWatermark":
            column = str(node.java.eventTime().name())
            self._found.watermarks.append(f"{column} {_interval_ms(node.java.delay())}")
            return
        if node.kind in ("SubqueryAlias", "View", "ResolvedHint") or _passes_through(node) or _is_clock(node):
            return
        if not node.children and not node.moving:
            # A table: what is in it may change at any time.
            data = self._clean(str(node.java.data().toString())) if node.kind == "LocalRelation" else ""
            yield inside, f"table {self._columns(node)} {data}"
            return
        if "PythonUDF" in json.dumps(node.content):
            self._hash_functions(node, below=inside)
        if node.kind == "Aggregate" and node.moving:
            yield from self._aggregate(node, inside=above)
            return
        if node.keeps_state:
            self._found.operators.append(self._operator(node))
        line = self._line(node)
        if not node.keeps_state:
            (self._found.below if inside else self._found.above).append(line)
        yield inside, f"{self._json(node.content, named=False)} {line}"

    # --- operators with state -----------------------------------------------------------------------------------------

    def _aggregate(self, node: _Node, *, inside: bool) -> Iterator[tuple[bool, str]]:
        """Its keys and functions belong to the state; what is made of the results only to that of an operator above it."""
        by = [self._json(each, named=False) for each in node.content["groupingExpressions"]]
        functions: dict[str, None] = {}
        for expression in node.content["aggregateExpressions"]:
            for tree in _find(expression, "AggregateExpression"):
                functions[self._json(tree, named=False)] = None
        words = [_bare(str(each.toString())) for each in _each(node.java.groupingExpressions())]
        computes: dict[str, None] = {}
        for expression in _each(node.java.aggregateExpressions()):
            for each in _java_find(expression, "AggregateExpression"):
                computes[self._clean(str(each.toString()))] = None
        shape = [self._json(each, named=True) for each in node.content["groupingExpressions"]]
        shape += [self._json(each, named=True) for expression in node.content["aggregateExpressions"]
                  for each in _find(expression, "AggregateExpression")]  # fmt: skip
        below = node.children[0]
        windows = tuple(_windows(str(below.java.simpleString(_MOST_FIELDS)))) if below.kind == "Project" else ()
        self._found.operators.append(
            Operator(_KINDS["Aggregate"], tuple(words), tuple(computes), windows, _hash(*dict.fromkeys(shape)))
        )
        yield True, f"aggregate by {by} of {list(functions)} {list(computes)}"
        results = self._line(node).partition("], [")[2]
        (self._found.below if inside else self._found.above).append(f"results [{results}")
        yield (
            inside,
            f"results {[self._json(each, named=True) for each in node.content['aggregateExpressions']]} {results}",
        )

    def _operator(self, node: _Node) -> Operator:
        content = node.content
        if node.kind == "Join":
            sides = [self._columns(each) for each in node.children]
            condition = self._line(node).partition(", ")[2]
            kind = _short(str((content.get("joinType") or {}).get("object", "Join"))).removesuffix("$")
            form = _hash(kind, condition, *sides)
            return Operator("a join of two streams", tuple(sides), (f"{kind} {condition}",), (), form)
        keys: tuple[str, ...] = ()
        computes: tuple[str, ...] = ()
        if "keys" in content:
            keys = tuple(each[0].get("name", "?") for each in content["keys"])
        elif "groupingAttributesLen" in content:
            first = self._columns(node.children[0]).split(", ")[: int(content["groupingAttributesLen"])]
            keys = tuple(each.partition(" ")[0] for each in first)
        shape = {name: value for name, value in content.items() if name not in ("functionExpr", "outputAttrs")}
        if "limitExpr" in content:
            computes = (self._clean(str(node.java.limitExpr().toString())),)
        return Operator(_KINDS[node.kind], keys, computes, (), _hash(self._json(shape, named=True)))

    def _columns(self, node: _Node) -> str:
        return ", ".join(f"{each.name()} {each.dataType().simpleString()}" for each in _each(node.java.output()))

    # --- text ---------------------------------------------------------------------------------------------------------

    def _line(self, node: _Node) -> str:
        return self._clean(str(node.java.simpleString(_MOST_FIELDS)))

    def _clean(self, text: str) -> str:
        text = re.sub(r"\b(rand|randn|uuid|shuffle|randstr|uniform)\([^()]*(\([^()]*\))?\)", r"\1()", _bare(text))
        if self._now:
            text = re.sub(r"\b\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d+)?)?", _or_now, text)
        return text

    def _json(self, value: Any, *, named: bool) -> str:
        """A piece of Spark's JSON without what differs each time. `named`: columns of the same name are the same."""
        return json.dumps(self._plain(value, named=named), sort_keys=True)

    def _plain(self, value: Any, *, named: bool) -> Any:
        if isinstance(value, list):
            return [self._plain(each, named=named) for each in _without_seeds(value)]
        if isinstance(value, str):
            # Of an array of bytes the JSON has only where it is in memory; the line beside it has the bytes.
            return re.sub(r"^(\[?[\w.$;]+)@[0-9a-f]+$", r"\1", value)
        if not isinstance(value, dict):
            return value
        kind = _short(str(value.get("class", "")))
        plain = {name: self._plain(each, named=named) for name, each in value.items() if name not in _LEFT_OUT}
        if kind:
            plain["is"] = kind
        if kind == "AttributeReference" and not named:
            number = int(value["exprId"]["id"])
            plain["id"] = self._ids.setdefault(number, len(self._ids))
        if kind == "AttributeReference":
            # Whether Spark thinks that a column may be null changes nothing here.
            plain.pop("nullable", None)
        elif kind == "PythonUDF":
            plain["does"] = self._hashes.get(int(value["resultId"]["id"]), "")
        elif kind == "Literal" and self._now and _is_time(value.get("dataType")):
            # The line beside it has the value, where it is not just now.
            plain.pop("value", None)
        return plain

    def _hash_functions(self, node: _Node, *, below: bool) -> None:
        from pyspark import cloudpickle

        tag = self._spark._jvm.scala.reflect.ClassTag.Byte()  # noqa: SLF001
        for expression in _each(node.java.expressions()):
            for each in _java_find(expression, "PythonUDF"):
                name = str(each.name())
                try:
                    made = cloudpickle.loads(bytes(each.func().command().toArray(tag)))
                    function = made[0] if isinstance(made, tuple) else made
                    found, name = code_hash(function), _function_name(function, name)
                except Exception:  # noqa: BLE001
                    # One that holds megabytes of data goes to the workers by another way: all code of the stream counts.
                    found = self._code
                self._hashes[int(each.resultId().id())] = found
                into = self._found.functions_below if below else self._found.functions
                into[name] = found


def _function_name(function: Any, known: str) -> str:
    """The user's name for it: of a processor with state, its class."""
    owner = getattr(function, "__self__", None)
    for each in getattr(owner, "__dict__", {}).values():
        if any(kind.__name__ == "StatefulProcessor" for kind in type(each).__mro__):
            return type(each).__name__
    return known


def _find(trees: list[dict[str, Any]], kind: str) -> list[list[dict[str, Any]]]:
    """The subtrees of a kind in an expression, which Spark writes as a list: each node before its children."""
    found = []
    for at, node in enumerate(trees):
        if _short(node["class"]) == kind:
            found.append(trees[at : _end(trees, at)])
    return found


def _without_seeds(trees: list[Any]) -> list[Any]:
    """A random function without a seed gets another one each time it is compiled."""
    if not any(isinstance(each, dict) and _short(str(each.get("class", ""))) in _RANDOM for each in trees):
        return trees
    kept = []
    seeds: set[int] = set()
    for at, node in enumerate(trees):
        if _short(node["class"]) in _RANDOM:
            seeds |= {index for index in range(at + 1, _end(trees, at)) if _short(trees[index]["class"]) == "Literal"}
        kept.append({**node, "value": "seed"} if at in seeds else node)
    return kept


def _end(trees: list[dict[str, Any]], at: int) -> int:
    following = at + 1
    for _ in range(int(trees[at]["num-children"])):
        following = _end(trees, following)
    return following


def _java_find(expression: Any, kind: str) -> Iterator[Any]:
    if expression.getClass().getSimpleName() == kind:
        yield expression
    for child in _each(expression.children()):
        yield from _java_find(child, kind)


def _each(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _is_clock(node: _Node) -> bool:
    """Whether it is our own mark behind a watermark."""
    return node.kind == "CollectMetrics" and str(node.content.get("name", "")).startswith(CLOCK)


def _passes_through(node: _Node) -> bool:
    """A projection that only leaves columns out or sorts them."""
    return node.kind == "Project" and all(
        len(each) == 1 and _short(each[0]["class"]) == "AttributeReference" for each in node.content["projectList"]
    )


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _bare(text: str) -> str:
    """Without the numbers of columns, the marks of event time, and what our readers and Spark add to conditions."""
    text = re.sub(r"#\d+L?(-T\d+ms)?", "", text)
    return re.sub(r"-T\d+ms\b", "", text)


def _or_now(found: re.Match[str]) -> str:
    """A time as it is, unless it is the current one."""
    try:
        apart = abs((date.fromisoformat(found[0][:10]) - datetime.now(UTC).date()).days)
    except ValueError:
        return found[0]
    return "now" if apart <= 1 else found[0]


def _is_time(kind: Any) -> bool:
    return isinstance(kind, str) and kind.startswith(("timestamp", "date", "time"))


def _interval_ms(delay: Any) -> int:
    from py4j.java_gateway import get_field

    months, days, micros = (int(get_field(delay, name)) for name in ("months", "days", "microseconds"))
    return (months * 31 + days) * 86_400_000 + micros // 1000


def _windows(text: str) -> Iterator[str]:
    """The lengths of time windows in a projection that makes them: for people to read, best effort."""
    for part in re.findall(r"named_struct\(start.*?\) AS (?:window|session_window)\b", text):
        every = re.search(r"% (\d+)\)", part)
        length = re.search(r"\+ (\d+)\), LongType, TimestampType\)+ AS", part + " AS") or re.search(
            r"\+ (\d+)\), LongType, TimestampType\)", part[part.rfind(", end,") :]
        )
        gap = re.search(r"\+ ([^,()]*(?:second|minute|hour|day|week)[^,()]*),", part)
        if gap:
            yield f"sessions that end after {gap[1]}"
        elif every and length:
            yield f"windows of {int(length[1]) / 1e6:g} s every {int(every[1]) / 1e6:g} s"


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
